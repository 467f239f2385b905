"""Is the sign of ablation real? Ten pairs with seeds 4 to 6; ../sign.md: what was fixed before.

mkdir archive && tar xf docs/results/contest/study.tar.xz -C archive
python docs/results/contest/sign.py archive/contest/runs studies/ablation_sign/runs
python docs/results/contest/sign.py archive/contest/runs     # what the test finds in simulated studies
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from measures import STRATA, TASKS, blocks_of, claimed, in_pairs, needs

from mtl.probes.statistics.significance import permutations_within
from mtl.probes.stem_cell.contest import (
    NORMAL_SCORES,
    STANDARDISED_LOGS,
    STANDARDISED_POINTS,
    TaskWorth,
    WorthUnit,
    normal_scores,
    tested,
)

SEEDS, DRAWS, LEVEL = (4, 5, 6), 9999, 0.10
"""A level of 10 % in all: both one-sided ends are those of 5 %."""
ARCHIVE = -0.536
"""The slope in the archive, by ablation's normal scores at claimed heads."""
RAW = WorthUnit("as it is", lambda worth: worth, multiplicative=False)
HELD = "ablation-held.parquet"
"""Ablation on 3,000 sentences that no run has seen (`mtl ablate --out`)."""
FITS = {
    "primary: 3,000 sentences, normal scores, claimed heads": (HELD, "ablation", NORMAL_SCORES, True),
    "the same on the 300 test sentences": ("heads.parquet", "ablation", NORMAL_SCORES, True),
    "3,000 sentences, standardised points": (HELD, "ablation", STANDARDISED_POINTS, True),
    "3,000 sentences, normal scores, all heads": (HELD, "ablation", NORMAL_SCORES, False),
    "importance, logs, claimed heads": ("heads.parquet", "importance", STANDARDISED_LOGS, True),
    "importance, logs, all heads": ("heads.parquet", "importance", STANDARDISED_LOGS, False),
}  # fmt: skip


def main() -> None:
    """Print the slopes of fresh pairs, or how often the test says what of simulated ones."""
    archive = Path(sys.argv[1])
    need, claims = needs(archive), claimed(archive)
    if len(sys.argv) == 2:
        simulate(in_pairs(archive, "ablation"), need, claims)
        return
    every = dict.fromkeys(TASKS, np.ones(len(STRATA), dtype=bool))
    for name, (table, measure, unit, own) in FITS.items():
        tasks = in_pairs(Path(sys.argv[2]), measure, SEEDS, table)
        found = slope(tasks, unit, claims if own else every, need, DRAWS)
        print(f"{name}: {found[0]:+.3f} ({found[1]:+.3f} to {found[2]:+.3f}), one-sided p {found[3]:.4f}")
        if name.startswith("primary"):
            print(f"  {word(*found)}")
    for name, own in (("all heads", every), ("claimed heads", claims)):
        changes(Path(sys.argv[2]), name, own)


def changes(runs: Path, name: str, own: dict[str, np.ndarray]) -> None:
    """Print how far what partners change is the same by both measures, and in two seeds."""
    measures = (("heads.parquet", "importance", STANDARDISED_LOGS), (HELD, "ablation", STANDARDISED_POINTS))
    changed = [
        [
            changed_by_partners(in_pairs(runs, measure, seeds, table), unit, own)
            for seeds in (SEEDS, *((seed,) for seed in SEEDS))
        ]
        for table, measure, unit in measures
    ]
    of_seeds = [np.corrcoef(of[1:])[np.triu_indices(len(SEEDS), 1)].mean() for of in changed]
    of_measures = np.corrcoef(changed[0][0], changed[1][0])[0, 1]
    print(
        f"what partners change, {name}: the measures correlate by {of_measures:+.2f}, two seeds by "
        f"{of_seeds[0]:+.2f} (importance) and {of_seeds[1]:+.2f} (ablation, 3,000 sentences)"
    )


def changed_by_partners(
    tasks: tuple[TaskWorth, ...], unit: WorthUnit, own: dict[str, np.ndarray]
) -> np.ndarray:
    """Worth less its mean over partners and less each partner's mean in the layer."""
    return np.concatenate([block.residual.ravel() for block in blocks_of(tasks, unit, own)])


def slope(
    tasks: tuple[TaskWorth, ...],
    unit: WorthUnit,
    own: dict[str, np.ndarray],
    need: dict[str, np.ndarray],
    draws: int,
    seed: int = 0,
) -> tuple[float, float, float, float]:
    """Worth on the partner's need: slope, its one-sided 95 % ends, and the p of one as low."""
    orders = permutations_within(STRATA, draws, np.random.default_rng(seed))
    beta, low, high, p = tested(need, blocks_of(tasks, unit, own), orders, LEVEL)
    return -beta, -high, -low, p


def word(slope: float, low: float, high: float, p: float) -> str:
    """What the protocol says of the primary slope."""
    if p < 0.05:
        return "real: a head is missed less where the partner needs it more"
    return "not repeated: less than half of the archive's" if low > ARCHIVE / 2 else "cannot tell"


def simulate(
    tasks: tuple[TaskWorth, ...],
    need: dict[str, np.ndarray],
    claims: dict[str, np.ndarray],
    studies: int = 400,
) -> None:
    """Slopes planted in the noise of the archive's normal scores on 300 sentences."""
    random = np.random.default_rng(0)
    for planted in (0.0, ARCHIVE / 2, ARCHIVE):
        words, covered = [], 0
        for study in range(studies):
            made = []
            for of in tasks:
                scores = normal_scores(of.worth)
                errors = (scores - scores.mean(0)) * np.sqrt(len(scores) / (len(scores) - 1))
                # Which seed's errors stand for a run, and their sign, by chance; heads keep theirs
                drawn = random.integers(len(errors), size=errors.shape[:2])
                signs = random.choice([-1.0, 1.0], size=(*errors.shape[:2], 1))
                noise = signs * np.take_along_axis(errors, drawn[..., None], 0)
                effect = planted * np.stack([need[partner][0] for partner in of.partners])
                made.append(replace(of, worth=scores.mean((0, 1)) + effect + noise))
            found = slope(tuple(made), RAW, claims, need, 499, study)
            words.append(word(*found).split(":")[0])
            covered += found[1] <= planted <= found[2]
        shares = {one: words.count(one) / studies for one in ("real", "not repeated", "cannot tell")}
        print(f"slope {planted:+.2f}: {shares}, interval covers {covered / studies:.3f}", flush=True)


if __name__ == "__main__":
    main()
