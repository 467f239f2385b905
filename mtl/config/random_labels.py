"""Tasks whose labels are a random draw: those with a setting `draw`, the seed of their labels."""

from __future__ import annotations

from mtl.config.keys import hints_of
from mtl.tasks.catalogue import TASKS

DRAWN = tuple(name for name, task in TASKS.items() if "draw" in hints_of(task))
