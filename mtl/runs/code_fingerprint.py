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


@lru_cache
def code_fingerprint(entry: str) -> str:
    """One sha256 over the entry module and everything of this project that it imports.

    Comments, docstrings and layout do not count, so that only a change of what runs makes a difference.
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
        if name in trees or path is None:
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
    place = Path(package.origin).parent.joinpath(*name.split(".")[1:])
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None


def _meaning(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node, clean=False) is not None
            node.body = node.body[documented:] or [ast.Pass()]
    return ast.dump(tree, include_attributes=False)
