"""Importance and ablation of heads in any `transformers` model of the families table, from Python.

A score may do anything with the model. What is computed below a closed head is reused only if a score runs
the model once, with inputs that are the same for every ablation; both are checked. Otherwise the score is
computed as a whole under each ablation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mtl.analysis.ablation import KINDS, Ablation, Kind, ablations
from mtl.analysis.importance import PER, GateGradients, Per, gated, midpoints
from mtl.errors import InputError
from mtl.heads.arguments import (
    batches_of,
    function_of,
    is_dense,
    is_masked,
    one_of,
    seed_of,
    tensor_of,
    whole_number,
    yes_or_no,
)
from mtl.heads.family_table import Family
from mtl.heads.given_models import model_device, require_gradients
from mtl.heads.replay import LayerReplay, OtherPassError
from mtl.heads.tap import HeadOutputs, HeadTap, tapped
from mtl.models.passes import frozen, in_evaluation_mode
from mtl.probes.sites import KEYS
from mtl.probes.statistics.compared_runs import DRAWS, score_losses
from mtl.tasks.in_words import counted


def head_importance(
    model: Model,
    batches: Iterable[Inputs],
    loss: Callable[[Model, Inputs], Float[Tensor, " row"]],
    *,
    per: Per = "example",
    normalise: bool = False,
    steps: int = 0,
    family: Family | str | None = None,
) -> pl.DataFrame:
    """What each head of a `transformers` model is worth, by gradients of a loss.

    Any family in the table of families works. The loss may run the model in any way: once, several times, row
    by row, or with several rows for a row of the batch. Passes are added up. A head that no pass reaches, or
    that the loss does not use, is worth 0. A loss may mix rows (in-batch negatives): each row counts by the
    derivative of its own loss.

    Args:
        model: The model, with or without a head on top, or a module around it (compiled, with adapters); it
            is not changed.
        batches: What `loss` takes, for instance a `DataLoader`; read once.
        loss: Returns the loss of each row of a batch (`reduction="none"`), computed by `model`.
        per: Where absolute values are taken: `example` (the paper) or `token` (its code for BERT).
        normalise: Divide a layer's importances by their Euclidean norm.
        steps: Steps of integrated gradients; 0: none.
        family: The model's row, if the table has none (`Family`), or the name of a row that fits.

    Returns:
        One row per measure and head that is there, with the columns of heads.parquet; values are in units of
        the loss (`fisher`: squared), counts are rows of batches.

    Raises:
        InputError: the loss is not a differentiable vector with a finite entry per row, there are no batches,
            the model is not in the table or has no gradients (quantised), or another argument is wrong.
    """
    transformer, _, tap = tapped(model, "head_importance", family)
    require_gradients(transformer, "head_importance")
    function_of(loss, "loss")
    one_of(per, "per", PER)
    yes_or_no(normalise, "normalise")
    steps = whole_number(steps, "steps", 0)
    measured = GateGradients(tap.sites, tap.heads, per)

    def under(gate: float, batch: Inputs) -> tuple[Tensor, HeadOutputs]:
        with gated(tap, gate) as outputs:
            losses = vector(loss(model, given_again(batch)), batch, "loss")
        require_passes(any(outputs.passes), "loss")
        if losses.requires_grad:
            return losses, outputs
        # A loss on embeddings has no path to any head, so it rightly has no gradient.
        parameters = list(transformer.parameters())
        for parameter in parameters:
            parameter.requires_grad_(True)
        try:
            again = vector(loss(model, given_again(batch)), batch, "loss")
        finally:
            for parameter in parameters:
                parameter.requires_grad_(False)
        if not again.requires_grad:
            raise InputError(
                "the loss is not differentiable: it must return one value for each row (reduction='none') "
                "that the model computes, not under no_grad, detached, or generated"
            )
        return losses.detach().requires_grad_(), HeadOutputs(len(tap.sites))

    alike = False
    with in_evaluation_mode(model), frozen(model), torch.enable_grad():
        for batch in batches_of(batches):
            if has_no_rows(batch):
                continue
            losses, outputs = under(1.0, batch)
            gradients, alike = head_gradients(losses, outputs, tap.heads, alike=alike)
            _require_finite_gradients(gradients.example)
            measured.add_examples(*gradients)
            for gate, weight in midpoints(steps):
                losses, outputs = under(gate, batch)
                gradient = summed_gradients(losses, outputs, tap.heads)
                _require_finite_gradients(gradient)
                measured.add_integrated(gradient / gate, weight)
    if not measured.examples:
        raise InputError("importance needs at least one batch with rows")
    return _of_heads_there(measured.table(normalise=normalise), tap)


def _of_heads_there(table: pl.DataFrame, tap: HeadTap) -> pl.DataFrame:
    """The table without heads that were cut out, and without numbers of heads that only other sites have."""
    there = [(*site, head) for site, heads in zip(tap.sites, tap.remaining, strict=True) for head in heads]
    return table.join(
        pl.DataFrame(there, {key: table.schema[key] for key in KEYS}, orient="row"),
        on=KEYS, how="semi", maintain_order="left",
    )  # fmt: skip


def ablate_heads(
    model: Model,
    batches: Iterable[Inputs],
    score: Callable[[Model, Inputs], Float[Tensor, " row"]],
    *,
    kind: Kind = "head",
    copies: int = 1,
    draws: int = DRAWS,
    seed: int = 0,
    family: Family | str | None = None,
) -> pl.DataFrame:
    """How much the mean score of a `transformers` model loses without a head.

    Any family in the table of families works. The score may run the model in any way: once, several times,
    row by row, or in a search. If it runs the model once, layers below the closed head are not computed
    again.

    Args:
        model: The model, with or without a head on top, or a module around it (compiled, with adapters); it
            is not changed.
        batches: What `score` takes, for instance a `DataLoader`; read once.
        score: Returns the score of each row of a batch, computed by `model`: 1 if it is right, or minus a
            loss. Equal calls must return equal scores (checked once per batch).
        kind: Close one head (`head`), all heads of a layer except one (`all_but_one`), or all (`layer`).
        copies: The number of ablations in one pass through the model. More than one saves time for small
            batches on an accelerator. `score` is then called with several copies of the rows; if that changes
            its values, it is called with one copy at a time.
        draws: Resamples for intervals and p (`score_losses`).
        seed: Random seed for the resamples.
        family: The model's row, if the table has none (`Family`), or the name of a row that fits.

    Returns:
        One row per ablation: attention, layer, head (null for layers), loss, low, high, p, q; the loss and
        its interval (low, high) are in units of the score. Rows count as independent. The interval is null
        with fewer than 10 rows, and if no row's score changes.

    Raises:
        InputError: the kind does not exist, the score is not a vector with a finite entry per row or differs
            between equal calls, there are no batches, the model is not in the table or has no weights, or
            another argument is wrong.
    """
    transformer, row, tap = tapped(model, "ablate_heads", family)
    function_of(score, "score")
    chosen = ablations(one_of(kind, "kind", KINDS), tap.remaining)
    draws, seed = whole_number(draws, "draws", 1), seed_of(seed)
    scores = _Scores(model, tap, LayerReplay(transformer, row), score)
    copies = whole_number(copies, "copies", 1)
    with torch.no_grad(), in_evaluation_mode(model):
        parts = [
            scores.of_batch(batch, chosen, copies) for batch in batches_of(batches) if not has_no_rows(batch)
        ]
    if not parts:
        raise InputError("ablation needs at least one batch with rows")
    by_variant = np.concatenate(parts, 1)
    counts = np.stack([by_variant, np.ones_like(by_variant)], -1)
    sites = [site for ablation in chosen for site in ablation.sites]
    lost = score_losses(counts[0], counts[1:], _mean, draws=draws, seed=seed)
    return pl.DataFrame(
        {
            "attention": [tap.sites[site].attention for site in sites],
            "layer": [tap.sites[site].layer for site in sites],
            "head": [ablation.head for ablation in chosen],
            "loss": lost.loss, "low": lost.low, "high": lost.high, "p": lost.p, "q": lost.q,
        }
    ).fill_nan(None)  # fmt: skip


class _Scores:
    """The scores of batches under ablations; they are replayed where that is exact."""

    def __init__(
        self, model: nn.Module, tap: HeadTap, replay: LayerReplay, score: Callable[[Any, Any], Any]
    ) -> None:
        self.model, self.tap, self.replay, self.score = model, tap, replay, score
        self.device = model_device(tap.model)

    def of_batch(
        self, batch: Any, chosen: Sequence[Ablation], copies: int
    ) -> Float[np.ndarray, "variant row"]:
        """The scores of the rows without ablation, then under each ablation."""
        with self.replay.record():
            unchanged = self._vector(batch)
        require_passes(self.replay.ran, "score")
        self._replaying = self.replay.repeatable and self._is_replayed(batch, unchanged)
        if not self._replaying:
            self._require_repeatable(batch, unchanged)
        self._copying: bool | None = None if copies > 1 else False
        variants, kind = [unchanged], ""
        for [site], group in groupby(chosen, key=lambda ablation: ablation.sites):
            together = list(group)
            if self._copying and self.tap.sites[site].attention != kind:
                # Copies that are independent in one kind may meet in another: an image meets all captions.
                self._copying = None
            kind = self.tap.sites[site].attention
            for share in np.array_split(np.arange(len(together)), -(-len(together) // copies)):
                variants += self._share(batch, [together[index] for index in share], unchanged)
        return torch.stack(variants).numpy()

    def _vector(self, batch: Any) -> Float[Tensor, " row"]:
        value = vector(self.score(self.model, given_again(batch)), batch, "score")
        return value.detach().double().cpu()

    def _require_repeatable(self, batch: Any, unchanged: Float[Tensor, " row"]) -> None:
        """Raise `InputError` if a second call gives another score, or computes less."""
        calls = self.replay.calls
        with self.replay.record():
            again = self._vector(batch)
        if self.replay.calls != calls:
            raise InputError(
                f"two calls of the score with one batch call {calls} and {self.replay.calls} times the heads "
                "of a layer: a score must compute all that it needs in every call, and keep nothing"
            )
        if _equal([again], [unchanged]):
            return
        means = " and ".join(f"{score.mean().item():g}" for score in (unchanged, again))
        raise InputError(
            f"two calls of the score with one batch give {means} on average: a score must neither draw at "
            "random nor depend on earlier calls"
        )

    def _is_replayed(self, batch: Any, unchanged: Float[Tensor, " row"]) -> bool:
        """Whether a pass that computes as little as possible gives the score that was recorded."""
        try:
            with self.replay.start_at(self.replay.last):
                return _equal([self._vector(batch)], [unchanged])
        except Exception:  # whatever the caller's function does with what a replay lacks
            return False

    def _share(
        self, batch: Any, share: Sequence[Ablation], unchanged: Float[Tensor, " row"]
    ) -> list[Float[Tensor, " row"]]:
        """The scores under ablations of one site."""
        if len(share) > 1 and self._replaying and self._copying is not False:
            several = self._side_by_side(batch, share, len(unchanged))
            if self._copying and several:
                return several
            # Copies may influence each other's values, or their rows may be in another order.
            alone = [self._one(batch, ablation) for ablation in share]
            same = _equal(several, alone)
            # Where the ablations change nothing, equal values say nothing about how the score treats copies.
            self._copying = None if same and _equal(alone, [unchanged] * len(share)) else same
            return alone
        return [self._one(batch, ablation) for ablation in share]

    def _side_by_side(self, batch: Any, share: Sequence[Ablation], rows: int) -> list[Float[Tensor, " row"]]:
        """The scores of copies of the batch, one for each ablation; empty if copies cannot be scored."""
        copies = copies_of(batch, rows, len(share))
        if copies is None:
            return []
        [site] = share[0].sites
        scales = torch.stack([self._scale(ablation) for ablation in share])
        of_row = scales.repeat_interleave(self.replay.rows, 0)
        try:
            with self.replay.start_at(site, len(share)), self.tap.scale(of_row):
                return list(self._vector(copies).split(rows))
        except Exception:  # the caller's function may refuse copies of rows
            return []

    def _one(self, batch: Any, ablation: Ablation) -> Float[Tensor, " row"]:
        scale = self._scale(ablation)
        if self._replaying:
            [site] = ablation.sites
            try:
                with self.replay.start_at(site), self.tap.scale(scale):
                    return self._vector(batch)
            except OtherPassError:
                self._replaying = False
        with self.tap.scale(scale):
            return self._vector(batch)

    def _scale(self, ablation: Ablation) -> Float[Tensor, "site head"]:
        return ablation.scale(len(self.tap.sites), self.tap.heads).to(self.device)


def _mean(counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
    return counts[:, 0] / counts[:, 1]


def _equal(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether scores are the same except for rounding."""
    shapes = [score.shape for score in found] == [score.shape for score in expected]
    return shapes and all(map(partial(torch.allclose, rtol=1e-5, atol=1e-7), found, expected))


