"""Numbers and nouns in messages agree, and values look as in files."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtl.tasks.in_words import as_json, as_text, counted

ROOT = Path(__file__).parents[2]
NOUNS = (
    "batches|blocks|brackets|bytes|cells|characters|classes|columns|components|cores|digits|documents|draws|"
    "encoders|entities|entries|epochs|evaluations|fields|figures|files|folders|gates|groups|heads|instances|"
    "items|jobs|keys|labels|languages|layers|letters|levels|lines|masks|measures|metrics|models|nodes|numbers|"
    "pairs|parameters|parts|passes|pictures|pieces|places|positions|predicates|probes|processes|ranks|roots|"
    "rows|runs|seeds|sentences|settings|setups|sites|spans|steps|subwords|tables|tabs|tags|tasks|tensors|"
    "texts|threads|tokens|translations|trees|trials|units|updates|values|windows|words|workers"
)
PLURAL = re.compile(rf" (?:(?!has\b|have\b|holds\b|with\b)\w+ )?(?:{NOUNS})\b(?!')|\w*\(s\)| \w+\(s\)")
COUNT = re.compile(
    r"(len|sum|min|max)\(.*\)|.*\.(total|n_unique)\(\)|[a-z_]*(s|number|count|total|left_out|needed)"
)


def test_counts_and_values_in_words() -> None:
    assert [counted(number, "run") for number in (0, 1, 1200)] == ["0 runs", "1 run", "1,200 runs"]
    assert counted(1, "entry", "entries") == "1 entry"
    assert counted(2, "entry has", "entries have") == "2 entries have"
    assert as_json([None, True, "ä"]) == '[null, true, "ä"]'
    assert as_json("a") == "'a'"
    assert as_text("a") == "a"
    assert as_text(None) == "null"
    assert as_text("x" * 61) == "x" * 60 + "…"
    assert as_json({"a": Path("b")}) == '{"a": "b"}'


def uncounted(source: str) -> Iterator[str]:
    """Numbers in f-strings before a noun that is always in the plural; constants are left out."""
    texts = (node.values for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr))
    for value, after in itertools.chain.from_iterable(map(itertools.pairwise, texts)):
        if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
            number, spec = ast.unparse(value.value), ast.unparse(value.format_spec or ast.Constant(""))
            is_count = COUNT.fullmatch(number) or "," in spec
            if is_count and not number.isupper() and PLURAL.match(str(after.value)):
                yield f"{value.lineno}: {{{number}}}{after.value}"


def test_what_finds_counts_finds_them() -> None:
    for text in ("{len(x)} runs have", "{seeds} seeds of", "{n:,} annotated words", "{len(x)} bracket(s)"):
        assert list(uncounted(f'f"{text}"'))
    assert not list(uncounted("f\"{counted(len(x), 'run')} of {name} runs, {MOST} words, {runs} of\""))


@pytest.mark.parametrize("room", ["mtl", "probes", "tasks"])
def test_every_count_agrees_with_its_noun(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{each}"
        for path in sorted((ROOT / room).rglob("*.py"))
        if not any(part.is_symlink() for part in path.parents)
        for each in uncounted(path.read_text())
    ]
    assert not found, "\n".join(found)
