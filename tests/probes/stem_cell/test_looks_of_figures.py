"""The look of a setup and of a task in the laboratory's figures."""

from __future__ import annotations

import polars as pl
import pytest

from mtl.probes.figures.style import looks_of
from mtl.probes.stem_cell.figures import sharing_figure
from tests.probes.test_looks import SETUPS, colours_in_legend


@pytest.mark.parametrize("order", [SETUPS[:4], SETUPS[3::-1], SETUPS[2:4]])
def test_one_setup_has_one_colour_in_any_order(order):
    expected = {name: look.colour for name, look in looks_of(SETUPS[:4]).items() if name in order}
    losses = pl.DataFrame({"setup": order, "task": "dep", "loss": 1.0, "low": 0.0, "high": 2.0})
    assert expected.items() <= colours_in_legend(sharing_figure(losses)).items()
