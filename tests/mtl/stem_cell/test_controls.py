"""Runs that others are compared with: twins, and a control task as partner."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest
import torch
from rich.console import Console

from mtl.commands.main import main
from mtl.config.parse import configured, dump
from mtl.config.schema import (
    BatchConfig,
    CorpusConfig,
    EncoderConfig,
    Files,
    TrainConfig,
    TrainerConfig,
)
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.corpora.load import corpus_fingerprint, load_split, sources
from mtl.errors import InputError
from mtl.models.batches import examples
from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from mtl.runs.compare.heads import heads_of
from mtl.runs.compare.run_set import RunSet
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import half_of
from mtl.training.train import train

QUIET = Console(quiet=True)


def settings(corpus: Path, encoder: Path, runs: Path, *tasks: str) -> TrainConfig:
    return TrainConfig(
        runs=str(runs), corpus=CorpusConfig(str(corpus)), tasks=tasks, max_epochs=1,
        encoder=EncoderConfig(str(encoder)), batch=BatchConfig(sentences=24),
        trainer=TrainerConfig(accelerator="cpu"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.mark.slow
def test_twins_share_the_training_sentences_and_have_all_of_dev_and_test(toy, tiny_encoder, runs, capsys):
    config = settings(toy, tiny_encoder, runs, "dep~a", "dep~b")
    run = train(config, console=Console(width=200))
    sentences = read_jsonl(toy / "train.jsonl")
    in_a = sum(half_of(sentence, number) == "a" for number, sentence in enumerate(sentences))
    printed = capsys.readouterr().out
    assert f"train: 120 sentences, annotated: dep~a {in_a}  dep~b {120 - in_a}" in printed
    assert "dev: 30 sentences, annotated: dep~a 30  dep~b 30" in printed
    assert run.folder.name == "dep~a-dep~b-seed1"
    assert set(run.metrics()["test"]) == {"dep~a", "dep~b"}
    model = JointModel.from_pretrained(run.model)
    assert list(model.tasks) == ["dep~a", "dep~b"]
    assert model.labels["dep~a"].names == model.labels["dep~b"].names
    first, second = (dict(model.decoder(name).named_parameters()) for name in model.tasks)
    assert any((first[key] != second[key]).any() for key in first)


def test_every_training_sentence_is_one_twins_and_only_one(toy, tiny_encoder):
    config = TrainConfig(tasks=("pos", "dep~a", "dep~b"))
    tasks = config.chosen()
    assert list(tasks) == ["pos", "dep~a", "dep~b"]
    assert asdict(tasks["dep~a"]) == asdict(config.dep)
    sentences = load_split(CorpusConfig(str(toy)), tasks, "train")
    sentences[0] = dataclasses.replace(sentences[0], arcs=None)
    tokenizer = Encoder.from_pretrained(str(tiny_encoder)).tokenizer
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    corpus = examples(sentences, tokenizer, tasks, labels, training=True)
    assert set(corpus[0].targets) == {"pos"}
    for number, example in enumerate(corpus[1:], start=1):
        assert set(example.targets) == {"pos", f"dep~{half_of(example.sentence, number)}"}
    both = examples(sentences[1:], tokenizer, tasks, labels)
    assert all(set(example.targets) == set(tasks) for example in both)


def test_a_twin_reads_what_its_task_reads(tmp_path):
    files = Files("train.conllu", "dev.conllu", "test.conllu", "conllu")
    config = CorpusConfig(path=None, dep=files)
    twins = TrainConfig(tasks=("dep~a", "dep~b"), corpus=config)
    [source] = sources(twins.corpus, twins.chosen())
    assert (source.files, tuple(source.kinds)) == (files, ("dep~a", "dep~b"))
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.conllu").write_text(split)
    here = CorpusConfig(
        path=None,
        dep=Files(*(str(tmp_path / f"{split}.conllu") for split in ("train", "dev", "test")), "conllu"),
    )
    read = TrainConfig(tasks=("dep~a", "dep~b"), corpus=here)
    assert corpus_fingerprint(read.corpus, read.chosen()) == corpus_fingerprint(here, ("dep",))


def test_a_control_task_takes_the_sentences_of_its_partner(toy, tiny_encoder):
    config = CorpusConfig(path=None, dep=Files("a", "b", "c", "conllu"))
    tasks = TrainConfig(tasks=("dep", "control")).chosen()
    alone = {"control": tasks["control"]}
    assert sources(config, tasks) == sources(config, ("dep",))
    with pytest.raises(InputError, match="no files for control"):
        sources(config, alone)
    sentences = load_split(CorpusConfig(str(toy)), tasks, "dev")
    assert all(sentence.tags is None for sentence in sentences)
    sentences[3] = dataclasses.replace(sentences[3], arcs=None)
    tokenizer = Encoder.from_pretrained(str(tiny_encoder)).tokenizer
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    assert [
        number
        for number, example in enumerate(examples(sentences, tokenizer, tasks, labels))
        if not example.targets
    ] == [3]
    assert all(example.targets for example in examples(sentences, tokenizer, alone, labels))


@pytest.mark.slow
def test_a_control_pair_is_trained_measured_and_no_pair_of_the_report(toy, tiny_encoder, runs):
    run = train(settings(toy, tiny_encoder, runs, "dep", "control"), console=QUIET)
    assert run.metrics()["test"]["control"]["accuracy"] >= 0
    assert main(["importance", str(run.folder), "--sentences=5"]) == 0
    assert main(["probe", str(run.folder)]) == 0
    table = pl.read_parquet(run.folder / "heads.parquet")
    assert set(table.filter(measure="importance")["task"]) == {"dep", "control"}
    pair = train(settings(toy, tiny_encoder, runs, "pos", "dep"), console=QUIET)
    assert main(["probe", str(pair.folder)]) == 0
    both = RunSet.of([run, pair])
    assert set(heads_of(both)["run"]) == {str(pair.folder)}
    assert any("1 run with half of a task or random labels left out" in note for note in both.notes)
    assert main(["report", str(runs)]) == 0


def test_twins_annotate_nothing_and_a_half_without_sentences_is_refused(toy, tiny_encoder, tmp_path, capsys):
    run = train(settings(toy, tiny_encoder, tmp_path, "pos~a", "pos~b"), console=QUIET)
    with pytest.raises(InputError, match="pos~a, pos~b have decoders for the same layer"):
        JointModel.from_pretrained(run.model).annotate([Sentence(("a",))])
    sentences = read_jsonl(toy / "train.jsonl")
    half = [sentence for number, sentence in enumerate(sentences) if half_of(sentence, number) == "a"]
    for split in ("train", "dev", "test"):
        write_jsonl(tmp_path / "corpus" / f"{split}.jsonl", half)
    words = [
        "train", f"--corpus.path={tmp_path / 'corpus'}", f"--encoder.name={tiny_encoder}", "--name=half",
        f"--runs={tmp_path}", "--tasks=pos~a,pos~b", "--max_epochs=1", "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert "pos~b has no training sentences: its half" in errors
    assert errors.count("\n") == 1


def test_a_twin_of_a_layer_that_the_corpus_lacks_is_one_line(toy, tiny_encoder, tmp_path, capsys):
    for split in ("train", "dev", "test"):
        bare = [dataclasses.replace(one, arcs=None) for one in read_jsonl(toy / f"{split}.jsonl")]
        write_jsonl(tmp_path / "corpus" / f"{split}.jsonl", bare)
    words = [
        "train", f"--corpus.path={tmp_path / 'corpus'}", f"--encoder.name={tiny_encoder}",
        f"--runs={tmp_path}", "--tasks=dep~a,dep~b", "--max_epochs=1", "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert (
        "no train sentence of 120 is annotated for dep~a (by arcs): set tasks.dep~a.layer or tasks.dep~a"
        in errors
    )
    assert "tasks.dep~a.files" in errors
    assert errors.count("\n") == 1


BEFORE = {
    "pos~a,pos~b": (2.920546531677246, 2.907261610031128),
    "dep,control": (5.844152927398682, 3.665666341781616),
}
"""Norms of the decoders' weights as twins and a control task had them when they were no instances."""


