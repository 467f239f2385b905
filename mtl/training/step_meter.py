"""A module that watches the steps of a training and has rows written; made by a `Meter` (`parts`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pytorch_lightning as pl
from torch import Tensor, nn

from mtl.runs.folder.run import Run


class StepMeter(nn.Module, ABC):
    """Watches the forward passes and losses of a training step; its buffers are part of a checkpoint.

    Ranks do not exchange buffers, so a meter must keep its buffers equal on all of them.
    """

    name: ClassVar[str]
    """The first part of its buffers' names in a checkpoint."""

    @abstractmethod
    def watching(self, update: int) -> AbstractContextManager[Any]:
        """Watch a forward pass in the block, and yield what is seen; `update` counts within the epoch."""

    @abstractmethod
    def add(self, seen: Any, losses: Mapping[str, Tensor], ends: bool = True) -> None:
        """Take the losses of a pass that was watched, before its backward pass.

        `losses` are this rank's, by task. `ends` says that the pass is the last one of its update.
        """

    @abstractmethod
    def record(self, run: Run) -> pl.Callback:
        """The callback that writes the rows to the run's folder."""
