"""Runs without dropout, whose weights do not depend on how their batches are split, but for rounding."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytorch_lightning as pl
import torch
from rich.console import Console

from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.models.inputs import InputCache
from mtl.runs.folder.run import Run
from mtl.training.observer import Observer
from mtl.training.train import train

TASKS = ("pos", "ner", "srl")
STILL = (
    "--encoder.word_dropout=0", *(f"--{task}.dropout=0" for task in TASKS), f"--tasks={','.join(TASKS)}",
    "--trainer.precision=32-true", "--trainer.accelerator=cpu", "--optimizer.encoder_lr=0.05",
    "--optimizer.decoder_lr=0.05", "--optimizer.schedule=constant", "--optimizer.warmup=0", "--gates.lr=0.5",
    "--keep=last",
)  # fmt: skip


class Signal(Observer):
    """Has SIGTERM stop the run after so many batches."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_train_batch_end(self, *_: Any) -> None:
        """Count, and send the signal to this process."""
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def smooth_adam() -> Iterator[None]:
    """AdamW with a large epsilon: rounding errors of small gradients are no whole steps, and factors show."""
    with patch.object(torch.optim, "AdamW", functools.partial(torch.optim.AdamW, eps=0.1)):
        yield


def still_encoder(encoder: Path, folder: Path) -> Path:
    """A copy of an encoder, without dropout."""
    folder.mkdir()
    for file in encoder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((encoder / "config.json").read_text())
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def trained(words: Sequence[str], stop: int | None, inputs: InputCache, port: int = 0) -> Run:
    """Train with these settings; with `stop`, interrupt after so many batches and resume."""
    config = configured("mtl train", TrainConfig, [*STILL, *words])
    quiet = Console(quiet=True)
    with smooth_adam():
        if stop is not None:
            try:
                train(config, console=quiet, inputs=inputs, observers=[Signal(stop)])
            except KeyboardInterrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                time.sleep(0.5)  # ranks start again when the first one has ended, as launchers do
                os.environ["MASTER_PORT"] = str(port)
            else:
                raise AssertionError("the run was not interrupted")
        return train(config, console=quiet, inputs=inputs)


def equal_buffers(module: pl.LightningModule) -> bool:
    """Whether all ranks hold the same numbers in their buffers."""
    for value in module.buffers():
        number = value.double()
        largest, smallest = number.clone(), number.clone()
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        torch.distributed.all_reduce(smallest, torch.distributed.ReduceOp.MIN)
        if not torch.allclose(largest, smallest, rtol=1e-6, atol=1e-9, equal_nan=True):
            return False
    return True


def main(jobs: Path) -> None:
    """One rank's part of many runs, one after the other; its place is in torchrun's variables."""
    import mtl.training.evaluation as evaluation

    inputs = InputCache(keep=True)
    for job in json.loads(jobs.read_text()):
        os.environ["MASTER_PORT"] = str(job["port"])

        class Checks(evaluation.Evaluation):
            def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
                assert equal_buffers(pl_module)
                super().on_train_epoch_end(trainer, pl_module)

        with patch("mtl.training.assembly.Evaluation", Checks):
            trained(job["words"], job["stop"], inputs, job["next_port"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
