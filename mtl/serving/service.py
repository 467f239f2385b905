"""The HTTP service of `mtl serve`: JSON in, annotations out, requests of many clients in one batch."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mtl.corpora.annotated_text import AnnotatedText, Offset, offsets_of
from mtl.corpora.formats.jsonl import from_json, parsed_json
from mtl.corpora.formats.lines import shortened
from mtl.corpora.running_text import split
from mtl.errors import InputError
from mtl.models.annotator import Annotator, Probable, Rules, checked_sentences
from mtl.serving.batcher import Batcher, Busy, TooLong
from mtl.tasks.decoders.decoder import TooManyValues, at_most
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import MadeUpId, Sentence
from mtl.workers.collector import without_collector

if TYPE_CHECKING:
    from aiohttp import web

    _Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_SMALL = 1 << 14
"""Maximum bytes of a body that is parsed on the event loop; larger ones are parsed in a thread."""
_SMALL_ANSWER = 1 << 17
"""Maximum bytes of an answer that is put together and sent at once."""
_BACKLOG = 2048
"""Maximum number of connections that wait to be accepted."""


def application(
    model: Annotator,
    tasks: Sequence[str],
    language: str,
    limits: Limits,
    batch_tokens: int | None = None,
    rules: Rules | None = None,
    about: Mapping[str, Any] | None = None,
) -> web.Application:
    """The service of these tasks of a model, as an application of aiohttp.

    `about` is what `GET /health` says of the model.
    """
    from aiohttp import web

    def annotate(sentences: Sequence[Sentence], asked: Asked) -> list[bytes]:
        k = asked.k
        # Python's search for garbage would stop all threads, for seconds if there are millions of values.
        with without_collector(), at_most(limits.values):
            if k is None:
                annotated = model.annotate(
                    sentences, limits.words, tasks=asked.tasks, batch_tokens=batch_tokens, rules=rules
                )
                found = [Probable(sentence, {}) for sentence in annotated]
            else:
                found = model.annotate(
                    sentences,
                    limits.words,
                    tasks=asked.tasks,
                    probabilities=k,
                    batch_tokens=batch_tokens,
                    rules=rules,
                )
            found.reverse()
            return [sentence_body(found.pop(), k) for _ in sentences]

    def parsed_large(body: bytes) -> Request:
        with without_collector():
            return parsed(body, tasks, language, limits)

    batcher = Batcher(annotate, limits.waiting, len, limits.answer)
    beside = ThreadPoolExecutor(1, "large bodies")
    answers = ThreadPoolExecutor(
        1, "long answers"
    )  # a thread of their own, so that they wait for no large body

    seen = _Seen()

    async def measured(request: web.Request) -> web.Response:
        begun, status = time.perf_counter(), 500
        try:
            response = await annotated(request)
            status = response.status
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            seen.add(status, time.perf_counter() - begun)
        return response

    async def annotated(request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(limits.seconds):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(
                text=f"the body did not arrive within {limits.seconds:g} seconds: send it at once"
            ) from None
        except web.RequestPayloadError:
            request.content.feed_eof()  # otherwise aiohttp reads on, fails and drops the answer
            packed = request.headers.get("Content-Encoding", "identity")[:20]
            raise web.HTTPBadRequest(
                text=f"the body cannot be read (Content-Encoding: {packed!a}): send it as its headers say"
            ) from None
        loop = asyncio.get_running_loop()
        try:
            if len(body) <= _SMALL:
                wanted = parsed(body, tasks, language, limits)
            else:
                wanted = await loop.run_in_executor(beside, parsed_large, body)
            found = await asyncio.wrap_future(batcher.submit(wanted.sentences, wanted.asked))
        except TooLarge as error:
            raise web.HTTPRequestEntityTooLarge(limits.bytes, len(body), text=str(error)) from error
        except (InputError, ValueError) as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        except TooLong:
            what = f"an answer of more than {counted(limits.answer, 'byte')} (64 for each of --max_bytes)"
            raise web.HTTPRequestEntityTooLarge(
                limits.answer,
                limits.answer,
                text=f"{what}: send fewer or shorter sentences{_fewer(wanted.asked.k)}",
            ) from None
        except TooManyValues:
            what = f"more than {limits.values:,} probabilities at once (2 for each of --max_bytes)"
            raise web.HTTPRequestEntityTooLarge(
                limits.values, limits.values, text=f"{what}: send shorter sentences{_fewer(wanted.asked.k)}"
            ) from None
        except Busy:
            raise web.HTTPServiceUnavailable(
                text=f"more than {counted(limits.waiting, 'sentence')} would wait: try again soon",
                headers={"Retry-After": "1"},
            ) from None
        if sum(map(len, found)) <= _SMALL_ANSWER:
            body = response_body(wanted, found)
            return web.Response(body=body, content_type="application/json", charset="utf-8")
        body = await loop.run_in_executor(answers, response_body, wanted, found)
        # aiohttp sends a file in pieces.
        return web.Response(body=io.BytesIO(body), content_type="application/json", charset="utf-8")

    async def health(request: web.Request) -> web.Response:
        return web.json_response(
            {
                "status": "ok",
                "tasks": list(tasks),
                "language": language,
                "waiting": batcher.sentences_waiting,
                "annotated": batcher.annotated,
                "model": about or {},
            }
        )

    async def metrics(request: web.Request) -> web.Response:
        body = seen.exposition(batcher.sentences_waiting, batcher.annotated)
        return web.Response(body=body.encode(), headers={"Content-Type": _PROMETHEUS})

    async def end(app: web.Application) -> None:
        await asyncio.to_thread(batcher.end)
        beside.shutdown()
        answers.shutdown()

    gc.freeze()  # searches for garbage leave out the model
    made = web.Application(client_max_size=limits.bytes)
    made.router.add_post("/annotate", measured)
    made.router.add_get("/health", health)
    made.router.add_get("/metrics", metrics)
    made.on_cleanup.append(end)
    return made


_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class _Seen:
    """The requests to annotate so far."""

    requests: Counter[int] = field(default_factory=Counter)
    """By the status of their answers."""
    seconds: float = 0.0
    """From the head of a request to its answer, summed over requests."""

    def add(self, status: int, seconds: float) -> None:
        self.requests[status] += 1
        self.seconds += seconds

    def exposition(self, waiting: int, annotated: int) -> str:
        """The numbers in Prometheus's text format; `waiting` and `annotated` are sentences."""
        lines = [
            "# HELP mtl_requests_total Requests to annotate, by the status of the answer.",
            "# TYPE mtl_requests_total counter",
            *(
                f'mtl_requests_total{{status="{status}"}} {number}'
                for status, number in sorted(self.requests.items())
            ),
            "# HELP mtl_request_seconds Seconds from a request to its answer.",
            "# TYPE mtl_request_seconds summary",
            f"mtl_request_seconds_sum {self.seconds:.6f}",
            f"mtl_request_seconds_count {self.requests.total()}",
            "# HELP mtl_sentences_annotated_total Sentences annotated.",
            "# TYPE mtl_sentences_annotated_total counter",
            f"mtl_sentences_annotated_total {annotated}",
            "# HELP mtl_sentences_waiting Sentences that wait to be annotated.",
            "# TYPE mtl_sentences_waiting gauge",
            f"mtl_sentences_waiting {waiting}",
        ]
        return "\n".join(lines) + "\n"


