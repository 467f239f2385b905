"""The observers that a run has by default."""

from __future__ import annotations

from rich.console import Console

from mtl.config.schema import TrainConfig
from mtl.training.mask_pictures import MaskPictures
from mtl.training.observer import Observer
from mtl.training.progress import ProgressLine
from mtl.training.wandb_logger import WandbLogger


def default_observers(config: TrainConfig, console: Console) -> list[Observer]:
    """Pictures of the masks, a progress bar on terminals, and W&B unless it is disabled."""
    wandb = [] if config.wandb.mode == "disabled" else [WandbLogger()]
    return [MaskPictures(), ProgressLine(console), *wandb]
