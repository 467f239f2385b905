"""A run of a study's grid before it is trained."""

from __future__ import annotations

from dataclasses import dataclass

from mtl.config.schema import TrainConfig
from mtl.study.config import Masks, ProbesConfig
from mtl.study.extensions import MasksToMake


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
    """The label of its block; with masks that the study makes, also their kind."""
    prepared_from: tuple[str, ...] = ()
    """Names of the runs that it is prepared from (`Preparation`)."""
    makes: MasksToMake | None = None
    """The masks that the study makes for it; `None`: it makes none."""
