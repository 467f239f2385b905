"""How much of a task's score each head is responsible for: layer-wise relevance propagation.

Bach et al. 2015; of attention heads Voita et al. 2019. The rules are in `relevance_rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.analysis.relevance_rules import (
    RelevanceRules,
    Rules,
    relevance_by_rule,
    single_activations,
)
from mtl.errors import InputError
from mtl.heads.tap import eager_attention
from mtl.models.batches import Batch, Example, buckets, collate, examples
from mtl.models.joint import JointModel, TaskScores
from mtl.models.modes import frozen, in_evaluation_mode
from tasks.decoders.decoder import StructureScore
from tasks.decoders.translator import Translator
from tasks.sentence import Sentence
from tasks.task import Task

BATCH_TOKENS = 1024
"""Padded positions in a batch: few, since a batch's whole graph is held, and faster so on a CPU."""
Output = Literal["gold", "predicted"]
"""Whose score is explained: the gold annotation's, or that of the model's own. Both are scores under the
reference in translating: at every position of its own piece, or of the piece that the model prefers there."""


class Item(NamedTuple):
    """What a score belongs to: a whole task, or one label of it."""

    task: str
    label: str
    """Empty: the whole task."""


@dataclass(frozen=True, slots=True)
class BatchRelevance:
    """The relevance of all heads for one item in the sentences of a batch that have it."""

    item: Item
    heads: Float[Tensor, "sentence layer head"]
    """Summed over positions and neurons, in units of the score; negative where a head lowers it."""
    score: Float[Tensor, " sentence"]


@dataclass(frozen=True, slots=True)
class Conservation:
    """Where the relevance of a batch ends, beside the score that it must sum to."""

    score: float
    ended: dict[str, float]
    """By rule: EMBEDDING, BIAS, ATTENTION."""

    @property
    def error(self) -> float:
        """What is lost or made up, relative to the score."""
        return abs(sum(self.ended.values()) - self.score) / max(abs(self.score), 1e-30)


def reads_gold(task: Task, output: Output) -> bool:
    """Whether a score needs the gold annotation: a translation is scored under the reference's pieces."""
    return output == "gold" or task.unit == "piece"


