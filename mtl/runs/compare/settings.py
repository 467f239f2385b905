"""What a run is and how it was made, by its configuration; whether two runs can be compared follows."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mtl.config.effective import (
    VOLATILE,
    keys_of_other_tasks,
    neutral_values,
    reference,
    settings_in,
    unused_keys,
)
from mtl.config.part import files_of_parts, meters, starts
from mtl.config.random_labels import DRAWN
from mtl.config.schema import Files
from mtl.errors import InputError, counted
from mtl.runs.folder.content import Content, digest_of, draw_of, drawn_content, place_now
from mtl.runs.folder.run import Run, derivation_in
from mtl.tasks.catalogue import TASKS
from mtl.tasks.order import in_order_of_catalogue
from mtl.tasks.variants import task_of, tasks_of

OF_ONE_RUN = ("name", "seed", *(f"{name}.draw" for name in DRAWN), *VOLATILE)
"""Keys in which runs that are repetitions of each other may differ."""
MEASURING = (*(meter.key for meter in meters()), "importance_every", "importance_sentences")
"""Keys of what is measured while training goes on; they do not change what is trained."""
MASKS = ("pruning", "gates")
"""What a comparison declares to be free if it compares runs whatever their masks."""
_SOURCE_OF_MASKS = "gates.init_from"
"""The key for the run without masks that masks are learned on, where they are learned after training."""
ORIGINS = ("init_from", _SOURCE_OF_MASKS, "gates.masks", *files_of_parts())
"""The keys of what other runs made; a run's status records what it was when the run started."""
GONE = "a run that is gone"
NAMED = 4
"""Runs that a note names before it counts the others."""


class Unused(enum.Enum):
    """The value of a key that a run could use and does not, because of its other settings."""

    UNUSED = "unused"

    def __repr__(self) -> str:
        return "unused"


UNUSED = Unused.UNUSED


@dataclass(frozen=True)
class Settings:
    """A run's configuration as typed values."""

    tasks: tuple[str, ...]
    """In the catalogue's order."""
    seed: int
    draw: int | None
    """The draw of its random labels; `None` without any."""
    pruning: str
    derivation: str
    """How the run was made from another (`Run.derivation`); empty for a run that was trained."""
    values: Mapping[str, Any]
    """By dotted key everything that made the run, completed by neutral values.

    Keys of other tasks are left out; keys that the run could use and does not have the value `UNUSED`.
    """

    @cached_property
    def identity(self) -> str:
        """Equal for runs that differ in their seeds and draws only; independent of the order of keys."""
        return repr((self.tasks, sorted((key, repr(value)) for key, value in self.values.items())))

    @property
    def plain(self) -> bool:
        """Whether it was trained from the start and without masks."""
        return self.pruning == "none" and not self.derivation

    @cached_property
    def set_keys(self) -> tuple[str, ...]:
        """The keys that the run uses, and whose value is not neutral."""
        neutral = _neutral()
        return tuple(
            key
            for key, value in self.values.items()
            if value is not UNUSED
            and (value.place if isinstance(value, Content) else value) not in (neutral.get(key), "", "none")
        )

    def differing(self, other: Settings, free: Collection[str] = ()) -> list[str]:
        """The keys in which runs differ that both could use, without those that change no result.

        Keys that both use come before those that only one uses. `free`: keys, or groups of keys, that may
        differ, since the comparison is about them. The sets of tasks may always differ, and with them the
        keys of other tasks: every comparison says of which tasks it is.
        """
        left_out = (*free, *MEASURING)
        keys = [
            key
            for key, value in self.values.items()
            if key in other.values and _differ(value, other.values[key]) and not _within(key, left_out)
        ]
        return sorted(keys, key=lambda key: UNUSED in (self.values[key], other.values[key]))


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, Content) and isinstance(other, Content):
        return one.differs(other)
    return bool(one != other)


def settings_of(
    config: Mapping[str, Any], status: Mapping[str, Any] | None = None, folder: Path | None = None
) -> Settings:
    """The settings of a run with this configuration, which may be of an older program or lack keys.

    `status` is that of the run, which records what lay at the places that the configuration names; without
    it, only the places are known. `folder` is where the run is now, to find what was moved with it.
    """
    status = status or {}
    tasks = in_order_of_catalogue(config["tasks"])
    pruning = str(config.get("pruning", "none"))
    typed = settings_in(config)
    others = {*OF_ONE_RUN, "tasks", "corpus", "init_from", *keys_of_other_tasks(tasks)}
    unused = unused_keys(typed)
    neutral = _neutral()
    given = {**neutral, **dict(_leaves(config, neutral))}
    values: dict[str, Any] = {
        key: UNUSED if _within(key, unused) else value
        for key, value in given.items()
        if not _within(key, others)
    }
    weights = values.pop("balancer.weights", None) or {}
    for name in tasks:
        weight = 1.0 if weights is UNUSED else weights.get(name, weights.get(task_of(name), 1.0))
        values[f"balancer.weights.{name}"] = UNUSED if weights is UNUSED else float(weight)
    if len(tasks) == 1:
        values = _alone(values, tasks[0])
    values |= _of_source(config, values, folder)
    values["encoder.name"] = Content(str(values["encoder.name"]), status.get("encoder_fingerprint"))
    values |= _corpora(config, tasks, status)
    if "origins" in status:
        values |= {key: found and Content(*found) for key, found in status["origins"].items()}
    else:
        values |= _origins(config, pruning, values, status, folder)
    if pruning not in _AFTER_TRAINING:
        values[_SOURCE_OF_MASKS] = UNUSED
    derivation = derivation_in(status)
    values |= {"pruning": pruning, "derivation": derivation}
    drawn = (int(given[f"{name}.draw"]) for name in DRAWN if name in tasks_of(tasks))
    draw = next(drawn, None)
    return Settings(tasks, int(config["seed"]), draw, pruning, derivation, values)