Model = TypeVar("Model", bound=nn.Module)
Inputs = TypeVar("Inputs")


def given_again(batch: Any) -> Any:
    """The batch for one call of the caller's function, which may remove labels from it (`pop`)."""
    return copy.copy(batch) if isinstance(batch, MutableMapping | list) else batch


def vector(given: Any, batch: Any, what: str) -> Tensor:
    """What the caller's function (`what`: loss or score) returned for each row of a batch.

    Raises `InputError` for anything but a vector with one finite value per row.
    """
    if is_masked(given):
        raise InputError(f"the {what} returned values that are masked out: return one for each row")
    value, rows = tensor_of(given), _lengths(batch)
    if value is None or not is_dense(value) or value.dim() != 1 or (rows and len(value) not in rows):
        of = f"each of the {counted(rows[0], 'row')}" if rows else "each row"
        shape = (
            type(given).__name__ if value is None or not is_dense(value) else f"shape {tuple(value.shape)}"
        )
        raise InputError(
            f"the {what} must return one value for {of} of a batch (reduction='none'), and returned {shape}"
        )
    wrong = (~torch.isfinite(value.detach())).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise InputError(f"the {what} of row {row} of a batch is {value[row].item()}, which is not finite")
    return value


def has_no_rows(batch: Any) -> bool:
    """Whether a batch is known to be empty, so that the caller's function need not run on it."""
    lengths = _lengths(batch)
    return bool(lengths) and not any(lengths)


