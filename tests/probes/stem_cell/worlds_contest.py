"""Made-up pair runs: worth that partners' claims lower, or that differs between partners otherwise."""

from __future__ import annotations

import numpy as np
import polars as pl

from mtl.probes.sites import Site
from mtl.probes.stem_cell.statistics.contest_cells import ContestCells, TaskWorth

TASKS = ("pos", "ner", "dep", "con", "srl")
LAYERS, HEADS, CLAIMED = 6, 12, 18
WITHOUT = (
    "plain",
    "own heads lose",
    "half of every gain",
    "noise grows with worth",
    "a partner scales",
    "similar partners scale",
    "a partner sharpens",
    "similar partners flatten",
)
"""Worlds in which a partner's claims do not matter."""


def world(
    rng: np.random.Generator, kind: str = "plain", loss: float = 0.0, noise: float = 0.25, seeds: int = 3
) -> ContestCells:
    """Worth of all heads in all pair runs; contested heads lose the share `loss` beside a partner.

    Logs of worth are normal over heads, larger where other tasks want the head, too; layers differ, for
    each pair in another way. `noise` is the standard deviation of logs between runs.
    """
    count, cells = len(TASKS), LAYERS * HEADS
    layer = np.repeat(np.arange(LAYERS), HEADS)
    common = rng.normal(size=cells) + 0.5 * rng.normal(size=LAYERS)[layer]
    wish = 0.7 * common + rng.normal(size=(count, cells))
    claims = np.zeros((count, cells), dtype=bool)
    np.put_along_axis(claims, np.argsort(-wish, axis=1)[:, :CLAIMED], True, axis=1)
    worth = 0.8 * wish + 0.3 * rng.normal(size=(count, cells))
    before = 0.5 * common + 0.3 * rng.normal(size=cells) - 0.5
    similar = np.array([[(one & other).sum() / CLAIMED for other in claims] for one in claims])
    pair = (count, count)
    errors = noise * rng.normal(size=(seeds, *pair, cells))
    if kind == "noise grows with worth":
        errors *= np.exp(0.3 * (worth - worth.mean(1, keepdims=True)))[:, None]
    beside = np.broadcast_to(worth[:, None], (*pair, cells)).copy()
    if kind == "own heads lose":
        beside += np.log(0.7) * claims[:, None]
    if kind == "half of every gain":
        beside[:] = np.log(0.5 * np.exp(worth) + 0.5 * np.exp(before))[:, None]
    if kind == "a partner scales":
        beside += 0.4 * rng.normal(size=pair)[..., None]
    if kind == "similar partners scale":
        beside -= 1.5 * similar[..., None]
    middle = beside.mean(-1, keepdims=True)
    if kind == "a partner sharpens":
        beside = middle + (beside - middle) * np.exp(0.25 * rng.normal(size=pair))[..., None]
    if kind == "similar partners flatten":
        beside = middle + (beside - middle) * (1.3 - similar)[..., None]
    beside = beside + 0.2 * rng.normal(size=(*pair, LAYERS))[..., layer]
    beside = beside + np.log1p(-loss) * (claims[:, None] & claims[None])
    measured = np.exp(beside + errors)
    tasks = tuple(
        TaskWorth(
            task,
            tuple(other for other in TASKS if other != task),
            np.delete(measured[:, place], place, axis=1),
        )
        for place, task in enumerate(TASKS)
    )
    return ContestCells(
        tuple(range(1, seeds + 1)),
        tuple(Site("self", number) for number in range(LAYERS)),
        HEADS,
        layer,
        dict(zip(TASKS, claims, strict=True)),
        tasks,
    )


def tables(cells: ContestCells) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The same as tables: worth (task, partner, seed, attention, layer, head, worth), and claims."""
    places = [(*cells.sites[cell // cells.heads], cell % cells.heads) for cell in range(len(cells.strata))]
    worth = [
        (of.task, partner, seed, *place, of.worth[number, column, cell])
        for of in cells.tasks
        for column, partner in enumerate(of.partners)
        for number, seed in enumerate(cells.seeds)
        for cell, place in enumerate(places)
    ]
    claims = [
        (task, *place, bool(claimed[cell]))
        for task, claimed in cells.claims.items()
        for cell, place in enumerate(places)
    ]
    key = {"attention": pl.String, "layer": pl.Int32, "head": pl.Int32}
    of_worth = {"task": pl.String, "partner": pl.String, "seed": pl.Int64, **key, "worth": pl.Float64}
    of_claims = {"task": pl.String, **key, "claimed": pl.Boolean}
    return (
        pl.DataFrame(worth, schema=of_worth, orient="row"),
        pl.DataFrame(claims, schema=of_claims, orient="row"),
    )
