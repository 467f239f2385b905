"""Which keys make two runs different: those that a run uses, that change its result and are not neutral.

Features add keys, and a run that was trained without a feature is the same run with it, as long as the keys
have their defaults. Therefore only values that are not neutral count, in the fingerprints of a study's jobs
as well as between a run's folder and the configuration that resumes it. The neutral value of a key is its
default.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, TypeVar

from mtl.config.instances import BY_TASK, Instance, architecture_in, unused_settings
from mtl.config.keys import ContentPath, Joint, Used, Volatile, marked, within
from mtl.config.schema import (
    KIND_NAMES,
    TASK_NAMES,
    CorpusConfig,
    Files,
    TrainConfig,
    default_rates,
    filled_rates,
)
from mtl.features import added

T = TypeVar("T")

VOLATILE = tuple(key for key, _ in marked(TrainConfig, Volatile))
"""Keys that do not change what a run computes: a run may be resumed with others."""
_PLACES = frozenset(key for key, _ in marked(TrainConfig, ContentPath))

_ALWAYS = ("tasks",)
"""Keys that count though they have their default: a run is what its tasks make of it."""

_OF_JOINT_RUNS = (
    *(key for key, _ in marked(TrainConfig, Joint)),
    *(name for name, keys in added(lambda feature: feature.keys).items() if keys.joint),
)
"""The settings that make no difference to a run of one task."""


def only_used(config: TrainConfig) -> TrainConfig:
    """The configuration with the settings that this run does not use at values that count for nothing.

    What a study's runs have in common holds for the runs that it concerns: POS alone has no decoder for DEP,
    a run without masks no penalty, and gradients of tasks are compared where one mask has several.
    """
    default, unused = reference(), unused_keys(config)
    values: dict[str, Any] = {}
    for key in unused:
        group, _, name = key.partition(".")
        if "instances" in key.split(".") or "." in name:
            continue  # left out below
        if not name:
            values[group] = getattr(default, group)
        elif group != "corpus":
            inner = values.get(group, getattr(config, group))
            values[group] = dataclasses.replace(inner, **{name: getattr(getattr(default, group), name)})
    of_corpus = [name for key in unused if (name := key.removeprefix("corpus.")) != key and "." not in name]
    none: dict[str, Any] = dict.fromkeys(of_corpus)
    values["corpus"] = dataclasses.replace(config.corpus, **none)
    corpus: CorpusConfig = values["corpus"]
    used = config.tasks
    values["corpus"] = dataclasses.replace(corpus, instances=_within(corpus.instances, used))
    config = dataclasses.replace(config, **values).without_other_tasks()
    instances = {}
    for name, made in _within(config.instances, used).items():
        without: dict[str, Any] = dict.fromkeys(unused_settings(name, config))
        instances[name] = dataclasses.replace(made, **without)
    return dataclasses.replace(config, instances=instances)


def _within(values: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name in names}


def keys_of_other_tasks(tasks: Sequence[str]) -> tuple[str, ...]:
    """The dotted keys, and groups of keys, that no run of these tasks uses, whatever its other settings."""
    others = [name for name in TASK_NAMES if name not in tasks]
    of_joint = [] if len(tasks) > 1 else _OF_JOINT_RUNS
    return (*others, *(f"corpus.{name}" for name in others), *of_joint)


def unused_keys(config: TrainConfig) -> tuple[str, ...]:
    """The dotted keys, and groups of keys, whose values make no difference to this run."""
    unused = [key for key, used in marked(TrainConfig, Used) if not used.when(config)]
    for instances, prefix in ((config.instances, ""), (config.corpus.instances, "corpus.")):
        unused += [f"{prefix}instances.{name}" for name in instances if name not in config.tasks]
    for key in BY_TASK:
        group, name = key.split(".")
        numbers = getattr(getattr(config, group), name)
        if isinstance(numbers, Mapping):
            unused += [f"{key}.{task}" for task in numbers if task not in (*config.tasks, *KIND_NAMES)]
    for name in config.tasks:
        place = f"instances.{name}" if name in config.instances else name
        unused += [f"{place}.{setting}" for setting in unused_settings(name, config)]
    return (
        *unused,
        *(
            name
            for name, keys in added(lambda feature: feature.keys).items()
            if keys.unused is not None and resolve_name(keys.unused)(config)
        ),
    )


def without_effect(config: TrainConfig) -> tuple[str, ...]:
    """The dotted keys that this run does not use and that have other values than the defaults.

    `corpus.path: null` is not among them: it says what holds for a run whose tasks have files of their own.
    """
    unused, neutral = unused_keys(config), neutral_values(values := plain(dataclasses.asdict(config)))
    defaults = dict(_leaves(plain(dataclasses.asdict(TrainConfig())), neutral))
    return tuple(
        key
        for key, value in _leaves(values, neutral)
        if within(key, unused)
        and not _is_volatile(key)
        and (key, value) != ("corpus.path", None)
        # In a study, settings that a run does not use have neutral values.
        and value not in (neutral.get(key), defaults.get(key, neutral.get(key)))
    )


def settings_in(config: Mapping[str, Any]) -> TrainConfig:
    """A run's configuration for `unused_keys`; keys of features that it was trained without are neutral."""
    return _laid_over(reference(), {**config, "tasks": tuple(config["tasks"])})


