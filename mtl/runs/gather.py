"""A folder of runs read into the tables of its report; what cannot be used is left out and noted."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl
import yaml

from mtl.errors import InputError
from mtl.runs.comparable import (
    RunWithSetup,
    line,
    masks_of,
    note_averages,
    of_one_encoder,
    of_one_shape,
    probes_of,
)
from mtl.runs.heads_kept import heads_kept_of
from mtl.runs.run import Run
from mtl.runs.setups import setups_of
from mtl.runs.tables import encoder_of, history_of, scores_of
from probes.report.data import HISTORY, SCORES, HeadsKept, ReportData
from probes.report.sweep import SweepEvidence

Split = Literal["dev", "test"]


MOST_SETTINGS = 12
"""Settings of a sweep whose masks are drawn and compared."""
UNFINISHED = ("running", "interrupted", "failed")
"""States of runs whose scores and masks are not yet final."""
DAMAGED = (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError, InputError)
"""What reading a damaged YAML or JSON file raises: syntax, encoding, absent keys, values of other types."""


def gather(
    folder: Path,
    split: Split,
    score: Mapping[str, str],
    sweep: SweepEvidence | None = None,
    not_to_probe: Collection[str] = (),
) -> ReportData:
    """All runs and probes in `folder` or up to two folders below; `score` names each task's main figure.

    `sweep` is the one whose trials the runs are; `not_to_probe` names the folders of runs that nobody
    asked to probe. Runs of other encoders keep their scores, but masks and probes are of the most frequent
    encoder and shape. Raises `InputError` if there are no runs and no probes.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give one that holds runs, such as studies/NAME")
    notes: list[str] = []
    runs = _without_repeats(_of_sweep(sweep, _runs(folder, list(score), notes), notes), notes)
    bare = _folders_with(folder, "heads.parquet", but=[run.run.folder for run in runs])
    bare = [path for path in bare if not (path / "config.yaml").is_file()]
    if not runs and not bare:
        reason = f" ({notes[0]})" if notes else ""
        raise InputError(
            f"{folder} holds no runs{reason}: give a folder of folders that 'mtl train' made, or of probes"
        )
    encoder, same = of_one_encoder(runs, bare, notes)
    gates = masks_of(same, notes)
    heads, probes = probes_of([run.run.folder for run in same], bare, encoder, notes, not_to_probe)
    gates, heads = of_one_shape(gates, heads, notes)
    note_averages(runs, heads, notes)
    scores = _scores(runs, split, score, notes)
    _missing_scores(scores, notes)
    return ReportData(
        name=folder.resolve().name,
        encoder=encoder,
        setups=tuple(dict.fromkeys(run.setup for run in runs)),
        scores=scores,
        metrics={task: name for task, name in score.items() if task in set(scores["task"])},
        split=split,
        gates=gates,
        heads=heads,
        history=_history(runs, score, notes),
        kept=_kept(same, gates, split, score),
        runs=_provenance(folder, runs),
        probes=probes,
        notes=tuple(dict.fromkeys(note.replace(f"{folder}/", "") for note in notes)),
        sweep=sweep,
    )


def _history(runs: Sequence[RunWithSetup], score: Mapping[str, str], notes: list[str]) -> pl.DataFrame:
    """The learning curves of all runs that were trained; a run that was cut out of another has none."""
    parts = [pl.DataFrame(schema=HISTORY)]
    for run in runs:
        if "cut_from" in run.run.status():
            continue
        try:
            history = history_of(run.run, score)
        except InputError as error:
            notes.append(str(error))
            continue
        seed = pl.lit(int(run.config["seed"])).cast(pl.Int64)
        parts.append(history.with_columns(seed=seed, setup=pl.lit(run.setup.name)).select(HISTORY.names()))
    return pl.concat(parts)


def _kept(
    runs: Sequence[RunWithSetup], gates: pl.DataFrame | None, split: Split, score: Mapping[str, str]
) -> HeadsKept | None:
    """Score against open heads of the runs whose masks are shown; `None` if there are no masks or no scores.

    What is missing has been noted for the tables of scores and masks.
    """
    if gates is None:
        return None
    shown = set(gates["run"])
    chosen = [run.run for run in runs if str(run.run.folder) in shown or run.config.get("pruning") == "none"]
    readable = []
    for run in chosen:
        try:
            scores_of([run], split, score)
        except InputError:
            continue
        readable.append(run)
    try:
        return heads_kept_of(readable, split, score)[0]
    except InputError:
        return None


