"""Runs with other random labels are repetitions of one condition, and each draw is an observation."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from mtl.config.schema import TrainConfig
from mtl.probes.report.report import masks_by_setup, report_page
from mtl.probes.stem_cell.sharing import draws_needed, wanted
from mtl.runs.compare.comparable import gates_of
from mtl.runs.compare.run_set import RunSet
from mtl.runs.figures.table import draw, page_parts
from mtl.runs.report.gather import gather
from tests.mtl.stem_cell.contest_study import CHOSEN, ContestStudy
from tests.mtl.studies import Study

SEEDS, DRAWS = (11, 12, 13), tuple(range(1, 6))


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> ContestStudy:
    """Masks of three tasks and of five draws of random labels, and pairs of which one partner is random."""
    study = ContestStudy(tmp_path_factory.mktemp("draws") / "study")
    random = np.random.default_rng(0)
    for task in CHOSEN:
        for seed in SEEDS:
            study.run([task], seed, probe=False)
    for number in DRAWS:
        study.wish["control"] = random.normal(size=study.shape)
        for seed in SEEDS:
            folder = study.run(
                ["control"], seed, probe=False, scores=False, name=f"control-{number}-{seed}",
                instances={"control": {"draw": number}},
            )  # fmt: skip
            figures = {"control": {"accuracy": 50.0 + number}}
            (folder / "metrics.json").write_text(json.dumps({"dev": figures, "test": figures}))
    for number in DRAWS[:2]:
        folder = study.run(
            ["pos", "control"], 1, pruning="none", probe=False, scores=False, name=f"pos-control-{number}",
            instances={"control": {"draw": number}},
        )  # fmt: skip
        study.worth(folder, {name: np.full(72, float(number)) for name in ("pos", "control")})
    return study


@pytest.fixture(scope="module")
def data(study):
    return gather(study.root, "test", TrainConfig().main_scores())


def test_draws_are_one_setup_and_a_mask_each(data):
    assert [setup.name for setup in data.setups] == ["STL, dynamic", "MTL-2"]
    assert not [note for note in data.notes if "repeats" in note]
    [(name, masks)] = masks_by_setup(data)[0].items()
    assert masks.tasks == (*CHOSEN, *(f"control draw {number}" for number in DRAWS))
    assert masks.draws == {f"control draw {number}": number for number in DRAWS}
    assert masks.seeds == SEEDS
    assert masks.of_real_labels().tasks == CHOSEN
    scores = data.scores.filter(pl.col("task") == "control")
    assert sorted(set(scores["score"])) == [51.0, 52.0, 53.0, 54.0, 55.0]
    assert set(scores["setup"]) == {name}


def test_the_first_screen_compares_tasks_with_all_draws(data):
    masks = masks_by_setup(data)[0]["STL, dynamic"]
    assert draws_needed(len(CHOSEN)) == len(DRAWS)
    page = report_page(data, parts=page_parts())
    claims = page.html.partition('"claims":')[2].partition("}")[0]
    assert all(f'"{task}":' in claims for task in CHOSEN)
    assert "control" not in claims
    [answer] = [answer for answer in page.answers if "want the same heads" in answer.question]
    line = answer.line()
    assert f"with {len(DRAWS)} draws of random labels" in line
    assert line.lower().startswith(f"do tasks want the same heads? {wanted(masks).word}: ")
    [single] = page.tables["scores-by-setup"].filter(pl.col("setup") == "STL, dynamic")["control"]
    assert single == "53.00 ± 0.00"  # in each seed the mean of 51 to 55
    assert page.tables["wanted"].filter(pl.col("kind") == "with control").height == len(CHOSEN) * len(DRAWS)


def test_one_draw_keeps_its_tasks_name(study, data):
    runs = sorted((study.root / "runs").glob("control-2-*"))
    rows = draw("grey", runs).tables[""]
    assert set(rows["masks"]) == {len(SEEDS)}
    every = sorted((study.root / "runs").glob("control-*"))
    assert set(draw("grey", every).tables[""]["masks"]) == {len(SEEDS) * len(DRAWS)}
    correlations = draw("correlation", every).tables[""]
    assert set(correlations["first"]) == {f"control draw {number}" for number in DRAWS}


def test_pairs_with_other_random_labels_are_one_partner(data):
    pairs = data.evidence["pairs"]
    assert pairs.select("task", "partner").unique().rows() == [("pos", "control")]
    assert pairs["run"].n_unique() == 2


def test_two_tasks_with_random_labels_have_a_draw_each(tmp_path):
    """Runs that differ in the second one's draw are no repetition, and its masks are named by its own."""
    study = Study(tmp_path / "two")
    study.wish |= dict.fromkeys(("noise", "other"), study.wish["pos"])
    for draws in ((0, 1), (0, 2)):
        instances = {
            name: {"kind": "drawn", "draw": number}
            for name, number in zip(("noise", "other"), draws, strict=True)
        }
        study.run(
            ["noise", "other"], 1, scope="per_task", probe=False, scores=False, instances=instances,
            name=f"draws{draws[1]}",
        )  # fmt: skip
    gates = gates_of(RunSet.open(sorted((study.root / "runs").iterdir())))
    assert set(gates.select("task", "draw").rows()) == {
        ("noise draw 0", 0), ("other draw 1", 1), ("other draw 2", 2),
    }  # fmt: skip
    assert gather(study.root, "test", {}).gates["run"].n_unique() == 2
