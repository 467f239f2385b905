"""Checks that all files of a report have one split, one set of claims and one appearance."""

from __future__ import annotations

import io
import json
import re
from html import unescape
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from mtl.commands.report import report
from mtl.files import write_json
from mtl.probes.report.page_part import number
from mtl.probes.report.report import BY_SETUP
from mtl.probes.sites import by_name
from mtl.probes.tables.table_files import in_print, undeclared
from mtl.runs.figures.drawn import FigureWithTables
from mtl.runs.report.gather import source_of
from mtl.runs.report.write import made_report, write_report
from tests.mtl.runs.report.test_one_number import cells
from tests.mtl.studies import SCORES


def on_dev(folder: Path) -> None:
    """Scores on dev are other than those on test, in every run."""
    for path in sorted(folder.glob("runs/*/metrics.json")):
        metrics = json.loads(path.read_text())
        for place, scores in enumerate(metrics["dev"].values()):
            for name in scores:
                scores[name] -= 7 + place + 0.01 * len(path.parent.name)
        write_json(path, metrics)


def agree(folder: Path, split: str, claims: str | None, drawn: dict[str, FigureWithTables]) -> None:
    """All numbers that files of the report share are the same, and are of this split and these claims."""
    html = (folder / "report.html").read_text()
    told = json.loads((folder / "answers.json").read_text())
    assert told["split"] == split
    assert re.findall(r"Scores on (\w+) in per cent", html) == [split]
    if claims is not None:
        assert told["claims"] == claims
        assert re.search(r"in more than half of the seeds \((.*?): [a-z]+ \d", html)[1] == claims
    # Every run's score: its own file, the table, and the page.
    scores = pl.read_csv(folder / "tables" / "scores.csv")
    assert all(f"score: on {split}" in note for note in scores["notes"])
    rows = cells(html, "scores")
    for row in scores.iter_rows(named=True):
        metrics = json.loads((Path(row["run"]) / "metrics.json").read_text())
        assert row["score"] == pytest.approx(metrics[split][row["task"]][SCORES[row["task"]]])
        assert [row["setup"], row["task"], str(row["seed"]), number(row["score"], 2)] in rows
    # Means over seeds, in three files and on the page.
    text = (folder / "tables" / "scores-by-setup.md").read_text()
    assert f"scores on {split} in %" in text
    assert f"scores on {split} in %" in (folder / "tables" / "scores-by-setup.tex").read_text()
    for (setup, task), of_cell in scores.group_by("setup", "task"):
        mean = f"{of_cell['score'].mean():.2f}"
        assert mean in next(line for line in text.splitlines() if line.startswith(f"| {setup} |")), task
    assert r"\textbf{" in (folder / "tables" / "scores-by-setup.tex").read_text()
    for path in (folder / "tables").glob("*.csv"):
        [units] = set(pl.read_csv(path).to_dict().get("notes", [""])) or {""}
        titles = path.with_suffix(".tex").read_text().splitlines()[2].removesuffix(r" \\").split(" & ")
        for columns, unit in re.findall(
            r"(?:units: |; )([a-z_, ]+) in (differences of shares|shares|%|points)", units
        ):
            printed = {"differences of shares": "points", "shares": r"\%", "%": r"\%"}.get(unit, unit)
            for column in columns.split(", "):
                words = column.replace("_", " ")
                shown = [title for title in titles if title.split(",")[0] == words]  # LaTeX has few columns
                assert shown in ([], [f"{words}, {printed}"]) or path.stem == "scores-by-setup"
    # What the answers rest on.
    tables = {path.stem: pl.read_csv(path) for path in (folder / "tables").glob("*.csv")}
    for answer in told["answers"]:
        assert answer["question"] in html
        for one in answer["estimates"]:
            values = tables[one["source"]].select(pl.selectors.numeric()).to_numpy().ravel().tolist()
            if one["source"] != "wanted" and one["estimate"] is not None:  # wanted: means of the table's rows
                assert any(value == pytest.approx(one["estimate"]) for value in values)
        if answer["word"] != "cannot tell":
            assert answer["reason"][1:] in unescape(html)
    # Figures of scores.
    for stem in {"heads-kept", "curve"} & drawn.keys():
        assert f"scores on {split}" in drawn[stem].notes
        kept = drawn[stem].tables[""]
        assert sorted(kept["score"].unique()) == pytest.approx(
            sorted(scores.filter(pl.col("run").is_in(set(kept["run"])))["score"].unique())
        )


def end(folder: Path) -> str:
    printed = io.StringIO()
    write_report(folder, Console(file=printed, width=500), at_end=True)
    return printed.getvalue()


def agree_after_every_command(
    folder: Path, own: str, claiming: bool, drawn: dict[str, FigureWithTables], other: Path
) -> None:
    """As `agree`, after the command at the end of the runs and after every option of `mtl report`.

    `own` is the split of the folder's source, `claiming` whether it has claims to choose, and `other` a
    folder for pages elsewhere.
    """
    end(folder)
    agree(folder, own, None, drawn)
    first = {path: path.read_bytes() for path in folder.glob("*.*")}
    tables = {path: path.read_bytes() for path in (folder / "tables").glob("*")}
    for split in ("dev", "test"):
        report(folder, split=split)
        agree(folder, split, None, drawn)
    if claiming:
        for claims in ("STL, static", "STL, dynamic"):
            report(folder, claims=claims)
            agree(folder, own, claims, drawn)
            report(folder, claims=claims, split="dev")
            agree(folder, "dev", claims, drawn)
    # Another place for the page leaves all the others as they are.
    report(folder)
    agree(folder, own, None, drawn)
    report(folder, out=other / "other.html", split="dev", json_out=other / "other.json")
    assert json.loads((other / "other.json").read_text())["split"] == "dev"
    assert "Scores on dev in per cent" in (other / "other.html").read_text()
    assert {path: path.read_bytes() for path in first} == first
    assert {path: path.read_bytes() for path in tables} == tables
    # A run that was evaluated again changes all of them.
    path = sorted(folder.glob("runs/*/metrics.json"))[0]
    metrics = json.loads(path.read_text())
    for split in metrics.values():
        for scores in split.values():
            for name in scores:
                scores[name] = 12.34
    write_json(path, metrics)
    report(folder)
    agree(folder, own, None, drawn)
    assert "12.34" in (folder / "report.html").read_text()
    end(folder)
    agree(folder, own, None, drawn)


def all_have_units(folder: Path) -> None:
    """Every place in every table has a unit, which its printed form follows; a paper has room for LaTeX's."""
    source = source_of(folder)
    page, _ = made_report(source, source.split)
    for name, table in page.tables.items():
        about = page.about.get(name)
        assert undeclared(table, about.units if about else {}) == [], name
        if about and name != BY_SETUP:  # which has a column for each task
            paper = in_print(page.printed.get(name, table), about.units, about.paper)
            assert by_name(paper).width <= 7, name
        printed = in_print(table, about.units if about else {})
        for column, title in zip(table.columns, printed.columns, strict=True):
            if title.endswith((", points", ", %")) and table[column].drop_nulls().len():
                scale = {"CHANGE": 100, "SHARE": 100}.get(about.units[column].name, 1)
                assert printed[title].to_list() == pytest.approx(
                    [None if value is None else scale * value for value in table[column]], nan_ok=True
                )