def _of_sweep(sweep: SweepEvidence | None, found: list[RunWithSetup], notes: list[str]) -> list[RunWithSetup]:
    """Of a sweep's runs those that were not stopped early, and of too many settings the best ones."""
    if sweep is None:
        return found
    states = {each.name: each.state for each in sweep.trials}
    stopped = [each for each in found if states.get(each.run.folder.name) == "stopped"]
    if stopped:
        notes.append(f"{len(stopped)} trials were stopped early: they are in the sweep's table only")
    ranks = {name: place for place, name in enumerate(sweep.table()["trial"])}
    ended = [each for each in found if each not in stopped]
    best: list[str] = []
    for each in sorted(ended, key=lambda each: ranks.get(each.run.folder.name, len(ranks))):
        if each.setup.name not in best:
            best.append(each.setup.name)
    if len(best) > MOST_SETTINGS:
        notes.append(
            f"of {len(best)} settings only the {MOST_SETTINGS} of the best trials are shown below the sweep"
        )
    return [each for each in ended if each.setup.name in best[:MOST_SETTINGS]]


def _folders_with(folder: Path, name: str, but: Sequence[Path] = ()) -> list[Path]:
    """Folders that hold a file of this name, at most two below; those inside of `but` left out."""
    places = [path.parent for depth in ("", "*/", "*/*/") for path in sorted(folder.glob(f"{depth}{name}"))]
    return [
        each
        for each in places
        if not any(part.startswith(".") for part in each.relative_to(folder).parts)
        and not any(each.is_relative_to(other) for other in but)
    ]


def _runs(folder: Path, tasks: Sequence[str], notes: list[str]) -> list[RunWithSetup]:
    configs: dict[Path, dict[str, Any]] = {}
    for place in _folders_with(folder, "config.yaml"):
        try:
            config = _configuration(Run.open(place))
        except DAMAGED as error:
            notes.append(f"{place}/config.yaml cannot be used ({line(error)}): left out")
            continue
        try:
            state = Run(place).status().get("state")
        except DAMAGED as error:
            notes.append(f"{place}/status.json cannot be used ({line(error)}): left out")
            continue
        if state in UNFINISHED:
            notes.append(f"{place} is not finished ({state}): left out")
            continue
        configs[place] = config
    setups = setups_of(list(configs.values()))
    found = [
        RunWithSetup(Run(place), config, setup)
        for (place, config), setup in zip(configs.items(), setups, strict=True)
    ]
    number = {task: place for place, task in enumerate(tasks)}

    def key(each: RunWithSetup) -> tuple[object, ...]:
        own = [number.get(task, len(number)) for task in each.config["tasks"]]
        of_setup = (0, []) if each.setup.single else (len(own), own)
        return of_setup, each.setup.name, own, each.config["seed"], each.run.folder

    return sorted(found, key=key)


def _configuration(run: Run) -> dict[str, Any]:
    """A run's configuration, if it has what a report needs; raises one of `DAMAGED` if not."""
    config = run.config()
    if not isinstance(config, Mapping):
        raise ValueError("it holds no keys")
    if not isinstance(config["tasks"], list) or not config["tasks"] or not config["encoder"]["name"]:
        raise ValueError("no list of tasks or no encoder")
    int(config["seed"])
    encoder_of(run)
    return config


def _without_repeats(found: Sequence[RunWithSetup], notes: list[str]) -> list[RunWithSetup]:
    """One run for each setup, tasks and seed."""
    first: dict[Hashable, RunWithSetup] = {}
    for each in found:
        key = each.setup.name, tuple(each.config["tasks"]), each.config["seed"]
        known = first.setdefault(key, each)
        if known is not each:
            notes.append(f"{each.run.folder} repeats {known.run.folder}, seed and all: left out")
    return list(first.values())


def _scores(
    found: Sequence[RunWithSetup], split: Split, score: Mapping[str, str], notes: list[str]
) -> pl.DataFrame:
    parts = []
    for each in found:
        try:
            scores, said = scores_of([each.run], split, score)
        except InputError as error:
            notes.append(f"its scores are left out: {error}")
            continue
        notes += said
        undefined = scores.filter(pl.col("score").is_nan())
        if undefined.height:
            notes.append(f"{each.run.folder}: the score of {', '.join(undefined['task'])} is not a number")
        values = scores.filter(pl.col("score").is_not_nan())
        seed, setup = pl.lit(int(each.config["seed"])), pl.lit(each.setup.name)
        parts.append(values.with_columns(seed=seed.cast(pl.Int64), setup=setup).select(SCORES.names()))
    return pl.concat([pl.DataFrame(schema=SCORES), *parts])


def _missing_scores(scores: pl.DataFrame, notes: list[str]) -> None:
    every = set(scores["seed"])
    for setup, task, seeds in (
        scores.group_by("setup", "task", maintain_order=True).agg(pl.col("seed").unique()).iter_rows()
    ):
        if every - set(seeds):
            absent = ", ".join(map(str, sorted(every - set(seeds))))
            notes.append(f"no scores of {task} in {setup} with seed {absent}")


def _provenance(folder: Path, found: Sequence[RunWithSetup]) -> pl.DataFrame:
    rows = []
    for each in found:
        try:
            status = each.run.status()
        except (ValueError, OSError) as error:
            status = {"state": f"status.json cannot be read ({line(error)})"}
        versions = status.get("versions")
        versions = versions if isinstance(versions, Mapping) else {}
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
