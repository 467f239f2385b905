"""Made-up pair runs: worth that partners' claims lower, or that differs between partners otherwise."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import polars as pl

from mtl.probes.sites import Site
from mtl.probes.stem_cell.contest import ContestCells, TaskWorth

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
    "a partner moves heads of all tasks alike",
    "halves of a pair err alike",
    "contested heads are noisier",
    "heavy tails",
)
"""Worlds in which a partner's claims do not matter."""


def world(
    rng: np.random.Generator,
    kind: str = "plain",
    loss: float = 0.0,
    noise: float = 0.25,
    seeds: int = 3,
    claimed: int = CLAIMED,
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
    np.put_along_axis(claims, np.argsort(-wish, axis=1)[:, :claimed], True, axis=1)
    worth = 0.8 * wish + 0.3 * rng.normal(size=(count, cells))
    before = 0.5 * common + 0.3 * rng.normal(size=cells) - 0.5
    similar = np.array([[(one & other).sum() / claimed for other in claims] for one in claims])
    pair = (count, count)
    errors = noise * rng.normal(size=(seeds, *pair, cells))
    if kind == "heavy tails":
        errors *= 1 / np.sqrt(rng.chisquare(3, size=errors.shape) / 3)
    if kind == "halves of a pair err alike":
        errors = _halves_alike(errors, 0.5)
    if kind == "contested heads are noisier":
        errors *= 0.5 + 0.25 * claims.sum(0)
    if kind == "noise grows with worth":
        errors *= np.exp(0.3 * (worth - worth.mean(1, keepdims=True)))[:, None]
    beside = np.broadcast_to(worth[:, None], (*pair, cells)).copy()
    if kind == "a partner moves heads of all tasks alike":
        beside += 0.3 * rng.normal(size=(count, cells))
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
    return _cells(np.exp(beside + errors), claims, np.repeat(claims[:, None], 3, axis=1))


def archive(rng: np.random.Generator, loss: float = 0.0, alike: float = 0.36) -> ContestCells:
    """Claims, worth and noise of docs/results/contest/study.tar.xz (the noise by task and head, in logs).

    Errors of the halves of a pair correlate by `alike`. archive.csv has the masks of seeds 11 to 13 at 14
    heads, and of the ten pairs the mean log importance over partners and seeds and its spread over seeds.
    """
    opened, claims, (worth, noise) = _of_archive("worth", "noise")
    errors = _halves_alike(rng.normal(size=(3, len(TASKS), *worth.shape)), alike) * noise[:, None]
    lost = np.log1p(-loss) * claims[None]
    return _cells(np.exp(worth[:, None] + lost + errors), claims, opened)


def ablated(
    rng: np.random.Generator, loss: float = 0.0, sentences: int = 300, seeds: int = 3, share: float = 1.0
) -> ContestCells:
    """The same for ablation, in points, measured on so many sentences in runs of so many seeds.

    archive.csv has what a head is worth (means over partners and seeds, drawn together by the share of their
    spread that is error), and the spread between runs that effects of head and of partner by layer leave: of
    its variance the given share is of the 300 sentences, and the rest of the runs. Heads that both tasks of a
    pair claim lose the share `loss` of what they are worth.
    """
    opened, claims, (worth, error) = _of_archive("ablation", "error")
    spread = error * np.sqrt(share * 300 / sentences + 1 - share)
    left = worth[:, None] * (1 - loss * (claims[:, None] & claims[None]))
    errors = rng.normal(size=(seeds, len(TASKS), *worth.shape)) * spread[:, None]
    return _cells(left + errors, claims, opened)


@functools.cache
def _of_archive(*columns: str) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Masks (task, seed, cell), claims (task, cell), and columns of archive.csv by task and cell."""
    table = pl.read_csv(Path(__file__).parent / "archive.csv", schema_overrides={"masks": pl.String})
    of_task = [table.filter(task=task) for task in TASKS]
    masks = np.array([[list(row) for row in rows["masks"]] for rows in of_task]) == "1"
    opened = masks.transpose(0, 2, 1)
    return opened, opened.mean(1) > 0.5, [np.array([rows[name] for rows in of_task]) for name in columns]


def uncertain(rng: np.random.Generator, loss: float = 0.0, noise: float = 0.19) -> ContestCells:
    """Claims that masks of three seeds get wrong as often as those of the archive, which decide the loss.

    Masks of a task agree with each other by a Jaccard index of 0.87, 0.34, 0.79, 0.72, 0.50, and with those
    of other tasks by 0.49. A head is truly claimed that masks without error would keep.
    """
    count, cells, kept = len(TASKS), LAYERS * HEADS, 14
    layer = np.repeat([0.9, 1.6, 1.2, -0.3, -0.5, 0.2], HEADS)
    wish = layer + rng.normal(0, 1.3, cells) + rng.normal(0, 0.4, (count, cells))
    error = np.array([0.13, 1.2, 0.25, 0.33, 0.73])
    drawn = wish[:, None] + error[:, None, None] * rng.normal(size=(count, 3, cells))
    opened, true = _largest(drawn, kept), _largest(wish, kept)
    worth = 0.5 * wish + rng.normal(0, 0.5, wish.shape)
    worth *= 0.77 / worth.std()
    errors = noise * rng.normal(size=(3, count, count, cells))
    lost = np.log1p(-loss) * true[None]
    return _cells(np.exp(worth[:, None] + lost + errors), opened.mean(1) > 0.5, opened)


def _largest(values: np.ndarray, number: int) -> np.ndarray:
    """Which cells have the largest values, this many of them."""
    return values >= np.sort(values, axis=-1)[..., [-number]]


def _halves_alike(errors: np.ndarray, correlation: float) -> np.ndarray:
    """Errors (seed, task, partner, cell), those of both halves of a pair correlated: they are of one run."""
    upper = np.triu(np.ones(errors.shape[1:3], dtype=bool))[..., None]
    other = errors.swapaxes(1, 2)
    return np.where(upper, errors, correlation * other + (1 - correlation**2) ** 0.5 * errors)


def _cells(measured: np.ndarray, claims: np.ndarray, opened: np.ndarray) -> ContestCells:
    """Worth (seed, task, partner, cell), claims (task, cell) and masks (task, seed, cell), laid out."""
    tasks = tuple(
        TaskWorth(
            task,
            tuple(other for other in TASKS if other != task),
            np.delete(measured[:, place], place, axis=1),
        )
        for place, task in enumerate(TASKS)
    )
    return ContestCells(
        tuple(range(1, len(measured) + 1)),
        tuple(Site("self", number) for number in range(LAYERS)),
        HEADS,
        np.repeat(np.arange(LAYERS), HEADS),
        dict(zip(TASKS, claims, strict=True)),
        tasks,
        dict(zip(TASKS, opened, strict=True)),
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
        (task, *place, bool(claimed[cell]), cells.of_seeds[task][:, cell].tolist())
        for task, claimed in cells.claims.items()
        for cell, place in enumerate(places)
    ]
    key = {"attention": pl.String, "layer": pl.Int32, "head": pl.Int32}
    of_worth = {"task": pl.String, "partner": pl.String, "seed": pl.Int64, **key, "worth": pl.Float64}
    of_claims = {"task": pl.String, **key, "claimed": pl.Boolean, "of_seeds": pl.List(pl.Boolean)}
    return (
        pl.DataFrame(worth, schema=of_worth, orient="row"),
        pl.DataFrame(claims, schema=of_claims, orient="row"),
    )
