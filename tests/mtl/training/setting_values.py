"""Values of all settings of a training run, taken from the types and ranges of its configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from mtl.config.instances import PRESETS, whole_of
from mtl.config.keys import (
    hint_of,
    item_of,
    known_keys_of,
    literal_values,
    mapping_types,
    marked,
    without_null,
)
from mtl.config.schema import TASK_NAMES, TrainConfig
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence_tasks import Cola
from mtl.tasks.task import Range

Combination = Mapping[str, str]

WRITTEN = {
    "tasks": (
        "pos", "pos,dep", "ner,con", "classify,regress,srl", "dep~a,dep~b", "control", "pos,control,srl",
        "translate --seq2seq.architecture=bart --seq2seq.layers=1 --seq2seq.heads=2 --seq2seq.width=16 "
        "--seq2seq.vocabulary=300",
        "{tagged: {kind: tags, layer: tags}, lemmas: {kind: lemmas}, graph: {kind: graph}}",
    ),
    "balancer.weights": ("{}", "{pos: 2}"),
    "srl.senses": ("false", "true"),
    "translate.source": ("en",),
    "translate.target": ("en", "zh"),
    "trainer.devices": ("1", "2"),
    "encoder.freeze": ("null", "all", "[0]", "[embeddings, 0, 2]"),
    "seq2seq.components": ("null", "1", "2", "{encoder: 1}", "{cross: 2}"),
    "by_task": ("[]", "[max_epochs]"),
    "loggers": ("[]", "[csv]", "[tensorboard]"),  # W&B is a setting of its own, which is left out
}  # fmt: skip
"""Of keys whose values are texts, or fewer than their type allows."""
NEEDED = {
    "pruning=static": "--from=SOURCE",
    "pruning=gates_only": "--from=SOURCE",
    "pruning=fixed": "--gates.masks=MASKS",
    "keep=average": "--snapshots=2",
    "batch.sampling=in_turn": "--batch.mode=separate",
    "batch.sampling=tempered": "--batch.mode=separate",
}
"""Other settings without which a value is refused."""
LEFT_OUT = (
    "name", "runs", "overwrite", "init_from", "instances", "corpus", "encoder.name", "wandb", "gates.masks",
    "trainer.accelerator", "trainer.num_nodes", "trainer.threads", "trainer.checkpoint_minutes", "max_epochs",
    "batch.max_words", "seed",
    *(name for name, task in TASKS.items() if task.__module__ == Cola.__module__),
)  # fmt: skip
"""Keys, or groups, that say where things are, and tasks that are as another one (GLUE's as `classify`)."""


def leaves() -> list[str]:
    """All keys that are no groups and not left out."""
    keys = known_keys_of(TrainConfig)
    groups = {key.rpartition(".")[0] for key in keys if "." in key}
    left_out = tuple(f"{key}." for key in LEFT_OUT)
    of_mappings = [key for key in groups if mapping_types(hint_of(TrainConfig, key))]
    return [
        key
        for key in keys
        if not f"{key}.".startswith(left_out)
        and (key not in groups or key in of_mappings)
        and key.rpartition(".")[0] not in of_mappings
    ]


def values_of(key: str) -> tuple[str, ...]:
    """Values of a key, its default first; none where the type does not say them."""
    if key in WRITTEN:
        return tuple(value for value in WRITTEN[key] if key != "tasks" or known(value))
    default = _default(key)
    return tuple(dict.fromkeys([default, *_of_type(key, default)])) if default is not None else ()


def known(tasks: str) -> bool:
    """Whether all of these tasks are there, which those of packages beside the core may not be."""
    names = tasks.partition(" --")[0]
    there = {*TASK_NAMES, *PRESETS}
    return names.startswith("{") or {*map(whole_of, names.split(","))} <= there


def _default(key: str) -> str:
    value: Any = TrainConfig()
    for name in key.split("."):
        value = getattr(value, name)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _of_type(key: str, default: str) -> Iterator[str]:
    hint, null = without_null(hint_of(TrainConfig, key))
    if null:
        yield "null"
    if mapping_types(hint):
        yield from (f"{{{kind}: 1}}" for kind in ("self", "cross"))
    for choice in literal_values(hint):
        yield f"[{choice}]" if item_of(hint) else choice
    if hint is bool:
        yield from ("true", "false")
    yield from (str(number) for number in _numbers(key))


def _numbers(key: str) -> Iterator[int | float]:
    """Both ends of a number's range, or what is next to them; of a count, two small ones."""
    ranges = [found for other, found in marked(TrainConfig, Range) if other == key]
    for found in ranges:
        hint, _ = without_null(hint_of(TrainConfig, key))
        if hint is int:
            yield from (found.low, found.low + 1)
        else:
            yield 1e-3 if found.open_low else float(found.low)
            yield 1e3 if math.isinf(found.high) else (0.999 if found.open_high else 1.0) * found.high


@cache
def all_values() -> dict[str, tuple[str, ...]]:
    """Every key that is not left out with its values."""
    return {key: values_of(key) for key in leaves()}


def words_of(combination: Combination, places: Mapping[str, Any]) -> list[str]:
    """The words of a command line that sets what is not a default, with what that needs."""
    first = {key: values[0] for key, values in all_values().items()}
    chosen = {key: value for key, value in combination.items() if value != first[key] or key == "tasks"}
    words = []
    for key, value in chosen.items():
        option, *others = f"{key}={value}".split(" --")
        words += [f"--{option}", *(f"--{other}" for other in others if other.partition("=")[0] not in chosen)]
        needed = NEEDED.get(f"{key}={value}")
        words += [needed] if needed and needed.partition("=")[0].lstrip("-") not in chosen else []
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]
    return words
