"""A folder of runs read into the tables of its report; what cannot be used is left out and said."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import polars as pl

from mtl.errors import InputError
from mtl.evidence import SAME, encoder_of, gates_of, heads_of, scores_of
from mtl.run import Run
from mtl.setups import setups_of
from probes import table as heads_table
from probes.report.evidence import SCORES, Evidence, Setup

Split = Literal["dev", "test"]
T = TypeVar("T")


@dataclass(frozen=True)
class _Found:
    run: Run
    config: dict[str, Any]
    setup: Setup


def gather(folder: Path, split: Split, score: Mapping[str, str]) -> Evidence:
    """All runs and probes in `folder` or up to two folders below; `score` names each task's main figure.

    Runs of other encoders keep their scores, but masks and probes are of the most frequent encoder and shape.
    Raises `InputError` if there are no runs and no probes.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give one that holds runs, such as studies/NAME")
    notes: list[str] = []
    found = _without_repeats(_runs(folder, list(score), notes), notes)
    bare = _folders_with(folder, "heads.parquet", but=[each.run.folder for each in found])
    bare = [each for each in bare if not (each / "config.yaml").is_file()]
    if not found and not bare:
        reason = f" ({notes[0]})" if notes else ""
        raise InputError(
            f"{folder} holds no runs{reason}: give a folder of folders that 'mtl train' made, or of probes"
        )
    encoder, same = _of_one_encoder(found, bare, notes)
    gates = _gates(same, notes)
    heads, probes = _heads([each.run.folder for each in same], bare, encoder, notes)
    gates, heads = _of_one_shape(gates, heads, notes)
    _averaged(found, heads, notes)
    scores = _scores(found, split, dict(score), notes)
    _missing_seeds(scores, notes)
    return Evidence(
        name=folder.resolve().name,
        encoder=encoder,
        setups=tuple(dict.fromkeys(each.setup for each in found)),
        scores=scores,
        metrics={task: name for task, name in score.items() if task in set(scores["task"])},
        split=split,
        gates=gates,
        heads=heads,
        runs=_provenance(folder, found),
        probes=probes,
        notes=tuple(dict.fromkeys(note.replace(f"{folder}/", "") for note in notes)),
    )


def _folders_with(folder: Path, name: str, but: Sequence[Path] = ()) -> list[Path]:
    """Folders that hold a file of this name, at most two below; those inside of `but` left out."""
    places = [path.parent for depth in ("", "*/", "*/*/") for path in sorted(folder.glob(f"{depth}{name}"))]
    return [
        each
        for each in places
        if not any(part.startswith(".") for part in each.relative_to(folder).parts)
        and not any(each.is_relative_to(other) for other in but)
    ]


def _runs(folder: Path, tasks: Sequence[str], notes: list[str]) -> list[_Found]:
    configs: dict[Path, dict[str, Any]] = {}
    for place in _folders_with(folder, "config.yaml"):
        try:
            config = Run.open(place).config()
            if not config["tasks"] or not config["encoder"]["name"]:
                raise ValueError("no tasks or no encoder")
            int(config["seed"])
        except Exception as error:  # of whatever kind a damaged YAML file makes
            notes.append(f"{place}/config.yaml cannot be used ({_line(error)}): left out")
            continue
        configs[place] = config
    setups = setups_of(list(configs.values()))
    found = [
        _Found(Run(place), config, setup)
        for (place, config), setup in zip(configs.items(), setups, strict=True)
    ]
    number = {task: place for place, task in enumerate(tasks)}

    def key(each: _Found) -> tuple[object, ...]:
        own = [number.get(task, len(number)) for task in each.config["tasks"]]
        of_setup = (0, []) if each.setup.single else (len(own), own)
        return of_setup, each.setup.name, own, each.config["seed"], each.run.folder

    return sorted(found, key=key)


def _without_repeats(found: Sequence[_Found], notes: list[str]) -> list[_Found]:
    """One run for each setup, tasks and seed."""
    first: dict[Hashable, _Found] = {}
    for each in found:
        key = each.setup.name, tuple(each.config["tasks"]), each.config["seed"]
        known = first.setdefault(key, each)
        if known is not each:
            notes.append(f"{each.run.folder} repeats {known.run.folder}, seed and all: left out")
    return list(first.values())


