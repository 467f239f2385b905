"""The public names: complete, documented, typed, and imported when they are used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

import mtl

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "public.md"


def test_the_page_has_every_public_name_where_it_is_defined_and_says_what_is_stable():
    rows = re.findall(r"^\| \[`(\w+)`\]\[([\w.]+)\] \| .+ \| (stable|may change) \|$", PAGE.read_text(), re.M)
    assert sorted(name for name, _, _ in rows) == sorted(mtl.__all__)
    assert len(rows) == PAGE.read_text().count("\n| [")
    for name, place, _ in rows:
        found = getattr(mtl, name)
        assert f"{found.__module__}.{found.__qualname__}" == place


def test_completion_shows_all_names():
    assert {"__version__", "__doc__", "__name__"} <= set(dir(mtl))
    assert [name for name in dir(mtl) if not name.startswith("__")] == sorted(mtl.__all__)
    assert all(getattr(mtl, name, None) is not None for name in dir(mtl))
    with pytest.raises(AttributeError, match="no attribute 'pruned'"):
        mtl.pruned  # noqa: B018


def test_importing_the_package_imports_nothing_else():
    code = "import sys, mtl; dir(mtl); assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


@pytest.mark.slow
def test_no_public_name_is_any_to_a_type_checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    program = tmp_path / "program.py"
    names = [f"mtl.{name}" for name in mtl.__all__]
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
