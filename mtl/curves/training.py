"""Points of a pruning curve on cut models: their scores and costs, and models trained further; and the models
after epochs of a training, as runs with curves of their own."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import statistics
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import polars as pl
import torch
from rich.console import Console

from mtl.analysis.costs import Parts, alternate, encode, multiply_adds
from mtl.analysis.trained import model_fingerprint
from mtl.commands.common import dev_examples
from mtl.config.parse import read_configuration
from mtl.config.schema import TrainConfig, WandbConfig
from mtl.curves.curve import (
    CurveFiles,
    CurvePoint,
    CurveStart,
    curve_score_rows,
    order_rows,
    part,
    task_scores,
)
from mtl.curves.orders import Head
from mtl.errors import InputError
from mtl.features import added
from mtl.heads.gate_file import last_log_alphas
from mtl.heads.gates import HeadGates, open_heads
from mtl.models.batches import Example, collate, examples
from mtl.models.derived import apply_masks, write_cut_run, write_derived_run
from mtl.models.evaluate import batches, evaluate_model
from mtl.models.found import require_run
from mtl.models.joint import JointModel
from mtl.models.opened import Accelerator, device_name, prepare
from mtl.models.tapped import TappedModel
from mtl.probes.curves import curve_table
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted
from mtl.training.check import check_settings
from mtl.training.gate_loss import gate_loss, new_gates_of

GATES = "gates"
"""The name of learned gates in the column `by`."""


def train_on(
    start: CurveStart,
    points: Sequence[CurvePoint],
    epochs: int,
    parts: Sequence[str] = (),
    *,
    accelerator: Accelerator = "auto",
    console: Console,
) -> list[CurvePoint]:
    """Cut the model to the heads of each point, train it further, and score it; adds rows to curve.parquet.

    The cut models and the trained ones are runs in the run's folder `curve`; finished ones are not made
    again. Training is as in the run itself, except for its length and its single task, and that with `parts`
    only these are trained (`trained_parts`, and `decoder`). Returns the points with the new scores.
    """
    scoring, trained = start.scoring, []
    rows: dict[tuple[str, int, str], list[pl.DataFrame]] = {}
    only = "".join(f"-{part}" for part in parts)
    for point in points:
        mask = json.dumps([start.model_key, start.base[point.task].tolist(), sorted(point.kept)])
        name = f"{point.task}-{point.by}-{len(point.kept)}-{hashlib.sha256(mask.encode()).hexdigest()[:8]}"
        cut = Run(scoring.run.folder / "curve" / name)
        if not (cut.folder / "status.json").exists():  # the last file to be written
            _cut(start, point, cut.folder)
        settings = retraining_settings(
            scoring.run, cut.folder, f"{name}-{epochs}-epochs{only}", (point.task,), accelerator
        )
        settings = dataclasses.replace(settings, max_epochs=epochs, **_only(settings, parts))
        run = _train(settings, console)
        model = prepare(JointModel.from_pretrained(run.model), accelerator)
        place = part(point.by, point.draw, point.task, epochs)
        score, of_method = _score(start, model, point.task), (point.by, point.draw, point.task)
        row = curve_score_rows(
            scoring,
            *of_method,
            len(start.pools[point.task]),
            {len(point.kept): score},
            epochs=epochs,
            source=str(run.folder),
        )
        rows.setdefault(of_method, []).append(row)
        key = start.key(point.task, "trained on", epochs, *parts)
        CurveFiles(scoring.run.folder).scores.put(place, key, pl.concat(rows[of_method]))
        trained.append(dataclasses.replace(point, score=score))
    return trained


def _only(settings: TrainConfig, parts: Sequence[str]) -> dict[str, Any]:
    """The settings with which only these parts are trained; none if all are."""
    if not parts:
        return {}
    of_attention = tuple(part for part in parts if part != "decoder")
    rates: dict[str, Any] = {} if "decoder" in parts else {"decoder_lr": 0.0}
    if not of_attention:
        rates["encoder_lr"] = 0.0
    return {
        "trained_parts": of_attention,
        "optimizer": dataclasses.replace(settings.optimizer, **rates),
        "encoder": dataclasses.replace(settings.encoder, freeze=None),
    }


def train_gates(
    start: CurveStart,
    targets: Sequence[float],
    epochs: int | None,
    *,
    accelerator: Accelerator = "auto",
    console: Console,
) -> list[Path]:
    """Learn gates on the frozen model for each target (`gates.target_open`); returns the runs' folders."""
    return [_train(gate_settings(start, target, epochs, accelerator), console).folder for target in targets]


