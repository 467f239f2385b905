"""`InputError` is a `ValueError`: no handler of `ValueError` may swallow one or wrap its text once more."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mtl.config.parse import value_of
from mtl.errors import InputError, as_input_error
from mtl.models.annotator import damaged

MTL = Path(__file__).parents[2] / "mtl"
Place = tuple[str, str]
"""A module, and the name of a function or class in it."""


@dataclass
class Body:
    """What a function, the construction of a class, or a `try` may do."""

    raises: bool = False
    names: set[Place] = field(default_factory=set)


def names_in(node: ast.AST | None) -> set[str]:
    """All names and attributes in an expression."""
    nodes = [] if node is None else list(ast.walk(node))
    attributes = {inner.attr for inner in nodes if isinstance(inner, ast.Attribute)}
    return attributes | {inner.id for inner in nodes if isinstance(inner, ast.Name)}


def body_of(module: str, nodes: Sequence[ast.AST], imported: dict[str, Place]) -> Body:
    """What statements of a module do, by names; `imported` has what local names stand for."""
    body = Body()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        match node:
            case ast.Raise():
                body.raises = body.raises or "InputError" in names_in(node.exc)
            case ast.Attribute(value=ast.Name(id=local), attr=attribute):
                if local in ("self", "cls"):
                    body.names.add((module, attribute))
                elif local in imported:
                    source, name = imported[local]
                    body.names.add((f"{source}.{name}", attribute))
            case ast.Name(id=local):
                body.names.add(imported.get(local, (module, local)))
    return body


def tried(tree: ast.AST) -> Iterator[tuple[int, Sequence[ast.AST]]]:
    """The lines of handlers of `ValueError` that stand before any of `InputError`, and what they guard."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                names = names_in(handler.type)
                if "InputError" in names:
                    break
                if "ValueError" in names:
                    yield handler.lineno, node.body
                    break
        elif isinstance(node, ast.With):
            for item in node.items:
                call = item.context_expr
                if not isinstance(call, ast.Call) or "suppress" not in names_in(call.func):
                    continue
                if any("ValueError" in names_in(argument) for argument in call.args):
                    yield node.lineno, node.body


def swallowing(sources: dict[str, str]) -> tuple[list[str], int]:
    """Handlers of `ValueError` that an `InputError` may reach, as MODULE:LINE, and how many were looked at.

    `sources` has the text of each module by its dotted name. What runs inside a context manager is anything.
    """
    bodies: dict[Place, Body] = {}
    handlers: dict[str, Body] = {}
    for module, text in sources.items():
        tree = ast.parse(text)
        imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                held: Sequence[ast.AST] = node.body
            elif isinstance(node, ast.ClassDef):
                made = ("__init__", "__post_init__")
                held = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name in made]
            else:
                continue
            body = body_of(module, held, imported)
            known = bodies.setdefault((module, node.name), Body())
            known.raises, known.names = known.raises or body.raises, known.names | body.names
        for line, held in tried(tree):
            body = body_of(module, held, imported)
            inside = (inner for outer in held for inner in ast.walk(outer))
            body.raises = body.raises or any(isinstance(inner, ast.Yield) for inner in inside)
            handlers[f"{module}:{line}"] = body
    raising = {place for place, body in bodies.items() if body.raises}
    while more := {place for place, body in bodies.items() if body.names & raising} - raising:
        raising |= more
    return [name for name, body in handlers.items() if body.raises or body.names & raising], len(handlers)


@pytest.mark.slow
def test_no_handler_of_value_errors_catches_an_input_error():
    sources = {
        ".".join(("mtl", *path.relative_to(MTL).with_suffix("").parts)): path.read_text()
        for path in MTL.rglob("*.py")
        if path.relative_to(MTL).parts[0] not in ("tasks", "probes")  # which know no InputError
    }
    found, looked_at = swallowing(sources)
    assert looked_at > 20
    assert found == []


HANDLER = "from mtl.b import read\ndef load():\n    try:\n        read()\n    except {}:\n        return 1\n"


@pytest.mark.parametrize(
    ("caught", "read", "found"),
    [
        ("ValueError", "raise InputError('x')", ["mtl.a:5"]),
        ("(OSError, ValueError)", "raise InputError('x')", ["mtl.a:5"]),
        ("OSError", "raise InputError('x')", []),
        ("InputError:\n        raise\n    except ValueError", "raise InputError('x')", []),
        ("ValueError", "raise ValueError('x')", []),
    ],
)
def test_the_search_sees_what_a_called_function_raises(caught, read, found):
    between = f"def read():\n    further()\ndef further():\n    {read}\n"
    assert swallowing({"mtl.a": HANDLER.format(caught), "mtl.b": between}) == (
        found, 0 if caught == "OSError" or "raise" in caught else 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    "handler", [as_input_error("there"), damaged(Path("folder"))], ids=("as_input_error", "damaged")
)
def test_an_input_error_passes_unchanged(handler):
    error = InputError("what, where, how")
    with pytest.raises(InputError) as raised, handler:
        raise error
    assert raised.value is error


def test_another_value_error_becomes_one_with_its_place():
    with pytest.raises(InputError, match=r"^there: bad$"), as_input_error("there"):
        raise ValueError("bad")


def test_users_catch_input_errors_as_value_errors():
    with pytest.raises(ValueError, match="given twice"):
        value_of("{a: 1, a: 2}")
