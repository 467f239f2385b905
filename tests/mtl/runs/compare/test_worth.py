"""What heads are worth, in figures, tables and the report, from made-up run folders."""

from __future__ import annotations

import shutil

import numpy as np
import polars as pl
import pytest
from PIL import Image
from scipy.stats import spearmanr

from mtl.commands.report import figure
from mtl.errors import InputError
from mtl.probes.figures.head_maps import head_maps
from mtl.probes.report.report import report_page
from mtl.probes.statistics.head_values import head_means
from mtl.probes.tables import heads_table
from mtl.runs.compare.heads import worth_of
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_tables import add_importance, write_measures
from mtl.runs.report.gather import gather
from tests.mtl.studies import SCORES, Study

SHAPE = (3, 4)


def planted(run, tasks, seed, *, out=None, scale=1.0):
    """Write importance and ablation, of which head 2 of layer 1 is significant; returns them by task."""
    random = np.random.default_rng(seed)
    values, parts = {}, []
    for task in tasks:
        importance = random.uniform(size=SHAPE)
        loss = scale * importance + 0.1 * random.normal(size=SHAPE)
        q = np.full(SHAPE, 0.5)
        q[1, 2] = 0.01
        values[task] = importance, loss
        named = {
            "importance": importance,
            "ablation": loss,
            "ablation_low": loss - 1,
            "ablation_high": loss + 1,
        }
        for name, cells in {**named, "ablation_p": q / 2, "ablation_q": q}.items():
            parts.append(heads_table.rows(name, task, [""], cells[None], np.array([50])))
    rows = pl.concat(parts)
    path = out or run / "heads.parquet"
    write_measures(path, rows, rows["measure"].unique().to_list(), {"ablation.run": str(run.resolve())})
    return values


@pytest.fixture
def study(tmp_path):
    """Two tasks alone and jointly, with two seeds."""
    made = Study(tmp_path / "study")
    made.static()
    made.truth = {}
    for seed in (1, 2):
        for tasks in (["pos"], ["dep"], ["pos", "dep"]):
            run = made.run(tasks, seed, pruning="none")
            made.truth[run] = planted(run, tasks, 10 * seed + len(tasks))
    return made


def test_the_prediction_figure_and_its_table(study, tmp_path) -> None:
    runs = [run for run in study.truth if run.name.startswith("pos-none")]
    figure("prediction", runs, tmp_path / "prediction.pdf")
    table = pl.read_parquet(tmp_path / "prediction.parquet")
    assert set(table["measure"]) == {"importance", "skill"}
    row = table.row(by_predicate=pl.col("measure") == "importance", named=True)
    expected = [spearmanr(*(cells.ravel() for cells in study.truth[run]["pos"])).statistic for run in runs]
    assert row["spearman"] == pytest.approx(np.mean(expected))
    assert (row["setup"], row["runs"], row["heads"]) == ("STL", 2, 12)
    assert (tmp_path / "prediction.tex").is_file()


def test_agreement_of_tasks_seeds_and_another_table(study, tmp_path) -> None:
    runs = [run for run in study.truth if run.name.startswith("pos-dep")]
    other = tmp_path / "mismatched.parquet"
    planted(runs[0], ["pos", "dep"], 99, out=other)
    figure("agreement", [*runs, other], tmp_path / "agreement.svg")
    table = pl.read_parquet(tmp_path / "agreement.parquet")
    found = {(row["first"], row["second"]): row for row in table.iter_rows(named=True)}
    assert found["pos", "pos"]["pairing"] == "other runs"
    assert (found["pos", "dep"]["pairing"], found["pos", "dep"]["pairs"]) == ("same run", 2)
    across = found["pos", "pos, mismatched"]
    assert (across["pairing"], across["pairs"]) == ("same run", 1)
    elsewhere = np.random.default_rng(99)
    loss = elsewhere.uniform(size=SHAPE) + 0.1 * elsewhere.normal(size=SHAPE)
    expected = spearmanr(study.truth[runs[0]]["pos"][1].ravel(), loss.ravel()).statistic
    assert across["spearman"] == pytest.approx(expected)


def test_a_copy_of_a_run_is_no_further_run(study, tmp_path, capsys) -> None:
    runs = [run for run in study.truth if run.name.startswith("pos-none")]
    copy = shutil.copytree(runs[0], runs[0].with_name("copy"))
    figure("agreement", [*runs, copy], tmp_path / "agreement.svg")
    [row] = pl.read_parquet(tmp_path / "agreement.parquet").rows(named=True)
    assert row["pairs"] == 1
    assert f"note: {copy} repeats {runs[0]}, seed and all: left out" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["agreement", "heads", "prediction"])
def test_a_run_without_the_measure_is_noted(study, tmp_path, capsys, name) -> None:
    runs = [run for run in study.truth if run.name.startswith("pos-none")]
    table, provenance = heads_table.read_heads_table(runs[1] / "heads.parquet")
    rest = table.filter(~pl.col("measure").str.starts_with("ablation"))
    heads_table.write_heads_table(runs[1] / "heads.parquet", rest, provenance)
    both = [run for run in study.truth if run.name.startswith("pos-dep")]
    figure(name, [*runs, *both], tmp_path / "out.svg")
    assert f"note: without ablation, so left out: {runs[1]}\n" in capsys.readouterr().out


