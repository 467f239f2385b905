"""Energy: the share of variance that leading components of query and key matrices capture.

Cordonnier et al. 2020, section 3: the singular values of W_Q, of W_K and of W_Q W_K^T, for each head and for
all heads of a layer together.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from mtl.errors import InputError
from mtl.heads.attentions import Attention, attentions
from mtl.heads.collaborative_attention import CollaborativeAttention
from mtl.heads.families import family_of
from mtl.heads.given_models import require_finite
from mtl.heads.query_key import QueryKey, query_key
from mtl.probes.tables.energy_table import ENERGY, MIXING


@torch.no_grad()
def energy(model: PreTrainedModel, name: str) -> pl.DataFrame:
    """The rows of a model (`ENERGY`), under the model's `name`; layers without heads have none.

    Matrices are taken from the weights. They are not centred, and biases, norms and rotations after the
    projections do not count. All heads together have their W_Q side by side, likewise their W_K, and the sum
    of their products. Where heads share components, W_Q and W_K are the shared ones; for a single head, W_Q
    is weighted by its mixing vector.
    """
    family = family_of(model)
    parts = [pl.DataFrame(schema=ENERGY)]
    found = attentions(model, family)
    require_finite(found, "energy")
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
