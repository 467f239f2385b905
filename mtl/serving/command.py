"""`mtl serve` and `mtl export`."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from mtl.commands.common import Accelerator, NewFolder, Precision
from mtl.config.schema import BatchConfig
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.task import Some

_MOST_PORT = 65_535


def serve(
    run: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    tasks: tuple[str, ...] | None = None,
    rules: Path | None = None,
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

    GET /metrics has the numbers of requests and sentences for Prometheus.
    Requests that arrive at the same time are annotated in one batch. There is no encryption and no password:
    put a proxy in front of it if others can reach it. This needs pip install 'mtl-heads[serve]'.

    Args:
        run: A run's folder, a saved model's, an exported one's, or a model on the hub (OWNER/NAME).
        host: Address to listen on; 0.0.0.0 means all addresses of this machine.
        port: Port to listen on; 0 takes a free one. It is printed.
        tasks: Only these tasks, for instance --tasks=[pos,ner]; default: all. A request may ask for fewer.
        rules: A YAML file with words that must, or must not, get certain annotations, as in mtl predict.
        language: Language of running text, as in mtl predict.
        max_bytes: Maximum bytes of a request; requests above this or the next two limits get a 413.
        max_sentences: Maximum number of sentences in a request.
        max_words: Maximum number of words in a sentence; memory grows with its square, time with its cube.
        max_waiting: Maximum number of sentences that wait, in all; further requests get a 503.
        timeout: Seconds within which the body of a request must arrive; otherwise it gets a 408.
        threads: Number of CPU threads; default: as OMP_NUM_THREADS says, otherwise torch's own.
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

    from mtl.corpora.running_text import splitter_for
    from mtl.models.annotator import chosen_tasks
    from mtl.models.found import find_model
    from mtl.models.opened import annotator_at
    from mtl.serving.service import Limits, application
    from mtl.serving.service import run as run_service

    splitter_for(language)
    folder = find_model(run, revision).model
    model = annotator_at(folder, accelerator, precision)
    if model.does:
        raise InputError(f"{run} {model.does}: mtl serve is for models that label words")
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = tuple(chosen_tasks(model.tasks, tasks))
    prepared = None if rules is None else model.rules_for(rules)
    if prepared is not None and (left := prepared.by_task.keys() - {*chosen}):
        raise InputError(
            f"{rules}: {', '.join(sorted(left))} is not served: leave it out, or add it to --tasks"
        )
    model.annotate(
        [["a"]], tasks=chosen
    )  # refuses models that cannot annotate, and compiles what the first use compiles
    limits = Limits(max_bytes, max_sentences, max_words, max_waiting, timeout)

    def ready(port: int) -> None:
        served = counted(len(chosen), "task")
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"serving {run} ({served}) on {where} (POST /annotate; GET /health, /metrics)", flush=True)

    about = {"name": run, "revision": revision, "mtl": version("mtl-heads"), **_origin(folder)}
    app = application(model, chosen, language, limits, batch_tokens, prepared, about=about)
    run_service(app, host, port, ready)


def _origin(folder: Path) -> dict[str, Any]:
    """What is known of the model in a folder: encoder, corpus, what was done to it, scores."""
    from mtl.models.found import loader_of
    from mtl.models.model_files import origin_of

    return {} if loader_of(folder) else asdict(origin_of(folder))


def export(
    run: str,
    *,
    out: NewFolder,
    weights: Literal["float32", "int8"] = "float32",
    revision: str | None = None,
) -> None:
    """Write a run's model as ONNX, with which onnxruntime is faster than torch on a CPU.

    mtl predict, evaluate and serve accept the folder in place of a run. Masks are applied. This needs pip
    install 'mtl-heads[onnx]'.

    Args:
        run: A run's folder, a saved model's, or a model on the hub (OWNER/NAME).
        out: Folder of the exported model.
        weights: int8 rounds embeddings, and linear layers with their inputs, to 8 bits. The model has a third
            of the size and is faster, mostly in batches. Some annotations differ, and may depend on the
            other sentences of a batch, which are rounded together: measure it with mtl evaluate. On CPUs
            without VNNI, sums may overflow.
        revision: A branch, tag or commit of a model on the hub.
    """
    from mtl.models.found import find_model
    from mtl.serving.onnx import TO_EXPORT, export_onnx, require_onnx

    require_onnx("mtl export", TO_EXPORT)
    folder = find_model(run, revision).model
    from mtl.models.joint import JointModel

    export_onnx(JointModel.from_pretrained(folder), out, weights=weights)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    console = Console(markup=False, emoji=False)
    console.print(f"{run} -> {out}: {size:,.0f} MB", highlight=False, soft_wrap=True)
