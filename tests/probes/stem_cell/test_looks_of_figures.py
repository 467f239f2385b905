"""The look of a setup and of a task in the laboratory's figures."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mtl.probes.figures.looks import looks_of, task_looks
from mtl.probes.stem_cell.figures.dose import dose_figure
from mtl.probes.stem_cell.figures.sharing import sharing_figure
from tests.probes.test_looks import SETUPS, colours_in_legend


@pytest.mark.parametrize("order", [SETUPS[:4], SETUPS[3::-1], SETUPS[2:4]])
def test_one_setup_has_one_colour_in_any_order(order):
    expected = {name: look.colour for name, look in looks_of(SETUPS[:4]).items() if name in order}
    losses = pl.DataFrame({"setup": order, "task": "dep", "loss": 1.0, "low": 0.0, "high": 2.0})
    assert expected.items() <= colours_in_legend(sharing_figure(losses)).items()


def test_a_dose_has_its_tasks_colours():
    rng = np.random.default_rng(0)
    rows = [
        (f"{first}+{second}", overlap, 6, f"{first}{run}", task, float(rng.normal()))
        for first, second in (("pos", "dep"), ("dep", "srl"))
        for run, overlap in enumerate((0, 3, 6))
        for task in (first, second)
    ]
    scores = pl.DataFrame(rows, ["pair", "overlap", "heads", "run", "task", "score"], orient="row")
    losses = pl.DataFrame({"pair": ["all"], "loss": [None]}, schema={"pair": pl.String, "loss": pl.Float64})
    colours = colours_in_legend(dose_figure(scores, losses))
    assert colours == {task: look.colour for task, look in task_looks(("pos", "dep", "srl")).items()}
