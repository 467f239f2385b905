"""What heads are worth, read from run folders and from tables that were written elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import polars as pl

from mtl.errors import InputError, as_input_error
from mtl.heads.gate_file import last_log_alphas
from mtl.probes.measures.groups import BY_NAME
from mtl.probes.statistics.head_values import OF_WORTH, SYNTACTIC, USED, head_values
from mtl.probes.tables import heads_table
from mtl.runs.compare.heads import MeasuredRun, has_masks, measured_otherwise
from mtl.runs.compare.settings import check_encoders, encoder_of, listed, settings_of_run
from mtl.runs.compare.setups import chosen_of, nothing_left, repeats, setups_of
from mtl.runs.folder.run import Run, is_probed_encoder
from mtl.tasks.catalogue import in_order_of_catalogue
from mtl.tasks.in_words import counted, first_line

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
