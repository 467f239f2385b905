"""Runs of a study of remedies: which condition trained is, and the figure."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from safetensors.numpy import save_file

from mtl.commands.figure import figure
from mtl.errors import InputError
from mtl.runs.compare.setups import setups_of
from mtl.runs.folder.run import Run
from mtl.stem_cell.remedies import encoder_parameters, remedy_scores

SCORE = {"pos": "accuracy", "dep": "las", "ner": "f1"}
KINDS = {
    "A": {}, "B": {"kind": "rows"}, "C": {"kind": "routed"}, "D": {"kind": "routed", "heads": "uncontested"},
    "E": {"kind": "routed", "heads": "all"}, "F": {"kind": "shuffled"}, "S": {"kind": "split"},
    "G": {"kind": "transplant"}, "G'": {"kind": "transplant", "heads": "uncontested"},
}  # fmt: skip


def run(root: Path, name: str, tasks: tuple[str, ...], seed: int, **config: object) -> Run:
    folder = root / f"{name}-{seed}"
    (folder / "model").mkdir(parents=True)
    clones = {"kind": "none", "heads": "contested", "claims": None, "seed": None, "noise": 0.01}
    config = {
        "tasks": list(tasks),
        "seed": seed,
        "pruning": "none",
        "max_epochs": 5,
        "init_from": None,
    } | config
    config["clones"] = clones | dict(config.get("clones") or {})
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "status.json").write_text(json.dumps({"corpus_fingerprint": "5a" * 32}))
    figures = {task: {SCORE[task]: 70.0 + len(name) + 0.1 * seed + (task == "pos")} for task in tasks}
    (folder / "metrics.json").write_text(json.dumps({"test": figures}))
    save_file(
        {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)},
        folder / "model" / "model.safetensors",
    )
    return Run.open(folder)


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    made = [
        run(tmp_path, name, ("pos", "dep"), seed, clones=clones)
        for name, clones in KINDS.items()
        for seed in (1, 2)
    ]
    made += [run(tmp_path, task, (task,), seed) for task in ("pos", "dep") for seed in (1, 2)]
    made.append(run(tmp_path, "claims", ("pos",), 11, pruning="dynamic"))
    made.append(run(tmp_path, "ner", ("ner",), 1))
    return made


def test_every_run_has_its_condition(runs: list[Run]) -> None:
    table, notes = remedy_scores(runs, "test", SCORE)
    assert notes == ()
    conditions = dict(table.select("run", "condition").iter_rows())
    for folder, condition in conditions.items():
        name = Path(folder).name.rpartition("-")[0]
        assert condition == (name if name in KINDS else "single")
    assert table.height == 2 * 2 * len(KINDS) + 4
    assert set(table["parameters"]) == {17}
    assert not {"claims-11", "ner-1"} & {Path(folder).name for folder in conditions}


def allotted(root: Path, name: str, seed: int, **gates: object) -> Run:
    """A run with a mask of 14 heads per task."""
    gates = {"scope": "per_task", "target_open": 14, "overlap_penalty": 0.0, "at_most": None} | gates
    return run(root, name, ("pos", "dep"), seed, pruning="dynamic", gates=gates)


def test_masks_with_a_limit_are_beside_those_without(runs: list[Run], tmp_path: Path) -> None:
    limits = {"H": {"at_most": 1}, "O": {"overlap_penalty": 0.01}, "H'": {}}
    masked = [allotted(tmp_path, name, seed, **gates) for name, gates in limits.items() for seed in (1, 2, 3)]
    masked[-1] = allotted(tmp_path, "smaller", 3, target_open=9)
    shared = allotted(tmp_path, "shared", 4, scope="shared")
    rewarded = allotted(tmp_path, "rewarded", 4, overlap_penalty=-0.01)
    table, notes = remedy_scores([*runs, *masked, shared, rewarded], "test", SCORE)
    found = {
        Path(folder).name: condition for folder, condition in table.select("run", "condition").iter_rows()
    }
    assert {found[f"{name}-{seed}"] for name in limits for seed in (1, 2)} == set(limits)
    assert all(found[f"{name}-1"] == name for name in (*limits, "A", "C"))
    assert not {"smaller-3", "shared-4", "rewarded-4"} & set(found)
    assert [note for note in notes if "smaller-3 was trained with another gates.target_open than" in note]
    alone, _ = remedy_scores([*masked[:8], *(one for one in runs if one.folder.name == "A-1")], "test", SCORE)
    assert set(alone["condition"]) == {"H", "O", "H'", "A"}
    without, _ = remedy_scores([*runs, *masked[6:8]], "test", SCORE)
    assert "H'" not in set(without["condition"])
    with pytest.raises(InputError, match=r"gates\.at_most or gates\.overlap_penalty"):
        remedy_scores([*masked[6:8]], "test", SCORE)


def test_runs_trained_otherwise_are_left_out_with_a_note(runs: list[Run], tmp_path: Path) -> None:
    longer = run(tmp_path, "long", ("pos", "dep"), 3, max_epochs=9)
    table, notes = remedy_scores([*runs, longer], "test", SCORE)
    assert str(longer.folder) not in set(table["run"])
    assert any("another max_epochs than" in note for note in notes)
    other = run(tmp_path, "odd", ("pos", "dep"), 3, clones={"kind": "shuffled", "heads": "all"})
    assert any("no place in the figure" in note for note in remedy_scores([*runs, other], "test", SCORE)[1])


def test_what_cannot_be_compared_is_one_line(runs: list[Run], tmp_path: Path) -> None:
    plain = [trained for trained in runs if trained.config()["clones"]["kind"] == "none"]
    with pytest.raises(InputError, match=r"no run with clones\.kind"):
        remedy_scores(plain, "test", SCORE)
    again = run(tmp_path, "Cagain", ("pos", "dep"), 1, clones=KINDS["C"])
    with pytest.raises(InputError, match=r"/C-1 and \S*/Cagain-1 are the same condition and seed"):
        remedy_scores([*runs, again], "test", SCORE)
    others = run(tmp_path, "others", ("pos", "ner"), 1, clones=KINDS["C"])
    with pytest.raises(InputError, match=r"have different tasks \(pos\+dep, pos\+ner\)"):
        remedy_scores([*runs, others], "test", SCORE)
    assert encoder_parameters(tmp_path) is None


def test_the_figure_is_drawn_with_its_numbers(runs: list[Run], tmp_path: Path) -> None:
    figure("recovery", [trained.folder for trained in runs], tmp_path / "recovery.png")
    assert (tmp_path / "recovery.png").stat().st_size > 10_000
    table = pl.read_parquet(tmp_path / "recovery.parquet")
    assert set(table["condition"]) == {*KINDS, "single"}
    assert pl.read_parquet(tmp_path / "recovery-scores.parquet").height == 2 * 2 * len(KINDS) + 4


def test_setups_name_copies_in_words(runs: list[Run]) -> None:
    configs = [trained.config() for trained in runs if trained.config()["seed"] == 1]
    names = [setup.name for setup in setups_of(configs)]
    assert names[:4] == [
        "MTL-2", "MTL-2, clones rows", "MTL-2, clones routed contested", "MTL-2, clones routed uncontested",
    ]  # fmt: skip
