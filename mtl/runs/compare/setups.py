"""Which runs are one setup: those that differ only in seeds; what tables over several runs leave out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import polars as pl

from mtl.config.keys import within
from mtl.errors import InputError
from mtl.probes.report.data import Setup
from mtl.runs.compare.settings import (
    MASKS,
    MEASURING,
    UNUSED,
    Settings,
    settings_of,
    sizes_told_apart,
)
from mtl.runs.folder.run import Content
from mtl.tasks.catalogue import in_order_of_catalogue

Variant = tuple[str, ...]
"""What a setup's name says besides the tasks."""
_VALUES_IN_WORDS = {
    ("max_epochs", "1"): "1 epoch",
    ("heads_kept", "1"): "1 head kept",
    ("heads_kept", "None"): "heads kept not recorded",
    ("gates.scope", "per_task"): "a mask per task",
    ("gates.scope", "shared"): "one mask",
    ("gates.target_open", "None"): "no target",
    ("gates.penalty", "None"): "no penalty",
}
_KEYS_IN_WORDS = {
    "max_epochs": "{} epochs",
    "heads_kept": "{} heads kept",
    "gates.penalty": "penalty {}",
    "gates.target_open": "target {}",
    "gates.masks": "masks {}",
    "batch.sentences": "{} sentences a batch",
    "optimizer.encoder_lr": "encoder rate {}",
    "optimizer.decoder_lr": "decoder rate {}",
}
_BY_PART_IN_WORDS = {
    "gates.penalty": "{} penalty {}",
    "gates.target_open": "{} target {}",
    "gates.lr": "{} gates lr {}",
    "optimizer.decoder_lr": "{} decoder rate {}",
}
"""Keys that may have one value for each kind of attention, or for each task."""
_OF_NAME = ("tasks", "pruning", "derivation")
"""The keys that a setup's name says in a way of its own."""


def setups_of(runs: Sequence[Settings | Mapping[str, Any]]) -> list[Setup]:
    """The setup of each run, given its settings or its configuration.

    `STL` stands for all single-task runs, `MTL-n` for those of n tasks, with the tasks' names if there are
    several sets of n. After commas follow pruning and, in words, every key in which runs differ. If runs of
    one number of tasks differ in a key, the names of all setups of that number say it; if only runs of
    different numbers do, all names say it. So two runs have one setup only if they have the
    same tasks, or are of one task each, and nothing that they both use differs but the seed. Of a run that
    was cut to several numbers of heads, each number is a setup.
    """
    settings = [run if isinstance(run, Settings) else settings_of(run) for run in runs]
    settings = told_apart(sizes_told_apart(settings))
    sets = {size: {one.tasks for one in settings if len(one.tasks) == size} for size in map(_size, settings)}
    named = _named(settings)
    names = [_name(one, sets, named) for one in settings]
    for size, keys in _unnamed(settings, names).items():
        named[size] += keys
    names = [_name(one, sets, named) for one in settings]
    groups: dict[tuple[str, Variant], list[Settings]] = {}
    for one, name in zip(settings, names, strict=True):
        groups.setdefault(name, []).append(one)
    merged = {name: _merged(of_name) for name, of_name in groups.items()}
    single = {variant: one for (base, variant), one in merged.items() if base == "STL"}
    setups = {name: _setup(name, merged[name], single) for name in merged}
    return [setups[name] for name in names]


def _name(
    settings: Settings, sets: Mapping[int, set[tuple[str, ...]]], named: Mapping[int, Sequence[str]]
) -> tuple[str, Variant]:
    """The name of a run's setup: the number of tasks, and the rest."""
    size = len(settings.tasks)
    tasks = f" {'+'.join(settings.tasks)}" if len(sets[size]) > 1 else ""
    keys = [key for key in named[size] if settings.values.get(key, UNUSED) is not UNUSED]
    words = dict.fromkeys(word for key in keys for word in words_of(key, settings.values[key]))
    variant = tuple(word for word in (_masks(settings), *words) if word)
    return "STL" if size == 1 else f"MTL-{size}{tasks}", variant


def _unnamed(
    settings: Sequence[Settings], names: Sequence[tuple[str, Variant]]
) -> dict[int, dict[str, None]]:
    """By number of tasks, the keys in which runs of one name differ, such as those that only one uses."""
    alike: dict[tuple[str, Variant], dict[str, Settings]] = {}
    for one, name in zip(settings, names, strict=True):
        alike.setdefault(name, {})[one.identity] = one
    keys: dict[int, dict[str, None]] = {}
    for runs in alike.values():
        for one, other in combinations(runs.values(), 2):
            keys.setdefault(_size(one), {}).update(dict.fromkeys(one.differing(other)))
    return keys


