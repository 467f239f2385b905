"""The grids of the laboratory's studies: twins, the control task, and settings of meters."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mtl.config.effective import plain
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.features import features
from mtl.runs.compare.setups import setups_of
from mtl.stem_cell.conflict_meter import every_of
from mtl.tasks.structured import Dep
from tests.kit.absent import needs

if "study" in features():
    from mtl.study.config import GridBlock, StudyConfig
    from mtl.study.grid import planned

of_studies = needs("study")

TASKS = ("pos", "ner", "dep", "con", "srl")
HERE = Path("studies/s")


def names(*blocks: GridBlock, **study) -> list[str]:
    return [run.name for run in planned(StudyConfig(grid=blocks, **study), HERE)]


@of_studies
def test_the_study_of_contested_heads_has_its_controls_in_the_order_of_what_is_decided_first():
    runs = planned(configured("", StudyConfig, ["configs/study/contest.yaml"]), HERE)
    counts = Counter(run.grid_cell for run in runs)
    assert list(counts.items()) == [
        ("STL", 15), ("MTL", 3), ("MTL, twice", 3), ("STL, dynamic, k14", 15), ("control, dynamic, k14", 3),
        ("pairs", 30), ("twins", 15), ("pos+control", 3), ("dep+control", 3), ("MTL, by-scale", 3),
        ("STL, dynamic, k9", 15), ("STL, dynamic, k22", 15),
        ("STL, twice", 15),
    ]  # fmt: skip
    assert {run.config.seed for run in runs if run.masks != "none"} == {11, 12, 13}
    assert {run.config.seed for run in runs if run.masks == "none"} == {1, 2, 3}
    updates = {run.grid_cell: run.config.max_epochs for run in runs if len(run.config.tasks) == 5}
    assert updates == {"MTL": 5, "MTL, twice": 10, "MTL, by-scale": 5}


@of_studies
def test_twins_are_a_task_beside_itself():
    runs = planned(StudyConfig(grid=(GridBlock(("twins",)),), seeds=(1,)), HERE)
    assert [run.name for run in runs] == [f"{task}~a+{task}~b-seed1" for task in TASKS]
    assert [run.config.tasks for run in runs] == [(f"{task}~a", f"{task}~b") for task in TASKS]
    assert {run.grid_cell for run in runs} == {"twins"}
    # Settings of the task count, those of others do not.
    assert asdict(runs[2].config.task("dep~a")) == asdict(Dep())
    assert (
        planned(
            StudyConfig(
                grid=(GridBlock(("twins",)),), seeds=(1,), train=TrainConfig(dep=replace(Dep(), arc_dim=7))
            ),
            HERE,
        )[2]
        .config.task("dep~b")
        .arc_dim
        == 7
    )


@of_studies
def test_a_control_task_and_a_twin_are_spelled_as_pairs_are():
    runs = planned(StudyConfig(grid=(GridBlock(("control+dep", "dep~a", "control")),), seeds=(1,)), HERE)
    assert sorted((run.name, run.config.tasks, run.probes is not None) for run in runs) == [
        ("control-seed1", ("control",), False),
        ("dep+control-seed1", ("dep", "control"), True),
        ("dep~a-seed1", ("dep~a",), True),
    ]
    assert "control" not in planned(StudyConfig(grid=(GridBlock(("MTL",)),)), HERE)[0].config.tasks
    with pytest.raises(
        InputError, match=r"unknown task in setup 'srl~a\+pos': 'srl~a'; train.tasks leaves it out"
    ):
        names(GridBlock(("srl~a+pos",)), train=TrainConfig(tasks=("pos", "dep")))


@of_studies
def test_gradients_are_compared_in_the_runs_that_this_concerns():
    grid = (GridBlock(("pos", "MTL"), ("none", "dynamic", "dynamic_per_task")),)
    runs = planned(StudyConfig(train=TrainConfig(gradient_conflict_every=5), grid=grid, seeds=(1,)), HERE)
    watched = {run.name for run in runs if every_of(run.config)}
    assert watched == {"MTL-seed1", "MTL-dynamic-seed1"}


@of_studies
def test_draws_of_random_labels_are_runs_of_one_setup():
    block = GridBlock(
        ("STL", "control"), ("dynamic",), label="k14", seeds=(11, 12), draws={"control": (1, 2, 7)}
    )
    runs = planned(StudyConfig(grid=(block,), seeds=(1,), train=TrainConfig(tasks=("pos", "dep"))), HERE)
    drawn = {run.name: run.config.task("control").draw for run in runs if run.config.tasks == ("control",)}
    assert drawn == {
        f"control-dynamic-k14{part}-seed{seed}": draw
        for seed in (11, 12)
        for part, draw in (("", 1), ("-draw2", 2), ("-draw7", 7))
    }
    assert len(runs) == 4 + 6
    assert len({run.grid_cell for run in runs if run.config.tasks == ("control",)}) == 1
    assert {setup.name for setup in setups_of([plain(asdict(run.config)) for run in runs])} == {
        "STL, dynamic"
    }
    plain_block = replace(block, draws={})
    [first, *_] = [run for run in runs if run.name == "control-dynamic-k14-seed11"]
    assert first in planned(
        StudyConfig(grid=(plain_block,), seeds=(1,), train=TrainConfig(tasks=("pos", "dep"))), HERE
    )


@of_studies
def test_static_masks_of_a_draw_start_from_the_run_of_the_same_draw():
    block = GridBlock(("pos+control",), ("none", "static"), draws={"control": (2, 3)})
    runs = {run.name: run for run in planned(StudyConfig(grid=(block,), seeds=(1,)), HERE)}
    assert {name: run.needs for name, run in runs.items() if run.needs} == {
        f"pos+control-static-draw{draw}-seed1": f"pos+control-draw{draw}-seed1" for draw in (2, 3)
    }
    assert all(
        runs[run.needs].config.task("control") == run.config.task("control")
        for run in runs.values()
        if run.needs
    )


@of_studies
@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            {"setups": ("STL",), "draws": {"control": (1, 2)}},
            "no setup of the block \\(STL\\) trains the task control",
        ),
        ({"draws": {"control": ()}}, "draws.control is empty"),
        ({"draws": {"control": (1, 1)}}, "draws.control name 1 twice"),
        ({"draws": {"control": (1,)}, "set": {"control.draw": 2}}, "leave control.draw out"),
    ],
)
def test_draws_that_no_run_has_are_refused(block, message):
    with pytest.raises(InputError, match=message):
        planned(StudyConfig(grid=(GridBlock(**{"setups": ("control",), **block}),)), HERE)
