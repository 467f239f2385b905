"""Tables as LaTeX, CSV and parquet."""

from __future__ import annotations

import shutil
import subprocess

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mtl.probes.tables.table_files import FORMATS, escape, latex, write_table_file


@pytest.fixture
def table():
    return pl.DataFrame(
        {
            "first_task": ["A&B", "50 %", r"nsubj:pass_{x}\~^"],
            "open": [3, 12, -1],
            "p": [0.04, 4.2e-7, None],
            "loss": [-0.123, 0.0, float("nan")],
            "contested": [True, False, None],
        }
    )


def test_latex_by_hand(table):
    assert latex(table).splitlines() == [
        r"\begin{tabular}{lrrrl}",
        r"\toprule",
        r"first task & open & p & loss & contested \\",
        r"\midrule",
        r"A\&B & 3 & 0.04 & $-$0.12 & True \\",
        r"50 \% & 12 & $4.2\cdot 10^{-7}$ & 0.00 & False \\",
        r"nsubj:pass\_\{x\}\textbackslash{}\textasciitilde{}\textasciicircum{} & $-$1 & -- & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_small_negative_and_infinite_numbers():
    text = latex(pl.DataFrame({"x": [-4.2e-7, float("inf"), -float("inf"), -0.004]}), decimals=2)
    rows = text.splitlines()[4:-2]
    assert rows == [
        r"$-4.2\cdot 10^{-7}$ \\", r"$\infty$ \\", r"$-\infty$ \\", r"$-4.0\cdot 10^{-3}$ \\"
    ]  # fmt: skip


def test_no_special_character_is_left_bare():
    special = r"\{}$&%#_~^<>"
    bare = escape(special)
    for command in ("textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater"):
        assert bare.count(f"\\{command}{{}}") == 1
        bare = bare.replace(f"\\{command}{{}}", "")
    assert bare == r"\{\}\$\&\%\#\_"
    assert escape("obl:npmod") == "obl:npmod"


def test_csv_and_parquet_hold_the_same_values(table, tmp_path):
    paths = {kind: tmp_path / f"table.{kind}" for kind in FORMATS}
    for kind, path in paths.items():
        write_table_file(table, path, kind)
    assert_frame_equal(pl.read_parquet(paths["parquet"]), table)
    assert_frame_equal(pl.read_csv(paths["csv"]), table)
    assert paths["tex"].read_text() == latex(table)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX on this machine")
def test_latex_compiles(table, tmp_path):
    document = (
        rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{latex(table)}\end{{document}}"
    )
    (tmp_path / "t.tex").write_text(document)
    subprocess.run(
        ["pdflatex", "-interaction=batchmode", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True
    )


HOSTILE = [
    "[x]",
    "*",
    "",
    "null",
    "NaN",
    "1.0",
    "a,b",
    'say "x"',
    "a\nb",
    " a ",
    "#",
    "--",
    "é😀",
    "\\",
    "a&b",
    "'",
]


def test_hostile_texts_survive_csv_and_parquet(tmp_path):
    table = pl.DataFrame({"word": [*HOSTILE, None], "n": [*range(len(HOSTILE)), None]})
    for kind in ("csv", "parquet"):
        write_table_file(table, tmp_path / f"t.{kind}", kind)
    assert_frame_equal(pl.read_parquet(tmp_path / "t.parquet"), table)
    assert_frame_equal(pl.read_csv(tmp_path / "t.csv", schema=table.schema), table)


def test_a_row_of_latex_is_one_line_and_no_argument_of_the_row_before():
    rows = latex(pl.DataFrame({"word": HOSTILE})).splitlines()[4:-2]
    assert len(rows) == len(HOSTILE)
    assert not any(row.startswith(("[", "*")) for row in rows)
    assert rows[:2] == [r"{}[x] \\", r"{}* \\"]
