"""What every decoder offers, and what decoders share: steps, alternatives, targets, biaffine scores.

A method in steps is a generator. It yields tensors, and is sent their values as arrays; or it yields arrays,
and is sent them as tensors on the device. `in_step` runs the methods of all tasks side by side, so that the
host waits for a GPU once a step, and not for each tensor of each task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import wraps
from types import MethodType
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.tasks.recursions import set_inside
from mtl.tasks.rules import Match, RuleKind
from mtl.tasks.task import UNKNOWN, Labels

T = TypeVar("T")
Steps = Generator[Sequence[Any], Sequence[Any], T]
WordVectors = Float[Tensor, "batch word hidden"]
"""Vectors of the words of a batch."""
WordMask = Bool[Tensor, "batch word"]
"""True at words, false at padding."""


class StructureScore(NamedTuple):
    """How high a decoder scores an annotation, before any normalisation."""

    score: Float[Tensor, " batch"]
    """The sum of the scores of the annotation's items; 0 without items."""
    items: Int[Tensor, " batch"]
    """How many items were summed."""


class Decoder(nn.Module, ABC):
    """From word vectors to scores, and from scores to a loss or to annotations.

    Each decoder has its own type of scores: a tensor or a named tuple of tensors. Scores that are quadratic
    in the sentence's length and needed at gold or predicted places only (relations, constituent labels,
    roles) are computed in `loss` and `decode`, at those places.
    """

    reads_first: bool = False
    """Whether the vector of the first special token ([CLS]) comes before those of the words, as a word."""
    ruled: RuleKind | None = None
    """What rules for its predictions are about (`constrained`); `None`: it takes none."""
    narrow: bool = False
    """Whether weights, and so scores, may be in bfloat16: code that needs more digits casts them itself."""

    def as_read(
        self, words: Float[Tensor, "row _ hidden"], mask: Bool[Tensor, "row word"]
    ) -> tuple[Float[Tensor, "row _ hidden"], Bool[Tensor, "row _"]]:
        """Vectors and mask as this decoder reads them.

        `words` begin with the vector of the first special token; `mask` covers the words after it.
        """
        if self.reads_first:
            return words, functional.pad(mask, (1, 0), value=True)
        return words[:, 1:], mask

    @abstractmethod
    def forward(self, words: WordVectors, mask: WordMask) -> Any:
        """Scores for a batch; `mask` is true at words, false at padding."""

    @abstractmethod
    def loss(self, scores: Any, targets: Any, mask: WordMask) -> Float[Tensor, " batch"]:
        """The loss, summed within each sentence (the caller divides by the batch's `Task.loss_units`).

        It is in nats; that of a regression is the squared error.
        """

    @abstractmethod
    def structure_score(
        self, scores: Any, targets: Any, mask: WordMask, label: int | None = None
    ) -> StructureScore:
        """The score of the targets' annotation of each sentence, or of its items with one label.

        It is a sum of scores as they leave the model, without a partition function. Labels that training
        never saw have no score and are left out.
        """

    @abstractmethod
    def decode(self, scores: Any, mask: WordMask) -> list[Any]:
        """One annotation per sentence."""

    def constrained(self, scores: Any, mask: WordMask, matches: Sequence[Sequence[Match]]) -> Any:
        """The scores as `decode` needs them to keep the rules that match in each sentence."""
        raise TypeError(f"{type(self).__name__} takes no rules")

    def preferred(self, scores: Any, targets: Any) -> Any:
        """Targets with the highest scores, of a decoder whose scores depend on gold targets (`loss_unit` is
        `piece`)."""
        raise TypeError(f"{type(self).__name__} reads no gold: use decode")

    def decode_given(
        self, scores: Any, mask: WordMask, gold: Sequence[Any], decoded: Sequence[Any]
    ) -> list[Any] | None:
        """Annotations when a part of the gold is given (SRL: predicates); `None` if there is no such setting.

        `gold` has the layer of each sentence, `decoded` what `decode` returned.
        """
        return None

    def alternatives(
        self, scores: Any, mask: WordMask, decoded: Sequence[Any], k: int
    ) -> list[tuple[Item, ...]]:
        """The `k` most probable values of each item of each sentence, given what `decode` returned.

        Empty for decoders whose scores are no probabilities.
        """
        return [()] * len(decoded)


