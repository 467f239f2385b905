"""Ablation of a run's heads, as rows of heads.parquet; what a killed process had done is not repeated."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from mtl.analysis.ablation.joint import (
    KINDS,
    Ablation,
    Ablator,
    By,
    Counts,
    Kind,
    SentenceCounts,
    ablations,
    joined,
    mean_outputs,
)
from mtl.analysis.keyed_table import KeyedTable
from mtl.analysis.measuring import Progress, silent
from mtl.analysis.trained import TrainedRun, model_fingerprint
from mtl.probes.measures.table import BY_NAME
from mtl.probes.statistics.paired_scores import DRAWS, ScoreLosses, score_losses
from mtl.probes.tables import heads_table

BATCH_TOKENS = {"cpu": 256, "cuda": 2048}
"""By device, the padded subwords in a batch whose rows are copied; chosen by measurements on MiniLM."""
SAVED_EVERY = 30.0
"""Seconds between two saves of the counts so far."""
COUNTS: Mapping[str, Any] = {
    "batch": pl.Int32,
    "task": pl.String,
    "sentences": pl.Int32,
    "type": pl.String,
    "unchanged": pl.List(pl.Float64),
    "ablated": pl.List(pl.Float64),
}
"""The table of the counts so far: a row per batch and task, with the arrays of `SentenceCounts` flattened."""
MEASURE_OF_KIND = {"head": "ablation", "all_but_one": "ablation_all_but_one", "layer": "ablation_layer"}


@dataclass(frozen=True)
class AblationResult:
    """What every task's score loses under every ablation, in percentage points."""

    chosen: tuple[Ablation, ...]
    losses: dict[str, ScoreLosses]
    """By task, in the order of `chosen`."""
    heads: pl.DataFrame
    """Rows of heads.parquet; chosen heads have none."""


def measure_ablation(
    trained: TrainedRun,
    chosen: Sequence[Ablation],
    *,
    by: By = "zero",
    masks: bool = True,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress = silent,
) -> AblationResult:
    """Ablate, test the differences, and write the rows of heads into the run's heads.parquet.

    The next call for the same ablations, model and sentences resumes a process that was killed.

    Args:
        trained: The run, its model and sentences.
        chosen: The ablations.
        by: What replaces the output of closed heads: zeros, or the head's mean output on these sentences.
        masks: Whether the run's masks stay applied.
        draws: Resamples for intervals and p (`score_losses`).
        seed: Seed of the resamples.
        progress: As in `mtl.analysis.measuring`.
    """
    model = trained.model
    batches = list(trained.batches(BATCH_TOKENS[next(model.parameters()).device.type]))
    applied = None if masks else model.scales.masks(tuple(model.tasks), gated=False)
    means = mean_outputs(model, batches, applied) if by == "mean" else None
    ablate = Ablator(model, chosen, means=means, masks=applied)
    partial, key = _partial_table(trained), _key(trained, chosen, by, masks, len(batches))
    parts = _from_rows(partial.read({}, key), len(chosen))
    with progress(len(trained.corpus)) as advance:
        advance(sum(len(batch.sentences) for batch in batches[: len(parts)]))
        saved = time.monotonic()
        for batch in batches[len(parts) :]:
            parts.append(ablate(batch))
            advance(len(batch.sentences))
            if time.monotonic() - saved > SAVED_EVERY:
                partial.put({}, key, _as_rows(parts))
                saved = time.monotonic()
    losses = {
        name: score_losses(
            counts.unchanged,
            counts.ablated,
            model.tasks[name].metric().score,
            families=[ablation.kind for ablation in chosen],
            draws=draws,
            seed=seed,
        )
        for name, counts in joined(parts).items()
    }
    heads = _table(trained, chosen, losses, by)
    kinds = dict.fromkeys(ablation.kind for ablation in chosen if ablation.site is not None)
    if kinds:
        replaced = [name for kind in kinds for name in BY_NAME[MEASURE_OF_KIND[kind]].names]
        trained.write(heads, "ablation", replaced, by=by, masks=masks, draws=draws, seed=seed)
    for file in (partial.path, partial.path.with_suffix(".npz")):  # older versions left the second one
        file.unlink(missing_ok=True)
    return AblationResult(tuple(chosen), losses, heads)


def every_ablation(trained: TrainedRun, kinds: Sequence[Kind] = KINDS) -> list[Ablation]:
    """The ablations of these kinds, for all heads that the model has."""
    remaining = trained.model.encoder.tap.remaining
    return [ablation for kind in kinds for ablation in ablations(kind, remaining)]


def _table(
    trained: TrainedRun, chosen: Sequence[Ablation], losses: dict[str, ScoreLosses], by: By
) -> pl.DataFrame:
    rows = []
    for name, lost in losses.items():
        sentences = sum(name in example.targets for example in trained.corpus)
        for index, ablation in enumerate(chosen):
            if ablation.site is None:
                continue
            numbers = {"": lost.loss, "_low": lost.low, "_high": lost.high, "_p": lost.p, "_q": lost.q}
            rows += [
                {
                    "measure": MEASURE_OF_KIND[ablation.kind] + end,
                    "task": name,
                    "label": "",
                    "attention": "self",
                    "layer": ablation.site,
                    "head": ablation.head,
                    "value": float(values[index]),
                    "count": sentences,
                    "choice": by,
                }
                for end, values in numbers.items()
            ]
    table = pl.DataFrame(rows, schema=heads_table.SCHEMA)
    return heads_table.at_sites(table, trained.model.encoder.tap.sites)


def _partial_table(trained: TrainedRun) -> KeyedTable:
    """The counts of finished batches, in a file beside the run's table."""
    table = trained.table.resolve()
    own = table.parent == trained.run.folder.resolve()
    name = ".ablation.parquet" if own else f".{table.stem}.ablation.parquet"
    return KeyedTable(table.with_name(name), COUNTS, "mtl ablate", scratch=True)


def _key(trained: TrainedRun, chosen: Sequence[Ablation], by: By, masks: bool, batches: int) -> str:
    """A hash of everything that the counts depend on; counts with another key are not used."""
    made_of = [
        model_fingerprint(trained.run), trained.fingerprint(), trained.split, len(trained.corpus), batches,
        list(trained.tasks), by, masks, [sorted(ablation.closed) for ablation in chosen],
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def _as_rows(parts: Sequence[Counts]) -> pl.DataFrame:
    rows = [
        {
            "batch": batch, "task": task, "sentences": len(counts.unchanged),
            "type": counts.ablated.dtype.str, "unchanged": counts.unchanged.ravel(),
            "ablated": counts.ablated.ravel(),
        }
        for batch, part in enumerate(parts)
        for task, counts in part.items()
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=COUNTS)


def _from_rows(rows: pl.DataFrame, ablations: int) -> list[Counts]:
    parts: list[Counts] = [{} for _ in range(1 + int(rows["batch"].to_numpy().max(initial=-1)))]
    for batch, task, sentences, kind, unchanged, ablated in rows.iter_rows():
        parts[batch][task] = SentenceCounts(
            np.array(unchanged, kind).reshape(sentences, -1),
            np.array(ablated, kind).reshape(ablations, sentences, -1),
        )
    return parts