def told_apart(settings: Sequence[Settings]) -> list[Settings]:
    """The settings, with contents identified by their places if possible, and each content named in one way.

    A content without a digest gets that of the only other one at its place. Equal contents are named by the
    first of their places; if different contents have one place, their names have their digests, too.
    """
    known: dict[tuple[str, str], set[str]] = {}
    for _, key, content in _contents(settings):
        known.setdefault((key, content.place), set()).update(filter(None, [content.digest]))
    found = [
        (
            place,
            key,
            replace(content, digest=min(known[key, content.place]))
            if content.digest is None and len(known[key, content.place]) == 1
            else content,
        )
        for place, key, content in _contents(settings)
    ]
    first: dict[tuple[str, str], str] = {}
    for _, key, content in found:
        name = key, repr(content)
        first[name] = min(first.get(name, content.place), content.place)
    shared = Counter((key, place) for (key, _), place in first.items())
    values = [dict(one.values) for one in settings]
    for number, key, content in found:
        place = first[key, repr(content)]
        digest = f" {content.digest[:8]}" if content.digest and shared[key, place] > 1 else ""
        values[number][key] = replace(content, place=f"{place}{digest}")
    return [replace(one, values=of) for one, of in zip(settings, values, strict=True)]


def _contents(settings: Sequence[Settings]) -> Iterator[tuple[int, str, Content]]:
    for number, one in enumerate(settings):
        for key, value in one.values.items():
            if isinstance(value, Content):
                yield number, key, value


def _size(settings: Settings) -> int:
    return len(settings.tasks)


def _merged(runs: Sequence[Settings]) -> Settings:
    """The settings of a setup, with the tasks and values of all its runs."""
    values = {key: value for run in runs for key, value in run.values.items()}
    tasks = in_order_of_catalogue({task for run in runs for task in run.tasks})
    return replace(runs[0], values=values, tasks=tasks)


def _setup(name: tuple[str, Variant], settings: Settings, single: Mapping[Variant, Settings]) -> Setup:
    """A setup, with the single-task setup to compare it with and the keys in which the two differ."""
    base, variant = name
    baseline = _baseline(base, variant, settings, single)
    return Setup(
        name=", ".join([base, *variant]),
        baseline=None if baseline is None else ", ".join(["STL", *baseline]),
        single=base == "STL",
        tasks=1 if base == "STL" else len(settings.tasks),
        pruning=", ".join(filter(None, (settings.pruning, settings.derivation))),
        trained=settings.tasks,
        compared=settings.compared,
        variant=", ".join(variant),
        unlike=() if baseline is None else tuple(settings.differing(single[baseline], MASKS)),
    )


def _masks(settings: Settings) -> str:
    """How masks were learned, and how the run was derived, as setups name it."""
    pruned = settings.pruning if settings.pruning != "none" or settings.derivation else ""
    return ", ".join(filter(None, (pruned, settings.derivation)))


def words_of(key: str, value: Any) -> list[str]:
    """A setting in words: one text, or one for each kind of attention or task with a number of its own."""
    if isinstance(value, Mapping) and key in _BY_PART_IN_WORDS:
        return [setting_in_words(f"{key}.{kind}", str(number)) for kind, number in value.items()]
    return [setting_in_words(key, _text(value))]


def _text(value: Any) -> str:
    if isinstance(value, Content):
        return value.place
    if isinstance(value, Mapping):
        return " ".join(f"{key} {inner}" for key, inner in sorted(value.items()))
    return str(value)


def _named(settings: Sequence[Settings]) -> dict[int, list[str]]:
    """By number of tasks, the keys that the names of their setups must say."""
    by_task = frozenset[str]().union(*(one.by_task for one in settings))
    settings = [replace(one, by_task=by_task) for one in settings]
    keys = dict.fromkeys(key for one in settings for key, value in one.values.items() if value is not UNUSED)
    named: dict[int, list[str]] = {size: [] for size in map(_size, settings)}
    for key in keys:
        if key.partition(".")[0] in _OF_NAME:
            continue
        values: dict[Hashable, dict[int, set[str]]] = {}
        for one in settings:
            if one.values.get(key, UNUSED) is not UNUSED:
                by_size = values.setdefault(_among(key, one), {})
                by_size.setdefault(len(one.tasks), set()).add(repr(one.values[key]))
            elif key in _BY_PART_IN_WORDS and one.pruning != "none":
                # Penalty and target may each be for other kinds of attention.
                by_size = values.setdefault(_among(key, one), {})
                by_size.setdefault(len(one.tasks), set()).add("")
        varying = {size for of in values.values() for size, found in of.items() if len(found) > 1}
        if not varying and any(len(set().union(*of.values())) > 1 for of in values.values()):
            varying = {size for of in values.values() for size in of}
        for size in varying:
            named[size].append(key)
    return named


