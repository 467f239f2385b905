"""Which runs a report is about: those with comparable masks and probes; their masks; notes on the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from mtl.errors import InputError
from mtl.heads.gate_file import LEARNED, read_gates
from mtl.probes.report.data import CHOICES, Setup
from mtl.probes.sites import KEYS, Site, shape_text, sites_among
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import last_gates, name_draws
from mtl.runs.compare.heads import OF_MASKS, SAME, MeasuredHeads, has_masks, heads_of, probed_with, read_heads
from mtl.runs.compare.settings import (
    UNREADABLE,
    Settings,
    check_encoders,
    draws_of,
    encoder_of,
    listed,
    settings_of_run,
)
from mtl.runs.compare.setups import chosen_of, nothing_left, repeats, setups_of
from mtl.runs.folder.run import Content, Run
from mtl.tasks.catalogue import catalogue_place
from mtl.tasks.in_words import counted, first_line

T = TypeVar("T")


@dataclass(frozen=True)
class RunWithSetup:
    """A run, its configuration and the setup that it belongs to."""

    run: Run
    config: dict[str, Any]
    setup: Setup
    settings: Settings

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.run.folder


def with_setups(runs: Sequence[Run]) -> list[RunWithSetup]:
    """These runs with their setups (`setups_of`)."""
    settings = [settings_of_run(run) for run in runs]
    of_runs = zip(runs, setups_of(settings), settings, strict=True)
    return [RunWithSetup(run, run.config(), setup, made) for run, setup, made in of_runs]


def of_one_encoder(
    runs: Sequence[RunWithSetup], bare: Sequence[Path], notes: list[str]
) -> tuple[Content, list[RunWithSetup]]:
    """The most frequent encoder and the runs that started from it; the others are noted.

    Equal files at two places are one encoder. `bare` are folders of probes without a run. If there are no
    runs, the encoder is the first that these name, or empty.
    """
    if not runs:
        return Content(next(filter(None, (_settings(folder).get("target", "") for folder in bare)), "")), []
    groups: list[tuple[Content, list[RunWithSetup]]] = []
    for run in runs:
        encoder = encoder_of(run.run)
        known = next((of for first, of in groups if not encoder.another_encoder(first)), None)
        if known is None:
            groups.append((encoder, [run]))
        else:
            known.append(run)
    most, same = max(groups, key=lambda group: len(group[1]))
    notes += [
        f"{run.run.folder} is of {encoder.place}, most runs are of {most.place}: without its masks and probes"
        for encoder, others in groups
        for run in others
        if others is not same
    ]
    return most, same


def _settings(folder: Path) -> dict[str, str]:
    try:
        return heads_table.read_heads_table(folder / "heads.parquet")[1]
    except ValueError:
        return {}


def comparable_probes(
    runs: Sequence[Path],
    bare: Sequence[Path],
    encoder: Content,
    notes: list[str],
    not_to_probe: Collection[Path] = (),
    read: Callable[[Path], MeasuredHeads] = read_heads,
) -> tuple[pl.DataFrame | None, pl.DataFrame]:
    """The measures on heads of runs and `bare` folders that were probed alike, and their provenance.

    The others are noted, and so are runs that were not probed, unless their folder is in `not_to_probe`.
    The first table is `None` if nothing is left. `read` reads a folder's table.
    """
    known: dict[Path, MeasuredHeads] = {}
    unprobed = []
    for folder in [*runs, *bare]:
        if not (folder / "heads.parquet").exists():
            if folder not in not_to_probe:
                unprobed.append(folder.name)
            continue
        try:
            table = read(folder)
        except InputError as error:
            notes.append(str(error))
            continue
        if table.lost_shares:
            notes.append(
                f"{folder}/heads.parquet: {counted(table.lost_shares, 'value is', 'values are')} "
                "not numbers; probe it again: left out"
            )
            continue
        known[folder] = table
    for folder in bare:
        target = known[folder].provenance.get("target", "") if folder in known else ""
        if runs and folder in known and Content(target).another_encoder(encoder):
            notes.append(
                f"{folder} has probes of {target or 'an unnamed encoder'}, not of {encoder.place}: left out"
            )
            del known[folder]
    if unprobed:
        notes.append(f"not probed (no heads.parquet; 'mtl probe' makes it): {listed(unprobed)}")
    to_probe = any(folder not in not_to_probe for folder in runs)
    if to_probe and not any(folder in known for folder in bare):
        notes.append(
            "no probes of the encoder before training: 'mtl probe ENCODER --corpus CORPUS --out "
            "DIR/pretrained' makes them, DIR being the folder of this report; in a study, the setup "
            "pretrained"
        )
    made = {folder: table.provenance for folder, table in known.items()}
    # Runs that were measured but not probed have no settings of probing that must agree.
    probed = [folder for folder, table in known.items() if table.probed]
    alike = _most(probed, lambda folder: tuple(probed_with(made[folder], masked=False).values()))
    masked = [folder for folder in alike if folder in runs and has_masks(Run(folder))]
    usual = _most(masked, lambda folder: made[folder].get(OF_MASKS, ""))
    notes += [
        f"{folder} was probed with other settings ({_differing(made, like[0], folder, keys)}): left out"
        for group, like, keys in ((probed, alike, SAME), (masked, usual, (OF_MASKS,)))
        for folder in group
        if folder not in like
    ]
    alike = [folder for folder in alike if folder not in masked or folder in usual]
    alike = [folder for folder, table in known.items() if folder in alike or not table.probed]
    rows = [{"folder": folder.name, **made[folder]} for folder in alike]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    probes = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String))
    if not alike:
        return None, probes
    try:
        heads, missing = heads_of(alike, read=known.__getitem__)
    except InputError as error:
        notes.append(f"probes: {error}")
        return None, probes
    notes += missing
    return heads, probes


def note_averages(runs: Sequence[RunWithSetup], heads: pl.DataFrame | None, notes: list[str]) -> None:
    """Note which means over probed runs are over several setups."""
    if heads is None:
        return
    # Setups that differ only in the set of tasks count as one.
    names = {str(run.run.folder): run.setup.family for run in runs}
    pairs = heads_table.runs_of(heads).select("regime", "run").unique(maintain_order=True)
    for regime, folders in pairs.group_by("regime", maintain_order=True).agg("run").iter_rows():
        setups = list(dict.fromkeys(names[folder] for folder in folders if folder in names))
        if len(setups) > 1:
            notes.append(
                f"probes of {regime} runs are means over {counted(len(setups), 'setup')}: {'; '.join(setups)}"
            )


def _differing(known: Mapping[Path, Mapping[str, str]], one: Path, other: Path, keys: Sequence[str]) -> str:
    first, second = known[one], known[other]
    return ", ".join(
        f"{key}={second.get(key, '')[:12]}, not {first.get(key, '')[:12]}"
        for key in keys
        if first.get(key, "") != second.get(key, "")
    )


def of_one_shape(
    gates: pl.DataFrame | None, heads: pl.DataFrame | None, notes: list[str]
) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """Masks and probes of the most frequent shape: kinds of attention, their layers, heads per layer.

    Runs of other shapes and incomplete masks are left out and noted; an empty table is `None`.
    """
    tables = {"masks": gates, "probes": heads}
    shapes: dict[tuple[str, str], tuple[frozenset[Site], int]] = {}
    names: dict[tuple[str, str], str] = {}
    for name, table in tables.items():
        if table is None:
            continue
        masks = _heights(table) if name == "masks" else {}
        of_runs = table.group_by("run", maintain_order=True).agg(
            pl.struct("attention", "layer").unique(maintain_order=True), pl.col("head").fill_null(-1).max()
        )
        for run, places, last in of_runs.iter_rows():
            sites, per_site = sites_among((place["attention"], place["layer"]) for place in places), last + 1
            shape = shape_text(sites, per_site)
            incomplete = [
                f"{run}: the mask of {task} has {counted(height, 'head')}, not {shape}: left out"
                for task, height in masks.get(run, ())
                if height != len(sites) * per_site
            ]
            notes += incomplete
            if not incomplete:
                shapes[name, run] = frozenset(sites), per_site
                names[name, run] = shape
    usual = _most(shapes, lambda key: shapes[key])
    notes += [
        f"{key[1]}: {key[0]} of {names[key]}, most are of {names[usual[0]]}: left out"
        for key in shapes
        if key not in usual
    ]
    chosen = {name: [run for kind, run in usual if kind == name] for name in tables}
    return _of_runs(gates, chosen["masks"]), _of_runs(heads, chosen["probes"])


def _heights(gates: pl.DataFrame) -> dict[str, list[tuple[str, int]]]:
    """By run, the tasks with the number of rows of their masks."""
    heights: dict[str, list[tuple[str, int]]] = {}
    for run, task, height in gates.group_by("run", "task", maintain_order=True).len().iter_rows():
        heights.setdefault(run, []).append((task, height))
    return heights


def _of_runs(table: pl.DataFrame | None, runs: Sequence[str]) -> pl.DataFrame | None:
    """The rows of these runs, not copied if they are all rows; `None` if there are none."""
    if table is None or not runs:
        return None
    return table if set(table["run"].unique()) == set(runs) else table.filter(pl.col("run").is_in(runs))


def _most(items: Mapping[T, Any] | Sequence[T], key: Callable[[T], Hashable]) -> list[T]:
    """The items that have the most frequent key."""
    counts = Counter(key(item) for item in items)
    return [item for item in items if key(item) == counts.most_common(1)[0][0]]


def line(error: Exception, file: Path | None = None) -> str:
    """An error's message as part of a line: at most 120 characters, without the file's name at the front."""
    text = " ".join(str(error).split()) if not isinstance(error, KeyError) else f"no {error.args[0]}"
    if isinstance(error, json.JSONDecodeError):
        return "not JSON"
    return text.removeprefix(f"{file} ")[:120] or type(error).__name__


UNFINISHED = ("running", "interrupted", "failed")
"""The states of runs whose scores and masks are not final yet."""


Choose = Callable[[list[RunWithSetup], list[str]], list[RunWithSetup]]
"""Takes runs and the notes on them; returns those that a report shows, and adds a note on the others."""


def all_of(runs: list[RunWithSetup], notes: list[str]) -> list[RunWithSetup]:
    """All runs, without a note."""
    return runs


def runs_in(
    folder: Path, tasks: Sequence[str], notes: list[str], choose: Choose = all_of
) -> list[RunWithSetup]:
    """The finished runs in a folder or up to two folders below, without repeats, in the report's order.

    `tasks` is the order of tasks. `notes` gets a line on whatever is left out.
    """
    runs = choose(_finished(folder, tasks, notes), notes)
    repeated, left_out = repeats([(run.run.folder, run.setup, run.settings) for run in runs])
    notes += left_out
    return [run for run in runs if run.run.folder not in repeated]


def folders_with(folder: Path, name: str, outside: Sequence[Path] = ()) -> list[Path]:
    """The folders, at most two below this one, that hold a file of this name.

    Hidden folders are left out, and so are those in `outside` and all below them.
    """
    paths = [path.parent for depth in ("", "*/", "*/*/") for path in sorted(folder.glob(f"{depth}{name}"))]
    return [
        path
        for path in paths
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not any(path.is_relative_to(other) for other in outside)
    ]


def runs_in_order(paths: Sequence[Path]) -> list[Path]:
    """Folders of runs by number of tasks, tasks, settings and seeds, then all other paths as given.

    So what is computed from runs depends neither on their names nor on the order in which they are given.
    """
    keys: dict[Path, tuple[object, ...]] = {}
    for path in paths:
        if not (path / "config.yaml").is_file():
            continue
        try:
            made = settings_of_run(Run(path))
        except UNREADABLE:
            continue  # its reader says what is wrong
        places = [catalogue_place(task) for task in made.tasks]
        keys[path] = len(places), places, made.identity, made.observation, made.heads_kept or 0
    runs = sorted((path for path in paths if path in keys), key=keys.__getitem__)
    return [*runs, *(path for path in paths if path not in keys)]


def _finished(folder: Path, tasks: Sequence[str], notes: list[str]) -> list[RunWithSetup]:
    """The finished runs with readable configurations."""
    configs: dict[Path, dict[str, Any]] = {}
    for path in folders_with(folder, "config.yaml"):
        try:
            state = Run(path).status().get("state")
        except UNREADABLE as error:
            notes.append(_unusable(path / "status.json", error))
            continue
        try:
            config = _configuration(Run.open(path))
        except UNREADABLE as error:
            notes.append(_unusable(path / "config.yaml", error))
            continue
        if state in UNFINISHED:
            notes.append(f"{path} is not finished ({state}): left out")
            continue
        configs[path] = config
    runs = with_setups([Run(path) for path in configs])
    number = {task: place for place, task in enumerate(tasks)}

    def order(run: RunWithSetup) -> tuple[object, ...]:
        trained = [number.get(task, len(number)) for task in run.config["tasks"]]
        of_setup = (0, []) if run.setup.single else (len(trained), trained)
        return of_setup, run.setup.name, trained, run.config["seed"], run.run.folder

    return sorted(runs, key=order)


def _unusable(file: Path, error: Exception) -> str:
    """The note on a damaged file, which names it once."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    whole = " ".join(str(cause).split())
    if whole.startswith(f"{file.parent}/") and not whole.startswith(str(file)):  # another file of the run
        return f"{whole}: left out"
    return f"{file} cannot be used ({line(cause, file)}): left out"


