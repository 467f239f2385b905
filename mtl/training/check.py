"""Reject inconsistent settings before reading any data."""

from __future__ import annotations

import dataclasses

from mtl.config.part import meters, starts
from mtl.config.ranges import out_of_range
from mtl.config.schema import TASK_NAMES, BalancerConfig, PruningRegime, TrainConfig
from mtl.errors import InputError, as_input_error, plain_name
from mtl.heads.family_table import FAMILIES
from mtl.tasks.translate import Translate
from mtl.tasks.variants import tasks_of
from mtl.training.check_gates import check_gates
from mtl.training.parts import used_starts

_COMPARING = ("gradnorm", "pcgrad")
"""Balancers that compare the tasks' gradients in every step."""


def check_settings(config: TrainConfig) -> None:
    """Raise `InputError` for settings that are out of range or contradict each other.

    Reads no file and no encoder, and imports no torch.
    """
    tasks = tuple(config.chosen())
    if not tasks:
        raise InputError(f"tasks is empty: choose at least one of {', '.join(TASK_NAMES)}")
    if len(set(config.tasks)) < len(config.tasks):
        raise InputError(f"tasks={','.join(config.tasks)} names a task twice: give each once")
    if config.name is not None:
        plain_name(config.name, "name")
    for fault in out_of_range(dataclasses.asdict(config)):
        raise InputError(fault)
    check_gates(config, tasks)
    check_balancer(config.balancer, tasks, config.batch.mode, config.pruning)
    if config.pruning == "fixed" and config.gates.masks is None:
        raise InputError("pruning=fixed takes its masks from a file: give gates.masks=FILE")
    if config.pruning != "fixed" and config.gates.masks is not None:
        raise InputError(
            f"gates.masks={config.gates.masks} is for pruning=fixed, and pruning={config.pruning}"
        )
    if config.pruning in ("static", "gates_only") and config.init_from is None:
        raise InputError(f"pruning={config.pruning} starts from a trained model: add --from RUN")
    for start in starts():
        start.check(config, tasks)
    if len(found := used_starts(config)) > 1:
        keys = " and ".join(start.key for start in found)
        raise InputError(f"{keys} each change the model before training: give one of them")
    check_translation(config, tasks)
    for meter in meters():
        meter.check(config, tasks)


def check_translation(config: TrainConfig, tasks: tuple[str, ...]) -> None:
    """Raise `InputError` for settings that a translation run cannot have, or that only such a run has."""
    mixing, shared = config.seq2seq.mixing, config.seq2seq.components is not None
    if mixing != "learned" and not shared and config.init_from is None:
        raise InputError(
            f"seq2seq.mixing={mixing} is for heads that share components: give seq2seq.components, or leave "
            "it out"
        )
    if Translate.name not in tasks:
        if config.seq2seq.architecture is not None:
            raise InputError(
                f"seq2seq.architecture={config.seq2seq.architecture} is for the task translate, and tasks is "
                f"{', '.join(tasks)}: give encoder.name"
            )
        if config.seq2seq.components is not None:
            raise InputError(
                f"seq2seq.components={config.seq2seq.components} is for the task translate, and tasks is "
                f"{', '.join(tasks)}: 'mtl collaborate' makes encoders whose heads share components"
            )
        return
    if len(tasks) > 1:
        others = ", ".join(name for name in tasks if name != Translate.name)
        raise InputError(f"translate is trained alone, because it uses a different model: leave out {others}")
    check_shared_components(config)
    task = config.chosen()[Translate.name]
    assert isinstance(task, Translate)
    check_tokenizer(task)
    other_model = config.seq2seq.architecture is not None or config.init_from is not None
    if not other_model and config.encoder.name == "minilm":
        raise InputError(
            "encoder.name=minilm has no decoder, and cannot translate: give seq2seq.architecture (for "
            "instance mbart) for a model from scratch, or an encoder-decoder checkpoint as encoder.name"
        )


def check_tokenizer(task: Translate) -> None:
    """Raise `InputError` if BLEU cannot be counted as the task says, or as its target language needs."""
    from mtl.tasks.metrics.bleu import require_tokenizer

    given = f"translate.tokenize={task.tokenize}"
    key = f"{given} with translate.target={task.target}" if task.tokenize == "auto" else given
    with as_input_error():
        require_tokenizer(task.tokenizer(), key)


def check_shared_components(config: TrainConfig) -> None:
    """Raise `InputError` if the heads of a model from scratch cannot share `seq2seq.components`."""
    settings = config.seq2seq
    if settings.components is None or config.init_from is not None:
        return
    given = f"seq2seq.components={settings.components}"
    if settings.architecture is None:
        raise InputError(
            f"{given} is for a model from scratch: give seq2seq.architecture, or leave it out (a "
            "checkpoint's heads are what they are)"
        )
    if reason := FAMILIES[settings.architecture].not_collaborative_because:
        raise InputError(
            f"{given}: the heads of {settings.architecture} cannot share query and key components: {reason}; "
            "give mbart or another architecture"
        )
    if settings.components > settings.width:
        raise InputError(
            f"{given}: give 1 to {settings.width} components (seq2seq.width), as many as heads apart have"
        )


def check_balancer(
    config: BalancerConfig, tasks: tuple[str, ...], mode: str, pruning: PruningRegime = "none"
) -> None:
    """Raise `InputError` for a balancer that does not fit the tasks, `batch.mode` or `pruning`."""
    for task, weight in config.weights.items():
        if task not in (*tasks, *tasks_of(tasks)):
            raise InputError(
                f"balancer.weights names {task}, which is not trained (tasks are {', '.join(tasks)}): leave "
                "it out; --balancer.weights={} leaves out all"
            )
        if weight < 0:
            raise InputError(f"balancer.weights.{task}={weight}: give a number from 0 on")
    if config.name in _COMPARING and pruning == "gates_only":
        raise InputError(
            f"balancer {config.name} compares the tasks' gradients in the encoder, which pruning=gates_only "
            "freezes: use uniform, moving_average or uncertainty"
        )
    if config.name in _COMPARING and mode == "separate":
        raise InputError(
            f"balancer {config.name} compares the tasks' gradients in every step, but batch.mode=separate "
            "has one task in a step: use batch.mode=aligned, or moving_average or uncertainty"
        )
