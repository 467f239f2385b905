"""What is measured on the heads of several runs in one table, and which were measured alike.

What heads are worth is also read from tables that were written elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path

import polars as pl

from mtl.errors import InputError
from mtl.heads.gate_file import last_log_alphas
from mtl.probes.measures.groups import BY_NAME, GROUPS
from mtl.probes.statistics.head_values import OF_WORTH, SYNTACTIC, USED, head_values
from mtl.probes.tables import heads_table
from mtl.runs.compare.run_set import MeasuredHeads, RunSet, RunWithSetup
from mtl.runs.compare.settings import MASKS, check_encoders, listed
from mtl.runs.compare.setups import chosen_of, missing_seeds, nothing_left
from mtl.runs.folder.run import Content, Run, is_probed_encoder
from mtl.tasks.in_words import counted, first_line

SAME = ("split", "corpus", "centroids", "constituents", "final_special", "precision")
"""The settings of probing in which compared runs must agree."""
OF_MASKS = "masks"
"""The setting whether masks were applied, in which compared runs with masks must agree."""


def probed_with(provenance: Mapping[str, str], masked: bool) -> dict[str, str]:
    """The settings of probing by which runs are compared; `masked`: whether the run has masks."""
    return {key: provenance.get(key, "") for key in (*SAME, *(OF_MASKS,) * masked)}


def heads_of(runs: RunSet, tasks: Sequence[str] = ()) -> pl.DataFrame:
    """All measures on the heads of runs, and of encoders before training (`bare`), without `choice`.

    Besides, the columns `regime` (of encoders `pretrained`), `run` and `seed` (of encoders 0). Of a run, only
    rows of the tasks that it was trained on, and rows of no task, are taken. Runs of two tasks are of the
    regime `pair` if another run has more tasks, otherwise `joint`. Left out are runs with a task that others
    are only compared with (half of a task, or one with random labels), runs that repeat another one, and
    runs that were trained otherwise than most in more than their masks. Raises `InputError` if no table is
    left, a table is damaged, or encoders or settings of probing differ.
    """
    start = len(runs.notes)
    if compared := [run.folder.name for run in runs if run.settings.compared]:
        runs.notes.append(
            f"{counted(len(compared), 'run')} with half of a task or random labels left out of the "
            f"measures on heads by regime: {listed(compared)}"
        )
    runs = runs.where(lambda run: not run.settings.compared)
    probed = runs.where(lambda run: run.has("heads.parquet"))
    probed.check_encoders()
    alike = probed.without_repeats().like_most(MASKS, about="measures on heads by regime: ")
    runs -= probed - alike
    most = max((len(run.settings.tasks) for run in runs), default=0)
    parts: list[pl.DataFrame] = []
    encoders: dict[str, Content] = {}
    settings = {}
    for run, heads in (*((run, run.heads) for run in runs), *((None, heads) for heads in runs.bare)):
        name = str(heads.folder)
        if not heads.file.is_file():
            runs.notes.append(f"{name} was not probed (no heads.parquet): left out; 'mtl probe' makes it")
            continue
        if lost := len(heads.lost):
            runs.notes.append(f"{heads.file}: {counted(lost, 'value')} not finite: left out")
        if heads.probed:
            settings[name] = probed_with(heads.provenance, run is not None and run.settings.masked)
        regime, seed = "pretrained", 0
        if run is None:
            encoders[name] = Content(heads.provenance.get("target", ""))
        else:
            size, seed = len(run.settings.tasks), run.settings.seed
            regime = "stl" if size == 1 else "pair" if size == 2 and most > 2 else "joint"
            encoders[name] = run.encoder
        if chosen := chosen_of(heads.tasks, tasks, name, runs.notes):
            of_run = {"regime": pl.lit(regime, pl.Categorical), "run": pl.lit(name, pl.Categorical)}
            rows = heads.rows.filter(pl.col("task").is_in([*chosen, ""]))
            parts.append(rows.with_columns(**of_run, seed=pl.lit(seed)))
    if not parts:
        raise nothing_left(runs.notes[start:], "nothing to draw: give probed runs")
    check_encoders(encoders)
    check_probed_alike(settings)
    table = pl.concat(parts, rechunk=True)
    runs.notes += _missing_runs(table)
    return table


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


def _settings_of(run: RunWithSetup, group: str, measure: str) -> dict[str, str]:
    """The settings that a measure of a group was made with; empty if it was not made, or cannot be read."""
    provenance = run.heads.provenance
    found = {
        key.removeprefix(f"{group}."): value
        for key, value in provenance.items()
        if key.startswith(f"{group}.")
    }
    if group == PROBES and SAME[0] in provenance:
        found = probed_with(provenance, masked=True)
    if any(found.get(key) == "0" for key, name in _OF_ONE_MEASURE.items() if name == measure):
        return {}
    return {
        key: value
        for key, value in found.items()
        if key not in _NO_SETTING
        and (key != _OF_MASKS or run.settings.masked)
        and _OF_ONE_MEASURE.get(key, measure) == measure
    }


def measured_otherwise(runs: RunSet) -> dict[str, set[str]]:
    """By run, the names in the column `measure` that were measured otherwise than in most runs; noted.

    Runs that have a measure are compared in its settings; those of one setup and the same tasks also in their
    sentences. Of equally frequent settings, those of the first run are usual.
    """
    otherwise: dict[str, set[str]] = {}
    notes: dict[str, None] = {}
    for name, group in GROUPS.items():
        for measure in group.measures:
            settings = {run.name: found for run in runs if (found := _settings_of(run, name, measure.name))}
            repeats: dict[Hashable, list[str]] = {}
            for run in runs:
                if run.name in settings:
                    repeats.setdefault((run.setup.name, run.settings.tasks), []).append(run.name)
            compared = [([*settings], False), *((members, True) for members in repeats.values())]
            for members, of_sentences in compared:
                unlike = _unlike({run: settings[run] for run in members}, of_sentences)
                for words, of_words in unlike.items():
                    for run_name in of_words:
                        otherwise.setdefault(run_name, set()).update(measure.names)
                    notes[_note(name, words, of_words)] = None
    runs.notes += notes
    return otherwise


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
    paths = [path for path in paths if not is_probed_encoder(path)]
    runs = RunSet.of(map(_run_of, paths), notes)
    runs.check_encoders()
    # A table that was written elsewhere is about other sentences, so that it repeats no run's own.
    own = RunSet((run for path, run in zip(paths, runs, strict=True) if path.is_dir()), notes)
    own = own.where(lambda run: run.has("heads.parquet"))
    observed = own.without_repeats()
    repeated = {run.folder for run in own - observed}
    otherwise = measured_otherwise(observed)
    parts = []
    # Single-task setups first, as in the report.
    for path, run in sorted(zip(paths, runs, strict=True), key=lambda item: not item[1].setup.single):
        if path in repeated:
            continue
        if path.is_dir() and not run.has("heads.parquet"):
            notes.append(f"{path} has no heads.parquet: left out; 'mtl ablate' and 'mtl importance' make it")
            continue
        measured = chosen_of(run.config["tasks"], tasks, str(path), notes)
        values = worth_of_run(run, measured, otherwise.get(str(path), ()), None if path.is_dir() else path)
        if values.filter(pl.col("measure").is_in(WORTH)).is_empty():
            notes.append(f"{path} has nothing on what heads are worth to {', '.join(tasks) or 'its tasks'}")
            continue
        parts.append(values.with_columns(table=pl.lit("" if path.is_dir() else path.stem)))
    if not parts:
        raise nothing_left(notes, "nothing to draw: give runs after 'mtl ablate RUN'")
    return pl.concat(parts), tuple(notes)


def worth_of_run(
    run: RunWithSetup, tasks: Sequence[str], but: Collection[str] = (), file: Path | None = None
) -> pl.DataFrame:
    """The values of a run's heads, or of a table elsewhere, for these tasks and all measures except `but`.

    Raises as `worth_rows` does.
    """
    return head_values(worth_rows(run, tasks, file).filter(~pl.col("measure").is_in(list(but))))


def worth_rows(run: RunWithSetup, tasks: Sequence[str], file: Path | None = None) -> pl.DataFrame:
    """The rows that `head_values` needs from a run's heads.parquet, or from the table in `file`.

    Raises `InputError` if it cannot be read, or if a value is not finite.
    """
    # Syntactic roles follow from the arcs of one task, and count for all tasks.
    role = pl.col("measure").is_in(BY_NAME[SYNTACTIC].names)
    wanted = pl.col("measure").is_in(USED) & (pl.col("task").is_in([*tasks, ""]) | role)
    heads = run.heads if file is None else MeasuredHeads(file)
    table, _ = heads.read
    of_gates = run.folder / "gates.parquet"
    try:
        gates = last_log_alphas(of_gates)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{of_gates}: cannot be read ({first_line(error)}); train the run again") from error
    if broken := len(heads.lost):
        raise InputError(f"{heads.file}: {counted(broken, 'value')} not finite; measure the run again")
    rows = pl.concat([table, heads_table.in_categories(gates)]).drop("choice")
    names = {"setup": run.setup.name, "run": run.name}
    of_run = {column: pl.lit(name, pl.Categorical) for column, name in names.items()}
    return rows.filter(wanted).with_columns(**of_run, seed=pl.lit(run.settings.seed))


def _run_of(path: Path) -> Run:
    """The run in a folder, or the run on whose heads a table was measured."""
    if not path.is_file():
        return Run.open(path)
    _, made_of = MeasuredHeads(path).read
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
