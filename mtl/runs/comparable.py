"""Keep runs with comparable masks and probes (same encoder, shape and probe settings); note the others."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from mtl.errors import InputError
from mtl.runs.run import Run
from mtl.runs.tables import SAME, encoder_of, gates_of, heads_of
from probes import heads_table
from probes.heads_table import Site
from probes.measures.table import SKILLS
from probes.report.data import Setup
from probes.sites import shape_text, sites_of

T = TypeVar("T")


@dataclass(frozen=True)
class RunWithSetup:
    """A run, its configuration and the setup that it belongs to."""

    run: Run
    config: dict[str, Any]
    setup: Setup


def of_one_encoder(
    found: Sequence[RunWithSetup], bare: Sequence[Path], notes: list[str]
) -> tuple[str, list[RunWithSetup]]:
    """The most frequent encoder and the runs that began with it."""
    of = [encoder_of(each.run) for each in found]
    if not of:
        return next(filter(None, (_settings(each).get("target", "") for each in bare)), ""), []
    most = Counter(of).most_common(1)[0][0]
    for each, encoder in zip(found, of, strict=True):
        if encoder != most:
            notes.append(
                f"{each.run.folder} is of {encoder}, most runs are of {most}: without its masks and probes"
            )
    return most, [each for each, encoder in zip(found, of, strict=True) if encoder == most]


def masks_of(found: Sequence[RunWithSetup], notes: list[str]) -> pl.DataFrame | None:
    """The last step of all masks."""
    parts: list[pl.DataFrame] = []
    forced: list[tuple[Run, int, int]] = []
    for each in found:
        if each.config.get("pruning", "none") == "none" and not (each.run.folder / "gates.parquet").is_file():
            continue  # trained without gates: has no masks, and should not
        try:
            gates, said = gates_of([each.run])
            gates = gates.filter(pl.col("step") == pl.col("step").max().over("task"))
            gates = gates.select("run", "seed", "task", "step", "attention", "layer", "head", "gate", "open")
            gates = gates.cast({"gate": pl.Float64, "layer": pl.Int32, "head": pl.Int32, "step": pl.Int64})
            unknown = gates.filter(~pl.col("gate").is_finite().fill_null(False) | pl.col("open").is_null())
        except InputError as error:
            empty = str(error).startswith("nothing to draw")
            reason = f"{each.run.folder}/gates.parquet is empty: left out" if empty else str(error)
            notes.append(reason.split("; nothing to draw")[0])
            continue
        except pl.exceptions.PolarsError as error:  # columns that are missing or of another type
            notes.append(
                f"{each.run.folder}/gates.parquet: cannot be used ({line(error)}); train the run again"
            )
            continue
        if unknown.height:
            notes.append(
                f"{each.run.folder}/gates.parquet: cannot be used ({unknown.height} gates are not numbers); "
                "train the run again"
            )
            continue
        notes += said
        forced += _forced(each.run)
        parts.append(gates.with_columns(setup=pl.lit(each.setup.name)))
    notes += _all_forced(forced)
    if found and not parts:
        notes.append("no run has masks: train with --pruning=dynamic to see them")
    return pl.concat(parts) if parts else None


def _forced(run: Run) -> list[tuple[Run, int, int]]:
    """Masks of which a target's final choice moved more than a tenth of the heads wanted: moved, wanted."""
    masks = []
    for choice in run.status().get("choices", {}).values():
        moved = choice["forced_open"] + choice["forced_closed"]
        wanted = choice["open_at_choice"] + choice["forced_open"] - choice["forced_closed"]
        if moved > 0.1 * wanted:
            masks.append((run, moved, wanted))
    return masks


def _all_forced(masks: Sequence[tuple[Run, int, int]]) -> list[str]:
    """One note on all such masks."""
    if not masks:
        return []
    runs = list(dict.fromkeys(run.folder.name for run, _, _ in masks))
    shown = ", ".join(runs[:4]) + (f" and {len(runs) - 4} more" if len(runs) > 4 else "")
    shares = [moved / wanted for _, moved, wanted in masks]
    return [
        f"in {len(masks)} masks ({shown}) gates.target_open opened or closed {100 * min(shares):.0f} to "
        f"{100 * max(shares):.0f} % of the heads wanted by force: not all of these claims were learned; "
        "longer runs tell heads apart"
    ]


def _settings(folder: Path) -> dict[str, str]:
    try:
        return heads_table.read(folder / "heads.parquet")[1]
    except ValueError:
        return {}


