"""What tasks lose by sharing few heads, and whether they want the same ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from mtl.probes.statistics.compared_runs import (
    Difference,
    Runs,
    deciding_intervals,
    difference,
    seed_effect,
)
from mtl.probes.statistics.masks import FEWEST_SEEDS, Masks, chance_of_overlap, jaccard
from mtl.probes.statistics.significance import CANNOT_TELL, Finding, paired
from mtl.probes.stem_cell.wording import SignedWords, beside_learned
from mtl.probes.tables.table_files import About, ColumnUnit, by_catalogue, types_of
from mtl.tasks.in_words import counted

YES: Final = "yes"
NO: Final = "no"
Word = Literal["yes", "no", "cannot tell"]
LEVEL = 0.05
"""The greatest chance of a *yes* or *no* if tasks are to each other what random labels are to them."""
FEWEST_REPEATS = 0.1
"""The repeatability of masks over seeds below which they do not say what a task wants (`alike_in_wants`). In
simulations with it, *yes* or *no* come by chance in at most 0.08 whatever the repeatabilities are
(tests/probes/stem_cell/test_first_screen.py); by Jaccard's index alone, in up to 0.99."""
MOST_CHOICES = 100_000
"""The most choices of masks that the test enumerates; if there are more, it draws as many."""
KINDS = ("by chance", "with control", "between tasks", "one task, seeds")


