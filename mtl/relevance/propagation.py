"""Worth by relevance: how much of a task's score layer-wise relevance propagation assigns to each head.

Bach et al. 2015; for attention heads, Voita et al. 2019. The rules are in `mtl.relevance.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.errors import InputError
from mtl.heads.attentions import attentions
from mtl.heads.blocks import WithBlock
from mtl.heads.gates import Mask
from mtl.heads.tap import HeadOutputs, eager_attention
from mtl.models.annotator import TaskScores
from mtl.models.batches import Batch, buckets, collate, examples, unlabelled
from mtl.models.joint import JointModel
from mtl.models.passes import frozen, in_evaluation_mode
from mtl.probes.tables import heads_table
from mtl.relevance.rules import RelevanceRules, Rules, relevance_by_rule, single_activations
from mtl.tasks.decoders.decoder import StructureScore
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import UNKNOWN, Task

BATCH_TOKENS = 1024
"""Padded positions in a batch: few, since its whole graph is in memory; few are also faster on a CPU."""
Output = Literal["gold", "predicted"]
"""The annotation whose score is explained: gold, or the model's own. A translation is read under the
reference in both cases: at each position, the score is that of the reference's piece (`gold`) or of the piece
that the model prefers there (`predicted`)."""


class RelevanceItem(NamedTuple):
    """What a score belongs to: a whole task, or one label of it."""

    task: str
    label: str
    """Empty: the whole task."""


@dataclass(frozen=True, slots=True)
class BatchRelevance:
    """The relevance of all heads for one item, in the sentences of a batch that have it."""

    item: RelevanceItem
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


@dataclass(frozen=True, slots=True)
class Contributions:
    """What the tokens that a translation model reads contribute to the score of each piece of a translation.

    The relevance of a token is that of the vector that the first layer reads at its position, which includes
    the position's embedding. With the relevance of biases, it sums to the score.
    """

    sentence: int
    """The number of the sentence among those that are explained."""
    pieces: tuple[int, ...]
    """The pieces whose scores are explained."""
    score: Float[Tensor, " piece"]
    source: Float[Tensor, "piece source"]
    """The relevance of each token of the source."""
    target: Float[Tensor, "piece piece"]
    """The relevance of each token that the decoder reads: the start token, and the reference's pieces, which
    have none for the pieces before them."""


def reads_gold(task: Task, output: Output) -> bool:
    """Whether a score needs gold; that of a text always does, since it is read under the reference."""
    return output == "gold" or writes_text(task)


def writes_text(task: Task) -> bool:
    """Whether a task's model writes a text, piece by piece, from what it has read and written."""
    return task.loss_unit == "piece"


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
        items: Sequence[RelevanceItem],
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

    def contributions(self, batch: int) -> list[Contributions]:
        """What the tokens of source and translation contribute to each piece, for each sentence of a batch.

        A backward pass explains the same position of all sentences. The model must translate.
        """
        [task] = self._tasks
        forward = self._forward(batch, account=False)
        pieces = forward.targets[task].pieces
        chosen = forward.outputs[task].scores.gather(2, pieces.clamp_min(0)[..., None])[..., 0]
        chosen = chosen.masked_fill(pieces == UNKNOWN, 0.0)
        read = [forward.read["encoder"], forward.read["decoder"]]
        found: list[list[Tensor]] = [[], []]
        for position in range(pieces.shape[1]):
            gradients = _gradients(chosen[:, position].sum(), read)
            for parts, vectors, gradient in zip(found, read, gradients, strict=True):
                if gradient is None:
                    gradient = torch.zeros_like(vectors)
                parts.append(torch.where(gradient == 0, 0.0, vectors.detach() * gradient).double().sum(2))
        source, target = (torch.stack(parts, 1).cpu() for parts in found)
        lengths = [forward.batch.subwords.positions(kind).sum(1).tolist() for kind in ("encoder", "decoder")]
        return [
            Contributions(
                self.batches[batch][row],
                tuple(pieces[row, :written].tolist()),
                chosen[row, :written].detach().double().cpu(),
                source[row, :written, :given],
                target[row, :written, :written],
            )
            for row, (given, written) in enumerate(zip(*lengths, strict=True))
        ]

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
            with self._first_inputs() as read, self.model.encoder.tap.observe() as heads, rules:
                outputs = self.model(batch, self.head_scale)
            targets = batch.targets if self.output == "gold" else self._predicted(batch, outputs)
            with rules:
                scores = [
                    (item, self._structure_score(item, outputs[item.task], targets[item.task]))
                    for item in self.items
                    if item.task in outputs
                ]
        return _Forward(batch, rules, heads, outputs, targets, scores, read)

    @contextmanager
    def _first_inputs(self) -> Iterator[dict[str, Tensor]]:
        """Inside the block, what the first layer of encoder and decoder reads, if the model translates."""
        read: dict[str, Tensor] = {}
        if not any(writes_text(task) for task in self._tasks.values()):
            yield read
            return
        found = attentions(self.model.encoder.transformer, self.model.encoder.family)
        first = {each.site.attention: each.layer for each in found if each.site.layer == 0}

        def keeping(kind: str) -> Callable[..., Any]:
            def keep(_: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
                read[kind] = inputs[0] if inputs else named["hidden_states"]
                # A copy, because layers may add to it in place.
                copied = read[kind].clone()
                return ((copied, *inputs[1:]), named) if inputs else ((), {**named, "hidden_states": copied})

            return keep

        with WithBlock().hooks(before={first[kind]: keeping(kind) for kind in ("encoder", "decoder")}):
            yield read

    def _structure_score(self, item: RelevanceItem, output: TaskScores, targets: Any) -> StructureScore:
        label = self.model.labels[item.task].index(item.label) if item.label else None
        return self.model.decoder(item.task).structure_score(output.scores, targets, output.mask, label)

    @torch.no_grad()
    def _predicted(self, batch: Batch, scores: dict[str, TaskScores]) -> dict[str, Any]:
        """The targets of the model's own annotations."""
        targets: dict[str, Any] = {}
        for name in batch.rows:
            task, decoder = self._tasks[name], self.model.decoder(name)
            if reads_gold(task, self.output):  # then scores depend on gold targets
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
    outputs: dict[str, TaskScores]
    targets: Mapping[str, Any]
    """By task, what is explained."""
    scores: list[tuple[RelevanceItem, StructureScore]]
    """By item, the scores of the sentences of its task."""
    read: dict[str, Tensor]
    """By stack, what its first layer reads, if the model translates."""


def layer_shares(
    relevance: Float[Tensor, "sentence layer head"],
) -> Float[Tensor, "sentence layer head"]:
    """Each head's share of its layer: |R| / sum of |R| over the layer's heads; 0 if all R are 0."""
    size = relevance.abs()
    total = size.sum(2, keepdim=True)
    return torch.where(total > 0, size / total, 0.0)


def explained(model: JointModel, sentences: Sequence[Sentence], mask: Mask, output: Output) -> list[Sentence]:
    """The sentences that some task of the mask scores: those annotated for it or, if no gold is needed, those
    that it can annotate."""
    tasks = [model.tasks[name] for name in mask.tasks]
    return [
        sentence
        for sentence in sentences
        if any(
            task.annotated(sentence) if reads_gold(task, output) else task.fits(sentence) for task in tasks
        )
    ]


def head_relevance(
    model: JointModel,
    sentences: Sequence[Sentence],
    mask: Mask,
    *,
    labels: Sequence[str] = (),
    rules: Rules = "paper",
    output: Output = "gold",
    advance: Callable[[int], None] = lambda sentences: None,
) -> tuple[pl.DataFrame, Conservation]:
    """The table of relevance under one mask, and the conservation in the batch of the shortest sentences.

    The measures are `relevance`, the mean over sentences of `layer_shares`, which sum to 1 in each layer, and
    `relevance_signed`, the mean of the relevance itself in units of the score. Besides the whole task, those
    of `labels` that it has get rows of their own. Sentences without a score are left out. `advance` receives
    the number of sentences of each finished batch.
    """
    items = [
        RelevanceItem(task, label)
        for task in mask.tasks
        for label in ("", *(label for label in labels if label in model.labels[task].names))
    ]
    chosen = explained(model, sentences, mask, output)
    explainer = Explainer(model, chosen, items, mask.head_scale, rules, output)
    shape = (len(model.encoder.tap.sites), model.encoder.tap.heads)
    sums = {item: _Sums(np.zeros(shape), np.zeros(shape), 0) for item in items}
    for batch, numbers in enumerate(explainer.batches):
        for result in explainer.relevance(batch):
            sums[result.item] = sums[result.item].plus(result.heads)
        advance(len(numbers))
    tables = [
        heads_table.rows(
            measure,
            item.task,
            [item.label],
            summed[None] / max(total.sentences, 1),
            np.array([total.sentences]),
            choice,
        )
        for item, total in sums.items()
        for measure, summed, choice in (
            ("relevance", total.shares, f"{rules}, {output}, absolute"),
            ("relevance_signed", total.signed, f"{rules}, {output}"),
        )
    ]
    heads = heads_table.at_sites(pl.concat(tables), model.encoder.tap.sites)
    return heads, explainer.conservation(len(explainer.batches) - 1)


class _Sums(NamedTuple):
    """Sums over sentences."""

    shares: Float[np.ndarray, "layer head"]
    signed: Float[np.ndarray, "layer head"]
    sentences: int

    def plus(self, relevance: Float[Tensor, "sentence layer head"]) -> _Sums:
        relevance = relevance.double()
        return _Sums(
            self.shares + layer_shares(relevance).sum(0).cpu().numpy(),
            self.signed + relevance.sum(0).cpu().numpy(),
            self.sentences + len(relevance),
        )
