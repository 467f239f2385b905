"""Which runs a report is about: those with comparable masks and probes; their masks; notes on the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from mtl.errors import InputError
from mtl.heads.gate_file import LEARNED, read_gates
from mtl.probes.measures.groups import SKILLS
from mtl.probes.report.data import CHOICES
from mtl.probes.sites import KEYS, Site, shape_text, sites_among
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import last_gates, name_draws
from mtl.runs.compare.heads import OF_MASKS, SAME, heads_of, probed_with
from mtl.runs.compare.run_set import MeasuredHeads, RunSet, RunWithSetup
from mtl.runs.compare.settings import UNREADABLE, encoder_of, listed, settings_of_run
from mtl.runs.compare.setups import chosen_of, nothing_left
from mtl.runs.folder.run import Content, Run, is_probed_encoder
from mtl.tasks.catalogue import catalogue_place
from mtl.tasks.in_words import counted, first_line

T = TypeVar("T")


def of_one_encoder(runs: RunSet) -> tuple[Content, RunSet]:
    """The most frequent encoder and the runs that started from it; the others are noted.

    Equal files at two places are one encoder. If there are no runs, the encoder is the first that the probes
    of encoders (`bare`) name, or empty.
    """
    groups: list[tuple[Content, list[RunWithSetup]]] = []
    for run in runs:
        known = next((of for first, of in groups if not run.encoder.another_encoder(first)), None)
        if known is None:
            groups.append((run.encoder, [run]))
        else:
            known.append(run)
    if not groups:
        targets = (heads.provenance.get("target", "") for heads in runs.bare)
        return Content(next(filter(None, targets), "")), runs
    most, same = max(groups, key=lambda group: len(group[1]))
    runs.notes += [
        f"{run.name} is of {encoder.place}, most runs are of {most.place}: without its masks and probes"
        for encoder, others in groups
        for run in others
        if others is not same
    ]
    names = {run.name for run in same}
    return most, runs.where(lambda run: run.name in names)


def comparable_probes(
    runs: RunSet, encoder: Content, not_to_probe: Collection[Path] = ()
) -> tuple[pl.DataFrame | None, pl.DataFrame]:
    """The measures on heads of runs, and of encoders before training, that were probed alike; provenance.

    The others are noted, and so are runs that were not probed, unless their folder is in `not_to_probe`.
    The first table is `None` if nothing is left.
    """
    known: list[MeasuredHeads] = []
    unprobed, notes = [], runs.notes
    for heads in (*(run.heads for run in runs), *runs.bare):
        if not heads.file.is_file():
            if heads.folder not in not_to_probe:
                unprobed.append(heads.folder.name)
            continue
        try:
            lost = int(heads.lost.is_in([*SKILLS, *SKILLS.values()]).sum())
        except InputError as error:
            notes.append(str(error))
            continue
        if lost:
            notes.append(
                f"{heads.file}: {counted(lost, 'value is', 'values are')} not numbers; probe it again: "
                "left out"
            )
            continue
        known.append(heads)
    for heads in runs.bare:
        target = heads.provenance.get("target", "")
        if runs and heads in known and Content(target).another_encoder(encoder):
            notes.append(
                f"{heads.folder} has probes of {target or 'an unnamed encoder'}, not of {encoder.place}: "
                "left out"
            )
            known.remove(heads)
    if unprobed:
        notes.append(f"not probed (no heads.parquet; 'mtl probe' makes it): {listed(unprobed)}")
    to_probe = any(run.folder not in not_to_probe for run in runs)
    if to_probe and not any(heads in known for heads in runs.bare):
        notes.append(
            "no probes of the encoder before training: 'mtl probe ENCODER --corpus CORPUS --out "
            "DIR/pretrained' makes them, DIR being the folder of this report; in a study, the setup "
            "pretrained"
        )
    # Runs that were measured but not probed have no settings of probing that must agree.
    probed = [heads for heads in known if heads.probed]
    alike = _most(probed, lambda heads: tuple(probed_with(heads.provenance, masked=False).values()))
    with_masks = [run.heads for run in runs if run.settings.masked]
    masked = [heads for heads in alike if heads in with_masks]
    usual = _most(masked, lambda heads: heads.provenance.get(OF_MASKS, ""))
    notes += [
        f"{heads.folder} was probed with other settings ({_differing(like[0], heads, keys)}): left out"
        for group, like, keys in ((probed, alike, SAME), (masked, usual, (OF_MASKS,)))
        for heads in group
        if heads not in like
    ]
    alike = [heads for heads in alike if heads not in masked or heads in usual]
    alike = [heads for heads in known if heads in alike or not heads.probed]
    rows = [{"folder": heads.folder.name, **heads.provenance} for heads in alike]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    probes = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String))
    if not alike:
        return None, probes
    chosen = RunSet(
        (run for run in runs if run.heads in alike), bare=(heads for heads in runs.bare if heads in alike)
    )
    try:
        table = heads_of(chosen)
    except InputError as error:
        notes.append(f"probes: {error}")
        return None, probes
    notes += chosen.notes
    return table, probes


def note_averages(runs: RunSet, heads: pl.DataFrame | None) -> None:
    """Note which means over probed runs are over several setups."""
    if heads is None:
        return
    # Setups that differ only in the set of tasks count as one.
    names = {run.name: run.setup.family for run in runs}
    pairs = heads_table.runs_of(heads).select("regime", "run").unique(maintain_order=True)
    for regime, folders in pairs.group_by("regime", maintain_order=True).agg("run").iter_rows():
        setups = list(dict.fromkeys(names[folder] for folder in folders if folder in names))
        if len(setups) > 1:
            runs.notes.append(
                f"probes of {regime} runs are means over {counted(len(setups), 'setup')}: {'; '.join(setups)}"
            )


def _differing(one: MeasuredHeads, other: MeasuredHeads, keys: Sequence[str]) -> str:
    pairs = ((key, other.provenance.get(key, ""), one.provenance.get(key, "")) for key in keys)
    return ", ".join(f"{key}={ours[:12]}, not {usual[:12]}" for key, ours, usual in pairs if ours != usual)


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


def runs_in(folder: Path, tasks: Sequence[str], choose: Callable[[RunSet], RunSet] | None = None) -> RunSet:
    """The finished runs and the probes of encoders in a folder or up to two folders below, without repeats.

    Runs are in the report's order; `tasks` is the order of tasks, and `choose` returns the runs that are
    wanted. Notes say what is left out.
    """
    runs = _finished(folder, tasks)
    runs = (runs if choose is None else choose(runs)).without_repeats()
    probed = _folders_with(folder, "heads.parquet", outside=[run.folder for run in runs])
    bare = (MeasuredHeads(path / "heads.parquet") for path in probed if is_probed_encoder(path))
    return RunSet(runs, runs.notes, bare)


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


def _folders_with(folder: Path, name: str, outside: Sequence[Path] = ()) -> list[Path]:
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


def _finished(folder: Path, tasks: Sequence[str]) -> RunSet:
    """The finished runs with readable configurations."""
    found: list[Run] = []
    notes: list[str] = []
    for path in _folders_with(folder, "config.yaml"):
        try:
            state = Run(path).status().get("state")
        except UNREADABLE as error:
            notes.append(_unusable(path / "status.json", error))
            continue
        try:
            run = Run.open(path)
            _check_configuration(run)
        except UNREADABLE as error:
            notes.append(_unusable(path / "config.yaml", error))
            continue
        if state in UNFINISHED:
            notes.append(f"{path} is not finished ({state}): left out")
            continue
        found.append(run)
    number = {task: place for place, task in enumerate(tasks)}

    def order(run: RunWithSetup) -> tuple[object, ...]:
        trained = [number.get(task, len(number)) for task in run.config["tasks"]]
        of_setup = (0, []) if run.setup.single else (len(trained), trained)
        return of_setup, run.setup.name, trained, run.config["seed"], run.folder

    return RunSet(sorted(RunSet.of(found), key=order), notes)


def _unusable(file: Path, error: Exception) -> str:
    """The note on a damaged file, which names it once."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    whole = " ".join(str(cause).split())
    if whole.startswith(f"{file.parent}/") and not whole.startswith(str(file)):  # another file of the run
        return f"{whole}: left out"
    return f"{file} cannot be used ({line(cause, file)}): left out"