def probes_of(
    runs: Sequence[Path],
    bare: Sequence[Path],
    encoder: str,
    notes: list[str],
    not_to_probe: Collection[str] = (),
) -> tuple[pl.DataFrame | None, pl.DataFrame]:
    """Comparable probes and their provenance; runs in `not_to_probe` may lack them."""
    known: dict[Path, dict[str, str]] = {}
    unprobed = []
    for folder in [*runs, *bare]:
        if not (folder / "heads.parquet").is_file():
            if folder.name not in not_to_probe:
                unprobed.append(folder.name)
            continue
        try:
            table, provenance = heads_table.read(folder / "heads.parquet")
        except ValueError as error:
            notes.append(str(error))
            continue
        shares = table.filter(pl.col("measure").is_in([*SKILLS, *SKILLS.values()]))
        unknown = shares.filter(~pl.col("value").is_finite().fill_null(False)).height
        if unknown:
            notes.append(
                f"{folder}/heads.parquet: {unknown} values are not numbers; probe it again: left out"
            )
            continue
        known[folder] = provenance
    for folder in bare:
        target = known.get(folder, {}).get("target", "")
        if runs and folder in known and target != encoder:
            notes.append(
                f"{folder} has probes of {target or 'an unnamed encoder'}, not of {encoder}: left out"
            )
            del known[folder]
    if unprobed:
        shown = ", ".join(unprobed[:4]) + (f" and {len(unprobed) - 4} more" if len(unprobed) > 4 else "")
        notes.append(f"not probed (no heads.parquet; 'mtl probe' makes it): {shown}")
    if runs and not any(folder in known for folder in bare):
        notes.append(
            "no probes of the encoder before training: 'mtl probe ENCODER --corpus CORPUS --out DIR/static' "
            "makes them, DIR being the folder of this report"
        )
    kept = _most(known, lambda folder: tuple(known[folder].get(key, "") for key in SAME))
    notes += [
        f"{folder} was probed with other settings ({_differing(known, kept[0], folder)}): left out"
        for folder in known
        if folder not in kept
    ]
    rows = [{"folder": folder.name, **known[folder]} for folder in kept]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    probes = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String))
    if not kept:
        return None, probes
    try:
        heads, said = heads_of(kept)
    except InputError as error:
        notes.append(f"probes: {error}")
        return None, probes
    notes += said
    return heads, probes


def note_averages(found: Sequence[RunWithSetup], heads: pl.DataFrame | None, notes: list[str]) -> None:
    """Note where the probe tables average over runs of several setups."""
    if heads is None:
        return
    # Which tasks were trained together is no difference here.
    names = {str(each.run.folder): re.sub(r"^(MTL-\d+) [^,]*", r"\1", each.setup.name) for each in found}
    pairs = heads.select("regime", "run").unique(maintain_order=True)
    for regime, runs in pairs.group_by("regime", maintain_order=True).agg("run").iter_rows():
        kinds = list(dict.fromkeys(names[run] for run in runs if run in names))
        if len(kinds) > 1:
            notes.append(f"probes of {regime} runs are means over {len(kinds)} setups: {'; '.join(kinds)}")


def _differing(known: Mapping[Path, Mapping[str, str]], one: Path, other: Path) -> str:
    first, second = known[one], known[other]
    return ", ".join(
        f"{key}={second.get(key, '')[:12]}, not {first.get(key, '')[:12]}"
        for key in SAME
        if first.get(key, "") != second.get(key, "")
    )


def of_one_shape(
    gates: pl.DataFrame | None, heads: pl.DataFrame | None, notes: list[str]
) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """Masks and probes of the most frequent shape: kinds of attention, their layers, heads per layer."""
    tables = {"masks": gates, "probes": heads}
    shapes: dict[tuple[str, str], tuple[frozenset[Site], int, bool]] = {}
    names: dict[tuple[str, str], str] = {}
    for name, table in tables.items():
        for (run,), rows in () if table is None else table.group_by("run", maintain_order=True):
            sites, per_site = sites_of(rows), int(rows["head"].fill_null(-1).to_numpy().max()) + 1
            complete = True
            for (task,), mask in () if name == "probes" else rows.group_by("task", maintain_order=True):
                if mask.height != len(sites) * per_site:
                    complete = False
                    notes.append(
                        f"{run}: the mask of {task} has {mask.height} heads, "
                        f"not {shape_text(sites, per_site)}: left out"
                    )
            shapes[name, str(run)] = frozenset(sites), per_site, complete
            names[name, str(run)] = shape_text(sites, per_site)
    usual = _most(shapes, lambda key: shapes[key])
    notes += [
        f"{key[1]}: {key[0]} of {names[key]}, most are of {names[usual[0]]}: left out"
        for key in shapes
        if key not in usual and shapes[key][2]
    ]
    chosen = [
        None
        if table is None
        else table.filter(pl.col("run").is_in([run for kind, run in usual if kind == name]))
        for name, table in tables.items()
    ]
    gates, heads = (None if table is None or table.is_empty() else table for table in chosen)
    return gates, heads


def _most(items: Mapping[T, Any] | Sequence[T], key: Callable[[T], Hashable]) -> list[T]:
    """The items whose key is the most frequent."""
    counts = Counter(key(item) for item in items)
    return [item for item in items if key(item) == counts.most_common(1)[0][0]]


def line(error: Exception) -> str:
    """What an error says, in a part of a line."""
    text = " ".join(str(error).split()) if not isinstance(error, KeyError) else f"no {error.args[0]}"
    if isinstance(error, json.JSONDecodeError):
        return "not JSON"
    return text[:120] or type(error).__name__
