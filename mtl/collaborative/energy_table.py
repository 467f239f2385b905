"""Tables of query and key matrices: the variance that leading components capture, and mixing vectors."""

from __future__ import annotations

import polars as pl

ENERGY = pl.Schema(
    {
        "model": pl.String,
        "attention": pl.String,
        "layer": pl.Int32,
        "head": pl.Int32,
        "matrix": pl.String,
        "component": pl.Int32,
        "captured": pl.Float64,
    }
)
"""A row per model, layer, head, matrix and number of leading components; layers and heads from 0.

`head` is null if all heads of the layer are taken together. `matrix` is `query` (W_Q), `key` (W_K) or
`product` (W_Q W_K^T). `captured` is the share, from 0 to 1, of the matrix's sum of squares that the leading
components capture.
"""
MIXING = pl.Schema(
    {
        "model": pl.String,
        "attention": pl.String,
        "layer": pl.Int32,
        "head": pl.Int32,
        "component": pl.Int32,
        "value": pl.Float64,
    }
)
"""A row per model, layer, head and shared component, all from 0: how much of the component the head takes."""
MATRICES = {"query": "W_Q", "key": "W_K", "product": "W_Q W_K^T"}
"""The matrices and their names in figures."""
SHARES = (0.5, 0.9, 0.95)
"""The shares of the variance whose components are counted."""


def components_needed(energy: pl.DataFrame) -> pl.DataFrame:
    """Per model, layer, head and matrix, how many components capture 50, 90 and 95 % (`needs_50`, ...).

    `of` is the number of all components. A share counts as reached within 1e-9, so that rounding does not add
    a component.
    """
    keys = ["model", "attention", "layer", "head", "matrix"]
    counted = [
        pl.col("component").filter(pl.col("captured") >= share - 1e-9).min().alias(f"needs_{share * 100:.0f}")
        for share in SHARES
    ]
    return energy.group_by(keys, maintain_order=True).agg(*counted, of=pl.col("component").max())