def _fewer(k: int | None) -> str:
    return "" if k is None else f", or ask for fewer than {counted(k, 'probability', 'probabilities')}"


def runner_of(app: web.Application, **options: Any) -> web.AppRunner:
    """What serves the application: every error that a client gets is `{"error": …}` on one line.

    This includes errors that aiohttp finds before it calls the application: no HTTP, or an `Expect` that is
    unknown.
    """
    from aiohttp import web

    class Connection(web.RequestHandler):
        __slots__ = ()

        def handle_error(
            self,
            request: web.BaseRequest,
            status: int = 500,
            exc: BaseException | None = None,
            message: str | None = None,
        ) -> web.StreamResponse:
            """Answer a request that is no HTTP; a `ConnectionError` if an answer has begun."""
            if status < 500 and not request.writer.output_size:
                text = f"the request is not HTTP/1.1 ({' '.join((message or str(exc)).split())[:200]})"
                response = _error(text, status)
            else:
                super().handle_error(request, status, exc, message)  # writes to the log
                response = _error(f"a defect of the service ({type(exc).__name__})", status)
            response.force_close()
            return response

    class Server(web.Server):
        def __call__(self) -> web.RequestHandler:
            made = super().__call__()
            made.__class__ = Connection
            return made

    class Runner(web.AppRunner):
        async def _make_server(self) -> web.Server:
            made = await super()._make_server()
            made.__class__, made.request_handler = Server, _with_errors_as_json(made.request_handler)
            return made

    return Runner(app, access_log=None, **options)


