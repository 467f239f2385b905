"""Pieces of evidence: one made up here is gathered, shown and printed; there may be none."""

from __future__ import annotations

import polars as pl
import pytest
from markupsafe import Markup

from mtl.errors import InputError
from mtl.features import Evidence
from mtl.probes.report.page_part import Answer, PageData, PagePart, Section, ShownEvidence
from mtl.probes.report.report import report_page
from mtl.runs.figures import table as registry
from mtl.runs.report import gather as gather_module
from mtl.runs.report.gather import RunsRead, gather
from tests.mtl.studies import SCORES, Study

pytestmark = pytest.mark.usefixtures("undrawn")


def number_of_runs(read: RunsRead) -> tuple[pl.DataFrame, list[str]]:
    return pl.DataFrame({"runs": [len(read.runs)]}), ["runs were counted"]


def twice(read: RunsRead) -> tuple[pl.DataFrame, tuple[str, ...]]:
    return read.tables["number"] * 2, ()


def broken(read: RunsRead) -> tuple[None, tuple[str, ...]]:
    raise InputError("no such file: make it")


PIECES = {
    "number": Evidence("the number", table=f"{__name__}:number_of_runs"),
    "twice": Evidence("twice the number", table=f"{__name__}:twice"),
    "broken": Evidence("broken things", table=f"{__name__}:broken"),
    "untold": Evidence("nothing"),
}


@pytest.fixture
def study(tmp_path) -> Study:
    study = Study(tmp_path / "study")
    for task in ("pos", "dep"):
        study.run([task], 1)
    return study


def test_tables_are_gathered_in_their_order_and_what_fails_is_a_note(study, monkeypatch):
    monkeypatch.setattr(gather_module, "evidence", lambda: PIECES)
    data = gather(study.root, "test", SCORES)
    assert {name: table["runs"].to_list() for name, table in data.evidence.items()} == {
        "number": [2], "twice": [4],
    }  # fmt: skip
    assert "runs were counted" in data.notes
    assert "broken things are left out: no such file: make it" in data.notes


def test_a_part_has_its_answer_section_words_and_lines(study):
    table = pl.DataFrame({"a": [1]})

    def answer(page: PageData) -> Answer:
        return Answer("How many?", "two", "there are two runs", "why", tables={"many": table})

    def shown(page: PageData) -> ShownEvidence:
        assert page.claims.by is not None
        return ShownEvidence(
            lead=Markup("<p>the lead</p>"),
            sections=[Section("mine", "My section", Markup('<section id="mine">text</section>'))],
            terms={"skill": [("knack", Markup("what's easy"))]},
            on_overlap="Said beside overlap.",
            style=".mine { color: red; }",
            tables={"my-table": table},
            printed={"my-table": table.select(b="a")},
            notes=["a note"],
            lines=["a line"],
        )

    page = report_page(gather(study.root, "test", SCORES), parts=[PagePart(answer, shown)])
    answered, *_, line, _, _ = page.lines()
    assert (answered, line) == ("How many? Two: there are two runs.", "a line")
    assert "note: a note" in page.lines()
    assert "a note" in page.record()["notes"]
    assert {"many", "my-table"} <= page.tables.keys()
    assert page.printed["my-table"].columns == ["b"]
    for text in (
        '<a href="#mine">My section</a>', "<p>the lead</p>", '<section id="mine">text</section>',
        "<dt>knack</dt><dd>what's easy</dd>\n<dt>seed</dt>", " Said beside overlap.</p>", ".mine { color",
    ):  # fmt: skip
        assert text in page.html, text


def test_runs_of_one_task_ask_nothing(tmp_path):
    study = Study(tmp_path / "study")
    study.run(["pos"], 1)

    def answer(page: PageData) -> Answer:
        raise AssertionError

    assert report_page(gather(study.root, "test", SCORES), parts=[PagePart(answer)]).answers == ()


def test_without_features_there_is_no_evidence(study, monkeypatch):
    monkeypatch.setattr(registry, "added", lambda rows: {})
    registry.evidence.cache_clear()
    try:
        assert registry.evidence() == {}
        assert registry.page_parts() == ()
        assert gather(study.root, "test", SCORES).evidence == {}
    finally:
        registry.evidence.cache_clear()