class Explainer:
    """Explains the scores of a trained model on sentences, in batches of nearly equal length.

    The score is linear in what it sums, so that one backward pass explains all words, spans or arcs of a
    sentence at once, and a batch's sentences do not touch each other.

    Args:
        model: a joint model, which is left as it was.
        sentences: of the gold annotation, each is explained in those tasks that it is annotated in.
        items: what to explain.
        head_scale: the mask over the heads, if there is one.
        rules: the rule for softmax.
        output: whose score is explained.
    """

    def __init__(
        self,
        model: JointModel,
        sentences: Sequence[Sentence],
        items: Sequence[Item],
        head_scale: Float[Tensor, "layer head"] | None = None,
        rules: Rules = "paper",
        output: Output = "gold",
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        self.model, self.items, self.rules, self.output = model, tuple(items), rules, output
        random = [name for name, task in model.tasks.items() if not task.layers]
        if output == "predicted" and random:
            raise InputError(f"{random[0]} annotates no layer, so that nothing predicted can be explained")
        self.device = next(model.parameters()).device
        self.head_scale = None if head_scale is None else head_scale.to(self.device)
        self._shape = (len(model.encoder.tap.sites), model.encoder.tap.heads)
        self._tasks = {item.task: model.tasks[item.task] for item in items}
        self._on_gold = {name: task for name, task in self._tasks.items() if reads_gold(task, output)}
        self._corpus = examples(sentences, model.encoder.tokenizer, self._on_gold, model.labels)
        self.batches = buckets([example.length for example in self._corpus], batch_tokens, None, None)
        """The numbers of the sentences in each batch; the longest sentences come first."""

    def relevance(self, batch: int) -> list[BatchRelevance]:
        """The heads' relevance for every item that occurs in a batch."""
        forward = self._forward(batch, account=False)
        carriers = [heads for heads in forward.heads if heads.requires_grad]
        results = []
        for item, (score, items) in forward.scores:
            gradients = iter(_gradients(score.sum(), carriers))
            relevance = score.new_zeros(len(forward.batch.sentences), *self._shape)
            for site, heads in enumerate(forward.heads):
                gradient = next(gradients) if heads.requires_grad else None
                if gradient is not None:
                    # A gradient of 0 is no relevance, also where padding holds no number.
                    parts = torch.where(gradient == 0, 0.0, heads.detach() * gradient).sum((1, 3))
                    relevance[:, site].index_add_(0, forward.batch.subwords.sentence, parts.to(score.dtype))
            there = items > 0
            rows = forward.batch.rows[item.task][there]
            results.append(BatchRelevance(item, relevance[rows], score.detach()[there]))
        return results

    def conservation(self, batch: int) -> Conservation:
        """Where the relevance of a batch's scores ends: at embeddings, biases and constants of a softmax."""
        forward = self._forward(batch, account=True)
        total = torch.stack([score.sum() for _, (score, _) in forward.scores]).sum()
        return Conservation(float(total.detach()), relevance_by_rule(forward.rules.sources, total))

    def _forward(self, number: int, account: bool) -> _Forward:
        """A batch's scores; only the forward pass, and not decoding, is under the rules."""
        share = [self._corpus[index] for index in self.batches[number]]
        batch = collate(share, self.model.encoder.tokenizer, self._on_gold)
        if not self._on_gold:
            batch = replace(batch, rows=self._fitting(share))
        batch = batch.to(self.device)
        transformer = self.model.encoder.transformer
        rules = RelevanceRules(self.rules, str(transformer.config.model_type), account)
        with (
            in_evaluation_mode(self.model),
            frozen(self.model),
            single_activations(transformer),
            eager_attention(transformer),
        ):
            with self.model.encoder.tap.observe() as heads, rules:
                outputs = self.model(batch, self.head_scale)
            targets = batch.targets if self.output == "gold" else self._predicted(batch, outputs)
            with rules:
                scores = [
                    (item, self._structure_score(item, outputs[item.task], targets[item.task]))
                    for item in self.items
                    if item.task in outputs
                ]
        return _Forward(batch, rules, heads, scores)

    def _fitting(self, share: Sequence[Example]) -> dict[str, Int[Tensor, " _"]]:
        """By task which sentences it can annotate: some tasks are for one sentence, others for pairs."""
        fitting = {
            name: [row for row, example in enumerate(share) if task.fits(example.sentence)]
            for name, task in self._tasks.items()
        }
        return {name: torch.tensor(rows) for name, rows in fitting.items() if rows}

    def _structure_score(self, item: Item, output: TaskScores, targets: Any) -> StructureScore:
        label = self.model.labels[item.task].index(item.label) if item.label else None
        return self.model.decoder(item.task).structure_score(output.scores, targets, output.mask, label)

    @torch.no_grad()
    def _predicted(self, batch: Batch, scores: dict[str, TaskScores]) -> dict[str, Any]:
        """The targets of what the model itself annotates."""
        targets: dict[str, Any] = {}
        for name, rows in batch.rows.items():
            task, decoder = self._tasks[name], self.model.decoder(name)
            if isinstance(decoder, Translator):
                targets[name] = decoder.preferred(scores[name].scores, batch.targets[name])
                continue
            decoded = decoder.decode(*scores[name])
            sentences = [batch.sentences[row] for row in rows.tolist()]
            annotated = map(task.annotate, sentences, decoded)
            made = [task.targets(sentence, self.model.labels[name]) for sentence in annotated]
            target = task.collate(made, batch.mask.shape[1])
            targets[name] = type(target)(*(column.to(self.device) for column in target))
        return targets


def _gradients(score: Float[Tensor, ""], heads: Sequence[Tensor]) -> Sequence[Tensor | None]:
    # Where all heads have been cut out there is nothing to derive by.
    return torch.autograd.grad(score, heads, retain_graph=True, allow_unused=True) if heads else ()


class _Forward(NamedTuple):
    """A forward pass under the rules."""

    batch: Batch
    rules: RelevanceRules
    heads: list[Float[Tensor, "row subword head head_dim"]]
    """Per layer what the heads hand on."""
    scores: list[tuple[Item, StructureScore]]
    """Per item the scores of the sentences of its task."""
