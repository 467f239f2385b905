"""Someone who looks at a run's evaluations."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from mtl.config.parse import configured
from mtl.config.schema import CorpusConfig, EncoderConfig, TrainConfig, TrainerConfig
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.models.batches import examples
from mtl.models.evaluate import evaluate_sentences
from mtl.models.joint import JointModel
from mtl.runs.compare.settings import settings_of_run
from mtl.training.evaluation import AfterEvaluation
from mtl.training.train import train


@pytest.fixture
def config(few, tiny_encoder, tmp_path):
    return TrainConfig(
        name="run[b]", runs=str(tmp_path), corpus=CorpusConfig(str(few)),
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


def test_training_sentences_are_scored_beside_dev_and_change_nothing(
    tiny_encoder: Path, few: Path, tmp_path: Path
) -> None:
    words = [
        "--tasks=[pos]", f"--corpus.path={few}", f"--encoder.name={tiny_encoder}", "--max_epochs=2",
        "--trainer.accelerator=cpu", f"--runs={tmp_path}", "--keep=last",
    ]  # fmt: skip
    made = {}
    for number in (0, 7):
        config = configured(
            "mtl train", TrainConfig, [*words, f"--evaluate_train={number}", f"--name={number}"]
        )
        made[number] = train(config, console=Console(quiet=True))
    without, beside = (pl.read_csv(made[number].folder / "history.csv") for number in (0, 7))
    assert beside.drop("train/pos/accuracy", "seconds").equals(without.drop("seconds"))
    model = JointModel.from_pretrained(made[7].model)
    sentences = read_jsonl(few / "train.jsonl")
    chosen = [sentences[place * len(sentences) // 7] for place in range(7)]
    scores, _ = evaluate_sentences(
        model, examples(chosen, model.encoder.tokenizer, model.tasks, model.labels)
    )
    assert beside["train/pos/accuracy"][-1] == pytest.approx(scores["pos"]["accuracy"], abs=1e-3)
