"""The energy of query and key matrices, and what sharing components costs in operations and time.

Cordonnier et al. 2020, section 3: the singular values of W_Q, of W_K and of W_Q W_K^T, for each head and for
all heads of a layer together.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from mtl.analysis.costs import alternate, encode, multiply_adds
from mtl.collaborative.attention import CollaborativeAttention, QueryKey, query_key
from mtl.collaborative.energy_table import ENERGY, MIXING
from mtl.errors import InputError
from mtl.heads.attentions import Attention, attentions
from mtl.heads.families import family_of
from mtl.heads.given_models import require_finite_weights
from mtl.models.passes import in_evaluation_mode
from mtl.models.subwords import Subwords, Tokens
from mtl.models.tapped import TappedModel


@torch.no_grad()
def energy_rows(model: PreTrainedModel, name: str) -> pl.DataFrame:
    """The rows of a model (`ENERGY`), under the model's `name`; layers without heads have none.

    Matrices are taken from the weights. They are not centred, and biases, norms and rotations after the
    projections do not count. All heads together have their W_Q side by side, likewise their W_K, and the sum
    of their products. Where heads share components, W_Q and W_K are the shared ones; for a single head, W_Q
    is weighted by its mixing vector.
    """
    family = family_of(model)
    parts = [pl.DataFrame(schema=ENERGY)]
    found = attentions(model, family)
    require_finite_weights(found, "energy")
    for attention in found:
        if not attention.remaining:
            continue
        queries, keys = query_key(family, attention)
        factors = QueryKey(queries.double(), keys.double())
        for head, matrix, values in _singular_values(factors, attention):
            captured = captured_variance(values)
            parts.append(
                pl.DataFrame(
                    {
                        "model": name,
                        "attention": attention.site.attention,
                        "layer": attention.site.layer,
                        "head": head,
                        "matrix": matrix,
                        "component": range(1, len(captured) + 1),
                        "captured": captured.tolist(),
                    },
                    schema=ENERGY,
                )
            )
    return pl.concat(parts)


def captured_variance(values: Float[Tensor, " value"]) -> Float[Tensor, " value"]:
    """For each n, the share of the sum of squares in the n largest singular values; 1 if all are zero."""
    squares = values.square().sort(descending=True).values
    total = squares.sum()
    return torch.ones_like(squares) if total == 0 else (squares.cumsum(0) / total).clamp(max=1)


def mixing(model: PreTrainedModel, name: str) -> pl.DataFrame:
    """How much of each component each head takes (`MIXING`), under the model's `name`.

    Raises `InputError` if the model's heads share no components.
    """
    parts = []
    for attention in attentions(model, family_of(model)):
        if not isinstance(attention.module, CollaborativeAttention):
            continue
        weights = attention.module.mixing.detach()
        heads, components = weights.shape
        parts.append(
            pl.DataFrame(
                {
                    "model": name,
                    "attention": attention.site.attention,
                    "layer": attention.site.layer,
                    "head": [head for head in attention.remaining for _ in range(components)],
                    "component": list(range(components)) * heads,
                    "value": weights.double().flatten().tolist(),
                },
                schema=MIXING,
            )
        )
    if not parts:
        raise InputError(f"the heads of {name} share no components: 'mtl collaborate' makes such a model")
    return pl.concat(parts)


def _singular_values(factors: QueryKey, attention: Attention) -> Iterator[tuple[int | None, str, Tensor]]:
    """Yields head (`None`: all together), matrix and singular values."""
    queries, keys = factors
    joined = [matrix.transpose(0, 1).flatten(1) for matrix in factors]
    if isinstance(attention.module, CollaborativeAttention):
        together = [matrix.double() for matrix in attention.module.shared()]
    else:
        together = joined
    yield None, "query", torch.linalg.svdvals(together[0])
    yield None, "key", torch.linalg.svdvals(together[1])
    yield None, "product", torch.linalg.svdvals(joined[0] @ joined[1].T)
    narrow = [torch.linalg.qr(matrix).R for matrix in factors]
    by_head = {
        "query": torch.linalg.svdvals(queries),
        "key": torch.linalg.svdvals(keys),
        # A B^T has the singular values of R_A R_B^T, the product of the triangular factors.
        "product": torch.linalg.svdvals(narrow[0] @ narrow[1].transpose(1, 2)),
    }
    for matrix, values in by_head.items():
        for place, head in enumerate(attention.remaining):
            yield head, matrix, values[place]


BATCH_TOKENS = 1024
"""Positions in a batch whose time is measured: more do not fit into a CPU's caches."""


@dataclass(frozen=True)
class LengthCost:
    """The cost per sentence of one length; pairs are (before, after)."""

    length: int
    """Positions of a sentence, special ones included."""
    sentences: int
    """Sentences in a batch."""
    multiply_adds: tuple[float, float]
    seconds: tuple[float, float]
    """Medians over rounds in which the models take turns."""


@torch.inference_mode()
def sharing_costs(
    before: TappedModel, after: TappedModel, lengths: Sequence[int], rounds: int, seed: int = 0
) -> list[LengthCost]:
    """The operations and time of two encoders on the same random subwords, for each length (`check_lengths`).

    Costs do not depend on which subwords are read. All sentences of a batch are equally long.
    """
    costs = []
    with in_evaluation_mode(before), in_evaluation_mode(after):
        for length in lengths:
            batch = random_batch(before, length, seed)
            adds, fewer = (multiply_adds(each, [batch]) / batch.sentences for each in (before, after))
            jobs = {"before": partial(encode, before, [batch]), "after": partial(encode, after, [batch])}
            seconds = alternate(jobs, rounds)
            slow, fast = (statistics.median(seconds[name]) / batch.sentences for name in jobs)
            costs.append(LengthCost(length, batch.sentences, (adds, fewer), (slow, fast)))
    return costs


def check_lengths(encoder: TappedModel, lengths: Sequence[int]) -> None:
    """Raise `InputError` for lengths that the encoder cannot read."""
    least = len(encoder.tokenizer.prefix) + len(encoder.tokenizer.suffix) + 1
    for length in lengths:
        if not least <= length <= encoder.tokenizer.max_length:
            raise InputError(
                f"lengths: the encoder reads sentences of {least} to {encoder.tokenizer.max_length} "
                f"positions, and {length} is given"
            )


def random_batch(encoder: TappedModel, length: int, seed: int = 0) -> Subwords:
    """A batch of random subwords; every sentence has `length` positions, special ones included."""
    tokenizer = encoder.tokenizer
    pieces = length - len(tokenizer.prefix) - len(tokenizer.suffix)
    generator = np.random.default_rng(seed)
    sentences = max(1, min(64, BATCH_TOKENS // length))
    ids = generator.integers(0, encoder.transformer.config.vocab_size, (sentences, pieces), dtype=np.int32)
    device = next(encoder.parameters()).device
    return tokenizer.collate([Tokens(row, np.ones(pieces, dtype=np.int32)) for row in ids]).to(device)
