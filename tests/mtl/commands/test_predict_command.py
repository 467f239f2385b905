"""`mtl predict`: a record per line, as lines arrive, in formats that can be read back."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from mtl.commands.main import main
from mtl.corpora.formats.dependencies import read_conllu
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.running_text import standard_input
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.models.joint import JointModel
from mtl.tasks.sentence import Sentence
from mtl.workers.pool import in_processes
from tests.mtl.analysis import worth
from tests.mtl.forked import ended, forked, printed

LINES = {
    "text": "We didn't eat (much) in Paris. It was!\n\nA cat\tsaw 10\u00a0000 dogs.\r\n\ufeffHé said: “no”.",
    "tokens": "We ate .\n\n#a=b # text = x -DOCSTART- 10\u00a0000\r\n( ) -LRB- _ [WORD]\t|\n",
    "pairs": "We ate .\tIt was good\n\n#a=b (\t_ 10\u00a0000 .\n",
}

LAYERS = ("tags", "entities", "arcs", "tree", "frames")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of the five tasks and one of pairs, both with random weights."""
    folder = tmp_path_factory.mktemp("predict")
    write_toy(folder / "corpus", 40, 4, 4, seed=1)
    made = {}
    for name, tasks in (("words", worth.STRUCTURED), ("pairs", ("rte", "stsb"))):
        worth.joint_model(folder / "corpus", tasks, dtype=torch.float32).save(folder / name / "model")
        (folder / name / "config.yaml").write_text(f"tasks: [{', '.join(tasks)}]\n")
        (folder / name / "status.json").write_text('{"state": "finished"}')
        made[name] = folder / name
    return {"text": made["words"], "tokens": made["words"], "pairs": made["pairs"]}


