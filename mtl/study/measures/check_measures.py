"""Checks, before the first run, of what a study measures."""

from __future__ import annotations

from mtl.analysis.measuring import check_options
from mtl.config.marks import refuse
from mtl.config.typed import out_of_range
from mtl.errors import InputError
from mtl.study.config import ProbesConfig


def check_measures(probes: ProbesConfig) -> None:
    """Raise `InputError` for settings with which a wanted measure would fail or be empty."""
    for fault in out_of_range(probes, "probes."):
        raise InputError(fault)
    check_options(probes.options)
    refuse(probes.FORBIDDEN, probes)
    if "curve" not in probes.measures:
        return
    from mtl.analysis.curves.methods import ORDERS, check_orders
    from mtl.probes.measures.groups import made_with
    from mtl.probes.measures.table import MADE_BY

    check_orders(probes.orders)
    made = {name for maker, names in MADE_BY.items() if maker in probes.measures for name in names}
    for order in probes.orders:
        if order not in ORDERS and order not in made:
            raise InputError(
                f"probes.orders has {order}, which no measure of this study makes; '{made_with(order)}' does"
            )
