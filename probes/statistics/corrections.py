"""p values corrected for the number of tests."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def holm(p: Float[np.ndarray, " test"]) -> Float[np.ndarray, " test"]:
    """p corrected after Holm (1979), which is valid however the tests depend on each other."""
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    corrected = np.empty_like(stepped)
    corrected[order] = stepped
    return corrected


def benjamini_hochberg(p: Float[np.ndarray, " test"]) -> Float[np.ndarray, " test"]:
    """The least false discovery rate at which each test is rejected (Benjamini & Hochberg 1995)."""
    falling = np.argsort(-p)
    corrected = np.empty_like(p)
    corrected[falling] = np.minimum.accumulate(p[falling] * len(p) / np.arange(len(p), 0, -1)).clip(max=1)
    return corrected
