"""Made-up scores of a study of remedies, in which copies of contested heads help and others do not."""

from __future__ import annotations

import numpy as np
import polars as pl

MEANS = {
    "single": (94.4, 75.0), "A": (93.4, 72.8), "B": (93.5, 72.9), "C": (94.0, 74.0), "D": (93.6, 73.1),
    "G": (93.7, 73.6),
}  # fmt: skip
"""Per condition of pos and dep."""


def scores(seeds: int) -> pl.DataFrame:
    """As `mtl.stem_cell.remedies.remedy_scores` gives them."""
    random = np.random.default_rng(1)
    rows = [
        {
            "condition": condition, "task": task, "seed": seed, "run": f"{condition}-{seed}",
            "score": mean + random.normal(0, spread),
            "parameters": 23_000_000 if condition in "CD" else 22_600_000,
        }
        for condition, means in MEANS.items()
        for seed in range(1, seeds + 1)
        for task, mean, spread in zip(("pos", "dep"), means, (0.1, 0.2), strict=True)
    ]  # fmt: skip
    return pl.DataFrame(rows)
