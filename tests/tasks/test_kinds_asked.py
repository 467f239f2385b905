"""What differs by kind of task is in the kind's class: no other code asks for the kind of a task."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from mtl.tasks.catalogue import KINDS

TOP = Path(__file__).parents[2]
FOLDERS = ("mtl", "probes", "tasks")
NAMED = re.compile(rf"\.\s*kind\b|\b({'|'.join(kind.__name__ for kind in KINDS.values())})\b")
"""What is in every file that asks."""


def asked(source: str) -> list[int]:
    """The lines that compare a `.kind` with a kind's name, or ask for one in a list or table of them."""
    found: list[int] = []
    if not NAMED.search(source):
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            words = {
                leaf.value for side in sides for leaf in ast.walk(side) if isinstance(leaf, ast.Constant)
            }
            if any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides) and words & {
                *KINDS
            }:
                found.append(node.lineno)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("issubclass", "isinstance"):
            names = {leaf.id for leaf in ast.walk(node.args[1]) if isinstance(leaf, ast.Name)}
            if names & {kind.__name__ for kind in KINDS.values()}:
                found.append(node.lineno)
    return sorted(found)


def test_nothing_asks_which_kind_a_task_is() -> None:
    own = {Path(inspect.getfile(kind)).resolve() for kind in KINDS.values()}
    files = [path for folder in FOLDERS for path in (TOP / folder).rglob("*.py") if path.resolve() not in own]
    assert len(files) > 100
    assert {str(path): lines for path in files if (lines := asked(path.read_text(encoding="utf-8")))} == {}


def test_questions_are_found() -> None:
    assert asked(
        'if task.kind == "tags":\n    x = kind.kind in ("spans", "frames")\nissubclass(kind, Regress)'
    ) == [1, 2, 3]