def given(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("kind", LINES)
def test_what_is_written_is_read_back(kind, runs, tmp_path, monkeypatch, capsys) -> None:
    """Every input in JSON and in CoNLL-U: the same sentences, with the same ids."""
    written = {}
    for output in ("json", "conllu"):
        given(monkeypatch, LINES[kind].encode())
        capsys.readouterr()
        assert main(["predict", str(runs[kind]), f"--input={kind}", f"--output={output}"]) == 0
        written[output] = tmp_path / f"out.{output}"
        written[output].write_bytes(capsys.readouterr().out.encode())
    model = JointModel.from_pretrained(runs[kind])
    sentences = read_jsonl(written["json"])
    bare = [Sentence(s.words, second=s.second, id=s.id, text=s.text) for s in sentences]
    assert sentences == model.annotate(bare)
    plain = ["" if s.text == " ".join(s.words) else s.text for s in sentences]
    assert [s.text for s in read_conllu(written["conllu"])] == plain
    assert [with_text(s) for s in read_conllu(written["conllu"])] == [with_text(s) for s in sentences]
    ids = [json.loads(line)["id"] for line in written["json"].read_text().split("\n") if line]
    assert ids == (["1.1", "1.2", "2", "3", "4"] if kind == "text" else ["1", "2", "3", "4"][: len(ids)])
    if kind == "tokens":
        assert sentences[1].words == ("#a=b", "#", "text", "=", "x", "-DOCSTART-", "10\u00a0000")


def test_some_tasks_and_those_of_a_second_model(runs, tmp_path, monkeypatch, capsys) -> None:
    """A second model adds the layers that the first does not annotate."""

    def layers(*words: str) -> list[set[str]]:
        given(monkeypatch, b"We ate in Paris .\n")
        capsys.readouterr()
        assert main(["predict", *words, "--input=tokens", "--output=json"]) == 0
        records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [{key for key in record if record[key] and key in LAYERS} for record in records]

    whole, tags = str(runs["text"]), str(tmp_path / "tags")
    [every] = layers(whole)
    assert layers(whole, "--tasks=[pos,dep]") == [{"tags", "arcs"}]
    assert main(["prune", f"{whole}/model", "--task=pos", f"--out={tags}"]) == 0
    assert layers(tags) == [{"tags"}]
    assert layers(tags, f"--also=[{whole}]") == [every]
    assert layers(whole, f"--also=[{tags}]", "--tasks=[pos]") == [{"tags"}]
    for words, message in (
        (["--tasks=[parse]"], "the model has no task 'parse': its tasks are"),
        (["--also=[nowhere]"], "nowhere"),
        ([f"--also=[{tags}]"], f"--also: {tags} adds nothing, since those before it annotate all of its"),
        (
            [f"--also=[{runs['pairs']}]", "--tasks=[pos,rte]"],
            "--tasks: rte is not for one sentence: leave it",
        ),
    ):
        given(monkeypatch, b"We\n")
        assert main(["predict", whole, *words]) == 2
        assert message in capsys.readouterr().err


def test_rules_of_two_models_and_one_that_is_not_kept(runs, tmp_path, monkeypatch, capsys) -> None:
    whole, tags, rules = str(runs["text"]), str(tmp_path / "tags"), tmp_path / "rules.yaml"
    assert main(["prune", f"{whole}/model", "--task=pos", f"--out={tags}"]) == 0

    def predicted(text: str, *words: str) -> tuple[int, list[dict[str, object]], str]:
        rules.write_text(text)
        given(monkeypatch, b"We ate in Paris .\nWe ate\n")
        capsys.readouterr()
        code = main(["predict", tags, f"--also=[{whole}]", "--input=tokens", "--output=json", *words])
        out, err = capsys.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err

    flag = f"--rules={rules}"
    arcs = "dep: {force: {We < ate: null, ate < We: null}}\n"
    code, (first, _), err = predicted("pos: {force: {Paris: DT}}\n" + arcs, flag, "--tasks=[pos,dep]")
    assert code == 0
    assert first["tags"][3] == "DT"
    assert "mtl: standard input, line 1: rule not kept" in err
    assert "(2 such cases in all)" in err
    for text, words, message in (
        (arcs, ["--tasks=[pos]"], "dep is no task that is annotated"),
        ("pos: {force: {Paris: XYZ}}", [], f"{rules}: pos: force: Paris: the model has no label 'XYZ'"),
    ):
        code, _, err = predicted(text, flag, *words)
        assert code == 2
        assert message in err


def with_text(sentence: Sentence) -> Sentence:
    return (
        sentence
        if sentence.text
        else Sentence(
            **{name: getattr(sentence, name) for name in Sentence.__slots__ if name != "text"},
            text=" ".join(sentence.words),
        )
    )


def test_a_line_is_answered_before_the_next_one_comes(runs, monkeypatch, capfd) -> None:
    """Every line of a pipe, however slowly lines arrive; waiting lines are annotated together."""
    out, inward = os.pipe()
    reading = os.fdopen(out)
    monkeypatch.setattr("sys.stdin", reading)
    calls: list[int] = []
    annotate = JointModel.annotate_stream

    def counting(self, sentences, **options):
        calls.append(len(sentences))
        found = list(annotate(self, sentences, **options))
        answered.release()
        yield from found

    answered = threading.Semaphore(0)
    monkeypatch.setattr(JointModel, "annotate_stream", counting)

    def write() -> None:
        os.write(inward, b"We ate.\nIt ")  # half a line more
        assert answered.acquire(timeout=60)
        os.write(inward, b"rained.\n")
        assert answered.acquire(timeout=60)
        os.write(inward, b"We ate.\n" * 50)
        os.close(inward)

    writer = threading.Thread(target=write)
    writer.start()
    assert main(["predict", str(runs["text"]), "--output=json"]) == 0
    writer.join()
    reading.close()
    assert calls == [1, 1, 50]
    assert len(capfd.readouterr().out.splitlines()) == 52


@pytest.mark.slow
@pytest.mark.parametrize(("output", "start"), [("json", "spawn"), ("conllu", "fork"), ("picture", "fork")])
def test_several_processes_print_what_one_prints(output, start, runs, tmp_path, monkeypatch, capfd) -> None:
    """Many windows, with lines that are skipped and with hints in later ones."""
    monkeypatch.setattr(
        "mtl.commands.predict.in_processes",
        lambda *given, **named: in_processes(*given, **named | {"start": start}),
    )
    path, rules = tmp_path / "in.txt", tmp_path / "rules.yaml"
    path.write_bytes(b"".join(b"We ate %d. It was!\n" % number for number in range(9)))
    path.write_bytes(path.read_bytes() + "\nMy\rd\n我们在巴黎吃饭。\nПривет.\n\nWe ate.\n\n".encode())
    rules.write_text("dep: {force: {We < ate: null, ate < We: null}}\n")
    monkeypatch.setattr("mtl.corpora.running_text._MOST", 2)
    words = ["predict", str(runs["text"]), str(path), f"--output={output}", f"--rules={rules}"]
    assert main(words) == 2
    one = capfd.readouterr()
    assert main([*words, "--jobs=2"]) == 2
    assert capfd.readouterr() == one
    assert one.err.count("is not English") == one.err.count("rule not kept") == 1
    assert one.err.count("\n") == 3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_killed_worker_and_an_interruption_are_one_line(how, runs, tmp_path) -> None:
    """While a line is awaited, after an earlier one was answered; no process is left."""
    fifo, output = tmp_path / "in", tmp_path / "printed"
    os.mkfifo(fifo)
    words = ["predict", str(runs["tokens"]), str(fifo), "--input=tokens", "--output=json", "--jobs=2"]
    with forked("mtl", words, output) as process, fifo.open("wb", buffering=0) as lines:
        lines.write(b"We ate .\n")
        until = time.monotonic() + 200
        while not printed(output, "out").endswith("\n"):
            assert time.monotonic() < until
            time.sleep(0.05)
        workers = [
            each
            for each in psutil.Process(process.pid).children()
            if "spawn_main" in " ".join(each.cmdline())
        ]
        assert len(workers) == 2
        if how == "killed":
            for each in workers:
                each.kill()
            lines.write(b"It rained .\n")
        else:
            os.killpg(process.pid, signal.SIGINT)
        code = ended(process, 60)
        assert not psutil.wait_procs(workers, timeout=60)[1]
    assert len(printed(output, "out").splitlines()) == 1
    done = f"1 line of {fifo} done: give the later ones to the same command\n"
    killed = "a process that works for this one was killed, perhaps for lack of memory: use fewer --jobs"
    assert code == {"killed": 1, "interrupted": 130}[how]
    assert printed(output, "err") == f"mtl: {killed if how == 'killed' else how}; {done}"


BAD = {
    b"K\xe4se": "not UTF-8",
    b"w " * 9: "9 words, and decoders are given at most 8",
    b"a\x07b": "holds a control character",
    b"a\rb": "a carriage return within the line",
    "a b".encode("utf-16"): "it is not UTF-8 but UTF-16: convert it",
    "a b".encode("utf-16-le"): "it is not UTF-8 but UTF-16: convert it",
    gzip.compress(b"a b", mtime=1): "it is not UTF-8 but compressed by gzip: unpack it",
}


@pytest.mark.parametrize("output", ["json", "conllu", "picture"])
def test_what_cannot_be_annotated_is_skipped_counted_and_named(output, runs, tmp_path, capsys) -> None:
    path = tmp_path / "in [1].txt"
    path.write_bytes(b"".join(b"We ate .\n" + line + b"\n" for line in BAD) + b"\nThe end")
    words = [
        "predict",
        str(runs["tokens"]),
        str(path),
        "--input=tokens",
        f"--output={output}",
        "--max_words=8",
    ]
    assert main(words) == 2
    captured = capsys.readouterr()
    [error] = captured.err.splitlines()
    empty = 2 * len(BAD) + 1
    assert error.startswith(f"mtl: skipped: {path}, line 2: not UTF-8 (")
    assert error.endswith(f"({len(BAD)} such sentences or lines in all)")
    assert all(reason in captured.out for reason in BAD.values())
    file = tmp_path / f"out.{output}"
    file.write_bytes(captured.out.encode())
    if output == "json":
        records = [json.loads(line) for line in captured.out.splitlines()]
        assert [record["id"] for record in records] == [str(number) for number in range(1, 2 * len(BAD) + 3)]
        skipped = {record["id"]: record["skipped"] for record in records if "skipped" in record}
        assert [*skipped] == [*(str(number) for number in range(2, 2 * len(BAD) + 1, 2)), str(empty)]
        assert all(reason in text for reason, text in zip(BAD.values(), skipped.values(), strict=False))
        assert skipped[str(empty)] == "an empty line"
    if output != "picture":
        read = (read_jsonl if output == "json" else read_conllu)(file)
        good = [*range(1, empty, 2), empty + 1]
        assert [sentence.id for sentence in read] == [str(number) for number in sorted([*good, 4])]
        assert [sentence.notes for sentence in read].count(()) == len(good)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max_words=0"], "--max_words=0: use at least 1"),
        (["--input=tokens", "--language=de"], "--language=de: for running text only"),
        (["--input=pairs"], "is for pairs: use another --input"),
        (["nowhere.txt"], "nowhere.txt: no such file or folder"),
        (["a", "b"], "'b' is one argument too many; usage: mtl predict RUN [FILE]"),
    ],
)
def test_arguments_that_cannot_be_meant(words, message, runs, monkeypatch, capsys) -> None:
    given(monkeypatch, b"a b\tc\n")
    assert main(["predict", str(runs["text"]), *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("1\tAnn" + "\t_" * 8, "CoNLL-U"),
        ("\ufeff# sent_id = 1", "CoNLL-U"),
        ('{"id": "1", "words": ["Ann"]}', "JSON lines"),
        ("(S (NP (NN dog)))", "bracket notation"),
        ("-DOCSTART- -X- O O", "a table of words"),
        ("{Ann} (left) -- # 1\t2", None),
        ("(Ann (left))", None),
    ],
)
def test_a_corpus_in_place_of_text_gets_a_hint(line, form, runs, monkeypatch, capsys) -> None:
    given(monkeypatch, f"{line}\n{line}\n".encode())
    assert main(["predict", str(runs["text"]), "--output=json"]) == 0
    hint = f"mtl: standard input looks like {form}: every line is annotated as text\n"
    assert capsys.readouterr().err == ("" if form is None else hint)


