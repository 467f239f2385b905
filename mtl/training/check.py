"""Reject inconsistent settings before reading any data."""

from __future__ import annotations

import importlib.util
from itertools import chain

from mtl.config.marks import faults
from mtl.config.part import meters, starts
from mtl.config.schema import TrainConfig
from mtl.config.typed import out_of_range
from mtl.errors import InputError, as_input_error, plain_name
from mtl.heads.family_table import FAMILIES
from mtl.tasks.translate import translation_in
from mtl.training.check_gates import check_gates
from mtl.training.parts import used_starts


def check_settings(config: TrainConfig) -> None:
    """Raise `InputError` for settings that are out of range or contradict each other.

    Reads no file and no encoder, and does not import torch.
    """
    if config.name is not None:
        plain_name(config.name, "name")
    for fault in chain(out_of_range(config), faults(config)):  # rules assume values in their ranges
        raise InputError(fault)
    if config.balancer.name == "torchjd" and importlib.util.find_spec("torchjd") is None:
        raise InputError(
            "balancer.name=torchjd needs the library of that name: pip install 'mtl-heads[torchjd]'"
        )
    tasks = tuple(config.chosen())
    check_gates(config)
    if config.translates():
        check_translation(config)
    for start in starts():
        start.check(config, tasks)
    if len(found := used_starts(config)) > 1:
        keys = " and ".join(start.key for start in found)
        raise InputError(f"{keys} each change the model before training: use one of them")
    for meter in meters():
        meter.check(config, tasks)


def check_translation(config: TrainConfig) -> None:
    """Raise `InputError` for a model from scratch whose heads cannot share components, and for a tokeniser
    that sacreBLEU does not have or that needs a package or a download."""
    from mtl.tasks.metrics.bleu import require_tokenizer

    settings = config.seq2seq
    if settings.components is not None and settings.architecture is not None and config.init_from is None:
        reason = FAMILIES[settings.architecture].not_collaborative_because
        if reason:
            raise InputError(
                f"seq2seq.components={settings.components}: the heads of {settings.architecture} cannot "
                f"share query and key components: {reason}; use mbart or another architecture"
            )
    task = translation_in(config.chosen())
    assert task is not None
    settings_of = f"instances.{task.name}" if task.standard else task.name
    given = f"{settings_of}.tokenize={task.tokenize}"
    key = f"{given} with {settings_of}.target={task.target}" if task.tokenize == "auto" else given
    with as_input_error():
        require_tokenizer(task.tokenizer(), key)