def label_losses(
    scores: Float[Tensor, "*place label"], labels: Int[Tensor, "*place"]
) -> Float[Tensor, "*place"]:
    """The cross entropy of the label at each place, in nats; 0 where it is `UNKNOWN`."""
    losses = functional.cross_entropy(
        scores.flatten(0, -2), labels.flatten(), ignore_index=UNKNOWN, reduction="none"
    )
    return losses.view(labels.shape)


def scores_at(
    scores: Float[Tensor, "*place label"], labels: Int[Tensor, "*place"]
) -> Float[Tensor, "*place"]:
    """The score of the label at each place; 0 where it is `UNKNOWN`."""
    found = scores.gather(-1, labels.clamp_min(0)[..., None]).squeeze(-1)
    return found.masked_fill(labels == UNKNOWN, 0.0)


def score_of_labels(
    scores: Float[Tensor, "batch place label"], labels: Int[Tensor, "batch place"], label: int | None
) -> StructureScore:
    """The structure score of one label for each place, or of the places with the given label."""
    chosen = labels != UNKNOWN if label is None else labels == label
    return StructureScore(scores_at(scores, labels).masked_fill(~chosen, 0.0).sum(1), chosen.sum(1))


def sums_by_sentence(
    items: Float[Tensor, " item"], rows: Int[Tensor, " item"], sentences: int
) -> StructureScore:
    """The sum of each sentence's items and their number; `rows` are the items' sentences in the batch."""
    return StructureScore(
        items.new_zeros(sentences).index_add(0, rows, items), torch.bincount(rows, minlength=sentences)
    )


ItemKind = Literal["label", "span", "head", "relation", "constituent", "predicate", "role", "sense"]


class Alternative(NamedTuple):
    """A value that an item may have, and its probability."""

    value: str | int
    """A label; for a `head`, the number of the word, 0 for the root."""
    probability: float


class Item(NamedTuple):
    """Something that a decoder finds a value for, and its most probable values, the best first."""

    kind: ItemKind
    start: int
    end: int
    """The words that it covers, from 0; `end` is exclusive."""
    best: tuple[Alternative, ...]
    predicate: int | None = None
    """For a `role`: the word of its predicate."""
    head: int | None = None
    """For a `relation` in a graph: the number of the arc's head, 0 for the root."""


class TooManyValues(Exception):
    """More values were asked for than `at_most` allows."""


_LEFT: ContextVar[int | None] = ContextVar("values left", default=None)


def at_most(values: int | None) -> AbstractContextManager[None]:
    """In the block, all items together may have this number of values: `TooManyValues` before there are more.

    `None` is no limit.

    K bounds the values of an item, but a sentence may have as many items as pairs of words, with a value for
    each word.
    """
    return set_inside(_LEFT, values)


def count_values(items: int, values: int) -> None:
    """Count these values of each item; raises `TooManyValues` if that is more than `at_most` allows."""
    if (left := _LEFT.get()) is not None:
        if left < items * values:
            raise TooManyValues
        _LEFT.set(left - items * values)


