"""How a run was made, by its configuration and status; from this follows whether runs can be compared."""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mtl.config.effective import (
    keys_of_other_tasks,
    neutral_values,
    settings_in,
    unused_keys,
    with_rates,
)
from mtl.config.instances import kinds_in, only_compared, setting_values
from mtl.runs.compare.keys import (
    AFTER_TRAINING,
    MEASURING,
    OF_ONE_RUN,
    ORIGINS,
    SOURCE_OF_MASKS,
    within,
)
from mtl.runs.compare.origins import UNREADABLE, following, origins_of
from mtl.runs.compare.sentences import sentences_of
from mtl.runs.folder.content import Content, place_now
from mtl.runs.folder.run import Run, derivation_in
from mtl.tasks.order import in_order_of_catalogue


class Unused(enum.Enum):
    """The value of a key that a run could use but does not, because of its other settings."""

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
    draws: Mapping[str, int]
    """By task with random labels, the draw of these."""
    compared: bool
    """Whether it has a task that others are only compared with: half of a task, or random labels."""
    pruning: str
    masks: str | None
    """The fingerprint of the fixed masks that it was given; `None` if its status records none."""
    source: str
    """Tells apart runs of one setup from which training started (`init_from`); empty without such a run."""
    heads_kept: int | None
    """The number of heads left, if it was cut or started from a cut run."""
    derivation: str
    """How the run was made from another (`Run.derivation`); empty for a run that was trained."""
    values: Mapping[str, Any]
    """By dotted key, everything that made the run, completed by neutral values.

    Keys of other tasks are left out; keys that the run could use but does not have the value `UNUSED`.
    """

    @cached_property
    def identity(self) -> str:
        """Equal for runs that differ only in seeds, draws and sizes; independent of the order of keys."""
        return repr((self.tasks, sorted((key, repr(value)) for key, value in self.values.items())))

    @property
    def observation(self) -> tuple[Hashable, ...]:
        """Equal for runs of one setup that repeat each other."""
        return self.tasks, self.seed, tuple(sorted(self.draws.items())), self.masks or "", self.source

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
        """The keys that both runs could use and in which they differ, without those that change no result.

        Keys that both use come before keys that only one uses. `free` are keys, or groups of keys, that may
        differ because the comparison is about them. The sets of tasks may always differ, and with them the
        keys of other tasks: every comparison says which tasks it is about.
        """
        left_out = (*free, *MEASURING)
        keys = [
            key
            for key, value in self.values.items()
            if key in other.values and _differ(value, other.values[key]) and not within(key, left_out)
        ]
        return sorted(keys, key=lambda key: UNUSED in (self.values[key], other.values[key]))


def sizes_told_apart(settings: Sequence[Settings]) -> list[Settings]:
    """The settings, with the number of heads left as the value `heads_kept` where it tells runs apart.

    It does if a run was cut to several numbers of heads. Cut runs of several seeds whose masks keep different
    numbers of heads stay one setup.
    """
    sizes: dict[tuple[Hashable, ...], set[int | None]] = {}
    for one in settings:
        sizes.setdefault((one.identity, *one.observation), set()).add(one.heads_kept)
    several = {identity for (identity, *_), found in sizes.items() if len(found) > 1}
    return [
        replace(one, values={**one.values, "heads_kept": one.heads_kept}) if one.identity in several else one
        for one in settings
    ]


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, Content) and isinstance(other, Content):
        return one.differs(other)
    return bool(one != other)