def check_gate_points(start: CurveStart, targets: Sequence[float], runs: Sequence[Path]) -> None:
    """Raise `InputError` for targets and runs that cannot be points, before anything is measured."""
    encoder, tasks = start.scoring.model.encoder, tuple(start.scoring.tasks)
    for target in targets:
        settings = gate_settings(start, target, None)
        try:
            check_settings(settings)
            gates = new_gates_of(settings.gates, encoder, tasks)
            gate_loss(gates, settings.gates, updates=1, sites=encoder.tap.sites)
        except InputError as error:
            raise InputError(f"--targets={target:g}: {error}") from error
    for folder in runs:
        _check(start, JointModel.from_pretrained(Run.open(folder).model), folder)


def measure_gates(
    start: CurveStart, runs: Sequence[Path], *, accelerator: Accelerator = "auto"
) -> list[CurvePoint]:
    """Runs with gates as points of a curve, one draw per run; writes curve.parquet and curve_heads.parquet.

    They are scored on the same sentences, each with its own model under its own gates. A point keeps the
    heads that are open. All heads are ordered by their log alpha (under fixed masks, by their gate); heads
    that a target opened or closed are ordered as in its final choice.
    """
    files = CurveFiles(start.scoring.run.folder)
    points = []
    for task in start.base:
        files.begin(GATES, len(runs), task)
    for draw, folder in enumerate(runs):
        run = Run.open(folder)
        model = prepare(JointModel.from_pretrained(run.model), accelerator)
        _check(start, model, folder)
        assert model.gates is not None
        weights = model_fingerprint(run)
        for task, pool in start.pools.items():
            key = start.key(task, GATES, weights)
            files.begin_order(GATES, draw, task, key)
            kept = open_heads(model.scales.of_task(task))
            place = part(GATES, draw, task, 0)
            known = files.scores.read(place, key)
            if known.is_empty():
                scores = {len(kept): _score(start, model, task)}
                rows = curve_score_rows(
                    start.scoring, GATES, draw, task, len(pool), scores, source=str(folder)
                )
                order = _order(model, run, part(GATES, draw, task))
                files.orders.put(part(GATES, draw, task), key, order)
                files.scores.put(place, key, rows)
                known = rows
            score = known["score"][0]
            points.append(CurvePoint(GATES, draw, task, tuple(kept), len(kept) / max(len(pool), 1), score))
    return points


def run_after(folder: Path, epoch: int, accelerator: Accelerator = "auto") -> Path:
    """The folder of a run with the model that another run had after an epoch; it is made if it is not there.

    Raises `InputError` if the run does not keep that model (`TrainConfig.snapshots`).
    """
    require_run(folder, "snapshots")
    run = Run.open(folder)
    out = folder / "curve" / f"epoch-{epoch}"
    if (out / "status.json").exists():  # the last file to be written
        return out
    snapshot = run.snapshot(epoch)
    if not snapshot.is_dir():
        kept = ", ".join(path.name for path in run.snapshots())
        there = f"it keeps {kept}" if kept else "'mtl train --snapshots=K' keeps the last K"
        raise InputError(f"{folder} has no model after epoch {epoch}: {there}")
    model = prepare(JointModel.from_pretrained(snapshot), accelerator)
    scores = evaluate_model(model, batches(dev_examples(run, model, tuple(model.tasks)), model))
    made = {"derivation": f"after {counted(epoch, 'epoch')}", "kept_epoch": epoch}
    return write_derived_run(run, out, model, {"dev": scores}, made).folder


def _order(model: JointModel, run: Run, part: dict[str, str | int]) -> pl.DataFrame:
    """Rows of curve_heads.parquet: ranks by falling log alpha (under fixed masks, gate), then site and head.

    Heads of kinds of attention without gates are always open, and rank before all others.
    """
    assert model.gates is not None
    gates, mask = model.gates, model.scales.index(str(part["task"]))
    value = gates.gate()[mask].tolist()
    if isinstance(gates, HeadGates):
        value = gates.log_alpha.masked_fill(~gates.learned, torch.inf)[mask].tolist()
    tap = model.encoder.tap
    there = [(site, head) for site, heads in enumerate(tap.remaining) for head in heads]
    chosen = last_log_alphas(run.folder / "gates.parquet").filter(task=part["task"])
    at_choice = {row[:3]: row[3] for row in chosen.select("attention", "layer", "head", "value").iter_rows()}

    def last_to_go(place: Head) -> tuple[float, float]:
        site, head = place
        log_alpha = value[site][head]
        return log_alpha, at_choice.get((tap.sites[site].attention, tap.sites[site].layer, head), log_alpha)

    there.sort(key=last_to_go, reverse=True)
    return order_rows(part, tap.sites, zip(there, range(len(there)), strict=True))


