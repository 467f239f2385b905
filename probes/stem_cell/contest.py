"""The contest: whether a head is worth less to a task beside a partner that claims it, too.

A task *claims* a head if its mask keeps the head open in more than half of its seeds (`Masks.claimed`); the
partner is the other task of a run of two.

Over the heads h that task t itself claims and its partners u, with the mean over seeds of what the head is
worth to t in the pair run of t and u (in a unit of `WorthUnit`):

    y[h, t, u] = a[h, t] + b[t, u, site of h] - beta * claim[h, u] + e

a takes out the head, the task, its own claim and what the head is worth to it anyway. b takes out that some
partners are worse than others, and more so in some layers. What remains compares a head of a task beside a
partner that claims it with the same head beside a partner that does not. Runs of single tasks are not used,
so neither regression to the mean nor joint training that keeps half of every gain looks like a contest.

What is exchangeable: if partners' claims do not matter, the residuals of a layer's heads have the same
distribution, so claims may be reassigned to other heads of the same layer. One order of heads serves all
partners and tasks, for three reasons. The claims of a partner are one pattern, and what the partner does to a
head in one pair it may do in all pairs. The halves of a pair come from one run, whose heads have errors in
common. And tasks claim the same heads, where errors may be larger than elsewhere. Layers keep their numbers
of claims. The statistic is the inner product of worth and claims over its standard error, in which every cell
has an error of its own size: errors differ by head, and claims are where they are large. (With one size for
all cells, the test rejects in up to a tenth of studies whose noise is that of the archive.)

Claims have an error: masks of other seeds claim other heads, most of all among those on which partners
differ. This error does not raise the level of the test, but draws beta towards 0. The corrected estimate
takes it into account (`tested`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int, Shaped
from scipy.special import ndtri

from mtl.probes.sites import KEYS, Site, sites_of
from mtl.probes.statistics.masks import FEWEST_SEEDS
from mtl.probes.statistics.significance import CANNOT_TELL, permutations_within
from mtl.probes.stem_cell.wording import SignedWords
from mtl.tasks.in_words import counted


class TaskBlock:
    """Worth and claims of one task's own heads (those that it claims) beside each of its partners.

    The effects of heads, and of partners by site, are taken out.
    """

    def __init__(self, cells: ContestCells, of: TaskWorth, values: Float[np.ndarray, "partner cell"]) -> None:
        self.own: Int[np.ndarray, " own"] = np.flatnonzero(cells.claims[of.task])
        self.partners = of.partners
        strata = cells.strata[self.own]
        alike = (strata[:, None] == strata).astype(np.float64)
        self.within = np.eye(len(self.own)) - alike / np.maximum(alike.sum(1), 1)
        self.claim: Float[np.ndarray, "partner own"] = np.array(
            [cells.claims[partner][self.own] for partner in of.partners], dtype=np.float64
        )
        self.residual = self.centred(values[:, self.own])
        # One over the part of a cell's variance that the effects leave; 0 if they leave nothing.
        left = np.diag(self.within) * (1 - 1 / len(of.partners))
        self.over = np.where(left > 0, 1 / np.maximum(left, 1e-12), 0.0)

    def centred(
        self, values: Float[np.ndarray, "*draw partner own"]
    ) -> Float[np.ndarray, "*draw partner own"]:
        """Values less the means of heads, and of partners by site: residuals of a complete two-way table."""
        return (values - values.mean(-2, keepdims=True)) @ self.within

    def with_worth(
        self, claim: Float[np.ndarray, "partner own"], values: Float[np.ndarray, "seed partner cell"]
    ) -> Float[np.ndarray, " seed"]:
        """The inner products of claims with the worth of each seed, without the effects."""
        return np.asarray((claim * self.centred(values[..., self.own])).sum((-2, -1)))

    def with_claims(self, claims: Float[np.ndarray, "mask partner own"]) -> Float[np.ndarray, "mask mask"]:
        """The inner products of all pairs of sets of claims without the effects."""
        return np.einsum("auh,buh->ab", claims, self.centred(claims))

    def sums(
        self,
        claims: Float[np.ndarray, "mask partner cell"],
        others: Float[np.ndarray, "mask partner own"],
        orders: Int[np.ndarray, "draw own"],
    ) -> Float[np.ndarray, "draw part"]:
        """The parts of the statistic at any beta, for each order of the heads that are claimed.

        `others` are the masks for which the claims are instruments; with one mask, its own claims. At beta, a
        cell's score is first + beta * second: the products of claims with worth, and with `others`, summed
        over masks, without the effects. The five parts are sums over cells: of first; of second; and, each
        divided by the part of the cell's variance that the effects leave, of first squared, of first times
        second, and of second squared.
        """
        # Means over partners are those of any order; draws along the last axis are added up fastest.
        of_heads = claims - claims.mean(-2, keepdims=True)
        centred = self.within @ of_heads[..., orders.T]
        first = centred.sum(0) * self.residual[..., None]
        second = np.einsum("suhd,suh->uhd", centred, self.centred(others))
        over = self.over @ np.stack([first**2, first * second, second**2])
        return np.stack([first.sum((0, 1)), second.sum((0, 1)), *over.sum(1)], axis=-1)

    def compared(self) -> Int[np.ndarray, " compared"]:
        """The cells of the heads that some partner claims and another does not."""
        return self.own[self.claim.any(0) & ~self.claim.all(0)]


def in_unit(of: TaskWorth, unit: WorthUnit) -> Float[np.ndarray, "seed partner cell"]:
    """What heads are worth to a task, in a unit; raises `ValueError` for worth that the unit cannot hold."""
    try:
        return unit.scaled(of.worth)
    except ValueError as error:
        raise ValueError(f"{of.task} beside {', '.join(of.partners)}: {error}") from error


TWIN, CONTROL = "twin", "control"
"""Partners that are shown beside the pairs and enter no estimate: the task itself, and a task whose labels
are random."""


@dataclass(frozen=True)
class TaskWorth:
    """What all heads are worth to one task in its pair runs."""

    task: str
    partners: tuple[str, ...]
    worth: Float[np.ndarray, "seed partner cell"]
    """As measured; cells are the heads of all sites, as `ContestCells.strata` numbers them."""


@dataclass(frozen=True)
class ContestCells:
    """Worth and claims laid out by task, partner, seed and head."""

    seeds: tuple[int, ...]
    sites: tuple[Site, ...]
    heads: int
    """Heads of each site."""
    strata: Int[np.ndarray, " cell"]
    """The site of each head; heads of a site are adjacent."""
    claims: dict[str, Bool[np.ndarray, " cell"]]
    """The heads that each task claims."""
    tasks: tuple[TaskWorth, ...]
    of_seeds: dict[str, Bool[np.ndarray, "claim_seed cell"]] = field(default_factory=dict)
    """The claims by the mask of each seed, of which `claims` are the majority; empty if not known."""


def contest_cells(
    worth: pl.DataFrame, claims: pl.DataFrame, tasks: Sequence[str] = ()
) -> tuple[ContestCells, tuple[str, ...]]:
    """The tables laid out as arrays, and notes on seeds that are left out.

    `worth`: task, partner, seed, attention, layer, head, worth; one row per task, partner, seed and head.
    `claims`: task, attention, layer, head, claimed, and if known `of_seeds` (a list: whether the head is open
    in the mask of each seed). `tasks` chooses the tasks whose heads are compared; their partners are kept.
    The control task, partners without claims, and seeds that some pair lacks are left out.

    Raises `ValueError` if nothing is left, or if not every head has exactly one value in each pair run
    and one claim of each task.
    """
    claims = claims.filter(pl.col("task") != CONTROL)
    known = set(claims["task"].unique())
    in_play = worth.filter(pl.col("task").is_in(known) & pl.col("partner").is_in(known))
    if tasks:
        in_play = in_play.filter(pl.col("task").is_in(tasks))
    if in_play.is_empty():
        raise ValueError(
            "no pair run of two tasks that both have claims: train pairs, and masks of each task"
        )
    sites = sites_of(claims)
    heads = int(claims["head"].to_numpy().max()) + 1
    place = {site: number for number, site in enumerate(sites)}
    per_pair = {
        (task, partner): set(rows["seed"])
        for (task, partner), rows in in_play.group_by("task", "partner", maintain_order=True)
    }
    seeds = tuple(sorted(set.intersection(*per_pair.values())))
    all_seeds = set().union(*per_pair.values())
    notes = [
        f"no worth of heads for {task} beside {partner} with seed "
        f"{', '.join(map(str, sorted(all_seeds - has)))}: left out of the contest"
        for (task, partner), has in per_pair.items()
        if all_seeds - has
    ]
    if not seeds:
        raise ValueError("no seed that all pairs have: measure the same seeds of every pair")

    def cells_of(rows: pl.DataFrame, column: str, title: str) -> Float[np.ndarray, " cell"]:
        values = np.full(len(sites) * heads, np.nan)
        for kind, layer, head, value in rows.select(*KEYS, column).iter_rows():
            site = place.get(Site(kind, layer))
            if site is None or head >= heads:
                raise ValueError(f"{title}: masks and worth are of encoders of different shapes")
            values[site * heads + head] = value
        if rows.height != len(values) or np.isnan(values).any():
            raise ValueError(
                f"{title}: {rows.height} of {counted(len(values), 'head has', 'heads have')} a "
                f"value, and each needs exactly one"
            )
        return values

    claimed = {
        str(task): cells_of(rows, "claimed", f"claims of {task}") > 0.5
        for (task,), rows in claims.group_by("task", maintain_order=True)
    }
    masks = int(claims["of_seeds"].list.len().to_numpy().min()) if "of_seeds" in claims.columns else 0
    of_seeds = {
        str(task): np.array(
            [
                cells_of(rows.with_columns(pl.col("of_seeds").list.get(mask)), "of_seeds", f"masks of {task}")
                > 0.5
                for mask in range(masks)
            ]
        )
        for (task,), rows in claims.group_by("task", maintain_order=True)
        if masks
    }
    laid_out = []
    for (task,), of_task in in_play.group_by("task", maintain_order=True):
        partners = tuple(of_task["partner"].unique(maintain_order=True))
        runs = dict(of_task.group_by("seed", "partner", maintain_order=True))
        values = [
            [
                cells_of(runs[seed, partner], "worth", f"{task} beside {partner}, seed {seed}")
                for partner in partners
            ]
            for seed in seeds
        ]
        laid_out.append(TaskWorth(str(task), partners, np.array(values)))
    strata = np.repeat(np.arange(len(sites)), heads)
    return ContestCells(seeds, sites, heads, strata, claimed, tuple(laid_out), of_seeds), tuple(notes)


Worth = Float[np.ndarray, "*many cell"]
"""Heads of one run and task along the last axis."""


@dataclass(frozen=True)
class WorthUnit:
    """How worth becomes a number that can be compared between runs."""

    name: str
    """As tables and figures print it."""
    scaled: Callable[[Worth], Worth]
    """The worth of all heads of a run and task in this unit; raises `ValueError` for what it cannot hold."""
    multiplicative: bool
    """Whether the unit is of logs, so that a difference is a share of worth."""


def logs(worth: Worth) -> Worth:
    """Natural logarithms; raises `ValueError` for a head that is worth nothing, since there is no log of 0.

    An open head always has some importance; exact zeros are heads that were closed or cut, and a floor for
    them would decide the result by its own size.
    """
    bad = int((~(np.isfinite(worth) & (worth > 0))).sum())
    if bad:
        heads = "1 head has" if bad == 1 else f"{counted(bad, 'head has', 'heads have')}"
        raise ValueError(
            f"{heads} importance 0 or none (closed or cut heads): logs need a model with all heads open; "
            "measure with --masks=false, or leave cut runs out"
        )
    return np.log(worth)


def standardised_logs(worth: Worth) -> Worth:
    """Logs less their mean over all heads of the run and task, divided by their standard deviation.

    So a partner has no effect if it only scales what all heads are worth, or only widens or narrows its
    spread.
    """
    return _standardised(logs(worth), "importance")


def standardised_points(worth: Worth) -> Worth:
    """The same for points themselves, which may be negative.

    They are sharper than ranks, in which heads that are worth nothing take as much room as others.
    """
    if not np.isfinite(worth).all():
        raise ValueError("some heads have no worth: measure the run again")
    return _standardised(worth, "worth")


def _standardised(values: Worth, measure: str) -> Worth:
    spread = values.std(-1, keepdims=True)
    if (spread <= 1e-12).any():
        raise ValueError(f"all heads of a run have the same {measure}: there is nothing to compare")
    return (values - values.mean(-1, keepdims=True)) / spread


def log_spread(worth: Worth) -> Float[np.ndarray, "*many"]:
    """The standard deviation of logs over all heads of each run and task."""
    return logs(worth).std(-1)


def normal_scores(worth: Worth) -> Worth:
    """Van der Waerden's scores: ranks over all heads of the run and task as quantiles of a normal.

    For worth that may be negative, such as the score lost by ablation; equal values have equal scores.
    """
    if not np.isfinite(worth).all():
        raise ValueError("some heads have no worth: measure the run again")
    own, other = worth[..., :, None], worth[..., None, :]
    ranks = ((other < own).sum(-1) + (other <= own).sum(-1) + 1) / 2  # of ties the mean
    return ndtri(ranks / (worth.shape[-1] + 1))


def as_measured(worth: Worth) -> Worth:
    """Unchanged, for skills above a baseline, which are shares; raises `ValueError` if one is missing."""
    if not np.isfinite(worth).all():
        raise ValueError("some heads have no skill: probe the run again")
    return worth


STANDARDISED_LOGS = WorthUnit("standardised logs", standardised_logs, True)
STANDARDISED_POINTS = WorthUnit("standardised points", standardised_points, False)
NORMAL_SCORES = WorthUnit("normal scores", normal_scores, False)
SKILL_POINTS = WorthUnit("skill above chance", as_measured, False)
SKILL_BEYOND_INPUT = WorthUnit("skill above a random projection", as_measured, False)


SUPPORTED: Final = "supported"
REFUTED: Final = "refuted"
Word = Literal["supported", "refuted", "cannot tell"]
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
    reliability: float
    """Reliability of the mean claim over seeds, within the model (Spearman and Brown); NaN if not known."""
    corrected: float
    corrected_low: float
    corrected_high: float
    """The share lost, with the error of claims taken into account (`tested`); NaN if not known."""
    word: Word
    reason: str


def contest(
    worth: pl.DataFrame,
    claims: pl.DataFrame,
    unit: WorthUnit = STANDARDISED_LOGS,
    *,
    tasks: tuple[str, ...] = (),
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
) -> tuple[ContestEstimate, tuple[str, ...]]:
    """The estimate, its test and its word, and notes; the tables are as `contest_cells` takes them.

    The run is the unit: seeds of a pair are averaged before anything is estimated. So more heads of one run
    never count as more runs, and the noise between seeds is in the residuals that the permutation draws from.
    The estimate is the mean of the seeds' own estimates, which are given beside it. Raises `ValueError` as
    `contest_cells` and the unit do.
    """
    cells, notes = contest_cells(worth, claims, tasks)
    return estimate_contest(cells, unit, level=level, draws=draws, seed=seed), (
        *notes,
        *no_common_head(cells),
    )


def no_common_head(cells: ContestCells) -> tuple[str, ...]:
    """A note on each pair of tasks that claim no head in common."""
    pairs = dict.fromkeys(tuple(sorted((of.task, partner))) for of in cells.tasks for partner in of.partners)
    return tuple(
        f"{one} and {other} claim no head in common: their pair shows only what heads are worth uncontested"
        for one, other in pairs
        if not (cells.claims[one] & cells.claims[other]).any()
    )


def estimate_contest(
    cells: ContestCells,
    unit: WorthUnit = STANDARDISED_LOGS,
    *,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
) -> ContestEstimate:
    """`contest` of tables that are laid out as arrays."""
    scaled = [in_unit(of, unit) for of in cells.tasks]
    blocks = [TaskBlock(cells, of, values.mean(0)) for of, values in zip(cells.tasks, scaled, strict=True)]
    compared = [block.compared() for block in blocks]
    seeds, heads = cells.seeds, sum(map(len, compared))
    square = sum(block.with_claims(block.claim[None]).item() for block in blocks)
    nan = float("nan")
    if square <= 1e-9:
        reason = "no claimed head has both a partner that claims it and one that does not"
        none = (nan,) * 4
        return ContestEstimate(nan, nan, nan, nan, nan, nan, nan, (), seeds, 0, *none, CANNOT_TELL, reason)
    with_worth = [block.with_worth(block.claim, values) for block, values in zip(blocks, scaled, strict=True)]
    per_seed = (-np.sum(with_worth, axis=0) / square).tolist()
    orders = permutations_within(cells.strata, draws, np.random.default_rng(seed))
    majority = {name: claimed[None] for name, claimed in cells.claims.items()}
    beta, low, high, p = tested(majority, blocks, orders, level)
    to_share = _share(cells, unit, blocks, square)
    shares = to_share(beta), to_share(low), to_share(high)
    reliability, ends = _reliability(cells.of_seeds, blocks), (nan, nan, nan)
    if not math.isnan(reliability):
        ends = tested(cells.of_seeds, blocks, orders, level)[:3]
    corrected = (reliability, to_share(ends[0]), to_share(ends[1]), to_share(ends[2]))
    word, reason = _word(len(seeds), p, level, shares, corrected)
    reason = f"{reason}; {_informative(cells, compared)}"
    return ContestEstimate(
        beta, low, high, p, *shares, tuple(per_seed), seeds, heads, *corrected, word, reason
    )


def _informative(cells: ContestCells, compared: Sequence[Int[np.ndarray, " _"]]) -> str:
    """How many claims, heads and tasks the estimate rests on, and how many heads can say nothing."""
    in_play = {name for of in cells.tasks for name in (of.task, *of.partners)}
    by_all = int(np.all([cells.claims[name] for name in in_play], axis=0).sum())
    claims = counted(sum(map(len, compared)), "claim")
    heads = counted(len(set(np.concatenate(compared))), "head")
    tasks = counted(sum(len(of_task) > 0 for of_task in compared), "task")
    none = f", and {counted(by_all, 'head')} that every task claims cannot be compared"
    return f"it rests on {claims} of {heads} by {tasks}" + none * bool(by_all)


def tested(
    masks: Mapping[str, Shaped[np.ndarray, "mask cell"]],
    blocks: Sequence[TaskBlock],
    orders: Int[np.ndarray, "draw cell"],
    level: float,
) -> tuple[float, float, float, float]:
    """Beta, the interval of all betas that the permutation test accepts, and its one-sided p for beta 0.

    Masks may be graded: any number by partner and head may stand in place of a claim.

    With one mask per task, beta is that of least squares. With several, the mask of each seed in turn is the
    instrument for the mean of the other seeds' masks (Anderson and Rubin 1949): errors of different seeds
    have nothing to do with each other. The interval may then have no end. If claims of different seeds do not
    agree, beta and p are NaN, and the interval is the whole line.
    """
    sums = np.zeros((1 + len(orders), 5))  # the observed claims first
    for block in blocks:
        claims = np.stack([masks[name] for name in block.partners], axis=1).astype(np.float64)
        own = claims[..., block.own]
        others = own if len(own) == 1 else (own.sum(0) - own) / (len(own) - 1)
        sums += block.sums(claims, others, np.vstack([block.own, orders[:, block.own]]))
    if sums[0, 1] <= 1e-9:
        return float("nan"), float("-inf"), float("inf"), float("nan")

    beta = float(-sums[0, 0] / sums[0, 1])
    error = math.sqrt(max(float(sums[0, 2:] @ [1, 2 * beta, beta**2]), 1e-24)) / float(sums[0, 1])
    low, high = (_end(sums, beta, step, level) for step in (-error, error))
    return beta, low, high, _chances(sums, 0.0)[0]


def _chances(sums: Float[np.ndarray, "draw part"], beta: float) -> tuple[float, float]:
    """The chances of a statistic as low and as high as the observed one if beta is the true one.

    `sums` are those of `TaskBlock.sums`, the observed claims first. The statistic is 0 for claims that do not
    vary once the effects are taken out.
    """
    scores, squares = sums[:, :2] @ [1, beta], sums[:, 2:] @ [1, 2 * beta, beta**2]
    errors = np.sqrt(np.maximum(squares, 0))
    values = np.divide(scores, errors, out=np.zeros_like(scores), where=errors > 1e-9)
    low, high = values <= values[0] + 1e-9, values >= values[0] - 1e-9
    return np.count_nonzero(low) / len(values), np.count_nonzero(high) / len(values)


def _end(sums: Float[np.ndarray, "draw part"], beta: float, step: float, level: float) -> float:
    """The last beta that is accepted, found by steps outwards that double, and then by halving."""
    inside, doublings = beta, 0
    while min(_chances(sums, inside + step)) > level / 2:
        inside, step, doublings = inside + step, 2 * step, doublings + 1
        if doublings > 12:
            return math.copysign(math.inf, step)
    outside = inside + step
    for _ in range(20):
        middle = (inside + outside) / 2
        if min(_chances(sums, middle)) > level / 2:
            inside = middle
        else:
            outside = middle
    return inside


def _reliability(masks: Mapping[str, Bool[np.ndarray, "mask cell"]], blocks: Sequence[TaskBlock]) -> float:
    """The reliability of the mean of all masks of a task, within the model; NaN for fewer than two masks."""
    seeds = min((len(of_task) for of_task in masks.values()), default=0)
    if seeds < 2:
        return float("nan")
    ours = np.zeros((seeds, seeds))
    for block in blocks:
        claims = np.stack([masks[name][:, block.own] for name in block.partners], axis=1).astype(np.float64)
        ours += block.with_claims(claims)
    lengths = np.sqrt(np.diag(ours))
    agreement = (ours / np.maximum(np.outer(lengths, lengths), 1e-12))[~np.eye(seeds, dtype=bool)].mean()
    return float(seeds * agreement / (1 + (seeds - 1) * agreement))


def _share(
    cells: ContestCells, unit: WorthUnit, blocks: list[TaskBlock], square: float
) -> Callable[[float], float]:
    """From a beta in the unit to the share of a claimed head's worth that is lost.

    In standardised logs, a lost share s is a fall of -log(1 - s) / sd, where sd is the spread of logs in the
    run. The estimate is linear in worth, so it sees -log(1 - s) times the mean of 1 / sd over cells and
    seeds, weighted by claim times claim without the effects. In other units, beta is compared with its rise
    if every contested head lost a tenth of what it is worth on average over the seeds of its pair. This is
    linear, and meant for small shares. NaN if claimed heads are worth nothing.
    """
    if unit.multiplicative:
        per_spread = 0.0
        for of, block in zip(cells.tasks, blocks, strict=True):
            weights = (block.claim * block.centred(block.claim)).sum(-1)
            per_spread += float((1 / log_spread(of.worth)).mean(0) @ weights)

        def share(beta: float) -> float:
            with np.errstate(over="ignore"):  # a gain without bound
                return float(-np.expm1(-beta * square / per_spread))

        return share
    rise = 0.0
    for of, block in zip(cells.tasks, blocks, strict=True):
        tenth = np.zeros(of.worth.shape)
        tenth[..., block.own] = TENTH * of.worth[..., block.own].mean(0).clip(0) * block.claim
        fallen = TaskWorth(of.task, of.partners, of.worth - tenth)
        change = (in_unit(fallen, unit) - in_unit(of, unit)).mean(0)[:, block.own]
        rise -= float((block.centred(block.claim) * change).sum()) / square
    return lambda beta: TENTH * beta / rise if rise > 0 else float("nan")


WORTH = SignedWords("less", "more", "%", 1, 100, most=1)
"""The wording of a lost share of worth. More than all of it cannot be lost, and an end at which more than the
same again is won comes from dividing by a claim's reliability near zero."""


