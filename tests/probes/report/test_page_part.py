"""An answer's record for programs.
Every table of the page's templates, in whichever branch, names itself and its headers.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from importlib.util import find_spec

import polars as pl
import pytest

from mtl.probes.report.page_part import Answer, estimates_in
from mtl.probes.statistics.significance import CANNOT_TELL


def test_estimates_are_the_rows_of_a_table_and_what_is_not_known_is_null():
    table = pl.DataFrame(
        {
            "setup": ["all", "pair"], "task": ["dep", ""], "loss": [1.5, float("nan")],
            "low": [0.5, float("-inf")], "high": [2.5, None], "p": [0.01, None], "runs": [3, None],
        }
    )  # fmt: skip
    found = estimates_in("sharing", table, ("setup", "task"), "loss", "points", "runs", n_of="seeds")
    answer = Answer("Does it?", CANNOT_TELL, "why", "limit", estimates=found)
    record = json.loads(json.dumps(answer.record(), allow_nan=False))
    same = {"level": 0.95, "unit": "points", "word": "", "n_of": "seeds", "source": "sharing"}
    assert record["question"] == "Does it?"
    assert record["estimates"] == [
        {"what": "all, dep", "estimate": 1.5, "low": 0.5, "high": 2.5, "p": 0.01, "n": 3} | same,
        {"what": "pair", "estimate": None, "low": None, "high": None, "p": None, "n": None} | same,
    ]
    (bare,) = estimates_in("wanted", table[:1].drop("low", "high", "p"), ("task",), "loss", "index", "runs")
    assert (bare.low, bare.high, bare.level, bare.p, bare.n_of) == (None, None, None, None, "runs")


PACKAGES = (
    "mtl.probes.report",
    *(["mtl.probes.stem_cell"] if find_spec("mtl.probes.stem_cell") else ()),
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
