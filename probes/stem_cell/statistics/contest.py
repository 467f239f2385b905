"""Is a head that a task claims worth less to it beside a partner that claims the head, too?

Over the heads h that task t itself claims and its partners u, with the mean over seeds of what the head is
worth to t in the pair run of t and u (in a unit of `worth_units`):

    y[h, t, u] = a[h, t] + b[t, u, site of h] - beta * claim[h, u] + e

a takes out the head, the task, its own claim and what the head is worth to it anyway; b takes out that some
partners are worse, in some layers more. What remains compares one head of one task beside a partner that
claims it with the same head beside one that does not. Runs of single tasks are not used, so that
neither regression to the mean nor joint training that keeps half of every gain looks like a contest.

What is exchangeable: if a partner's claims do not matter, the residuals of a layer's heads beside it have the
same distribution, so that its claims may be reassigned to other heads of the same layer. One permutation
serves all tasks beside that partner: its claims are one pattern, drawn once, and what it does to a head
in one pair it may do in all of them. (Permuting each pair separately would count one pattern several times:
where a partner moves heads of all tasks alike, for reasons other than claims, it rejects in one of ten
draws.) Partners are permuted independently of each other; layers keep their numbers of claims. The
statistic is the partial correlation of worth and claims and not their covariance: tasks prefer the
same heads, so that the claims on a task's own heads vary differently from permuted ones, and
covariances would differ for that reason alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Int

from mtl.probes.signed_words import SignedWords
from mtl.probes.statistics.resampling import accepted_interval, permutations_within
from mtl.probes.stem_cell.statistics.contest_cells import ContestCells, TaskWorth, contest_cells
from mtl.probes.stem_cell.statistics.contest_model import TaskBlock, in_unit
from mtl.probes.stem_cell.statistics.worth_units import STANDARDISED_LOGS, Unit, log_spread
from mtl.tasks.in_words import counted

SUPPORTED: Final = "supported"
REFUTED: Final = "refuted"
CANNOT_TELL: Final = "cannot tell"
Word = Literal["supported", "refuted", "cannot tell"]
FEWEST_SEEDS = 3
"""Runs of every pair that a word other than *cannot tell* needs."""
TENTH = 0.1
"""The share of worth lost below which a contest does not count as one; fixed before any run."""
DRAWS = 1999
LEVEL = 0.05
"""The error of the one-sided test, and of both sides of the interval together."""


@dataclass(frozen=True)
class ContestEstimate:
    """What a claimed head loses to a partner that claims it, too."""

    beta: float
    """In the unit; positive: worth less beside a partner that claims the head."""
    low: float
    high: float
    """Ends of the two-sided interval by inversion of the permutation test."""
    p: float
    """One-sided: the chance of a beta as high if partners' claims do not matter."""
    share: float
    share_low: float
    share_high: float
    """The same as a share of what a claimed head is worth."""
    per_seed: tuple[float, ...]
    """Beta of each seed alone; their mean is `beta`."""
    seeds: tuple[int, ...]
    heads: int
    """Claimed heads that some partner claims and another does not, summed over tasks; only they can tell."""
    word: Word
    reason: str


def contest(
    worth: pl.DataFrame,
    claims: pl.DataFrame,
    unit: Unit = STANDARDISED_LOGS,
    *,
    tasks: tuple[str, ...] = (),
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
) -> tuple[ContestEstimate, tuple[str, ...]]:
    """The estimate, its test and its word, and notes; the tables are as `contest_cells` takes them.

    The run is the unit: seeds of a pair are averaged before anything is estimated, so that more heads of one
    run are never more runs, and the noise between seeds is in the residuals that the permutation draws from.
    The estimate is the mean of those of the seeds, which are given beside it. Raises `ValueError` as
    `contest_cells` and the unit do.
    """
    cells, notes = contest_cells(worth, claims, tasks)
    return estimate(cells, unit, level=level, draws=draws, seed=seed), (*notes, *no_common_head(cells))


def no_common_head(cells: ContestCells) -> tuple[str, ...]:
    """A note on each pair of tasks that claim no head in common."""
    pairs = dict.fromkeys(tuple(sorted((of.task, partner))) for of in cells.tasks for partner in of.partners)
    return tuple(
        f"{one} and {other} claim no head in common: their pair shows only what heads are worth uncontested"
        for one, other in pairs
        if not (cells.claims[one] & cells.claims[other]).any()
    )


def estimate(
    cells: ContestCells,
    unit: Unit = STANDARDISED_LOGS,
    *,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
) -> ContestEstimate:
    """`contest` on tables that are laid out as arrays."""
    scaled = [in_unit(of, unit) for of in cells.tasks]
    blocks = [TaskBlock(cells, of, values.mean(0)) for of, values in zip(cells.tasks, scaled, strict=True)]
    compared = np.concatenate([block.compared() for block in blocks])
    seeds, heads = cells.seeds, len(compared)
    square = float(sum(block.square(block.claim) for block in blocks))
    if square <= 1e-9:
        reason = "no claimed head has both a partner that claims it and one that does not"
        nan = float("nan")
        return ContestEstimate(nan, nan, nan, nan, nan, nan, nan, (), seeds, 0, CANNOT_TELL, reason)
    covariance = float(sum(block.with_worth(block.claim) for block in blocks))
    per_seed = [
        -float(sum(TaskBlock(cells, of, values[number]).with_worth(block.claim) for of, values, block in
                   zip(cells.tasks, scaled, blocks, strict=True)) / square)
        for number in range(len(seeds))
    ]  # fmt: skip
    low, high, p = _inverted(cells, blocks, covariance, square, level, draws, np.random.default_rng(seed))
    beta = -covariance / square
    to_share = _share(cells, unit, blocks, square)
    share, share_low, share_high = to_share(beta), to_share(low), to_share(high)
    word, reason = _word(len(seeds), p, level, (share, share_low, share_high))
    reason = f"{reason}; {_informative(cells, compared)}"
    return ContestEstimate(
        beta, low, high, p, share, share_low, share_high, tuple(per_seed), seeds, heads, word, reason
    )


