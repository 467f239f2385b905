"""Reject inconsistent settings before reading any data."""

from __future__ import annotations

from mtl.config.effective import ROWS_PER_TASK
from mtl.config.marks import faults
from mtl.config.ranges import out_of_range
from mtl.config.schema import TrainConfig
from mtl.errors import InputError, as_input_error, plain_name
from mtl.heads.family_table import FAMILIES
from mtl.tasks.translate import Translate
from mtl.training.check_gates import check_gates


def check_settings(config: TrainConfig) -> None:
    """Raise `InputError` for settings that are out of range or contradict each other.

    Reads no file and no encoder, and imports no torch.
    """
    if config.name is not None:
        plain_name(config.name, "name")
    for fault in (*out_of_range(config), *faults(config)):
        raise InputError(fault)
    tasks = tuple(config.chosen())
    check_gates(config, tasks)
    check_clones(config, tasks)
    if config.translates():
        check_translation(config)
    one_mask = len(tasks) > 1 and config.batch.mode == "aligned" and config.gates.scope == "shared"
    one_mask = one_mask and config.clones.kind not in ROWS_PER_TASK
    if config.gradient_conflict_every and not one_mask:
        raise InputError(
            "gradient_conflict_every compares tasks in one pass under one mask: it needs at least two tasks, "
            "batch.mode=aligned, gates.scope=shared and no clones.kind that makes a row per task"
        )


def check_translation(config: TrainConfig) -> None:
    """Raise `InputError` if the heads of a model from scratch cannot share components, or if BLEU cannot be
    counted as the task says, or as its target language needs."""
    from mtl.tasks.metrics.bleu import require_tokenizer

    settings = config.seq2seq
    if settings.components is not None and settings.architecture is not None and config.init_from is None:
        reason = FAMILIES[settings.architecture].not_collaborative_because
        if reason:
            raise InputError(
                f"seq2seq.components={settings.components}: the heads of {settings.architecture} cannot "
                f"share query and key components: {reason}; give mbart or another architecture"
            )
    task = config.chosen()[Translate.name]
    assert isinstance(task, Translate)
    given = f"translate.tokenize={task.tokenize}"
    key = f"{given} with translate.target={task.target}" if task.tokenize == "auto" else given
    with as_input_error():
        require_tokenizer(task.tokenizer(), key)


def check_clones(config: TrainConfig, tasks: tuple[str, ...]) -> None:
    """Raise `InputError` for `clones` settings that do not fit the tasks, `pruning` or each other."""
    clones = config.clones
    if clones.kind == "none":
        return
    if len(tasks) < 2:
        raise InputError(f"clones.kind={clones.kind} is for two tasks or more: tasks is {', '.join(tasks)}")
    if config.pruning in ("static", "gates_only"):
        raise InputError(
            f"clones.kind={clones.kind} copies heads before training, and pruning={config.pruning} starts "
            "from a trained model: give one of them"
        )
    if clones.kind == "rows":
        return
    if clones.kind == "transplant" and clones.heads == "all":
        raise InputError(
            "clones.kind=transplant needs heads to overwrite: give clones.heads=contested or uncontested"
        )
    if clones.heads != "all" and clones.claims is None:
        raise InputError(
            f"clones.heads={clones.heads} needs the heads that tasks claim: give clones.claims=FILE, for "
            "instance a file in the folder claims of a study"
        )
