"""The configurations of the published experiment against a table of the scripts' values.

The table was read from the calls of `fit` in emorynlp/stem-cell-hypothesis (`en_bert_base`, commit 48a6280).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.runs.compare.settings import MASKS, settings_of
from mtl.runs.compare.setups import setups_of
from mtl.study.config import StudyConfig
from mtl.study.grid import planned
from mtl.study.jobs import Job
from mtl.training.check import check_settings
from mtl.training.data import separate_batches
from tests.mtl.studies import runs_with
from tests.mtl.training.test_epoch_batches import example

FIVE = "pos ner dep con srl"
ALONE = {
    # epochs and accumulation without masks, epochs, accumulation and penalty with them
    "pos": (30, 2, 30, 2, 0.01),
    "ner": (30, 2, 100, 1, 0.0002),
    "dep": (30, 1, 100, 1, 0.01),
    "con": (30, 1, 30, 2, 0.01),
    "srl": (30, 4, 100, 4, 0.001),
}
PAIRS = {
    "pos ner": 1, "pos dep": 1, "pos con": 1, "pos srl": 4, "ner dep": 1, "ner con": 2, "ner srl": 4,
    "dep con": 1, "dep srl": 4, "con srl": 4,
}  # fmt: skip
"""Accumulation; all pairs have 30 epochs."""


DECODERS = {
    "ner": ("spans", 150), "dep": (500, 100, True, False), "con": (500, 100, "mbr"),
    "srl": ("spans", 150, 0.2),
}  # fmt: skip


def decoders(config: TrainConfig) -> dict[str, object]:
    """What the trained tasks' decoders are, with their sizes."""
    ner, dep, con, srl = config.ner, config.dep, config.con, config.srl
    made = {
        "ner": (ner.decoder, ner.dim), "dep": (dep.arc_dim, dep.relation_dim, dep.projective, dep.punct),
        "con": (con.span_dim, con.label_dim, con.decoding), "srl": (srl.decoder, srl.dim, srl.dropout),
    }  # fmt: skip
    return {name: found for name, found in made.items() if name in config.tasks}


def published(job: Job) -> dict[str, object]:
    """The scripts' values for a run of the plan."""
    tasks, masked = " ".join(job.config.tasks), job.masks != "none"
    common = {
        "sentences": 64, "tokens": 6400, "sampling": ("separate", "tempered"), "tau": 0.8,
        "decoder_lr": 1e-3, "encoder_lr": 1e-5 if masked else 5e-5, "weight_decay": 0.0, "warmup": 0.1,
        "clip": 1.0, "word_dropout": 0.2, "layers": "last", "schedule": "linear", "weights": "pretrained",
    }  # fmt: skip
    of_joint = {"balancer": ("moving_average", 5)} if " " in tasks else {}
    of_masks = {"gates": ("xavier", 1e-3, 0.33, 0.0, 0.0)} if masked else {}
    if tasks in ALONE:
        epochs, accumulate, *with_masks = ALONE[tasks]
        if not masked:
            return {**common, "epochs": epochs, "accumulate": accumulate}
        epochs, accumulate, penalty = with_masks
        of_masks |= {"penalty": {tasks: penalty}}
    elif tasks in PAIRS:
        epochs, accumulate = 30, PAIRS[tasks]
    else:
        assert tasks == FIVE
        epochs, accumulate = 30, 4
        of_masks |= {"penalty": 0.001} if masked else {}
        if job.label == "random":
            epochs, common["weights"] = 100, "random"
    return {**common, **of_joint, **of_masks, "epochs": epochs, "accumulate": accumulate}


def ours(config: TrainConfig) -> dict[str, object]:
    """The same values in a run's configuration."""
    batch, optimizer, encoder, gates = config.batch, config.optimizer, config.encoder, config.gates
    found = {
        "sentences": batch.sentences, "tokens": batch.tokens, "sampling": (batch.mode, batch.sampling),
        "tau": 1 / batch.temperature, "decoder_lr": optimizer.decoder_lr, "encoder_lr": optimizer.encoder_lr,
        "weight_decay": optimizer.weight_decay, "warmup": optimizer.warmup, "clip": optimizer.clip,
        "word_dropout": encoder.word_dropout, "layers": encoder.layers, "schedule": optimizer.schedule,
        "weights": encoder.weights, "epochs": config.max_epochs, "accumulate": optimizer.accumulate,
    }  # fmt: skip
    if len(config.tasks) > 1:
        found["balancer"] = config.balancer.name, config.balancer.window
    if config.pruning != "none":
        found["penalty"] = gates.penalty
        found["gates"] = gates.init, gates.lr, gates.temperature, gates.penalty_warmup, gates.warmup
    return found


@pytest.mark.parametrize("file", ["stem_cell", "ontonotes"])
def test_every_run_has_the_published_settings(file: str) -> None:
    study = configured("mtl study", StudyConfig, [f"configs/study/{file}.yaml"])
    runs = planned(study, Path("studies/s"))
    for run in runs:
        check_settings(run.config)
        assert ours(run.config) == published(run), run.name
        assert decoders(run.config).items() <= DECODERS.items()
    own = [run for run in runs if run.masks == "dynamic_per_task" or run.label == "random"]
    assert len(runs) - len(own) == 81
    assert {" ".join(run.config.tasks) for run in runs} == {*ALONE, *PAIRS, FIVE}


def test_the_joint_configuration_has_the_published_settings() -> None:
    config = configured("mtl train", TrainConfig, ["configs/paper.yaml"])
    assert ours(config) == published(Job("", "", config))
    assert decoders(config) == DECODERS


def test_reports_compare_runs_whose_settings_differ_by_task() -> None:
    study = configured("mtl study", StudyConfig, ["configs/study/stem_cell.yaml"])
    runs = planned(study, Path("studies/s"))
    runs = [run for run in runs if run.label is None and run.masks != "static"]  # these need runs in folders
    made = {run.name: settings_of(run.settings) for run in runs}
    setups = setups_of(list(made.values()))
    names = {setup.name for setup in setups if setup.tasks in (1, 5)}
    assert names == {
        "STL", "STL, dynamic", "MTL-5", "MTL-5, dynamic, one mask", "MTL-5, dynamic, a mask per task"
    }  # fmt: skip
    assert {setup.baseline for setup in setups if setup.name.startswith("MTL-5")} == {"STL", "STL, dynamic"}
    plain = {name: each for name, each in made.items() if each.pruning == "none"}
    assert [run.name for run in runs_with(**plain).like_most()] == list(plain)
    assert [run.name for run in runs_with(**made).like_most(MASKS)] == list(made)
    undeclared = [settings_of({**run.settings, "by_task": []}) for run in runs if len(run.config.tasks) == 1]
    assert len({setup.name for setup in setups_of(undeclared)}) > 3


def test_tasks_are_drawn_in_proportion_to_a_power_of_their_batches() -> None:
    sizes = {"pos": 160, "ner": 40, "dep": 20}
    corpus = [example(5, name) for name, size in sizes.items() for _ in range(size)]
    drawn = [
        step.tasks[0]
        for seed in range(60)
        for step in separate_batches(
            corpus, tuple(sizes), 5, 1, np.random.default_rng(seed), "tempered", 1.25
        )
    ]
    total = sum(size**0.8 for size in sizes.values())
    for name, size in sizes.items():
        # 13,200 draws have a standard deviation of at most 0.0044.
        assert drawn.count(name) / len(drawn) == pytest.approx(size**0.8 / total, abs=0.0176)
