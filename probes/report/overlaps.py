"""Comparisons of masks with each other, and notes on masks that are not compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from mtl.probes.report.data import ReportData
from mtl.probes.sites import in_order, sites_of
from mtl.probes.statistics.masks import Masks, final_masks
from mtl.probes.statistics.overlap import claim_overlaps, correlation_table, task_overlaps
from mtl.tasks.in_words import counted

MOST_MASKS = 40
"""The most masks that are all compared with each other, since the number of pairs grows with its square."""


@dataclass(frozen=True)
class Compared:
    """The comparisons between the masks of a setup."""

    name: str
    masks: Masks
    correlations: pl.DataFrame
    overlaps: pl.DataFrame


def masks_by_setup(evidence: ReportData) -> tuple[dict[str, Masks], tuple[str, ...]]:
    """The masks of every setup with the seeds that all of its tasks have, and notes."""
    by_setup: dict[str, Masks] = {}
    notes: list[str] = []
    if evidence.gates is None:
        return by_setup, ()
    # The kinds of attention are in the same order in all masks.
    all_gates = evidence.gates.sort(in_order(sites_of(evidence.gates)), maintain_order=True)
    for setup in evidence.setups:
        gates = all_gates.filter(pl.col("setup") == setup.name)
        if gates.is_empty():
            continue
        try:
            by_setup[setup.name], left_out = final_masks(gates)
        except ValueError as error:
            notes.append(f"masks of {setup.name} are not compared: {error}")
            continue
        notes += [f"{setup.name}: {note.replace('left out', 'left out of comparisons')}" for note in left_out]
    return by_setup, tuple(notes)


def compare(by_setup: dict[str, Masks]) -> tuple[Compared, ...]:
    """Correlations and overlaps within every setup that has masks of several tasks or of several seeds."""
    return tuple(
        Compared(name, masks, correlation_table(masks), task_overlaps(masks))
        for name, masks in by_setup.items()
        if len(masks.tasks) > 1 or len(masks.seeds) > 1
    )


def claim_counts(by_setup: dict[str, Masks]) -> pl.DataFrame:
    """setup, task, seeds, claimed, learned: the numbers of heads that are claimed, and of learned claims."""
    rows = [
        (setup, task, len(masks.seeds), int(claimed.sum()), int(learned.sum()))
        for setup, masks in by_setup.items()
        for task, claimed, learned in zip(masks.tasks, masks.claimed(), masks.learned_claims(), strict=True)
    ]
    return pl.DataFrame(rows, ("setup", "task", "seeds", "claimed", "learned"), orient="row")


def across(by_setup: dict[str, Masks]) -> tuple[pl.DataFrame | None, str]:
    """Overlaps of the claimed heads of all masks of all setups, and a note if there are too many masks."""
    if len(by_setup) < 2:
        return None, ""
    names = [f"{setup}: {task}" for setup, masks in by_setup.items() for task in masks.tasks]
    if len(names) > MOST_MASKS:
        many = counted(len(names), "mask is", "masks are")
        return None, f"{many} too many to compare all with all: only within setups"
    claimed, learned = (
        np.concatenate([claims(masks) for masks in by_setup.values()])
        for claims in (Masks.claimed, Masks.learned_claims)
    )
    return claim_overlaps(names, claimed, learned), ""