def settings_of(
    config: Mapping[str, Any], status: Mapping[str, Any] | None = None, folder: Path | None = None
) -> Settings:
    """The settings of a run with this configuration, which may be of an older program or lack keys.

    The run's `status` records what was at the places that the configuration names; without it, only the
    places are known. `folder` is where the run is now, to find what was moved together with it.
    """
    status = status or {}
    tasks = in_order_of_catalogue(config["tasks"])
    pruning = str(config.get("pruning", "none"))
    typed = settings_in(config)
    others = {*OF_ONE_RUN, "tasks", "corpus", "init_from", *keys_of_other_tasks(tasks)}
    others |= {f"instances.{name}" for name in config.get("instances") or () if name not in tasks}
    draws = draws_of(config)
    others |= {f"instances.{name}.draw" for name in draws}
    unused = frozenset(unused_keys(typed))
    neutral = neutral_values(config) if config.get("instances") else _neutral()
    given = {**neutral, **dict(_leaves(with_rates(config), neutral))}
    values: dict[str, Any] = {
        key: UNUSED if within(key, unused) else value
        for key, value in given.items()
        if not within(key, others) and key != "instances"
    }
    weights = values.pop("balancer.weights", None) or {}
    for name in tasks:
        weight = 1.0 if weights is UNUSED else weights.get(name, 1.0)
        values[f"balancer.weights.{name}"] = UNUSED if weights is UNUSED else float(weight)
    if len(tasks) == 1:
        values = _alone(values, tasks[0])
    values |= _of_source(config, values, folder)
    values["encoder.name"] = Content(str(values["encoder.name"]), status.get("encoder_fingerprint"))
    values |= sentences_of(config, tasks, status)
    if "origins" in status:
        values |= {key: found and Content(*found) for key, found in status["origins"].items()}
    else:
        values |= origins_of(config, values, status, folder, settings_of_run)
    if pruning not in AFTER_TRAINING:
        values[SOURCE_OF_MASKS] = UNUSED
    derivation = derivation_in(status)
    values |= {"pruning": pruning, "derivation": derivation}
    compared = only_compared(kinds_in(config).values())
    masks, heads_kept = status.get("masks_fingerprint"), status.get("heads_kept")
    return Settings(
        tasks, int(config["seed"]), draws, compared, pruning, masks, _source(config, folder), heads_kept,
        derivation, values,
    )  # fmt: skip


def draws_of(config: Mapping[str, Any]) -> dict[str, int]:
    """By task with random labels, the draw of these."""
    return {
        name: int(setting_values(name, config).get("draw", vars(kind())["draw"]))
        for name, kind in kinds_in(config).items()
        if kind.drawn
    }


def _of_source(config: Mapping[str, Any], values: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """How the run that training starts from reads its encoder, as far as it can be found now.

    If that run has `null`, this run records the value that `null` stands for, which makes no difference.
    """
    given = [key for key in _READING if values[key] is not None]
    if config.get("init_from") is None or not given:
        return {}
    with contextlib.suppress(*UNREADABLE):
        source = settings_of_run(Run.open(place_now(config["init_from"], config, folder))).values
        return {key: source[key] for key in given}
    return {}


def _source(config: Mapping[str, Any], folder: Path | None) -> str:
    """`Settings.source`: seed, draws, masks and source of that run; only its place, if it is gone."""
    if config.get("init_from") is None:
        return ""
    run = Run(place_now(config["init_from"], config, folder))
    try:
        with following(run):
            made, masks = run.config(), run.status().get("masks_fingerprint")
            return repr((made["seed"], draws_of(made), masks, _source(made, run.folder)))
    except UNREADABLE:
        return str(config["init_from"])


_READING = ("encoder.pooling", "encoder.word_dropout")


def _alone(values: Mapping[str, Any], task: str) -> dict[str, Any]:
    """The settings of a run of one task, which is not balanced against others.

    Its balancer counts only if it scales the single loss.
    """
    name, weight = values["balancer.name"], values[f"balancer.weights.{task}"]
    scales = name == "uncertainty" or weight not in (1.0, UNUSED)
    kept = {key: value for key, value in values.items() if scales or not within(key, ("balancer",))}
    return {**kept, f"balancer.alone.{task}": [name, weight] if scales else None}


def settings_of_run(run: Run) -> Settings:
    """The settings of a run's folder."""
    with following(run):
        return settings_of(run.config(), run.status(), run.folder)


def recorded_origins(config: Mapping[str, Any]) -> dict[str, tuple[str, str | None] | None]:
    """What is now at the places of other runs and of what they made, for the status of a starting run."""
    values = settings_of(config).values
    found = {key: values[key] for key in ORIGINS if values.get(key, UNUSED) is not UNUSED}
    return {key: (value.place, value.digest) if value else None for key, value in found.items()}


@functools.cache
def _neutral() -> dict[str, Any]:
    return neutral_values()


def _leaves(config: Mapping[str, Any], neutral: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        # A number of heads for each kind of attention is one value.
        one_value = dotted in neutral and dotted != "instances"
        if isinstance(value, Mapping) and value and not one_value:
            rows += _leaves(value, neutral, f"{dotted}.")
        else:
            rows.append((dotted, list(value) if isinstance(value, tuple) else value))
    return rows
