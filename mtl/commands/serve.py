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
    """Serve a run over HTTP: POST /annotate takes text or words as JSON, GET /health tells that it lives.

    Requests that come at the same time are annotated in one batch. There is no encryption and no password:
    put a proxy in front of it where others can reach it. Needs pip install 'mtl-heads[serve]'.

    Args:
        run: A run's folder, a saved model's, an exported one's, or a model on the hub (OWNER/NAME).
        host: Address to listen on; 0.0.0.0 is all of this machine.
        port: Port; 0 is a free one, which is printed.
        language: Language of running text, as in mtl predict.
        max_bytes: Bytes of a request; larger ones are refused with 413, as for the next two.
        max_sentences: Sentences of a request.
        max_words: Words of a sentence; memory grows with its square, time with its cube.
        max_waiting: Sentences that may wait in all; further requests are refused with 503.
        timeout: Seconds within which the body of a request must arrive; else it is refused with 408.
        threads: CPU threads to compute with; default: as many as torch finds.
        batch_tokens: Subwords in a batch, with padding; default: 1,024 on a CPU, 16,384 on a GPU.
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
    model.annotate([["a"]])  # refuses what cannot annotate, and what is compiled at the first use is
    limits = Limits(max_bytes, max_sentences, max_words, max_waiting, timeout)

    def ready(port: int) -> None:
        tasks = counted(len(model.tasks), "task")
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"serving {run} ({tasks}) on {where}: POST /annotate, GET /health", flush=True)

    run_service(application(model, language, limits, batch_tokens), host, port, ready)
