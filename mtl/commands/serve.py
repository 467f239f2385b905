"""`mtl serve`."""

from __future__ import annotations

from importlib.util import find_spec

from mtl.commands.choices import Accelerator, Precision
from mtl.config.schema import BatchConfig
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.ranges import Some

_MOST_PORT = 65_535


def serve(
    run: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    language: str = "en",
    max_bytes: Some = 1_000_000,
    max_sentences: Some = 1000,
    max_words: Some = BatchConfig.max_words,
    max_waiting: Some = 10_000,
    timeout: float = 10.0,
    threads: Some | None = None,
    batch_tokens: Some | None = None,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    revision: str | None = None,
) -> None:
    """Serve a run over HTTP: POST /annotate takes text or words as JSON, GET /health reports the state.

    Requests that arrive at the same time are annotated in one batch. There is no encryption and no password:
    put a proxy in front of it if others can reach it. This needs pip install 'mtl-heads[serve]'.

    Args:
        run: A run's folder, a saved model's, an exported one's, or a model on the hub (OWNER/NAME).
        host: Address to listen on; 0.0.0.0 means all addresses of this machine.
        port: Port to listen on; 0 takes a free one. It is printed.
        language: Language of running text, as in mtl predict.
        max_bytes: Maximum bytes of a request; requests above this or the next two limits get a 413.
        max_sentences: Maximum number of sentences in a request.
        max_words: Maximum number of words in a sentence; memory grows with its square, time with its cube.
        max_waiting: Maximum number of sentences that wait, in all; further requests get a 503.
        timeout: Seconds within which the body of a request must arrive; otherwise it gets a 408.
        threads: Number of CPU threads; default: torch's own.
        batch_tokens: Maximum number of padded subwords per batch; default: 1,024 on a CPU, 16,384 on a GPU.
        accelerator: Device; auto is a GPU if there is one.
        precision: bf16-true rounds the weights: faster if the hardware supports bfloat16.
        revision: A branch, tag or commit of a model on the hub.
    """
    if not 0 <= port <= _MOST_PORT:
        raise InputError(f"--port={port}: use a number from 0 to {_MOST_PORT}")
    if not 0 < timeout < float("inf"):
        raise InputError(f"--timeout={timeout:g}: use seconds above 0")
    if find_spec("aiohttp") is None:
        raise InputError("mtl serve needs aiohttp, which is not installed: pip install 'mtl-heads[serve]'")
    import torch

    from mtl.commands.service import application
    from mtl.commands.service import run as run_service
    from mtl.commands.service_bodies import Limits
    from mtl.corpora.running_text import splitter_for
    from mtl.models.found import find_model
    from mtl.models.opened import annotator_at

    splitter_for(language)
    model = annotator_at(find_model(run, revision).model, accelerator, precision)
    if model.translates:
        raise InputError(f"{run} translates: mtl serve is for models that label words")
    if threads is not None:
        torch.set_num_threads(threads)
    model.annotate([["a"]])  # refuses models that cannot annotate, and compiles what the first use compiles
    limits = Limits(max_bytes, max_sentences, max_words, max_waiting, timeout)

    def ready(port: int) -> None:
        tasks = counted(len(model.tasks), "task")
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"serving {run} ({tasks}) on {where}: POST /annotate, GET /health", flush=True)

    run_service(application(model, language, limits, batch_tokens), host, port, ready)
