"""How a run was made: its configuration, origins, sentences and encoder; what of it can be compared."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
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
    with_rates,
)
from mtl.config.instances import architecture_in, kind_of, kinds_in, only_compared, setting_values
from mtl.config.keys import within
from mtl.config.schema import SPLITS, Files
from mtl.errors import InputError
from mtl.features import added
from mtl.runs.folder.run import Content, Run, derivation_in, digest_of, place_now
from mtl.tasks.catalogue import in_order_of_catalogue


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
    by_task: frozenset[str]
    """The keys that were set as suits its tasks and masks (`by_task`)."""
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
    def suited(self) -> tuple[Hashable, ...]:
        """Runs in which this is equal do not differ in keys that suit tasks and masks (`by_task`)."""
        return self.tasks, self.pruning, self.derivation

    @property
    def plain(self) -> bool:
        """Whether it was trained from the start and without masks."""
        return self.pruning == "none" and not self.derivation

    @property
    def masked(self) -> bool:
        """Whether it was trained with masks."""
        return self.pruning != "none" and not self.derivation

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
        differ because the comparison is about them. Keys of `by_task` may differ between runs of other tasks
        or with other masks. The sets of tasks may always differ, and with them the keys of other tasks: every
        comparison says which tasks it is about.
        """
        left_out = (*free, *MEASURING)
        if self.suited != other.suited:
            left_out = (*left_out, *self.by_task, *other.by_task)
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
    """The settings of a run with this configuration.

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
    values |= _sentences_by_task(config, tasks, status)
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
        frozenset(config.get("by_task") or ()), derivation, values,
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


GONE = "a run that is gone"
_CHAIN: ContextVar[frozenset[Path]] = ContextVar("chain", default=frozenset())
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged run raises; `InputError` is a `ValueError`."""


class CircularError(InputError):
    """A run started from one that was later replaced by a run that started from it: its source is gone."""


@contextlib.contextmanager
def following(run: Run) -> Iterator[None]:
    """Read in the block what a run was made from; raises `CircularError` if this is going on already."""
    chain, place = _CHAIN.get(), run.folder.resolve()
    if place in chain:
        raise CircularError(f"{run.folder} and the run that it started from start from each other")
    token = _CHAIN.set(chain | {place})
    try:
        yield
    finally:
        _CHAIN.reset(token)


def origins_of(
    config: Mapping[str, Any],
    values: Mapping[str, Any],
    status: Mapping[str, Any],
    folder: Path | None,
    read: Callable[[Run], Settings],
) -> dict[str, Any]:
    """By key, what other runs made, as far as it can be found now; `read` gives the settings of such a run.

    `values` are the run's own values by dotted key.
    """
    found: dict[str, Any] = {}
    source = config.get("init_from")
    path = None if source is None else place_now(source, config, folder)
    if config.get("pruning", "none") in AFTER_TRAINING:
        found[SOURCE_OF_MASKS] = path and _run(path, read)
        # Apart from its masks, it starts from what that run started from; unknown if that run is gone.
        with contextlib.suppress(*UNREADABLE):
            found["init_from"] = None if path is None else read(Run.open(path)).values["init_from"]
    else:
        found["init_from"] = path and _run(path, read)
    if isinstance(masks := values.get("gates.masks"), str):
        found["gates.masks"] = _masks(place_now(masks, config, folder), status, read)
    return found


def _masks(path: Path, status: Mapping[str, Any], read: Callable[[Run], Settings]) -> Content:
    """The masks that a run was given: those of another run, or those of a file."""
    if (path.parent / "config.yaml").exists():
        return _run(path.parent, read)
    return Content(str(path), status.get("masks_fingerprint"))


def _run(folder: Path, read: Callable[[Run], Settings]) -> Content:
    """What the run in a folder is, whatever its name and seed; if the run is gone, only its place."""
    try:
        source = read(Run.open(folder))
    except UNREADABLE:
        return Content(f"{folder}, {GONE}")
    made = [(key, source.values[key]) for key in sorted(source.set_keys) if not within(key, MEASURING)]
    words = [f"{key}={_text(value)}" for key, value in made if not within(key, ("corpus", "encoder"))]
    digest = digest_of((source.tasks, [(key, repr(value)) for key, value in made]))
    return Content(" ".join(["+".join(source.tasks), *words]), digest)


