"""Halves of the training sentences: their rule, and what `TASK~a` stands for in a configuration."""

from __future__ import annotations

import zlib
from dataclasses import asdict, replace

import pytest
import torch

from mtl.config.effective import only_used, plain
from mtl.config.instances import completed
from mtl.config.parse import configured
from mtl.config.schema import BalancerConfig, CorpusConfig, Files, TrainConfig
from mtl.errors import InputError
from mtl.tasks.catalogue import in_order_of_catalogue
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import half_of
from mtl.training.balancers import balancer_for


def test_halves_are_listed_where_their_task_is() -> None:
    assert in_order_of_catalogue(["srl", "dep~b", "own", "dep", "dep~a", "ner+dep"]) == (
        "ner+dep", "dep", "dep~a", "dep~b", "srl", "own",
    )  # fmt: skip


def test_halves_go_by_the_id_and_are_about_equal() -> None:
    sentences = [Sentence(("x",), id=f"weblog-{number:04}") for number in range(2000)]
    halves = [half_of(sentence, number) for number, sentence in enumerate(sentences)]
    assert halves == ["ab"[zlib.crc32(sentence.id.encode()) % 2] for sentence in sentences]
    assert 900 < halves.count("a") < 1100
    # wherever the sentence comes in the corpus
    assert halves == [half_of(sentence, 0) for sentence in sentences]


def test_a_sentence_without_an_id_goes_by_its_files_name_and_line_or_its_number() -> None:
    sentence = Sentence(("x",))
    placed = [replace(sentence, place=f"/a/train.jsonl:{line}") for line in range(40)]
    moved = [replace(sentence, place=f"/b/train.jsonl:{line}") for line in range(40)]
    assert [half_of(one, 0) for one in placed] == [half_of(one, 5) for one in moved]
    assert {half_of(one, 0) for one in placed} == {"a", "b"}
    assert {half_of(sentence, number) for number in range(40)} == {"a", "b"}


def test_the_short_name_has_the_settings_files_and_weight_of_its_task() -> None:
    words = [
        "--tasks=dep~a,pos~b", "--pos.inventory=upos", "--corpus.pos.train=t", "--corpus.pos.format=conllu",
        "--balancer.name=fixed", "--balancer.weights.pos=3", "--dep.arc_dim=7",
    ]  # fmt: skip
    config = configured("mtl train", TrainConfig, words)
    dep, pos = (config.instances[name] for name in ("dep~a", "pos~b"))
    assert (dep.kind, dep.layer, dep.half, dep.settings()) == ("tree", "arcs", "a", {"arc_dim": 7})
    assert (pos.kind, pos.layer, pos.half, pos.settings()) == ("tags", "upos", "b", {})
    assert config.corpus.instances == {"pos~b": Files("t", format="conllu", layer="upos")}
    assert only_used(config).balancer.weights == config.balancer.weights == {"pos~b": 3.0}
    balancer = balancer_for(config.balancer, ("dep~a", "pos~b"))
    assert balancer(torch.ones(2), None, torch.ones(2, dtype=torch.bool)).tolist() == [1.0, 3.0]
    assert completed(plain(asdict(config))) == plain(asdict(config))


def test_it_is_the_same_made_in_code_and_written_out() -> None:
    made = TrainConfig(tasks=("dep~a", "dep~b"))
    short = configured("mtl train", TrainConfig, ["--tasks=dep~a,dep~b"])
    assert short == made
    assert {name: task.half for name, task in made.chosen().items()} == {"dep~a": "a", "dep~b": "b"}


def test_a_half_of_a_task_of_ones_own_is_of_its_kind_and_layer() -> None:
    words = ["--tasks.slots.kind=spans", "--tasks.slots.files.train=t", "--tasks=slots~a"]
    config = configured("mtl train", TrainConfig, words)
    assert (config.instances["slots~a"].layer, config.corpus.instances["slots~a"].train) == ("slots", "t")
    assert config.task("slots~a").layer == "slots"
    assert config.corpus.instances["slots~a"].layer is None  # that of the files, as of slots


@pytest.mark.parametrize("name", ["cola~a", "dep~c", "~a"])
def test_other_names_with_the_mark_stand_for_nothing(name: str) -> None:
    with pytest.raises(InputError, match=f"unknown '{name}'"):
        TrainConfig(tasks=(name,), corpus=CorpusConfig(), balancer=BalancerConfig())