def _of_one_encoder(
    found: Sequence[_Found], bare: Sequence[Path], notes: list[str]
) -> tuple[str, list[_Found]]:
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


def _gates(found: Sequence[_Found], notes: list[str]) -> pl.DataFrame | None:
    """The last step of all masks."""
    parts = []
    for each in found:
        if each.config.get("pruning", "none") == "none" and not (each.run.folder / "gates.parquet").is_file():
            continue  # trained without gates: has no masks, and should not
        try:
            gates, said = gates_of([each.run])
            gates = gates.filter(pl.col("step") == pl.col("step").max().over("task"))
            gates = gates.select("run", "seed", "task", "step", "layer", "head", "gate", "open")
            gates = gates.cast({"gate": pl.Float64, "layer": pl.Int32, "head": pl.Int32, "step": pl.Int64})
        except InputError as error:
            notes.append(str(error).split("; nothing to draw")[0])
            continue
        except (KeyError, pl.exceptions.PolarsError) as error:
            notes.append(
                f"{each.run.folder}/gates.parquet: cannot be used ({_line(error)}); train the run again"
            )
            continue
        notes += said
        parts.append(gates.with_columns(setup=pl.lit(each.setup.name)))
    if found and not parts:
        notes.append("no run has masks: train with --pruning=dynamic to see them")
    return pl.concat(parts) if parts else None


def _settings(folder: Path) -> dict[str, str]:
    try:
        return heads_table.read(folder / "heads.parquet")[1]
    except ValueError:
        return {}


def _heads(
    runs: Sequence[Path], bare: Sequence[Path], encoder: str, notes: list[str]
) -> tuple[pl.DataFrame | None, pl.DataFrame]:
    """Probes that can be compared, and where they come from."""
    known: dict[Path, dict[str, str]] = {}
    unprobed = []
    for folder in [*runs, *bare]:
        if not (folder / "heads.parquet").is_file():
            unprobed.append(folder.name)
            continue
        try:
            known[folder] = heads_table.read(folder / "heads.parquet")[1]
        except ValueError as error:
            notes.append(str(error))
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
            "no probes of the encoder before training: 'mtl probe ENCODER --out DIR/static' makes them"
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


def _averaged(found: Sequence[_Found], heads: pl.DataFrame | None, notes: list[str]) -> None:
    """Say where runs of several kinds stand for single-task, pair or joint training in the probes."""
    if heads is None:
        return
    # Which tasks were trained together is no difference here.
    names = {str(each.run.folder): re.sub(r"^(MTL-\d+) [^,]*", r"\1", each.setup.name) for each in found}
    pairs = heads.select("setup", "run").unique(maintain_order=True)
    for setup, runs in pairs.group_by("setup", maintain_order=True).agg("run").iter_rows():
        kinds = list(dict.fromkeys(names[run] for run in runs if run in names))
        if len(kinds) > 1:
            notes.append(f"probes of {setup} runs are means over {len(kinds)} setups: {'; '.join(kinds)}")


def _differing(known: Mapping[Path, Mapping[str, str]], one: Path, other: Path) -> str:
    first, second = known[one], known[other]
    return ", ".join(
        f"{key}={second.get(key, '')[:12]}, not {first.get(key, '')[:12]}"
        for key in SAME
        if first.get(key, "") != second.get(key, "")
    )


