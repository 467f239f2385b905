"""The settings of copies of heads, and what follows from them alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mtl.config.marks import FilePath
from mtl.tasks.ranges import Seed, Share

if TYPE_CHECKING:
    from mtl.config.schema import TrainConfig

CloneKind = Literal["none", "rows", "routed", "shuffled", "split", "transplant"]
ROWS_PER_TASK = ("rows", "routed", "shuffled")
"""The kinds of `clones` under which a sentence is a row for each task."""


@dataclass(frozen=True)
class ClonesConfig:
    """Heads copied before training, so that tasks need not share them; see docs/remedies.md."""

    kind: CloneKind = "none"
    """`routed`: each task has its own copy, which only its rows use. `shuffled`: the same, but every batch
    draws again which task has which copy. `rows`: a sentence becomes one row per task, and nothing is copied.
    `split`: copies share a head's output in one pass. `transplant`: the same, and copies overwrite unclaimed
    heads."""
    heads: Literal["contested", "uncontested", "all"] = "contested"
    """The heads that are copied: those claimed by two tasks or more; as many others of the same layers, drawn
    at random (a placebo); or all."""
    claims: FilePath | None = None
    """File with the heads that each task claims, as a study writes it; not needed for `all` and `rows`."""
    seed: Seed | None = None
    """Seed for choosing heads and for the noise; `null`: the run's seed."""
    noise: Share = 0.01
    """Noise added to copies (`split`, `transplant`), as a share of the size of their weights."""

    @property
    def copy_heads(self) -> bool:
        """Whether heads are copied."""
        return self.kind not in ("none", "rows")

    @property
    def copy_claimed_heads(self) -> bool:
        """Whether claims say which heads are copied."""
        return self.copy_heads and self.heads != "all"


def clones_of(config: TrainConfig) -> ClonesConfig:
    """The copies of a run."""
    clones = vars(config)["clones"]  # the slot of this package
    assert isinstance(clones, ClonesConfig)
    return clones
