"""Tasks that a configuration names itself, each of a kind: `tasks: {slots: {kind: spans, files: …}}`.

A mapping of tasks is a short form. It is read as the list of its names (`tasks`), the kind and settings of
each task (`instances`), its files (`corpus.instances`) and its weight (`balancer.weights`). Tasks that come
with the program need no kind: their settings and files have keys of their own.

Features have presets (`mtl.features`): names, with what an instance of that name has. `TASK~a` and
`TASK~b` are tasks that learn from one half each of what TASK learns from (`mtl.tasks.task`), with its
settings, files and weight. Every configuration that is read has an instance for each such name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from mtl.config.keys import Key, KeyFault, at, marks_of
from mtl.errors import did_you_mean
from mtl.features import added
from mtl.tasks.catalogue import KINDS, STRUCTURED, TASKS
from mtl.tasks.in_words import as_text
from mtl.tasks.sentence import FEATS
from mtl.tasks.task import HALVES, Half, OnlyBeside, OnlyWith, Task, instance

T = TypeVar("T")


class Slot(NamedTuple):
    """A field of a dataclass: its type, its default (a value or a `field`) and its help."""

    type: Any
    default: Any
    help: str
    after: str = ""
    """The field that it comes after; empty: it comes last."""


def slot_per_task(slot: Callable[[type[Task]], Slot]) -> Callable[[type[T]], type[T]]:
    """Give a class, before `dataclass` reads it, a field per task, named as the task."""
    return with_slots({name: slot(task) for name, task in TASKS.items()})


def with_slots(slots: Mapping[str, Slot]) -> Callable[[type[T]], type[T]]:
    """Give a class, before `dataclass` reads it, further fields, whose help is a mark on their types."""

    def add(cls: type[T]) -> type[T]:
        for name, (hint, default, text, after) in slots.items():
            cls.__annotations__[name] = Annotated[hint, text]
            if after:
                order = [key for key in cls.__annotations__ if key != name]
                order.insert(order.index(after) + 1, name)
                cls.__annotations__ = {key: cls.__annotations__[key] for key in order}
            setattr(cls, name, default)
        return cls

    return add


if TYPE_CHECKING:
    KindName = str
else:
    KindName = Literal[tuple(KINDS)]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(~[ab])?")
_FEATURE = re.compile(r"[^\s|=.]+")
_OF_ANY_KIND = ("kind", "layer", "feature", "half")
_ON_WORDS = tuple(task.name for task in STRUCTURED)
_TAKEN = frozenset(
    {
        *("shared", "pretrained", "STL", "MTL", "pairs", "joint", *added(lambda feature: feature.setups)),
        *("self", "encoder", "decoder", "cross"),
    }
)
"""Words that name masks, setups and kinds of attention."""
BY_TASK = ("balancer.weights", "optimizer.decoder_lr", "gates.penalty", "gates.target_open", "gates.lr")
"""Keys that may have a number for each task."""
PRESETS = added(lambda feature: feature.presets)
"""The settings of tasks that features add by name, as `tasks: {NAME: …}` would give them."""


def _settings() -> dict[str, Slot]:
    """A slot for each setting of any kind; without a value the kind's own default holds."""
    slots: dict[str, Slot] = {}
    choices: dict[str, tuple[Any, ...]] = {}
    for kind in KINDS.values():
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            hint = hints[field.name]
            if get_origin(hint) is Literal:  # kinds have choices of their own under one name
                choices[field.name] = (*choices.get(field.name, ()), *get_args(hint))
                hint = Literal[choices[field.name]]
            slots[field.name] = Slot(hint | None, None, f"As in a task of kind {kind.kind}.")
    return slots


