"""Every table of the page's templates, in whichever branch, names itself and its headers."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.util import find_spec

import pytest

PACKAGES = (
    "mtl.probes.report",
    *(["mtl.probes.stem_cell.report"] if find_spec("mtl.probes.stem_cell") else ()),
)
TEMPLATES = sorted(
    path for package in PACKAGES for path in files(package).iterdir() if path.name.endswith(".j2")
)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_tables_have_captions_and_headers_have_scopes(template):
    text = template.read_text(encoding="utf-8")
    tables = re.findall(r"<table\b[^>]*>\s*(.{9})", text)
    assert tables
    assert set(tables) == {"<caption>"}
    headers = re.findall(r'<th\b(?: scope="(\w+)")?', text)
    assert set(headers) <= {"col", "row"}