def _of_source(config: Mapping[str, Any], values: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """How the run that training starts from reads its encoder, as far as it can be found now.

    Where it has `null`, the run that starts from it records what that stands for, and is no other for it.
    """
    given = [key for key in _READING if values[key] is not None]
    if config.get("init_from") is None or not given:
        return {}
    with contextlib.suppress(*_UNREADABLE):
        source = settings_of_run(Run.open(place_now(config["init_from"], config, folder))).values
        return {key: source[key] for key in given}
    return {}


_READING = ("encoder.pooling", "encoder.word_dropout")


def _alone(values: Mapping[str, Any], task: str) -> dict[str, Any]:
    """The settings of a run of one task, which has no other task to weigh its own against.

    Its balancer counts only where it scales the one loss, and is then compared with other runs of the task,
    too.
    """
    name, weight = values["balancer.name"], values[f"balancer.weights.{task}"]
    scales = name == "uncertainty" or weight not in (1.0, UNUSED)
    kept = {key: value for key, value in values.items() if scales or not _within(key, ("balancer",))}
    return {**kept, f"balancer.alone.{task}": [name, weight] if scales else None}


def settings_of_run(run: Run) -> Settings:
    """The settings of a run's folder."""
    return settings_of(run.config(), run.status(), run.folder)


def recorded_origins(config: Mapping[str, Any]) -> dict[str, tuple[str, str | None] | None]:
    """What is at the places of other runs and of what they made, for the status of a run that starts."""
    values = settings_of(config).values
    found = {key: values[key] for key in ORIGINS if values.get(key, UNUSED) is not UNUSED}
    return {key: (value.place, value.digest) if value else None for key, value in found.items()}


def comparable(
    runs: Mapping[str, Settings], free: Collection[str] = (), like: Collection[str] | None = None
) -> tuple[list[str], list[str]]:
    """The runs that were made like most of them, but for keys in `free`; and notes on the others.

    With `like` only the runs of these names decide what most are, and the others are compared with them.
    Which are kept depends on the settings alone: neither on names nor on the order.
    """
    if not runs:
        return [], []
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
        listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        what = listed if len(names) == 1 else f"{counted(len(names), 'run')} ({listed})"
        verb = "was" if len(names) == 1 else "were"
        notes.append(f"{what} {verb} trained with another {keys_in_words(keys)} than {shown}: left out")
    return kept, [*notes, *_by_place({name: runs[name] for name in kept}, free)]


def _unknown(value: Any) -> bool:
    return isinstance(value, Content) and value.digest is None


def _by_place(runs: Mapping[str, Settings], free: Collection[str]) -> list[str]:
    """A note on runs of several that did not record what they were given in files."""
    found = {
        name: keys
        for name, settings in runs.items()
        if (
            keys := [key for key, value in settings.values.items() if _recorded_late(key) and _unknown(value)]
        )
        and not all(_within(key, free) for key in keys)
    }
    if len(runs) < 2 or not found:
        return []
    keys = list(dict.fromkeys(key for of_run in found.values() for key in of_run if not _within(key, free)))
    return [
        f"{counted(len(found), 'run')} did not record what was in {keys_in_words(keys)}: compared by path"
    ]


def _recorded_late(key: str) -> bool:
    """Whether older runs did not record the content of what this key names; an encoder's name says it."""
    return key != "encoder.name"


def keys_in_words(keys: Sequence[str]) -> str:
    """The first keys by name, and the number of the others."""
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(keys[:3]) + more


def differences(runs: Mapping[str, Settings], free: Collection[str] = ()) -> list[str]:
    """A note that names every key in which these runs differ, for figures of whatever runs are given."""
    keys: dict[str, None] = {}
    distinct = list({settings.identity: settings for settings in runs.values()}.values())
    for place, one in enumerate(distinct):
        for other in distinct[place + 1 :]:
            keys |= dict.fromkeys(one.differing(other, free))
    notes = [f"the {counted(len(runs), 'run')} differ in {', '.join(keys)}"] if keys else []
    return [*notes, *_by_place(runs, free)]


def _within(key: str, groups: Collection[str]) -> bool:
    """Whether a dotted key is one of these, or inside of one."""
    return not set(groups).isdisjoint(_with_groups(key))


@functools.cache
def _with_groups(key: str) -> tuple[str, ...]:
    """A dotted key and the groups that it is in: `a.b.c`, `a.b`, `a`."""
    parts = key.split(".")
    return tuple(".".join(parts[:end]) for end in range(len(parts), 0, -1))


@functools.cache
def _neutral() -> dict[str, Any]:
    return neutral_values()


def _leaves(config: Mapping[str, Any], neutral: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        # A number of heads for each kind of attention is one value.
        one_value = dotted in neutral
        if isinstance(value, Mapping) and value and not one_value:
            rows += _leaves(value, neutral, f"{dotted}.")
        else:
            rows.append((dotted, list(value) if isinstance(value, tuple) else value))
    return rows


_AFTER_TRAINING = ("static", "gates_only")
"""Ways of pruning that learn masks after training, on the run that `init_from` names."""
_SPLITS = ("train", "dev", "test")


def _corpora(config: Mapping[str, Any], tasks: Sequence[str], status: Mapping[str, Any]) -> dict[str, Any]:
    """The sentences of each task, by key.

    Older runs have one fingerprint over the files of all of their tasks. It is that of each task where all
    read the same files; else it says only whether two runs of the same tasks had the same.
    """
    read = [name for name in tasks_of(tasks) if TASKS[name].layers] or list(tasks_of(tasks))
    sources = {name: _source_of(config, name) for name in read}
    digests, whole = status.get("corpus_fingerprints"), status.get("corpus_fingerprint")
    together = len({place for place, _, _ in sources.values()}) == 1
    values = {}
    for name, (place, options, exact) in sources.items():
        digest = (digests or {}).get(name) or (whole if together and exact else None)
        values[f"corpus.{name}"] = Content(place, digest and f"{digest}{options}")
    if whole and any(map(_unknown, values.values())):
        places = ", ".join(dict.fromkeys(place for place, _, _ in sources.values()))
        values[f"corpus.{'+'.join(tasks)}"] = Content(places, whole)
    return values


def _source_of(config: Mapping[str, Any], task: str) -> tuple[str, str, bool]:
    """Where a task's sentences come from, how they are read, and whether that is exact.

    It is not where `corpus.files` and a folder are given: then the format decides, which is not looked at.
    """
    corpus = config.get("corpus") or {}
    files = corpus.get(task) or corpus.get("files")
    folder = corpus.get("path", reference().corpus.path)
    if not isinstance(files, Mapping):
        return str(files or folder), "", True
    plain = dataclasses.asdict(Files())
    options = {key: value for key, value in files.items() if value != plain.get(key) and key not in _SPLITS}
    named = {split: files[split] for split in _SPLITS if files.get(split) is not None}
    place = ", ".join(f"{key}={value}" for key, value in (named | options).items())
    exact = bool(corpus.get(task)) or folder is None
    return place if exact else f"{place} or {folder}", repr(sorted(options.items())) if options else "", exact


def _origins(
    config: Mapping[str, Any],
    pruning: str,
    values: Mapping[str, Any],
    status: Mapping[str, Any],
    folder: Path | None,
) -> dict[str, Any]:
    """What other runs made, as far as it can be found now."""
    found: dict[str, Any] = {}
    source = config.get("init_from")
    path = None if source is None else place_now(source, config, folder)
    if pruning in _AFTER_TRAINING:
        found[_SOURCE_OF_MASKS] = path and _run(path)
        # But for its masks it is as the run that they are learned on; unknown if that is gone.
        with contextlib.suppress(*_UNREADABLE):
            found["init_from"] = None if path is None else settings_of_run(Run.open(path)).values["init_from"]
    else:
        found["init_from"] = path and _run(path)
    masks = values.get("gates.masks")
    if isinstance(masks, str):
        found["gates.masks"] = _masks(place_now(masks, config, folder), status)
    for start in starts():
        for key in start.files:
            if isinstance(file := values.get(key), str):
                found[key] = Content(file, start.content(place_now(file, config, folder)))
    return found


def _masks(path: Path, status: Mapping[str, Any]) -> Content:
    """Masks that a run was given: those of another run, drawn ones, or a file."""
    if (path.parent / "config.yaml").exists():
        return _run(path.parent)
    record = status.get("draw") or draw_of(path)
    return Content(str(path), status.get("masks_fingerprint")) if record is None else drawn_content(record)


_UNREADABLE = (InputError, OSError, ValueError, KeyError, TypeError)


def _run(folder: Path) -> Content:
    """What the run in a folder is, whatever its name and seed; of a run that is gone its place."""
    try:
        source = settings_of_run(Run.open(folder))
    except _UNREADABLE:
        return Content(f"{folder}, {GONE}")
    made = [(key, source.values[key]) for key in sorted(source.set_keys) if not _within(key, MEASURING)]
    words = [f"{key}={_text(value)}" for key, value in made if not _within(key, ("corpus", "encoder"))]
    digest = digest_of((source.tasks, [(key, repr(value)) for key, value in made]))
    return Content(" ".join(["+".join(source.tasks), *words]), digest)


def _text(value: Any) -> str:
    return value.place if isinstance(value, Content) else str(value)
