"""Figures of the contest, of conflict and of the first screen: what they draw was planted."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mtl.probes.figures.style import looks_of, render
from mtl.probes.stem_cell.competition import ConflictByClaims
from mtl.probes.stem_cell.figures import (
    conflict_figure,
    contest_figure,
    forest,
    sharing_figure,
    wanted_figure,
)


def points(axes, marker):
    """The places of all markers of a kind."""
    return [
        (float(x), float(y))
        for line in axes.lines
        if line.get_marker() == marker
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def bars(axes):
    """The ends of vertical and horizontal bars."""
    return [segment.tolist() for collection in axes.collections for segment in collection.get_segments()]


def test_contest_draws_heads_means_and_sides():
    lines = pl.DataFrame({"task": ["pos", "pos", "dep"], "apart": [1.0, 2.0, 3.0], "beside": [0.5, 1.9, 3.1]})
    means = pl.DataFrame(
        {
            "task": ["pos", "dep"],
            "apart": [1.5, 3.0],
            "beta": [0.3, -0.1],
            "low": [0.1, -0.4],
            "high": [0.5, 0.2],
        }
    )
    sides = pl.DataFrame({"task": ["pos"], "partner": ["twin"], "mean": [1.2], "low": [1.1], "high": [1.3]})
    figure = contest_figure(lines, means, sides)
    pos, dep = figure.axes[:2]
    assert [axes.get_title() for axes in (pos, dep)] == ["pos", "dep"]
    grey = [line.get_ydata() for line in pos.lines if list(line.get_xdata()) == [1.0, 2.0]]
    assert [list(values) for values in grey] == [[1.0, 0.5], [2.0, 1.9], [1.5, 1.2]]
    assert points(pos, "o") == [(1.0, 1.5), (2.0, 1.2)]
    assert points(pos, "s") == [(3.0, 1.2)]
    assert points(dep, "s") == []
    # The interval of what the mean falls to, and the twin's own.
    assert bars(pos) == [[[2.0, 1.0], [2.0, 1.4]], [[3.0, 1.1], [3.0, 1.3]]]
    assert [text.get_text() for text in pos.get_xticklabels()] == ["not\nclaimed", "claimed", "twin"]
    assert render(figure, "png")[:4] == b"\x89PNG"
    # An interval without ends is no certain mean: its bar is as high as the panel.
    unknown = contest_figure(lines, means.with_columns(low=-np.inf, high=np.inf), sides)
    [bar] = [line for line in unknown.axes[0].lines if list(line.get_xdata()) == [2, 2]]
    assert list(bar.get_ydata()) == [0, 1]
    assert bars(unknown.axes[0]) == [[[3.0, 1.1], [3.0, 1.3]]]
    with pytest.raises(ValueError, match="no claimed head has both"):
        contest_figure(lines.clear(), means, sides)


def test_forest_draws_every_estimate_in_per_cent():
    table = pl.DataFrame(
        {
            "group": ["unit", "unit", "task"],
            "estimate": ["importance, logs", "ablation", "pos alone"],
            "primary": [True, False, False],
            "share": [0.02, 0.2, None],
            "share_low": [-0.03, 0.12, None],
            "share_high": [0.07, 0.3, None],
            "word": ["refuted", "supported", "cannot tell"],
        }
    )
    figure = forest(table)
    axes = figure.axes[0]
    assert points(axes, "o") == [(2.0, 0.0), (20.0, 1.0)]
    assert next(end for end in bars(axes) if end[0][1] == 0.0) == pytest.approx(np.array([[-3, 0], [7, 0]]))
    assert [text.get_text() for text in axes.get_yticklabels()] == table["estimate"].to_list()
    assert [text.get_fontweight() for text in axes.get_yticklabels()] == ["bold", "normal", "normal"]
    band = next(patch for patch in axes.patches)
    assert band.get_x() + band.get_width() == pytest.approx(10)
    assert render(figure, "pdf")
    with pytest.raises(ValueError, match="no estimates"):
        forest(table.clear())


def test_an_interval_without_an_end_reaches_the_edge():
    table = pl.DataFrame(
        {
            "group": ["unit"], "estimate": ["a"], "primary": [True], "share": [0.05],
            "share_low": [float("-inf")], "share_high": [float("inf")], "word": ["cannot tell"],
        }
    )  # fmt: skip
    axes = forest(table).axes[0]
    assert [x for x, _ in bars(axes)[0]] == list(axes.get_xlim())


def test_conflict_draws_means_by_claims_and_twins():
    heads = pl.DataFrame({"claims": ["one", "one", "both"], "cosine": [0.2, 0.4, -0.1]})
    result = ConflictByClaims(heads, -0.4, -0.6, -0.2, 0.01)
    axes = conflict_figure(result, pl.DataFrame({"cosine": [0.9]})).axes[0]
    means = [segment[0][1] for segment in bars(axes)]
    assert means == pytest.approx([0.3, -0.1, 0.9])
    assert axes.get_title() == "both less one, within layers: -0.40 (-0.60 to -0.20), p 0.01"
    assert [text.get_text().split("\n")[0] for text in axes.get_xticklabels()] == [
        "neither",
        "one",
        "both",
        "twins",
    ]


def test_wanted_draws_every_pair_and_the_means():
    table = pl.DataFrame(
        {"kind": ["by chance", "between tasks", "between tasks"], "jaccard": [0.1, 0.3, 0.5]}
    )
    figure = wanted_figure(table.with_columns(learned="jaccard"))
    axes = figure.axes[0]
    assert sorted(y for _, y in points(axes, "o")) == [0.1, 0.3, 0.5]
    assert [segment[0][1] for segment in bars(axes)] == pytest.approx([0.1, 0.4])
    assert axes.get_ylabel() == "Jaccard of open heads,\nseed by seed"
    assert figure.legends == []
    # Beside them those of learned heads alone, if a target forced some.
    beside = wanted_figure(table.with_columns(learned=pl.Series([0.0, 0.1, None])))
    axes = beside.axes[0]
    assert sorted(y for _, y in points(axes, "o")) == [0.0, 0.1, 0.1, 0.3, 0.5]
    assert sorted(segment[0][1] for segment in bars(axes)) == pytest.approx([0.0, 0.1, 0.1, 0.4])
    assert [text.get_text() for text in beside.legends[0].get_texts()] == ["open heads", "learned alone"]


def test_sharing_draws_losses_and_cuts_wide_intervals():
    table = pl.DataFrame(
        {
            "setup": ["MTL-5", "MTL-5", "MTL-2"], "task": ["pos", "mean", "pos"], "loss": [1.0, 2.0, 0.5],
            "low": [0.5, None, None], "high": [1.5, None, None],
            "paired_low": [0.9, -40.0, 0.4], "paired_high": [1.1, 44.0, 0.6],
        }
    )  # fmt: skip
    axes = sharing_figure(table).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["pos", "mean"]
    drawn = [points(axes, looks_of([setup])[setup].shape) for setup in ("MTL-5", "MTL-2")]
    assert [[x for x, _ in of_setup] for of_setup in drawn] == [[1.0, 2.0], [0.5]]
    assert [[x for x, _ in bar] for bar in bars(axes)] == [[0.5, 1.5], [-6.0, 6.0]]