def _among(key: str, settings: Settings) -> Hashable:
    """A key is compared only among runs with the same value here: keys of masks by how masks were learned,
    those that a study sets by task and masks (`by_task`) by these."""
    if within(key, settings.by_task):
        return settings.suited
    if key in MEASURING:
        return settings.tasks, settings.pruning
    if key.startswith("gates."):
        return settings.pruning
    return None


def setting_in_words(key: str, value: str) -> str:
    """A setting as legends and tables print it; two settings never have the same words (9.0 is 9)."""
    if (key, value) in _VALUES_IN_WORDS:
        return _VALUES_IN_WORDS[key, value]
    value = re.sub(r"^(-?\d+)\.0$", r"\1", value)
    if key in _KEYS_IN_WORDS:
        return _KEYS_IN_WORDS[key].format(value)
    above, _, kind = key.rpartition(".")
    if above in _BY_PART_IN_WORDS:
        return _BY_PART_IN_WORDS[above].format(kind, value)
    words = re.sub(r"[._]", " ", key)
    return {"True": words, "False": f"without {words}", "None": f"no {words}"}.get(value, f"{words} {value}")


def _baseline(
    base: str, variant: Variant, settings: Settings, single: Mapping[Variant, Settings]
) -> Variant | None:
    """The variant of the single-task setup to compare with: for a joint setup, the most similar one; for
    single-task setups, the plainest.

    `None` for the plainest one itself, and if there is no single-task setup.
    """
    if not single:
        return None
    plainest = min(single, key=_plainness)
    if base == "STL":
        return None if variant == plainest else plainest

    def unlike(other: Variant) -> tuple[bool, int, object]:
        differing = settings.differing(single[other])
        return settings.pruning != single[other].pruning, len(differing), _plainness(other)

    return min(single, key=unlike)


def _plainness(words: Variant) -> tuple[int, list[list[str | int]]]:
    """A key that sorts fewer words first, and numbers in them by size."""
    parts = [re.split(r"(\d+)", word) for word in words]
    return len(words), [[int(part) if part.isdigit() else part for part in word] for word in parts]


MOST_NOTES = 4
"""The largest number of notes that an error repeats; it counts the others."""


def nothing_left(notes: Sequence[str], fix: str) -> InputError:
    """The error if every run was left out: the first notes, the number of further ones, and the fix."""
    more = [f"{len(notes) - MOST_NOTES} more like these"] if len(notes) > MOST_NOTES else []
    return InputError("; ".join([*notes[:MOST_NOTES], *more, fix]))


def chosen_of(known: Sequence[str], tasks: Sequence[str], run: str, notes: list[str]) -> list[str]:
    """The chosen ones (`tasks`; empty: all) among the tasks that a run's table has; notes those it lacks."""
    absent = [task for task in tasks if task not in known]
    if absent:
        notes.append(f"{run} has nothing on {', '.join(absent)}, only on {', '.join(known)}")
    return [task for task in known if task in tasks or not tasks]


def missing_seeds(table: pl.DataFrame, *by: str) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    """The groups, by the values of the columns `by`, that lack seeds of other groups, with those seeds.

    Only groups that share a seed, directly or through further groups, are compared: a group with seeds of its
    own, such as the runs for claims, lacks none of the others.
    """
    groups = table.group_by(by, maintain_order=True).agg(pl.col("seed").unique())
    linked: list[set[int]] = []
    for present in groups["seed"]:
        joined = set(present).union(*(seeds for seeds in linked if seeds & set(present)))
        linked = [seeds for seeds in linked if not seeds & joined] + [joined]
    missing = []
    for *names, present in groups.iter_rows():
        lacking = next(seeds for seeds in linked if seeds >= set(present)).difference(present)
        if lacking:
            missing.append((tuple(names), tuple(sorted(lacking))))
    return missing
