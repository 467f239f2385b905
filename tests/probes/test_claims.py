"""Whose masks are claims."""

from __future__ import annotations

import numpy as np

from mtl.probes.report.claims import claim_sets
from mtl.probes.report.data import Setup
from mtl.probes.statistics.masks import final_masks
from tests.probes import worlds


def test_masks_that_were_fixed_claim_nothing() -> None:
    masks, _ = final_masks(worlds.gates(worlds.random_gates(np.random.default_rng(0))))
    one, _ = final_masks(worlds.gates(worlds.random_gates(np.random.default_rng(0), tasks=1), tasks=("pos",)))
    by_setup = {
        "STL, dynamic": masks, "STL, dynamic, target 14": one, "STL, fixed": masks,
        "MTL-2 pos+dep, fixed, masks pos+dep-overlap6": masks, "MTL-2 pos+dep, dynamic": masks,
    }  # fmt: skip
    setups = [
        Setup(name, None, name.startswith("STL"), pruning="fixed" if ", fixed" in name else "dynamic")
        for name in by_setup
    ]
    assert list(claim_sets(by_setup, setups)) == ["STL, dynamic", "MTL-2 pos+dep, dynamic"]
