"""Registries: tables from a name to an object that is imported when the name is used.

A package of `mtl` may have a module `entries` with a table `ENTRIES`, which names objects as `module:object`
by registry and name. The room that uses a registry defines what its objects offer. Without such a package
every registry is empty, and configurations do not have the package's keys.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

Registry = Literal["starts", "meters", "mask_sources", "preparations", "setups", "presets", "evidence"]
"""What packages add: `starts` and `meters` to a training (`mtl.training.parts`), `mask_sources`,
`preparations` and `setups` to a study (`mtl.study.extensions`), `presets` to the tasks
(`mtl.config.presets`), `evidence` to reports (`mtl.runs.evidence`)."""


def packages() -> tuple[str, ...]:
    """The names of the packages of `mtl` that have entries."""
    folders = map(Path, sys.modules[__package__].__path__)
    return tuple(sorted(path.parent.name for folder in folders for path in folder.glob("*/entries.py")))


@cache
def _entries() -> Mapping[str, Mapping[str, str]]:
    """By registry and name, where the object is."""
    found: dict[str, dict[str, str]] = {}
    for package in packages():
        for registry, objects in import_module(f"{__package__}.{package}.entries").ENTRIES.items():
            found.setdefault(registry, {}).update(objects)
    return found


def names(registry: Registry) -> tuple[str, ...]:
    """The names of a registry."""
    return tuple(_entries().get(registry, ()))


@cache
def entry(registry: Registry, name: str) -> Any:
    """The object of a name."""
    module, _, attribute = _entries()[registry][name].partition(":")
    return getattr(import_module(module), attribute)


def module_of(registry: Registry, name: str) -> str:
    """The module that an object is imported from."""
    return _entries()[registry][name].partition(":")[0]
