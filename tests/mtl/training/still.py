"""Runs without dropout, whose weights do not depend on how their batches are split, but for rounding."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.synchronize import Barrier
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
from mtl.training.evaluation import Observer
from mtl.training.train import train
from tests.mtl.forked import ended, forked, printed

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


def trained(
    words: Sequence[str],
    stop: int | None,
    inputs: InputCache,
    before_resuming: Callable[[], None] | None = None,
) -> Run:
    """Train with these settings; with `stop`, interrupt after so many batches and resume."""
    config = configured("mtl train", TrainConfig, [*STILL, *words])
    quiet = Console(quiet=True)
    with smooth_adam():
        if stop is not None:
            try:
                train(config, console=quiet, inputs=inputs, observers=[Signal(stop)])
            except KeyboardInterrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                if before_resuming is not None:
                    before_resuming()
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


def take_place(rank: int, ranks: int) -> None:
    """Be this rank of so many, by torchrun's variables."""
    for name, number in {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": ranks}.items():
        os.environ[name] = str(number)
    os.environ |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test"}


def carry_out(meeting: Barrier, jobs: Path, rank: int, ranks: int) -> None:
    """One rank's part of many runs, one after the other; all ranks resume when all were interrupted."""
    import mtl.training.evaluation as evaluation

    take_place(rank, ranks)
    inputs = InputCache(keep=True)
    for job in json.loads(jobs.read_text()):
        os.environ["MASTER_PORT"] = str(job["port"])

        def meet(port: int = job["next_port"]) -> None:
            meeting.wait()
            os.environ["MASTER_PORT"] = str(port)

        class Checks(evaluation.Evaluation):
            def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
                assert equal_buffers(pl_module)
                super().on_train_epoch_end(trainer, pl_module)

        with patch("mtl.training.assembly.Evaluation", Checks):
            trained(job["words"], job["stop"], inputs, meet)


def in_ranks(jobs: Path, ranks: int, part: Callable[[Path, int, int], None]) -> None:
    """Carry out jobs in a group of processes, for which this one has imported everything.

    `part` does one rank's part of the jobs in a file.

    The first that fails ends all.
    """
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=part, args=(jobs, rank, ranks)) for rank in range(ranks)]
    for process in processes:
        process.start()
    left = {process.sentinel: process for process in processes}
    while left:
        for sentinel in multiprocessing.connection.wait(list(left)):
            ended = left.pop(sentinel)
            ended.join()
            if ended.exitcode != 0:
                for process in left.values():
                    process.kill()
                sys.exit(f"rank {processes.index(ended)} of {ranks} ended with {ended.exitcode}")


def free_ports(number: int) -> list[int]:
    """Ports of this machine that nobody has."""
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def carried_out(module: str, arguments: Sequence[str]) -> None:
    """Run a module that forks processes, in at most 280 seconds; nothing of it is left."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with forked(module, arguments, output) as process:
            assert ended(process, 280) == 0, printed(output)[-5000:]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for jobs, ranks in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        meeting = multiprocessing.get_context("fork").Barrier(int(ranks))
        in_ranks(Path(jobs), int(ranks), functools.partial(carry_out, meeting))
