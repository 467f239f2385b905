"""A run of a study's grid before it is made."""

from __future__ import annotations

from dataclasses import dataclass

from mtl.config.schema import TrainConfig
from mtl.study.config import Masks, OverlapConfig


@dataclass(frozen=True)
class Draw:
    """Masks that are drawn for one run, with so many heads in common; the run's seed is the draw's number."""

    overlap: OverlapConfig
    shared: int


@dataclass(frozen=True)
class Planned:
    """A run of the grid before it is made."""

    name: str
    grid_cell: str
    """Its setup and masks as the study's file names them: `single dynamic`."""
    masks: Masks
    config: TrainConfig
    needs: str | None
    """Name of the run that it starts from."""
    probe: bool
    """Whether its heads are probed afterwards."""
    label: str | None = None
    """Of its block."""
    claims_from: tuple[str, ...] = ()
    """Names of the runs with a mask of one task that say which heads the tasks claim."""
    draw: Draw | None = None
    """How its masks are drawn; `None`: they are not."""
