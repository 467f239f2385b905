"""Names that stand for tasks of a user's own, and what older configurations have in their place.

A registry has presets (`mtl.registries`): names, with what an instance of that name has. `TASK~a` and
`TASK~b` are tasks that learn from one half each of what TASK learns from (`mtl.tasks.halves`), with its
settings, files and weight. Every configuration that is read has an instance for each such name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mtl.config.instances import Instance, kind_of, setting_values, stands_for_task, whole_of
from mtl.registries import entry, names
from mtl.tasks.catalogue import KINDS, TASKS
from mtl.tasks.task import Task


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a configuration (`TrainConfig`), with instances for names that stand for them.

    Settings and files of presets that are under their own names, as in older versions, are moved there.
    """
    made = dict(config)
    given = made.get("tasks")
    tasks = [name for name in given if isinstance(name, str)] if isinstance(given, list | tuple) else []
    corpus, balancer, instances = (_group(made, key) for key in ("corpus", "balancer", "instances"))
    files, weights = _group(corpus, "instances"), _group(balancer, "weights")
    for name in names("presets"):
        preset = entry("presets", name)
        settings = _changed(preset["kind"], _group(made, name))
        if isinstance(made.get(name), Mapping):
            del made[name]
        if name in tasks or settings or name in instances:
            instances[name] = {**preset, **settings, **_group(instances, name)}
        if (of_preset := corpus.pop(name, None)) is not None:
            files[name] = of_preset
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
        if whole in weights:
            weights[name] = weights.get(name, weights[whole])
    halved = {whole_of(name) for name in tasks}.difference(tasks)
    weights = {name: weight for name, weight in weights.items() if name not in halved}
    for group, key, value in (
        (corpus, "instances", files), (balancer, "weights", weights), (made, "corpus", corpus),
        (made, "balancer", balancer), (made, "instances", instances),
    ):  # fmt: skip
        if value or isinstance(group.get(key), Mapping):
            group[key] = value
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
    inside = {field.name: getattr(task, field.name) for field in fields(KINDS[kind.kind])}
    return {"kind": kind.kind, "layer": task.layer, **_changed(kind.kind, inside)}


def _odd_layer(instance: Mapping[str, Any]) -> str | None:
    """The layer that files are asked for; `None`: the one that tasks of this kind read in most formats."""
    layer: str | None = instance["layer"]
    return None if layer in KINDS[instance["kind"]].layers[:1] else layer


def tasks_saved(description: Mapping[str, Any]) -> dict[str, Task]:
    """The tasks of a saved model (model.json), perhaps of an older version."""
    saved, instances = description["tasks"], description.get("instances") or {}
    made: dict[str, Task] = {}
    for name, settings in saved.items():
        if name in TASKS or name in instances:
            made[name] = kind_of(name, instances)(**settings)
        elif name in names("presets"):
            made[name] = kind_of(name, {name: entry("presets", name)})(**settings)
        else:
            TASKS[whole_of(name)](**settings)  # which refuses settings that it does not have
            of_half = instance_of(TASKS[whole_of(name)], settings) | {"half": name[-1]}
            made[name] = Instance(**of_half).task(name)
    return made
