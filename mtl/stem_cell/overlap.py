"""Blocks of a study whose pairs get masks drawn by chance, with a forced number of heads in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mtl.config.marks import Forbidden
from mtl.config.task_slots import Slot
from mtl.errors import InputError
from mtl.study.extensions import MaskSource
from mtl.tasks.ranges import Seed, Some

if TYPE_CHECKING:
    from mtl.study.config import Block
    from mtl.study.jobs.job import Job
    from mtl.study.made_masks import MadeMasks


@dataclass(frozen=True)
class OverlapConfig:
    """Masks of pairs drawn by chance, with a forced number of heads in common."""

    heads: Some = 12
    """Number of heads in the mask of each task."""
    shared: tuple[int, ...] = (0, 6, 12)
    """Numbers of heads that the two masks have in common; runs of each number are made."""
    pool: int | None = None
    """Number of heads to draw masks from, the best of both tasks; `null`: twice as many as a mask has."""
    runs: tuple[str, ...] = ()
    """Folders (or globs) of finished runs by which heads are ranked for a task."""
    by: Literal["log_alpha", "importance"] = "log_alpha"
    """The ranking: mean log alpha of the task's masks when heads were chosen, or mean importance."""
    seed: Seed = 1
    """Seed of the draws."""


@dataclass(frozen=True)
class Draw:
    """How the masks of one run are drawn; the run's seed is the number of the draw."""

    overlap: OverlapConfig
    shared: int
    """Number of heads that the two masks have in common."""


class _Overlap(MaskSource):
    key = "overlap"
    slot = Slot(
        OverlapConfig | None,
        None,
        "Draws the masks of these runs, which must be pairs with `fixed_per_task` masks: one draw for each "
        "pair, number of shared heads and seed.",
    )

    forbidden = (
        Forbidden(
            lambda block: block.masks != ("fixed_per_task",),
            "overlap draws a mask for each task of a pair: set masks: [fixed_per_task] in the same block",
        ),
        Forbidden(
            lambda block: "gates.masks" in block.set,
            "overlap draws the masks: leave gates.masks out of the block's set",
        ),
        Forbidden(
            lambda block: not overlap_of(block).shared,
            "overlap.shared is empty: list numbers of shared heads",
        ),
        Forbidden(
            lambda block: [str(n) for n in overlap_of(block).shared if not 0 <= n <= overlap_of(block).heads],
            "overlap.shared={found[0]}: use a number from 0 to overlap.heads={run.overlap.heads}",
        ),
    )

    def kinds(self, block: Block, setup: str, tasks: Sequence[str]) -> Iterator[tuple[str, Draw]]:
        overlap = overlap_of(block)
        if len(tasks) != 2:
            raise InputError(f"overlap needs pairs of tasks, but setup '{setup}' has {'+'.join(tasks)}")
        for shared in overlap.shared:
            yield f"overlap{shared}", Draw(overlap, shared)

    def masks(self, runs: Sequence[Job]) -> dict[str, MadeMasks]:
        from mtl.stem_cell.drawn_masks import drawn_masks

        return drawn_masks(runs)


def overlap_of(block: Block) -> OverlapConfig:
    """The settings of a block with drawn masks."""
    overlap = getattr(block, _Overlap.key)
    assert isinstance(overlap, OverlapConfig)
    return overlap


OVERLAP = _Overlap()