def _word(
    seeds: int, p: float, level: float, shares: Sequence[float], corrected: Sequence[float]
) -> tuple[Word, str]:
    """The word and its reason; `shares` are estimate, low and high, `corrected` the reliability and the same.

    *Supported* comes first: a significant loss below a tenth is *supported*, and the reason says that it is.
    """
    share, low, high = shares
    reliability, _, corrected_low, corrected_high = corrected
    figures = (
        f"a claimed head is worth {WORTH.of(share)} to its task beside a partner that claims it, too "
        f"({1 - level:.0%} interval {WORTH.interval(low, high)}, one-sided p {p:.3g}); "
    )
    if math.isnan(reliability):
        figures += "how well claims repeat is not known: that needs masks of two seeds"
    else:
        figures += (
            f"claims have a reliability of {reliability:.2f}, and with their error taken into account the "
            f"interval is {WORTH.interval(corrected_low, corrected_high)}"
        )
    if seeds < FEWEST_SEEDS:
        few = f"{counted(seeds, 'seed')} of every pair, and {FEWEST_SEEDS} are needed"
        return CANNOT_TELL, f"{few}; {figures}"
    if p < level:
        return SUPPORTED, figures + (f"; that is less than {TENTH:.0%}" if high < TENTH else "")
    if high < TENTH and corrected_high < TENTH:
        return REFUTED, f"less than {TENTH:.0%} is lost: {figures}"
    return CANNOT_TELL, f"these runs cannot tell no loss from one of {TENTH:.0%}: {figures}"
