"""What remedies bring back of what joint training loses, per condition and task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from scipy.special import stdtr

from mtl.probes.statistics.corrections import holm
from mtl.probes.statistics.resampling import student
from mtl.probes.statistics.spread_of_runs import Runs, difference, seed_effect
from mtl.probes.stem_cell.statistics.equivalence import (
    JOINT,
    LEVEL,
    MARGIN,
    SINGLE,
    Helps,
    contrast,
    equivalence,
    power,
    recovery,
    word_on,
)
from mtl.tasks.in_words import counted

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
"""For each remedy, the condition that differs from it only in which heads are copied, or in that nothing
limits the overlap of masks; the first is primary."""
FEWEST_SEEDS = 3
"""The number of seeds of each condition that a word needs."""
ALL = "mean"
"""The row of the mean over tasks. It has no word, since one task with a wide spread would decide it."""
NOTHING_LOST = "no task is seen to lose by sharing, so there is nothing to bring back"
POWER_OF = (3, 6)
"""The numbers of seeds whose power is given beside the word on a contrast."""
SCHEMA = pl.Schema(
    {
        "condition": pl.String, "task": pl.String, "seeds": pl.Int64, "score": pl.Float64,
        "recovery": pl.Float64, "recovery_low": pl.Float64, "recovery_high": pl.Float64,
        "difference": pl.Float64, "difference_low": pl.Float64, "difference_high": pl.Float64,
        "p": pl.Float64, "margin": pl.Float64, "word": pl.String,
    }
)  # fmt: skip
CONTRASTS = pl.Schema(
    {"remedy": pl.String, "placebo": pl.String, "task": pl.String, "seeds": pl.Int64}
    | dict.fromkeys(
        ("difference", "difference_low", "difference_high", "p", "p_holm", "p_less", "cost", "cost_p"),
        pl.Float64,
    )
    | {"word": pl.String}
    | {f"power_{seeds}": pl.Float64 for seeds in POWER_OF}
    | {"pooled": pl.Boolean, "seed_p": pl.Float64}
    | dict.fromkeys(("paired_low", "paired_high", "paired_p"), pl.Float64)
)


def recoveries(scores: pl.DataFrame) -> pl.DataFrame:
    """Per condition and task the recovered share, and whether the single task is reached (`SCHEMA`).

    `scores`: condition, task, seed, score (per cent), each combination once. `difference` is the score less
    the single task's, with its 90 % interval; `margin` is half of what sharing costs; `p` and `word` are
    those of `equivalence`. `word` is empty with fewer than three seeds of the condition, of joint runs or of
    single runs. Null: no spread is known; for `recovery` also, the interval of the loss holds 0.
    """
    rows = []
    tasks = scores["task"].unique(maintain_order=True)
    of_tasks = {task: _runs(scores, task) for task in tasks}
    for condition in CONDITIONS:
        for task in tasks:
            runs = of_tasks[task]
            if condition not in runs:
                continue
            row = dict.fromkeys(SCHEMA.names()) | {
                "condition": condition, "task": task, "seeds": len(runs[condition]),
                "score": float(np.mean([*runs[condition].values()])), "word": "",
            }  # fmt: skip
            if condition != SINGLE and SINGLE in runs:
                row |= _against_single(runs, condition)
            rows.append(row)
    return pl.DataFrame(rows, schema=SCHEMA).fill_nan(None)


def contrasts(scores: pl.DataFrame) -> pl.DataFrame:
    """Every remedy less its placebo, task by task (`CONTRASTS`), the primary remedy first.

    `difference` has its 90 % interval and a one-sided `p`, corrected over tasks in `p_holm`. `p_less` is the
    p for a difference below half of what sharing costs. `cost` is what sharing costs in points, `cost_p` its
    one-sided p. `power_3` and `power_6` are the power of three and six seeds against a remedy that recovers
    half of the cost. `seed_p` is that of `seed_effect`. `word` is *supported* if `p_holm` is at most 5 %,
    else *refuted* if `p_less` is, else *cannot tell*; it is empty with fewer than three seeds of either
    condition. The row `mean` is over tasks, for seeds that have all tasks. `paired_low` to `paired_high` and
    `paired_p` are the comparison that was fixed before the first runs, paired by seed: Student's 90 %
    interval and one-sided p.
    """
    tasks = list(scores["task"].unique(maintain_order=True))
    of_tasks = {task: _runs(scores, task) for task in tasks}
    if len(tasks) > 1:
        of_tasks[ALL] = _means(of_tasks)
    rows: list[dict[str, object]] = []
    for remedy, placebo in PLACEBO_OF.items():
        of_remedy = [
            {"remedy": remedy, "placebo": placebo, "task": task} | _contrasted(runs, remedy, placebo)
            for task, runs in of_tasks.items()
            if {remedy, placebo} <= runs.keys()
        ]
        tested = [row for row in of_remedy if row["task"] != ALL]
        corrected = holm(np.array([row["p"] for row in tested], dtype=float))
        for row, p in zip(tested, corrected, strict=True):
            row["p_holm"] = float(p)
            if row["seeds"] >= FEWEST_SEEDS:
                row["word"] = word_on(float(p), row["p_less"])
        rows += of_remedy
    return pl.DataFrame(rows, schema=CONTRASTS).fill_nan(None)


def _contrasted(runs: Mapping[str, Runs], remedy: str, placebo: str) -> dict[str, Any]:
    found = contrast(runs, remedy, placebo)
    made, seeds = found.difference, [len(runs[remedy]), len(runs[placebo])]
    row: dict[str, Any] = {
        "seeds": min(seeds), "difference": made.value, "difference_low": made.low,
        "difference_high": made.high, "p": found.p, "p_less": found.p_less, "word": "",
        "pooled": made.pooled, "seed_p": seed_effect(runs).p,
    }  # fmt: skip
    if {SINGLE, JOINT} <= runs.keys():
        cost = difference(runs, {SINGLE: 1.0, JOINT: -1.0})
        row |= {"cost": cost.value, "cost_p": cost.above()}
        if cost.value > 0:
            half = MARGIN * cost.value
            each = 2 / sum(1 / number for number in seeds)
            row |= {f"power_{number}": power(made, each, half, number) for number in POWER_OF}
    both = sorted(runs[remedy].keys() & runs[placebo].keys())
    pairs = np.array([runs[remedy][seed] - runs[placebo][seed] for seed in both])
    if len(pairs) > 1 and pairs.std() > 0:
        low, high = student(pairs, 1 - 2 * LEVEL)
        score = pairs.mean() / pairs.std(ddof=1) * len(pairs) ** 0.5
        row |= {"paired_low": low, "paired_high": high}
        row["paired_p"] = float(stdtr(len(pairs) - 1, -score))
    return row


def _against_single(runs: Mapping[str, Runs], condition: str) -> dict[str, object]:
    made = difference(runs, {condition: 1.0, SINGLE: -1.0}, 1 - 2 * LEVEL)
    row: dict[str, object] = {
        "difference": made.value, "difference_low": made.low, "difference_high": made.high,
    }  # fmt: skip
    if JOINT not in runs or condition == JOINT:
        return row
    found, share = equivalence(runs, condition), recovery(runs, condition)
    row |= {"p": found.p, "margin": found.margin}
    row |= {"recovery": share.share, "recovery_low": share.low, "recovery_high": share.high}
    if min(len(runs[name]) for name in (condition, SINGLE, JOINT)) >= FEWEST_SEEDS:
        row["word"] = found.word
    return row


def _runs(scores: pl.DataFrame, task: str) -> dict[str, Runs]:
    """By condition and seed the scores of a task, conditions in their order."""
    of_task = scores.filter(task=task)
    return {
        name: dict(of_task.filter(condition=name).select("seed", "score").sort("seed").iter_rows())
        for name in CONDITIONS
        if name in set(of_task["condition"])
    }


def _means(of_tasks: Mapping[str, Mapping[str, Runs]]) -> dict[str, Runs]:
    """By condition and seed the mean over tasks, if all tasks have this condition and seed."""
    means = {}
    for name in CONDITIONS:
        of_condition = [runs[name] for runs in of_tasks.values() if name in runs]
        if len(of_condition) == len(of_tasks):
            seeds = sorted(set.intersection(*(set(runs) for runs in of_condition)))
            means[name] = {seed: float(np.mean([runs[seed] for runs in of_condition])) for seed in seeds}
    return {name: by_seed for name, by_seed in means.items() if by_seed}


def helps(table: pl.DataFrame, remedy: str) -> tuple[Helps, str]:
    """The word on a remedy by its tasks' rows of `contrasts`, and its reason.

    Only tasks count that lose by sharing (p at most 5 %): the others have nothing to bring back. *Supported*
    if one of these tasks is, *refuted* if all are, else *cannot tell*.
    """
    rows = table.filter((pl.col("remedy") == remedy) & (pl.col("task") != ALL))
    lose = rows.filter(pl.col("cost_p") <= LEVEL, pl.col("word") != "")
    words = [_in_words(row) for row in (lose if lose.height else rows).iter_rows(named=True)]
    if lose.is_empty():
        few = rows.filter(pl.col("word") != "").is_empty()
        why = f"fewer than {FEWEST_SEEDS} seeds of one of the two" if few else NOTHING_LOST
        return "cannot tell", "; ".join([why, *words])
    found = lose["word"].to_list()
    word: Helps = "cannot tell"
    if "supported" in found:
        word = "supported"
    elif set(found) == {"refuted"}:
        word = "refuted"
    return word, "; ".join(words)


def _in_words(row: Mapping[str, Any]) -> str:
    """A contrast in words, with the power of three and six seeds."""
    text = f"{row['task']} {row['difference']:+.2f} points"
    if row["difference_low"] is not None:
        text += f" (90 % interval {row['difference_low']:+.2f} to {row['difference_high']:+.2f}"
        text += f", one-sided p {row['p']:.3f}, {row['p_holm']:.3f} after Holm)"
    if row["cost"] is not None:
        text += f" of {row['cost']:.2f} that sharing costs"
    if row["word"]:
        text += f": {row['word']}"
    if row[f"power_{POWER_OF[0]}"] is not None:
        chances = " and ".join(
            f"{row[f'power_{seeds}']:.0%} with {counted(seeds, 'seed')}" for seeds in POWER_OF
        )
        text += f" (power to find half of it: {chances})"
    return text
