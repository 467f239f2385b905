"""Someone who looks at a run's evaluations."""

from __future__ import annotations

import csv
import dataclasses
import io

import pytest
from rich.console import Console

from mtl.config.schema import CorpusConfig, EncoderConfig, TrainConfig, TrainerConfig
from mtl.runs.compare.settings import settings_of_run
from mtl.training.observer import AfterEvaluation
from mtl.training.train import train


@pytest.fixture
def config(toy, tiny_encoder, tmp_path):
    return TrainConfig(
        name="run[b]", runs=str(tmp_path), corpus=CorpusConfig(str(toy)),
        encoder=EncoderConfig(str(tiny_encoder)), tasks=("pos",), max_epochs=5,
        evaluate_every=2, trainer=TrainerConfig(accelerator="cpu"),
    )  # fmt: skip


def test_every_evaluation_is_shown_and_the_run_ends_when_told(config):
    seen = []

    def watch(row):
        seen.append(row)
        return row["epoch"] == 4

    printed = io.StringIO()
    run = train(config, console=Console(file=printed, width=40), observers=[AfterEvaluation(watch)])
    assert f"{run.folder}: training pos on" in printed.getvalue()
    assert [row["epoch"] for row in seen] == [2, 4]
    rows = list(csv.DictReader((run.folder / "history.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["2", "4"]
    assert [float(row["dev/mean"]) for row in rows] == [row["dev/mean"] for row in seen]
    # Ended as runs end whose patience is over: whole, with its scores.
    assert run.status()["state"] == "finished"
    assert set(run.metrics()) == {"dev", "test"}
    # What it was made of is recorded, so that runs can be compared wherever all that is later.
    status = run.status()
    assert status["corpus_fingerprints"] == {"pos": status["corpus_fingerprint"]}
    assert status["origins"] == {"init_from": None}
    values = settings_of_run(run).values
    assert values["corpus.pos"].digest == status["corpus_fingerprint"]
    assert values["encoder.name"].digest == status["encoder_fingerprint"]


def test_a_run_that_ends_before_its_heads_are_chosen_keeps_its_last_model(config):
    config = dataclasses.replace(config, pruning="dynamic", keep="best", evaluate_every=1)
    ends = AfterEvaluation(lambda row: row["epoch"] == 2)
    run = train(config, console=Console(quiet=True), observers=[ends])
    assert run.status()["kept_epoch"] == 2
    assert set(run.metrics()) == {"dev", "test"}