def require_passes(ran: bool, what: str) -> None:
    """Raise `InputError` unless the caller's function (`what`) `ran` a pass through a head of the model."""
    if not ran:
        raise InputError(
            f"the {what} ran none of the heads of the model in this thread: it must call the model that it "
            "is given, and start threads with contextvars.copy_context().run"
        )


def copies_of(batch: Any, rows: int, copies: int) -> Any:
    """The batch with its rows repeated `copies` times; `None` for a kind of batch that cannot be copied."""
    if isinstance(batch, Tensor | np.ndarray | list | tuple) and not _is_record(batch):
        return _repeated(batch, rows, copies)
    kind: Any = type(batch)
    several: Any
    if isinstance(batch, tuple | list):
        several = [_repeated(part, rows, copies) for part in batch]
        kind = getattr(kind, "_make", kind)  # of a named tuple
    elif isinstance(batch, Mapping):
        several = {key: _repeated(value, rows, copies) for key, value in batch.items()}
    else:
        return None
    try:
        return kind(several)
    except TypeError:
        return None


def _repeated(value: Any, rows: int, copies: int) -> Any:
    if isinstance(value, Tensor):
        return value.repeat(copies, *[1] * (value.dim() - 1)) if value.dim() and len(value) else value
    if isinstance(value, np.ndarray):
        # By index, since `np.concatenate` loses the mask of an array.
        return value[np.tile(np.arange(len(value)), copies)] if value.ndim else value
    return value * copies if isinstance(value, list | tuple) and len(value) == rows else value