def _error(message: str, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    from aiohttp import web

    return web.json_response({"error": " ".join(message.split())}, status=status, headers=headers)


def _with_errors_as_json(handler: _Handler) -> _Handler:
    """A handler whose errors become `{"error": …}`; an unexpected one is a 500 without details."""
    from aiohttp import web

    async def answered(request: web.BaseRequest) -> web.StreamResponse:
        kept: dict[str, str] = {}
        try:
            return await handler(request)
        except web.HTTPException as error:
            message, status = error.text or error.reason, error.status
            kept = {name: error.headers[name] for name in ("Allow", "Retry-After") if name in error.headers}
            if isinstance(error, web.HTTPNotFound | web.HTTPMethodNotAllowed):
                served = "POST /annotate, GET /health or GET /metrics"
                message = f"{request.method} {request.path[:100]} is not served: use {served}"
        except Exception as error:
            logging.getLogger("aiohttp.web").exception("a request failed")
            message, status = f"a defect of the service ({type(error).__name__})", 500
        response = _error(message, status, kept)
        if request.content.exception() is not None:  # the beginning of the next request is not known
            response.force_close()
        return response

    return answered


def run(app: web.Application, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve until the process is interrupted or terminated; waiting requests are still answered.

    `ready` receives the port when connections are accepted. Raises `InputError` for an address that cannot be
    used.
    """
    asyncio.run(_serve(app, host, port, ready))


async def _serve(app: web.Application, host: str, port: int, ready: Callable[[int], None]) -> None:
    from aiohttp import web

    runner = runner_of(app, handler_cancellation=True, shutdown_timeout=10)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"--host={host} --port={port}: {reason}; use another address") from error
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        ready(runner.addresses[0][1])
        await ended.wait()
    finally:
        await runner.cleanup()


_KEYS = ("text", "sentences", "tasks", "probabilities")
_MOST_VALUES = 1000


@dataclass(frozen=True)
class Limits:
    """Limits on a request, and on all waiting requests."""

    bytes: int
    """Maximum of a body."""
    sentences: int
    """Maximum of a request."""
    words: int
    """Maximum of a sentence."""
    waiting: int
    """Maximum number of sentences in all requests that wait."""
    seconds: float
    """Time within which a body must arrive."""

    @property
    def answer(self) -> int:
        """Maximum bytes of an answer's sentences."""
        return 64 * self.bytes

    @property
    def values(self) -> int:
        """Maximum number of probabilities that are computed at once."""
        return 2 * self.bytes


class Asked(NamedTuple):
    """How sentences are annotated; those of several requests that ask for the same are annotated together."""

    tasks: tuple[str, ...]
    k: int | None
    """Number of most probable values per item; `None`: no probabilities."""


class Request(NamedTuple):
    """The sentences to annotate, and how."""

    sentences: list[Sentence]
    text: str | None
    offsets: list[tuple[Offset, ...]] | None
    asked: Asked


class TooLarge(ValueError):
    """A request beyond a limit; the message says which."""


def parsed(body: bytes, tasks: Sequence[str], language: str, limits: Limits) -> Request:
    """The request in a body; raises `ValueError` saying what is wrong with it, and `TooLarge`.

    `tasks` are those that are served.
    """
    try:
        given = parsed_json(body)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"the body is not JSON ({str(error)[:100]}): send an object with 'text' or 'sentences'"
        ) from error
    except ValueError as error:
        raise ValueError(f"the body: {shortened(str(error))}") from error
    if not isinstance(given, dict) or ("text" in given) == ("sentences" in given):
        raise ValueError("send an object with either 'text' (a string) or 'sentences' (a list)")
    if unknown := next((key for key in given if key not in _KEYS), None):
        raise ValueError(f"unknown key {unknown[:50]!r}: the keys are {', '.join(_KEYS)}")
    k = given.get("probabilities")
    if k is not None and (type(k) is not int or not 1 <= k <= _MOST_VALUES):
        raise ValueError(f"'probabilities' must be a whole number from 1 to {_MOST_VALUES:,}, or null")
    chosen = given.get("tasks")
    if chosen is not None and not (
        isinstance(chosen, list) and chosen and all(each in tasks for each in chosen)
    ):
        raise ValueError(f"'tasks' must be a list of some of {', '.join(tasks)}, or null")
    asked = Asked(tuple(tasks if chosen is None else dict.fromkeys(chosen)), k)
    text, offsets = given.get("text"), None
    if "text" in given:
        if not isinstance(text, str):
            raise ValueError("'text' must be a string")
        sentences = split(text, language)
        offsets = offsets_of(text, sentences)
        sentences = [replace(each, id=MadeUpId(number)) for number, each in enumerate(sentences, 1)]
    else:
        sentences = _sentences(given["sentences"])
    if len(sentences) > limits.sentences:
        raise TooLarge(
            f"{counted(len(sentences), 'sentence')}, and a request may have {limits.sentences:,}: send fewer"
        )
    for number, sentence in enumerate(sentences, 1):
        if len(sentence) > limits.words:
            what = f"sentence {number} has {counted(len(sentence), 'word')}, and may have {limits.words:,}"
            raise TooLarge(f"{what}: split it")
    return Request(sentences, text, offsets, asked)


def _sentences(given: Any) -> list[Sentence]:
    """Sentences given as lists of words, or as objects of our own format."""
    if not isinstance(given, list):
        raise ValueError("'sentences' must be a list of sentences, each a list of words or an object")
    sentences: list[Any] = []
    for number, each in enumerate(given, 1):
        try:
            sentences.append(from_json(each) if isinstance(each, dict) else each)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"sentence {number}: {shortened(str(error))}") from error
    checked = checked_sentences(sentences)
    if empty := next((number for number, each in enumerate(checked, 1) if not len(each)), None):
        raise ValueError(f"sentence {empty} has no words: leave it out")
    return checked


