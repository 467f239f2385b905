"""The page's maps of heads: masks, seeds on top of each other, claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from mtl.probes.appearance import ordered
from mtl.probes.figures.palette import mask_colours
from mtl.probes.figures.rgb_overlap import CHANNELS, shades
from mtl.probes.report.claims import ClaimingSetup
from mtl.probes.report.data import ReportData
from mtl.probes.report.head_svg import head_map, rgb_key, rgb_map, thirds_map
from mtl.probes.sites import Site, grid
from mtl.probes.statistics.masks import Masks, mostly_forced
from mtl.probes.task_order import tasks_in
from mtl.tasks.in_words import counted


@dataclass(frozen=True)
class MaskMap:
    """A mask, as the page shows it."""

    seed: int
    opened: int
    learned: int
    """The number of open heads that no target had to open."""
    count: int
    svg: Markup


def mask_maps(
    evidence: ReportData, sites: Sequence[Site], heads: int
) -> list[tuple[str, dict[str, list[MaskMap]]]]:
    """The masks of all seeds, by setup and task."""
    setups: list[tuple[str, dict[str, list[MaskMap]]]] = []
    if evidence.gates is None:
        return setups
    for setup in evidence.setups:
        gates = evidence.gates.filter(pl.col("setup") == setup.name)
        order = tasks_in(gates)
        blocks = sorted(
            gates.group_by("task", "seed"), key=lambda item: (order.index(item[0][0]), item[0][1])
        )
        maps: dict[str, list[MaskMap]] = {}
        for (task, seed), block in blocks:
            is_open, is_learned = (grid(block, name, sites, heads) == 1 for name in ("open", "learned"))
            opened, learned, count = int(is_open.sum()), int((is_open & is_learned).sum()), block.height
            title = f"mask of {task}, seed {seed}, {setup.name}: {opened} of {counted(count, 'head')} open"
            title += "" if learned == opened else f", {learned} learned"
            forced = is_open & ~is_learned, ~is_open & is_learned
            drawn = head_map(grid(block, "gate", sites, heads), sites, title, forced=forced)
            maps.setdefault(task, []).append(MaskMap(seed, opened, learned, count, drawn))
        if maps:
            setups.append((setup.name, maps))
    return setups


def overlays(
    by_setup: Mapping[str, Masks], claimed: Masks | None, claiming: ClaimingSetup | None
) -> dict[str, Any] | None:
    """Three seeds of each task in one map: of the setup that gives claims, else of the first with three."""
    first = [(claiming.setup, claimed)] if claiming is not None and claimed is not None else []
    for setup, masks in (*first, *by_setup.items()):
        if len(masks.seeds) >= CHANNELS:
            seeds = masks.seeds[:CHANNELS]
            names = [f"seed {seed}" for seed in seeds]
            gates, opened, learned = (
                each[:, :CHANNELS] for each in (masks.gate, masks.opened, masks.learned)
            )
            forced = opened & ~learned, ~opened & learned
            inks = mask_colours(names)
            maps = {}
            for task in ordered(masks.tasks):
                place = masks.tasks.index(task)
                title = f"heads that {task} keeps with seeds {', '.join(map(str, seeds))}, {setup}"
                of_task = gates[place], masks.sites, title, (forced[0][place], forced[1][place])
                maps[task] = rgb_map(*of_task, inks), thirds_map(*of_task)
            keyed = shades(np.moveaxis(gates, 1, 0), np.moveaxis(opened, 1, 0), inks)
            return {
                "setup": setup, "names": names, "maps": maps, "key": rgb_key(keyed, names),
                "forced": bool(any(each.any() for each in forced)),
            }  # fmt: skip
    return None


def claims_map(claimed: Masks | None) -> Markup | None:
    """The share of tasks that claim each head; `None` without masks of two tasks."""
    if claimed is None or len(claimed.tasks) < 2:
        return None
    share = claimed.claimed().mean(0)
    forced = mostly_forced(claimed.claimed(), claimed.learned_claims())
    title = f"how many of {counted(len(claimed.tasks), 'task')} claim each head"
    return head_map(share, claimed.sites, title, forced=forced)
