"""From numbers to the word, and from the word to page, console, LaTeX and answers.json, for every answer."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import polars as pl
import pytest

from mtl.commands.report import report
from mtl.files import write_json
from mtl.probes.report.page_part import RISING, Answer, PagePart, estimates_in
from mtl.probes.report.report import MOST_LINES, MOST_NOTES, Page, report_page
from mtl.probes.statistics.significance import CANNOT_TELL
from mtl.probes.tables.table_files import About, ColumnUnit, in_print, latex, read_csv, undeclared
from mtl.runs.report.gather import gather
from tests.kit.absent import needs
from tests.mtl.studies import SCORES, Study

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """POS and DEP alone and jointly without masks, three seeds."""
    study = Study(tmp_path / "s")
    for seed in (1, 2, 3):
        for tasks in (["pos"], ["dep"], ["pos", "dep"]):
            study.run(tasks, seed, pruning="none", probe=False)
    return study


def card(word: str, scope: str) -> str:
    """How the page shows a word."""
    return f'<span class="word {word.replace(" ", "-")}">{word}</span>' + (f" {scope}" if scope else "")


def line_of(question: str, word: str, scope: str, reason: str) -> str:
    """What a terminal gets of an answer that is the only one."""
    if word == CANNOT_TELL:
        return f"These runs cannot tell: {question} The page says what would."
    said = f"{word}, {scope}" if scope else word
    return f"{question} {said[0].upper()}{said[1:]}: {reason}."


@pytest.mark.parametrize("scope", ["", "for pos"])
@pytest.mark.parametrize("word", ["yes", "no", "supported", "refuted", CANNOT_TELL])
def test_any_word_and_number_of_an_answer_are_in_all_places(study: Study, word: str, scope: str) -> None:
    table = pl.DataFrame(
        {"task": ["pos", "dep"], "loss": [0.123, -0.045], "low": [0.1, None], "p": [0.5, 1.0]}
    )
    units = ColumnUnit.CHANGE.of("loss", "low") | ColumnUnit.P.of("p")
    answer = Answer(
        "Is it so?", word, "the reason", "the limit", tables={"planted": table}, command="mtl study FILE",
        about={"planted": About(units)}, scope=scope,
        estimates=estimates_in("planted", table, ("task",), "loss", "shares", "runs", n_of="runs"),
    )  # fmt: skip
    data = gather(study.root, "test", SCORES)
    page = report_page(data, None, [PagePart(answer=lambda _: answer)])
    assert page.html.count(card(word, scope)) == (0 if word == CANNOT_TELL else 2)
    assert ("<b>Is it so?</b> Run: <code>mtl study FILE</code>" in page.html) == (word == CANNOT_TELL)
    [cost] = re.findall(r'<section id="cost".*?</section>', page.html, re.S)
    assert ("These runs cannot tell</a>:</b> Is it so?</p>" in cost) == (word == CANNOT_TELL)
    assert page.html.count("The reason.") == 1
    assert line_of("Is it so?", word, scope, "the reason") in page.lines()
    [told] = page.record()["answers"]
    assert (told["word"], told["scope"]) == (word, scope)
    assert [one["estimate"] for one in told["estimates"]] == [0.123, -0.045]
    assert undeclared(page.tables["planted"], page.about["planted"].units) == []
    printed = latex(in_print(page.tables["planted"], page.about["planted"].units), units=units)
    assert r"loss, points & low, points & p" in printed
    assert r"pos & 12.30 & 10.00 & 0.50" in printed
    assert r"dep & $-$4.50 & -- & 1.00" in printed


@pytest.mark.parametrize("rise", [0.5, 5.0])
def test_open_questions_begin_with_longer_training_where_scores_rise(study: Study, rise: float) -> None:
    answer = Answer("Is it so?", CANNOT_TELL, "the reason", "the limit", command="mtl study FILE")
    data = gather(study.root, "test", SCORES)
    risen = replace(data, history=data.history.with_columns(score=pl.col("update").rank("dense") * rise))
    html = report_page(risen, None, [PagePart(answer=lambda _: answer)]).html
    assert ("<b>Train longer first</b>" in html) == (rise > RISING)


@pytest.mark.parametrize(("told", "open", "notes"), [(0, 0, 0), (1, 2, 2), (3, 1, 3), (2, 0, 9), (9, 9, 0)])
def test_a_terminal_gets_few_lines_and_is_told_of_the_others(told: int, open: int, notes: int) -> None:
    words = ["yes"] * told + [CANNOT_TELL] * open
    asked = tuple(Answer(f"Is it {n}?", word, "so", "limit") for n, word in enumerate(words))
    page = Page("", tuple(f"note {n}" for n in range(notes)), dict, asked)
    lines = page.lines(["first"], ["last"])
    every = told + (open > 0) + notes + 2
    assert len(lines) == min(every, told + (open > 0) + MOST_NOTES + 1, MOST_LINES)
    if len(lines) < every:
        assert lines[-1].startswith(f"{every - len(lines) + 1} more line")
        assert lines[-1].endswith(": on the page")
        assert page.lines(["first"], ["last"], "in a file")[-1].endswith(": in a file")
    assert page.record(["first"], ["last"])["notes"] == ["first", *page.notes, "last"]
    assert told > 3 or "note: first" in lines


WORLDS = [
    ({"pos": 6.0, "dep": 0.0}, "yes", "for pos"), ({"pos": 6.0, "dep": 5.0}, "yes", ""),
    ({"pos": 0.0, "dep": -3.0}, "no", ""), ({"pos": 0.02, "dep": 0.01}, "no", ""),
]  # fmt: skip
"""Planted losses of joint training, in points, with the word on sharing and whom it holds for."""


@needs("stem_cell")
@pytest.mark.parametrize(("losses", "word", "scope"), WORLDS)
def test_planted_losses_have_their_word_in_all_places(study, capsys, losses, word, scope) -> None:
    for path in sorted(study.root.glob("runs/*/metrics.json")):
        seed, tasks = int(path.parent.name[-1]), list(json.loads(path.read_text())["test"])
        of_task = {task: 90 + 0.05 * seed - (len(tasks) > 1) * losses[task] for task in tasks}
        write_json(path, {"test": {task: {SCORES[task]: value} for task, value in of_task.items()}})
    report(study.root)
    printed, html = capsys.readouterr().out, unescape((study.root / "report.html").read_text())
    told = json.loads((study.root / "answers.json").read_text())["answers"]
    [sharing] = [one for one in told if one["question"] == "Does sharing an encoder hurt?"]
    assert (sharing["word"], sharing["scope"]) == (word, scope)
    table = read_csv(study.root / "tables" / "sharing.csv")
    tex = (study.root / "tables" / "sharing.tex").read_text()
    for one in sharing["estimates"]:
        row = table.filter(pl.format("{}, {}", "setup", "task") == one["what"]).row(0, named=True)
        assert [one["estimate"], one["low"], one["high"]] == [row["loss"], row["low"], row["high"]]
        if one["low"] is not None:  # the interval is that by which the word was decided
            assert (one["low"] > 0 or one["high"] < 0) == (row["p_holm"] <= 0.05)
            interval = f"{row['low']:.2f} to {row['high']:.2f}".replace("-", "$-$")
            shown = rf"{one['what'].replace(', ', ' & ')} & \d+ & [^&]*{abs(row['loss']):.2f} & "
            assert re.search(shown + re.escape(interval), tex)
            assert one["estimate"] == pytest.approx(losses[row["task"]], abs=1e-6)
    for one in told:
        if one["word"] != CANNOT_TELL:
            line = line_of(one["question"], one["word"], one["scope"], one["reason"])
            assert line in printed.replace("\n", " ")
    left = [one["question"] for one in told if one["word"] == CANNOT_TELL]
    assert f"These runs cannot tell: {' '.join(left)} The page says what would." in printed.replace("\n", " ")
    for one in told:
        assert one["question"] in html
        assert html.count(f"{one['question']} {card(one['word'], one['scope'])}") == (
            0 if one["word"] == CANNOT_TELL else 1
        )
