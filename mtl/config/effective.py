"""Which keys make two runs different: those that a run uses, that change its result and are not neutral.

A new key must not cause a finished run to be repeated or its folder to be refused, as long as the key's
default does what the program did before. Therefore only values that are not neutral count, in the
fingerprints of a study's jobs as well as between a run's folder and the configuration that resumes it. The
neutral value of a key is its default, or the one in `CHANGED_DEFAULTS`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mtl.config.instances import Instance
from mtl.config.marks import Joint, Place, Used, Volatile, Was, marked
from mtl.config.part import parts
from mtl.config.schema import TASK_NAMES, BalancerConfig, CorpusConfig, Files, TrainConfig, default_rates
from mtl.registries import entry, names
from mtl.tasks.catalogue import KINDS

T = TypeVar("T")

CHANGED_DEFAULTS: dict[str, Any] = {key: was.value for key, was in marked(TrainConfig, Was)}
"""Defaults that were changed: dotted key -> the value that the program had before, as a plain value.

Whoever changes the default of a key marks the field with the default of before (`Was`), and never takes the
mark away again (a second change leaves it as it is). A key that is added with a default that does *not* do
what the program did before gets the mark, too, with the value that does. Then

- runs made with the old default keep their fingerprint, and runs with the new one get another, also after
  the default changes again;
- a configuration file of a run that lacks the key is read as having the old value.

A default that computes the same for everything that could be trained before needs no mark:
`encoder.pooling` and `encoder.word_dropout` are `null`, which is `mean` and 0.2 for all encoders but
decoder-only models, of which there were none.
"""

VOLATILE = tuple(key for key, _ in marked(TrainConfig, Volatile))
"""Keys that do not change what a run computes: a run may be resumed with others."""
_PLACES = frozenset(key for key, _ in marked(TrainConfig, Place))

_ALWAYS = ("tasks",)
"""Keys that count though they have their default: a run is what its tasks make of it."""

_OF_JOINT_RUNS = (*(key for key, _ in marked(TrainConfig, Joint)), *(part.key for part in parts()))
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
        if not name:
            values[group] = getattr(default, group)
        elif group != "corpus":
            inner = values.get(group, getattr(config, group))
            values[group] = dataclasses.replace(inner, **{name: getattr(getattr(default, group), name)})
    of_corpus = [key.removeprefix("corpus.") for key in unused if key.startswith("corpus.")]
    none: dict[str, Any] = dict.fromkeys(of_corpus)
    values["corpus"] = dataclasses.replace(config.corpus, **none)
    used = config.tasks
    balancer: BalancerConfig = values.get("balancer", config.balancer)
    values["balancer"] = dataclasses.replace(balancer, weights=_within(balancer.weights, used))
    corpus: CorpusConfig = values["corpus"]
    values["corpus"] = dataclasses.replace(corpus, instances=_within(corpus.instances, used))
    return dataclasses.replace(config, **values, instances=_within(config.instances, used))


def _within(values: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name in names}


def keys_of_other_tasks(tasks: Sequence[str]) -> tuple[str, ...]:
    """The dotted keys, and groups of keys, that no run of these tasks uses, whatever its other settings.

    Those of presets are among them: a run that trains one has its settings as an instance.
    """
    others = [*(name for name in TASK_NAMES if name not in tasks), *names("presets")]
    of_joint = [] if len(tasks) > 1 else _OF_JOINT_RUNS
    return (*others, *(f"corpus.{name}" for name in others), *of_joint)


def unused_keys(config: TrainConfig) -> tuple[str, ...]:
    """The dotted keys, and groups of keys, whose values make no difference to this run."""
    unused = [key for key, used in marked(TrainConfig, Used) if not used.when(config)]
    return (*unused, *(key for part in parts() for key in part.unused(config)))


def settings_in(config: Mapping[str, Any]) -> TrainConfig:
    """A run's configuration for `unused_keys`; one of an older version may lack keys or have others.

    Keys that it lacks have their neutral values.
    """
    of_run = {key: value for key, value in config.items() if key not in TASK_NAMES}  # these decide nothing
    return _laid_over(reference(), {**of_run, "tasks": tuple(config["tasks"])})


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
    """The configuration whose settings count for nothing: all defaults, the changed ones as they were."""
    config = TrainConfig()
    for key, value in CHANGED_DEFAULTS.items():
        config = _with(config, key, value)
    return config


def _with(config: Any, key: str, value: Any) -> Any:
    """The configuration with another value at a dotted key; without that key, the configuration itself."""
    first, _, rest = key.partition(".")
    if first not in {field.name for field in dataclasses.fields(config)}:
        return config
    inner = getattr(config, first)
    if rest:
        value = _with(inner, rest, value)
    elif isinstance(inner, tuple):
        value = tuple(value)
    return dataclasses.replace(config, **{first: value})


def different_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The dotted keys in which two configurations would compute different things.

    A key that one of them lacks (it was made before there was such a key) has its neutral value there.
    Settings of gates make no difference between runs without masks.
    """
    neutral = neutral_values(old, new)
    unmasked = all(config.get("pruning") == "none" for config in (old, new))
    first, second = (dict(_leaves(with_rates(config), neutral)) for config in (old, new))
    return [
        key
        for key in dict.fromkeys([*first, *second])
        if not _is_volatile(key)
        and not (unmasked and key.startswith("gates."))
        and first.get(key, neutral.get(key)) != second.get(key, neutral.get(key))
    ]


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


