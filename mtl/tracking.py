"""Weights & Biases: a view of a run, whose own files are the truth."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from pytorch_lightning.loggers import WandbLogger

from mtl.config import TrainConfig
from mtl.evaluation import Scores
from mtl.run import Run, git_revision, plain


def wandb_logger(config: TrainConfig, run: Run) -> WandbLogger:
    """A logger for the run; the same W&B run again where it goes on."""
    identity = run.status().get("wandb_id") or f"{config.run_name()}-{os.urandom(4).hex()}"
    run.update_status({"wandb_id": identity})
    return WandbLogger(
        name=config.run_name(),
        id=identity,
        save_dir=str(run.folder),
        project=config.wandb.project,
        offline=config.wandb.mode == "offline",
        entity=config.wandb.entity,
        group=config.wandb.group,
        job_type=config.wandb.job_type,
        tags=list(config.wandb.tags),
        config={**plain(dataclasses.asdict(config)), "git": git_revision()},
    )


def finish(logger: WandbLogger, metrics: dict[str, Scores]) -> None:
    """Log the final scores and close the W&B run."""
    flat: dict[str, Any] = {
        f"{split}/{name}/{key}": value
        for split, scores in metrics.items()
        for name, figures in scores.items()
        for key, value in figures.items()
    }
    logger.log_metrics(flat)
    logger.experiment.finish()