def _laid_over(default: Any, config: Mapping[str, Any]) -> Any:
    """A dataclass's object with the values that a mapping has for its fields; a group keeps its class.

    Values are taken as they are, also those that today's program would refuse.
    """
    made = copy.copy(default)
    for field in dataclasses.fields(default):
        if field.name in config:
            value, before = config[field.name], getattr(default, field.name)
            vars(made)[field.name] = (
                _laid_over(before, value or {}) if dataclasses.is_dataclass(before) else value
            )
    return made


@functools.cache
def reference() -> TrainConfig:
    """The configuration whose settings count for nothing: all defaults."""
    return TrainConfig()


def different_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The dotted keys in which two configurations would compute different things.

    A key that one of them lacks has its neutral value there. A key that neither of them uses makes no
    difference.
    """
    neutral = neutral_values(old, new)
    unused = [_unused_in(config) for config in (old, new)]
    unmasked = all(config.get("pruning") == "none" for config in (old, new))
    first, second = (dict(_leaves(with_rates(config), neutral)) for config in (old, new))
    return [
        key
        for key in dict.fromkeys([*first, *second])
        if not _is_volatile(key)
        and not (unmasked and key.startswith("gates."))
        and not all(within(key, keys) for keys in unused)
        and first.get(key, neutral.get(key)) != second.get(key, neutral.get(key))
    ]


def _unused_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    """`unused_keys` of plain values; none if they have a task that is not known here."""
    try:
        return unused_keys(settings_in(config))
    except KeyError:
        return ()


def counting_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys of a run that make it what it is, with their values.

    These are the keys whose value is not neutral; those of gates count in runs with masks only. Places of the
    corpus and of the run that training starts from are left out: what lies there is fingerprinted by itself.
    """
    neutral = neutral_values(config)
    unmasked = config.get("pruning") == "none"
    return {
        key: value
        for key, value in _leaves(with_rates(config), neutral)
        if not (_is_volatile(key) or is_place(key) or (unmasked and key.startswith("gates.")))
        and (key in _ALWAYS or key not in neutral or value != neutral[key])
    }


def lasting_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a run what it is, by dotted key, whatever the defaults are now."""
    return {
        key: value
        for key, value in _leaves(config, {})
        if value is not None and not (_is_volatile(key) or is_place(key))
    }


def with_rates(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with the learning rates that `null` stands for (`TrainConfig.with_rates`)."""
    given = config.get("optimizer") or {}
    encoder = (config.get("encoder") or {}).get("name", "minilm")
    rates = default_rates(encoder, architecture_in(config))
    filled = filled_rates(
        {key: rate for key, rate in given.items() if key in rates}, rates, config.get("tasks") or ()
    )
    return {**config, "optimizer": {**given, **filled}} if filled else config


def plain(value: Any) -> Any:
    """Convert tuples to lists, recursively, as YAML and JSON give them back."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def neutral_values(*configs: Mapping[str, Any]) -> dict[str, Any]:
    """The values that count for nothing, by dotted key.

    Settings of tasks with names of their own are those of the tasks in `configs`.
    """
    files = dataclasses.asdict(Files())
    named = dict.fromkeys(name for config in configs for name in config.get("instances") or ())
    slots = ("files", *TASK_NAMES, *(f"instances.{name}" for name in named))
    in_files = {f"corpus.{slot}.{key}": value for slot in slots for key, value in files.items()}
    settings = {
        f"instances.{name}.{field.name}": None for name in named for field in dataclasses.fields(Instance)
    }
    return {**in_files, **settings, **_defaults()}


@functools.cache
def _defaults() -> dict[str, Any]:
    """The values of `reference` by dotted key."""
    return dict(_leaves(dataclasses.asdict(reference()), {}))


_BY_NAME = ("instances", "corpus.instances")
"""Mappings from names of tasks, of which each setting counts for itself."""


def _leaves(
    config: Mapping[str, Any], neutral: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values; a mapping is one value where the neutral value is a mapping, too."""
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        whole = isinstance(neutral.get(dotted), Mapping) and dotted not in _BY_NAME
        if isinstance(value, Mapping) and value and not whole:
            yield from _leaves(value, neutral, f"{dotted}.")
        else:
            yield dotted, plain(value)


def _is_volatile(key: str) -> bool:
    return within(key, VOLATILE)


def is_place(key: str) -> bool:
    """Whether a key's value is a path."""
    if key.startswith("corpus.instances."):
        key = f"corpus.files.{key.rpartition('.')[2]}"
    return key in _PLACES
