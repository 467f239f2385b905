"""Two places that show one quantity show one number; no fact of the page is in a title alone."""

from __future__ import annotations

import re

import polars as pl
import pytest
from markupsafe import Markup

from mtl.probes.figures.head_maps import correlation_matrix
from mtl.probes.report.page_part import number
from mtl.probes.report.report import report_page
from mtl.probes.statistics.head_values import VALUE_UNITS, label_values
from mtl.probes.tables.table_files import in_print, latex, markdown_table
from mtl.runs.figures.table import draw
from mtl.runs.report.gather import gather
from tests.mtl.studies import SCORES, Study


def forced_study(root):
    """The evidence of a study of two tasks alone and jointly whose masks were forced in part."""
    study = Study(root)
    study.static()
    for seed in (1, 2, 3):
        for task, learned in (("pos", 3), ("dep", 2)):
            study.force(study.run([task], seed), {task: learned})
        study.run(["pos", "dep"], seed, scope="per_task")
    return gather(study.root, "test", SCORES)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    evidence = forced_study(tmp_path_factory.mktemp("one") / "study")
    return evidence, report_page(evidence)


def cells(html, section, row=r"<tr.*?</tr>"):
    """The texts of the cells of every row of a section's tables."""
    part = re.search(rf'<section id="{section}".*?</section>', html, re.S)[0]
    rows = re.findall(row, part, re.S)
    return [
        [
            " ".join(Markup(re.sub(r"<[^>]+>", " ", cell)).unescape().split())
            for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", one, re.S)
        ]
        for one in rows
    ]


def words(html):
    return " ".join(Markup(re.sub(r"<(script|style).*?</\1>", "", html, flags=re.S)).striptags().split())


def test_the_number_of_runs(made):
    evidence, page = made
    listed = [row for row in cells(page.html, "provenance") if row and row[0].startswith("runs/")]
    assert len(listed) == evidence.runs.height == page.tables["runs"].height == 9
    text = words(page.html)
    assert f"{len(listed)} runs of" in text
    commits = re.search(r"Code: (.*?\))\.", text)
    assert commits is not None
    assert sum(int(runs) for runs in re.findall(r"\((\d+) runs?\)", commits[1])) == len(listed)


def test_claims_are_counted_alike_everywhere(made):
    _, page = made
    text = words(page.html)
    for setup in ("STL, dynamic", "MTL-2, dynamic, a mask per task"):
        claims = page.tables["claims"].filter(setup=setup)
        name = re.sub(r"[^\w.+-]+", "-", setup)
        if f"overlap-{name}" not in page.tables:
            continue
        overlap = page.tables[f"overlap-{name}"].row(0, named=True)
        counts = {
            row["task"]: (row["claimed"], row["claimed"] - row["opened_by_force"])
            for row in claims.iter_rows(named=True)
        }
        assert counts[overlap["first"]] == (overlap["open_first"], overlap["learned_first"])
        assert counts[overlap["second"]] == (overlap["open_second"], overlap["learned_second"])
        shown = next(
            row for row in cells(page.html, "overlap") if row[:2] == [overlap["first"], overlap["second"]]
        )
        assert shown[2] == overlap["finding"]
        assert shown[6].split()[0] == str(overlap["common"])
        assert shown[8].split()[0] == number(overlap["jaccard"], 2)
    alone = page.tables["claims"].filter(setup="STL, dynamic")
    in_words = ", ".join(
        f"{task} {claimed}" + (f" (training chose {claimed - forced})" if forced else "")
        for task, claimed, forced in alone.select("task", "claimed", "opened_by_force").iter_rows()
    )
    assert in_words in text  # below the map of claims


def test_correlations_of_page_and_figure(made):
    _, page = made
    table = page.tables["correlation-STL-dynamic"]
    drawn = [text.get_text() for text in correlation_matrix(table).axes[0].texts]
    on_page = [
        cell.split()[0] for row in cells(page.html, "overlap") for cell in row[1:] if len(cell.split()) == 2
    ]
    for first, second, paper, pairwise in table.iter_rows():
        assert f"{100 * paper:.0f}" in drawn, (first, second)
        assert number(paper, 2) in on_page
        assert pairwise is not None


def test_labels_have_the_pages_units_in_latex(made):
    evidence, page = made
    labels = in_print(label_values(evidence.heads), VALUE_UNITS)
    rows = {tuple(row[:2]): row for row in cells(page.html, "labels") if len(row) > 4}
    for row in labels.iter_rows(named=True):
        shown = next(
            cells
            for (task, label), cells in rows.items()
            if (task, label.rstrip(" *")) == (row["task"], row["label"])
        )
        assert shown[3] == number(row["chance, %"], 1)
        assert number(row["stl, %"], 1) in shown