def _check_configuration(run: Run) -> None:
    """Raise one of `UNREADABLE` if a run's configuration lacks what a report needs."""
    config = run.config()
    if not config["tasks"] or not config["encoder"]["name"]:
        raise ValueError("no tasks or no encoder")
    settings_of_run(run)  # reads every group of keys
    encoder_of(run)


def gates_of(runs: RunSet, tasks: Sequence[str] = (), *, shared_once: bool = True) -> pl.DataFrame:
    """All rows of the runs' gates.parquet with `learned`, `run`, `seed`, `draw`; runs without are noted.

    `learned` is `open` before a target's final choice forced heads (`LEARNED`). `draw` is the draw of the
    random labels of the mask's task (`Task.drawn`); if there are several draws, each is a task of its own
    (`name_draws`).

    `tasks` chooses among the tasks (empty: all). With `shared_once`, a mask that tasks share is taken once
    and named after all of them. Raises `InputError` if no run has masks of these tasks, a table is damaged,
    or the encoders differ.
    """
    runs.check_encoders()
    parts, start = [], len(runs.notes)
    for run in runs:
        if not run.has("gates.parquet"):
            runs.notes.append(f"{run.name} has no masks (no gates.parquet): left out")
            continue
        table = _gates_in(run)
        known = table["task"].unique(maintain_order=True).to_list()
        if chosen := chosen_of(known, tasks, run.name, runs.notes):
            part = table.filter(pl.col("task").is_in(chosen)) if tasks else table
            parts.append(_with_run(_shared_once(part, run) if shared_once else part, run))
    if not parts:
        fix = "nothing to draw: give runs trained with --pruning=dynamic"
        raise nothing_left(runs.notes[start:], fix)
    return name_draws(pl.concat(parts))


