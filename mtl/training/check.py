"""What of a run's settings cannot be, told before anything is read."""

from __future__ import annotations

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.training.balancing import balancer_for


def check(config: TrainConfig) -> None:
    """Raise `InputError` for settings that do not go together; neither corpus nor encoder is read for it."""
    tasks = tuple(config.chosen())
    if not tasks:
        raise InputError("tasks is empty: choose at least one of pos, ner, dep, con, srl")
    if not 0 <= config.seed < 2**32:
        raise InputError(f"seed={config.seed}: give a number from 0 to {2**32 - 1}")
    counts = {
        "max_epochs": config.max_epochs,
        "evaluate_every": config.evaluate_every,
        "optimizer.accumulate": config.optimizer.accumulate,
        "batch.tokens": config.batch.tokens,
        "batch.max_words": config.batch.max_words,
        "batch.sentences": 1 if config.batch.sentences is None else config.batch.sentences,
    }
    for key, value in counts.items():
        if value < 1:
            raise InputError(f"{key}={value}: give a number from 1 on")
    balancer_for(config.balancer, tasks, config.batch.mode)
    if config.pruning in ("static", "gates_only") and config.init_from is None:
        raise InputError(f"pruning={config.pruning} starts from a trained model: add --from RUN")
    every = config.gradient_conflict_every
    if every < 0:
        raise InputError(f"gradient_conflict_every={every}: give a number of batches, or 0 for never")
    if every and (len(tasks) < 2 or config.batch.mode == "separate" or config.gates.scope == "per_task"):
        raise InputError(
            "gradient_conflict_every compares tasks in one pass under one mask: it needs at least two tasks, "
            "batch.mode=aligned and gates.scope=shared"
        )
