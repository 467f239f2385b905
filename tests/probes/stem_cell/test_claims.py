"""Whose masks are claims."""

from __future__ import annotations

import dataclasses

import numpy as np

from mtl.probes.report.data import Setup, claim_sets
from mtl.probes.statistics.masks import final_masks
from mtl.probes.stem_cell.competition import by_claims, compete
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


def test_verdicts_count_forced_claims_and_give_those_learned_alone():
    gates, heads = worlds.competition(np.random.default_rng(0), 0.4)
    masks, _ = final_masks(gates)
    random = np.random.default_rng(1)
    forced = dataclasses.replace(masks, learned=masks.opened & (random.random(masks.opened.shape) < 0.6))
    found, plain = compete(forced, heads), compete(masks, heads)
    assert "learned" not in plain.verdict.reason
    assert found.verdict.word == plain.verdict.word
    beside = "; counting only heads that training itself kept, "
    assert found.verdict.reason.startswith(f"{forced.forced_in_words()}{plain.verdict.reason}{beside}")
    alone = compete(forced.learned_alone(), heads)
    same = alone.verdict.word == found.verdict.word
    words = "the same answer" if same else f"another answer, {alone.verdict.word}"
    assert found.verdict.reason.endswith(f"{beside}{words}: {alone.verdict.reason}")
    table = by_claims({"all": masks, "forced": forced, "alone": forced.learned_alone()}, heads)
    assert table["learned"].to_list() == [None, table["value"][2], None]
    none = dataclasses.replace(masks, learned=np.zeros_like(masks.opened))
    assert f"{beside}another answer, too few runs to say: no head is claimed" in (
        compete(none, heads).verdict.reason
    )
