"""The page's maps of heads: masks, seeds over each other, claims and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from mtl.probes.report.claims import PrimarySetup
from mtl.probes.report.data import ReportData
from mtl.probes.report.head_svg import head_map, rgb_map, strip
from mtl.probes.sites import Site, grid
from mtl.probes.statistics.competition import Competition
from mtl.probes.statistics.masks import Masks

CHANNELS = 3
"""Seeds in an RGB overlay."""


@dataclass(frozen=True)
class MaskMap:
    """A mask as it is shown."""

    seed: int
    opened: int
    count: int
    svg: Markup


def mask_maps(
    evidence: ReportData, sites: Sequence[Site], heads: int
) -> list[tuple[str, dict[str, list[MaskMap]]]]:
    """Per setup and task the masks of all seeds."""
    setups: list[tuple[str, dict[str, list[MaskMap]]]] = []
    if evidence.gates is None:
        return setups
    for setup in evidence.setups:
        gates = evidence.gates.filter(pl.col("setup") == setup.name)
        order = list(gates["task"].unique(maintain_order=True))
        blocks = sorted(
            gates.group_by("task", "seed"), key=lambda item: (order.index(item[0][0]), item[0][1])
        )
        maps: dict[str, list[MaskMap]] = {}
        for (task, seed), block in blocks:
            opened, count = int(block["open"].sum()), block.height
            title = f"mask of {task}, seed {seed}, {setup.name}: {opened} of {count} heads open"
            drawn = head_map(grid(block, "gate", sites, heads), sites, title)
            maps.setdefault(task, []).append(MaskMap(seed, opened, count, drawn))
        if maps:
            setups.append((setup.name, maps))
    return setups


def overlays(
    by_setup: Mapping[str, Masks], claimed: Masks | None, primary: PrimarySetup | None
) -> dict[str, Any] | None:
    """Three seeds of each task in one map: of the primary setup, else of the first that has three."""
    first = [(primary.setup, claimed)] if primary is not None and claimed is not None else []
    for setup, masks in (*first, *by_setup.items()):
        if len(masks.seeds) >= CHANNELS:
            seeds = masks.seeds[:CHANNELS]
            maps = {
                task: rgb_map(
                    masks.gate[place, :CHANNELS],
                    masks.sites,
                    f"heads that {task} keeps with seeds {', '.join(map(str, seeds))}, {setup}",
                )
                for place, task in enumerate(masks.tasks)
            }
            return {"setup": setup, "names": [f"seed {seed}" for seed in seeds], "maps": maps}
    return None


def claims_map(claimed: Masks | None) -> Markup | None:
    """The share of tasks that claim each head; `None` without masks of two tasks."""
    if claimed is None or len(claimed.tasks) < 2:
        return None
    share = claimed.claimed().mean(0)
    return head_map(share, claimed.sites, f"how many of {len(claimed.tasks)} tasks claim each head")


def loss_maps(
    competition: Competition | None, claimed: Masks | None, sites: Sequence[Site], heads: int
) -> dict[str, Markup] | None:
    """What each head loses, as a map and as dots by the number of tasks that claim it."""
    if competition is None or claimed is None:
        return None
    losses = grid(competition.heads, "loss", sites, heads)
    claims = grid(competition.heads, "claims", sites, heads).astype(int)
    most = float(np.abs(losses).max()) or 1.0
    names = [str(count) for count in range(len(claimed.tasks) + 1)]
    return {
        "map": head_map(losses / most, sites, "loss of every head from single to joint training"),
        "strip": strip(
            claims.ravel().tolist(),
            losses.ravel().tolist(),
            names,
            "tasks that claim the head",
            "skill lost, points",
        ),
        "most": Markup(f"{100 * most:.1f}"),
    }
