"""Which runs were made in the same way, and notes on the others."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

from mtl.runs.compare.keys import keys_in_words, listed, within
from mtl.runs.compare.settings import Settings, sizes_told_apart
from mtl.runs.folder.content import Content
from mtl.tasks.in_words import counted


def comparable(
    runs: Mapping[str, Settings], free: Collection[str] = (), like: Collection[str] | None = None
) -> tuple[list[str], list[str]]:
    """The runs that were made like most of them, except for keys in `free`; and notes on the others.

    With `like`, only the runs of these names decide what is usual, and the others are compared with them.
    Which runs are kept depends on their settings only, not on names or order.
    """
    if not runs:
        return [], []
    runs = dict(zip(runs, sizes_told_apart(list(runs.values())), strict=True))
    by_identity: dict[str, list[str]] = {}
    for name, settings in runs.items():
        by_identity.setdefault(settings.identity, []).append(name)
    count = Counter({
        identity: len([name for name in names if like is None or name in like])
        for identity, names in by_identity.items()
    })  # fmt: skip
    of = {identity: runs[names[0]] for identity, names in by_identity.items()}

    def support(identity: str) -> tuple[int, str]:
        alike = sum(n for other, n in count.items() if not of[identity].differing(of[other], free))
        return -alike, identity

    order = sorted(of, key=lambda identity: (not count[identity], *support(identity)))
    usual = of[order[0]]
    unlike: dict[str, list[str]] = {}
    for identity in order:
        unlike[identity] = usual.differing(of[identity], free)
        if not unlike[identity]:
            # Runs of other tasks use other keys, in which runs after them must not differ either.
            known = {key: value for key, value in usual.values.items() if not _unknown(value)}
            usual = dataclasses.replace(usual, values={**usual.values, **of[identity].values, **known})
    kept = [name for name, settings in runs.items() if not unlike[settings.identity]]
    others: dict[tuple[str, ...], list[str]] = {}
    for name, settings in runs.items():
        if unlike[settings.identity]:
            others.setdefault(tuple(unlike[settings.identity]), []).append(name)
    shown = next(name for name in kept if like is None or name in like)
    notes = []
    for keys, names in others.items():
        what = names[0] if len(names) == 1 else f"{counted(len(names), 'run')} ({listed(names)})"
        verb = "was" if len(names) == 1 else "were"
        notes.append(f"{what} {verb} trained with another {keys_in_words(keys)} than {shown}: left out")
    return kept, [*notes, *_by_place({name: runs[name] for name in kept}, free)]


def _unknown(value: Any) -> bool:
    return isinstance(value, Content) and value.digest is None


def _by_place(runs: Mapping[str, Settings], free: Collection[str]) -> list[str]:
    """A note on runs that did not record what was in files that they were given; none on a single run."""
    unknown = [
        # An encoder without recorded content is on the hub, and its name says what it is.
        [key for key, value in made.values.items() if _unknown(value) and key != "encoder.name"]
        for made in runs.values()
    ]
    found = [named for keys in unknown if (named := [key for key in keys if not within(key, free)])]
    if len(runs) < 2 or not found:
        return []
    keys = list(dict.fromkeys(chain(*found)))
    return [
        f"{counted(len(found), 'run')} did not record what was in {keys_in_words(keys)}: compared by path"
    ]


def differences(runs: Mapping[str, Settings], free: Collection[str] = ()) -> list[str]:
    """A note that names every key in which these runs differ, for figures that show any runs."""
    keys: dict[str, None] = {}
    distinct = list({made.identity: made for made in sizes_told_apart(list(runs.values()))}.values())
    for place, one in enumerate(distinct):
        for other in distinct[place + 1 :]:
            keys |= dict.fromkeys(one.differing(other, free))
    notes = [f"the {counted(len(runs), 'run')} differ in {', '.join(keys)}"] if keys else []
    return [*notes, *_by_place(runs, free)]