def wanted(masks: Masks) -> Finding:
    """The Jaccard index of masks between tasks, of a task with itself, with the control task, and by chance.

    The table has a row per pair of tasks, or task: kind (one of `KINDS`), first, second, jaccard, and
    learned, the Jaccard index of only those heads that no target had to open.

    Between tasks, masks of the same seed are compared. Within a task, masks of two seeds are compared: this
    is the ceiling, since no other task can be expected to agree with a task more than it does with itself.
    Chance is the Jaccard index of the same pairs of masks, seed by seed, if they had as many heads in common
    as is expected when each layer keeps its number of open heads. The control task, whose labels are random,
    tells whether tasks want the same heads only because any decoder needs them.

    The word is that of `exchange_test` on `alike_in_wants`, in which masks that repeat less over seeds do not
    count as masks of other heads. A draw of random labels is one observation, and so is a task, whatever the
    number of their seeds. Raises `ValueError` for fewer than two tasks beside the control
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
    return Finding(word, f"{masks.forced_in_words()}{reason}{by_learning}; {figures}", table)


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


def alike_in_wants(
    opened: Bool[np.ndarray, "unit seed site head"],
) -> tuple[Float[np.ndarray, "unit unit"], Float[np.ndarray, " unit"]]:
    """How far units want the same heads of a site, and how far the masks of each repeat over seeds.

    The correlation of two masks is that over heads, less the share of open heads of each site. A unit's
    repeatability is the mean correlation of its masks of different seeds. The likeness of two units is the
    mean correlation of all their masks, divided by the root of the product of their repeatabilities (the
    correction for attenuation, Spearman 1904): 1 if they want the same heads, however much masks scatter.
    Repeatabilities below `FEWEST_REPEATS` count as that; with them, likeness says nothing.
    """
    units, seeds = opened.shape[:2]
    centred = (opened - opened.mean(-1, keepdims=True)).reshape(units, seeds, -1)
    length = np.linalg.norm(centred, axis=-1, keepdims=True)
    unit = centred / np.where(length > 0, length, 1.0)
    sums = np.einsum("ush,vth->uv", unit, unit, optimize=True)
    with_itself = np.einsum("ush,ush->u", unit, unit)
    repeats = (np.diag(sums) - with_itself) / (seeds * (seeds - 1))
    root = np.sqrt(repeats.clip(min=FEWEST_REPEATS))
    return sums / seeds**2 / np.outer(root, root), repeats


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
        return (
            CANNOT_TELL,
            f"no masks of a control task (random labels), which show what helps any task: {fix}",
        )
    if seeds < FEWEST_SEEDS:
        return CANNOT_TELL, f"masks of {counted(seeds, 'seed')}, and {FEWEST_SEEDS} are needed"
    closed = int(((~opened.any((2, 3))).sum(0) > 1).sum())
    if closed:
        return CANNOT_TELL, f"several masks without an open head in {closed} of {counted(seeds, 'seed')}"
    alike, repeats = alike_in_wants(opened)
    if repeats.min() < FEWEST_REPEATS:
        least = masks.tasks[int(repeats.argmin())]
        return CANNOT_TELL, (
            f"masks of {least} hardly repeat over seeds (correlation {repeats.min():.2f}, and "
            f"{FEWEST_REPEATS} is needed): train them longer, or with more seeds"
        )
    difference, p = exchange_test(alike, np.array([task not in masks.draws for task in masks.tasks]))
    of_draws = f"{counted(draws, 'draw')} of random labels"
    figures = (
        f"correlation of tasks' masks less that with {of_draws} {difference:+.2f}, both in parts of how far "
        "masks repeat over seeds"
    )
    if draws < needed:
        lowest = 2 / math.comb(tasks + draws, tasks)
        return CANNOT_TELL, (
            f"{figures}, but with so few draws no overlap would be a finding: a draw is one observation, and "
            f"the test of {counted(tasks, 'task')} has no p below {lowest:.2g}; {fix}"
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


MARGIN = 1.0
"""Points of a score below which a loss is too small to act on; fixed before any run."""
UNITS = (
    ColumnUnit.TEXT.of("setup", "task")
    | ColumnUnit.COUNT.of("seeds")
    | ColumnUnit.POINTS.of("loss", "low", "high")
    | ColumnUnit.P.of("p", "p_holm")
    | ColumnUnit.FLAG.of("pooled")
    | ColumnUnit.P.of("seed_p")
    | ColumnUnit.POINTS.of("paired_low", "paired_high")
    | ColumnUnit.P.of("paired_p")
)
SCHEMA = pl.Schema(types_of(UNITS))
PROCEDURES = (
    "low, high, p: Student's t; a setup has the spread of its own runs, or that of the runs of all setups, "
    "whichever is larger; from one seed there are none, and `mtl compare` has intervals over other sentences",
    "p_holm: p after Holm over the tasks of the setup; low, high: intervals that hold for all of these tasks "
    "together, and exclude 0 (an end at 0 is not part of one) exactly if p_holm is at most 0.05",
    "paired_low, paired_high: Student's interval of the differences of runs with the same seed; paired_p: by "
    "exchanging the signs of these differences",
    "the row mean, over tasks, has only the paired columns",
)
"""What the intervals and p of the table come from."""
ALL = "mean"
"""The row of the mean over tasks."""


@dataclass(frozen=True)
class Wording:
    """What the two ways of training are called."""

    way: str
    """The way that may cost something, as the start of a sentence: `trained jointly`."""
    than: str
    """The other way: `alone`."""
    both: str
    """How a task was trained that has both ways: `alone and jointly`."""


JOINTLY = Wording("trained jointly", "alone", "alone and jointly")


def sharing(
    scores: pl.DataFrame,
    setups: Mapping[str, Mapping[str, str]],
    level: float = 0.05,
    wording: Wording = JOINTLY,
) -> Finding:
    """The loss of each group of setups: alone less jointly, in points, positive where sharing hurts.

    The table has a row per setup and task (or `mean`: over tasks): seeds, loss in points, low, high, p,
    p_holm (over the tasks of the setup), pooled, seed_p (of `seed_effect`), and the comparison paired by
    seed: paired_low, paired_high, paired_p.

    `scores`: setup, task, seed, score (per cent), of all setups from whose runs the spread of scores is
    taken. `setups`: by the name of a group its setups, each with the setup of single-task runs to compare
    with (the pairs of five tasks are ten setups of one group, whose losses are averaged per task). Loss and p
    of a task are those of `difference`; intervals, and p corrected over the group's tasks by Holm, are those
    of `deciding_intervals` with an error of `level`. Beside them are those paired by seed (Student's
    interval, p by exchanging signs). The mean over tasks has only these: one task with a wide spread would
    decide it.

    The word is on the tasks of the first group that have three runs of each setup: *yes* if one of them loses
    (its corrected p is at most `level`), else *no* if all intervals end below `MARGIN`, else *cannot tell*.
    """
    rows = [row for group, members in setups.items() for row in _rows(scores, group, members, level)]
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row").fill_nan(None)
    first = table.filter((pl.col("setup") == next(iter(setups), "")) & (pl.col("task") != ALL))
    return Finding(*word_on(first, level, wording), table)


def _rows(
    scores: pl.DataFrame, group: str, members: Mapping[str, str], level: float
) -> list[dict[str, object]]:
    differences = by_catalogue(_differences(scores, members))
    by_task = differences.pivot("task", index="seed", values="loss").sort("seed")
    tasks = by_task.columns[1:]
    found = [_difference(_runs(scores, task), members) for task in tasks]
    rows = [
        {
            "setup": group, "task": task, "seeds": seeds, "loss": made.value, "low": low, "high": high,
            "p": made.p, "p_holm": p, "pooled": made.pooled, "seed_p": seed_effect(_runs(scores, task)).p,
        }
        | _pairs(by_task[task].drop_nulls().to_numpy(), level)
        for task, (made, seeds), ((low, high), p) in zip(
            tasks, found, deciding_intervals([made for made, _ in found], 1 - level), strict=True
        )
    ]  # fmt: skip
    complete = by_task.drop_nulls()
    if len(rows) > 1 and complete.height:
        means = complete.select(by_task.columns[1:]).to_numpy().mean(1)
        rows.append(
            {"setup": group, "task": ALL, "seeds": len(means), "loss": means.mean()} | _pairs(means, level)
        )
    return rows


def _difference(runs: Mapping[str, Runs], members: Mapping[str, str]) -> tuple[Difference, int]:
    """A task's mean loss over the group's setups that have it, each less its single-task runs; the seeds."""
    there = {setup: alone for setup, alone in members.items() if setup in runs and alone in runs}
    weights = dict.fromkeys((*there, *there.values()), 0.0)
    for setup, alone in there.items():
        weights[alone] += 1 / len(there)
        weights[setup] -= 1 / len(there)
    return difference(runs, weights), min(len(runs[setup]) for setup in weights)


def _pairs(losses: Float[np.ndarray, " seed"], level: float) -> dict[str, object]:
    return dict(zip(("paired_low", "paired_high", "paired_p"), paired(losses, 1 - level), strict=True))


def _runs(scores: pl.DataFrame, task: str) -> dict[str, Runs]:
    """By setup and seed the scores of a task."""
    by_seed = (
        scores.filter(task=task).group_by("setup", "seed", maintain_order=True).agg(pl.col("score").mean())
    )
    return {
        str(setup): dict(of_setup.select("seed", "score").iter_rows())
        for (setup,), of_setup in by_seed.group_by("setup", maintain_order=True)
    }


def _differences(scores: pl.DataFrame, members: Mapping[str, str]) -> pl.DataFrame:
    """Per task and seed the mean loss over the setups of a group: task, seed, loss."""
    parts = [pl.DataFrame(schema={"task": pl.String, "seed": pl.Int64, "loss": pl.Float64})]
    for setup, baseline in members.items():
        ours, alone = (scores.filter(pl.col("setup") == name) for name in (setup, baseline))
        both = ours.join(alone, on=["task", "seed"], suffix="_alone", maintain_order="left")
        parts.append(both.select("task", "seed", loss=pl.col("score_alone") - pl.col("score")))
    return pl.concat(parts).group_by("task", "seed", maintain_order=True).agg(pl.col("loss").mean())


def about_losses(groups: Mapping[str, Mapping[str, str]], split: str) -> About:
    """What the table's files say of its numbers: the setups that are compared, and the procedures."""
    against = "; ".join(
        f"{group} than {' and '.join(dict.fromkeys(members.values()))}" for group, members in groups.items()
    )
    notes = (f"loss: how many points less the first scores on {split}: {against}", *PROCEDURES)
    return About(UNITS, notes, ("setup", "task", "seeds", "loss", "low high", "p_holm"))


