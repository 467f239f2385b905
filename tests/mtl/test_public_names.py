"""The public names: complete, documented, typed, and imported when they are used."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mypy import api

import mtl
from tests.kit.absent import public_names

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "public.md"


def test_the_page_has_every_public_name_where_it_is_defined_and_says_what_is_stable():
    rows = re.findall(r"^\| \[`(\w+)`\]\[([\w.]+)\] \| .+ \| (stable|may change) \|$", PAGE.read_text(), re.M)
    assert sorted(name for name, _, _ in rows) == sorted(mtl.__all__)
    assert len(rows) == PAGE.read_text().count("\n| [")
    for name, place, _ in (row for row in rows if row[0] in public_names()):
        found = getattr(mtl, name)
        assert f"{found.__module__}.{found.__qualname__}" == place


def _undescribed(place: str, doc: str, function: ast.FunctionDef) -> list[str]:
    """The parameters that a function's `Args` does not list, and what it lists that is no parameter."""
    listed = re.findall(r"^ {4}\**(\w+): ", doc.split("\nArgs:\n")[1].split("\n\n")[0], re.M)
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    names = [each.arg for each in named if each is not None and each.arg not in ("self", "cls")]
    return [f"{place}: {name}" for name in {*names} ^ {*listed}]


def _functions(node: ast.AST, name: str = "") -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """Name, docstring and definition of functions with a docstring; a class's is that of its `__init__`."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef) and (doc := ast.get_docstring(inner)):
            yield f"{name}{inner.name}", doc, inner
        elif isinstance(inner, ast.ClassDef):
            doc = ast.get_docstring(inner) or ""
            made = [each for each in inner.body if isinstance(each, ast.FunctionDef)]
            yield from ((inner.name, doc, each) for each in made if each.name == "__init__" and doc)
            yield from _functions(inner, f"{inner.name}.")


def test_every_parameter_is_described_where_any_is():
    """In all modules, which the pages of the reference show; every public function describes its own."""
    files = [file for root in ("mtl", "tasks", "probes") for file in sorted((ROOT / root).rglob("*.py"))]
    found = [
        (f"{file.relative_to(ROOT)}, {name}", doc, function)
        for file in files
        for name, doc, function in _functions(ast.parse(file.read_text()))
        if "\nArgs:\n" in doc
    ]
    assert len(found) > 50
    assert [line for part in found for line in _undescribed(*part)] == []
    public = [getattr(mtl, name) for name in public_names()]
    assert all("\nArgs:\n" in (inspect.getdoc(each) or "") for each in public if inspect.isfunction(each))


def test_each_public_name_is_defined_in_one_file():
    """A function or class at the top of a module says by its name which one of the project it is."""
    files: dict[str, set[str]] = {}
    for root in ("mtl", "tasks", "probes"):
        for file in sorted((ROOT / root).rglob("*.py")):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                    files.setdefault(node.name, set()).add(str(file.resolve().relative_to(ROOT)))
    assert len(files) > 1000
    assert {name: sorted(places) for name, places in files.items() if len(places) > 1} == {}


def test_completion_shows_all_names():
    assert {"__version__", "__doc__", "__name__"} <= set(dir(mtl))
    assert [name for name in dir(mtl) if not name.startswith("__")] == sorted(mtl.__all__)
    assert all(getattr(mtl, name, None) is not None for name in ("__version__", *public_names()))
    with pytest.raises(AttributeError, match="no attribute 'pruned'"):
        mtl.pruned  # noqa: B018


def test_importing_the_package_imports_nothing_else():
    code = "import sys, mtl; dir(mtl); assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


@pytest.mark.slow
def test_no_public_name_is_any_to_a_type_checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    program = tmp_path / "program.py"
    names = [f"mtl.{name}" for name in public_names()]
    lines = [
        "import mtl",
        *(f"reveal_type({name})" for name in names),
        "reveal_type(mtl.__version__)",
        "mtl.pruned",
    ]
    program.write_text("\n".join(lines))
    out, errors, _ = api.run(["--no-error-summary", str(program)])
    assert 'Module has no attribute "pruned"' in out
    revealed = dict(re.findall(r'program\.py:(\d+): note: Revealed type is "(.+)"', out))
    assert revealed.pop(str(len(names) + 2)) == "str"
    assert len(revealed) == len(names), out + errors
    for line, kind in revealed.items():
        assert kind.startswith(("def (", "def [", "Overload(")), (names[int(line) - 2], kind)