@pytest.mark.slow
@pytest.mark.parametrize("short", BEFORE)
def test_short_names_and_instances_are_trained_to_the_weights_of_before(
    short, toy, tiny_encoder, tmp_path, monkeypatch
):
    monkeypatch.setattr("mtl.training.step.draw_by_counter", lambda model: None)  # torch's dropout, as then
    instances = {
        "pos~a,pos~b": {"first": {"kind": "tags", "layer": "tags", "half": "a"},
                        "other": {"kind": "tags", "layer": "tags", "half": "b"}},
        "dep,control": {"dep": {}, "random": {"kind": "drawn"}},
    }[short]  # fmt: skip
    words = [
        f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", f"--runs={tmp_path}", "--max_epochs=2",
        "--batch.sentences=24", "--trainer.accelerator=cpu",
    ]  # fmt: skip
    files = {name: tmp_path / f"{name}.yaml" for name in ("short", "named")}
    for file, tasks in zip(files.values(), (short.split(","), instances), strict=True):
        file.write_text(dump({"tasks": tasks, "dep": {"arc_dim": 32}}))
    configs = [
        configured("mtl train", TrainConfig, [str(file), *words, f"--name={name}"])
        for name, file in files.items()
    ]
    models = [JointModel.from_pretrained(train(config, console=QUIET).model) for config in configs]
    of_short, of_named = (model.state_dict().values() for model in models)
    assert all(torch.equal(one, other) for one, other in zip(of_short, of_named, strict=True))
    decoders = [models[0].decoder(name) for name in models[0].tasks]
    squares = [
        sum(float(one.detach().square().sum()) for one in decoder.parameters()) for decoder in decoders
    ]
    assert [square**0.5 for square in squares] == pytest.approx(BEFORE[short], rel=1e-4)


def test_a_wrong_setting_of_a_preset_is_named_with_its_line(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("tasks:\n  control:\n    draw: x\n")
    with pytest.raises(InputError, match=r"a.yaml: line 3: tasks.control.draw: expected a whole number"):
        configured("mtl train", TrainConfig, [str(file)])


def test_a_role_that_the_files_of_a_task_lack_is_named_with_the_task():
    words = [
        "--tasks.x.kind=tree",
        "--tasks.x.files.format=conll2003",
        "--tasks.x.columns.label=2",
        "--tasks=x",
    ]
    config = configured("mtl train", TrainConfig, words)
    with pytest.raises(InputError, match=r"^tasks.x.files: .*the format conll2003 has word=COLUMN"):
        sources(config.corpus, config.chosen())