def _gates_in(run: RunWithSetup) -> pl.DataFrame:
    """The table of a run's gates.parquet; raises `InputError` if it is damaged."""
    path = run.folder / "gates.parquet"
    try:
        return read_gates(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); train the run again") from error


def _with_run(gates: pl.DataFrame, run: RunWithSetup) -> pl.DataFrame:
    """The rows with `learned`, `run`, `seed` and `draw`."""
    return gates.with_columns(
        learned=LEARNED, run=pl.lit(run.name), seed=pl.lit(run.settings.seed), draw=_draw(run)
    )


def _draw(run: RunWithSetup) -> pl.Expr:
    """The draw of random labels of each mask, if its task, or one of its tasks, has such labels."""
    of_task = (
        pl.when(pl.col("task").str.split("+").list.contains(name)).then(pl.lit(draw, pl.Int64))
        for name, draw in run.settings.draws.items()
    )
    return pl.coalesce(*of_task, pl.lit(None, pl.Int64))


def _shared_once(gates: pl.DataFrame, run: RunWithSetup) -> pl.DataFrame:
    """If the run's tasks share a mask, its rows once, named after all tasks; otherwise all rows."""
    tasks = list(gates["task"].unique(maintain_order=True))
    if len(tasks) == 1 or not shares_mask(run.config):
        return gates
    return gates.filter(pl.col("task") == tasks[0]).with_columns(task=pl.lit("+".join(tasks)))


def shares_mask(config: Mapping[str, Any]) -> bool:
    """Whether the tasks of a run with this configuration have one mask; so has a single task."""
    return bool(config.get("gates", {}).get("scope") == "shared")


def masks_of(runs: RunSet) -> pl.DataFrame | None:
    """All masks at their last step, with `setup`; `None` if no run has masks. What is left out is noted."""
    parts: list[pl.DataFrame] = []
    used: list[Run] = []
    for run in runs:
        if not run.has("gates.parquet"):
            if run.settings.masked:
                runs.notes.append(f"{run.name} has no masks (no gates.parquet): left out")
            continue
        try:
            gates = _gates_in(run)
            if gates.is_empty():
                runs.notes.append(f"{run.name}/gates.parquet is empty: left out")
                continue
            columns = ("run", "seed", "draw", "task", "step", *KEYS, "gate", "open", "learned")
            gates = last_gates(name_draws(_with_run(_shared_once(gates, run), run))).select(columns)
            gates = gates.cast({"gate": pl.Float64, "layer": pl.Int32, "head": pl.Int32, "step": pl.Int64})
        except InputError as error:
            runs.notes.append(str(error))
            continue
        except pl.exceptions.PolarsError as error:  # columns that are missing or of another type
            runs.notes.append(
                f"{run.name}/gates.parquet: cannot be used ({line(error)}); train the run again"
            )
            continue
        used.append(run.run)
        parts.append(gates.with_columns(setup=pl.lit(run.setup.name)))
    runs.notes += _forced(used)
    if runs and not parts:
        runs.notes.append("no run has masks: train with --pruning=dynamic to see them")
    return name_draws(pl.concat(parts)) if parts else None


def choices_of(runs: RunSet) -> pl.DataFrame | None:
    """What a target's final choice changed, a row per mask (`CHOICES`); `None` if no run has a target.

    A mask of all tasks of a run is named after them, and after a kind of attention with a choice of its own.
    """
    counts = CHOICES.names()[4:]

    def of_tasks(run: RunWithSetup, mask: str) -> str:
        _, slash, kind = mask.partition("/")
        return f"{'+'.join(run.config['tasks'])}{slash}{kind}" if shares_mask(run.config) else mask

    rows = [
        (run.setup.name, run.name, run.settings.seed, of_tasks(run, mask), *map(choice.get, counts))
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