@pytest.mark.parametrize("lines", [["", "We ate .", ""], ["", "K\xe4se"], ["We ate .", "K\xe4se", "", ""]])
def test_every_line_of_the_input_is_in_conllu_also_the_last_ones(lines, runs, tmp_path, monkeypatch, capsys):
    given(monkeypatch, "\n".join([*lines, ""]).encode("latin-1"))
    main(["predict", str(runs["tokens"]), "--input=tokens", "--output=conllu"])
    written = capsys.readouterr().out
    numbers = re.findall(r"# (?:sent_id =|line) ([0-9]+)", written)
    assert numbers == [str(number) for number in range(1, len(lines) + 1)]
    path = tmp_path / "out.conllu"
    path.write_text(written)
    assert [sentence.words for sentence in read_conllu(path)] == [("We", "ate", ".")] * ("We ate ." in lines)


def test_text_that_is_not_english_gets_a_hint(runs, monkeypatch, capsys) -> None:
    for line, hinted in (("我们在巴黎吃饭。\nПривет.", 1), ("यह घर है।", 1), ("Ça va, 3 €?", 0), ("123 !", 0)):
        given(monkeypatch, line.encode())
        assert main(["predict", str(runs["text"])]) == 0
        assert capsys.readouterr().err.count("rules for English: use --language") == hinted


def test_a_standard_input_that_is_closed_is_said(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match=r"^standard input is closed: give text in a pipe or a file$"):
        standard_input()
