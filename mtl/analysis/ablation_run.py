"""Ablation of a run's heads: rows of heads.parquet; a killed process is resumed from what it had done."""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from mtl.analysis.ablation import (
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
from mtl.analysis.probe import open_masks
from mtl.analysis.trained import TrainedRun
from mtl.files import fingerprint, whole_file
from mtl.probes import heads_table
from mtl.probes.measures.table import BY_NAME
from mtl.probes.statistics.paired_scores import DRAWS, ScoreLosses, score_losses

Advance = Callable[[int], None]
BATCH_TOKENS = {"cpu": 256, "cuda": 2048}
"""By device, padded subwords in a batch whose rows are copied; chosen by measurements on MiniLM."""
SAVED_EVERY = 30.0
"""Seconds between two saves of what is done so far."""
MEASURE_OF_KIND = {"head": "ablation", "all_but_one": "ablation_all_but_one", "layer": "ablation_layer"}


@dataclass(frozen=True)
class AblationResult:
    """What every task's score loses under every ablation, in percentage points."""

    chosen: tuple[Ablation, ...]
    losses: dict[str, ScoreLosses]
    """By task, in the order of `chosen`."""
    heads: pl.DataFrame
    """Rows of heads.parquet; ablations of chosen sets have none."""


def measure_ablation(
    trained: TrainedRun,
    chosen: Sequence[Ablation],
    *,
    by: By = "zero",
    masks: bool = True,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[int], AbstractContextManager[Advance]] = lambda total: nullcontext(lambda done: None),
) -> AblationResult:
    """Ablate, test the differences, and write the rows of heads into the run's heads.parquet.

    The next call for the same ablations, model and sentences resumes a process that was killed.

    Args:
        trained: The run, its model and sentences.
        chosen: The ablations.
        by: What replaces the output of closed heads: zeros, or the head's mean output on these sentences.
        masks: Whether the run's masks stay applied.
        draws: Resamples behind intervals and p (`score_losses`).
        seed: Seed of the resamples.
        progress: As in `probe_run`.
    """
    model = trained.model
    batches = list(trained.batches(BATCH_TOKENS[next(model.parameters()).device.type]))
    applied = None if masks else open_masks(model, tuple(model.tasks))
    means = mean_outputs(model, batches, applied) if by == "mean" else None
    ablate = Ablator(model, chosen, means=means, masks=applied)
    partial = _Partial.of(trained, chosen, by, masks, len(batches))
    parts = partial.read()
    with progress(len(trained.corpus)) as advance:
        advance(sum(len(batch.sentences) for batch in batches[: len(parts)]))
        saved = time.monotonic()
        for batch in batches[len(parts) :]:
            parts.append(ablate(batch))
            advance(len(batch.sentences))
            if time.monotonic() - saved > SAVED_EVERY:
                partial.write(parts)
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
    partial.path.unlink(missing_ok=True)
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
            figures = {"": lost.loss, "_low": lost.low, "_high": lost.high, "_p": lost.p, "_q": lost.q}
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
                for end, values in figures.items()
            ]
    table = pl.DataFrame(rows, schema=heads_table.SCHEMA)
    return heads_table.at_sites(table, trained.model.encoder.tap.sites)


@dataclass(frozen=True)
class _Partial:
    """The counts of the batches that are done, in a file beside the table."""

    path: Path
    key: str
    """A hash of what they are made of; counts with another key are not used."""

    @classmethod
    def of(
        cls, trained: TrainedRun, chosen: Sequence[Ablation], by: By, masks: bool, batches: int
    ) -> _Partial:
        weights = sorted(path for path in trained.run.model.iterdir() if path.is_file())
        made_of = [
            fingerprint(weights), trained.fingerprint(), trained.split, len(trained.corpus), batches,
            list(trained.tasks), by, masks, [sorted(ablation.closed) for ablation in chosen],
        ]  # fmt: skip
        key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
        table = trained.table.resolve()
        own = table.parent == trained.run.folder.resolve()
        return cls(table.with_name(".ablation.npz" if own else f".{table.stem}.ablation.npz"), key)

    def read(self) -> list[Counts]:
        """The counts of every batch that is done; empty for another key or a damaged file."""
        try:
            with self.path.open("rb") as file, np.load(file) as arrays:
                if str(arrays["key"]) != self.key:
                    return []
                parts: list[Counts] = [{} for _ in range(int(arrays["batches"]))]
                for entry in arrays.files:
                    number, _, name = entry.partition(" ")
                    if name and not name.endswith(" unchanged"):
                        unchanged = arrays[f"{entry} unchanged"]
                        parts[int(number)][name] = SentenceCounts(unchanged, arrays[entry])
                return parts
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return []

    def write(self, parts: Sequence[Counts]) -> None:
        """Replace the file."""
        arrays: dict[str, np.ndarray] = {"key": np.array(self.key), "batches": np.array(len(parts))}
        for number, part in enumerate(parts):
            for name, counts in part.items():
                arrays[f"{number} {name}"] = counts.ablated
                arrays[f"{number} {name} unchanged"] = counts.unchanged
        with whole_file(self.path) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
