"""What watches the steps of a training and adds rows (`mtl.training.parts.Meter` makes it)."""

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

    Ranks do not exchange buffers: a meter's are equal on all of them.
    """

    name: ClassVar[str]
    """The first part of its buffers' names in a checkpoint."""

    @abstractmethod
    def watching(self, update: int) -> AbstractContextManager[Any]:
        """What is seen of a forward pass inside the block; `update` counts within the epoch."""

    @abstractmethod
    def add(self, seen: Any, losses: Mapping[str, Tensor], ends: bool = True) -> None:
        """Take the losses of a pass that was watched, before its backward pass.

        `losses` are this rank's by task; `ends`: the pass is the last one of its update.
        """

    @abstractmethod
    def record(self, run: Run) -> pl.Callback:
        """What writes the rows to the run's folder."""
