"""The final masks of several tasks with the same seeds, how far they agree, and how far by chance."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from mtl.probes.appearance import arranged
from mtl.probes.sites import KEYS, Site, grid, shape_text, sites_of
from mtl.probes.statistics.significance import CANNOT_TELL, benjamini_hochberg
from mtl.probes.tables.heads_table import last_gates
from mtl.probes.tables.table_files import ColumnUnit, types_of
from mtl.tasks.catalogue import in_order_of_catalogue
from mtl.tasks.in_words import counted

FEWEST_SEEDS = 3
"""Seeds that an answer on masks or scores needs."""


@dataclass(frozen=True)
class Masks:
    """Gates at the end of training, one mask for each task and seed."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    sites: tuple[Site, ...]
    """The kind of attention and the layer of each row of heads."""
    gate: Float[np.ndarray, "task seed site head"]
    opened: Bool[np.ndarray, "task seed site head"]
    learned: Bool[np.ndarray, "task seed site head"]
    """The heads that training itself had open; if this differs from `opened`, a target forced the head."""
    draws: Mapping[str, int] = field(default_factory=dict)
    """The draw of random labels, by the name of its mask."""

    def mean(self) -> Float[np.ndarray, "task site head"]:
        """The mean gate over seeds."""
        return self.gate.mean(1)

    def claimed(self) -> Bool[np.ndarray, "task site head"]:
        """Whether a task keeps the head open in more than half of its seeds; of two seeds, in both."""
        return self.opened.mean(1) > 0.5

    def learned_claims(self) -> Bool[np.ndarray, "task site head"]:
        """The learned claims: heads that more than half of the seeds keep open without force."""
        return self.kept_by_learning().mean(1) > 0.5

    def kept_by_learning(self) -> Bool[np.ndarray, "task seed site head"]:
        """The open heads that no target had to open."""
        return self.opened & self.learned

    def shut_by_force(self) -> Int[np.ndarray, "task seed"]:
        """The number of heads of each mask that a target closed."""
        return (self.learned & ~self.opened).sum((2, 3))

    def forced(self) -> Bool[np.ndarray, "task seed site head"]:
        """The heads that a target forced open or shut."""
        return self.opened != self.learned

    def claims_in_words(self) -> str:
        """How many heads each task claims, and training chose if it is not all: `pos 19 (training chose 5)`.

        Where a target closed heads by force, all are learned, but training had not chosen among them.
        """
        counts = zip(self.tasks, self.claimed().sum((1, 2)), self.learned_claims().sum((1, 2)), strict=True)
        return ", ".join(
            f"{task} {of_all}{'' if learned == of_all else f' (training chose {learned})'}"
            for task, of_all, learned in counts
        )

    def forced_in_words(self) -> str:
        """`claims_in_words` as the first part of a reason; empty where no head was forced."""
        words = [f"heads that most seeds keep: {self.claims_in_words()}"]
        if (self.opened & ~self.learned).any():
            words.append("the others were opened by force")
        if shut := int(self.shut_by_force().max(initial=0)):
            words.append(f"up to {counted(shut, 'head')} of a mask were closed by force")
        return f"{', and '.join(words)}; " if len(words) > 1 else ""

    def learned_alone(self) -> Masks:
        """The masks in which every head is shut that only a target opened."""
        kept = self.kept_by_learning()
        return replace(self, opened=kept, learned=kept)

    def closed_by_force(self) -> tuple[str, ...]:
        """The tasks whose masks say little: a target closed more heads than were kept, in most seeds."""
        often = (self.shut_by_force() > self.opened.sum((2, 3))).mean(1) > 0.5
        return tuple(task for task, so in zip(self.tasks, often, strict=True) if so)

    def alike_by_seed(self, first: str, second: str) -> bool:
        """Whether masks of two tasks have more in common than by chance mostly where their seeds are equal.

        Beyond chance, masks of different seeds then have less than half of the common heads of equal ones.
        """
        kept = self.kept_by_learning().astype(float)
        a, b = kept[self.tasks.index(first)], kept[self.tasks.index(second)]
        by_chance = np.einsum("is,js->ij", a.sum(2), b.sum(2)) / a.shape[2]
        beyond = np.einsum("ish,jsh->ij", a, b) - by_chance
        equal = np.eye(len(self.seeds), dtype=bool)
        return bool(beyond[equal].mean() > 0 and beyond[~equal].mean() < 0.5 * beyond[equal].mean())

    def of_real_labels(self) -> Masks:
        """The masks of the tasks whose labels are not random."""
        return self.without(self.draws)

    def without(self, tasks: Collection[str]) -> Masks:
        """The masks of the other tasks, which have no draws of random labels."""
        others = [place for place, name in enumerate(self.tasks) if name not in tasks]
        names = tuple(self.tasks[place] for place in others)
        return Masks(
            names, self.seeds, self.sites, self.gate[others], self.opened[others], self.learned[others]
        )


