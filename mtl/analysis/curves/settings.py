"""Configurations of the trainings that give points of a pruning curve."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mtl.analysis.curves.start import Start
from mtl.config.parse import read_configuration
from mtl.config.part import parts
from mtl.config.schema import TrainConfig, WandbConfig
from mtl.models.device import Accelerator
from mtl.runs.folder.run import Run


def gate_settings(
    start: Start, target: float, epochs: int | None, accelerator: Accelerator = "auto"
) -> TrainConfig:
    """A training that brings gates on the run's frozen model to a target.

    `epochs=None` takes the run's own number. With a single task, settings that relate masks to each other are
    reset.
    """
    run, tasks = start.scoring.run, tuple(start.scoring.tasks)
    length = "" if epochs is None else f"-{epochs}-epochs"
    name = f"gates-{'-'.join(tasks)}-{target:g}{length}-{start.model_key[:8]}"
    settings = settings_of(run, run.folder, name, tasks, accelerator)
    alone = len(tasks) == 1
    gates = dataclasses.replace(
        settings.gates,
        target_open=target,
        penalty=None,
        masks=None,
        scope="shared" if alone else "per_task",
        at_most=None if alone else settings.gates.at_most,
        overlap_penalty=0.0 if alone else settings.gates.overlap_penalty,
    )
    return dataclasses.replace(
        settings,
        pruning="gates_only",
        gates=gates,
        max_epochs=settings.max_epochs if epochs is None else epochs,
    )


def settings_of(
    source: Run, init_from: Path, name: str, tasks: tuple[str, ...], accelerator: Accelerator
) -> TrainConfig:
    """The run's own training, but on these of its tasks and from the trained model `init_from`.

    Settings that have no use here are reset, since a run with them is refused: loss weights of other tasks, a
    mask file, meters, and starts, which were already applied to the trained model.
    """
    config = read_configuration(TrainConfig, source.folder / "config.yaml")
    weights = {task: weight for task, weight in config.balancer.weights.items() if task in tasks}
    default = TrainConfig()
    return dataclasses.replace(
        config,
        name=name,
        runs=str(source.folder / "curve"),
        tasks=tasks,
        init_from=str(init_from),
        pruning="none",
        balancer=dataclasses.replace(config.balancer, weights=weights),
        gates=dataclasses.replace(config.gates, masks=None),
        **{part.key: getattr(default, part.key) for part in parts()},
        overwrite=False,
        wandb=WandbConfig(),
        trainer=dataclasses.replace(config.trainer, accelerator=accelerator),
    )
