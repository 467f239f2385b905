"""`mtl serve`: its answers, its refusals, and its behaviour under load."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import example, given
from hypothesis import strategies as st

from mtl.commands.main import main
from mtl.corpora import running_text
from mtl.corpora.formats.jsonl import from_json, read_jsonl
from mtl.errors import InputError
from mtl.heads.gates import HeadGates
from mtl.models.annotator import Rules
from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from mtl.serving.service import Limits, application, parsed, runner_of
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence import Sentence
from tests.mtl.analysis import worth
from tests.mtl.serving.load import (
    ahead_of_other_programs,
    annotated_in_batches,
    closed_loop,
    open_loop,
    serving,
)

LIMITS = Limits(bytes=50_000, sentences=20, words=30, waiting=2000, seconds=30)


@pytest.fixture(scope="module")
def model(toy: Path) -> JointModel:
    return worth.joint_model(toy, ("pos", "dep"), masks=("pos", "dep"), dtype=torch.float32)


@pytest.fixture(scope="module")
def saved(model: JointModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    return folder


def served(
    model: JointModel,
    use: Callable[[TestClient[Any, Any]], Awaitable[Any]],
    limits: Limits = LIMITS,
    rules: Rules | None = None,
) -> Any:
    """A client of the service of a model."""

    class Served(TestServer):
        async def _make_runner(self, **options: Any) -> Any:
            return runner_of(self.app, **options)

    async def session() -> Any:
        app = application(model, list(model.tasks), "en", limits, rules=rules)
        async with TestClient(Served(app)) as client:
            return await use(client)

    return asyncio.run(session())


async def posted(client: TestClient[Any, Any], body: Any, **options: Any) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client.post("/annotate", data=data, **options) as answer:
        assert answer.content_type == "application/json"
        return answer.status, await answer.json()


def test_text_words_and_probabilities(model: JointModel) -> None:
    text, words = "We ate 🍝 in Paris.  It rained.", [["We", "ate"], ["It", "rained", "."]]

    async def use(client: TestClient[Any, Any]) -> None:
        status, record = await posted(client, {"text": text, "probabilities": 2})
        expected = model.annotate_text(text, probabilities=2).to_json()
        assert (status, record) == (200, json.loads(json.dumps(expected)))
        offsets = record["sentences"][0]["offsets"]
        assert [text[start:end] for start, end in offsets] == ["We", "ate", "🍝", "in", "Paris", "."]
        status, record = await posted(client, {"sentences": words})
        assert [from_json(each) for each in record["sentences"]] == model.annotate(words)
        assert "offsets" not in record["sentences"][0]
        whole = {"id": "x", "words": ["We"], "tags": ["PRP"]}
        status, record = await posted(client, {"sentences": [whole, ["It"]], "probabilities": None})
        assert (status, record["sentences"][0]["id"]) == (200, "x")
        status, record = await posted(client, {"sentences": words, "tasks": ["dep"]})
        assert [from_json(each) for each in record["sentences"]] == model.annotate(words, tasks=["dep"])
        assert await posted(client, {"text": " "}) == (200, {"text": " ", "sentences": []})
        assert await posted(client, {"sentences": []}) == (200, {"sentences": []})
        packed = gzip.compress(json.dumps({"sentences": words}).encode())
        status, record = await posted(client, packed, headers={"Content-Encoding": "gzip"})
        assert (status, len(record["sentences"])) == (200, 2)
        async with client.get("/health") as answer:
            health = await answer.json()
        assert (health["status"], health["tasks"], health["waiting"]) == ("ok", ["pos", "dep"], 0)
        assert health["annotated"] == 10

    served(model, use)


def test_requests_and_sentences_are_counted_for_prometheus(model: JointModel) -> None:
    """One number a line, each of a kind that was declared before; requests for it are not counted."""

    async def numbers(client: TestClient[Any, Any]) -> dict[str, float]:
        async with client.get("/metrics") as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            lines = (await answer.text()).splitlines()
        declared: dict[str, str] = {}
        found = {}
        for line in lines:
            if line.startswith("# TYPE "):
                name, kind = line.split()[2:]
                declared[name] = kind
            elif not line.startswith("# HELP "):
                [(series, value)] = re.findall(r"^(\S+) (\S+)$", line)
                name = re.sub(r"\{.*|_(sum|count)(?=$)", "", series)
                assert name in declared, line
                found[series] = float(value)
        assert set(declared.values()) == {"counter", "summary", "gauge"}
        return found

    async def use(client: TestClient[Any, Any]) -> None:
        assert (await numbers(client))["mtl_request_seconds_count"] == 0
        await posted(client, {"sentences": [["We", "ate"], ["It"]]})
        await posted(client, {"sentences": [["We"]]})
        await posted(client, b"{")
        found = await numbers(client)
        assert found['mtl_requests_total{status="200"}'] == 2
        assert found['mtl_requests_total{status="400"}'] == 1
        assert found["mtl_request_seconds_count"] == 3
        assert 0 < found["mtl_request_seconds_sum"] < 60
        assert (found["mtl_sentences_annotated_total"], found["mtl_sentences_waiting"]) == (3, 0)

    served(model, use)


BAD: list[tuple[Any, int, str]] = [
    (b"", 400, "the body is not JSON"),
    (b"{", 400, "the body is not JSON"),
    (b"\xff\xfe", 400, "the body is not JSON"),
    (b"[" * 20_000, 400, "the body is not JSON"),
    (b'{"text": ' + b"9" * 5000 + b"}", 400, "a number of more than 4,300 digits"),
    ([], 400, "send an object"),
    ({}, 400, "send an object with either"),
    ({"text": "a", "sentences": []}, 400, "send an object with either"),
    ({"text": "a", "k": 1}, 400, "unknown key 'k'"),
    (b'{"text": "a", "text": "b"}', 400, "the body: the key 'text' occurs twice in one object"),
    (b'{"sentences": [{"words": ["We"], "words": ["a"]}]}', 400, "the key 'words' occurs twice"),
    ({"text": 3}, 400, "'text' must be a string"),
    ({"text": "a \ud800"}, 400, "half of a surrogate pair"),
    ({"text": "a", "probabilities": 0}, 400, "'probabilities' must be"),
    ({"text": "a", "probabilities": True}, 400, "'probabilities' must be"),
    ({"text": "a", "tasks": []}, 400, "'tasks' must be a list of some of pos, dep, or null"),
    ({"text": "a", "tasks": ["ner"]}, 400, "'tasks' must be a list of some of pos, dep"),
    ({"text": "a", "tasks": [["pos"]]}, 400, "'tasks' must be a list of some of pos, dep"),
    ({"sentences": "We ate"}, 400, "'sentences' must be a list"),
    ({"sentences": ["We ate"]}, 400, "sentence 1 is 'We ate', not a list of words"),
    ({"sentences": [["We", 3]]}, 400, "sentence 1: word 2 is 3, not a string"),
    ({"sentences": [["We"], []]}, 400, "sentence 2 has no words"),
    ({"sentences": [["We", "a\nb"]]}, 400, "holds a control character"),
    ({"sentences": [{"words": ["We"], "x": 1}]}, 400, "sentence 1: unknown key 'x'"),
    ({"sentences": [{"words": ["We"], "labels": {"\ud800": "x"}}]}, 400, "a control character"),
    ({"sentences": [["We"]] * 21}, 413, "21 sentences, and a request may have 20"),
    ({"sentences": [["We"] * 31]}, 413, "sentence 1 has 31 words, and may have 30"),
    (b"x" * 50_001, 413, "50000"),
    (b'{"text": "' + b"a " * 24_000 + b'"}', 413, "words, and may have 30"),
]


def test_the_service_keeps_rules(model: JointModel) -> None:
    tag, forbidden = model.labels["pos"].names[:2]
    rules = model.rules_for({"pos": {"force": {"We": tag}, "forbid": {"ate": forbidden}}})

    async def use(client: TestClient[Any, Any]) -> Any:
        return [await posted(client, {"text": "We ate.", "tasks": tasks}) for tasks in (["pos"], ["dep"])]

    (_, tagged), (code, parsed) = served(model, use, rules=rules)
    [expected] = model.annotate_text("We ate.", tasks=["pos"], rules=rules)
    assert tagged["sentences"][0]["tags"] == list(expected.tags)
    assert expected.tags[0] == tag
    assert code == 200
    assert parsed["sentences"][0]["tags"] is None  # a request may ask for tasks without rules


def test_wrong_bodies_have_clear_codes_and_harm_nobody(model: JointModel) -> None:
    async def use(client: TestClient[Any, Any]) -> None:
        for body, code, message in BAD:
            status, record = await posted(client, body)
            assert (status, record.keys()) == (code, {"error"}), body[:50] if body else body
            assert message in record["error"]
            assert "\n" not in record["error"]
        for method, path, code in (("GET", "/annotate", 405), ("PUT", "/annotate", 405), ("POST", "/x", 404)):
            async with client.request(method, path) as answer:
                assert answer.status == code
                assert "use POST /annotate, GET /health or GET /metrics" in (await answer.json())["error"]
        for encoding in ("gzip", "deflate"):
            status, record = await posted(client, b"not packed", headers={"Content-Encoding": encoding})
            assert (status, record["error"][:28]) == (400, "the body cannot be read (Con")
            assert f"'{encoding}'" in record["error"]
        bomb = gzip.compress(b" " * 5_000_000)
        status, _ = await posted(client, bomb, headers={"Content-Encoding": "gzip"})
        assert status == 413
        assert (await posted(client, {"text": "We ate."}))[0] == 200

    served(model, use)


GOOD = b"POST /annotate HTTP/1.1\r\nHost: x\r\n"
BROKEN: list[tuple[bytes, int]] = [
    (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
    (b"hello\r\n\r\n", 400),
    (b"GET /health HTTP/9.9.9\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nA\x00: b\r\n\r\n", 400),
    (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 10_000 + b"\r\n\r\n", 400),
    (GOOD + b"Content-Length: -1\r\n\r\n", 400),
    (GOOD + b"Content-Length: x\r\n\r\n", 400),
    (GOOD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    (GOOD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
    (GOOD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (GOOD + b"Transfer-Encoding: nothing\r\n\r\n", 400),
    (GOOD + b"Expect: magic\r\nContent-Length: 0\r\n\r\n", 417),
    (b"POST /nowhere HTTP/1.1\r\nHost: x\r\nExpect: magic\r\nContent-Length: 0\r\n\r\n", 417),
    (GOOD + b"\r\n", 400),
    (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    (b"TRACE /annotate HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    (b"PROPFIND /annotate HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    (b"POST /annotate HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60_000, 413),
    (GOOD + b"Content-Length: 50\r\n\r\n{", 408),
]


@pytest.mark.parametrize(("sent", "code"), BROKEN)
def test_errors_that_the_server_finds_itself_are_in_json(model: JointModel, sent: bytes, code: int) -> None:
    async def use(client: TestClient[Any, Any]) -> None:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(sent)
        status = await asyncio.wait_for(reader.readline(), 20)
        headers = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        length = next(line for line in headers.splitlines() if line.lower().startswith(b"content-length"))
        body = await asyncio.wait_for(reader.readexactly(int(length.split()[1])), 20)
        writer.close()
        assert int(status.split()[1]) == code, body
        assert b"application/json" in headers
        record = json.loads(body)
        assert record.keys() == {"error"}
        assert record["error"].isprintable()
        assert (await posted(client, {"text": "We ate."}))[0] == 200

    served(model, use, replace(LIMITS, seconds=0.5))


RECORD = {"id": "x", "words": ["We", "ate"], "tags": ["PRP", "VBD"], "labels": {"sst2": "1", "stsb": 2.5}}
PIECES = st.sampled_from([
    *'{}[],:"', '"words"', '"id": "y"', '"tags": null', '"labels": {}', "NaN", "Infinity", "-0", "1e999",
    "9" * 5000, r'"\ud800"', r'"\udc00\ud83d"', r'"\u0000"', "\u2028", "\\", "1.5", "true", "null", '"a"',
    '["a"]',
])  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 12), PIECES), min_size=1, max_size=3))
@example([(61, 0, "9" * 5000)])  # a name of a key that is too long for a message
def test_the_service_reads_a_sentence_as_the_reader_of_files_does(edits: list[tuple[int, int, str]]) -> None:
    """Of a record with changes, both take the same sentence, or both refuse it for the same reason."""
    line = json.dumps(RECORD)
    for place, length, piece in edits:
        line = line[:place] + piece + line[place + length :]
    limits = Limits(10**6, 1000, 512, 1000, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        path.write_text(line + "\n", encoding="utf-8")
        try:
            read: list[Sentence] | str = read_jsonl(path)
        except InputError as error:
            read = str(error).partition(":1: ")[2]
    try:
        given = parsed(b'{"sentences": [' + line.encode() + b"]}", ["pos"], "en", limits).sentences
    except ValueError as error:
        reason = str(error).removeprefix("sentence 1: ").removeprefix("the body: ")
        assert isinstance(read, str) or read == [], (line, reason, read)
        if isinstance(read, str) and not read.startswith(("not JSON", "not an object")):
            assert reason == read
    else:
        if line.lstrip().startswith("{") and not isinstance(read, str):
            assert [replace(each, place="") for each in read] == given
        else:
            # A list of words, several records or none, which a line of a file cannot be.
            assert isinstance(read, str) or not read, (line, read)
            assert read == [] or read.startswith(("not JSON", "not an object")), (line, read)


@pytest.mark.slow
def test_an_answer_is_bounded_by_the_limits(model: JointModel) -> None:
    """Whatever an allowed request asks for; what is refused names the limit."""
    limits = replace(LIMITS, bytes=1000, words=60)
    draw = random.Random(0)

    async def use(client: TestClient[Any, Any]) -> None:
        seen = set()
        for _ in range(60):
            words = [["a"] * draw.randint(1, 60) for _ in range(draw.randint(1, 12))]
            body: dict[str, Any] = {"sentences": words, "probabilities": draw.choice([None, 1, 5, 1000])}
            if draw.random() < 0.3:
                body |= {"text": ". ".join(" ".join(each) for each in body.pop("sentences"))}
            data = json.dumps(body, separators=(",", ":")).encode()
            async with client.post("/annotate", data=data) as answer:
                content = await answer.read()
            seen.add(answer.status)
            assert len(content) <= 80 * limits.bytes, (len(data), len(content))
            if answer.status != 200:
                assert answer.status == 413
                reasons = (
                    "64,000 bytes (64 for",
                    "2,000 probabilities at once (2 for",
                    "1000",
                    "may have 60",
                )
                assert any(reason in json.loads(content)["error"] for reason in reasons), content
        assert seen == {200, 413}
        # Those that fail alone do not fail others in their batch.
        large = {"sentences": [["a"] * 60], "probabilities": 1000}
        found = await asyncio.gather(*(posted(client, body) for body in [large, {"text": "a"}, large] * 3))
        assert [status for status, _ in found] == [413, 200, 413] * 3

    served(model, use, limits)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ({"bytes": 100}, "an answer of more than 6,400 bytes (64 for each of --max_bytes): send fewer or"),
        ({"bytes": 20}, "more than 40 probabilities at once (2 for each of --max_bytes): send shorter"),
    ],
)
def test_the_message_says_which_limit_an_answer_is_beyond(model, monkeypatch, size, reason) -> None:
    limits = replace(LIMITS, **size)
    monkeypatch.setattr(type(limits), "values", property(lambda self: 10**6 if self.bytes == 100 else 40))

    async def use(client: TestClient[Any, Any]) -> None:
        status, record = await posted(client, {"sentences": [["a"] * 25], "probabilities": 1000})
        assert (status, record["error"].startswith(reason)) == (413, True), record

    monkeypatch.setattr("aiohttp.web.Application.__init__", _with_room(web.Application.__init__))
    served(model, use, limits)


def _with_room(made: Callable[..., None]) -> Callable[..., None]:
    return lambda self, **options: made(self, **{**options, "client_max_size": 10**6})


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_health_answers_within_a_second_next_to_the_largest_requests(saved: Path) -> None:
    """Another program may hold the processor: of three times, once is enough."""
    bodies: dict[str, dict[str, Any]] = {
        "values": {"sentences": [["a"] * 512] * 5, "probabilities": 1000},
        "refused": {"sentences": [["a"] * 512] * 24, "probabilities": 1000},
        "sentences": {"sentences": [["a"] * 20] * 1000, "probabilities": 20},
        "text": {"text": "We ate . " * 110_000},
        "one word": {"text": "a" * 990_000},
        "marks": {"text": "(" * 990_000},
    }

    async def slowest(session: ClientSession, address: str, body: dict[str, Any]) -> float:
        asked = asyncio.create_task(session.post(f"{address}/annotate", json=body))
        took = []
        while not asked.done():
            begun = time.monotonic()
            async with session.get(f"{address}/health") as answer:
                await answer.read()
            took.append(time.monotonic() - begun)
            await asyncio.sleep(0.05)
        async with await asked as answer:
            size = len(await answer.read())
        assert answer.status in (200, 413)
        assert size <= 80_000_000
        return max(took)

    async def use(address: str) -> None:
        async with ClientSession(timeout=ClientTimeout(1000)) as session:
            for name, body in bodies.items():
                times: list[float] = []
                while len(times) < 3 and not (times and min(times) < 1):
                    times.append(await slowest(session, address, body))
                assert min(times) < 1, (name, times)

    with serving(saved) as service:
        asyncio.run(use(service.address))
        # The program itself takes some 600 MB.
        status = Path(f"/proc/{service.process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        assert peak < 2.5e6, f"{peak} kB"


def test_a_defect_is_one_line_and_the_service_goes_on(model: JointModel, monkeypatch, caplog) -> None:
    annotate = JointModel.annotate

    def failing(self: JointModel, sentences: Any, *rest: Any, **options: Any) -> Any:
        if any("bad" in sentence.words for sentence in sentences):
            raise RuntimeError("secrets")
        return annotate(self, sentences, *rest, **options)

    monkeypatch.setattr(JointModel, "annotate", failing)

    async def use(client: TestClient[Any, Any]) -> None:
        asked = [posted(client, {"sentences": [[word]]}) for word in ("a", "bad", "c")]
        found = await asyncio.gather(*asked)
        assert [status for status, _ in found] == [200, 500, 200]
        assert found[1][1] == {"error": "a defect of the service (RuntimeError)"}

    served(model, use)
    assert "secrets" in caplog.text


def test_slow_clients_are_sent_away_and_hinder_nobody(model: JointModel) -> None:
    async def use(client: TestClient[Any, Any]) -> None:
        host, port = client.host, client.port
        slow = [await asyncio.open_connection(host, port) for _ in range(30)]
        for number, (_, writer) in enumerate(slow):
            head = b"POST /annotate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            writer.write(head + (b"\r\n{" if number % 2 else b""))
            await writer.drain()
        assert (await posted(client, {"text": "We ate."}))[0] == 200
        for reader, _ in slow[1::2]:
            assert b"408 " in await asyncio.wait_for(reader.readline(), 20)
        assert (await posted(client, {"text": "We ate."}))[0] == 200
        for _, writer in slow:
            writer.close()

    served(model, use, replace(LIMITS, seconds=0.5))


def test_a_large_body_hinders_nobody(model: JointModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is read, other clients get answers to text, and long answers."""
    begun, go_on = threading.Event(), threading.Event()

    def splitter_for(language: str) -> Callable[[str], list[Sentence]]:
        def splitter(text: str) -> list[Sentence]:
            if len(text) > 20_000:
                begun.set()
                assert go_on.wait(30)
            return [Sentence(("We", "ate"))] if text == "We ate" else []

        return splitter

    monkeypatch.setattr(running_text, "splitter_for", splitter_for)
    monkeypatch.setattr(running_text, "_FREE", {})
    many = replace(LIMITS, sentences=40)

    async def use(client: TestClient[Any, Any]) -> None:
        large = asyncio.create_task(posted(client, {"text": "We ate. " * 5000}))
        try:
            assert await asyncio.to_thread(begun.wait, 20)
            for body, count in (({"text": "We ate"}, 1), ({"sentences": [["We", "ate"]] * 40}, 40)):
                status, record = await asyncio.wait_for(posted(client, body), 10)
                assert (status, len(record["sentences"])) == (200, count)
        finally:
            go_on.set()
        assert (await large)[0] == 200

    served(model, use, many)