def test_scores_of_page_table_and_seeds(made):
    evidence, page = made
    rows = cells(page.html, "scores")
    for setup, task, seed, _, score in evidence.scores.iter_rows():
        assert [setup, task, str(seed), number(score, 2)] in rows
    table = page.tables["scores-by-setup"]
    shown = next(row for row in rows if row[0].startswith("STL, dynamic"))
    mean, spread = table.row(0, named=True)["pos"].split(" ± ")
    assert shown[1].startswith(mean)
    assert f"± {spread}" in shown[1]


def test_the_table_for_papers_has_the_pages_numbers_and_the_best_in_bold(made):
    _, page = made
    printed, exact = page.printed["scores-by-setup"], page.tables["scores-by-setup"]
    for column in exact.drop("setup", "seeds").columns:
        texts = printed[column].to_list()
        values = [None if text is None else float(text.strip("*").split(" ")[0]) for text in texts]
        known = [value for value in values if value is not None]
        bold = [text is not None and text.startswith("**") and text.endswith("**") for text in texts]
        assert bold == [value == max(known) and len(known) > 1 for value in values]
        assert known == [round(float(str(value).split(" ")[0]), 2) for value in exact[column].drop_nulls()]
    last = printed.row(-1, named=True)
    assert any("(\N{MINUS SIGN}" in str(text) for text in last.values())
    assert last["against"] in printed["setup"].to_list()
    assert "run" not in page.printed["scores"].columns
    first = markdown_table(printed).splitlines()[2]
    assert first.startswith(f"| {printed['setup'][0]} | ")
    assert r"\textbf{" in latex(printed)
    assert "**" not in latex(printed)


def test_open_heads_of_masks_and_of_the_curve_of_scores(made):
    evidence, page = made
    kept = dict(
        evidence.kept.table.filter(setup="STL, dynamic")
        .select(pl.format("{} {}", "task", "seed"), "kept")
        .iter_rows()
    )
    titles = re.findall(r"mask of (\w+), seed (\d), STL, dynamic: (\d+) of 12 heads open", page.html)
    assert {f"{task} {seed}": int(count) for task, seed, count in titles} == kept


def test_no_fact_is_in_a_title_alone(made):
    _, page = made
    html = re.sub(r"<script.*?</script>", "", page.html, flags=re.S)
    titled = re.findall(r"<(\w+)[^>]*\stitle=\"([^\"]*)\"[^>]*>(.*?)</\1>", html, re.S)
    for name, title, inside in titled:
        assert name == "button", title
        assert title in Markup(inside).striptags()
    assert len(titled) == 1


def test_a_diagonal_says_of_which_seeds_it_is(tmp_path):
    study = Study(tmp_path)
    runs = {
        (task, seed): study.run([task], seed, probe=False) for task in ("pos", "dep") for seed in (1, 2, 3, 4)
    }
    of_four = draw("correlation", list(runs.values())).notes
    assert of_four == ("the diagonal is of seeds 1, 2, 3, the first three of 4",)
    assert draw("correlation", [run for (_, seed), run in runs.items() if seed < 4]).notes == ()


def test_the_first_numbers_name_their_unit_and_what_they_are_compared_with(tmp_path):
    study = Study(tmp_path / "study")
    for seed in (1, 2, 3):
        for tasks in (["pos"], ["dep"], ["pos", "dep"]):
            study.run(tasks, seed, pruning="none", probe=False)
    html = report_page(gather(study.root, "test", SCORES)).html
    assert cells(html, "cost")[0] == ["task", "STL, %", "MTL-2, %", "difference, points"]
    card = words(re.search(r'<section id="cost".*?</section>', html, re.S)[0])
    assert "against each task alone" in card
    assert "on test" in card
    assert "Means of the 3 seeds with which a task was trained both alone and jointly. The diff" in card


def test_one_seed_is_said_to_have_no_interval(tmp_path):
    study = Study(tmp_path / "study")
    for seed in (1, 2):
        for tasks in (["pos"], ["dep"], ["pos", "dep"]):
            study.run(tasks, seed, pruning="none", probe=False)
        html = report_page(gather(study.root, "test", SCORES)).html
        card = words(re.search(r'<section id="cost".*?</section>', html, re.S)[0])
        assert ("One seed has no interval over runs; mtl compare gives one over sentences." in card) == (
            seed == 1
        )