def is_shared(mask: str) -> bool:
    """Whether tasks share the mask of this name: such a mask is named after all of them (`pos+dep`)."""
    return "+" in mask


def force_in_words(opened: Bool[np.ndarray, "site head"], learned: Bool[np.ndarray, "site head"]) -> str:
    """The heads of a mask that a target forced: `2 opened and 3 closed by force`; empty if there is none."""
    counts = {"opened": int((opened & ~learned).sum()), "closed": int((~opened & learned).sum())}
    forced = " and ".join(f"{count} {how}" for how, count in counts.items() if count)
    return f"{forced} by force" if forced else ""


def mostly_forced(
    opened: Bool[np.ndarray, "mask ..."], learned: Bool[np.ndarray, "mask ..."]
) -> tuple[Bool[np.ndarray, "*heads"], Bool[np.ndarray, "*heads"]]:
    """The heads that most masks with the head open were forced to open, and the same for closed heads.

    For a single mask, these are simply the heads that were forced.
    """
    opened_by_force, closed_by_force = (opened & ~learned).sum(0), (~opened & learned).sum(0)
    return 2 * opened_by_force > opened.sum(0), 2 * closed_by_force > (~opened).sum(0)


def final_masks(gates: pl.DataFrame) -> tuple[Masks, tuple[str, ...]]:
    """The masks at the last step of every task and seed, and notes on what was left out.

    Tasks are in the order of the catalogue, and only seeds that all tasks have are taken.

    `gates` has the columns of a run's gates.parquet, `run` and `seed`. It may have `learned`, which equals
    `open` unless a target forced the head (`mtl.heads.gate_file.LEARNED`), and `draw`
    (`mtl.probes.tables.heads_table.name_draws`). `task` may name anything that has a mask of its own, such as
    a task in a setup. Raises `ValueError` for an empty table, masks of different shapes, two masks of one
    task and seed, or no common seed.
    """
    if gates.is_empty():
        raise ValueError("no masks: use runs that were trained with gates")
    if "learned" not in gates.columns:
        gates = gates.with_columns(learned="open")
    mask_of = ["task", "seed"]
    runs = gates.group_by(mask_of, maintain_order=True).agg(pl.col("run").unique(maintain_order=True))
    for row in runs.filter(pl.col("run").list.len() > 1).iter_rows(named=True):
        raise ValueError(
            f"{_list(row['run'])} all have a mask of {row['task']} with seed {row['seed']}: use one of them"
        )
    last = last_gates(gates)
    sites, heads = sites_of(last), int(last["head"].to_numpy().max()) + 1
    cells = dict(last.group_by(mask_of, maintain_order=True))
    for (task, seed), mask in cells.items():
        # As many rows as heads, and no head twice.
        if not mask.height == len(sites) * heads == mask.select(KEYS).n_unique():
            raise ValueError(
                f"masks of different shapes: {task} with seed {seed} has {counted(mask.height, 'head')}, and "
                f"all masks together have {shape_text(sites, heads)}: use runs of one encoder"
            )
    tasks = tuple(arranged(in_order_of_catalogue(gates["task"])))
    seeds_of = {task: {seed for name, seed in cells if name == task} for task in tasks}
    all_seeds = sorted(set().union(*seeds_of.values()))
    common = tuple(seed for seed in all_seeds if all(seed in seeds for seeds in seeds_of.values()))
    if not common:
        has = "; ".join(f"{task}: {_list(seeds)}" for task, seeds in seeds_of.items())
        raise ValueError(f"no seed that all tasks have ({has})")
    notes = tuple(
        f"no mask of {task} with seed {_list(set(all_seeds) - seeds)}: that seed is left out"
        for task, seeds in seeds_of.items()
        if set(all_seeds) - seeds
    )

    def block(column: str) -> np.ndarray:
        return np.stack(
            [[grid(cells[task, seed], column, sites, heads) for seed in common] for task in tasks]
        )

    opened, learned = (block(name).astype(bool) for name in ("open", "learned"))
    draws: dict[str, int] = {}
    if "draw" in last.columns:
        alone = last.filter(~pl.col("task").str.contains("+", literal=True))
        draws = dict(alone.select("task", "draw").drop_nulls().unique().iter_rows())
    return Masks(tasks, common, sites, block("gate"), opened, learned, draws), notes


