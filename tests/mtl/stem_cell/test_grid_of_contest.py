"""The grids of the laboratory's studies: twins, the control task, drawn masks, and settings of meters."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mtl.config.effective import plain
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.runs.compare.setups import setups_of
from mtl.stem_cell.conflict_meter import every_of
from mtl.stem_cell.overlap import OverlapConfig
from mtl.study.config import Block, StudyConfig
from mtl.study.grid.grid import planned
from mtl.tasks.dep import Dep

TASKS = ("pos", "ner", "dep", "con", "srl")
HERE = Path("studies/s")


def names(*blocks: Block, **study) -> list[str]:
    return [run.name for run in planned(StudyConfig(grid=blocks, **study), HERE)]


def test_the_study_of_contested_heads_has_its_controls_in_the_order_of_what_is_decided_first():
    runs = planned(configured("", StudyConfig, ["configs/study/contest.yaml"]), HERE)
    counts = Counter(run.grid_cell for run in runs)
    assert list(counts.items()) == [
        ("single", 15), ("all", 3), ("all twice", 3), ("single dynamic k14", 15), ("control dynamic k14", 3),
        ("pairs", 30), ("twins", 15), ("pos+control", 3), ("dep+control", 3), ("all by-scale", 3),
        ("single dynamic k9", 15), ("single dynamic k22", 15),
        ("single twice", 15),
    ]  # fmt: skip
    assert {run.config.seed for run in runs if run.masks != "none"} == {11, 12, 13}
    assert {run.config.seed for run in runs if run.masks == "none"} == {1, 2, 3}
    updates = {run.grid_cell: run.config.max_epochs for run in runs if len(run.config.tasks) == 5}
    assert updates == {"all": 5, "all twice": 10, "all by-scale": 5}


def test_the_study_of_forced_overlap_draws_for_every_seed():
    runs = planned(configured("", StudyConfig, ["configs/study/overlap.yaml"]), HERE)
    assert len(runs) == 3 * 3 * 6
    assert {run.makes.settings.shared for run in runs} == {0, 6, 12}
    assert len({run.config.gates.masks for run in runs}) == len(runs)


def test_twins_are_a_task_beside_itself():
    runs = planned(StudyConfig(grid=(Block(("twins",)),), seeds=(1,)), HERE)
    assert [run.name for run in runs] == [f"{task}~a+{task}~b-seed1" for task in TASKS]
    assert [run.config.tasks for run in runs] == [(f"{task}~a", f"{task}~b") for task in TASKS]
    assert {run.grid_cell for run in runs} == {"twins"}
    # Settings of the task count, those of others do not.
    assert asdict(runs[2].config.task("dep~a")) == asdict(Dep())
    assert (
        planned(
            StudyConfig(
                grid=(Block(("twins",)),), seeds=(1,), train=TrainConfig(dep=replace(Dep(), arc_dim=7))
            ),
            HERE,
        )[2]
        .config.task("dep~b")
        .arc_dim
        == 7
    )


def test_a_control_task_and_a_twin_are_spelled_as_pairs_are():
    runs = planned(StudyConfig(grid=(Block(("control+dep", "dep~a", "control")),), seeds=(1,)), HERE)
    assert sorted((run.name, run.config.tasks, run.probes is not None) for run in runs) == [
        ("control-seed1", ("control",), False),
        ("dep+control-seed1", ("dep", "control"), True),
        ("dep~a-seed1", ("dep~a",), True),
    ]
    assert "control" not in planned(StudyConfig(grid=(Block(("all",)),)), HERE)[0].config.tasks
    with pytest.raises(
        InputError, match=r"unknown task in setup 'srl~a\+pos': 'srl~a'; train.tasks leaves it out"
    ):
        names(Block(("srl~a+pos",)), train=TrainConfig(tasks=("pos", "dep")))


def test_gradients_are_compared_in_the_runs_that_this_concerns():
    grid = (Block(("pos", "all"), ("none", "dynamic", "dynamic_per_task")),)
    runs = planned(StudyConfig(train=TrainConfig(gradient_conflict_every=5), grid=grid, seeds=(1,)), HERE)
    watched = {run.name for run in runs if every_of(run.config)}
    assert watched == {"all-seed1", "all-dynamic-seed1"}


def test_a_block_has_masks_of_one_source():
    block = Block(("pos+dep",), ("fixed_per_task",), masks_of="learned", overlap=OverlapConfig())
    with pytest.raises(InputError, match=r"masks_of=learned .*: leave gates\.masks and overlap out"):
        names(block)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Block(("pos+dep",), overlap=OverlapConfig()), r"set masks: \[fixed_per_task\] in the"),
        (
            Block(("pos",), ("fixed_per_task",), overlap=OverlapConfig()),
            "overlap needs pairs of tasks, but setup 'pos' has pos",
        ),
        (
            Block(("pos+dep",), ("fixed_per_task",), overlap=OverlapConfig(shared=(13,))),
            "overlap.shared=13: use a number from 0 to overlap.heads=12",
        ),
        (
            Block(("pos+dep",), ("fixed_per_task",), overlap=OverlapConfig(shared=())),
            "overlap.shared is empty: list numbers of shared heads",
        ),
        (
            Block(("pos+dep",), ("fixed_per_task",), {"gates.masks": "x"}, overlap=OverlapConfig()),
            "overlap draws the masks: leave gates.masks out of the block's set",
        ),
    ],
)
def test_a_block_whose_masks_cannot_be_drawn_is_refused(block, message):
    with pytest.raises(InputError, match=message):
        names(block)


def test_draws_of_random_labels_are_runs_of_one_setup():
    block = Block(
        ("single", "control"), ("dynamic",), label="k14", seeds=(11, 12), draws={"control": (1, 2, 7)}
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


def test_static_masks_of_a_draw_start_from_the_run_of_the_same_draw():
    block = Block(("pos+control",), ("none", "static"), draws={"control": (2, 3)})
    runs = {run.name: run for run in planned(StudyConfig(grid=(block,), seeds=(1,)), HERE)}
    assert {name: run.needs for name, run in runs.items() if run.needs} == {
        f"pos+control-static-draw{draw}-seed1": f"pos+control-draw{draw}-seed1" for draw in (2, 3)
    }
    assert all(
        runs[run.needs].config.task("control") == run.config.task("control")
        for run in runs.values()
        if run.needs
    )


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            Block(("single",), draws={"control": (1, 2)}),
            "no setup of the block \\(single\\) trains the task control",
        ),
        (Block(("control",), draws={"control": ()}), "draws.control is empty"),
        (Block(("control",), draws={"control": (1, 1)}), "draws.control name 1 twice"),
        (Block(("control",), draws={"control": (1,)}, set={"control.draw": 2}), "leave control.draw out"),
    ],
)
def test_draws_that_no_run_has_are_refused(block, message):
    with pytest.raises(InputError, match=message):
        planned(StudyConfig(grid=(block,)), HERE)