def k_best(
    probabilities: Float[Tensor, "item value"], values: Sequence[str | int], k: int
) -> list[tuple[Alternative, ...]]:
    """The `k` most probable values of each item, without impossible ones."""
    k = min(k, probabilities.shape[1])
    count_values(len(probabilities), k)
    best = probabilities.topk(k, 1)
    return [
        tuple([Alternative(values[index], chance) for chance, index in zip(*row, strict=True) if chance > 0])
        for row in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def label_items(
    probabilities: Float[Tensor, "batch word label"], mask: WordMask, names: Sequence[str], k: int
) -> list[tuple[Item, ...]]:
    """The words of each sentence, each with its `k` most probable labels."""
    best = iter(k_best(probabilities[mask], names, k))
    return [
        tuple([Item("label", word, word + 1, next(best)) for word in range(length)])
        for length in mask.sum(1).tolist()
    ]


def padded(rows: Sequence[Int[np.ndarray, " _"]], width: int) -> Int[Tensor, "batch width"]:
    """An array per sentence as rows of one tensor, with `UNKNOWN` behind them."""
    table = np.full((len(rows), width), UNKNOWN, dtype=np.int64)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(table)


def one_after_another(targets: Sequence[tuple[Int[np.ndarray, " _"], ...]]) -> list[Int[Tensor, " _"]]:
    """The fields of all sentences' targets, each joined without padding.

    Before them comes the row of each item's sentence in the batch.
    """
    rows = np.repeat(np.arange(len(targets)), [len(target[0]) for target in targets])
    columns = [np.concatenate(column) for column in zip(*targets, strict=True)]
    return [torch.from_numpy(column) for column in (rows, *columns)]


class PairScores(NamedTuple):
    """Scores of an arc to every word from every candidate (0 is the root), and what labels are scored from.

    Impossible arcs, such as those from a word to itself, have -inf.
    """

    arcs: Float[Tensor, "batch word candidate"]
    dependents: Float[Tensor, "batch word label_dim"]
    heads: Float[Tensor, "batch candidate label_dim"]


class PairDecoder(Decoder):
    """Deep biaffine attention (Dozat and Manning 2017) over the words and a learned root vector before them.

    One hidden layer makes four vectors of each word: as a dependent and as a head, for arcs and for labels.
    """

    narrow = True

    def __init__(
        self, hidden: int, labels: Labels, arc_dim: int, label_dim: int, dropout: float, *, bias_right: bool
    ) -> None:
        super().__init__()
        self.labels = labels
        self.widths = [arc_dim, arc_dim, label_dim, label_dim]
        self.root = nn.Parameter(torch.randn(hidden) / hidden**0.5)
        self.mlp = Mlp(hidden, sum(self.widths), dropout)
        self.arc = Biaffine(arc_dim, 1, bias_right=bias_right)

    def with_root(self, words: WordVectors) -> Float[Tensor, "batch candidate hidden"]:
        """The vectors of words behind that of the root."""
        batch = words.shape[0]  # and not `len`, which would be a constant in an exported graph
        return torch.cat([self.root.to(words.dtype).expand(batch, 1, -1), words], 1)

    def pair_scores(self, words: WordVectors, possible: Bool[Tensor, "batch _ candidate"]) -> PairScores:
        """The scores of all pairs; `possible` says which arcs may exist, and no word is its own head."""
        width = words.shape[1]
        dependent, head, label_dependent, label_head = self.mlp(self.with_root(words)).split(self.widths, 2)
        arcs = at_least_float32(self.arc(dependent[:, 1:], head).squeeze(3))
        itself = torch.eye(width + 1, dtype=torch.bool, device=words.device)[1:]
        return PairScores(
            arcs.masked_fill(possible <= itself, -torch.inf), label_dependent[:, 1:], label_head
        )


MEAN_FIELD_STEPS = 3
"""Steps of mean field inference, as many as supar takes."""


class ThreeWords(nn.Module):
    """Scores of three words each: sums of products of three vectors' features.

    Each word has a vector for each of three roles. A kind of score is the roles of its three words; it begins
    at 0, so that arcs begin independent of each other.
    """

    def __init__(
        self, hidden: int, dim: int, dropout: float, kinds: tuple[tuple[int, int, int], ...]
    ) -> None:
        super().__init__()
        self.kinds = kinds
        self.mlp = Mlp(hidden, 3 * dim, dropout)
        self.weights = nn.Parameter(torch.zeros(len(kinds), dim))

    def forward(
        self, words: Float[Tensor, "batch candidate hidden"]
    ) -> list[Float[Tensor, "batch candidate candidate candidate"]]:
        roles = self.mlp(words).chunk(3, 2)
        return [
            at_least_float32(
                torch.einsum("bxr,byr,bzr->bxyz", roles[first] * weight, roles[second], roles[third])
            )
            for weight, (first, second, third) in zip(self.weights, self.kinds, strict=True)
        ]


def of_other_words(
    scores: Float[Tensor, "batch candidate candidate candidate"], mask: WordMask
) -> Float[Tensor, "batch word candidate word"]:
    """Scores of a word, a head and a third word; 0 where this is one of the two, or padding."""
    numbers = torch.arange(scores.shape[3], device=scores.device)
    same = (numbers[:, None, None] == numbers) | (numbers[:, None] == numbers)
    there = functional.pad(mask, (1, 0), value=True)
    return scores.masked_fill(same | ~there[:, None, None], 0.0)[:, 1:, :, 1:]


class SharedDropout(nn.Module):
    """Dropout of the same features at all words of a row, which needs few random numbers.

    It draws for each row of vectors without words, [row feature], separately.
    """

    one: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("one", torch.ones(()), persistent=False)

    def forward(self, vectors: Float[Tensor, "*row word feature"]) -> Float[Tensor, "*row word feature"]:
        """The vectors themselves in evaluation."""
        if not self.training or not self.p:
            return vectors
        first_word = vectors[..., :1, :] if vectors.ndim > 2 else vectors
        one = self.one if self.one.dtype == vectors.dtype else vectors.new_ones(())
        return vectors * functional.dropout(one.expand(first_word.shape), self.p)


class Mlp(nn.Module):
    """One hidden layer as in Dozat and Manning (2017): linear, leaky ReLU, `SharedDropout`.

    Several projections of one input are cheapest as one `Mlp` whose output is split.
    """

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.dropout = SharedDropout(dropout)
        nn.init.orthogonal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, vectors: Float[Tensor, "*batch row hidden"]) -> Float[Tensor, "*batch row _"]:
        dropped: Tensor = self.dropout(functional.leaky_relu(self.linear(vectors), 0.1))
        return dropped


