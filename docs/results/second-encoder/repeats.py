"""The four decisions of the page, for each study in turn.

python docs/results/second-encoder/repeats.py studies/second_encoder studies/second_encoder-minilm
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int

from mtl.probes.sites import head_name
from mtl.probes.statistics.masks import Masks, final_masks
from mtl.probes.statistics.significance import permutations_within
from mtl.probes.tables.heads_table import label_scores, weighted_mean

TASKS = ("pos", "ner", "dep", "con", "srl")
DRAWS, LEVEL, HALF, WEAK = 1000, 0.05, 0.5, 0.25
REPEATS, IN_PART, DOES_NOT, CANNOT_TELL = "repeats", "in part", "does not", "cannot tell"
Opened = Bool[np.ndarray, "task seed site head"]


def main() -> None:
    """Print what the page quotes."""
    for folder in map(Path, sys.argv[1:]):
        print(folder.name)
        skill = before(folder / "runs/static/heads.parquet")
        for kind, runs in {
            "alone": {1: "{}-dynamic-seed1", 2: "{}-dynamic-again-seed2"},
            "jointly": {1: "all-dynamic_per_task-seed1"},
        }.items():
            found = read(folder / "runs", runs)
            if found is not None:
                print(f"  masks {kind}, seeds {found.seeds}")
                print("    the same heads: {}, {}".format(*same_heads(found.opened)))
                print("    heads of all tasks: {}, {}".format(*kept_by_all(found.opened[:, 0])))
                everybody = np.argwhere(found.opened[:, 0].all(0))
                print("     ", *(head_name(found.sites[site], head) for site, head in everybody))
                print("    skill before: {}, {}".format(*skill_and_claims(skill, found.opened[:, 0])))


def before(path: Path) -> Float[np.ndarray, "site head"]:
    """Print the first decision; returns heads' mean rank of skill above chance over tasks."""
    scores = label_scores(pl.read_parquet(path)).filter("counted")
    best = scores.group_by("task", "label", "count").agg(pl.col("value", "chance").max())
    means = best.group_by("task").agg(weighted_mean(), chance=weighted_mean("chance")).rows_by_key("task")
    for task in TASKS:
        ((value, chance),) = (100 * np.array(means[task])).tolist()
        print(f"  {task}: best heads {value:.1f}, by chance {chance:.1f}, above {value - chance:.1f}")
    skill = scores.group_by("task", "layer", "head").agg(weighted_mean("above")).sort("layer", "head")
    shape = (skill["layer"].n_unique(), skill["head"].n_unique())
    of_task = [skill.filter(task=task)["above"].to_numpy() for task in TASKS]
    return np.mean([values.argsort().argsort() for values in of_task], axis=0).reshape(shape)


def read(runs: Path, names: dict[int, str]) -> Masks | None:
    """The masks of the seeds that are finished for all tasks; `None` if there are none."""
    tables = [
        pl.read_parquet(path).with_columns(run=pl.lit(path.parent.name), seed=pl.lit(seed))
        for seed, name in names.items()
        for path in sorted({runs / name.format(task) / "gates.parquet" for task in TASKS})
        if (path.parent / "metrics.json").is_file()
    ]
    if not tables or set(pl.concat(tables)["task"].unique()) != set(TASKS):
        return None
    return final_masks(pl.concat(tables))[0]


def agreement(opened: Opened) -> Float[np.ndarray, "task task seed seed"]:
    """Jaccard's index of any two masks."""
    tasks, seeds = opened.shape[:2]
    flat = opened.reshape(tasks * seeds, -1).astype(np.float64)
    common, number = flat @ flat.T, flat.sum(1)
    index = common / (number[:, None] + number - common)
    return index.reshape(tasks, seeds, tasks, seeds).swapaxes(1, 2)


def by_chance(opened: Opened, rng: np.random.Generator) -> Opened:
    """The masks with the heads of each layer in an order by chance, one for all seeds of a task."""
    orders = rng.random(opened[:, :1].shape).argsort(-1)
    return np.take_along_axis(opened, np.broadcast_to(orders, opened.shape), axis=-1)


def same_heads(opened: Opened) -> tuple[str, str]:
    """The second decision: its word and its figures; without a second seed the word stays open."""
    rng = np.random.default_rng(1)
    two = np.triu_indices(len(opened), 1)
    index = agreement(opened)
    mean = float(index[two].mean())
    drawn = np.array([agreement(by_chance(opened, rng))[two].mean() for _ in range(DRAWS)])
    figures = f"two tasks {mean:.3f}, by chance {drawn.mean():.3f} (largest {drawn.max():.3f})"
    if (drawn >= mean).sum() > LEVEL * DRAWS:
        return DOES_NOT, figures
    if opened.shape[1] < 2:
        return CANNOT_TELL, f"{figures}; one seed"
    itself = float(np.diagonal(index).T[:, 0, 1].mean())
    way = (mean - drawn.mean()) / (itself - drawn.mean())
    figures += f", a task with itself {itself:.3f}, {way:.0%} of the way"
    if (drawn >= mean).any():
        return CANNOT_TELL, figures
    return (REPEATS if way >= HALF else IN_PART), figures


def kept_by_all(opened: Bool[np.ndarray, "task site head"]) -> tuple[str, str]:
    """The third decision."""
    rng = np.random.default_rng(1)
    number = int(opened.all(0).sum())
    drawn = np.array([rng.permuted(opened, axis=-1).all(0).sum() for _ in range(DRAWS)])
    figures = f"{number}, by chance {drawn.mean():.2f} (at most {drawn.max()})"
    return (REPEATS if number and (drawn >= number).sum() <= LEVEL * DRAWS else DOES_NOT), figures


def skill_and_claims(
    skill: Float[np.ndarray, "site head"], opened: Bool[np.ndarray, "task site head"]
) -> tuple[str, str]:
    """The fourth decision."""
    claims: Int[np.ndarray, "site head"] = opened.sum(0)
    sites, heads = claims.shape
    one, other = ((values - values.mean(1, keepdims=True)).ravel() for values in (skill, claims))
    scale = np.linalg.norm(one) * np.linalg.norm(other)
    orders = permutations_within(np.repeat(np.arange(sites), heads), DRAWS, np.random.default_rng(1))
    r = float(one @ other / scale)
    p = float((1 + (other[orders] @ one / scale >= r - 1e-12).sum()) / (1 + DRAWS))
    high = float(np.tanh(np.arctanh(r) + 1.645 / np.sqrt(sites * (heads - 1) - 3)))
    word = REPEATS if p <= LEVEL else DOES_NOT if high < WEAK else CANNOT_TELL
    return word, f"r = {r:.2f} (one-sided 95 % end {high:.2f}), p = {p:.3g}"


if __name__ == "__main__":
    main()
