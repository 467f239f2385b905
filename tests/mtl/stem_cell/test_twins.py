"""Twins: which names they have, and which half of the sentences each learns from."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
import torch

from mtl.config.effective import only_used
from mtl.config.schema import BalancerConfig, TrainConfig
from mtl.errors import InputError
from mtl.stem_cell.twins import part_of, task_and_part, twins_of
from mtl.tasks.order import in_order_of_catalogue
from mtl.tasks.sentence import Sentence
from mtl.tasks.variants import task_of, tasks_of
from mtl.training.balancing import balancer_for
from mtl.training.check import check_settings


def test_a_twins_name_is_mapped_to_its_task_and_part() -> None:
    assert [task_and_part(name) for name in twins_of("dep")] == [("dep", "a"), ("dep", "b")]
    assert task_and_part("dep") == ("dep", None)
    assert task_of("dep~b") == task_of("dep") == "dep"
    assert tasks_of(("pos", "dep~a", "dep~b")) == ("pos", "dep")


def test_twins_are_listed_where_their_task_is() -> None:
    assert in_order_of_catalogue(["srl", "dep~b", "control", "dep", "dep~a", "own", "ner+dep"]) == (
        "ner+dep", "dep", "dep~a", "dep~b", "srl", "control", "own",
    )  # fmt: skip


def test_halves_go_by_the_id_and_are_about_equal() -> None:
    sentences = [Sentence(("x",), id=f"weblog-{number:04}") for number in range(2000)]
    parts = [part_of(sentence, number) for number, sentence in enumerate(sentences)]
    assert parts == ["ab"[zlib.crc32(sentence.id.encode()) % 2] for sentence in sentences]
    assert 900 < parts.count("a") < 1100
    assert parts == [
        part_of(sentence, 0) for sentence in sentences
    ]  # wherever the sentence comes in the corpus


def test_a_sentence_without_an_id_goes_by_its_files_name_and_line_or_its_number() -> None:
    sentence = Sentence(("x",))
    placed = [replace(sentence, place=f"/a/train.jsonl:{line}") for line in range(40)]
    moved = [replace(sentence, place=f"/b/train.jsonl:{line}") for line in range(40)]
    assert [part_of(one, 0) for one in placed] == [part_of(one, 5) for one in moved]
    assert {part_of(one, 0) for one in placed} == {"a", "b"}
    assert {part_of(sentence, number) for number in range(40)} == {"a", "b"}


def test_a_tasks_weight_is_that_of_its_twins_too() -> None:
    config = BalancerConfig("fixed", {"ner": 3.0, "pos~b": 2.0})
    balancer = balancer_for(config, ("pos~a", "pos~b", "ner~a", "ner~b"))
    assert balancer(torch.ones(4), None, torch.ones(4, dtype=torch.bool)).tolist() == [1.0, 2.0, 3.0, 3.0]
    twins = TrainConfig(tasks=("ner~a", "ner~b"), balancer=BalancerConfig("fixed", {"ner": 3.0, "dep": 2.0}))
    assert only_used(twins).balancer.weights == {"ner": 3.0}
    with pytest.raises(InputError, match=r"balancer\.weights names dep, which is not trained .*weights=\{\}"):
        check_settings(twins)