def _configuration(run: Run) -> dict[str, Any]:
    """A run's configuration; raises one of `UNREADABLE` if it lacks what a report needs."""
    config = run.config()
    if not isinstance(config, Mapping):
        raise ValueError("it holds no keys")
    if not config["tasks"] or not config["encoder"]["name"]:
        raise ValueError("no tasks or no encoder")
    settings_of_run(run)  # reads every group of keys
    encoder_of(run)
    return config


class NoMasks(InputError):
    """None of the runs has a mask."""


def gates_of(
    runs: Sequence[Run], tasks: Sequence[str] = (), *, shared_once: bool = True
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """All rows of the runs' gates.parquet with `learned`, `run`, `seed`, `draw`; notes on runs without masks.

    `learned` is `open` before a target's final choice forced heads (`LEARNED`). `draw` is the draw of the
    random labels of the mask's task (`Task.drawn`); if there are several draws, each is a task of its own
    (`name_draws`).

    `tasks` chooses among the tasks (empty: all). With `shared_once`, a mask that tasks share is taken once
    and named after all of them. Raises `InputError` if no run has masks of these tasks, a table is damaged,
    or the encoders differ.
    """
    check_encoders({str(run.folder): encoder_of(run) for run in runs})
    parts, notes = [], []
    for run in runs:
        path = run.folder / "gates.parquet"
        if not path.is_file():
            notes.append(f"{run.folder} has no masks (no gates.parquet): left out")
            continue
        table = _read(path)
        known = table["task"].unique(maintain_order=True).to_list()
        if chosen := chosen_of(known, tasks, str(run.folder), notes):
            part = table.filter(pl.col("task").is_in(chosen)) if tasks else table
            parts.append(
                (_shared_once(part, run) if shared_once else part).with_columns(
                    learned=LEARNED, run=pl.lit(str(run.folder)), seed=pl.lit(int(run.config()["seed"])),
                    draw=_draw(run),
                )
            )  # fmt: skip
    if not parts:
        raise NoMasks(str(nothing_left(notes, "nothing to draw: give runs trained with --pruning=dynamic")))
    return name_draws(pl.concat(parts)), tuple(notes)


def _draw(run: Run) -> pl.Expr:
    """The draw of random labels of each mask, if its task, or one of its tasks, has such labels."""
    of_task = (
        pl.when(pl.col("task").str.split("+").list.contains(name)).then(pl.lit(draw, pl.Int64))
        for name, draw in draws_of(run.config()).items()
    )
    return pl.coalesce(*of_task, pl.lit(None, pl.Int64))


def _read(path: Path) -> pl.DataFrame:
    """The table of a gates.parquet; raises `InputError` if it is damaged."""
    try:
        return read_gates(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = first_line(error)
        raise InputError(f"{path}: cannot be read ({reason}); train the run again") from error


def _shared_once(gates: pl.DataFrame, run: Run) -> pl.DataFrame:
    """If the run's tasks share a mask, its rows once, named after all tasks; otherwise all rows."""
    tasks = list(gates["task"].unique(maintain_order=True))
    if len(tasks) == 1 or run.config().get("gates", {}).get("scope") != "shared":
        return gates
    return gates.filter(pl.col("task") == tasks[0]).with_columns(task=pl.lit("+".join(tasks)))


def masks_of(runs: Sequence[RunWithSetup], notes: list[str]) -> pl.DataFrame | None:
    """All masks at their last step, with `setup`; `None` if no run has masks. What is left out is noted."""
    parts: list[pl.DataFrame] = []
    used: list[Run] = []
    for run in runs:
        folder = run.run.folder
        maskless = run.config.get("pruning", "none") == "none" or bool(run.run.derivation())
        if maskless and not (folder / "gates.parquet").is_file():
            continue  # trained without gates, or derived: it should have no masks
        try:
            gates, left_out = gates_of([run.run])
            columns = ("run", "seed", "draw", "task", "step", *KEYS, "gate", "open", "learned")
            gates = last_gates(gates).select(columns)
            gates = gates.cast({"gate": pl.Float64, "layer": pl.Int32, "head": pl.Int32, "step": pl.Int64})
        except NoMasks:
            there = (folder / "gates.parquet").is_file()
            notes.append(
                f"{folder}/gates.parquet is empty: left out"
                if there
                else f"{folder} has no masks (no gates.parquet): left out"
            )
            continue
        except InputError as error:
            notes.append(str(error))
            continue
        except pl.exceptions.PolarsError as error:  # columns that are missing or of another type
            notes.append(f"{folder}/gates.parquet: cannot be used ({line(error)}); train the run again")
            continue
        notes += left_out
        used.append(run.run)
        parts.append(gates.with_columns(setup=pl.lit(run.setup.name)))
    notes += _forced(used)
    if runs and not parts:
        notes.append("no run has masks: train with --pruning=dynamic to see them")
    return name_draws(pl.concat(parts)) if parts else None


def choices_of(runs: Sequence[RunWithSetup]) -> pl.DataFrame | None:
    """What a target's final choice changed, a row per mask (`CHOICES`); `None` if no run has a target."""
    counts = CHOICES.names()[4:]
    rows = [
        (run.setup.name, str(run.run.folder), run.config["seed"], mask, *map(choice.get, counts))
        for run in runs
        for mask, choice in run.run.status().get("choices", {}).items()
    ]
    return pl.DataFrame(rows, schema=CHOICES, orient="row") if rows else None


def _forced(runs: Sequence[Run]) -> list[str]:
    """A note on the masks in which a target forced more than a tenth of the heads wanted, if there are any.

    It gives numbers and not shares, since more heads may be forced than are wanted. If kinds of attention
    have targets of their own, each of them counts.
    """
    masks: dict[tuple[Path, str], None] = {}
    numbers: list[tuple[int, int]] = []
    for run in runs:
        for name, choice in run.status().get("choices", {}).items():
            moved = choice["forced_open"] + choice["forced_closed"]
            wanted = choice["open_at_choice"] + choice["forced_open"] - choice["forced_closed"]
            if moved > 0.1 * wanted:
                masks[run.folder, name.partition("/")[0]] = None
                numbers.append((moved, wanted))
    if not masks:
        return []
    names = list(dict.fromkeys(folder.name for folder, _ in masks))
    forced, kept = map(_range, zip(*numbers, strict=True))
    return [
        f"{counted(len(masks), 'mask')} ({listed(names)}): training had not decided which {kept} heads to "
        f"keep, so {forced} heads of each were set at its end; raise max_epochs before you read such masks"
    ]


def _range(numbers: Sequence[int]) -> str:
    """The least and the greatest number; if they are equal, one of them."""
    least, most = min(numbers), max(numbers)
    return f"{least}" if least == most else f"{least} to {most}"