def _check(start: CurveStart, model: JointModel, folder: Path) -> None:
    if model.gates is None:
        raise InputError(
            f"{folder} has no gates: use runs trained with --pruning=gates_only, static or dynamic, "
            "or --targets to train them"
        )
    ours = start.scoring.model.encoder
    if (model.encoder.layers, model.encoder.heads) != (ours.layers, ours.heads):
        raise InputError(
            f"{folder} has {counted(model.encoder.layers, 'layer')} of "
            f"{counted(model.encoder.heads, 'head')}, and "
            f"{start.scoring.run.folder} {ours.layers} of {ours.heads}: use runs of the same encoder"
        )
    for task in start.base:
        if task not in model.tasks:
            raise InputError(
                f"{folder} has no task {task!r}: use runs of the same tasks, or choose with --task"
            )


def _score(start: CurveStart, model: JointModel, task: str) -> float:
    """A model's score on the sentences of the curves, under its own gates if it has any."""
    tasks = {task: model.tasks[task]}
    sentences = [example.sentence for example in start.scoring.corpus]
    corpus = examples(sentences, model.encoder.tokenizer, tasks, model.labels)
    other = dataclasses.replace(start.scoring, model=model, tasks=tasks, corpus=corpus)
    return task_scores(other, {task: model.scales.of_task(task)})[task]


def _cut(start: CurveStart, point: CurvePoint, out: Path) -> None:
    model = cut_model(start, point)
    tasks = {point.task: start.scoring.tasks[point.task]}
    cut = dataclasses.replace(start.scoring, model=model, tasks=tasks)
    metrics = {cut.split: evaluate_model(model, cut.batches(model.evaluation_tokens()))}
    write_cut_run(start.scoring.run, out, model, metrics, len(point.kept))


def _train(config: TrainConfig, console: Console) -> Run:
    from mtl.training.train import train  # takes seconds to import, and few curves need it

    return train(config, console=console)


BATCHES = (1, 4, 16, 64)
"""Sentences in a batch whose time is measured (Michel et al. 2019, table 3)."""


def cut_model(start: CurveStart, point: CurvePoint) -> JointModel:
    """A copy of the model for one task, without the heads that the point does not keep."""
    model = copy.deepcopy(start.scoring.model)
    return apply_masks(model, start.masked(point.task, point.kept), (point.task,))


def check_timing(batches: Sequence[int], rounds: int) -> None:
    """Raise `InputError` for fewer than 1 round, no batches, or a batch of fewer than 1 sentence."""
    if rounds < 1 or not batches or min(batches) < 1:
        raise InputError(f"rounds={rounds}, batches={list(batches)}: use at least 1")


def measure_cut(
    start: CurveStart,
    points: Sequence[CurvePoint],
    *,
    batches: Sequence[int] = BATCHES,
    rounds: int = 5,
    advance: Callable[[int], None] = lambda points: None,
) -> pl.DataFrame:
    """Cut, score, count and time the model at each point; writes curve_time.parquet and returns its rows.

    Time, in seconds per sentence, is the median over `rounds` in which the cut and the uncut model take
    turns. Both read the same sentences: as many as the largest batch has, of about the median length. Points
    that the table holds already are not measured again. `advance` is called after each point. Raises as
    `check_timing` does.
    """
    check_timing(batches, rounds)
    table = CurveFiles(start.scoring.run.folder).times
    uncut = start.scoring.model
    device = device_name(next(uncut.parameters()).device)
    sentences = _of_median_length(start.scoring.corpus, max(batches))
    parts = {size: _batches(uncut.encoder, sentences, size) for size in batches}
    operations = {size: multiply_adds(uncut.encoder, parts[size]) for size in batches}
    measured = []
    for point in points:
        place = part(point.by, point.draw, point.task)
        key = start.key(point.task, "cut", list(batches), rounds, device)
        known = table.read(place, key)
        rows = known.filter(kept=len(point.kept))
        if rows.is_empty():
            model = cut_model(start, point)
            cut = dataclasses.replace(
                start.scoring, model=model, tasks={point.task: start.scoring.tasks[point.task]}
            )
            opened = torch.ones(model.encoder.layers, model.encoder.heads)
            [score] = task_scores(cut, {point.task: opened}).values()
            shared = {
                **place,
                "kept": len(point.kept),
                "share": point.share,
                "split": cut.split,
                "figure": cut.tasks[point.task].score,
                "score": score,
                "parameters": sum(parameter.numel() for parameter in model.encoder.parameters()),
                "device": device,
            }
            timed = [
                {
                    **shared,
                    "batch": size,
                    **_times(uncut.encoder, model.encoder, parts[size], operations[size], rounds),
                }
                for size in batches
            ]
            rows = pl.DataFrame(timed, schema=curve_table.TIMES)
            table.put(place, key, pl.concat([known, rows]))
        measured.append(rows)
        advance(1)
    return pl.concat(measured)


