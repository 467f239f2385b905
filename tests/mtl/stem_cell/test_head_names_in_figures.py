"""Layers in the laboratory's figures are counted from 0; only the figure of mixing vectors shows any."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from mtl.probes.stem_cell.figures.mixing import mixing_figure
from tests.mtl.test_head_names import LAYERS, numbers


def mixing() -> Figure:
    layers = pl.DataFrame(
        {"attention": "self", "layer": [0, 1, 2], "claims": "all", "overlap": [0.1, 0.1, 0.9]}
    )
    tests = {"models": "m", "claims": "none", "above": 0.1, "low": 0.0, "high": 0.2, "p": 0.5, "p_holm": 0.5}
    return mixing_figure(pl.DataFrame([tests]), layers.with_columns(models=pl.lit("m")), "m")


def test_layers_count_from_zero() -> None:
    assert numbers(mixing().axes[0], "x") == [(n, str(n)) for n in range(LAYERS)]
