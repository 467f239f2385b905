"""Points of a pruning curve that need training: cut models trained further, and learned gates."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import torch
from rich.console import Console

from mtl.analysis.curves.curve import CurvePoint, order_rows, score_rows, task_scores
from mtl.analysis.curves.cut import cut_model
from mtl.analysis.curves.file import CurveFiles, part
from mtl.analysis.curves.head_order import Head
from mtl.analysis.curves.settings import gate_settings, settings_of
from mtl.analysis.curves.start import Start
from mtl.analysis.trained import model_fingerprint
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.heads.gate_file import last_log_alphas
from mtl.heads.gates import HeadGates
from mtl.models.batches import examples
from mtl.models.derived_run import write_cut_run
from mtl.models.device import Accelerator, prepare
from mtl.models.evaluate import evaluate
from mtl.models.head_scales import open_heads
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted
from mtl.training.check import check_settings
from mtl.training.gate_loss import gate_loss, new_gates_of

GATES = "gates"
"""The name of learned gates in the column `by`."""


def train_on(
    start: Start,
    points: Sequence[CurvePoint],
    epochs: int,
    *,
    accelerator: Accelerator = "auto",
    console: Console,
) -> list[CurvePoint]:
    """Cut the model to the heads of each point, train it further, and score it; adds rows to curve.parquet.

    The cut models and the trained ones are runs in the run's folder `curve`; finished ones are not made
    again. Training is as in the run itself, except for its length and its single task. Returns the points
    with the new scores.
    """
    scoring, trained = start.scoring, []
    rows: dict[tuple[str, int, str], list[pl.DataFrame]] = {}
    for point in points:
        mask = json.dumps([start.model_key, start.base[point.task].tolist(), sorted(point.kept)])
        name = f"{point.task}-{point.by}-{len(point.kept)}-{hashlib.sha256(mask.encode()).hexdigest()[:8]}"
        cut = Run(scoring.run.folder / "curve" / name)
        if not (cut.folder / "status.json").exists():  # the last file to be written
            _cut(start, point, cut.folder)
        settings = settings_of(scoring.run, cut.folder, f"{name}-{epochs}-epochs", (point.task,), accelerator)
        run = _train(dataclasses.replace(settings, max_epochs=epochs), console)
        model = prepare(JointModel.from_pretrained(run.model), accelerator)
        place = part(point.by, point.draw, point.task, epochs)
        score, of_method = _score(start, model, point.task), (point.by, point.draw, point.task)
        row = score_rows(
            scoring,
            *of_method,
            len(start.pools[point.task]),
            {len(point.kept): score},
            epochs=epochs,
            source=str(run.folder),
        )
        rows.setdefault(of_method, []).append(row)
        key = start.key(point.task, "trained on", epochs)
        CurveFiles(scoring.run.folder).scores.put(place, key, pl.concat(rows[of_method]))
        trained.append(dataclasses.replace(point, score=score))
    return trained


def train_gates(
    start: Start,
    targets: Sequence[float],
    epochs: int | None,
    *,
    accelerator: Accelerator = "auto",
    console: Console,
) -> list[Path]:
    """Learn gates on the frozen model for each target (`gates.target_open`); returns the runs' folders."""
    return [_train(gate_settings(start, target, epochs, accelerator), console).folder for target in targets]


def check_gate_points(start: Start, targets: Sequence[float], runs: Sequence[Path]) -> None:
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
    start: Start, runs: Sequence[Path], *, accelerator: Accelerator = "auto"
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
                rows = score_rows(start.scoring, GATES, draw, task, len(pool), scores, source=str(folder))
                order = _order(model, run, part(GATES, draw, task))
                files.orders.put(part(GATES, draw, task), key, order)
                files.scores.put(place, key, rows)
                known = rows
            score = known["score"][0]
            points.append(CurvePoint(GATES, draw, task, tuple(kept), len(kept) / max(len(pool), 1), score))
    return points


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


def _check(start: Start, model: JointModel, folder: Path) -> None:
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


def _score(start: Start, model: JointModel, task: str) -> float:
    """A model's score on the sentences of the curves, under its own gates if it has any."""
    tasks = {task: model.tasks[task]}
    sentences = [example.sentence for example in start.scoring.corpus]
    corpus = examples(sentences, model.encoder.tokenizer, tasks, model.labels)
    other = dataclasses.replace(start.scoring, model=model, tasks=tasks, corpus=corpus)
    return task_scores(other, {task: model.scales.of_task(task)})[task]


def _cut(start: Start, point: CurvePoint, out: Path) -> None:
    model = cut_model(start, point)
    tasks = {point.task: start.scoring.tasks[point.task]}
    cut = dataclasses.replace(start.scoring, model=model, tasks=tasks)
    metrics = {cut.split: evaluate(model, cut.batches(model.evaluation_tokens()))}
    write_cut_run(start.scoring.run, out, model, metrics, len(point.kept))


def _train(config: TrainConfig, console: Console) -> Run:
    from mtl.training.train import train  # takes seconds to import, and few curves need it

    return train(config, console=console)
