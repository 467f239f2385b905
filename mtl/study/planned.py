"""A run of a study's grid before it is trained."""

from __future__ import annotations

from dataclasses import dataclass

from mtl.config.schema import TrainConfig
from mtl.study.config import Masks, OverlapConfig, ProbesConfig


@dataclass(frozen=True)
class Draw:
    """How the masks of one run are drawn; the run's seed is the number of the draw."""

    overlap: OverlapConfig
    shared: int
    """Heads that the two masks have in common."""


@dataclass(frozen=True)
class Planned:
    """A run of the grid before it is trained."""

    name: str
    grid_cell: str
    """Its setup and masks as the study's file names them: `single dynamic`."""
    masks: Masks
    config: TrainConfig
    needs: str | None
    """Name of the run that it starts from, or whose masks it has."""
    probes: ProbesConfig | None
    """The measurements on its heads; `None`: its heads are not measured."""
    label: str | None = None
    """The label of its block; with drawn masks, also the number of heads that they share."""
    claims_from: tuple[str, ...] = ()
    """Names of the single-task runs whose masks determine which heads the tasks claim."""
    draw: Draw | None = None
    """How its masks are drawn; `None`: its masks are not drawn."""
