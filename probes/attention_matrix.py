"""The attention of a head as a matrix whose rows and columns have texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class AttentionMatrix:
    """What the positions of a text attend to: positions of the same text, or of another one."""

    title: str
    """The name of the head, and of the sentence if it has one."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: Float[np.ndarray, "row column"]
    """From 0 to 1."""


def attention_table(matrices: Sequence[AttentionMatrix]) -> pl.DataFrame:
    """The weights of all matrices, a row each; sentences, rows and columns count from 0."""
    parts = []
    for sentence, matrix in enumerate(matrices):
        row, column = (index.ravel() for index in np.indices(matrix.weights.shape))
        parts.append(
            pl.DataFrame(
                {
                    "sentence": np.full(len(row), sentence),
                    "row": row,
                    "column": column,
                    "row_text": [matrix.rows[place] for place in row],
                    "column_text": [matrix.columns[place] for place in column],
                    "weight": matrix.weights.ravel(),
                }
            )
        )
    return pl.concat(parts)
