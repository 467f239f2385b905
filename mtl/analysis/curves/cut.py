"""Cut models at the points of a pruning curve: their scores, parameters, operations and time."""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from itertools import cycle, islice

import polars as pl
import torch

from mtl.analysis.costs.timing import Parts, alternate, device_name, encode, multiply_adds
from mtl.analysis.curves.curve import CurvePoint, task_scores
from mtl.analysis.curves.file import CurveFiles, part
from mtl.analysis.curves.start import Start
from mtl.errors import InputError
from mtl.models.apply_masks import apply_masks
from mtl.models.batches import Example, collate
from mtl.models.joint import JointModel
from mtl.models.tapped import TappedModel
from mtl.probes.tables import curve_table

BATCHES = (1, 4, 16, 64)
"""Sentences in a batch whose time is measured (Michel et al. 2019, table 3)."""


def cut_model(start: Start, point: CurvePoint) -> JointModel:
    """A copy of the model for one task, without the heads that the point does not keep."""
    model = copy.deepcopy(start.scoring.model)
    return apply_masks(model, start.masked(point.task, point.kept), (point.task,))


def check_timing(batches: Sequence[int], rounds: int) -> None:
    """Raise `InputError` for fewer than 1 round, no batches, or a batch of fewer than 1 sentence."""
    if rounds < 1 or not batches or min(batches) < 1:
        raise InputError(f"rounds={rounds}, batches={list(batches)}: use at least 1")


def measure_cut(
    start: Start,
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
    device = device_name(uncut)
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
