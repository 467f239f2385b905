"""What is measured on the heads of several runs in one table, and which were measured alike.

What heads are worth is also read from tables that were written elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from mtl.config.instances import kinds_in, only_compared
from mtl.config.keys import within
from mtl.errors import InputError, as_input_error
from mtl.heads.gate_file import last_log_alphas
from mtl.probes.measures.groups import BY_NAME, GROUPS, MADE_BY_PROBING, SKILLS
from mtl.probes.statistics.head_values import OF_WORTH, SYNTACTIC, USED, head_values
from mtl.probes.tables import heads_table
from mtl.runs.compare.settings import (
    MASKS,
    Settings,
    check_encoders,
    encoder_of,
    keys_in_words,
    listed,
    settings_of_run,
    sizes_told_apart,
)
from mtl.runs.compare.setups import (
    chosen_of,
    missing_seeds,
    nothing_left,
    repeats,
    setups_of,
    without_repeats,
)
from mtl.runs.folder.run import Content, Run, is_probed_encoder
from mtl.tasks.catalogue import in_order_of_catalogue
from mtl.tasks.in_words import counted, first_line

MAY_DIFFER = MASKS
"""The keys in which runs of one regime may differ: those of masks."""
SAME = ("split", "corpus", "centroids", "constituents", "final_special", "precision")
"""The settings of probing in which compared runs must agree."""
OF_MASKS = "masks"
"""The setting whether masks were applied, in which compared runs with masks must agree."""


@dataclass(frozen=True)
class MeasuredHeads:
    """What a folder's heads.parquet holds on its own tasks."""

    rows: pl.DataFrame
    """The rows with finite values, of the tasks that the run was trained on and of no task."""
    tasks: tuple[str, ...]
    """The tasks that have rows, in the table's order."""
    provenance: Mapping[str, str]
    probed: bool
    """Whether it has measures of probing."""
    lost: int
    """The number of values that are not finite."""
    lost_shares: int
    """The number of those that are skills or their chance levels."""


def read_heads(folder: Path) -> MeasuredHeads:
    """The heads.parquet of a run, or of an encoder before training; raises `InputError` if it is damaged."""
    with as_input_error():
        return heads_in(folder, *heads_table.read_heads_table(folder / "heads.parquet"))


def heads_in(folder: Path, whole: pl.DataFrame, provenance: Mapping[str, str]) -> MeasuredHeads:
    """What a folder's heads.parquet, with this table and provenance, holds on its own tasks."""
    table = heads_table.in_categories(whole.drop("choice"))
    finite = table["value"].is_finite().fill_null(False)
    lost = table["measure"].filter(~finite)
    measures = table["measure"].unique()
    tasks = [name for name in table["task"].unique(maintain_order=True) if name]
    if _is_run(folder):
        trained = Run(folder).config()["tasks"]
        tasks = [name for name in tasks if name in trained]
    return MeasuredHeads(
        table.filter(finite & table["task"].is_in([*tasks, ""])),
        tuple(tasks),
        provenance,
        measures.is_in(MADE_BY_PROBING).any(),
        len(lost),
        int(lost.is_in([*SKILLS, *SKILLS.values()]).sum()),
    )


def probed_with(provenance: Mapping[str, str], masked: bool) -> dict[str, str]:
    """The settings of probing by which runs are compared; `masked`: whether the run has masks."""
    return {key: provenance.get(key, "") for key in (*SAME, *(OF_MASKS,) * masked)}


def has_masks(run: Run) -> bool:
    """Whether a run was trained with masks."""
    return str(run.config().get("pruning", "none")) != "none" and not run.derivation()


