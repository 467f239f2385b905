"""Do tasks want the same heads? Jaccard between tasks beside its ceiling, chance, and a control task."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from mtl.probes.statistics.masks import Masks
from mtl.probes.statistics.overlap import jaccard
from mtl.probes.statistics.overlap_chance import chance_of_overlap
from mtl.probes.stem_cell.statistics.competition import beside_learned
from mtl.tasks.in_words import counted

YES: Final = "yes"
NO: Final = "no"
CANNOT_TELL: Final = "cannot tell"
Word = Literal["yes", "no", "cannot tell"]
FEWEST_SEEDS = 3
LEVEL = 0.05
"""The greatest chance of a *yes* or *no* if tasks are to each other what random labels are to them."""
MOST_CHOICES = 100_000
"""The most choices of masks that the test enumerates; if there are more, it draws as many."""
KINDS = ("by chance", "with control", "between tasks", "one task, seeds")


@dataclass(frozen=True)
class Wanted:
    """How far tasks claim the same heads."""

    table: pl.DataFrame
    """kind (one of `KINDS`), first, second, jaccard, learned: a row per pair of tasks, or task.

    `learned` is the Jaccard index of only those heads that no target had to open."""
    word: Word
    reason: str


def wanted(masks: Masks) -> Wanted:
    """The Jaccard index of masks between tasks, of a task with itself, with the control task, and by chance.

    Between tasks, masks of the same seed are compared. Within a task, masks of two seeds are compared: this
    is the ceiling, since no other task can be expected to agree with a task more than it does with itself.
    Chance is the Jaccard index of the same pairs of masks, seed by seed, if they had as many heads in common
    as is expected when each layer keeps its number of open heads. The control task, whose labels are random,
    tells whether tasks want the same heads only because any decoder needs them.

    The word is that of `exchange_test`, in which a draw of random labels is one observation, and so is a
    task, whatever the number of their seeds. Raises `ValueError` for fewer than two tasks beside the control
    task.
    """
    if len(masks.of_real_labels().tasks) < 2:
        raise ValueError("masks of fewer than two tasks: overlap needs two")
    table = _compared(masks, masks.opened)
    learned = _compared(masks, masks.kept_by_learning())
    table = table.with_columns(learned=learned["jaccard"])
    word, reason = _word(masks, masks.opened)
    by_learning = ""
    if masks.forced().any():
        by_learning = beside_learned((word, reason), _word(masks, masks.kept_by_learning()))
    figures = _figures(table)
    return Wanted(table, word, f"{masks.forced_in_words()}{reason}{by_learning}; {figures}")


def exchange_test(
    overlap: Float[np.ndarray, "unit unit"], tasks: Bool[np.ndarray, " unit"], seed: int = 0
) -> tuple[float, float]:
    """The mean overlap between tasks less that of tasks with the other units, and its two-sided p.

    A unit is a task or a draw of random labels. If a task is to other tasks what a task of random labels is
    to them, all units may change places. Then every choice of as many units as there are tasks is as likely
    as the observed one (an exact permutation test of two groups over a matrix of pairs, as in Mantel and
    Valand 1970). p is twice the share of choices with a difference as high, or of those with one as low,
    whichever is smaller. `overlap` is symmetric; its diagonal is not read. If there are more than
    `MOST_CHOICES` choices, as many are drawn (`seed`), the observed one among them.
    """
    units, count = len(tasks), int(tasks.sum())
    if math.comb(units, count) <= MOST_CHOICES:
        chosen = np.zeros((math.comb(units, count), units))
        places = np.array(list(itertools.combinations(range(units), count)))
    else:
        order = np.random.default_rng(seed).random((MOST_CHOICES - 1, units)).argsort(1)[:, :count]
        places = np.vstack([np.flatnonzero(tasks), order])
        chosen = np.zeros((MOST_CHOICES, units))
    np.put_along_axis(chosen, places, 1.0, axis=1)
    between = overlap - np.diag(np.diag(overlap))
    within = np.einsum("cu,uv,cv->c", chosen, between, chosen, optimize=True) / (count * (count - 1))
    across = np.einsum("cu,uv,cv->c", chosen, between, 1 - chosen, optimize=True)
    differences = within - across / (count * (units - count))
    observed = differences[(chosen == tasks).all(1).argmax()]
    shares = (differences >= observed - 1e-12).mean(), (differences <= observed + 1e-12).mean()
    return float(observed), float(min(1.0, 2 * min(shares)))


def draws_needed(tasks: int) -> int:
    """The fewest draws of random labels with which `exchange_test` can reach `LEVEL` for `tasks` tasks."""
    return next(draws for draws in itertools.count(1) if 2 / math.comb(tasks + draws, tasks) <= LEVEL)


def _compared(masks: Masks, opened: Bool[np.ndarray, "task seed site head"]) -> pl.DataFrame:
    """kind, first, second, jaccard."""
    tasks = [number for number, task in enumerate(masks.tasks) if task not in masks.draws]
    draws = [number for number, task in enumerate(masks.tasks) if task in masks.draws]
    rows: list[tuple[str, str, str, float]] = []
    for one, other in itertools.combinations(tasks, 2):
        by_seed = zip(opened[one], opened[other], strict=True)
        chance = _mean(np.array([_by_chance(first, second) for first, second in by_seed]))
        rows.append((KINDS[0], masks.tasks[one], masks.tasks[other], chance))
    pairs = {KINDS[1]: itertools.product(tasks, draws), KINDS[2]: itertools.combinations(tasks, 2)}
    for kind, of_kind in pairs.items():
        for one, other in of_kind:
            rows.append(
                (kind, masks.tasks[one], masks.tasks[other], _mean(jaccard(opened[one], opened[other])))
            )
    for one in tasks:
        seeds = list(itertools.combinations(range(len(masks.seeds)), 2))
        if seeds:
            values = np.array([jaccard(opened[one, a], opened[one, b]) for a, b in seeds])
            rows.append((KINDS[3], masks.tasks[one], masks.tasks[one], _mean(values)))
    schema = {"kind": pl.String, "first": pl.String, "second": pl.String, "jaccard": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row").fill_nan(None)


def _word(masks: Masks, opened: Bool[np.ndarray, "task seed site head"]) -> tuple[Word, str]:
    """The word by the test, and its reason."""
    tasks, seeds, draws = len(masks.tasks) - len(masks.draws), len(masks.seeds), len(masks.draws)
    needed = draws_needed(tasks)
    fix = (
        f"train masks on {counted(needed, 'draw')} (--tasks=[control] --control.draw=N, or draws.control: "
        f"{[*range(1, needed + 1)]} in a study's block of masks)"
    )
    if not draws:
        return CANNOT_TELL, f"no masks of a control task, which keeps heads that any decoder needs: {fix}"
    if seeds < FEWEST_SEEDS:
        return CANNOT_TELL, f"masks of {counted(seeds, 'seed')}, and {FEWEST_SEEDS} are needed"
    closed = int(((~opened.any((2, 3))).sum(0) > 1).sum())
    if closed:
        return CANNOT_TELL, f"several masks without an open head in {closed} of {counted(seeds, 'seed')}"
    overlap = np.array([[jaccard(one, other).mean() for other in opened] for one in opened])
    difference, p = exchange_test(overlap, np.array([task not in masks.draws for task in masks.tasks]))
    of_draws = f"{counted(draws, 'draw')} of random labels"
    figures = f"Jaccard between tasks less that with {of_draws} {difference:+.2f}"
    if draws < needed:
        least = 2 / math.comb(tasks + draws, tasks)
        return CANNOT_TELL, (
            f"{figures}, but with so few draws no overlap would be a finding: a draw is one observation, and "
            f"the test of {counted(tasks, 'task')} has no p below {least:.2g}; {fix}"
        )
    figures += f" (p {p:.2g}, tasks and draws exchanged)"
    if p > LEVEL:
        return CANNOT_TELL, figures
    return (YES if difference > 0 else NO), figures


def _figures(table: pl.DataFrame) -> str:
    means, learned = (
        dict(table.group_by("kind").agg(pl.col(column).mean()).iter_rows())
        for column in ("jaccard", "learned")
    )
    return "; ".join(
        f"{name} {means[kind]:.2f}{_of_learned(means[kind], learned[kind])}"
        for kind, name in zip(
            ("between tasks", "one task, seeds", "by chance", "with control"),
            ("Jaccard between tasks", "of a task with itself over seeds", "by chance, layers kept",
             "with the control task"),
            strict=True,
        )
        if means.get(kind) is not None
    )  # fmt: skip


def _of_learned(every: float, learned: float | None) -> str:
    """The number for learned heads alone, in brackets; empty if it is the same."""
    if learned == every:
        return ""
    return f" (learned heads alone {'–' if learned is None else f'{learned:.2f}'})"


def _by_chance(first: Bool[np.ndarray, "site head"], second: Bool[np.ndarray, "site head"]) -> float:
    """The Jaccard index of two masks with as many common heads as expected by chance; NaN without any."""
    expected, _, _ = chance_of_overlap(first, second, keep_layers=True)
    union = float(first.sum() + second.sum()) - expected
    return expected / union if union > 0 else float("nan")


def _mean(values: Float[np.ndarray, ...]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