def _list(values: Iterable[object]) -> str:
    return ", ".join(map(str, sorted(values, key=str)))


_CHANCES = ("p_more", "p_fewer", "p_more_layers", "p_fewer_layers")
_PAIR = (
    ColumnUnit.TEXT.of("first", "second")
    | ColumnUnit.COUNT.of("open_first", "open_second", "common")
    | ColumnUnit.NUMBER.of("expected", "expected_layers", "jaccard", "overlap")
)
_OF_LEARNED = {"open_first": "first", "open_second": "second"} | {
    name: name for name in ("common", "expected_layers", "jaccard", "q_more_layers", "q_fewer_layers")
}
CORRELATION_UNITS = ColumnUnit.TEXT.of("first", "second") | ColumnUnit.NUMBER.of("paper", "pairwise")
_ALL = _PAIR | ColumnUnit.P.of(*_CHANCES, *(f"q{name[1:]}" for name in _CHANCES))
OVERLAP_UNITS = _ALL | {f"learned_{short}": _ALL[name] for name, short in _OF_LEARNED.items()}
OVERLAP_PAPER = (
    "first",
    "second",
    *(f"learned_{name}" for name in ("first", "second", "common", "expected_layers", "q_more_layers")),
)
"""The columns of overlaps that papers print: those on which findings rest."""
LEVEL = 0.05
"""The level of a finding, for both sides together."""


def standardised(gates: Float[np.ndarray, "*many site head"]) -> Float[np.ndarray, "*many cell"]:
    """Masks as vectors of mean 0 and length 1, whose inner products are Pearson's r; NaN where constant."""
    flat = gates.reshape(*gates.shape[:-2], -1)
    centred = flat - flat.mean(-1, keepdims=True)
    length = np.linalg.norm(centred, axis=-1, keepdims=True)
    # What is left of a constant after subtracting its mean is rounding.
    constant = length <= 1e-12 * np.maximum(1, np.abs(flat).max(-1, keepdims=True))
    return np.divide(centred, length, out=np.full_like(centred, np.nan), where=~constant)


def predicted_agreement(gates: Float[np.ndarray, "seed site head"]) -> float:
    """He & Choi's diagonal: the square root of the adjusted R^2 of the third run regressed on the first two.

    0 if the adjusted R^2 is negative; NaN for fewer than three runs, for a constant third run, and for no
    more heads than the regression has coefficients.
    """
    if len(gates) < 3:
        return float("nan")
    one, two, three = gates[:3].reshape(3, -1).astype(np.float64)
    spread = float(((three - three.mean()) ** 2).sum())
    if spread <= 1e-12:
        return float("nan")
    predictors = np.stack([np.ones_like(one), one, two], axis=1)
    coefficients, _, rank, _ = np.linalg.lstsq(predictors, three)
    unexplained = float(((three - predictors @ coefficients) ** 2).sum()) / spread
    cells = len(three)
    if cells <= rank:
        return float("nan")
    return float(np.sqrt(max(0.0, 1 - unexplained * (cells - 1) / (cells - int(rank)))))