def heads_of(
    folders: Sequence[Path],
    tasks: Sequence[str] = (),
    *,
    read: Callable[[Path], MeasuredHeads] = read_heads,
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """All measures on the folders' heads, with `regime`, `run` and `seed` but without `choice`; and notes.

    A folder that is no run holds the probes of an encoder before training (`pretrained`, seed 0). Of a run,
    only rows of the tasks that it was trained on, and rows of no task, are taken. Runs of two tasks are of
    the regime `pair` if another run has more tasks, otherwise `joint`. Left out are runs with a task that
    others are only compared with (half of a task, or one with random labels), runs that repeat another one,
    and runs that were trained otherwise than most in more than their masks. `read` reads a folder's table.
    Raises `InputError` if no table is left, a table is damaged, or encoders or settings of probing differ.
    """
    parts, notes = [], []
    runs = {path: Run.open(path) for path in folders if _is_run(path)}
    trained = {path: run.config()["tasks"] for path, run in runs.items()}
    compared = [path for path, run in runs.items() if only_compared(kinds_in(run.config()).values())]
    if compared:
        notes.append(
            f"{counted(len(compared), 'run')} with half of a task or random labels left out of the "
            f"measures on heads by regime: {listed([path.name for path in compared])}"
        )
    folders = [path for path in folders if path not in compared]
    probed = {
        str(path): runs[path] for path in folders if path in runs and (path / "heads.parquet").is_file()
    }
    check_encoders({name: encoder_of(run) for name, run in probed.items()})
    observed, copies = without_repeats(list(probed.values()))
    notes += copies
    folders = [path for path in folders if str(path) not in probed or runs[path] in observed]
    made = {str(run.folder): settings_of_run(run) for run in observed}
    alike, otherwise = comparable(made, MAY_DIFFER)
    notes += [f"measures on heads by regime: {note}" for note in otherwise]
    folders = [path for path in folders if str(path) not in made or str(path) in alike]
    encoders: dict[str, Content] = {}
    settings = {}
    most = max((len(trained[path]) for path in folders if path in trained), default=0)
    for folder in folders:
        path = folder / "heads.parquet"
        if not path.is_file():
            notes.append(f"{folder} was not probed (no heads.parquet): left out; 'mtl probe' makes it")
            continue
        table = read(folder)
        if table.probed:
            masked = folder in runs and has_masks(runs[folder])
            settings[str(folder)] = probed_with(table.provenance, masked)
        if table.lost:
            notes.append(f"{path}: {counted(table.lost, 'value')} not finite: left out")
        regime, seed = "pretrained", 0
        if folder in runs:
            size, seed = len(trained[folder]), int(runs[folder].config()["seed"])
            regime = "stl" if size == 1 else "pair" if size == 2 and most > 2 else "joint"
            encoders[str(folder)] = encoder_of(runs[folder])
        else:
            encoders[str(folder)] = Content(table.provenance.get("target", ""))
        chosen = chosen_of(table.tasks, tasks, str(folder), notes)
        if chosen:
            of_run = {
                column: pl.lit(name, pl.Categorical)
                for column, name in {"regime": regime, "run": str(folder)}.items()
            }
            rows = table.rows.filter(pl.col("task").is_in([*chosen, ""]))
            parts.append(rows.with_columns(**of_run, seed=pl.lit(seed)))
    if not parts:
        raise nothing_left(notes, "nothing to draw: give probed runs")
    check_encoders(encoders)
    check_probed_alike(settings)
    heads = pl.concat(parts, rechunk=True)
    return heads, (*notes, *_missing_runs(heads))


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").exists()


def check_probed_alike(settings: Mapping[str, Mapping[str, str]]) -> None:
    """Raise `InputError` if the runs (the keys) were not probed alike (`probed_with`)."""
    known: dict[str, str] = {}
    for run, values in settings.items():
        for key, value in values.items():
            first = known.setdefault(key, run)
            if value != settings[first][key]:
                raise InputError(
                    f"probes that cannot be compared: {first} has {key}={settings[first][key]}, {run} "
                    f"{key}={value}; probe both alike"
                )


def _missing_runs(heads: pl.DataFrame) -> list[str]:
    """Notes on seeds that some trained regime of a task lacks."""
    runs = heads_table.runs_of(heads)
    trained = runs.filter((pl.col("regime") != "pretrained") & (pl.col("task") != ""))
    return [
        f"no {regime} run of {task} with seed {', '.join(map(str, seeds))}"
        for (task, regime), seeds in missing_seeds(trained, "task", "regime")
    ]


PROBES = "probes"
"""The group whose settings are recorded without a prefix."""
_NO_SETTING = ("run", "versions", "git", "draws", "seed", "conservation_error")
"""What is recorded besides settings; the number and the seed of resamples change no value."""
_OF_SENTENCES = ("corpus", "sentences")
"""Settings in which only runs of one setup and the same tasks must agree; others have other sentences."""
_OF_MASKS = "masks"
_OF_ONE_MEASURE = {"steps": "integrated"}
"""Settings that change only one measure of their group, which is not made if they are 0."""


@dataclass(frozen=True)
class MeasuredRun:
    """How a run's heads were measured."""

    repeats: Hashable
    """Equal for runs of one setup and the same tasks."""
    masked: bool
    """Whether the run has masks."""
    provenance: Mapping[str, str]
    """The provenance in heads.parquet."""

    def settings(self, group: str, measure: str) -> dict[str, str]:
        """The settings that a measure of a group was made with; empty if it was not made."""
        found = {
            key.removeprefix(f"{group}."): value
            for key, value in self.provenance.items()
            if key.startswith(f"{group}.")
        }
        if group == PROBES and SAME[0] in self.provenance:
            found = probed_with(self.provenance, masked=True)
        if any(found.get(key) == "0" for key, name in _OF_ONE_MEASURE.items() if name == measure):
            return {}
        return {
            key: value
            for key, value in found.items()
            if key not in _NO_SETTING
            and (key != _OF_MASKS or self.masked)
            and _OF_ONE_MEASURE.get(key, measure) == measure
        }


def measured_otherwise(runs: Mapping[str, MeasuredRun]) -> tuple[dict[str, set[str]], list[str]]:
    """By run, the names in the column `measure` that were measured otherwise than in most runs; and notes.

    Runs that have a measure are compared in its settings; those of one setup and the same tasks also in their
    sentences. Of equally frequent settings, those of the first run are usual.
    """
    otherwise: dict[str, set[str]] = {}
    notes: dict[str, None] = {}
    for name, group in GROUPS.items():
        for measure in group.measures:
            settings = {run: made.settings(name, measure.name) for run, made in runs.items()}
            settings = {run: found for run, found in settings.items() if found}
            repeats: dict[Hashable, list[str]] = {}
            for run in settings:
                repeats.setdefault(runs[run].repeats, []).append(run)
            compared = [([*settings], False), *((members, True) for members in repeats.values())]
            for members, of_sentences in compared:
                unlike = _unlike({run: settings[run] for run in members}, of_sentences)
                for words, of_words in unlike.items():
                    for run in of_words:
                        otherwise.setdefault(run, set()).update(measure.names)
                    notes[_note(name, words, of_words)] = None
    return otherwise, list(notes)


def _unlike(settings: Mapping[str, Mapping[str, str]], of_sentences: bool) -> dict[str, list[str]]:
    """The runs with other settings than most, by the difference in words."""
    chosen = {
        run: {key: value for key, value in found.items() if (key in _OF_SENTENCES) == of_sentences}
        for run, found in settings.items()
    }
    unlike: dict[str, list[str]] = {}
    keys = dict.fromkeys(key for found in chosen.values() for key in found)
    for key in keys:
        having = {run: found[key] for run, found in chosen.items() if key in found}
        usual = Counter(having.values()).most_common(1)[0][0]
        for run, value in having.items():
            if value != usual:
                unlike.setdefault(f"{key}={value[:12]}, not {usual[:12]}", []).append(run)
    return unlike


def _note(group: str, words: str, runs: list[str]) -> str:
    what = runs[0] if len(runs) == 1 else f"{counted(len(runs), 'run')} ({listed(runs)})"
    measured = "heads were probed" if group == PROBES else f"{group} was measured"
    return f"{what}: {measured} with other settings ({words}): left out"


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


WORTH = tuple(name for names in OF_WORTH.values() for name in names)
"""Measures of what a head is worth; a run without any of them is left out."""


def worth_of(paths: Sequence[Path], tasks: Sequence[str] = ()) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The values of all measures on heads (`head_values`) with a column `table`, and notes.

    A path is a run's folder, or a table that `mtl importance` or `mtl ablate` wrote with `--out`. `table` is
    empty for a run's own heads.parquet, otherwise the file's name without its suffix. A run that learned
    masks also has `log_alpha`: that of its last evaluation, or of when a target's heads were chosen.
    Raises `InputError` if a path is neither, or no run has anything on the chosen tasks.
    """
    notes = [
        f"{path} holds probes of an encoder, and no run: left out"
        for path in paths
        if is_probed_encoder(path)
    ]
    runs = {path: _run_of(path) for path in paths if not is_probed_encoder(path)}
    check_encoders({str(run.folder): encoder_of(run) for run in runs.values()})
    settings = [settings_of_run(run) for run in runs.values()]
    setups = setups_of(settings)
    made = zip(runs, setups, settings, strict=True)
    repeated, copies = repeats([run for run in made if (run[0] / "heads.parquet").is_file()])
    notes += copies
    otherwise, unlike = measured_otherwise(
        {
            str(path): measured_run(run, setup.name, provenance)
            for (path, run), setup in zip(runs.items(), setups, strict=True)
            if path.is_dir()
            and path not in repeated
            and (provenance := provenance_of(path / "heads.parquet")) is not None
        }
    )
    notes += unlike
    parts = []
    # Single-task setups first, as in the report.
    of_setup = sorted(zip(runs.items(), setups, strict=True), key=lambda item: not item[1].single)
    for (path, run), setup in of_setup:
        if path in repeated:
            continue
        file = path / "heads.parquet" if path.is_dir() else path
        if not file.is_file():
            notes.append(f"{path} has no heads.parquet: left out; 'mtl ablate' and 'mtl importance' make it")
            continue
        measured = chosen_of(run.config()["tasks"], tasks, str(path), notes)
        values = worth_of_run(run, file, measured, setup.name, otherwise.get(str(path), ()))
        if values.filter(pl.col("measure").is_in(WORTH)).is_empty():
            notes.append(f"{path} has nothing on what heads are worth to {', '.join(tasks) or 'its tasks'}")
            continue
        parts.append(values.with_columns(table=pl.lit("" if path.is_dir() else path.stem)))
    if not parts:
        raise nothing_left(notes, "nothing to draw: give runs after 'mtl ablate RUN'")
    return pl.concat(parts), tuple(notes)


def worth_of_run(
    run: Run, file: Path, tasks: Sequence[str], setup: str, but: Collection[str] = ()
) -> pl.DataFrame:
    """The values of one table of heads, for these tasks and all measures except those in `but`.

    Raises `InputError` if it cannot be read.
    """
    return head_values(measured(run, file, tasks, setup).filter(~pl.col("measure").is_in(list(but))))


def measured_run(run: Run, setup: str, provenance: Mapping[str, str]) -> MeasuredRun:
    """How a run's heads were measured, by the provenance of its heads.parquet."""
    return MeasuredRun((setup, in_order_of_catalogue(run.config()["tasks"])), has_masks(run), provenance)


def provenance_of(file: Path) -> Mapping[str, str] | None:
    """The provenance in a table of heads; `None` if it cannot be read, which its reader says."""
    try:
        return heads_table.read_heads_table(file)[1] if file.is_file() else None
    except ValueError:
        return None


def measured(
    run: Run, file: Path, tasks: Sequence[str], setup: str, table: pl.DataFrame | None = None
) -> pl.DataFrame:
    """The rows that `head_values` needs from one table of heads; raises `InputError` if it cannot be read.

    `table` is what the file holds, if it was read already.
    """
    # Syntactic roles follow from the arcs of one task, and count for all tasks.
    role = pl.col("measure").is_in(BY_NAME[SYNTACTIC].names)
    wanted = pl.col("measure").is_in(USED) & (pl.col("task").is_in([*tasks, ""]) | role)
    finite = pl.col("value").is_finite().fill_null(False)
    if table is None:
        with as_input_error():
            table = heads_table.read_heads_table(file)[0]
    of_gates = run.folder / "gates.parquet"
    try:
        gates = last_log_alphas(of_gates)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{of_gates}: cannot be read ({first_line(error)}); train the run again") from error
    if broken := table.filter(~finite).height:
        raise InputError(f"{file}: {counted(broken, 'value')} not finite; measure the run again")
    rows = pl.concat([heads_table.in_categories(of) for of in (table, gates)]).drop("choice")
    names = {"setup": setup, "run": str(run.folder)}
    of_run = {column: pl.lit(name, pl.Categorical) for column, name in names.items()}
    return rows.filter(wanted).with_columns(**of_run, seed=pl.lit(int(run.config()["seed"])))


def _run_of(path: Path) -> Run:
    """The run in a folder, or the run on whose heads a table was measured."""
    if not path.is_file():
        return Run.open(path)
    with as_input_error():
        made_of: Mapping[str, str] = heads_table.read_heads_table(path)[1]
    folders = [value for key, value in made_of.items() if key.rpartition(".")[2] == "run"]
    known = [Path(folder) for folder in folders if (Path(folder) / "config.yaml").exists()]
    if not known:
        named = f" ({folders[0]} is no longer a run)" if folders else ""
        raise InputError(f"{path}: its run is not known{named}; make the table again with --out={path}")
    return Run.open(known[0])


def with_groups(values: pl.DataFrame) -> pl.DataFrame:
    """The values with a column `group`: the task, with setup and table if there are several of these.

    A table that is not a run's own heads.parquet is a setup of its own, since it is about other sentences.
    """
    several = {name: values[name].n_unique() > 1 for name in ("setup", "table")}
    group, setup = pl.col("task"), pl.col("setup")
    if several["setup"]:
        group = pl.format("{}, {}", group, "setup")
    if several["table"]:
        other = pl.col("table") != ""
        group = pl.when(other).then(pl.format("{}, {}", group, "table")).otherwise(group)
        setup = pl.when(other).then(pl.format("{}, {}", "setup", "table")).otherwise(setup)
    return values.with_columns(group=group, setup=setup)


def check_measure(measure: str, values: pl.DataFrame) -> list[str]:
    """A note on the tables that lack this measure; raises `InputError` if all do."""
    there = list(values["measure"].unique(maintain_order=True))
    if measure not in there:
        raise InputError(f"none of these tables has {measure!r}; there are {', '.join(there)}")
    tables = values.group_by("run", "table", maintain_order=True).agg(pl.col("measure").unique())
    names = [
        f"{run} {table}".rstrip() for run, table, measures in tables.iter_rows() if measure not in measures
    ]
    return [f"without {measure}, so left out: {listed(names)}"] if names else []
