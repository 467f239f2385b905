"""Runs with copies of heads in a study: which runs say what is claimed, and the file that they make."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import polars as pl
import pytest

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.heads.gate_file import SCHEMA
from mtl.stem_cell.claims_file import read_claims
from mtl.stem_cell.clones_start import ClonesConfig, clones_of
from mtl.stem_cell.study_claims import write_claims_of
from mtl.study.config import Block, StudyConfig
from mtl.study.grid.grid import planned
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.job import Job, Progress, Snapshot
from tests.mtl.study import small

HERE = Path("studies/s")
TASKS = TrainConfig(tasks=("pos", "dep"))
ROUTED = Block(("pos+dep",), set={"clones.kind": "routed"}, label="C")
MASKED = Block(("single",), ("dynamic",))


def runs(*blocks: Block, train: TrainConfig = TASKS, seeds: tuple[int, ...] = (1, 2)) -> dict[str, Job]:
    study = StudyConfig(grid=blocks, train=train, seeds=seeds)
    return {run.name: run for run in planned(study, HERE)}


def test_runs_with_copies_come_after_the_masks_of_their_tasks() -> None:
    found = runs(ROUTED, MASKED, Block(("single",)))
    assert list(found)[-2:] == ["all-C-seed1", "all-C-seed2"]
    for seed in (1, 2):
        run = found[f"all-C-seed{seed}"]
        assert run.prepared_from == (
            "pos-dynamic-seed1", "pos-dynamic-seed2", "dep-dynamic-seed1", "dep-dynamic-seed2",
        )  # fmt: skip
        assert clones_of(run.config).claims == str(HERE / "claims" / "pos+dep.json")
    assert all(not run.prepared_from for name, run in found.items() if "-C-" not in name)


def test_what_starts_from_a_run_with_copies_comes_after_it() -> None:
    split = Block(("pos+dep",), set={"clones.kind": "split"}, label="C")
    masked_later = Block(("pos+dep",), ("static",), {"clones.kind": "split"}, label="S")
    found = list(runs(MASKED, masked_later, split, seeds=(1,)))
    assert found == ["pos-dynamic-seed1", "dep-dynamic-seed1", "all-C-seed1", "all-static-S-seed1"]


def test_rows_and_all_heads_need_no_claims_and_given_ones_are_taken() -> None:
    for settings in (
        {"clones.kind": "rows"},
        {"clones.kind": "routed", "clones.heads": "all"},
        {"clones.kind": "routed", "clones.claims": "claims.json"},
    ):
        [run] = runs(Block(("pos+dep",), set=settings), seeds=(1,)).values()
        assert run.prepared_from == ()
        assert clones_of(run.config).claims == settings.get("clones.claims")


def test_copies_for_the_whole_study_concern_sets_of_tasks_only() -> None:
    train = dataclasses.replace(TASKS, clones=ClonesConfig("rows"))
    found = runs(Block(("single", "all")), train=train, seeds=(1,))
    assert {name: clones_of(run.config).kind for name, run in found.items()} == {
        "pos-seed1": "none", "dep-seed1": "none", "all-seed1": "rows",
    }  # fmt: skip


def test_labels_say_which_masks_count() -> None:
    small = Block(("single",), ("dynamic",), {"gates.target_open": 9}, "k9")
    large = Block(("single",), ("dynamic",), {"gates.target_open": 22}, "k22")
    own = dataclasses.replace(ROUTED, label="k9")
    run = runs(small, large, own, seeds=(1,))["all-k9-seed1"]
    assert run.prepared_from == ("pos-dynamic-k9-seed1", "dep-dynamic-k9-seed1")
    run = runs(small, ROUTED, seeds=(1,))["all-C-seed1"]
    assert run.prepared_from == ("pos-dynamic-k9-seed1", "dep-dynamic-k9-seed1")
    with pytest.raises(InputError, match="the claims of pos from the runs labelled k22 or k9"):
        runs(small, large, ROUTED)


def test_a_task_without_claims_is_one_line() -> None:
    with pytest.raises(InputError, match="copies heads that dep claims, but the grid has no masks of dep"):
        runs(ROUTED, Block(("pos",), ("dynamic",)))


def gates(
    folder: Path, task: str, opened: set[tuple[int, int]], forced: frozenset[tuple[int, int]] = frozenset()
) -> None:
    rows = [
        {"task": task, "step": 3, "attention": "self", "layer": layer, "head": head, "log_alpha": 0.0,
         "gate": float((layer, head) in opened), "open": (layer, head) in opened,
         "log_alpha_at_choice": -5.0 if (layer, head) in forced else None}
        for layer in range(2) for head in range(3)
    ]  # fmt: skip
    folder.mkdir(parents=True)
    pl.DataFrame(rows, schema=SCHEMA).write_parquet(folder / "gates.parquet")


def test_the_file_has_the_heads_open_in_most_seeds_and_is_the_same_each_time(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    opened = {
        "pos-1": {(0, 0), (1, 1)}, "pos-2": {(0, 0), (1, 2)}, "pos-3": {(0, 0), (1, 1)},
        "dep-4": {(0, 0)}, "dep-5": {(0, 0), (0, 2)},
    }  # fmt: skip
    for name, heads in opened.items():
        gates(study.run(name), name[:3], heads, frozenset({(1, 1)}))
        study.write_job(Job(name, "single dynamic", TrainConfig(seed=int(name[-1]))))
    path = tmp_path / "claims" / "pos+dep.json"
    config = dataclasses.replace(TASKS, clones=ClonesConfig("routed", claims=str(path)))
    job = Job("C", "C", config, prepared_from=tuple(opened))
    write_claims_of(job, study)
    first = path.read_bytes()
    assert read_claims(path, ("pos", "dep"), (2, 3)).of_task == {"pos": ((0, 0), (1, 1)), "dep": ((0, 0),)}
    assert json.loads(first)["learned"] == {"pos": [[0, 0]], "dep": [[0, 0]]}
    assert read_claims(path, ("dep",), (2, 3)).learned == {"dep": ((0, 0),)}
    assert json.loads(first)["runs"] == {"pos": ["pos-1", "pos-2", "pos-3"], "dep": ["dep-4", "dep-5"]}
    write_claims_of(job, study)
    assert path.read_bytes() == first
    (study.run("dep-4") / "gates.parquet").write_text("no table")
    with pytest.raises(InputError, match="train dep-4 again"):
        write_claims_of(job, study)


def test_a_run_waits_for_all_masks_and_fails_with_any() -> None:
    jobs = {name: Job(name, "", TrainConfig()) for name in ("pos", "dep")}
    jobs["C"] = Job("C", "", TrainConfig(), prepared_from=("pos", "dep"))
    progress = {"pos": Progress("finished"), "dep": Progress("running"), "C": Progress()}
    assert not Snapshot(jobs, progress).ready("C")
    assert Snapshot(jobs, {**progress, "dep": Progress("finished")}).ready("C")
    assert Snapshot(jobs, {**progress, "dep": Progress("failed")}).state("C") == "failed"


@pytest.mark.slow
def test_a_study_copies_what_its_own_masks_claim(toy: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    grid = [
        {"setups": ["single"], "masks": ["dynamic"], "seeds": [7], "set": {"gates.target_open": 8}},
        {"setups": ["pos+dep"], "masks": ["none"], "label": "C", "set": {"clones.kind": "routed"}},
        {
            "setups": ["pos+dep"], "masks": ["none"], "label": "G", "set": {"clones.kind": "split"},
        },
    ]  # fmt: skip
    file = small.write(
        tmp_path / "remedy.yaml", toy, tiny_encoder, grid=grid, train={"tasks": ["pos", "dep"]},
        probes={"masks": []},
    )  # fmt: skip
    small.carry_out(file)
    folder = tmp_path / "studies" / "remedy"
    claims = read_claims(folder / "claims" / "pos+dep.json", ("pos", "dep"), (3, 4))
    assert [len(heads) for heads in claims.of_task.values()] == [8, 8]
    contested = set(claims.of_task["pos"]) & set(claims.of_task["dep"])
    for label in ("C", "G"):
        config = json.loads((folder / "runs" / f"all-{label}-seed1" / "model" / "config.json").read_text())
        copied = {(int(layer), head) for layer, of in config["cloned_heads"].items() for head in of.values()}
        assert copied == contested
    assert "Does a remedy help?" in (folder / "report.html").read_text()


def test_a_job_of_an_older_study_says_where_its_claims_come_from(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    (tmp_path / "jobs").mkdir()
    config = plain(dataclasses.asdict(TASKS))
    written = {
        "name": "C", "number": 0, "grid_cell": "pos+dep C", "config": config, "made_of": {"claims": "x"},
        "claims_from": ["pos", "dep"],
    }  # fmt: skip
    (tmp_path / "jobs" / "C.job.json").write_text(json.dumps(written))
    [job] = study.jobs()
    assert job == Job("C", "pos+dep C", TASKS, prepared_from=("pos", "dep"), made_of={"claims": "x"})
    assert job.after() == ["pos", "dep"]