def _of_one_shape(
    gates: pl.DataFrame | None, heads: pl.DataFrame | None, notes: list[str]
) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """Masks and probes of the most frequent number of layers and heads."""
    shapes: dict[tuple[str, str], tuple[int, ...]] = {}
    size = pl.col("layer").max() + 1, pl.col("head").max() + 1
    for kind, table in (("masks", gates), ("probes", heads)):
        if table is not None:
            for run, layers, count in table.group_by("run", maintain_order=True).agg(*size).iter_rows():
                shapes[kind, run] = (layers, count)
    if gates is not None:
        cells = gates.group_by("run", "task").len()
        for run, task, count in cells.iter_rows():
            layers, per_layer = shapes["masks", run]
            if count != layers * per_layer:
                shapes["masks", run] = (layers, per_layer, -1)
                notes.append(f"{run}: the mask of {task} has {count} heads, not {layers} x {per_layer}")
    kept = _most(shapes, lambda each: shapes[each])
    for each in shapes:
        if each not in kept:
            ours, theirs = (" x ".join(map(str, shapes[one][:2])) for one in (kept[0], each))
            notes.append(f"{each[1]}: {each[0]} of {theirs} heads, most are of {ours}: left out")
    chosen = [
        None if table is None else table.filter(pl.col("run").is_in([run for k, run in kept if k == kind]))
        for kind, table in (("masks", gates), ("probes", heads))
    ]
    some = [None if table is None or table.is_empty() else table for table in chosen]
    return some[0], some[1]


def _most(items: Mapping[T, Any] | Sequence[T], key: Callable[[T], Hashable]) -> list[T]:
    """The items whose key is the most frequent."""
    counts = Counter(key(item) for item in items)
    return [item for item in items if key(item) == counts.most_common(1)[0][0]]


def _scores(found: Sequence[_Found], split: Split, score: dict[str, str], notes: list[str]) -> pl.DataFrame:
    parts = []
    for each in found:
        try:
            scores, said = scores_of([each.run], split, score)
        except (ValueError, TypeError, AttributeError, OSError) as error:
            notes.append(
                f"{each.run.folder}/metrics.json cannot be read ({_line(error)}): its scores are left out"
            )
            continue
        notes += said
        undefined = scores.filter(pl.col("score").is_nan())
        if undefined.height:
            notes.append(f"{each.run.folder}: the score of {', '.join(undefined['task'])} is not a number")
        values = scores.filter(pl.col("score").is_not_nan())
        seed, setup = pl.lit(int(each.config["seed"])), pl.lit(each.setup.name)
        parts.append(values.with_columns(seed=seed.cast(pl.Int64), setup=setup).select(SCORES.names()))
    return pl.concat([pl.DataFrame(schema=SCORES), *parts])


def _missing_seeds(scores: pl.DataFrame, notes: list[str]) -> None:
    every = set(scores["seed"])
    for setup, task, seeds in (
        scores.group_by("setup", "task", maintain_order=True).agg(pl.col("seed").unique()).iter_rows()
    ):
        if every - set(seeds):
            absent = ", ".join(map(str, sorted(every - set(seeds))))
            notes.append(f"no scores of {task} in {setup} with seed {absent}")


def _provenance(folder: Path, found: Sequence[_Found]) -> pl.DataFrame:
    rows = []
    for each in found:
        try:
            status = each.run.status()
        except (ValueError, OSError) as error:
            status = {"state": f"status.json cannot be read ({_line(error)})"}
        versions = status.get("versions", {})
        rows.append(
            {
                "run": str(each.run.folder.relative_to(folder)),
                "setup": each.setup.name,
                "tasks": " ".join(each.config["tasks"]),
                "seed": str(each.config["seed"]),
                "encoder": str(each.config["encoder"]["name"]),
                "state": str(status.get("state", "")),
                "finished": str(status.get("finished", "")),
                "seconds": str(status.get("training_seconds", "")),
                "device": str(status.get("device", "")),
                "code": str(status.get("git") or ""),
                "corpus": str(status.get("corpus_fingerprint") or ""),
                "versions": " ".join(f"{name} {version}" for name, version in versions.items()),
            }
        )
    names = [
        "run",
        "setup",
        "tasks",
        "seed",
        "encoder",
        "state",
        "finished",
        "seconds",
        "device",
        "code",
        "corpus",
        "versions",
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String))


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) if not isinstance(error, KeyError) else f"no {error.args[0]}"
    if isinstance(error, json.JSONDecodeError):
        return "not JSON"
    return text[:120] or type(error).__name__
