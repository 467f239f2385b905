"""What the pruning curves of a run start from: its model, masks and sentences, and a key of all these."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from mtl.analysis.curves.head_order import Head, scale_of
from mtl.analysis.trained import TrainedRun, model_fingerprint
from mtl.corpora.sources import corpus_fingerprint
from mtl.models.head_scales import open_heads


@dataclass
class Start:
    """What all curves of a run start from."""

    scoring: TrainedRun
    base: dict[str, Float[Tensor, "site head"]]
    """By task, the head scale before any head is closed."""
    model_key: str
    """The fingerprint of the model's files."""

    @classmethod
    def of(cls, scoring: TrainedRun, masks: bool = True) -> Start:
        """The start of a run's curves; `masks`: whether the run's masks are applied."""
        base = {name: scoring.model.scales.of_task(name, gated=masks) for name in scoring.tasks}
        return cls(scoring, base, model_fingerprint(scoring.run))

    @property
    def pools(self) -> dict[str, list[Head]]:
        """By task, the heads that are open at the start."""
        return {name: open_heads(scale) for name, scale in self.base.items()}

    def key(self, task: str, *made_of: object) -> str:
        """A hash of the model, the task's mask, its scored sentences and `made_of`, followed by settings.

        The settings are those by which curves of several runs are compared (`curve_table.settings_in`).
        """
        scored = sentences_key(self.scoring, task)
        everything = [self.model_key, self.base[task].tolist(), scored, *made_of]
        made = hashlib.sha256(json.dumps(everything).encode()).hexdigest()
        corpus, _, sentences = scored
        masked = bool((self.base[task] < 1).any())
        return f"{made} sentences={sentences} of corpus {str(corpus)[:8]}, masks={str(masked).lower()}"

    def masked(self, task: str, kept: Sequence[Head]) -> Float[Tensor, "site head"]:
        """The task's head scale with all heads closed except those in `kept`."""
        return scale_of(self.base[task], kept)


def sentences_key(trained: TrainedRun, task: str) -> list[object]:
    """Values that identify the sentences that a task is measured on."""
    files = corpus_fingerprint(trained.source, {task: trained.tasks[task]}, (trained.split,))
    return [files, trained.split, len(trained.corpus)]