@dataclass(frozen=True)
@with_slots(_settings())
class Instance:
    """A task of a kind, with the settings of its kind; `null`: the kind's default."""

    kind: KindName
    """What the task predicts: a label per word, spans, a tree, …, or a class or number of the sentence."""
    layer: str | None = None
    """The layer of annotation that it learns and predicts; `null`: the one with the task's name."""
    feature: str | None = None
    """Of kind tags: the feature that it learns and predicts, of bundles such as `Case=Nom|Number=Sing` in the
    layer (`null`: feats). The prediction is a layer `feats.Case`."""
    half: Half | None = None
    """Learn from one half of the training sentences, which a hash of their ids chooses; `null`: from all. Dev
    and test are not halved. `TASK~a` in `tasks` is short for a task that is as TASK but for its half."""

    def settings(self) -> dict[str, Any]:
        """The settings of its kind that have a value."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {key: value for key, value in given.items() if value is not None and key not in _OF_ANY_KIND}

    def task(self, name: str) -> Task:
        """The task of this name."""
        layer = _layer_of(name, self.layer, self.feature)
        settings = self.settings()
        kind = KINDS[self.kind].with_settings(settings)
        return instance(name, kind, layer, self.half)(**settings)


def unused_settings(name: str, config: Any) -> tuple[str, ...]:
    """The settings of a task of a configuration that make no difference beside the others (`OnlyWith`,
    `OnlyBeside`).

    `config` is a `TrainConfig`; its instances may be plain values.
    """
    made = config.instances.get(name, getattr(config, name, None))
    given = made if isinstance(made, Mapping) else vars(made)
    kind = kind_of(name, config.instances)

    def value(setting: str) -> Any:
        found = given.get(setting)
        return getattr(kind, setting) if found is None else found

    def idle(mark: Any) -> bool:
        if isinstance(mark, OnlyWith):
            return value(mark.setting) not in mark.values
        return isinstance(mark, OnlyBeside) and not any(map(value, mark.settings))

    return tuple(setting for setting, found in marks_of(kind).items() if any(map(idle, found)))


def _layer_of(name: str, layer: str | None, feature: str | None) -> str:
    return layer or name if feature is None else f"{layer or FEATS}.{feature}"


def halves_of(task: str) -> tuple[str, ...]:
    """The names of the tasks that learn from one half each."""
    return tuple(f"{task}~{half}" for half in HALVES)


def whole_of(name: str) -> str:
    """The task that a name such as `dep~a` is half of; any other name as it is."""
    whole, _, half = name.rpartition("~")
    return whole if half in HALVES else name


def stands_for_task(name: str, instances: Collection[str]) -> bool:
    """Whether a name is that of a preset, or of half of a task on words or of a user's own."""
    return name in PRESETS or (whole_of(name) != name and whole_of(name) in (*_ON_WORDS, *instances))


def kind_of(name: str, instances: Mapping[str, Any] | None) -> type[Task]:
    """The class of the task of a name; `instances` are its configuration's, also as plain values."""
    made = (instances or {}).get(name)
    if made is None:
        return TASKS[name]
    given = made if isinstance(made, Mapping) else vars(made)
    layer = _layer_of(name, given.get("layer"), given.get("feature"))
    kind = KINDS[given["kind"]].with_settings(given)
    return instance(name, kind, layer, given.get("half"))


def own_model_of(tasks: Mapping[str, Task] | Mapping[str, type[Task]]) -> str | None:
    """The kind of model that the tasks have in place of an encoder (`Task.own_model`); `None`: an encoder."""
    return next((task.own_model for task in tasks.values() if task.own_model), None)


def architecture_in(config: Mapping[str, Any]) -> str | None:
    """The architecture of a model from scratch that plain values of a configuration name; `None`: there is no
    such model."""
    groups = [config.get(name) or {} for name in added(lambda feature: feature.own_models)]
    return next((group["architecture"] for group in groups if group.get("architecture")), None)


