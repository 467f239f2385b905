"""The keys of a study's `probes` that are for curves."""

from __future__ import annotations

from mtl.config.instances import Slot
from mtl.tasks.task import Count

ORDERS_KEY = Slot(
    tuple[str, ...], ("importance", "recomputed", "random"),
    "Orders in which curves close heads, as in `mtl curve --by`.",
)  # fmt: skip
DRAWS_KEY = Slot(Count, 5, "Number of random orders of a curve.")
