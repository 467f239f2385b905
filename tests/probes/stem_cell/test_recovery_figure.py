from __future__ import annotations

import polars as pl
import pytest

from mtl.probes.figures.style import render
from mtl.probes.stem_cell.figures.recovery import recovery
from mtl.probes.stem_cell.statistics.remedies import recoveries
from tests.probes.stem_cell.remedy_scores import scores


def test_a_panel_per_task_has_a_dot_and_an_interval_per_condition() -> None:
    table = scores(seeds=6)
    figure = recovery(table)
    pos, dep, costs = figure.axes
    assert [axes.get_title() for axes in (pos, dep)] == ["pos", "dep"]
    found = recoveries(table)
    for axes in (pos, dep):
        assert [text.get_text()[0] for text in pos.get_yticklabels()] == ["B", "C", "D", "G"]
        rows = found.filter(task=axes.get_title())
        dots = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_linestyle() == "None"]
        bars = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2][:4]
        for place, name in enumerate(("B", "C", "D", "G")):
            row = rows.row(by_predicate=pl.col("condition") == name, named=True)
            assert [100 * row["recovery"], place] in [pytest.approx(dot) for dot in dots]
            assert list(bars[place]) == pytest.approx([100 * row["recovery_low"], 100 * row["recovery_high"]])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[:2] == ["single  each task alone", "A  joint, one pass"]
    assert costs.get_xlabel() == "parameters of an encoder, millions"
    assert render(figure, "svg") == render(recovery(table), "svg")


def test_conditions_without_an_interval_are_said_and_unknown_sizes_left_out() -> None:
    table = scores(seeds=1).with_columns(parameters=pl.lit(None, dtype=pl.Int64))
    figure = recovery(table)
    assert [text.get_text() for text in figure.axes[0].texts] == ["no seeds, or no certain loss"] * 4
    assert not figure.legends
