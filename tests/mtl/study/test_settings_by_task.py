"""Settings by task and random weights in a study."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtl.config.parse import configuration_from
from mtl.config.schema import GatesConfig, OptimizerConfig, TrainConfig
from mtl.errors import InputError
from mtl.study.config import GridBlock, StudyConfig
from mtl.study.grid import planned
from mtl.training.check import check_settings

OF_PAPER = {"pos": 0.01, "ner": 0.0002, "dep": 0.01, "con": 0.01, "srl": 0.001}


def test_one_line_of_penalties_serves_all_single_runs_of_a_study() -> None:
    train = TrainConfig(
        gates=GatesConfig(penalty=OF_PAPER), optimizer=OptimizerConfig(decoder_lr={"srl": 0.01})
    )
    single, joint = GridBlock(("STL", "dep~a"), ("dynamic",)), GridBlock(("MTL",), ("none",))
    runs = {
        run.name: run.config for run in planned(StudyConfig(grid=(single, joint), train=train), Path("s"))
    }
    for task, penalty in OF_PAPER.items():
        config = runs[f"{task}-dynamic-seed1"]
        assert config.gates.penalty == {task: penalty}
        assert config.rates()["decoder_lr"] == {task: 0.01 if task == "srl" else 2e-3}
        check_settings(config)
    assert runs["dep~a-dynamic-seed1"].gates.penalty == {"dep~a": 0.01}
    assert runs["MTL-seed1"].gates.penalty is None
    other = TrainConfig(tasks=("pos", "ner"), gates=train.gates)
    with pytest.raises(
        InputError, match=r"unknown task in train\.gates\.penalty: 'dep', which is not in train"
    ):
        planned(StudyConfig(grid=(joint,), train=other), Path("s"))
    shared = GridBlock(("MTL",), ("dynamic",))
    [job, *_] = planned(StudyConfig(grid=(shared,), train=train), Path("s"))
    with pytest.raises(
        InputError, match=r"^gates\.penalty is given by task, and gates\.scope=shared has one mask"
    ):
        check_settings(job.config)


def test_targets_for_some_and_penalties_for_other_single_runs() -> None:
    gates = GatesConfig(penalty={"pos": 0.01, "srl": 0.1}, target_open={"ner": 0.5})
    study = StudyConfig(
        grid=(GridBlock(("pos", "ner", "dep"), ("dynamic",)),), train=TrainConfig(gates=gates)
    )
    pos, ner, dep = (run.config for run in planned(study, Path("s")) if run.config.seed == 1)
    assert (pos.gates.penalty, pos.gates.target_open) == ({"pos": 0.01}, None)
    assert (ner.gates.penalty, ner.gates.target_open) == (None, {"ner": 0.5})
    with pytest.raises(InputError, match="is empty: use a number for each of dep, or one for all"):
        check_settings(dep)


def test_a_study_does_not_probe_an_encoder_that_its_runs_do_not_have() -> None:
    train = configuration_from(TrainConfig, {"encoder": {"weights": "random"}})
    with pytest.raises(InputError, match="'pretrained' probes the pretrained encoder"):
        planned(StudyConfig(grid=(GridBlock(("pretrained", "STL")),), train=train), Path("s"))