def correlation_table(masks: Masks) -> pl.DataFrame:
    """He & Choi's table of correlations, and mean correlations over pairs of runs, for all pairs of tasks.

    Columns: first, second, `paper` (for two tasks, the correlation of their mean gates; for a task with
    itself, `predicted_agreement`), `pairwise` (the mean correlation of a run of the one with a run of the
    other, never of a run with itself). Null: not defined. There is no interval: resampling seeds gives one
    that is too narrow (of three seeds, one called 95 % covers 65 to 73 %; of ten, 88 %).
    """
    vectors, means = standardised(masks.gate), standardised(masks.mean())
    rows = []
    for a, b in itertools.combinations_with_replacement(range(len(masks.tasks)), 2):
        between = vectors[a] @ vectors[b].T
        pairs = ~np.eye(len(masks.seeds), dtype=bool) if a == b else np.ones_like(between, dtype=bool)
        rows.append(
            {
                "first": masks.tasks[a],
                "second": masks.tasks[b],
                "paper": predicted_agreement(masks.gate[a]) if a == b else float(means[a] @ means[b]),
                "pairwise": float(between[pairs].mean()) if pairs.any() else np.nan,
            }
        )
    return pl.DataFrame(rows, schema=types_of(CORRELATION_UNITS)).fill_nan(None)


def jaccard(
    first: Bool[np.ndarray, "*many site head"], second: Bool[np.ndarray, "*many site head"]
) -> Float[np.ndarray, "*many"]:
    """Common open heads per head that is open in either; NaN if none is."""
    return _ratio((first & second).sum((-2, -1)), (first | second).sum((-2, -1)))


def overlap_coefficient(
    first: Bool[np.ndarray, "*many site head"], second: Bool[np.ndarray, "*many site head"]
) -> Float[np.ndarray, "*many"]:
    """Common open heads per open head of the smaller mask; NaN if that has none."""
    return _ratio((first & second).sum((-2, -1)), np.minimum(first.sum((-2, -1)), second.sum((-2, -1))))


def _ratio(part: ArrayLike, total: ArrayLike) -> np.ndarray:
    """The ratio as an array, also for single numbers; NaN if the total is 0."""
    parts, totals = np.asarray(part, dtype=np.float64), np.asarray(total, dtype=np.float64)
    return np.divide(parts, totals, out=np.full_like(parts, np.nan), where=totals > 0)


def overlap_table(names: Sequence[str], opened: Bool[np.ndarray, "mask site head"]) -> pl.DataFrame:
    """The overlap of all pairs of masks, beside chance.

    `common`: heads open in both; `expected` and `expected_layers`: their mean by chance. `p_more` and
    `p_fewer`: the chance of at least and of at most as many if all open heads are drawn at random
    (hypergeometric); `p_more_layers` and `p_fewer_layers`: if every layer keeps its number of open heads. All
    p are exact and one-sided. `q_...`: the same after Benjamini and Hochberg over all pairs.
    """
    rows = []
    for a, b in itertools.combinations(range(len(names)), 2):
        expected, more, fewer = chance_of_overlap(opened[a], opened[b], keep_layers=False)
        expected_layers, more_layers, fewer_layers = chance_of_overlap(opened[a], opened[b], keep_layers=True)
        rows.append(
            {
                "first": names[a],
                "second": names[b],
                "open_first": int(opened[a].sum()),
                "open_second": int(opened[b].sum()),
                "common": int((opened[a] & opened[b]).sum()),
                "expected": expected,
                "expected_layers": expected_layers,
                "jaccard": float(jaccard(opened[a], opened[b])),
                "overlap": float(overlap_coefficient(opened[a], opened[b])),
                "p_more": more,
                "p_fewer": fewer,
                "p_more_layers": more_layers,
                "p_fewer_layers": fewer_layers,
            }
        )
    table = pl.DataFrame(rows, schema=types_of(_PAIR | ColumnUnit.P.of(*_CHANCES)))
    adjusted = [
        pl.Series("q" + name[1:], benjamini_hochberg(table[name].to_numpy()), dtype=pl.Float64)
        for name in _CHANCES
    ]
    return table.with_columns(adjusted).fill_nan(None)


def reading(more: float | None, fewer: float | None) -> str:
    """The finding, given the corrected one-sided p of more and of fewer common heads."""
    if more is not None and more <= LEVEL / 2:
        return "more than chance"
    if fewer is not None and fewer <= LEVEL / 2:
        return "fewer than chance"
    return "as by chance"