SCORED = SignedWords("less", "more", "points")
"""The wording of lost points."""


def word_on(table: pl.DataFrame, level: float = 0.05, wording: Wording = JOINTLY) -> tuple[Word, str]:
    """The word on the tasks of one group, each with a row of the table, and its reason."""
    if table.is_empty():
        return CANNOT_TELL, f"no seed with which a task was trained {wording.both}"
    enough = table.filter(pl.col("seeds") >= FEWEST_SEEDS)
    known = enough.filter(pl.col("p").is_not_null())
    if known.is_empty():
        most = int(table["seeds"].to_numpy().max())
        why = f"at most {counted(most, 'seed')} of a task {wording.both}, and {FEWEST_SEEDS} are needed"
        if not enough.is_empty():
            why = "all runs of a setup have the same score, so their spread is not known"
        mean = SCORED.of(float(table["loss"].to_numpy().mean()))
        return CANNOT_TELL, f"{why}; {wording.way}, tasks score {mean} than {wording.than} on average"
    certain = known.filter(pl.col("p_holm") <= level)
    together = f" of {counted(known.height, 'task')} together" if known.height > 1 else ""
    sure = f"{1 - level:.0%} interval{together} "
    words = [
        f"{row['task']} scores {SCORED.of(row['loss'])} than {wording.than} ({'' if place else sure}"
        f"{SCORED.interval(row['low'], row['high'])})"
        for place, row in enumerate(certain.iter_rows(named=True))
    ]
    open_tasks = known.filter(pl.col("p_holm") > level)
    small = open_tasks.filter(pl.col("high") < MARGIN)["task"].to_list()
    wide = open_tasks.filter(pl.col("high") >= MARGIN)["task"].to_list()
    if small:
        words.append(
            f"{_list(small)} {'lose' if len(small) > 1 else 'loses'} less than {MARGIN:g} point, if anything"
        )
    if wide:
        words.append(f"for {_list(wide)}, these runs cannot tell whether anything is lost")
    word: Word = CANNOT_TELL if wide else NO
    if certain.filter(pl.col("loss") > 0).height:
        word = YES
        if known.filter(pl.col("high") >= MARGIN).is_empty():
            words.append(f"no task loses {MARGIN:g} point")
    return word, f"{wording.way}, {'; '.join(words)}"


def who_loses(table: pl.DataFrame, level: float = 0.05) -> str:
    """The tasks of one group that lose, if not all of them do: `for dep and srl`, `for 5 of 9 tasks`."""
    lose = table.filter((pl.col("p_holm") <= level) & (pl.col("loss") > 0))["task"].to_list()
    tasks = table.filter(pl.col("task") != ALL).height
    if len(lose) == tasks:
        return ""
    return f"for {_list(lose)}" if len(lose) < 3 else f"for {len(lose)} of {counted(tasks, 'task')}"


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
