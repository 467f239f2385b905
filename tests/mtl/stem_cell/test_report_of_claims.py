"""What the report's page says on claims and losses."""

from __future__ import annotations

import re

import polars as pl
import pytest

from mtl.probes.report.data import claim_sets
from mtl.probes.report.page_part import chance
from mtl.probes.report.report import masks_by_setup
from mtl.probes.stem_cell.competition import by_claims
from mtl.probes.tables import heads_table
from mtl.runs.report.gather import gather
from tests.mtl.runs.report.test_gather import page_of, with_static_masks
from tests.mtl.studies import SCORES, TASKS, Study

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path / "study")


@pytest.mark.slow
def test_a_planted_cost_is_found_and_none_is_not(tmp_path, capsys):
    assert page_of(Study(tmp_path / "cost", 6, 8, cost=0.3).small()).says(
        "Do heads that more tasks claim lose more skill in joint training? Claims and loss go together."
    )
    assert "lose more of their skill in joint training? Yes (" in capsys.readouterr().out
    page = page_of(Study(tmp_path / "none", 6, 8, cost=0.0).small())
    assert page.says("No sign that claims and loss go together.")
    assert "upported" not in " ".join(page.text)


@pytest.mark.slow
def test_two_seeds_are_too_few_for_a_verdict(study):
    page = page_of(study.small(seeds=(1, 2)))
    assert page.says("Too few runs to say:")
    assert not page.says("Do heads that more tasks claim lose more skill")  # no word on the first screen


def rows_of(folder):
    """The table of claims, as the page has it: by setup its cells."""
    text = (folder / "report.html").read_text(encoding="utf-8")
    block = text.split("By whose claims</h3>")[1].split("</table>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr.*?</tr>", block, re.S)[1:]]
    return {row[0]: row[1:] for row in rows}, re.findall(r'class="strong"><td>(.*?)</td>', block)


@pytest.mark.slow
def test_competition_stands_by_the_masks_of_every_setup(study, capsys):
    folder = with_static_masks(study)
    study.run(TASKS, 1, scope="shared")  # a mask for all gives no claims
    page = page_of(folder)
    rows, bold = rows_of(folder)
    assert list(rows) == ["STL, dynamic", "STL, static", "MTL-5, dynamic, a mask per task"]
    assert bold == ["STL, dynamic"]
    evidence = gather(folder, "test", SCORES)
    table = by_claims(claim_sets(masks_by_setup(evidence)[0], evidence.setups), evidence.heads)
    for row in table.iter_rows(named=True):
        assert rows[row["claims"]][4:6] == [chance(row["p"]), chance(row["p_holm"])]
    assert table["p"].n_unique() > 1
    assert table["p_holm"].max() > table["p"].max()
    assert page.says("The claims are those of STL, dynamic : by default, of the setups of single-task")
    assert "; kept heads are those of STL, dynamic\n" in capsys.readouterr().out


@pytest.mark.slow
def test_losses_are_in_points_and_positive_where_skill_is_lost(tmp_path):
    page = page_of(Study(tmp_path / "cost", 6, 8, cost=0.3).small())
    assert re.search(
        r"within layers contested heads lose \d+\.\d\d points more than others", " ".join(page.text)
    )
    assert page.says("MTL against STL")
    assert page.says("3 of 3")


@pytest.mark.slow
def test_the_claims_that_decide_can_be_chosen(study, capsys):
    folder = with_static_masks(study)
    page = page_of(folder, claims="STL, static")
    assert rows_of(folder)[1] == ["STL, static"]
    assert page.says("The claims are those of STL, static : chosen with --claims")
    assert "; kept heads are those of STL, static\n" in capsys.readouterr().out


def test_without_masks_or_with_forced_ones_the_page_says_so(study):
    study.run(["pos"], 1, pruning="none", probe=False)
    assert page_of(study.root).says("No masks, so there are no claims to compare with losses.")
    for seed in (1, 2, 3):
        for task, learned in (("pos", 2), ("dep", 1)):
            study.force(study.run([task], seed), {task: learned})
    assert re.search(
        r"Heads that most seeds keep: pos \d+ \(training chose 2\), dep \d+ \(training chose 1\), and the "
        "others were opened by force; no masks of a control task",
        " ".join(" ".join(page_of(study.root).text).split()),
    )


@pytest.mark.slow
def test_the_page_explains_the_laboratorys_words(study):
    page_of(study.small())
    text = (study.root / "report.html").read_text(encoding="utf-8")
    words = re.findall("<dt>(.*?)</dt>", text.partition("</dl>")[0])
    assert words[-8:] == ["learned", "contested", "partner", "worth", "demand", "skill", "loss", "seed"]


@pytest.mark.slow
def test_a_run_that_is_left_out_leaves_too_few_for_a_verdict(study):
    study.small()
    path = study.root / "runs/dep-dynamic-shared-seed1/heads.parquet"
    table, provenance = heads_table.read_heads_table(path)
    heads_table.write_heads_table(path, table.with_columns(value=pl.lit(float("nan"))), provenance)
    assert page_of(study.root).says("probed single-task runs of 2 seeds; at least 3")
    (study.root / "runs/dep-dynamic-shared-seed2/config.yaml").write_text("{tasks: dep, seed: 1}")
    assert page_of(study.root).says("Too few runs to say")