def test_those_who_leave_and_those_who_are_too_many(model: JointModel) -> None:
    few = Limits(bytes=50_000, sentences=20, words=30, waiting=20, seconds=5)

    async def use(client: TestClient[Any, Any]) -> None:
        body = json.dumps({"sentences": [["We", "ate"]] * 15}).encode()
        left = [asyncio.create_task(posted(client, body)) for _ in range(4)]
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        found = await asyncio.gather(*(posted(client, body) for _ in range(40)))
        codes = {status for status, _ in found}
        assert codes == {200, 503}
        assert {record["error"] for status, record in found if status == 503} == {
            "more than 20 sentences would wait: try again soon"
        }
        assert (await posted(client, body))[0] == 200
        async with client.get("/health") as answer:
            assert (await answer.json())["waiting"] == 0

    served(model, use, few)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port=70000"], "--port=70000: use a number from 0 to 65535"),
        (["--max_bytes=0"], "--max_bytes=0: use at least 1"),
        (["--threads=0"], "--threads=0: use at least 1"),
        (["--timeout=0"], "--timeout=0: use seconds above 0"),
        (["--language=xy"], "language=xy: no such language"),
        ([], "nowhere"),
    ],
)
def test_what_cannot_be_served_is_one_line(words, message, capsys) -> None:
    assert main(["serve", "nowhere", *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_rules_are_for_tasks_that_are_served(model: JointModel, tmp_path: Path, capsys, monkeypatch) -> None:
    """What the message says is done: both tasks are served then, and rules of one task alone."""
    model.save_pretrained(tmp_path / "model")
    rules = tmp_path / "rules.yaml"
    tag = model.labels["pos"].names[0]
    rules.write_text(f"pos: {{force: {{We: '{tag}'}}}}\n")
    words = ["serve", str(tmp_path / "model"), f"--rules={rules}"]
    assert main([*words, "--tasks=[dep]"]) == 2
    assert f"{rules}: pos is not served: leave it out, or add it to --tasks" in capsys.readouterr().err
    served_rules: list[Rules] = []
    monkeypatch.setattr("mtl.serving.service.run", lambda *_: None)
    monkeypatch.setattr("mtl.serving.service.application", lambda *given, **_: served_rules.append(given[-1]))
    assert main([*words, "--tasks=[pos,dep]"]) == 0
    assert [*served_rules[0].by_task] == ["pos"]


def test_without_the_extra(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert main(["serve", "nowhere"]) == 2
    expected = "mtl: mtl serve needs aiohttp, which is not installed: pip install 'mtl-heads[serve]'\n"
    assert capsys.readouterr().err == expected


@pytest.fixture(scope="module")
def minilm(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks on MiniLM with a mask, untrained: as slow as trained."""
    torch.manual_seed(0)
    encoder = Encoder.from_pretrained("minilm")
    tasks = {name: TASKS[name]() for name in ("pos", "ner", "dep")}
    sentences = read_jsonl(toy / "train.jsonl")
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    gates = HeadGates(encoder.layers, encoder.heads, masks=("",), init_std=2.0)
    folder = tmp_path_factory.mktemp("minilm")
    JointModel(encoder, tasks, labels, gates).eval().save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_thousand_at_once_each_have_an_answer(model: JointModel, saved: Path) -> None:
    texts = [f"Number {number} saw {number % 7} cats in Paris." for number in range(1000)]
    expected = [model.annotate_text(text).sentences[0] for text in texts[:50]]

    async def use(address: str) -> None:
        async with ClientSession(connector=TCPConnector(limit=0)) as session:

            async def one(text: str) -> Any:
                async with session.post(f"{address}/annotate", json={"text": text}) as answer:
                    assert answer.status == 200
                    return await answer.json()

            found = await asyncio.gather(*map(one, texts))
        for text, record in zip(texts, found, strict=True):
            assert record["text"] == text
        assert [from_json(_plain(record)) for record in found[:50]] == expected

    with serving(saved) as service:
        asyncio.run(use(service.address))


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    [sentence] = record["sentences"]
    return {key: value for key, value in sentence.items() if key != "offsets"}


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_line(saved: Path, capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(saved), f"--port={port}"]) == 2
    errors = capsys.readouterr().err
    assert f"--host=127.0.0.1 --port={port}: " in errors
    assert errors.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the load needs a core beside the service's")
def test_throughput_and_latency_under_load(minilm: Path, toy: Path) -> None:
    """Neither figure depends on other programs.

    Throughput is in processor time; for the tails, the median of three, service and clients go first.
    """
    sentences = [list(sentence.words) for sentence in read_jsonl(toy / "train.jsonl")] * 4
    core, *others = sorted(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, others)
    try:
        alone = annotated_in_batches(minilm, sentences, core)
        with serving(minilm, core=core) as service:
            asyncio.run(closed_loop(service, sentences[:100], 8))
            reached = asyncio.run(closed_loop(service, sentences, 256))
            tails = []
            with ahead_of_other_programs(service.process, psutil.Process()):
                for _ in range(3):
                    took = asyncio.run(open_loop(service, sentences[:160], alone.wall / 2))
                    tails.append(took[int(0.95 * len(took))] / statistics.median(took))
    finally:
        os.sched_setaffinity(0, before)
    assert reached.processor >= 0.8 * alone.processor
    assert statistics.median(tails) < 3, tails


IMAGE = (Path(__file__).parents[3] / "Dockerfile").read_text()


def words_of(instruction: str) -> list[str]:
    """What a Dockerfile's last instruction of this kind runs, or asks for."""
    found = re.findall(rf"^{instruction} .*?(\[.*\])$", IMAGE, re.MULTILINE)
    words: list[str] = json.loads(found[-1])
    return words


def test_the_image_is_made_of_pinned_packages_and_files_that_it_gets() -> None:
    """What is copied is there and let through, installs are pinned, and the service does not run as root."""
    top = Path(__file__).parents[3]
    allowed = re.findall(r"^!(.+)$", (top / ".dockerignore").read_text(), re.MULTILINE)
    assert all((top / name).exists() for name in allowed)
    links = [link.resolve() for link in (top / "mtl").rglob("*") if link.is_symlink()]
    assert {str(link.relative_to(top).parts[0]) for link in links} <= set(allowed)
    copied = re.findall(r"^COPY (?!--from)(\S+)", IMAGE, re.MULTILINE)
    assert copied[0] == "."
    assert set(copied[1:]) <= set(allowed)
    installs = re.findall(r"^RUN pip install (.*)$", IMAGE, re.MULTILINE)
    assert len(installs) == 2
    assert all(each.startswith("-c constraints.txt ") for each in installs)
    assert re.findall(r"^USER (\S+)$", IMAGE, re.MULTILINE) == ["1000:1000"]
    assert IMAGE.rindex("RUN ") < IMAGE.index("USER ")


@pytest.mark.slow
def test_the_command_of_the_image_serves_and_its_health_check_says_so(
    model: JointModel, tmp_path: Path
) -> None:
    model.save(tmp_path / "model")
    assert words_of("ENTRYPOINT") == ["mtl"]
    name, place, *options = words_of("CMD")
    assert (name, place) == ("serve", "/model")
    python, *check = words_of("HEALTHCHECK")
    assert python == "python"
    port = next(option.removeprefix("--port=") for option in options if option.startswith("--port="))
    assert f"EXPOSE {port}\n" in IMAGE
    with serving(
        tmp_path / "model", *(option for option in options if option != f"--port={port}")
    ) as service:
        own = service.address.rpartition(":")[2].strip("/")
        here = [sys.executable, *(word.replace(f":{port}/", f":{own}/") for word in check)]
        assert subprocess.run(here, check=False).returncode == 0
    assert subprocess.run(here, check=False, stderr=subprocess.DEVNULL).returncode != 0
