"""Worth by relevance: how much of a task's score layer-wise relevance propagation assigns to each head.

Bach et al. 2015; for attention heads, Voita et al. 2019. The rules are in `mtl.analysis.relevance.rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mtl.analysis.relevance.rules import RelevanceRules, Rules, relevance_by_rule, single_activations
from mtl.errors import InputError
from mtl.heads.tap import HeadOutputs, eager_attention
from mtl.models.annotator import TaskScores
from mtl.models.batches import Batch, collate, examples, unlabelled
from mtl.models.buckets import buckets
from mtl.models.joint import JointModel
from mtl.models.modes import frozen, in_evaluation_mode
from mtl.tasks.decoders.decoder import StructureScore
from mtl.tasks.decoders.translator import Translator
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task

BATCH_TOKENS = 1024
"""Padded positions in a batch: few, since its whole graph is in memory; few are also faster on a CPU."""
Output = Literal["gold", "predicted"]
"""The annotation whose score is explained: gold, or the model's own. A translation is read under the
reference in both cases: at each position, the score is that of the reference's piece (`gold`) or of the piece
that the model prefers there (`predicted`)."""


class Item(NamedTuple):
    """What a score belongs to: a whole task, or one label of it."""

    task: str
    label: str
    """Empty: the whole task."""


@dataclass(frozen=True, slots=True)
class BatchRelevance:
    """The relevance of all heads for one item, in the sentences of a batch that have it."""

    item: Item
    heads: Float[Tensor, "sentence layer head"]
    """Summed over positions and dimensions, in units of the score; negative if a head lowers it. Layers are
    the sites of the model."""
    score: Float[Tensor, " sentence"]
    """The structure score of each sentence."""


@dataclass(frozen=True, slots=True)
class Conservation:
    """The score of a batch, and where its relevance ends."""

    score: float
    ended: dict[str, float]
    """The relevance that ends under each rule: EMBEDDING, BIAS, ATTENTION. It must sum to the score."""

    @property
    def error(self) -> float:
        """The difference between their sum and the score, relative to the score."""
        return abs(sum(self.ended.values()) - self.score) / max(abs(self.score), 1e-30)


def reads_gold(task: Task, output: Output) -> bool:
    """Whether a score needs gold; that of a translation always does, since it is read under the reference."""
    return output == "gold" or task.loss_unit == "piece"


class Explainer:
    """Explains the scores of a trained model on sentences, in batches of nearly equal length.

    A structure score is a sum. So one backward pass explains all words, spans or arcs of a sentence, and all
    sentences of a batch, since these do not affect each other.

    Args:
        model: a joint model; it is not changed.
        sentences: each is explained in the tasks that it is annotated for or, for scores that need no gold
            (`reads_gold`), in the tasks that it fits.
        items: what to explain.
        head_scale: the mask over the heads; `None`: the model's own gates.
        rules: the rule for softmax.
        output: the annotation whose score is explained.
        batch_tokens: maximum number of padded positions per batch.

    Raises:
        InputError: `output="predicted"` for a model with a task that annotates nothing.
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
        bare = [name for name, task in model.tasks.items() if not task.layers]
        if output == "predicted" and bare:
            raise InputError(f"{bare[0]} annotates no layer, so that nothing predicted can be explained")
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
                    # A gradient of 0 is no relevance, also where padding is NaN or infinite.
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
        """A batch's forward pass and scores under the rules; decoding is not under them."""
        share = [self._corpus[index] for index in self.batches[number]]
        tokenizer = self.model.encoder.tokenizer
        made = (
            collate(share, tokenizer, self._on_gold)
            if self._on_gold
            else unlabelled(share, tokenizer, self._tasks)
        )
        batch = made.to(self.device)
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

    def _structure_score(self, item: Item, output: TaskScores, targets: Any) -> StructureScore:
        label = self.model.labels[item.task].index(item.label) if item.label else None
        return self.model.decoder(item.task).structure_score(output.scores, targets, output.mask, label)

    @torch.no_grad()
    def _predicted(self, batch: Batch, scores: dict[str, TaskScores]) -> dict[str, Any]:
        """The targets of the model's own annotations."""
        targets: dict[str, Any] = {}
        for name in batch.rows:
            task, decoder = self._tasks[name], self.model.decoder(name)
            if isinstance(decoder, Translator):
                targets[name] = decoder.preferred(scores[name].scores, batch.targets[name])
                continue
            decoded = decoder.decode(*scores[name])
            annotated = map(task.annotate, batch.of_task(name), decoded)
            made = [task.targets(sentence, self.model.labels[name]) for sentence in annotated]
            target = task.collate(made, batch.mask.shape[1])
            targets[name] = type(target)(*(column.to(self.device) for column in target))
        return targets


def _gradients(score: Float[Tensor, ""], heads: Sequence[Tensor]) -> Sequence[Tensor | None]:
    # If all heads have been cut out, there is nothing to differentiate by.
    return torch.autograd.grad(score, heads, retain_graph=True, allow_unused=True) if heads else ()


class _Forward(NamedTuple):
    """A forward pass under the rules."""

    batch: Batch
    rules: RelevanceRules
    heads: HeadOutputs
    """By site, the heads' outputs."""
    scores: list[tuple[Item, StructureScore]]
    """By item, the scores of the sentences of its task."""
