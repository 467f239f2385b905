"""Checkpoints from which an interrupted run resumes: when they are written, and what they must hold.

Whether a run resumes is decided in `mtl.training.train`, which has Lightning load the checkpoint.
"""

from __future__ import annotations

import pickle
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, cast

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.plugins.io import TorchCheckpointIO

from mtl.errors import InputError
from mtl.files import whole_file
from mtl.models.batches import Batch
from mtl.tasks.in_words import counted
from mtl.training.ranks import draw_apart
from mtl.training.step import JointTraining
from mtl.workers.queue import stopping


class _Whole:
    """A file to write to that remembers why writing failed, since torch's own error does not say why."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        """Write all of the content; after an error, nothing more is written."""
        if self.error is not None:
            raise self.error
        try:
            return self.file.write(content)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Flush the file."""
        self.file.flush()


class DirectCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint directly to its path; Lightning would write it to the temporary folder first."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the checkpoint to `path`, piece by piece; raises `OSError`, for instance on a full disk."""
        with Path(path).open("wb") as file:
            whole = _Whole(file)
            try:
                torch.save(checkpoint, cast("BinaryIO", whole))
            except RuntimeError:  # torch's error if the file cannot be written
                if whole.error is not None:
                    raise whole.error from None
                raise


def check_checkpoint(path: Path, module: torch.nn.Module) -> None:
    """Raise `InputError` for a checkpoint that is damaged or whose tensors are not those of the module.

    It is also refused if it holds more than tensors, numbers and text.
    """
    fix = "delete it and run the command again to train from scratch"
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        saved = {name: value.shape for name, value in content["state_dict"].items()}
    except pickle.UnpicklingError as error:
        what = "is damaged, or holds more than tensors, numbers and text"
        raise InputError(f"{path} {what}: {fix}") from error
    except (RuntimeError, EOFError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path} is damaged: {fix}") from error
    wanted = {name: value.shape for name, value in module.state_dict().items()}
    if saved != wanted:
        other = sorted(name for name in saved.keys() | wanted.keys() if saved.get(name) != wanted.get(name))
        raise InputError(
            f"{path} was written by another version of mtl "
            f"({counted(len(other), 'of its tensors differs', 'of its tensors differ')} in name or "
            f"shape, {other[0]} first): {fix}"
        )


class Resumption(pl.Callback):
    """Writes a checkpoint after each epoch, every `minutes`, and when a signal asks the run to stop.

    All ranks write and stop at the same update: they stop if a signal has reached any of them, and the clock
    of the first one decides when a checkpoint is due. A checkpoint holds the state of every rank's random
    generators, so that a resumed run computes the same as an unbroken one. `interrupted` is set once a signal
    has asked the run to stop.

    Args:
        path: The checkpoint's file.
        minutes: Minutes between checkpoints within an epoch.
        seed: Together with the rank, the seed of what ranks draw independently.
    """

    def __init__(self, path: Path, minutes: float, seed: int = 0) -> None:
        self.path, self.minutes, self.seed = path, minutes, seed
        self.interrupted = False
        self._written = 0.0
        self._generators: list[dict[str, Any]] = []
        self._hosts: dist.ProcessGroup | None = None
        self._handlers: dict[signal.Signals, Any] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Let a first signal stop the run after the current update, and a second one at once."""
        self._take_signals()

    def _take_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread can have handlers, and it does other work than this run's
        for number in stopping():
            before = signal.signal(number, self._stop)
            self._handlers.setdefault(number, before)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Restore the signal handlers."""
        self._restore_handlers()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Restore the signal handlers, since the process may do something else after this run."""
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore this rank's random generators; in a new run, make ranks draw different numbers."""
        # Again, since Lightning has set a handler of SIGTERM that waits for all ranks.
        self._take_signals()
        self._written = time.monotonic()
        if trainer.world_size > 1:  # between the CPUs, so that no message waits for a GPU
            self._hosts = dist.new_group(backend="gloo")
        if trainer.global_rank < len(self._generators):
            restore_generators(self._generators[trainer.global_rank])
        else:
            draw_apart(self.seed, trainer.global_rank)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Write a checkpoint if one is due, between updates."""
        # Not after the last batch: a run resumed from there would skip the evaluation at the epoch's end. A
        # checkpoint is written after that evaluation anyway.
        if (batch_idx + 1) % trainer.accumulate_grad_batches or batch_idx + 1 == trainer.num_training_batches:
            return
        late = trainer.is_global_zero and time.monotonic() - self._written > 60 * self.minutes
        stops, due = self._of_any_rank(self.interrupted, late)
        if stops or due:
            self._write(trainer, pl_module)
        if stops:
            raise KeyboardInterrupt

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write a checkpoint."""
        self._write(trainer, pl_module)
        if self._of_any_rank(self.interrupted)[0]:
            raise KeyboardInterrupt

    def _of_any_rank(self, *facts: bool) -> list[bool]:
        """Per fact, whether it is true on any rank."""
        if self._hosts is None:
            return list(facts)
        wishes = torch.tensor(facts, dtype=torch.int32)
        dist.all_reduce(wishes, dist.ReduceOp.MAX, self._hosts)
        return [bool(wish) for wish in wishes.tolist()]

    def _write(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, JointTraining)
        pl_module.require_finite()  # what is written is a good state
        if trainer.is_global_zero:
            with whole_file(self.path) as temporary:
                trainer.save_checkpoint(temporary)
        else:  # every rank takes part, but only the first one writes
            trainer.save_checkpoint(self.path)
        self._written = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """The state of the random generators of all ranks."""
        states: list[Any] = [generators()]
        if self._hosts is not None:
            states *= dist.get_world_size()
            dist.all_gather_object(states, generators(), self._hosts)
        return {"generators": states[0], "of_other_ranks": states[1:]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember the generators' state until training starts."""
        self._generators = [state_dict["generators"], *state_dict.get("of_other_ranks", [])]


def generators() -> dict[str, Any]:
    """The state of torch's random generators, the only ones that training steps draw from."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_generators(state: dict[str, Any]) -> None:
    """Restore all random generators to a state that `generators` returned.

    On a machine with fewer GPUs than the state has, the states of the first ones are used.
    """
    torch.set_rng_state(state["torch"])
    for device, cuda in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(cuda, device)