def _text(value: Any) -> str:
    return value.place if isinstance(value, Content) else str(value)


def _sentences_by_task(
    config: Mapping[str, Any], tasks: Sequence[str], status: Mapping[str, Any]
) -> dict[str, Any]:
    """The sentences of each task, by key; without a status, only their place is known."""
    instances = config.get("instances")
    read = [name for name in tasks if kind_of(name, instances).layers] or list(tasks)
    digests = status.get("corpus_fingerprints") or {}
    values: dict[str, Any] = {}
    for name in read:
        place, options = _source_of(config, name)
        values[f"corpus.{name}"] = Content(place, f"{digests[name]}{options}" if name in digests else None)
    return values


def _source_of(config: Mapping[str, Any], task: str) -> tuple[str, str]:
    """Where a task's sentences come from, and how they are read."""
    corpus = config.get("corpus") or {}
    own = corpus.get(task) or (corpus.get("instances") or {}).get(task)
    files = own or corpus.get("files")
    folder = corpus.get("path", reference().corpus.path)
    if not isinstance(files, Mapping):
        return str(files or folder), ""
    plain = dataclasses.asdict(Files())
    options = {key: value for key, value in files.items() if value != plain.get(key) and key not in SPLITS}
    named = {split: files[split] for split in SPLITS if files.get(split) is not None}
    place = ", ".join(f"{key}={value}" for key, value in (named | options).items())
    known = bool(own) or folder is None  # else the format decides
    return place if known else f"{place} or {folder}", repr(sorted(options.items())) if options else ""


def encoder_of(run: Run) -> Content:
    """The encoder from which a run started, directly or through other runs."""
    with following(run):
        config = run.config()
        source = config.get("init_from")
        if source and (Path(source) / "config.yaml").exists():
            with contextlib.suppress(CircularError):
                return encoder_of(Run.open(source))
        return Content(encoder_in(config), run.status().get("encoder_fingerprint"))


def encoder_in(config: Mapping[str, Any]) -> str:
    """The encoder that a configuration names; for a model from scratch, its architecture."""
    architecture = architecture_in(config)
    return f"{architecture} from scratch" if architecture else str(config["encoder"]["name"])


def check_encoders(encoders: Mapping[str, Content]) -> None:
    """Raise `InputError` if the runs (the keys) have more than one encoder (the values)."""
    first = next(iter(encoders.items()), None)
    for run, encoder in encoders.items():
        if first is not None and encoder.another_encoder(first[1]):
            places = [f"{name} of {of.place}" for name, of in (first, (run, encoder))]
            files = ", whose files differ" if encoder.place == first[1].place else ""
            raise InputError(
                f"runs of different encoders: {', '.join(places)}{files}; choose runs of one encoder"
            )


OF_ONE_RUN = ("name", "seed", *VOLATILE)
"""Keys in which runs of one setup may differ."""
MEASURING = (
    *(name for name, keys in added(lambda feature: feature.keys).items() if keys.meter is not None),
    "importance_every",
    "importance_sentences",
    "evaluate_train",
)
"""Keys of what is measured during training; they do not change what is trained."""
MASKS = ("pruning", "gates")
"""The keys that may differ in comparisons of runs whatever their masks."""
SOURCE_OF_MASKS = "gates.init_from"
"""The key for the run without masks on which masks are learned, if they are learned after training."""
AFTER_TRAINING = ("static", "gates_only")
"""The values of `pruning` that learn masks after training, on the run that `init_from` names."""
ORIGINS = ("init_from", SOURCE_OF_MASKS, "gates.masks")
"""The keys of what other runs made; a run's status records what that was when the run started."""


def keys_in_words(keys: Sequence[str]) -> str:
    """The first keys, and the number of the others."""
    return listed(keys, 3)


def listed(names: Sequence[str], most: int = 4) -> str:
    """The first names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
