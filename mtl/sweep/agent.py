"""A training run that W&B's agent has called for a sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from mtl.config.schema import TrainConfig


def under_agent(config: TrainConfig, environment: Mapping[str, str]) -> TrainConfig:
    """The configuration with a folder of its own and W&B on, if an agent has called for the run.

    The agent says so by the environment, and gives every run an id; all are called alike but for the sweep's
    parameters, so that they would stand in one folder.
    """
    sweep, run = environment.get("WANDB_SWEEP_ID"), environment.get("WANDB_RUN_ID")
    if not sweep or not run:
        return config
    mode = "online" if config.wandb.mode == "disabled" else config.wandb.mode
    return dataclasses.replace(
        config,
        name=f"sweep-{sweep}/{config.run_name()}-{run}",
        wandb=dataclasses.replace(config.wandb, mode=mode),
    )