def _informative(cells: ContestCells, compared: Int[np.ndarray, " compared"]) -> str:
    """How many claims and heads the estimate rests on, and how many heads can say nothing."""
    in_play = {name for of in cells.tasks for name in (of.task, *of.partners)}
    by_all = int(np.all([cells.claims[name] for name in in_play], axis=0).sum())
    claims, heads = len(compared), len(set(compared))
    text = f"it rests on {counted(claims, 'claim')} of {counted(heads, 'head')}"
    none = f", and {counted(by_all, 'head')} that every task claims cannot be compared"
    return text + none * bool(by_all)


def _inverted(
    cells: ContestCells,
    blocks: list[TaskBlock],
    covariance: float,
    square: float,
    level: float,
    draws: int,
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """The interval of all beta that the permutation test accepts, and its one-sided p for beta 0.

    With worth + beta0 * claim instead of worth, the statistic of the observed claims is (C + beta0 S) /
    sqrt(S), of permuted claims (C' + beta0 X') / sqrt(S'), with C their inner product with worth, S and S'
    their squared lengths and X' that with the observed claims. Their difference grows with beta0 (Cauchy
    and Schwarz), so that each permutation changes sides at one beta0 (`accepted_interval`).
    """
    drawn: dict[str, Bool[np.ndarray, "draw cell"]] = {}
    for partner in sorted({partner for block in blocks for partner in block.partners}):
        drawn[partner] = cells.claims[partner][permutations_within(cells.strata, draws, rng)]
    with_worth, squares, with_claims = (np.zeros(draws) for _ in range(3))
    for block in blocks:
        claim = np.stack([drawn[name][:, block.own] for name in block.partners], axis=1).astype(np.float64)
        with_worth += block.with_worth(claim)
        squares += block.square(claim)
        with_claims += block.with_claims(claim)
    length, lengths = np.sqrt(square), np.sqrt(np.maximum(squares, 0))
    usable = lengths > 1e-6  # claims that are constant beside all effects have no correlation
    scaled, crossed = np.zeros(draws), np.zeros(draws)
    scaled[usable] = with_worth[usable] / lengths[usable]
    crossed[usable] = with_claims[usable] / lengths[usable]
    observed = covariance / length
    # Loss is negative covariance; equal sums differ by rounding.
    p = float((1 + (scaled <= observed + 1e-12).sum()) / (1 + draws))
    low, high = accepted_interval(scaled - observed, length - crossed, length, level)
    return low, high, p


def _share(
    cells: ContestCells, unit: Unit, blocks: list[TaskBlock], square: float
) -> Callable[[float], float]:
    """From a beta in the unit to the share of a claimed head's worth that is lost.

    In standardised logs a share s lost is a fall of -log(1 - s) / sd, sd being the spread of logs in its
    run. The estimate is linear in worth, so that it sees -log(1 - s) times the mean of 1 / sd over cells
    and seeds, weighted by claim times claim without the effects. In other units beta is compared with what
    it would rise by if every contested head lost a tenth of what it is worth on average over the seeds of
    its pair; this is linear, and meant for small shares. NaN where claimed heads are worth
    nothing.
    """
    if unit.multiplicative:
        per_spread = 0.0
        for of, block in zip(cells.tasks, blocks, strict=True):
            weights = (block.claim * block.centred(block.claim)).sum(-1)
            per_spread += float((1 / log_spread(of.worth)).mean(0) @ weights)
        return lambda beta: float(-np.expm1(-beta * square / per_spread))
    rise = 0.0
    for of, block in zip(cells.tasks, blocks, strict=True):
        tenth = np.zeros(of.worth.shape)
        tenth[..., block.own] = TENTH * of.worth[..., block.own].mean(0).clip(0) * block.claim
        fallen = TaskWorth(of.task, of.partners, of.worth - tenth)
        change = (in_unit(fallen, unit) - in_unit(of, unit)).mean(0)[:, block.own]
        rise -= float((block.centred(block.claim) * change).sum()) / square
    return lambda beta: TENTH * beta / rise if rise > 0 else float("nan")


WORTH = SignedWords("less", "more", "%", 1, 100)
"""The wording of a lost share of worth."""


def _word(seeds: int, p: float, level: float, shares: Sequence[float]) -> tuple[Word, str]:
    """The word by the rule fixed beforehand, and its reason; `shares` are estimate, low and high.

    *Supported* comes first: a significant loss below a tenth is *supported*, and the reason gives both.
    """
    share, low, high = shares
    figures = (
        f"a claimed head is worth {WORTH.of(share)} to its task beside a partner that claims it, too "
        f"({1 - level:.0%} interval {WORTH.interval(low, high)}, one-sided p {p:.3g})"
    )
    if seeds < FEWEST_SEEDS:
        few = f"{counted(seeds, 'seed')} of every pair, and {FEWEST_SEEDS} are needed"
        return CANNOT_TELL, f"{few}; {figures}"
    if p < level:
        return SUPPORTED, figures + (f"; that is less than {TENTH:.0%}" if high < TENTH else "")
    if high < TENTH:
        return REFUTED, f"less than {TENTH:.0%} is lost: {figures}"
    return CANNOT_TELL, f"no loss and a loss of {TENTH:.0%} are both possible: {figures}"