def _times(
    uncut: TappedModel, cut: TappedModel, parts: Sequence[Parts], operations: float, rounds: int
) -> dict[str, float]:
    sentences = sum(part.sentences for part in parts)
    seconds = alternate({"uncut": lambda: encode(uncut, parts), "cut": lambda: encode(cut, parts)}, rounds)
    counted = multiply_adds(cut, parts)
    ratios = [after / before for after, before in zip(seconds["cut"], seconds["uncut"], strict=True)]
    return {
        "multiply_adds": counted / sentences,
        "operations_of_whole": counted / operations,
        "seconds": statistics.median(seconds["cut"]) / sentences,
        "seconds_of_whole": statistics.median(ratios),
    }


def _of_median_length(corpus: Sequence[Example], count: int) -> list[Example]:
    """`count` sentences around the median length, repeated if there are fewer."""
    ordered = sorted(corpus, key=lambda example: example.length)
    first = max(0, (len(ordered) - count) // 2)
    return list(islice(cycle(ordered[first : first + count]), count))


def _batches(encoder: TappedModel, sentences: Sequence[Example], size: int) -> list[Parts]:
    device = next(encoder.parameters()).device
    return [
        collate(sentences[first : first + size], encoder.tokenizer, {}).subwords.to(device)
        for first in range(0, len(sentences), size)
    ]


def gate_settings(
    start: CurveStart, target: float, epochs: int | None, accelerator: Accelerator = "auto"
) -> TrainConfig:
    """A training that brings gates on the run's frozen model to a target.

    `epochs=None` takes the run's own number. A single task has a shared mask.
    """
    run, tasks = start.scoring.run, tuple(start.scoring.tasks)
    length = "" if epochs is None else f"-{epochs}-epochs"
    length += f"-at-least-{start.at_least}" if start.at_least else ""
    name = f"gates-{'-'.join(tasks)}-{target:g}{length}-{start.model_key[:8]}"
    settings = retraining_settings(run, run.folder, name, tasks, accelerator)
    gates = dataclasses.replace(
        settings.gates,
        target_open=target,
        at_least=start.at_least,
        penalty=None,
        masks=None,
        scope="shared" if len(tasks) == 1 else "per_task",
    )
    return dataclasses.replace(
        settings,
        pruning="gates_only",
        gates=gates,
        max_epochs=settings.max_epochs if epochs is None else epochs,
    )


def retraining_settings(
    source: Run, init_from: Path, name: str, tasks: tuple[str, ...], accelerator: Accelerator
) -> TrainConfig:
    """The run's own training, but on these of its tasks and from the trained model `init_from`.

    Settings that have no use here are reset, since a run with them is refused: loss weights of other tasks, a
    mask file, and meters.
    """
    config = read_configuration(TrainConfig, source.folder / "config.yaml")
    config = dataclasses.replace(config, tasks=tasks).without_other_tasks()
    default = TrainConfig()
    return dataclasses.replace(
        config,
        name=name,
        runs=str(source.folder / "curve"),
        init_from=str(init_from),
        pruning="none",
        gates=dataclasses.replace(config.gates, masks=None),
        **{
            key: getattr(default, key)
            for key, row in added(lambda feature: feature.keys).items()
            if row.meter is not None
        },
        overwrite=False,
        wandb=WandbConfig(),
        trainer=dataclasses.replace(config.trainer, accelerator=accelerator),
    )
