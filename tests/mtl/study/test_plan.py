"""What is to do: made of what, changed in what, and refused before the first run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mtl.arguments import configured
from mtl.corpora.toy import write_toy
from mtl.errors import InputError
from mtl.material import Material
from mtl.study import plan as module
from mtl.study.claim import claimed
from mtl.study.config import StudyConfig
from mtl.study.folder import Progress, StudyFolder
from mtl.study.plan import carry_out, make_plan
from tests.mtl.study import small


class World:
    """A study whose runs are only made up as finished."""

    def __init__(self, root: Path, encoder: Path) -> None:
        self.root, self.encoder, self.corpus = root, encoder, root / "corpus"
        write_toy(self.corpus, 12, 6, 6, seed=1)
        self.folder = StudyFolder(root / "studies" / "s")

    def plan(self, *words: str, keep_code: bool = False, **study):
        file = small.write(self.root / "s.yaml", self.corpus, self.encoder, **study)
        return make_plan(configured("", StudyConfig, [str(file), *words]), self.folder, Material(), keep_code)

    def finish(self, plan) -> None:
        carry_out(plan)
        for job in plan.jobs:
            self.folder.run(job.name).mkdir(parents=True, exist_ok=True)
            self.folder.write_progress(job.name, Progress("finished", job.made_of, 1))


@pytest.fixture
def world(tmp_path: Path, tiny_encoder: Path) -> World:
    return World(tmp_path, tiny_encoder)


def said(plan) -> list[str]:
    return [str(change) for change in plan.changes]


def test_nothing_has_changed_if_nothing_has_changed(world):
    world.finish(world.plan())
    assert said(world.plan()) == []
    assert said(world.plan("--train.trainer.threads=3", "--train.wandb.mode=offline")) == []


def test_a_changed_configuration_is_named(world):
    world.finish(world.plan())
    assert said(world.plan("--train.max_epochs=2", "--train.optimizer.encoder_lr=0.5")) == [
        f"{task}-seed1: the configuration changed (max_epochs, optimizer.encoder_lr); made again"
        for task in ("pos", "ner")
    ]


def test_settings_of_another_task_do_not_make_a_new_run_of_the_grid(world):
    world.finish(world.plan())
    grid = [{"setups": ["single"]}, {"setups": ["all"], "set": {"max_epochs": 3}}]
    plan = world.plan(grid=grid)
    assert said(plan) == []
    assert [job.name for job in plan.jobs] == ["pos-seed1", "ner-seed1", "all-seed1"]


def test_a_changed_corpus_is_said(world):
    world.finish(world.plan())
    with (world.corpus / "dev.jsonl").open("a") as file:
        file.write((world.corpus / "test.jsonl").read_text().splitlines()[0] + "\n")
    assert said(world.plan()) == [f"{task}-seed1: the corpus changed; made again" for task in ("pos", "ner")]


def test_changed_code_is_said_and_may_be_accepted(world, monkeypatch):
    world.finish(world.plan())
    monkeypatch.setattr(module, "code_fingerprint", lambda entry: f"other {entry}")
    assert said(world.plan()) == [f"{task}-seed1: the code changed; made again" for task in ("pos", "ner")]
    assert said(world.plan(keep_code=True)) == []
    assert len(said(world.plan("--train.max_epochs=2", keep_code=True))) == 2


def test_a_run_is_made_again_with_the_one_that_it_starts_from(world):
    grid = [{"setups": ["pos"], "masks": ["static"]}]
    world.finish(world.plan(grid=grid))
    assert [job.name for job in world.folder.jobs()] == ["pos-seed1", "pos-static-seed1"]
    with_words = [{"setups": ["pos"], "set": {"max_epochs": 2}}, {"setups": ["pos"], "masks": ["static"]}]
    assert said(world.plan(grid=with_words)) == [
        "pos-seed1: the configuration changed (max_epochs); made again",
        "pos-static-seed1: it starts from pos-seed1, which changed; made again",
    ]


def test_what_is_put_away_can_still_be_found(world):
    world.finish(world.plan())
    (world.folder.run("ner-seed1") / "note.txt").write_text("mine")
    plan = world.plan(grid=[{"setups": ["pos"]}])
    assert said(plan) == ["ner-seed1: not in the study any more; put away"]
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
    with claimed(world.folder.claim("pos-seed1")):
        carry_out(world.plan())  # the same study: shares the work
        with pytest.raises(InputError, match=r"at work for another study file or code \(pos-seed1, process"):
            carry_out(world.plan("--train.max_epochs=2"))
    carry_out(world.plan("--train.max_epochs=2"))


def test_failed_runs_are_tried_again_by_the_next_command(world):
    plan = world.plan()
    carry_out(plan)
    job = plan.jobs[0]
    world.folder.write_progress(job.name, Progress("failed", job.made_of, 3, error="no luck"))
    carry_out(world.plan())
    assert world.folder.progress(job.name) == replace(Progress("waiting", job.made_of), tries=0)


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
    ],
)
def test_what_cannot_be_run_is_refused(world, words, message):
    with pytest.raises(InputError, match=message):
        world.plan(*words)
    assert not world.folder.path.exists()


def test_jobs_are_the_same_for_a_corpus_that_was_copied(world):
    first = world.plan().jobs
    shutil.copytree(world.corpus, world.root / "copy")
    second = world.plan(f"--train.corpus.path={world.root / 'copy'}").jobs
    assert [job.made_of["corpus"] for job in first] == [job.made_of["corpus"] for job in second]
