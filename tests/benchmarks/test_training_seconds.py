"""An epoch is timed after its first steps, also if it has fewer of them."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import torch

from benchmarks.throughput import training_seconds
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.models.batches import BatchIndices, examples
from mtl.models.joint import JointModel
from mtl.tasks.catalogue import TASKS
from tests.mtl import tiny


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("first", [1, 3])
def test_the_clock_is_read_at_the_start_and_at_the_end(toy: Path, first: int):
    sentences = read_jsonl(toy / "train.jsonl")[:2]
    tasks = {"pos": TASKS["pos"]()}
    labels = {"pos": tasks["pos"].labels(sentences)}
    model = JointModel(tiny.encoder("bert", dtype=torch.float32), tasks, labels)
    corpus = examples(sentences, model.encoder.tokenizer, model.tasks, labels)
    ticks = count(1000)
    steps = [BatchIndices((0, 1), ("pos",))]
    assert training_seconds(model, corpus, steps, first=first, now=lambda: float(next(ticks))) == 1.0
