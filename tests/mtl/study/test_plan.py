"""The plan of a study: fingerprints, changes, and what is refused before the first run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import mtl.config.effective as effective
from mtl.commands.main import main
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.features import added
from mtl.models.inputs import InputCache
from mtl.probes.tables import heads_table
from mtl.study import plan as module
from mtl.study.config import StudyConfig
from mtl.study.jobs import JobProgress, StudyFolder
from mtl.study.plan import Plan, carrying_out, make_plan
from mtl.workers.lease import lease
from tests.mtl.models.test_mask_file import table
from tests.mtl.study import small


def carry_out(plan: Plan) -> Plan:
    """What a command does before its first run and after its last."""
    with carrying_out(plan) as now:
        return now


class World:
    """A study whose runs only pretend to be finished."""

    def __init__(self, root: Path, encoder: Path) -> None:
        self.root, self.encoder, self.corpus = root, encoder, root / "corpus"
        write_toy(self.corpus, 12, 6, 6, seed=1)
        self.folder = StudyFolder(root / "studies" / "s")

    def plan(self, *words: str, again: Sequence[str] = (), **study):
        file = small.write(self.root / "s.yaml", self.corpus, self.encoder, **study)
        return make_plan(configured("", StudyConfig, [str(file), *words]), self.folder, InputCache(), again)

    def finish(self, plan) -> None:
        carry_out(plan)
        for job in plan.jobs:
            self.folder.run(job.name).mkdir(parents=True, exist_ok=True)
            self.folder.write_progress(job.name, JobProgress("finished", 1, made_of=job.made_of))


@pytest.fixture
def world(tmp_path: Path, tiny_encoder: Path) -> World:
    return World(tmp_path, tiny_encoder)


def changes_of(plan) -> list[str]:
    return [str(change) for change in plan.changes]


def test_nothing_has_changed_if_nothing_has_changed(world):
    world.finish(world.plan())
    assert changes_of(world.plan()) == []
    assert changes_of(world.plan("--train.trainer.threads=3", "--train.wandb.mode=offline")) == []


def test_a_changed_configuration_is_named(world):
    world.finish(world.plan())
    assert changes_of(world.plan("--train.max_epochs=2", "--train.optimizer.encoder_lr=0.5")) == [
        f"{task}-seed1: the configuration changed (max_epochs, optimizer.encoder_lr); made again"
        for task in ("pos", "ner")
    ]


def test_a_local_encoder_counts_by_its_files_and_not_by_its_place(world):
    encoder = world.root / "encoder"
    shutil.copytree(world.encoder, encoder)
    world.encoder = encoder
    grid = [{"setups": ["pretrained", "STL"]}]
    world.finish(world.plan(grid=grid))
    world.encoder = encoder.rename(world.root / "moved")
    assert changes_of(world.plan(grid=grid)) == []
    path = world.encoder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "note": 1}))
    assert changes_of(world.plan(grid=grid)) == [
        f"{name}: the encoder's files changed; made again"
        for name in ("pretrained", "pos-seed1", "ner-seed1")
    ]


def test_a_key_that_is_added_with_a_neutral_default_repeats_nothing(world, monkeypatch):
    world.finish(world.plan())
    before = [job.made_of for job in world.folder.jobs()]
    asdict = dataclasses.asdict

    def with_a_new_key(value):
        values = asdict(value)
        return {**values, "added": 0} if isinstance(value, TrainConfig) else values

    monkeypatch.setattr(dataclasses, "asdict", with_a_new_key)
    monkeypatch.setattr(effective, "_defaults", effective._defaults.__wrapped__)
    plan = world.plan()
    assert [job.settings["added"] for job in plan.jobs] == [0, 0]
    assert [job.made_of for job in plan.jobs] == before
    assert changes_of(plan) == []


def test_settings_of_another_task_do_not_make_a_new_run_of_the_grid(world):
    world.finish(world.plan())
    grid = [{"setups": ["STL"]}, {"setups": ["MTL"], "set": {"max_epochs": 3}}]
    plan = world.plan(grid=grid)
    assert changes_of(plan) == []
    assert [job.name for job in plan.jobs] == ["pos-seed1", "ner-seed1", "MTL-seed1"]


def test_a_changed_corpus_is_said(world):
    world.finish(world.plan())
    with (world.corpus / "dev.jsonl").open("a") as file:
        file.write((world.corpus / "test.jsonl").read_text().splitlines()[0] + "\n")
    assert changes_of(world.plan()) == [
        f"{task}-seed1: the corpus changed; made again" for task in ("pos", "ner")
    ]


def test_another_version_repeats_all_runs(world, monkeypatch):
    world.finish(world.plan())
    monkeypatch.setattr(module, "version", lambda: "99.0")
    assert changes_of(world.plan()) == [
        f"{task}-seed1: the program's version changed; made again" for task in ("pos", "ner")
    ]


def test_runs_are_repeated_by_hand(world):
    assert changes_of(world.plan(again=["*"])) == []  # there is nothing yet
    world.finish(world.plan())
    (world.folder.run("pos-seed1") / "note.txt").write_text("first")
    assert changes_of(world.plan(again=["*"])) == [
        f"{task}-seed1: repeated; made again" for task in ("pos", "ner")
    ]
    plan = world.plan(again=["p*"])
    assert changes_of(plan) == ["pos-seed1: repeated; made again"]
    carry_out(plan)
    assert {job.name: world.folder.last_progress(job.name).state for job in plan.jobs} == {
        "pos-seed1": "waiting", "ner-seed1": "finished",
    }  # fmt: skip
    [kept] = (world.folder.path / ".replaced").glob("pos-seed1-*/note.txt")
    assert kept.read_text() == "first"
    with pytest.raises(InputError, match="--again=dep: the study has no such run; it has pos-seed1, ner-"):
        world.plan(again=["pos-seed1", "dep"])


def test_a_run_is_repeated_with_the_one_that_it_starts_from(world):
    grid = [{"setups": ["STL"]}, {"setups": ["pos"], "masks": ["static"]}]
    world.finish(world.plan(grid=grid))
    assert changes_of(world.plan(again=["pos-seed1"], grid=grid)) == [
        "pos-seed1: repeated; made again", "pos-static-seed1: repeated; made again",
    ]  # fmt: skip
    assert changes_of(world.plan("--train.max_epochs=2", again=["pos-seed1"], grid=grid)) == changes_of(
        world.plan("--train.max_epochs=2", grid=grid)
    )


def test_runs_are_repeated_from_the_command_line(world, capsys):
    world.finish(world.plan())
    file = small.write(world.root / "s.yaml", world.corpus, world.encoder)
    study = ["study", str(file), f"--studies={world.root / 'studies'}", "--dry-run"]
    for words, names in (
        (["--again"], ["pos-seed1", "ner-seed1"]),
        (["--again", "ner-seed1", "pos-*"], ["pos-seed1", "ner-seed1"]),
        (["--again=[ner-seed1]"], ["ner-seed1"]),
        ([], []),
    ):
        assert main([*study, *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if "made again" in line] == [
            f"{name}: repeated; made again" for name in names
        ]
    for words, message in (
        (["--again", str(file)], "the study's file comes before --again"),
        (["--again", "dep-seed1"], "the study has no such run; it has pos-seed1, ner-seed1"),
    ):
        assert main([*study, *words]) == 2
        assert message in capsys.readouterr().err


def test_no_run_is_repeated_under_a_command_at_work(world):
    plan = world.plan()
    world.finish(plan)
    with (
        carrying_out(world.plan()),
        pytest.raises(InputError, match=r"is in use \(process .*\): stop that command first$"),
    ):
        carry_out(world.plan(again=["pos-seed1"]))
    assert world.folder.last_progress("pos-seed1").state == "finished"


def test_a_run_is_made_again_with_the_one_that_it_starts_from(world):
    grid = [{"setups": ["pos"], "masks": ["static"]}]
    world.finish(world.plan(grid=grid))
    assert [job.name for job in world.folder.jobs()] == ["pos-seed1", "pos-static-seed1"]
    with_words = [{"setups": ["pos"], "set": {"max_epochs": 2}}, {"setups": ["pos"], "masks": ["static"]}]
    assert changes_of(world.plan(grid=with_words)) == [
        "pos-seed1: the configuration changed (max_epochs); made again",
        "pos-static-seed1: it starts from pos-seed1, which changed; made again",
    ]


def test_what_is_archived_can_still_be_found(world):
    world.finish(world.plan())
    (world.folder.run("ner-seed1") / "note.txt").write_text("mine")
    plan = world.plan(grid=[{"setups": ["pos"]}])
    assert changes_of(plan) == ["ner-seed1: no longer in the study; archived"]
    carry_out(plan)
    assert [job.name for job in world.folder.jobs()] == ["pos-seed1"]
    [kept] = (world.folder.path / ".replaced").glob("ner-seed1-*/note.txt")
    assert kept.read_text() == "mine"


def test_planning_alone_changes_nothing(world):
    world.finish(world.plan())
    before = sorted(world.folder.path.rglob("*"))
    world.plan("--train.max_epochs=2")
    assert sorted(world.folder.path.rglob("*")) == before


def test_a_study_file_changed_under_a_study_at_work_is_refused(world):
    carry_out(world.plan())
    with lease(world.folder.lease_file("pos-seed1")):
        carry_out(world.plan())  # the same study: shares the work
        with pytest.raises(
            InputError, match=r"in use for another study file or version of mtl \(pos-seed1, process"
        ):
            carry_out(world.plan("--train.max_epochs=2"))
    carry_out(world.plan("--train.max_epochs=2"))


def test_failed_runs_are_tried_again_by_the_next_command(world):
    plan = world.plan()
    carry_out(plan)
    job = plan.jobs[0]
    world.folder.write_progress(job.name, JobProgress("failed", 3, made_of=job.made_of, error="no luck"))
    carry_out(world.plan())
    assert world.folder.progress(job.name) == replace(JobProgress("waiting", made_of=job.made_of), tries=0)


def test_a_corpus_without_a_layer_is_refused_before_the_first_run(world):
    for split in ("train", "dev", "test"):
        path = world.corpus / f"{split}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text(
            "".join(json.dumps({k: v for k, v in row.items() if k != "entities"}) + "\n" for row in rows)
        )
    with pytest.raises(InputError, match="no train sentence of 12 is annotated for ner"):
        world.plan()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train.encoder.name=bert-base-csed"], "did you mean 'bert-base-cased'"),
        (["--train.corpus.path=nowhere"], "nowhere: no such folder"),
        (["--seeds=[]"], "seeds is empty"),
        (["--grid=[]"], "the grid has no runs"),
        (
            ["--train.balancer.name=pcgrad", "--train.batch.mode=separate"],
            "run pos-seed1: balancer pcgrad compares",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(world, words, message):
    with pytest.raises(InputError, match=message):
        world.plan(*words)
    assert not world.folder.path.exists()


def test_jobs_are_the_same_for_a_corpus_that_was_copied(world):
    first = world.plan(grid=[{"setups": ["pretrained", "STL"]}]).jobs
    shutil.copytree(world.corpus, world.root / "copy")
    second = world.plan(
        f"--train.corpus.path={world.root / 'copy'}", grid=[{"setups": ["pretrained", "STL"]}]
    ).jobs
    assert [job.made_of for job in first] == [job.made_of for job in second]


def test_two_commands_begun_together_after_a_change_do_not_take_each_others_runs_away(world):
    world.finish(world.plan())
    first, second = world.plan("--train.max_epochs=2"), world.plan("--train.max_epochs=2")
    with carrying_out(first):
        made = world.folder.run("pos-seed1")
        made.mkdir()
        world.folder.write_progress("pos-seed1", JobProgress("finished", 1, made_of=first.jobs[0].made_of))
        now = carry_out(second)
        assert changes_of(now) == []
        assert made.exists()
        assert world.folder.last_progress("pos-seed1").state == "finished"


def test_a_command_between_two_runs_still_counts_as_at_work(world):
    with (
        carrying_out(world.plan()),
        pytest.raises(InputError, match=r"in use for another study file or version of mtl \(process \d+ on"),
    ):
        carry_out(world.plan("--train.max_epochs=2"))
    carry_out(world.plan("--train.max_epochs=2"))


def test_changed_probes_repeat_no_training(world):
    world.finish(world.plan())
    for name in ("pos-seed1", "ner-seed1"):
        heads = heads_table.rows("attention", "pos", ["NN"], np.full((1, 2, 3), 0.5), np.array([4]))
        conflict = heads_table.rows("gradient_cosine", "pos", ["ner"], np.ones((1, 2, 3)), np.array([4]))
        heads_table.write_heads_table(
            world.folder.run(name) / "heads.parquet", pl.concat([heads, conflict]), {}
        )
    plan = world.plan("--probes.split=dev")
    assert changes_of(plan) == [
        f"{task}-seed1: the settings of probes changed; its training stays" for task in ("pos", "ner")
    ]
    carry_out(plan)
    left, _ = heads_table.read_heads_table(world.folder.run("pos-seed1") / "heads.parquet")
    assert left["measure"].unique().to_list() == ["gradient_cosine"]
    [kept] = (world.folder.path / ".replaced").glob("pos-seed1-*/heads.parquet")
    assert len(heads_table.read_heads_table(kept)[0]) == 12
    world.finish(plan)
    carry_out(world.plan("--probes.split=dev", "--probes.measures=[probes,importance]"))
    assert len(list((world.folder.path / ".replaced").glob("pos-seed1-*"))) == 1  # nothing was replaced
    assert changes_of(world.plan("--probes.masks=[]")) == [
        f"{task}-seed1: probes no longer wanted; its training stays" for task in ("pos", "ner")
    ]


def test_other_measurements_repeat_no_training_and_do_not_count_unless_asked_for(world):
    grid = [{"setups": ["pretrained", "pos"], "masks": ["none"]}]
    world.finish(world.plan(grid=grid))
    default = {job.name: dict(job.made_of) for job in world.plan(grid=grid).jobs}
    more = world.plan("--probes.measures=[probes,importance,ablation]", grid=grid)
    assert changes_of(more) == ["pos-seed1: importance and ablation added; its training stays"]
    for job in more.jobs:
        changed = {part for part, value in job.made_of.items() if default[job.name].get(part) != value}
        assert changed == ({"importance", "ablation"} if job.trained and job.probes else set())
    # The encoder before training has no tasks, so that nothing in it is worth anything to one.
    assert [job.measures() for job in more.jobs if not job.trained] == [["probes"]]
    world.finish(more)
    fewer = world.plan("--probes.measures=[importance]", "--probes.sentences=5", grid=grid)
    assert changes_of(fewer) == [
        "pos-seed1: the settings of importance changed, probes and ablation no longer wanted; "
        "its training stays"
    ]


def test_heads_are_probed_on_another_corpus_whose_place_does_not_count(world):
    grid = [{"setups": ["pretrained", "pos"], "masks": ["none"]}]
    write_toy(world.root / "other", 1, 1, 6, seed=2)
    words = f"--probes.corpus={world.root / 'other'}"
    world.finish(world.plan(words, grid=grid))
    (world.root / "other").rename(world.root / "moved")
    words = f"--probes.corpus={world.root / 'moved'}"
    assert changes_of(world.plan(words, grid=grid)) == []
    write_toy(world.root / "moved", 1, 1, 6, seed=3, overwrite=True)
    changes = {change.name: change.what for change in world.plan(words, grid=grid).changes}
    assert changes == {"pretrained": "made again", "pos-seed1": "its training stays"}
    # Training does not read it; what probes take is its splits that they read.
    (world.root / "moved" / "train.jsonl").unlink()
    assert {change.name for change in world.plan(words, grid=grid).changes} == set(changes)
    with pytest.raises(InputError, match=r"train\.jsonl, on which heads are probed, is missing"):
        world.plan(words, "--probes.centroids=train", grid=grid)


@pytest.mark.parametrize(
    "words",
    [
        ["--train.gates.penalty=0.5", "--train.gates.target_open=3"],
        ["--train.dep.arc_dim=7"],
        ["--train.balancer.window=9", "--train.batch.temperature=5"],
        *([f"--train.{key}=2"] for key, row in added(lambda feature: feature.keys).items() if row.meter),
        ["--train.corpus.dep.train=nowhere.conllu"],
        ["--split=dev"],
    ],
)
def test_settings_that_a_run_does_not_use_do_not_repeat_it(world, words):
    world.finish(world.plan())
    assert changes_of(world.plan(*words)) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--train.pos.dropout=0.1"],
        ["--train.balancer.name=uncertainty"],
        ["--train.batch.tokens=100"],
        ["--train.encoder.word_dropout=0.0"],
    ],
)
def test_settings_that_a_run_uses_do(world, words):
    world.finish(world.plan())
    assert any(change.startswith("pos-seed1") for change in changes_of(world.plan(*words)))


def test_a_study_and_its_corpus_that_were_moved_are_what_they_were(world):
    grid = [{"setups": ["pretrained", "pos"], "masks": ["none", "static"]}]
    world.finish(world.plan(grid=grid))
    shutil.move(world.root, world.root.with_name("elsewhere"))
    moved = World.__new__(World)
    moved.root, moved.encoder = world.root.with_name("elsewhere"), world.encoder
    moved.corpus, moved.folder = moved.root / "corpus", StudyFolder(moved.root / "studies" / "s")
    plan = moved.plan(grid=grid)
    assert len(plan.jobs) == 3
    assert changes_of(plan) == []


def test_splits_that_change_places_are_another_corpus(world):
    world.finish(world.plan())
    (world.corpus / "dev.jsonl").rename(world.corpus / "x.jsonl")
    (world.corpus / "test.jsonl").rename(world.corpus / "dev.jsonl")
    (world.corpus / "x.jsonl").rename(world.corpus / "test.jsonl")
    assert changes_of(world.plan()) == [
        f"{task}-seed1: the corpus changed; made again" for task in ("pos", "ner")
    ]


def test_a_corpus_without_a_test_split_is_refused_before_the_first_run(world):
    (world.corpus / "test.jsonl").unlink()
    with pytest.raises(InputError, match=r"test\.jsonl"):
        world.plan()


def test_the_content_of_a_mask_file_counts_and_its_place_does_not(world):
    path = world.root / "masks.parquet"
    table({"pos": np.ones((3, 4))}).write_parquet(path)
    grid = [{"setups": ["pos"], "masks": ["fixed"], "set": {"gates.masks": str(path)}}]
    world.finish(world.plan(grid=grid))
    moved = path.rename(world.root / "moved.parquet")
    grid[0]["set"] = {"gates.masks": str(moved)}
    assert changes_of(world.plan(grid=grid)) == []
    table({"pos": np.zeros((3, 4))}).write_parquet(moved)
    assert changes_of(world.plan(grid=grid)) == ["pos-fixed-seed1: the masks in its file changed; made again"]
    table({"dep": np.zeros((3, 4))}).write_parquet(moved)
    with pytest.raises(InputError, match="has no mask for pos: it has dep"):
        world.plan(grid=grid)


def test_runs_without_fixed_masks_are_made_of_what_they_were_before(world):
    plan = world.plan(grid=[{"setups": ["STL"], "masks": ["none", "dynamic"]}])
    assert all(
        set(job.made_of) == {"configuration", "corpus", "version", "encoder"} or job.probes
        for job in plan.jobs
    )
