"""The HTTP service of `mtl serve`: JSON in, annotations out, requests of many clients in one batch."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from mtl.commands.service_bodies import Limits, TooLarge, parsed, response_body
from mtl.errors import InputError
from mtl.models.annotation import Probable
from mtl.models.annotator import Annotator
from mtl.models.batcher import Batcher, Busy
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler, Middleware

_SMALL = 1 << 14
"""Maximum bytes of a body that is parsed on the event loop; larger ones are parsed in a thread."""
_FEW = 32
"""Maximum number of sentences of an answer that is written on the event loop."""
_BACKLOG = 2048
"""Maximum number of connections that wait to be accepted."""


def application(
    model: Annotator, language: str, limits: Limits, batch_tokens: int | None = None
) -> web.Application:
    """The service of a model, as an application of aiohttp."""
    from aiohttp import web

    def annotate(sentences: Sequence[Sentence], k: int | None) -> list[Probable]:
        if k is None:
            found = model.annotate(sentences, limits.words, batch_tokens=batch_tokens)
            return [Probable(sentence, {}) for sentence in found]
        return model.annotate(sentences, limits.words, probabilities=k, batch_tokens=batch_tokens)

    batcher = Batcher(annotate, limits.waiting)
    beside = ThreadPoolExecutor(1, "large bodies")
    answers = ThreadPoolExecutor(
        1, "long answers"
    )  # a thread of their own, so that they wait for no large body

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
                wanted = parsed(body, language, limits)
            else:
                wanted = await loop.run_in_executor(beside, parsed, body, language, limits)
            found = await asyncio.wrap_future(batcher.submit(wanted.sentences, wanted.k))
        except TooLarge as error:
            raise web.HTTPRequestEntityTooLarge(limits.bytes, len(body), text=str(error)) from error
        except (InputError, ValueError) as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        except Busy:
            raise web.HTTPServiceUnavailable(
                text=f"more than {counted(limits.waiting, 'sentence')} would wait: try again soon",
                headers={"Retry-After": "1"},
            ) from None
        if len(found) <= _FEW:
            written = response_body(wanted, found)
        else:
            written = await loop.run_in_executor(answers, response_body, wanted, found)
        return web.Response(body=written, content_type="application/json", charset="utf-8")

    async def health(request: web.Request) -> web.Response:
        return web.json_response(
            {
                "status": "ok",
                "tasks": list(model.tasks),
                "language": language,
                "waiting": batcher.sentences_waiting,
                "annotated": batcher.annotated,
            }
        )

    async def end(app: web.Application) -> None:
        await asyncio.to_thread(batcher.end)
        beside.shutdown()
        answers.shutdown()

    made = web.Application(middlewares=[_errors_as_json()], client_max_size=limits.bytes)
    made.router.add_post("/annotate", annotated)
    made.router.add_get("/health", health)
    made.on_cleanup.append(end)
    return made


def _errors_as_json() -> Middleware:
    """Errors become `{"error": …}` on one line; an unexpected one is a 500 without details."""
    from aiohttp import web

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        kept: dict[str, str] = {}
        try:
            return await handler(request)
        except web.HTTPException as error:
            message, status = error.text or error.reason, error.status
            kept = {name: error.headers[name] for name in ("Allow", "Retry-After") if name in error.headers}
            if isinstance(error, web.HTTPNotFound | web.HTTPMethodNotAllowed):
                message = (
                    f"{request.method} {request.path[:100]} is not served: use POST /annotate or GET /health"
                )
        except Exception as error:
            request.app.logger.exception("a request failed")
            message, status = f"a defect of the service ({type(error).__name__})", 500
        response = web.json_response({"error": " ".join(message.split())}, status=status, headers=kept)
        if request.content.exception() is not None:  # the beginning of the next request is not known
            response.force_close()
        return response

    return middleware


def run(app: web.Application, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve until the process is interrupted or terminated; waiting requests are still answered.

    `ready` receives the port when connections are accepted. Raises `InputError` for an address that cannot be
    used.
    """
    asyncio.run(_serve(app, host, port, ready))


async def _serve(app: web.Application, host: str, port: int, ready: Callable[[int], None]) -> None:
    from aiohttp import web

    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=10)
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