class Biaffine(nn.Module):
    """A bilinear form per label: x W y, plus u x if `bias_right`, v y if `bias_left`, b if both.

    Dozat and Manning (2017), where x is the left vector and y the right one; `bias_left` stands for a
    constant 1 at the end of x. Weights start at zero, so that all labels start out equally probable. supar's
    layer computes the same, but only for all pairs, and with the ones copied into its inputs.
    """

    def __init__(self, inputs: int, labels: int, bias_left: bool = True, bias_right: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(labels, inputs, inputs))
        self.of_right = nn.Parameter(torch.zeros(labels, inputs)) if bias_left else None
        self.of_left = nn.Parameter(torch.zeros(labels, inputs)) if bias_right else None
        self.bias = nn.Parameter(torch.zeros(labels)) if bias_left and bias_right else None

    def forward(
        self, left: Float[Tensor, "batch a inputs"], right: Float[Tensor, "batch b inputs"]
    ) -> Float[Tensor, "batch a b label"]:
        """Scores of all pairs."""
        batch, columns, inputs = right.shape
        labels = len(self.weight)
        right = right.flatten(0, 1)  # of two axes, so that a product adds its bias itself
        forms = self._forms(right).view(batch, columns * labels, inputs).mT
        if self.of_right is None:
            scores = left @ forms
        else:
            scores = torch.baddbmm(self._of_right(right).view(batch, 1, columns * labels), left, forms)
        return scores.view(batch, left.shape[1], columns, labels)

    def pairs(
        self, left: Float[Tensor, "pair inputs"], right: Float[Tensor, "pair inputs"]
    ) -> Float[Tensor, "pair label"]:
        """Scores of given pairs only."""
        forms = self._forms(right).view(len(right), *self.weight.shape[:2])
        if self.of_right is None:
            return (forms @ left[:, :, None]).squeeze(2)
        return torch.baddbmm(self._of_right(right)[:, :, None], forms, left[:, :, None]).squeeze(2)

    def _forms(self, right: Float[Tensor, "row inputs"]) -> Float[Tensor, "row _"]:
        # W y + u for all labels in one product; multiplied by x, it is x W y + u x
        of_left = None if self.of_left is None else self.of_left.flatten()
        return functional.linear(right, self.weight.flatten(0, 1), of_left)

    def _of_right(self, right: Float[Tensor, "row inputs"]) -> Float[Tensor, "row label"]:
        assert self.of_right is not None
        return functional.linear(right, self.of_right, self.bias)


