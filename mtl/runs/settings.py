"""What a run is and how it was made, by its configuration; whether two runs can be compared follows."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mtl.config.effective import neutral_values, reference, settings_in, unused_keys
from mtl.errors import InputError, counted
from mtl.runs.run import Run
from mtl.tasks.order import in_order_of_catalogue
from mtl.tasks.twins import task_of, tasks_of

OF_ONE_RUN = ("name", "runs", "overwrite", "seed", "wandb", "trainer.threads", "trainer.checkpoint_minutes")
"""Keys in which runs that are repetitions of each other may differ."""
MEASURING = ("gradient_conflict_every", "importance_every", "importance_sentences")
"""Keys of what is measured while training goes on; they do not change what is trained."""
MASKS = ("pruning", "gates")
"""What a comparison declares to be free if it compares runs whatever their masks."""
_SOURCE_OF_MASKS = "gates.init_from"
"""The key for the run without masks that masks are learned on, where they are learned after training."""
_OF_OTHER_RUNS = ("init_from", _SOURCE_OF_MASKS, "gates.masks")
GONE = "a run that is gone"
NAMED = 4
"""Runs that a note names before it counts the others."""


@dataclass(frozen=True)
class Settings:
    """A run's configuration as typed values."""

    tasks: tuple[str, ...]
    """In the catalogue's order."""
    seed: int
    pruning: str
    derivation: str
    """How the run was made from another (`Run.derivation`); empty for a run that was trained."""
    values: Mapping[str, Any]
    """By dotted key everything that made the run: only keys that it uses, completed by neutral values."""

    @cached_property
    def identity(self) -> str:
        """Equal for runs that differ in their seeds only; independent of the order of keys."""
        return repr((self.tasks, sorted((key, repr(value)) for key, value in self.values.items())))

    @property
    def plain(self) -> bool:
        """Whether it was trained from the start and without masks."""
        return self.pruning == "none" and not self.derivation

    def differing(self, other: Settings, free: Collection[str] = ()) -> list[str]:
        """The keys that both runs use and whose values differ, without those that change no result.

        `free`: keys, or groups of keys, that may differ, since the comparison is about them. The sets of
        tasks may always differ: every comparison says of which tasks it is.
        """
        left_out = (*free, *MEASURING)
        return [
            key
            for key, value in self.values.items()
            if key in other.values and value != other.values[key] and not _within(key, left_out)
        ]


def settings_of(config: Mapping[str, Any], derivation: str = "") -> Settings:
    """The settings of a run with this configuration, which may be of an older program or lack keys."""
    tasks = in_order_of_catalogue(config["tasks"])
    pruning = str(config.get("pruning", "none"))
    typed = settings_in(config)
    left_out = {*OF_ONE_RUN, "tasks", "corpus", *unused_keys(typed)}
    neutral = _neutral()
    given = dict(_leaves(config, neutral))
    values = {
        key: value for key, value in {**neutral, **given}.items() if left_out.isdisjoint(_with_groups(key))
    }
    if len(tasks) == 1:
        values.pop("gates.scope", None)
    weights = values.pop("balancer.weights", None) or {}
    if typed.balancer.name == "fixed":
        for name in tasks:
            values[f"balancer.weights.{name}"] = float(weights.get(name, weights.get(task_of(name), 1.0)))
    values |= {f"corpus.{name}": _source_of(config, name) for name in tasks_of(tasks)}
    for key in ("gates.masks", "clones.claims"):
        if values.get(key) is not None:
            values[key] = _file(str(values[key]))
    values.pop("init_from", None)
    source = _SOURCE_OF_MASKS if pruning in ("static", "gates_only") else "init_from"
    values[source] = _run(config.get("init_from"))
    values |= {"pruning": pruning, "derivation": derivation}
    return Settings(tasks, int(config["seed"]), pruning, derivation, values)


def settings_of_run(run: Run) -> Settings:
    """The settings of a run's folder."""
    return settings_of(run.config(), run.derivation())


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
            usual = dataclasses.replace(usual, values={**of[identity].values, **usual.values})
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
    gone = [name for name in kept if GONE in (runs[name].values.get(key) for key in _OF_OTHER_RUNS)]
    if len(gone) > 1:
        notes.append(
            f"{counted(len(gone), 'run')} started from runs, or have masks of runs, that are gone: whether "
            "those were alike is not known"
        )
    return kept, notes


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
    return [f"the {counted(len(runs), 'run')} differ in {', '.join(keys)}"] if keys else []


def _within(key: str, groups: Collection[str]) -> bool:
    """Whether a dotted key is one of these, or inside of one."""
    return not set(groups).isdisjoint(_with_groups(key))


def _with_groups(key: str) -> list[str]:
    """A dotted key and the groups that it is in: `a.b.c`, `a.b`, `a`."""
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


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


def _source_of(config: Mapping[str, Any], task: str) -> Any:
    """Where a task's sentences come from: its own files, those of all tasks, or the corpus' folder."""
    corpus = config.get("corpus") or {}
    files = corpus.get(task) or corpus.get("files")
    if isinstance(files, Mapping):
        return {key: value for key, value in files.items() if value is not None}
    default = dataclasses.asdict(reference())["corpus"]["path"]
    return files or corpus.get("path", default)


def _file(path: str) -> str:
    """A file of masks or claims: the run that it is of, else its name without folder, suffix and draw."""
    if (Path(path).parent / "config.yaml").is_file():
        return _run(Path(path).parent) or path
    return mask_set(path)[0]


def _run(folder: Any) -> str | None:
    """What the run in a folder is, whatever its name and seed; `GONE` if it is not there any more."""
    if folder is None:
        return None
    try:
        source = settings_of_run(Run.open(folder))
    except (InputError, OSError, ValueError, KeyError, TypeError):
        return GONE
    neutral = _neutral()
    set_ = [
        f"{key}={value}"
        for key, value in sorted(source.values.items())
        if value not in (neutral.get(key), "", "none") and not _within(key, ("corpus", "encoder", *MEASURING))
    ]
    return " ".join(["+".join(source.tasks), *set_])


def mask_set(path: str) -> tuple[str, int | None]:
    """The name of a mask file without folder, suffix and draw, and the number of its draw, if it has one.

    Files that differ only in their draw, `NAME-draw1.parquet` and `NAME-draw2.parquet`, are of one setup.
    """
    stem = Path(path).stem
    name, _, number = stem.rpartition("-draw")
    return (name, int(number)) if name and number.isdecimal() else (stem, None)