def claim_overlaps(
    names: Sequence[str],
    claimed: Bool[np.ndarray, "mask site head"],
    learned: Bool[np.ndarray, "mask site head"],
) -> pl.DataFrame:
    """`overlap_table` of claimed heads, with the same of learned heads alone beside it, and the finding.

    Columns `learned_...` are those of `overlap_table(names, learned)`, so that every p is that of the masks
    whose common heads it stands beside. `finding` is about learned heads, with each layer keeping its number
    of them: heads that a target forced open say nothing about what a task wants.
    """
    alone = overlap_table(names, learned)
    finding = [reading(*chances) for chances in alone.select("q_more_layers", "q_fewer_layers").iter_rows()]
    beside = alone.select(pl.col(name).alias(f"learned_{short}") for name, short in _OF_LEARNED.items())
    table = overlap_table(names, claimed).with_columns(beside.get_columns())
    return table.with_columns(finding=pl.Series(finding, dtype=pl.String))


def task_overlaps(masks: Masks) -> pl.DataFrame:
    """`claim_overlaps` of the heads that each task claims (open in more than half of its seeds).

    There are no intervals over seeds: resampling few seeds does not show how a majority of them varies. Runs
    of one seed share random numbers, which may decide what the masks of a short training keep. So the finding
    is `CANNOT_TELL` with fewer than `FEWEST_SEEDS` seeds, for tasks `closed_by_force`, and instead of *more
    than chance* for tasks `alike_by_seed`.
    """
    table = claim_overlaps(masks.tasks, masks.claimed(), masks.learned_claims())
    undecided = masks.tasks if len(masks.seeds) < FEWEST_SEEDS else masks.closed_by_force()
    found = [
        CANNOT_TELL
        if {first, second} & {*undecided}
        or (finding == "more than chance" and masks.alike_by_seed(first, second))
        else finding
        for first, second, finding in table.select("first", "second", "finding").iter_rows()
    ]
    return table.with_columns(finding=pl.Series(found, dtype=pl.String))


def overlap_distribution(
    heads: int, first: Int[np.ndarray, " site"], second: Int[np.ndarray, " site"]
) -> Float[np.ndarray, " overlap"]:
    """The probabilities of 0, 1, ... common open heads if both masks draw the heads of each layer at random.

    `heads`: heads per layer; `first`, `second`: each mask's number of open heads per layer.

    Within a layer, the number of common heads is hypergeometric. Layers are independent, so the distribution
    of the sum is the convolution. A single "layer" of all heads gives the hypergeometric test.
    """
    layers = (_in_common(heads, a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True))
    return functools.reduce(np.convolve, layers, np.ones(1))


@functools.cache
def _in_common(heads: int, first: int, second: int) -> tuple[float, ...]:
    """The hypergeometric distribution; loading `scipy.stats`, which has it, takes longer than a figure."""
    ways = math.comb(heads, second)
    return tuple(
        math.comb(first, common) * math.comb(heads - first, second - common) / ways
        for common in range(min(first, second) + 1)
    )


def expected_in_all(opened: Bool[np.ndarray, "mask site head"]) -> float:
    """The number of heads that all masks keep by chance, if each keeps its number in every layer."""
    return float(opened.mean(-1).prod(0).sum() * opened.shape[-1])


def chance_of_overlap(
    first: Bool[np.ndarray, "site head"], second: Bool[np.ndarray, "site head"], keep_layers: bool
) -> tuple[float, float, float]:
    """The expected number of common open heads, and the chance of at least and of at most as many as here.

    With `keep_layers`, random masks have as many open heads in each layer as these masks; otherwise, as many
    in all.
    """
    if not keep_layers:
        first, second = first.reshape(1, -1), second.reshape(1, -1)
    common = int((first & second).sum())
    distribution = overlap_distribution(first.shape[1], first.sum(1), second.sum(1))
    expected = float((first.sum(1) * second.sum(1)).sum() / first.shape[1])
    # Rounding can leave a sum of all probabilities just above one.
    return (
        expected,
        min(1.0, float(distribution[common:].sum())),
        min(1.0, float(distribution[: common + 1].sum())),
    )