class DiagonalBiaffine(nn.Module):
    """A bilinear form per label with a diagonal matrix D: x D y + v x + w y + b, at given pairs.

    Dozat and Manning (2018) suggest it instead of full matrices. Each label has vectors of weights instead of
    a matrix, so it suits hundreds of labels. Weights start at zero, so that all labels start out equally
    probable.
    """

    def __init__(self, inputs: int, labels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * inputs, labels)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(
        self, left: Float[Tensor, "pair inputs"], right: Float[Tensor, "pair inputs"]
    ) -> Float[Tensor, "pair label"]:
        return self.linear(torch.cat([left * right, left, right], 1))


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32 if its type is narrower, else as it is."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def in_steps(method: Callable[..., Steps[T]]) -> Callable[..., T]:
    """A method that is called as any other, and whose steps `steps_of` finds.

    One of its arguments must be a tensor, which is on the device.
    """

    @wraps(method)
    def whole(*arguments: Any) -> T:
        device = next(given.device for given in arguments if isinstance(given, Tensor))
        [result] = in_step([method(*arguments)], device)
        return result

    whole.__dict__["steps"] = method
    return whole


def steps_of(method: Callable[..., T], *arguments: Any) -> Steps[T]:
    """The steps of a bound method with these arguments; one that is not `in_steps` runs after the first."""
    steps = getattr(method, "steps", None)
    if steps is None:
        yield ()
        return method(*arguments)
    assert isinstance(method, MethodType)
    result: T = yield from steps(method.__self__, *arguments)
    return result


def in_step(running: Sequence[Steps[Any]], device: torch.device) -> list[Any]:
    """The results of all; what they yield at the same time is exchanged together."""
    results: list[Any] = [None] * len(running)
    sent: dict[int, Any] = dict.fromkeys(range(len(running)))
    while sent:
        asked = {}
        for number, values in sent.items():
            try:
                asked[number] = running[number].send(values)
            except StopIteration as end:
                results[number] = end.value
        exchanged = iter(_exchanged([value for values in asked.values() for value in values], device))
        sent = {number: [next(exchanged) for _ in values] for number, values in asked.items()}
    return results


def _exchanged(values: Sequence[Any], device: torch.device) -> list[Any]:
    """Arrays of the values of tensors, and tensors on the device with those of arrays."""
    if device.type == "cpu":
        return [
            value.detach().contiguous().numpy() if isinstance(value, Tensor) else torch.from_numpy(value)
            for value in values
        ]
    there = iter(
        copied([torch.from_numpy(value) for value in values if isinstance(value, np.ndarray)], device)
    )
    here = iter(copied([value for value in values if isinstance(value, Tensor)], torch.device("cpu")))
    return [next(here).numpy() if isinstance(value, Tensor) else next(there) for value in values]


def copied(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors that are all on one device, as views of one block on another; they have no gradient.

    To a GPU the block comes from page-locked memory, which torch keeps for later blocks, and the host does
    not wait. From a GPU the host waits once.
    """
    if not tensors:
        return []
    # The widest types first, so that each tensor begins at a multiple of its numbers' size.
    order = sorted(range(len(tensors)), key=lambda place: -tensors[place].element_size())
    # A tensor of one number counts as contiguous whatever its strides, and has no bytes to view with some.
    whole = [tensors[place].detach().contiguous() for place in order]
    parts = [each.as_strided((each.numel(),), (1,)).view(torch.uint8) for each in whole]
    sizes = [len(part) for part in parts]
    block = torch.empty(
        sum(sizes), dtype=torch.uint8, device=parts[0].device, pin_memory=device.type == "cuda"
    )
    torch.cat(parts, out=block)
    moved = block.to(device, non_blocking=device.type != "cpu").split(sizes)
    views = {
        place: part.view(tensors[place].dtype).view(tensors[place].shape)
        for place, part in zip(order, moved, strict=True)
    }
    return [views[place] for place in range(len(tensors))]
