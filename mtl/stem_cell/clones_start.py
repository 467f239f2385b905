"""The start that copies heads: its settings, the rules for them, and what it does to the encoder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mtl.config.marks import FilePath, Forbidden
from mtl.config.task_slots import Slot
from mtl.errors import InputError
from mtl.tasks.ranges import Seed, Share
from mtl.training.parts import ModelStart, Started

if TYPE_CHECKING:
    from mtl.config.schema import TrainConfig
    from mtl.models.joint import JointModel
    from mtl.models.tapped import SharedEncoder

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
        """Whether claims decide which heads are copied."""
        return self.copy_heads and self.heads != "all"


def clones_of(config: TrainConfig) -> ClonesConfig:
    """A run's settings for copies of heads."""
    clones = vars(config)["clones"]  # the slot of this package
    assert isinstance(clones, ClonesConfig)
    return clones


_PLAIN = {"seed": ClonesConfig.seed, "noise": ClonesConfig.noise}
"""Default settings, which the name of a setup does not mention."""


class _Clones(ModelStart):
    key = "clones"
    slot = Slot(ClonesConfig, field(default_factory=ClonesConfig), "Heads copied before training.")
    forbidden = (
        Forbidden(
            lambda run: clones_of(run).kind != "none" and len(run.tasks) < 2,
            "clones.kind={run.clones.kind} is for two tasks or more: tasks is {tasks}",
        ),
        Forbidden(
            lambda run: clones_of(run).kind != "none" and run.pruning in ("static", "gates_only"),
            "clones.kind={run.clones.kind} copies heads before training, and pruning={run.pruning} starts "
            "from a trained model: use one of them",
        ),
        Forbidden(
            lambda run: clones_of(run).kind == "transplant" and clones_of(run).heads == "all",
            "clones.kind=transplant needs heads to overwrite: use clones.heads=contested or uncontested",
        ),
        Forbidden(
            lambda run: clones_of(run).copy_claimed_heads and clones_of(run).claims is None,
            "clones.heads={run.clones.heads} needs the heads that tasks claim: use clones.claims=FILE, for "
            "instance a file in the folder claims of a study",
        ),
    )

    def used(self, config: Mapping[str, Any]) -> bool:
        return (config.get(self.key) or {}).get("kind", "none") != "none"

    def row_per_task(self, config: TrainConfig) -> bool:
        return clones_of(config).kind in ROWS_PER_TASK

    def unused(self, config: TrainConfig) -> Sequence[str]:
        return [f"clones.{key}" for key in _unused(clones_of(config), len(config.tasks))]

    def content(self, path: Path) -> str | None:
        """A hash of the claimed heads in a file of claims; `None` if it cannot be read."""
        from mtl.runs.folder.content import digest_of

        try:
            claims = json.loads(path.read_text(encoding="utf-8"))
            return digest_of([claims["layers"], claims["heads"], sorted(claims["claims"].items())])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def in_words(self, used: Mapping[str, Any]) -> str:
        values = {key: used.get(f"clones.{key}") for key in ("kind", "heads", *_PLAIN)}
        if values["kind"] is None:
            return ""
        words = [str(values["kind"])] + ([] if values["heads"] is None else [str(values["heads"])])
        words += [f"{key} {values[key]}" for key, plain in _PLAIN.items() if values[key] not in (None, plain)]
        return f"clones {' '.join(words)}"

    def apply(
        self, config: TrainConfig, encoder: SharedEncoder, tasks: Sequence[str], source: JointModel | None
    ) -> Started:
        from mtl.stem_cell.clones import describe_clones, make_clones, swapped

        clones = clones_of(config)
        if source is not None and (source.owners is not None or source.gates is not None):
            raise InputError(
                f"clones.kind={clones.kind} copies heads of a model without masks and routes, and "
                f"{config.init_from} has some: start from another run"
            )
        if clones.seed is None:
            clones = dataclasses.replace(clones, seed=config.seed)
        plan, owners = make_clones(encoder, clones, tasks)
        said = describe_clones(plan, clones, tasks)
        return Started(owners, swapped if clones.kind == "shuffled" else None, said)


def _unused(clones: ClonesConfig, tasks: int) -> list[str]:
    if tasks < 2 or clones.kind == "none":
        return [each.name for each in dataclasses.fields(ClonesConfig)]
    if clones.kind == "rows":
        return ["heads", "claims", "seed", "noise"]
    one_pass = clones.kind not in ROWS_PER_TASK
    unused = ["claims"] if clones.heads == "all" else []
    unused += [] if one_pass or clones.heads == "uncontested" else ["seed"]
    return unused if one_pass else [*unused, "noise"]


CLONES = _Clones()
