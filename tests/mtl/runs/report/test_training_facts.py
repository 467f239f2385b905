"""What a report reads from a run's files on its training."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from mtl.config.effective import plain
from mtl.config.schema import CorpusConfig, EncoderConfig, Files, TrainConfig
from mtl.runs.report.gather import COLUMNS, training_facts


def facts(config: TrainConfig, status: dict[str, object] | None = None) -> dict[str, str]:
    return dict(zip(COLUMNS, training_facts(plain(asdict(config)), status or {}), strict=True))


def test_the_facts_of_a_run() -> None:
    status = {"sentences": {"train": 200, "dev": 30, "test": 80}}
    assert facts(TrainConfig(tasks=("pos",), max_epochs=3), status) == {
        "data": "data/ewt5", "sentences": "200 + 30 + 80", "epochs": "3", "batch": "16",
        "rates": "0.0003, 0.002",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("corpus", "places"),
    [
        (CorpusConfig(pos=Files(train="a.conllu")), "a.conllu, data/ewt5"),
        (CorpusConfig(files=Files(train="b.conllu")), "b.conllu"),
    ],
)
def test_a_tasks_own_files_are_its_corpus(corpus: CorpusConfig, places: str) -> None:
    assert facts(TrainConfig(tasks=("pos", "dep"), corpus=corpus))["data"] == places


def test_rates_are_those_that_were_used() -> None:
    config = TrainConfig(tasks=("pos",), encoder=EncoderConfig(name="bert-base-cased"))
    assert facts(config)["rates"] == "5e-05, 0.001"
