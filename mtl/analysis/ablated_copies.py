"""Decode a batch under several ablations in one pass: copies of rows, each with its scale."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.heads.replay import LayerReplay
from mtl.heads.tap import HeadTap
from mtl.models.batches import Batch
from mtl.models.joint import JointModel
from mtl.tasks.decoders.steps import copied, in_step, steps_of
from mtl.tasks.sentence import Sentence

Scale = Float[Tensor, "site head"]
Ablations = Float[Tensor, "copy site head"]
Fill = Float[Tensor, "site head head_dim"]
CountsByTask = dict[str, np.ndarray]
"""By task, the metric's counts per sentence, of shape (sentence, count)."""


class AblatedCopies(ABC):
    """Decodes a batch without ablation, and then under ablations that reuse what that pass computed."""

    tokens: int
    """Padded subwords in a pass."""

    @abstractmethod
    def start(self, sites: Iterable[int]) -> int:
        """The first site that a pass computes anew if heads of these sites are closed."""

    @abstractmethod
    def unchanged(self, batch: Batch, scale: Scale | None) -> CountsByTask:
        """The counts without ablation, under the mask `scale` (`None`: no mask)."""

    @abstractmethod
    def ablated(
        self, batch: Batch, scale: Scale | None, ablations: Ablations, fill: Fill | None
    ) -> list[CountsByTask]:
        """The counts under each ablation, for the batch and mask of the last call of `unchanged`.

        `ablations` are on the CPU. They are 0 at closed heads, whose output is replaced by `fill` (`None`:
        zeros). The pass starts at the first `start` of them.
        """


class AnnotatedCopies(AblatedCopies):
    """Annotations: nothing below the first closed head is computed again."""

    def __init__(self, model: JointModel) -> None:
        encoder = model.encoder
        self.model, self.encoder, self.tokens = model, encoder, model.evaluation_tokens()
        self._replay = LayerReplay(encoder.transformer, encoder.family)
        self._metrics = {name: task.metric() for name, task in model.tasks.items()}
        self._unchanged: dict[str, tuple[Sequence[Any], np.ndarray]] = {}
        self._compared = False

    def start(self, sites: Iterable[int]) -> int:
        """The first site with a closed head; everything before it is as without ablation."""
        return self._replay.first(sites)

    def unchanged(self, batch: Batch, scale: Scale | None) -> CountsByTask:
        """See `AblatedCopies`; also records the outputs of layers and heads, and the annotations."""
        self._unchanged, self._compared = {}, False
        with self._replay.record():
            [counts] = self._counts(batch, 1, scale, None, None)
        return counts

    def ablated(
        self, batch: Batch, scale: Scale | None, ablations: Ablations, fill: Fill | None
    ) -> list[CountsByTask]:
        """See `AblatedCopies`."""
        start = self.start(closed_sites(ablations))
        [there] = copied([ablations], batch.mask.device)
        # All passes take rows of one batch: the first is compared with the recorded one, others would wait.
        with self._replay.start_at(start, len(ablations), compare=not self._compared):
            self._compared = True
            return self._counts(batch, len(ablations), scale, there, fill)

    def _counts(
        self, batch: Batch, copies: int, scale: Scale | None, ablations: Ablations | None, fill: Fill | None
    ) -> list[CountsByTask]:
        model, sentences, subwords = self.model, len(batch.sentences), batch.subwords
        if copies > 1:
            subwords = subwords.take(torch.arange(sentences, device=batch.mask.device).repeat(copies))
        of_row = None if ablations is None else ablations.repeat_interleave(sentences, 0)[subwords.sentence]
        with under_scales(self.encoder.tap, scale, of_row, fill):
            first = model.reads_first(batch.rows)
            words = self.encoder(subwords, first=first)
        words = words.view(copies, sentences, *words.shape[1:])
        decoding = []
        for name, row in batch.rows.items():
            decoder = model.decoder(name)
            vectors = model.encoder.of_task(name, words[:, row].flatten(0, 1))
            mask = batch.mask[row].repeat(copies, 1)
            if first:
                vectors, mask = decoder.as_read(vectors, mask)
            decoding.append(steps_of(decoder.decode, decoder(vectors, mask), mask))
        results: list[CountsByTask] = [{} for _ in range(copies)]
        for name, decoded in zip(batch.rows, in_step(decoding, batch.mask.device), strict=True):
            gold = batch.of_task(name)
            for copy, counts in enumerate(results):
                of_copy = decoded[copy * len(gold) : (copy + 1) * len(gold)]
                counts[name] = self._counted(name, of_copy, gold)
        return results

    def _counted(self, name: str, decoded: Sequence[Any], gold: Sequence[Sentence]) -> np.ndarray:
        """The counts of a task's sentences; only annotations that the ablation changed are counted anew."""
        metric = self._metrics[name]
        if name not in self._unchanged:
            self._unchanged[name] = decoded, metric.sentence_counts(decoded, gold)
        before, known = self._unchanged[name]
        changed = [place for place, annotation in enumerate(decoded) if annotation != before[place]]
        counts = known.copy()
        counts[changed] = metric.sentence_counts(
            [decoded[place] for place in changed], [gold[place] for place in changed]
        )
        return counts


def closed_sites(ablations: Float[Tensor, "*copy site head"]) -> list[int]:
    """The sites with a head that some ablation closes."""
    return (ablations != 1).any(-1).reshape(-1, ablations.shape[-2]).any(0).nonzero().flatten().tolist()


@contextmanager
def under_scales(
    tap: HeadTap,
    scale: Scale | None,
    ablations: Float[Tensor, "row site head"] | None,
    fill: Fill | None,
    neighbours: int = 1,
) -> Iterator[None]:
    """Inside the block, heads are under the mask `scale`, and each row is under its own ablation.

    The output of heads that an ablation closes is replaced by `fill` (`None`: zeros). In a beam search,
    `neighbours` adjacent rows share an ablation.
    """
    with ExitStack() as scaled:
        if scale is not None:
            scaled.enter_context(tap.scale(scale))
        if ablations is not None:
            scaled.enter_context(tap.scale(ablations, fill, neighbours))
        yield