def sentence_body(annotated: Probable, k: int | None) -> bytes:
    """An annotated sentence as JSON, without offsets."""
    items = None if k is None else (annotated.items,)
    [record] = AnnotatedText("", (annotated.sentence,), ((),), items).to_json()["sentences"]
    del record["offsets"]
    return _in_pieces(record, 4).encode()


def _in_pieces(value: Any, depth: int) -> str:
    """As `json.dumps`, but with a call for each part: other threads have to wait until a call is over."""
    if depth and isinstance(value, dict):
        parts = (
            f"{json.dumps(key, ensure_ascii=False)}: {_in_pieces(value[key], depth - 1)}" for key in value
        )
        return f"{{{', '.join(parts)}}}"
    if depth and isinstance(value, list | tuple):
        return f"[{', '.join([_in_pieces(each, depth - 1) for each in value])}]"
    return json.dumps(value, ensure_ascii=False)


def response_body(request: Request, sentences: Sequence[bytes]) -> bytes:
    """The body of a response, of annotated sentences from `sentence_body`."""
    if request.offsets is None:
        return b'{"sentences": [' + b", ".join(sentences) + b"]}"
    with_offsets = [
        b'%b, "offsets": %b}' % (sentence[:-1], json.dumps(offsets).encode())
        for sentence, offsets in zip(sentences, request.offsets, strict=True)
    ]
    text = json.dumps(request.text, ensure_ascii=False).encode()
    return b'{"text": ' + text + b', "sentences": [' + b", ".join(with_offsets) + b"]}"