def test_the_maps_of_heads_mark_what_is_significant(study, tmp_path) -> None:
    values, notes = worth_of(list(study.truth))
    assert notes == ()
    means = head_means(values, "ablation")
    assert list(means["setup"].unique(maintain_order=True)) == ["STL", "MTL-2"]
    marked = means.filter("significant").select("task", "setup", "layer", "head").rows()
    assert sorted(marked) == [(task, setup, 1, 2) for task in ("dep", "pos") for setup in ("MTL-2", "STL")]
    drawn = head_maps(means, "ablation", "points")
    dots = [line for axes in drawn.axes for line in axes.lines if len(line.get_xdata())]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in dots] == [(2, 1)] * 4
    # Values below zero are told from zero, whatever the measure.
    below = head_maps(means.with_columns(value=pl.col("value") - 10), "syntactic", "skill")
    for axes in below.axes[:4]:
        low, high = axes.images[0].get_clim()
        assert low == -high < 0
    # Kinds of attention are side by side, each with its own heads and marks.
    kinds = [means.with_columns(attention=pl.lit(kind)) for kind in ("encoder", "cross")]
    both = head_maps(
        pl.concat([kinds[0], kinds[1].with_columns(value=-pl.col("value"))]), "ablation", "points"
    )
    shown = {axes.get_title(): axes for axes in both.axes if axes.images}
    assert list(shown) == [
        f"{task}, {setup}\n{kind}"
        for task in means["task"].unique(maintain_order=True)
        for setup in ("STL", "MTL-2")
        for kind in ("encoder", "cross")
    ]
    first, second = (shown[f"pos, STL\n{kind}"].images[0].get_array() for kind in ("encoder", "cross"))
    assert first.shape == SHAPE
    assert np.array_equal(first, -second)
    figure("heads", list(study.truth), tmp_path / "heads.png", measure="importance", tasks=("pos",))
    assert set(pl.read_parquet(tmp_path / "heads.parquet")["task"]) == {"pos"}
    notes = worth_of([next(iter(study.truth))], ("pos", "dpe"))[1]
    assert "has nothing on dpe, only on pos" in " ".join(notes)


def test_what_cannot_be_drawn_is_said(study, tmp_path) -> None:
    runs = list(study.truth)
    out = tmp_path / "no.pdf"
    with pytest.raises(InputError, match="'fisher'; there are ablation, importance"):
        figure("heads", runs, out, measure="fisher")
    with pytest.raises(InputError, match="several seeds or tasks"):
        figure("agreement", runs[:1], out)
    with pytest.raises(InputError, match="importance_every=1"):
        figure("importance-over-time", runs[:1], out)
    stray = tmp_path / "stray.parquet"
    heads_table.write_heads_table(stray, heads_table.read_heads_table(runs[0] / "heads.parquet")[0], {})
    with pytest.raises(InputError, match="run is not known"):
        figure("agreement", [stray], out)
    bare = study.run(["pos"], 7, pruning="none")
    with pytest.raises(InputError, match="nothing on what heads are worth"):
        figure("prediction", [bare], out)


def test_importance_over_time_is_a_picture_or_an_animation(study, tmp_path) -> None:
    run = next(iter(study.truth))
    layer, head = (axis.ravel() for axis in np.indices(SHAPE))
    for step in (5, 10, 20):
        add_importance(
            Run(run),
            pl.DataFrame(
                {
                    "step": step, "task": "pos", "attention": "self", "layer": layer, "head": head,
                    "value": np.random.default_rng(step).uniform(size=12),
                }
            ),
        )  # fmt: skip
    figure("importance-over-time", [run], tmp_path / "time.png")
    assert pl.read_parquet(tmp_path / "time.parquet").height == 36
    figure("importance-over-time", [run], tmp_path / "time.gif")
    with Image.open(tmp_path / "time.gif") as moving:
        assert moving.n_frames == 3
    with pytest.raises(InputError, match="for pos, not for dep"):
        figure("importance-over-time", [run], tmp_path / "time.gif", tasks=("pos", "dep"))


def test_the_report_shows_what_heads_are_worth(study) -> None:
    evidence = gather(study.root, "test", SCORES)
    page = report_page(evidence)
    assert 'id="worth"' in page.html
    assert "What predicts ablation" in page.html
    assert page.html.count('class="dot"') == 4 + 1  # and the legend's
    assert {"head-worth", "prediction", "agreement"} <= set(page.tables)
    assert set(page.tables["prediction"]["setup"]) == {"STL", "MTL-2"}
    # The head's own panel has them with interval and q, a row for each seed.
    assert "points of the score lost without the head" in page.html
    assert "q 0.010" in page.html


def test_a_report_without_such_measures_has_no_such_section(tmp_path) -> None:
    made = Study(tmp_path / "plain")
    made.run(["pos"], 1)
    page = report_page(gather(made.root, "test", SCORES))
    assert 'id="worth"' not in page.html
    assert not any("worth" in note for note in page.notes)


def test_a_run_that_was_only_ablated_keeps_probed_runs_in_the_report(tmp_path) -> None:
    made = Study(tmp_path / "mixed")
    made.static()
    probed = made.run(["pos"], 1, pruning="none")
    ablated = made.run(["pos"], 2, pruning="none", probe=False)
    planted(ablated, ["pos"], 5)
    evidence = gather(made.root, "test", SCORES)
    assert set(evidence.heads["run"]) >= {str(probed), str(ablated)}
    assert not any("other settings" in note for note in evidence.notes)
    assert 'id="worth"' in report_page(evidence).html