def _lengths(batch: Any) -> list[int]:
    """The lengths of a batch's parts, in their order: candidates for its number of rows; empty if unknown."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if _is_record(batch) else [batch]
    lengths = [length for part in parts if (length := _length(part)) is not None]
    return [*lengths, len(batch)] if _is_record(batch) else lengths


def _is_record(batch: Any) -> bool:
    """Whether a tuple or list holds the fields of a batch (as in a TensorDataset), and not its rows."""
    return isinstance(batch, tuple | list) and any(
        isinstance(part, Tensor | np.ndarray) and part.ndim for part in batch
    )


def _length(part: Any) -> int | None:
    if isinstance(part, Tensor | np.ndarray):
        return len(part) if part.ndim else None
    return len(part) if isinstance(part, list | tuple) else None


class HeadGradients(NamedTuple):
    """Derivatives of losses with respect to gates; zero at sites that no pass reached."""

    example: Float[Tensor, "example site head"]
    absolute: Float[Tensor, "1 site head"]
    """Sums over examples, rows and positions of the absolute value there."""


def head_gradients(
    losses: Float[Tensor, " example"], outputs: HeadOutputs, heads: int, *, alike: bool = False
) -> tuple[HeadGradients, bool]:
    """Summed over rows and positions; also whether row i of the only pass serves example i (`alike`: known).

    If it does, one backward pass serves all examples; otherwise each has its own.
    """
    passes = [(site, output) for site, found in enumerate(outputs.passes) for output in found]
    sites, tensors = [site for site, _ in passes], [output for _, output in passes]
    one_pass = len(set(sites)) == len(sites) and all(len(output) == len(losses) for output in tensors)
    alike = one_pass and (len(losses) == 1 or alike or _rows_are_examples(losses, tensors))
    made = []
    for loss in [losses.sum()] if alike else losses:
        gradients = _gradients(loss, tensors, retain=not alike)
        example = torch.zeros(len(losses) if alike else 1, len(outputs), heads, dtype=torch.float64)
        absolute = torch.zeros(1, len(outputs), heads, dtype=torch.float64)
        for site, output, gradient in zip(sites, tensors, gradients, strict=True):
            positions = (output.detach() * gradient).sum(-1).double().cpu()
            example[:, site] += positions.sum(1) if alike else positions.sum((0, 1))
            absolute[0, site] += positions.abs().sum((0, 1))
        made.append(HeadGradients(example.to(losses.device), absolute.to(losses.device)))
    return HeadGradients(
        torch.cat([part.example for part in made]), torch.stack([part.absolute for part in made]).sum(0)
    ), alike


def summed_gradients(
    losses: Float[Tensor, " example"], outputs: HeadOutputs, heads: int
) -> Float[Tensor, "1 site head"]:
    """The derivative of the sum of the losses with respect to the gates."""
    return head_gradients(losses.sum()[None], outputs, heads)[0].example


def _require_finite_gradients(gradients: Float[Tensor, "example site head"]) -> None:
    """Raise `InputError` for a derivative that is not finite, such as that of a root at zero."""
    for example, *_ in (~torch.isfinite(gradients)).nonzero().tolist():
        raise InputError(
            f"the loss of row {example} of a batch has a derivative with respect to heads that is not finite,"
            " as roots and logarithms have at zero"
        )


def _rows_are_examples(losses: Float[Tensor, " example"], tensors: Sequence[Tensor]) -> bool:
    """Whether row i of each tensor serves example i alone: its gradient follows the weight of that loss.

    A pass for each binary digit of the examples' numbers gives losses with a 1 there four times the weight,
    which rounding cannot hide. A row that serves other examples fails where their digits differ.
    """
    plain = _gradients(losses.sum(), tensors, retain=True)
    numbers = torch.arange(len(losses), device=losses.device)
    for digit in range((len(losses) - 1).bit_length()):
        weights = 1 + 3 * (numbers >> digit & 1).to(losses)
        weighted = _gradients((losses * weights).sum(), tensors, retain=True)
        if not all(_multiplied(one, other, weights) for one, other in zip(plain, weighted, strict=True)):
            return False
    return True


def _multiplied(one: Tensor, other: Tensor, weights: Float[Tensor, " row"]) -> bool:
    """Whether each row of `other` is that of `one` times its weight, but for rounding."""
    if not one.numel():
        return True
    expected = one.flatten(1).double() * weights.double()[:, None]
    error = (other.flatten(1).double() - expected).abs()
    tolerated = expected.abs().amax(1, keepdim=True) * torch.finfo(one.dtype).eps ** 0.5
    return bool((error <= tolerated).all())


def _gradients(loss: Tensor, tensors: Sequence[Tensor], *, retain: bool) -> list[Tensor]:
    if not tensors:
        return []
    found = torch.autograd.grad(loss, tensors, retain_graph=retain, allow_unused=True)
    return [
        torch.zeros_like(output) if gradient is None else gradient
        for output, gradient in zip(tensors, found, strict=True)
    ]
