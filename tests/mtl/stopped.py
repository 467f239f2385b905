"""Runs that are stopped at an update, and what they have learned."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from mtl.runs.folder.run import Run
from mtl.training.evaluation import Observer


class StopAt(Observer):
    """Fails after an update, before the checkpoint of that update is written."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_train_batch_end(self, trainer, *_) -> None:
        if trainer.global_step == self.update:
            raise RuntimeError("the power is gone")


def weights(run: Run) -> dict[str, torch.Tensor]:
    """All weights of a run's model, by file and name."""
    return {
        f"{path.name}/{key}": value
        for path in run.model.glob("*.safetensors")
        for key, value in load_file(path).items()
    }
