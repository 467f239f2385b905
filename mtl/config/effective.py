"""The settings that a run uses: of two studies that differ in others only, its result is the same."""

from __future__ import annotations

import dataclasses

from mtl.config.schema import TASK_NAMES, BalancerConfig, BatchConfig, CorpusConfig, GatesConfig, TrainConfig

_OF_BALANCERS = {
    "fixed": ("weights",),
    "moving_average": ("window",),
    "gradnorm": ("alpha", "lr"),
    "uncertainty": ("lr",),
}
"""The settings that each balancer has."""


def only_used(config: TrainConfig) -> TrainConfig:
    """The configuration with the settings that this run does not use at their defaults.

    What a study's runs have in common holds for the runs that it concerns: POS alone has no decoder for DEP,
    a run without masks no penalty, and gradients of tasks are compared where one mask has several.
    """
    default = TrainConfig()
    others = [name for name in TASK_NAMES if name not in config.tasks]
    under_one_mask = len(config.tasks) > 1 and config.gates.scope == "shared"
    return dataclasses.replace(
        config,
        **{name: getattr(default, name) for name in others},
        corpus=_corpus(config.corpus, config.tasks),
        batch=_batch(config.batch),
        balancer=_balancer(config.balancer, config.tasks),
        gates=_gates(config.gates, len(config.tasks)) if config.pruning != "none" else GatesConfig(),
        gradient_conflict_every=config.gradient_conflict_every if under_one_mask else 0,
    )


def _corpus(corpus: CorpusConfig, tasks: tuple[str, ...]) -> CorpusConfig:
    others = {name: None for name in TASK_NAMES if name not in tasks}
    shared = any(getattr(corpus, name) is None for name in tasks)
    return dataclasses.replace(corpus, **others, path=corpus.path if shared else None)


def _batch(batch: BatchConfig) -> BatchConfig:
    default = BatchConfig()
    if batch.mode == "aligned":
        batch = dataclasses.replace(batch, sampling=default.sampling)
    if batch.mode == "aligned" or batch.sampling != "tempered":
        batch = dataclasses.replace(batch, temperature=default.temperature)
    return batch


def _balancer(balancer: BalancerConfig, tasks: tuple[str, ...]) -> BalancerConfig:
    own = {key: getattr(balancer, key) for key in _OF_BALANCERS.get(balancer.name, ())}
    if "weights" in own:
        own["weights"] = {task: weight for task, weight in balancer.weights.items() if task in tasks}
    return dataclasses.replace(BalancerConfig(name=balancer.name), **own)


def _gates(gates: GatesConfig, tasks: int) -> GatesConfig:
    if gates.scope == "shared" or tasks < 2:
        gates = dataclasses.replace(gates, overlap_penalty=0.0)
    return gates
