"""The observers that a run has by default."""

from __future__ import annotations

from rich.console import Console

from mtl.analysis.importance.over_time import ImportanceOverTime
from mtl.config.schema import TrainConfig
from mtl.models.inputs import InputCache
from mtl.training.mask_pictures import MaskPictures
from mtl.training.observer import Observer
from mtl.training.progress import ProgressLine
from mtl.training.wandb_logger import WandbLogger


def default_observers(
    config: TrainConfig, console: Console, inputs: InputCache | None = None
) -> list[Observer]:
    """Pictures of the masks; a progress bar on terminals; importance and W&B if they are configured.

    If `inputs` are those of the run, its corpora are read once.
    """
    observers: list[Observer] = [MaskPictures(), ProgressLine(console)]
    if config.importance_every:
        inputs = inputs or InputCache()
        observers.append(ImportanceOverTime(config.importance_every, config.importance_sentences, inputs))
    if config.wandb.mode != "disabled":
        observers.append(WandbLogger())
    return observers