def with_rates(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with the learning rates that `null` stands for (`TrainConfig.with_rates`)."""
    given = config.get("optimizer") or {}
    if None not in (given.get("encoder_lr", 0), given.get("decoder_lr", 0)):
        return config
    encoder = (config.get("encoder") or {}).get("name", "minilm")
    rates = default_rates(encoder, (config.get("seq2seq") or {}).get("architecture"))
    filled = {key: rates.get(key) if value is None else value for key, value in given.items()}
    return {**config, "optimizer": filled}


def with_older_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of an older run, with the old defaults of the keys that it lacks."""
    values: dict[str, Any] = dict(config)
    for key in CHANGED_DEFAULTS.keys() & _defaults().keys():
        values = _filled(values, key, CHANGED_DEFAULTS[key])
    return values


def _filled(values: Any, key: str, value: Any) -> Any:
    """The values with one at a dotted key, where they are a mapping that lacks it."""
    first, _, rest = key.partition(".")
    if not isinstance(values, Mapping):
        return values
    inner = _filled(values.get(first) or {}, rest, value) if rest else values.get(first, value)
    return {**values, first: inner}


def plain(value: Any) -> Any:
    """Convert tuples to lists, recursively, as YAML and JSON give them back."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def neutral_values(*configs: Mapping[str, Any]) -> dict[str, Any]:
    """The values that count for nothing, by dotted key; also those of keys that no longer exist.

    Settings of tasks with names of their own are those of the tasks in `configs`.
    """
    files = dataclasses.asdict(Files())
    named = dict.fromkeys(name for config in configs for name in config.get("instances") or ())
    slots = ("files", *TASK_NAMES, *(f"instances.{name}" for name in named))
    in_files = {f"corpus.{slot}.{key}": value for slot in slots for key, value in files.items()}
    settings = {
        f"instances.{name}.{field.name}": None for name in named for field in dataclasses.fields(Instance)
    }
    return {**_of_presets(), **CHANGED_DEFAULTS, **in_files, **settings, **_defaults()}


@functools.cache
def _defaults() -> dict[str, Any]:
    """The values of `reference` by dotted key."""
    return dict(_leaves(dataclasses.asdict(reference()), {}))


@functools.cache
def _of_presets() -> dict[str, Any]:
    """The values of the keys that older versions had under the names of presets (`mtl.config.presets`)."""
    kinds = {name: KINDS[entry("presets", name)["kind"]] for name in names("presets")}
    settings = {
        f"{name}.{key.name}": key.default for name, kind in kinds.items() for key in dataclasses.fields(kind)
    }
    return {**settings, **{f"corpus.{name}": None for name in kinds}}


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
    return any(key == volatile or key.startswith(f"{volatile}.") for volatile in VOLATILE)


def is_place(key: str) -> bool:
    """Whether a key's value is a path."""
    if key.startswith("corpus.instances."):
        key = f"corpus.files.{key.rpartition('.')[2]}"
    return key in _PLACES
