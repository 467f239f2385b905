"""What a dry run says of runs with copied heads that cannot be made."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import polars as pl
import pytest

from mtl.commands.main import main
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.heads.gate_file import SCHEMA
from mtl.stem_cell.claims_file import Claims, write_claims
from mtl.stem_cell.claims_of_runs import CLAIMS, check_family
from mtl.stem_cell.clones_start import ClonesConfig
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.job import Job, Progress
from tests.mtl.commands.test_startup import run as run_program
from tests.mtl.study import small

GRID = [
    {"setups": ["single"], "masks": ["dynamic"], "seeds": [7], "set": {"gates.target_open": 8}},
    {"setups": ["pos+dep"], "masks": ["none"], "label": "C", "set": {"clones.kind": "routed"}},
]  # fmt: skip


def dry_run(folder: Path, toy: Path, encoder: Path, grid: list[dict[str, object]]) -> int:
    file = small.write(
        folder / "copies.yaml", toy, encoder, grid=grid, train={"tasks": ["pos", "dep"]}, probes={"masks": []}
    )
    return main(["study", str(file), f"--studies={folder / 'studies'}", "--dry-run"])


def encoder_with(folder: Path, **configuration: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(configuration))
    return folder


def test_a_family_that_cannot_be_copied_in_is_refused_when_the_study_is_planned(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = encoder_with(tmp_path / "encoder", model_type="albert")
    assert dry_run(tmp_path, toy, encoder, GRID) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"run all-C-seed1: no heads can be copied in {encoder} (albert): one attention module" in line
    assert line.endswith("leave the block out, or use another encoder")


@pytest.mark.parametrize(
    ("configuration", "reason"),
    [
        ({"model_type": "deberta", "talking_head": True}, "talking heads mix"),
        ({"model_type": "olmo2"}, "a norm runs over the queries"),
        ({"model_type": "deberta"}, None),
        ({"model_type": "bert"}, None),
        ({"model_type": "no-family"}, None),
    ],
)
def test_the_reason_is_that_of_the_model(
    tmp_path: Path, configuration: dict[str, object], reason: str | None
) -> None:
    encoder = encoder_with(tmp_path / "encoder", **configuration)
    if reason is None:
        check_family("x", str(encoder))
    else:
        with pytest.raises(InputError, match=f"run x: no heads can be copied .*{reason}"):
            check_family("x", str(encoder))


def test_a_given_file_without_a_contested_head_is_refused_when_the_study_is_planned(
    toy: Path, tiny_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "claims.json"
    block = GRID[1] | {"set": {"clones.kind": "routed", "clones.claims": str(path)}}
    write_claims(path, Claims((3, 4), {"pos": ((0, 1),), "dep": ((0, 2),)}), {})
    assert dry_run(tmp_path, toy, tiny_encoder, [block]) == 2
    line = capsys.readouterr().err
    assert f"run all-C-seed1: no head is claimed by two of pos, dep (clones.claims={path})" in line
    write_claims(path, Claims((3, 4), {"pos": ((0, 1),), "dep": ((0, 1),)}), {})
    assert dry_run(tmp_path, toy, tiny_encoder, [block]) == 0
    claimed = ((0, 0), (0, 1), (0, 2))
    write_claims(path, Claims((3, 4), {"pos": claimed, "dep": claimed}), {})
    assert dry_run(tmp_path, toy, tiny_encoder, [block]) == 0
    placebo = block | {"set": block["set"] | {"clones.heads": "uncontested"}}
    assert dry_run(tmp_path, toy, tiny_encoder, [placebo]) == 2
    assert "run all-C-seed1: L0 has 1 head for the placebo" in capsys.readouterr().err


def gates(folder: Path, task: str, *opened: int) -> None:
    rows = [
        {"task": task, "step": 3, "attention": "self", "layer": 0, "head": head, "log_alpha": 0.0,
         "gate": float(head in opened), "open": head in opened}
        for head in range(3)
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(rows, schema=SCHEMA).write_parquet(folder / "gates.parquet")


def test_claims_and_masks_of_another_shape_are_refused_when_the_study_is_planned(
    toy: Path, tiny_encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "claims.json"
    write_claims(path, Claims((6, 12), {"pos": ((0, 1),), "dep": ((0, 1),)}), {})
    block = GRID[1] | {"set": {"clones.kind": "routed", "clones.claims": str(path)}}
    assert dry_run(tmp_path, toy, tiny_encoder, [block]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "about 6 layers of 12 heads, and the encoder has 3 layers of 4: use claims of the same" in line
    gates(tmp_path / "given", "pos", 1)
    masks = tmp_path / "given" / "gates.parquet"
    fixed = {"setups": ["pos"], "masks": ["fixed"], "set": {"gates.masks": str(masks)}}
    assert dry_run(tmp_path, toy, tiny_encoder, [fixed]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{masks} is a mask over 1 layer of 3 heads, but the encoder {tiny_encoder} has 3 layers" in line
    assert line.endswith("use masks that were learned on it")


def test_masks_that_are_finished_tell_that_nothing_is_contested(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    tasks = TrainConfig(tasks=("pos", "dep"), clones=ClonesConfig("routed", claims=str(tmp_path / "c.json")))
    jobs = {name: Job(name, "single dynamic", TrainConfig(seed=1)) for name in ("pos", "dep")}
    jobs["C"] = Job("C", "C", tasks, prepared_from=("pos", "dep"))
    for name, opened in (("pos", 0), ("dep", 1)):
        gates(study.run(name), name, opened)
        study.write_job(jobs[name])
    study.write_progress("pos", Progress("finished"))
    assert not [*CLAIMS.notes(jobs, set(), study)]  # the other masks are not known yet
    study.write_progress("dep", Progress("finished"))
    [line] = CLAIMS.notes(jobs, set(), study)
    assert line.startswith("C will fail: no head is claimed by two of pos, dep")
    assert not [*CLAIMS.notes(jobs, {"dep"}, study)]  # its mask will be learned again
    gates(study.run("dep"), "dep", 0)
    assert not [*CLAIMS.notes(jobs, set(), study)]
    # A placebo needs as many heads of the layer that are not contested.
    placebo = dataclasses.replace(tasks.clones, heads="uncontested")
    config = dataclasses.replace(tasks, clones=placebo)
    jobs["D"] = dataclasses.replace(jobs["C"], name="D", config=config)
    assert not [*CLAIMS.notes(jobs, set(), study)]
    for name in ("pos", "dep"):
        gates(study.run(name), name, 0, 1)
    [line] = CLAIMS.notes(jobs, set(), study)
    assert line.startswith("D will fail: L0 has 1 head for the placebo")
    (study.run("dep") / "gates.parquet").write_text("no table")
    line, _ = CLAIMS.notes(jobs, set(), study)
    assert line.startswith("C will fail: ")
    assert line.endswith("train dep again")


def test_runs_with_copied_heads_are_planned_without_anything_heavy(toy):
    """Their encoder's family is looked up in its config.json."""
    words = ("study", "configs/study/remedy.yaml", "--dry-run", f"--train.corpus.path={toy}")
    assert run_program(*words)[0] == ""
