"""What remedies bring back of what joint training loses, per condition and task, over runs paired by seed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from jaxtyping import Float

from mtl.probes.statistics.spread_of_runs import difference
from mtl.probes.stem_cell.statistics.equivalence import (
    LEVEL,
    Contrast,
    contrast,
    equivalence,
    margin_for,
    recovery,
)

SINGLE, JOINT = "single", "A"
CONDITIONS: Mapping[str, str] = {
    SINGLE: "each task alone",
    JOINT: "joint, one pass",
    "B": "a row per task, nothing copied",
    "C": "contested heads copied",
    "D": "placebo: others copied",
    "E": "all heads copied",
    "F": "contested copied, shuffled",
    "S": "contested split",
    "S'": "placebo: others split",
    "G": "contested transplanted",
    "G'": "placebo: others transplanted",
    "H": "masks with limited overlap",
    "O": "masks, overlap penalised",
    "H'": "placebo: masks without limit",
}
"""What is compared, by its letter, in the order of figures and tables."""
PLACEBO_OF: Mapping[str, str] = {"C": "D", "S": "S'", "G": "G'", "H": "H'", "O": "H'"}
"""By remedy the condition that differs from it only in which heads are copied, or in that nothing limits the
overlap of masks; the first is primary."""
FEWEST_SEEDS = 3
"""Seeds of both conditions that a word on a contrast needs."""
SCHEMA = pl.Schema(
    {
        "condition": pl.String, "task": pl.String, "seeds": pl.Int64, "score": pl.Float64,
        "recovery": pl.Float64, "recovery_low": pl.Float64, "recovery_high": pl.Float64,
        "difference": pl.Float64, "difference_low": pl.Float64, "difference_high": pl.Float64,
        "p": pl.Float64, "margin": pl.Float64, "word": pl.String,
    }
)  # fmt: skip
CONTRASTS = pl.Schema(
    {
        "remedy": pl.String, "placebo": pl.String, "seeds": pl.Int64, "difference": pl.Float64,
        "difference_low": pl.Float64, "difference_high": pl.Float64, "p": pl.Float64, "word": pl.String,
        "unpaired_low": pl.Float64, "unpaired_high": pl.Float64, "unpaired_p": pl.Float64,
        "pooled": pl.Boolean,
    }
)  # fmt: skip


def recoveries(scores: pl.DataFrame) -> pl.DataFrame:
    """Per condition and task the recovered share and whether the single task is reached.

    `scores`: condition, task, seed, score (per cent), a row each. `difference` is the score less the single
    task's, over seeds that both have; its interval (90 %) needs two of them, and `word` as many as
    `margin_for` says (else it is empty). `recovery` needs two seeds that joint and single runs have, too, and
    an interval of the loss that does not hold 0. Columns: `SCHEMA`; null where seeds are too few.
    """
    rows = []
    order = [name for name in CONDITIONS if name in set(scores["condition"])]
    for condition in order:
        for task in scores["task"].unique(maintain_order=True):
            remedied = _by_seed(scores, condition, task)
            if not remedied:
                continue
            row = dict.fromkeys(SCHEMA.names()) | {
                "condition": condition, "task": task, "seeds": len(remedied),
                "score": float(np.mean(list(remedied.values()))), "word": "",
            }  # fmt: skip
            single, joint = _by_seed(scores, SINGLE, task), _by_seed(scores, JOINT, task)
            if condition != SINGLE:
                row |= _against_single(remedied, single)
                if condition != JOINT:
                    row |= _recovered(remedied, joint, single)
            rows.append(row)
    return pl.DataFrame(rows, schema=SCHEMA)


def against_placebo(scores: pl.DataFrame, remedy: str = "C") -> Contrast | None:
    """A remedy's mean over tasks less its placebo's, paired by seed; `None` with fewer than three seeds.

    Only seeds that have all tasks in both count. The gap is the mean loss over the seeds that single and
    joint runs share; 0 without any, so that nothing is refuted.
    """
    ours, placebo = _means(scores, remedy), _means(scores, PLACEBO_OF[remedy])
    seeds = sorted(ours.keys() & placebo.keys())
    if len(seeds) < FEWEST_SEEDS:
        return None
    single, joint = _means(scores, SINGLE), _means(scores, JOINT)
    both = sorted(single.keys() & joint.keys())
    gap = float(np.mean([single[seed] - joint[seed] for seed in both])) if both else 0.0
    return contrast(_values(ours, seeds), _values(placebo, seeds), gap)


def contrasts(scores: pl.DataFrame) -> pl.DataFrame:
    """Every remedy that has seeds enough against its placebo (`CONTRASTS`), the primary one first.

    The word is on pairs. Beside them stand interval (90 %) and one-sided p of the same difference by the
    spread of all conditions' runs (`spread_of_runs.difference`).
    """
    means = {name: np.array([*_means(scores, name).values()]) for name in scores["condition"].unique()}
    runs = {name: values for name, values in means.items() if len(values)}
    rows = []
    for remedy, placebo in PLACEBO_OF.items():
        found = against_placebo(scores, remedy)
        if found is not None:
            beside = difference(runs, {remedy: 1.0, placebo: -1.0}, 1 - 2 * LEVEL)
            p = beside.p / 2 if beside.value > 0 else 1 - beside.p / 2
            rows.append(
                (
                    remedy, placebo, found.runs, found.difference, found.low, found.high, found.p,
                    found.word, beside.low, beside.high, p, beside.pooled,
                )
            )  # fmt: skip
    return pl.DataFrame(rows, schema=CONTRASTS, orient="row").fill_nan(None)


def _against_single(remedied: Mapping[int, float], single: Mapping[int, float]) -> dict[str, object]:
    seeds = sorted(remedied.keys() & single.keys())
    if not seeds:
        return {}
    ours, theirs = _values(remedied, seeds), _values(single, seeds)
    if len(seeds) < 2:
        return {"difference": float(np.mean(ours - theirs))}
    try:
        margin, worded = margin_for(len(seeds)), True
    except ValueError:
        margin, worded = 1.0, False
    found = equivalence(ours, theirs, margin)
    row: dict[str, object] = {
        "difference": found.difference, "difference_low": found.low, "difference_high": found.high,
    }  # fmt: skip
    return row | {"p": found.p, "margin": margin, "word": found.word} if worded else row


def _recovered(
    remedied: Mapping[int, float], joint: Mapping[int, float], single: Mapping[int, float]
) -> dict[str, object]:
    seeds = sorted(remedied.keys() & joint.keys() & single.keys())
    if len(seeds) < 2:
        return {}
    found = recovery(_values(remedied, seeds), _values(joint, seeds), _values(single, seeds))
    return {"recovery": found.share, "recovery_low": found.low, "recovery_high": found.high}


def _by_seed(scores: pl.DataFrame, condition: str, task: str) -> dict[int, float]:
    rows = scores.filter(condition=condition, task=task)
    return dict(zip(rows["seed"].to_list(), rows["score"].to_list(), strict=True))


def _means(scores: pl.DataFrame, condition: str) -> dict[int, float]:
    """By seed the mean over tasks, of seeds that have all of them."""
    tasks = scores["task"].unique(maintain_order=True)
    by_task = [_by_seed(scores, condition, task) for task in tasks]
    seeds = set.intersection(*(set(values) for values in by_task)) if by_task else set()
    return {seed: float(np.mean([values[seed] for values in by_task])) for seed in sorted(seeds)}


def _values(by_seed: Mapping[int, float], seeds: list[int]) -> Float[np.ndarray, " run"]:
    return np.array([by_seed[seed] for seed in seeds])
