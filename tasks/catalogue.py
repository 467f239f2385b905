"""The list of tasks."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.con import Con
from tasks.dep import Dep
from tasks.ner import Ner
from tasks.pos import Pos
from tasks.srl import Srl
from tasks.task import Task

TASKS: Mapping[str, type[Task]] = {task.name: task for task in (Pos, Ner, Dep, Con, Srl)}
"""Every task by name, in the order in which layers are predicted (CON takes its tags from POS)."""
LAYERS = tuple(dict.fromkeys(layer for task in TASKS.values() for layer in task.layers))
"""The fields of a sentence that some task reads."""