def setting_values(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a task that a configuration of plain values has; others have their defaults."""
    given = (config.get("instances") or {}).get(name) or config.get(name) or {}
    return {key: value for key, value in given.items() if value is not None}


def kinds_in(config: Mapping[str, Any]) -> dict[str, type[Task]]:
    """The class of each task of a configuration of plain values, by its name."""
    return {name: kind_of(name, config.get("instances")) for name in config["tasks"]}


def only_compared(kinds: Iterable[type[Task]]) -> bool:
    """Whether one of the tasks is there to compare others with: half of a task, or one with drawn labels."""
    return any(kind.drawn or kind.half for kind in kinds)


def on_words(kinds: Iterable[type[Task]]) -> bool:
    """Whether some of the tasks label words, which is what heads are probed for."""
    return any(kind.layers and kind.loss_unit == "word" for kind in kinds)


def named_scores(configs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The score that stands for each task with a name of its own in configurations of plain values."""
    kinds = {name: kind for config in configs for name, kind in kinds_in(config).items() if kind.standard}
    return {name: kinds[name].score for name in sorted(kinds)}


def can_be_named(name: str) -> bool:
    """Whether a task of a user's own can have this name."""
    return bool(_NAME.fullmatch(name)) and name not in (*_TAKEN, *TASKS)


def refuse_instances(instances: Mapping[str, Instance]) -> None:
    """Raise `KeyFault` for the first thing that is wrong with the tasks that a configuration names."""
    for name, made in instances.items():
        key, kind = f"instances.{name}", KINDS[made.kind]
        known = {field.name for field in fields(kind)}
        odd = next((setting for setting in made.settings() if setting not in known), None)
        if not _NAME.fullmatch(name) or name in _TAKEN:
            raise at(key, f": '{name}' cannot name a task: use another name, of letters and digits")
        if name in TASKS:
            said = f"{key}: {name} comes with mtl: leave kind and layer out, or use another name"
            raise KeyFault(f"{key}.kind", said)
        if odd is not None:
            has = ", ".join(sorted({*_OF_ANY_KIND, *known}))
            raise at(f"{key}.{odd}", f": a task of kind {made.kind} has no such setting ({has})")
        hints = get_type_hints(kind)
        for setting, value in made.settings().items():
            choices = get_args(hints[setting])
            if get_origin(hints[setting]) is Literal and value not in choices:
                raise at(f"{key}.{setting}", f": unknown '{value}': choose from {', '.join(choices)}")
        if made.layer is not None and not kind.layers:
            raise at(f"{key}.layer", f": a task of kind {made.kind} reads the words alone: leave it out")
        if made.layer == "":
            raise at(f"{key}.layer", f": '{made.layer}' is no layer of annotation")
        if made.feature is not None and not kind.of_features:
            raise at(f"{key}.feature", f": features are learned by tasks of kind tags, not {made.kind}")
        if made.feature is not None and not _FEATURE.fullmatch(made.feature):
            raise at(f"{key}.feature", f": '{made.feature}' is no name of a feature, such as Case")


def without_short_form(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration (`TrainConfig`) without the short form of `tasks`.

    Raises `InputError` for what is no mapping of settings.
    """
    tasks = values.get("tasks")
    if not isinstance(tasks, Mapping):
        return dict(values)
    made: dict[str, Any] = {**values, "tasks": list(tasks)}
    for name, given in tasks.items():
        if given is not None and not isinstance(given, Mapping):
            raise at(f"tasks.{name}", f" holds other keys, and cannot be '{as_text(given)}'")
        for _, path, value in _places(name, dict(given or {}), tasks):
            _put(made, path, value)
        if isinstance(given, Mapping) and "weight" in given and made["balancer"].get("name") != "fixed":
            used = f"balancer.name={made['balancer']['name']}"
            raise at(f"tasks.{name}.weight", f" is for balancer.name=fixed, and {used}: leave one out")
    return made


def in_place(key: str) -> str:
    """The dotted key that a key of the short form, `tasks.NAME.KEY`, stands for; any other key as it is."""
    first, *rest = key.split(".")
    if first in PRESETS and rest:
        return f"instances.{key}"
    if first != "tasks" or len(rest) < 2:
        return key
    name, setting, *below = rest
    given = {setting: None} if name in TASKS else {"kind": None, setting: None}
    path = next(path for key, path, _ in _places(name, given, ()) if key == setting)
    return ".".join((*path, *below))


def _places(
    name: str, given: dict[str, Any], instances: Collection[str]
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Each key of a task in the short form with its place in the configuration, and its value."""
    named = name not in TASKS or "kind" in given
    if named and "kind" not in given and not stands_for_task(name, instances):
        kinds = f"{' or '.join(KINDS)}{did_you_mean(name, TASKS, '')}"
        raise at(f"tasks.{name}", f" has no kind: add kind: {kinds}")
    settings = ("instances", name) if named else (name,)
    files = ("corpus", "instances", name) if named else ("corpus", name)
    for key, value in given.items():
        if key == "files":
            yield key, files, value
        elif key == "columns" or (key == "layer" and "files" in given):
            yield key, (*files, key), value
        elif key == "weight":
            yield key, ("balancer", "weights", Key(name).placed(getattr(key, "place", ""))), value
        else:
            yield key, (*settings, key), value
    if "weight" in given:
        yield "weight", ("balancer", "name"), "fixed"


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set the value at a path, over a mapping that is there; what the file says of the balancer stays."""
    *above, last = path
    for name in above:
        inner = values.get(name)
        values[name] = dict(inner) if isinstance(inner, Mapping) else {}
        values = values[name]
    if isinstance(value, Mapping) and isinstance(values.get(last), Mapping):
        value = {**values[last], **value}
    if path[0] != "balancer" or last not in values:
        values[last] = value


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a configuration (`TrainConfig`), with instances for names that stand for them."""
    made = dict(config)
    given = made.get("tasks")
    tasks = [name for name in given if isinstance(name, str)] if isinstance(given, list | tuple) else []
    corpus, instances = (_group(made, key) for key in ("corpus", "instances"))
    files = _group(corpus, "instances")
    halves: dict[str, str] = {}
    for name in PRESETS:
        if name in tasks or name in instances:
            instances[name] = {**PRESETS[name], **_group(instances, name)}
    for name in tasks:
        whole = whole_of(name)
        own = _group(instances, name)
        if whole == name or "kind" in own or not stands_for_task(name, instances):
            continue
        instances[name] = {**_half(name, made, instances), **own}
        of_whole = _group(corpus, whole) or _group(files, whole)
        if of_whole:
            odd = _odd_layer(instances[name]) if whole in TASKS else None
            files[name] = {**of_whole, "layer": of_whole.get("layer") or odd}
        halves[name] = whole
    for group, key, value in (
        (corpus, "instances", files), (made, "corpus", corpus), (made, "instances", instances)
    ):  # fmt: skip
        if value or isinstance(group.get(key), Mapping):
            group[key] = value
    halved = {whole_of(name) for name in tasks}.difference(tasks)
    for name, key in (dotted.split(".") for dotted in BY_TASK):
        group = _group(made, name)
        if isinstance(group.get(key), Mapping):
            of_halves = {half: group[key][whole] for half, whole in halves.items() if whole in group[key]}
            numbers = {**of_halves, **group[key]}
            made[name] = {**group, key: {task: numbers[task] for task in numbers if task not in halved}}
    return made


def _group(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A copy of the keys of a group; none where the value is no group, which its reader refuses."""
    group = values.get(key)
    return dict(group) if isinstance(group, Mapping) else {}


def _changed(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not the defaults of a kind."""
    defaults = {field.name: field.default for field in fields(KINDS[kind])}
    return {key: value for key, value in settings.items() if key not in defaults or value != defaults[key]}


def _half(name: str, config: Mapping[str, Any], instances: Mapping[str, Any]) -> dict[str, Any]:
    """The instance of half of a task of this configuration."""
    whole, half = whole_of(name), name[-1]
    if whole in instances:
        given = instances[whole]
        return {
            **given,
            "layer": given.get("layer") or (None if given.get("feature") else whole),
            "half": half,
        }
    return instance_of(TASKS[whole], setting_values(whole, config)) | {"half": half}


def instance_of(kind: type[Task], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The instance that does what a task of the program does, as plain values."""
    known = {field.name for field in fields(kind)}
    task = kind(**{key: value for key, value in settings.items() if key in known})
    inside = {
        field.name: getattr(task, field.name)
        for field in fields(KINDS[kind.kind])
        if hasattr(task, field.name)
    }
    return {"kind": kind.kind, "layer": task.layer, **_changed(kind.kind, inside)}


def _odd_layer(instance: Mapping[str, Any]) -> str | None:
    """The layer that files are asked for; `None`: the one that tasks of this kind read in most formats."""
    layer: str | None = instance["layer"]
    return None if layer in KINDS[instance["kind"]].layers[:1] else layer


def tasks_saved(description: Mapping[str, Any]) -> dict[str, Task]:
    """The tasks of a saved model (model.json)."""
    instances = description.get("instances") or {}
    made = {
        name: {name: {**instances[name], **settings}} if name in instances else None
        for name, settings in description["tasks"].items()
    }
    return {name: kind_of(name, made[name])(**settings) for name, settings in description["tasks"].items()}
