"""Pairs under drawn masks in a study: what is drawn, from which runs, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from rich.console import Console

from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.heads.gate_file import read_masks
from mtl.models.inputs import InputCache
from mtl.probes.tables import heads_table
from mtl.runs.compare.setups import setups_of
from mtl.runs.folder.content import draw_of, drawn_content
from mtl.runs.folder.run import Run
from mtl.stem_cell.overlap_scores import overlap_scores
from mtl.study.config import StudyConfig
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.plan import carrying_out, make_plan
from mtl.training.train import train
from tests.mtl.models.test_mask_file import table
from tests.mtl.studies import Study
from tests.mtl.study import small

LAYERS, HEADS = 3, 4


def claim(folder: Path, task: str, seed: int, log_alpha: np.ndarray, state: str = "finished") -> None:
    """The folder of a finished run of one task with these log alphas when heads were chosen."""
    run = folder / f"{task}-seed{seed}"
    run.mkdir(parents=True)
    config = {
        "name": run.name, "seed": seed, "tasks": [task], "pruning": "dynamic", "init_from": None,
        "encoder": {"name": "tiny"}, "gates": {"scope": "shared"},
    }  # fmt: skip
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "status.json").write_text(json.dumps({"state": state}))
    at_choice = pl.Series(log_alpha.ravel(), dtype=pl.Float32)
    early = table({task: np.zeros((LAYERS, HEADS))}, step=1)
    last = table({task: np.ones((LAYERS, HEADS))}, step=2).with_columns(
        log_alpha=pl.lit(7.0, dtype=pl.Float32), log_alpha_at_choice=at_choice
    )
    pl.concat([early, last]).write_parquet(run / "gates.parquet")


class World:
    """A study of one pair, and runs by which heads are ranked."""

    def __init__(self, root: Path, encoder: Path) -> None:
        self.root, self.encoder, self.corpus = root, encoder, root / "corpus"
        write_toy(self.corpus, 12, 6, 6, seed=1)
        self.folder = StudyFolder(root / "studies" / "s")
        self.claims = root / "claims"
        rng = np.random.default_rng(0)
        self.value = {task: rng.normal(size=(LAYERS, HEADS)) for task in ("pos", "dep")}
        for task, value in self.value.items():
            for seed, noise in ((11, 1.0), (12, -1.0)):
                claim(self.claims, task, seed, value + noise)

    def plan(self, **changes):
        overlap = {"heads": 4, "shared": [0, 2, 4], "runs": [str(self.claims / "*-seed*")]}
        block = {
            "setups": ["pos+dep"],
            "masks": ["fixed_per_task"],
            "overlap": overlap | changes.pop("overlap", {}),
        }
        file = small.write(
            self.root / "s.yaml", self.corpus, self.encoder,
            grid=[block | changes.pop("block", {})], seeds=changes.pop("seeds", [1, 2]),
            train={"tasks": ["pos", "dep", "srl"]}, **changes,
        )  # fmt: skip
        return make_plan(configured("", StudyConfig, [str(file)]), self.folder, InputCache())


@pytest.fixture
def world(tmp_path: Path, tiny_encoder: Path) -> World:
    return World(tmp_path, tiny_encoder)


def test_every_overlap_and_seed_is_a_run_under_masks_of_its_own(world):
    plan = world.plan()
    assert [job.name for job in plan.jobs] == [
        f"pos+dep-fixed_per_task-overlap{shared}-seed{seed}" for seed in (1, 2) for shared in (0, 2, 4)
    ]
    assert not (world.folder.path / "masks").exists()  # a plan writes nothing
    with carrying_out(plan):
        pass
    best = sum(np.argsort(np.argsort(-value.ravel())) for value in world.value.values())
    prints = set()
    for job in plan.jobs:
        path = Path(str(job.config.gates.masks))
        record = draw_of(path)
        assert record is not None
        assert record["draw"] == job.config.seed
        assert drawn_content(record).place == f"pos+dep-{job.name.split('-')[2]}"
        masks = read_masks(path)
        opened = {
            task: set(
                masks.filter(pl.col("task") == task, pl.col("gate") == 1).select("layer", "head").rows()
            )
            for task in ("pos", "dep")
        }
        assert [len(heads) for heads in opened.values()] == [4, 4]
        assert len(opened["pos"] & opened["dep"]) == int(job.name.split("overlap")[1][0])
        in_layers = [sorted(layer for layer, _ in heads) for heads in opened.values()]
        assert in_layers[0] == in_layers[1]
        worst = max(best[HEADS * layer + head] for heads in opened.values() for layer, head in heads)
        assert worst < sorted(best)[-1]  # from the pool of eight
        prints.add(job.made_of["masks"])
    assert len(prints) == len(plan.jobs)
    record = json.loads((world.folder.path / "masks" / "draws.json").read_text())
    assert record["pos+dep-overlap2-draw1.parquet"] == {
        "tasks": ["pos", "dep"], "heads": 4, "overlap": 2, "draw": 1, "seed": 1, "pool": 8,
        "layers": record["pos+dep-overlap0-draw2.parquet"]["layers"], "by": "log_alpha",
        "runs": ["dep-seed11", "dep-seed12", "pos-seed11", "pos-seed12"],
    }  # fmt: skip


def test_draws_are_the_same_every_time_and_others_with_another_seed(world):
    first = [job.made_of for job in world.plan().jobs]
    assert [job.made_of for job in world.plan().jobs] == first
    # A draw does not depend on which others are made.
    assert [job.made_of for job in world.plan(seeds=[2]).jobs] == first[3:]
    others = [job.made_of for job in world.plan(overlap={"seed": 2}).jobs]
    assert sum(one["masks"] == other["masks"] for one, other in zip(first, others, strict=True)) <= 1


def test_importance_can_say_which_heads_are_best(world):
    for task, value in world.value.items():
        for seed in (11, 12):
            rows = heads_table.rows("importance", task, [""], np.exp(value)[None], np.array([1]))
            heads_table.write(world.claims / f"{task}-seed{seed}" / "heads.parquet", rows, {})
    by_importance = [job.made_of["masks"] for job in world.plan(overlap={"by": "importance"}).jobs]
    assert by_importance == [job.made_of["masks"] for job in world.plan().jobs]  # of the same order of heads


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overlap": {"runs": ["nowhere/*"]}}, r"overlap\.runs=nowhere/\*: no runs to rank"),
        ({"overlap": {"runs": []}}, r"overlap\.runs=\[\]: no runs to rank"),
        ({"overlap": {"by": "importance"}}, r"none of 4 runs has importance of heads for pos"),
        ({"overlap": {"shared": [5]}}, r"overlap\.shared=5: use a number from 0 to overlap\.heads=4"),
        ({"overlap": {"pool": 6}}, "overlap of pos.dep: 4 heads for each of two masks .* a pool of 6 heads"),
        (
            {"overlap": {"pool": 40}},
            "overlap of pos.dep: a pool of 40 heads: use an even number from 2 to 12",
        ),
        (
            {"block": {"setups": ["pos+dep+srl"]}},
            r"overlap needs pairs of tasks, but setup 'pos\+dep\+srl' has",
        ),
        ({"block": {"setups": ["pos+srl"]}}, "none of 4 runs has log_alpha of heads for srl"),
        ({"block": {"masks": ["dynamic"]}}, r"set masks: \[fixed_per_task\] in the"),
        ({"block": {"set": {"gates.masks": "m"}}}, r"leave gates\.masks out"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(world, changes, message):
    with pytest.raises(InputError, match=message) as error:
        world.plan(**changes)
    assert "\n" not in str(error.value)


def test_a_run_that_is_not_finished_says_nothing_yet(world):
    claim(world.claims, "pos", 13, world.value["pos"], state="running")
    with pytest.raises(InputError, match="pos-seed13 is not finished: wait for it, or leave it out"):
        world.plan()


@pytest.mark.slow
def test_scores_of_drawn_masks_stand_beside_their_overlap(world):
    plan = world.plan(seeds=[1])
    with carrying_out(plan):
        jobs = [job.config for job in plan.jobs]
        runs = [train(config, console=Console(quiet=True)) for config in jobs]
    scores, notes = overlap_scores(runs, "test", TrainConfig().main_scores())
    assert notes == ()
    assert scores.select("pair", "overlap", "draw", "task", "figure", "heads", "seed").rows() == [
        ("pos+dep", shared, 1, task, figure, 4, 1)
        for shared in (0, 2, 4)
        for task, figure in (("dep", "las"), ("pos", "accuracy"))
    ]
    metrics = runs[1].metrics()["test"]
    of_second = scores.filter(overlap=2)
    assert of_second["score"].to_list() == [metrics["dep"]["las"], metrics["pos"]["accuracy"]]
    assert [setup.name for setup in setups_of([run.config() for run in runs])] == [
        f"MTL-2, fixed, masks pos+dep-overlap{shared}" for shared in (0, 2, 4)
    ]
    assert overlap_scores([Run.open(world.claims / "pos-seed11")], "test", {})[0].is_empty()


def test_masks_of_other_sizes_are_no_dose_of_the_same(tmp_path):
    """With fewer heads in all, scores are lower however many heads are in common."""
    study = Study(tmp_path / "sizes")
    gates = {"scope": "per_task", "masks": "none.parquet"}
    for seed, kept in ((1, 4), (2, 4), (3, 6)):
        run = study.run(["pos", "dep"], seed, pruning="fixed", gates=gates, probe=False)
        table = pl.read_parquet(run / "gates.parquet")
        number = pl.int_range(pl.len()).over("task", "step") + 2 * (pl.col("task") == "dep")
        table.with_columns(open=number < kept + 2 * (pl.col("task") == "dep")).write_parquet(
            run / "gates.parquet"
        )
    runs = [Run.open(path) for path in sorted((study.root / "runs").iterdir())]
    scores, notes = overlap_scores(runs, "test", TrainConfig().main_scores())
    assert set(scores["run"]) == {str(run.folder) for run in runs[:2]}
    assert notes == (f"{runs[2].folder} has masks of another kind than most of its pair (heads): left out",)


def test_a_copy_of_a_run_counts_once(tmp_path):
    study = Study(tmp_path / "copied")
    gates = {"scope": "per_task", "masks": "none.parquet"}
    folders = [study.run(["pos", "dep"], seed, pruning="fixed", gates=gates, probe=False) for seed in (1, 2)]
    runs = [Run.open(folder) for folder in folders]
    scores, notes = overlap_scores(runs, "test", TrainConfig().main_scores())
    assert notes == ()
    copy = tmp_path / "copy"
    shutil.copytree(folders[0], copy)
    again, notes = overlap_scores([*runs, Run.open(copy)], "test", TrainConfig().main_scores())
    assert again.equals(scores)
    assert notes == (f"{copy} repeats {folders[0]}, seed and all: left out",)
