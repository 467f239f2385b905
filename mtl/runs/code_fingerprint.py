"""A fingerprint of the code that makes a result: of all that a module imports, directly or not."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOTS = ("mtl", "tasks", "probes")
TRAINING, PROBING = "mtl.training.train", "mtl.analysis.probe_run"
"""The modules from which everything is imported that training or probing runs."""
NO_EFFECT = ("mtl.workers",)
"""Rooms that are imported, too, and cannot change a result: they keep processes out of each other's way."""


@lru_cache
def code_fingerprint(entry: str) -> str:
    """One sha256 over the entry module and everything of this project that it imports.

    Comments, docstrings and layout do not count, so that only a change of what runs makes a difference;
    neither does the version of Python.
    """
    meanings = [f"{name}\n{_meaning(tree)}" for name, tree in sorted(_imported(entry).items())]
    return hashlib.sha256("\n".join(meanings).encode()).hexdigest()


def modules_of(entry: str) -> list[str]:
    """The names of the modules that the fingerprint is made of."""
    return sorted(_imported(entry))


def _imported(entry: str) -> dict[str, ast.Module]:
    trees: dict[str, ast.Module] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        path = _source(name)
        if name in trees or path is None or name.startswith(NO_EFFECT):
            continue
        trees[name] = ast.parse(path.read_bytes())
        waiting += _imports(trees[name])
    return trees


def _imports(tree: ast.Module) -> Iterator[str]:
    """Modules of this project that a module names in its imports; functions and classes are no modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in ROOTS)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ROOTS:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _source(name: str) -> Path | None:
    """The file of a module; `None` for a name that is none."""
    package = importlib.util.find_spec(name.split(".")[0])
    if package is None or package.origin is None:
        return None
    stem = Path(package.origin).parent.joinpath(*name.split(".")[1:])
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return path
    return None


def _meaning(tree: ast.Module) -> str:
    """What a module does, as text without its docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node, clean=False) is not None
            node.body = node.body[documented:] or [ast.Pass()]
    return _written(tree)


def _written(node: object) -> str:
    """A syntax tree as text, the same under every version of Python.

    `ast.dump` differs: 3.12 gave functions and classes the field `type_params`, and 3.13 leaves out empty
    lists. Here every empty field is left out; the type of a node and the names of its other fields say which.
    """
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in sorted(node._fields))
        values = [f"{name}={_written(value)}" for name, value in fields if _counts(node, name, value)]
        return f"{type(node).__name__}({', '.join(values)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_written, node))}]"
    return ascii(node)  # which characters `repr` escapes changes with Python's Unicode tables


def _counts(node: ast.AST, name: str, value: object) -> bool:
    """Whether a field is not empty; the value of a constant counts, also where it is `None`."""
    return value not in (None, []) or (isinstance(node, ast.Constant) and name == "value")
