"""What would ablation of more runs, sentences or masks decide? Studies simulated from the archives.

python docs/results/contest/closed_heads.py archive docs/results/nine-tasks/masks.csv

`archive` holds what study.tar.xz and sign-runs.tar.xz contain. The rule is that of more_masks.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from measures import HEADS, LAYERS, SITES, STRATA, TASKS, beside
from more_masks import masks_of_nine_tasks, masks_of_three
from scipy.optimize import brentq
from scipy.special import ndtr

from mtl.probes.stem_cell.contest import (
    STANDARDISED_LOGS,
    STANDARDISED_POINTS,
    ContestCells,
    ContestEstimate,
    TaskWorth,
    estimate_contest,
)

STUDIES, DRAWS, SEED, PRIOR = 200, 199, 41, 100_000
LOSSES = (0.0, 0.1, 0.25)
MIDDLES = np.array([0.9, 1.6, 1.2, -0.3, -0.5, 0.2])
ERRORS = np.array([0.13, 1.2, 0.25, 0.33, 0.73])
"""How much layers are wanted, and how far the masks of a task scatter: those of `uncertain` in
tests/probes/stem_cell/worlds_contest.py."""


class Design(NamedTuple):
    """What a study measures."""

    runs: int = 6
    sentences: int = 12_544
    masks: int = 6
    """Of each task; 0: claims without error."""
    measure: str = "ablation"
    kept: int = 14
    times: int = 1
    """Tasks of each kind: five, or ten in 45 pairs."""
    lasts: bool = True
    """Whether partners have lasting effects on heads."""


DESIGNS = [
    Design(), Design(sentences=3_000), Design(masks=24), Design(runs=12, masks=24), Design(masks=0),
    Design(masks=24, kept=22), Design(masks=24, times=2), Design(measure="importance"),
    Design(masks=24, measure="importance"), Design(masks=24, measure="importance", times=2),
    Design(lasts=False), Design(masks=24, lasts=False),
]  # fmt: skip
Worth = list[tuple[np.ndarray, np.ndarray, float]]


def of_archive(runs: Path, measure: str) -> Worth:
    """By task: the worth of each head, its variance between runs, and the share of it that lasts.

    What a partner does to a head lasts: it recurs on other sentences and in other runs. For ablation, all
    that 3,000 sentences share with the 300 others counts as that, though a part of it may be of runs.
    """
    found = []
    for task in TASKS:
        tables = ["heads.parquet", "heads.parquet"]
        if measure == "ablation":
            tables[0] = "ablation-held.parquet"
        many, few = (np.stack(beside(runs, task, measure, (4, 5, 6), table), axis=1) for table in tables)
        if measure == "importance":
            many, few = np.log(many), np.log(few)
        left, other = map(without_effects, (many, few))
        freedom = len(left) * (left.shape[1] - 1) * (1 - 1 / HEADS)  # of each head
        variance = (left**2).sum((0, 1)) / freedom
        if measure == "ablation":
            # 300 sentences have ten times the noise of 3,000; and what the two have in common
            lasts = (10 * (left**2).sum() - (other**2).sum()) / 9, (left * other).sum()
        else:
            lasts = ((left.sum(0) ** 2 - (left**2).sum(0)).sum() / (len(left) - 1),)
        share = float(np.mean(lasts)) / freedom / variance.sum()
        found.append((many.mean((0, 1)), variance, max(0.0, float(share))))
    return found


def without_effects(values: np.ndarray) -> np.ndarray:
    """Worth (run, partner, head) less the means of heads, and of partners by layer."""
    of_layers = (values - values.mean(1, keepdims=True)).reshape(*values.shape[:2], LAYERS, HEADS)
    return (of_layers - of_layers.mean(-1, keepdims=True)).reshape(values.shape)


def wishes(six: dict[str, np.ndarray]) -> np.ndarray:
    """Draws (study, task, head) of how much a task wants a head, given how many of its six masks keep it."""
    random = np.random.default_rng(SEED)
    common, own = random.normal(0, 1.3, (PRIOR, 1)), random.normal(0, 0.4, (PRIOR, len(TASKS)))
    spread = np.sqrt(1.3**2 + 0.4**2 + ERRORS**2)
    # Masks keep 14 heads, so that is what lies above the edge
    edge = [brentq(lambda at, of=of: HEADS * ndtr((MIDDLES - at) / of).sum() - 14, -9, 9) for of in spread]
    found = []
    for cell, middle in enumerate(MIDDLES[STRATA]):
        keeps = ndtr((middle + common + own - edge) / ERRORS).clip(1e-12, 1 - 1e-12)
        kept = np.array([six[task][:, cell].sum() for task in TASKS])
        logs = (kept * np.log(keeps) + (6 - kept) * np.log1p(-keeps)).sum(1)
        weights = np.exp(logs - logs.max())
        chosen = random.choice(PRIOR, STUDIES, p=weights / weights.sum())
        found.append(middle + common[chosen] + own[chosen])
    return np.moveaxis(np.array(found), 0, -1)


def largest(values: np.ndarray, kept: int) -> np.ndarray:
    """Which heads have the largest values, this many of them."""
    return values >= np.sort(values, axis=-1)[..., [-kept]]


def studies(
    archive: Worth, six: dict[str, np.ndarray], wish: np.ndarray, design: Design, loss: float
) -> Iterator[ContestEstimate]:
    """Estimates of studies in which a head loses a share of its worth beside a partner that wants it, too."""
    names = [task + mark for mark in ("", "'")[: design.times] for task in TASKS]
    for study in range(STUDIES):
        random = np.random.default_rng([SEED, study])
        wanted = wish[study] if design.times == 1 else np.concatenate([wish[study], wish[-1 - study]])
        scatter = random.normal(size=(24, *wanted.shape)) * np.tile(ERRORS, design.times)[:, None]
        true = dict(zip(names, largest(wanted, design.kept), strict=True))
        opened = dict(zip(names, largest(wanted + scatter, design.kept).swapaxes(0, 1), strict=True))
        if design.kept == 14 and design.times == 1:  # the archive's masks are six of them
            opened = {task: np.concatenate([six[task], masks]) for task, masks in opened.items()}
        opened = {task: masks[: design.masks] for task, masks in opened.items()}
        if not design.masks:
            opened = {task: np.array([mask, mask]) for task, mask in true.items()}
        worth = []
        for task, (points, variance, share) in zip(names, archive * design.times, strict=True):
            partners = tuple(other for other in names if other != task)
            lost = loss * np.array([true[task] & true[other] for other in partners])
            share *= design.lasts
            lasting = random.normal(size=lost.shape) * np.sqrt(variance * share)
            noise = random.normal(size=(design.runs, *lost.shape)) * np.sqrt(variance * (1 - share))
            if design.measure == "ablation":
                values = points * (1 - lost) + lasting + noise * np.sqrt(3_000 / design.sentences)
            else:
                values = np.exp(points + np.log1p(-lost) + lasting + noise)
            worth.append(TaskWorth(task, partners, values))
        claims = {task: masks.mean(0) > 0.5 for task, masks in opened.items()}
        cells = ContestCells(tuple(range(design.runs)), SITES, HEADS, STRATA, claims, tuple(worth), opened)
        unit = STANDARDISED_POINTS if design.measure == "ablation" else STANDARDISED_LOGS
        yield estimate_contest(cells, unit, draws=DRAWS)


def main() -> None:
    """Print how often each design says what."""
    root = Path(sys.argv[1])
    three, more = masks_of_three(root / "contest/runs"), masks_of_nine_tasks(Path(sys.argv[2]))
    six = {task: np.concatenate([three[task], more[task]]) for task in TASKS}
    wish = wishes(six)
    archives = {of: of_archive(root / "ablation_sign/runs", of) for of in ("ablation", "importance")}
    for of, archive in archives.items():
        print(
            f"{of}: lasting share",
            {task: f"{each[2]:.2f}" for task, each in zip(TASKS, archive, strict=True)},
        )
    for design in DESIGNS:
        print(design)
        for loss in LOSSES:
            found = list(studies(archives[design.measure], six, wish, design, loss))
            words = [each.word for each in found]
            said = {word: words.count(word) / STUDIES for word in ("supported", "refuted", "cannot tell")}
            covers = np.mean([each.corrected_low <= loss <= each.corrected_high for each in found])
            half = np.median([each.corrected_high - each.corrected_low for each in found]) / 2
            claims, reliable = (np.median([getattr(e, of) for e in found]) for of in ("heads", "reliability"))
            print(
                f"  {loss:.0%} lost: {said}; by the error of claims ± {half:.2f}, covers {covers:.2f}; "
                f"{claims:.0f} claims, reliability {reliable:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
