"""Tables on narrow terminals."""

from __future__ import annotations

import ast
import io
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

import mtl
from mtl.commands.common import print_table

NUMBERS = st.floats(-1e4, 1e4).map(lambda value: f"{value:+.2f}")
CELLS = st.one_of(NUMBERS, st.tuples(NUMBERS, NUMBERS).map(" to ".join))


@given(
    st.lists(st.tuples(st.text("abcdef_", min_size=1, max_size=30), CELLS, CELLS), max_size=4),
    st.integers(8, 120),
)
def test_no_digit_is_cut_on_a_terminal_of_any_width(rows, width):
    table = Table(title="a title that is long")
    table.add_column("task")
    for name in ("difference", "other sentences"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    out = io.StringIO()
    print_table(table, Console(file=out, width=width))
    printed = out.getvalue()
    assert "…" not in printed
    for _, *numbers in rows:
        for number in numbers:
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", printed)


def test_every_table_of_a_command_is_printed_in_this_way():
    """Each place that makes a table prints it with `print_table`, or at its own width, and with units."""
    printed = 0
    for path in sorted(Path(mtl.__file__).parent.rglob("*.py")):
        text = path.read_text()
        if re.search(r"[^\w]Table\(", text) and "from rich.table import Table" in text:
            printed += 1
            # Printed here, made for a command that prints it, or with columns as wide as their numbers.
            assert any(way in text for way in ("print_table(", "-> Table:", "min_width=longest")), path
            for function in ast.walk(ast.parse(text)):
                code = ast.get_source_segment(text, function) if isinstance(function, ast.FunctionDef) else ""
                if (
                    code
                    and re.search(r"[^\w]Table\(", code)
                    and re.search(r":[+,]*\.\d[fg%e]|per_cent\(", code)
                ):
                    assert re.search(r"in %|, %|% of|:\.\d%|points|\bms\b|seconds|OF_MEASURES|\"%\"", code), (
                        path,
                        function.name,
                    )
            assert not re.search(r"\.print\((shown|table|_?\w*table\([^)]*\))\)", text), path
    assert printed >= 8
