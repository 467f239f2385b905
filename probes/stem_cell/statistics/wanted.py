"""Do tasks want the same heads? Jaccard between tasks against its ceiling, chance, and a control task."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from mtl.probes.statistics.masks import Masks
from mtl.probes.statistics.overlap import jaccard
from mtl.probes.statistics.overlap_chance import chance_of_overlap
from mtl.probes.stem_cell.statistics.contest_cells import CONTROL

YES: Final = "yes"
NO: Final = "no"
CANNOT_TELL: Final = "cannot tell"
Word = Literal["yes", "no", "cannot tell"]
FEWEST_SEEDS = 3
KINDS = ("by chance", "with control", "between tasks", "one task, seeds")


@dataclass(frozen=True)
class Wanted:
    """How far tasks claim the same heads."""

    table: pl.DataFrame
    """kind (one of `KINDS`), first, second, jaccard, learned: a row per pair of tasks, or task.

    `learned` is the Jaccard index of the heads alone that no target had to open."""
    word: Word
    reason: str


def wanted(masks: Masks) -> Wanted:
    """Jaccard of masks between tasks, of a task with itself over seeds, with the control task, and by chance.

    Between tasks masks of one seed are compared, within a task those of two seeds: the ceiling, since no
    other task can be expected to agree with a task more than it does with itself. Chance is the Jaccard index
    of the same pairs of masks, seed by seed, if their common heads were as many as expected where each layer
    keeps its number of open heads. The control task, whose labels mean
    nothing, tells whether tasks want the same heads only because any decoder needs them. Its labels are one
    draw, and seeds of a run do not repeat the draw, so the word is *cannot tell*: an interval over seeds
    would call unrelated tasks alike or unlike the more often the more seeds there are. Raises `ValueError`
    for fewer than two tasks beside the control task.
    """
    tasks = [number for number, task in enumerate(masks.tasks) if task != CONTROL]
    if len(tasks) < 2:
        raise ValueError("masks of fewer than two tasks: overlap needs two")
    table, between, with_control = _compared(masks, masks.opened)
    learned, _, _ = _compared(masks, masks.kept_by_learning())
    table = table.with_columns(learned=learned["jaccard"])
    word, reason = _word(table, between, with_control, len(masks.seeds))
    return Wanted(table, word, f"{masks.forced_in_words()}{reason}")


def _compared(
    masks: Masks, opened: Bool[np.ndarray, "task seed site head"]
) -> tuple[pl.DataFrame, list[Float[np.ndarray, " seed"]], list[Float[np.ndarray, " seed"]]]:
    """kind, first, second, jaccard; by seed the Jaccard indices between tasks; and those with the control."""
    tasks = [number for number, task in enumerate(masks.tasks) if task != CONTROL]
    control = masks.tasks.index(CONTROL) if CONTROL in masks.tasks else None
    rows: list[tuple[str, str, str, float]] = []
    for one, other in itertools.combinations(tasks, 2):
        by_seed = zip(opened[one], opened[other], strict=True)
        chance = _mean(np.array([_by_chance(first, second) for first, second in by_seed]))
        rows.append((KINDS[0], masks.tasks[one], masks.tasks[other], chance))
    with_control: list[Float[np.ndarray, " seed"]] = []
    for one in tasks if control is not None else ():
        values = jaccard(opened[one], opened[control])
        with_control.append(values)
        rows.append((KINDS[1], masks.tasks[one], CONTROL, _mean(values)))
    between: list[Float[np.ndarray, " seed"]] = []
    for one, other in itertools.combinations(tasks, 2):
        values = jaccard(opened[one], opened[other])
        between.append(values)
        rows.append((KINDS[2], masks.tasks[one], masks.tasks[other], _mean(values)))
    for one in tasks:
        seeds = list(itertools.combinations(range(len(masks.seeds)), 2))
        if seeds:
            values = np.array([jaccard(opened[one, a], opened[one, b]) for a, b in seeds])
            rows.append((KINDS[3], masks.tasks[one], masks.tasks[one], _mean(values)))
    schema = {"kind": pl.String, "first": pl.String, "second": pl.String, "jaccard": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row").fill_nan(None), between, with_control


def _word(
    table: pl.DataFrame,
    between: list[Float[np.ndarray, " seed"]],
    with_control: list[Float[np.ndarray, " seed"]],
    seeds: int,
) -> tuple[Word, str]:
    means, learned = (
        dict(table.group_by("kind").agg(pl.col(column).mean()).iter_rows())
        for column in ("jaccard", "learned")
    )
    figures = "; ".join(
        f"{name} {means[kind]:.2f}{_of_learned(means[kind], learned[kind])}"
        for kind, name in zip(
            ("between tasks", "one task, seeds", "by chance", "with control"),
            ("Jaccard between tasks", "of a task with itself over seeds", "by chance, layers kept",
             "with the control task"),
            strict=True,
        )
        if means.get(kind) is not None
    )  # fmt: skip
    if not with_control:
        return CANNOT_TELL, f"no masks of a control task, whose heads any decoder needs; {figures}"
    if seeds < FEWEST_SEEDS:
        few = f"masks of {seeds} seed{'s' * (seeds != 1)}, and {FEWEST_SEEDS} are needed"
        return CANNOT_TELL, f"{few}; {figures}"
    differences = _by_seed(between) - _by_seed(with_control)
    if np.isnan(differences).any():
        empty = int(np.isnan(differences).sum())
        return CANNOT_TELL, f"masks without an open head in {empty} of {seeds} seeds; {figures}"
    return CANNOT_TELL, (
        f"{figures}; between tasks less with control {differences.mean():+.2f}, but one draw of random "
        "labels does not tell how far other draws would differ"
    )


def _of_learned(every: float, learned: float | None) -> str:
    """The same figure of learned heads alone, in brackets; empty where it is the same."""
    if learned == every:
        return ""
    return f" (learned heads alone {'–' if learned is None else f'{learned:.2f}'})"


def _by_chance(first: Bool[np.ndarray, "site head"], second: Bool[np.ndarray, "site head"]) -> float:
    """The Jaccard index of two masks with as many common heads as expected by chance; NaN without any."""
    expected, _, _ = chance_of_overlap(first, second, keep_layers=True)
    union = float(first.sum() + second.sum()) - expected
    return expected / union if union > 0 else float("nan")


def _by_seed(values: list[Float[np.ndarray, " seed"]]) -> Float[np.ndarray, " seed"]:
    """The mean over pairs; NaN in a seed in which no pair has a Jaccard index."""
    return np.array([_mean(pairs) for pairs in np.transpose(values)])


def _mean(values: Float[np.ndarray, ...]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
