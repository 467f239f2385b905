"""Metrics over several ranks: their counts add up to those of a single process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.toy.corpus import write_toy
from mtl.tasks.catalogue import KINDS
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task, instance
from tests.mtl.training.settings_matrix import of_every_kind

LAYERS = {
    "tags": "tags", "spans": "entities", "tree": "arcs", "graph": "graph",
    "constituents": "tree", "frames": "frames", "class": "classify", "number": "regress",
}  # fmt: skip
"""A layer of `of_every_kind` for each kind except those whose predictions are no annotation."""
PREDICTED = {"tree": "entities"}
"""Constituents are predicted as spans, as these are."""
SHARES = ((0, 5), (5, 5), (5, 12))
"""The sentences of each of three ranks: the second has none."""


def scores(task: Task, shares: Sequence[Sequence[Sentence]]) -> dict[str, float]:
    """Scores if each sentence is given the annotation of the last one of its length in its share."""
    metric = task.metric()
    for share in shares:
        layers = {len(each): each.layer(PREDICTED.get(task.layer, task.layer)) for each in share}
        for each in share:
            metric.update([layers[len(each)]], [each])
    return metric.compute()


def on_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=len(SHARES))
    sentences = corpus(folder)[slice(*SHARES[rank])]
    found = {name: scores(task, [sentences]) for name, task in tasks().items()}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def corpus(folder: Path) -> list[Sentence]:
    read = read_jsonl(folder / "toy" / "train.jsonl")
    return [of_every_kind(number, sentence) for number, sentence in enumerate(read)]


def tasks() -> dict[str, Task]:
    return {kind: instance("own", KINDS[kind], layer)() for kind, layer in LAYERS.items()}


def test_every_kind_is_here():
    assert set(LAYERS) == set(KINDS) - {"drawn", "lemmas", "translation"}


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric:UserWarning")
def test_scores_of_three_ranks_are_those_of_one(tmp_path):
    write_toy(tmp_path / "toy", 12, 1, 1, seed=5)
    shares = [corpus(tmp_path)[slice(*each)] for each in SHARES]
    processes.start_processes(on_rank, (tmp_path,), nprocs=len(SHARES), start_method="fork")
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(len(SHARES))]
    for name, task in tasks().items():
        expected = pytest.approx(scores(task, shares))
        for found in ranks:
            assert found[name] == expected, name
