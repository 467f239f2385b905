"""Training sentences on disk: runs, messages and errors are the same as with sentences in memory."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from mtl.config.effective import counting_settings, plain
from mtl.config.instances import Instance
from mtl.config.schema import (
    BatchConfig,
    CorpusConfig,
    EncoderConfig,
    Files,
    GatesConfig,
    TrainConfig,
    TrainerConfig,
)
from mtl.corpora import load
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.errors import InputError, RunError
from mtl.models.batches import aligned_batches, example_corpus, examples, loss_units_of
from mtl.models.encoder import Encoder
from mtl.models.inputs import InputCache
from mtl.runs.folder.run import Run
from mtl.training import store
from mtl.training.check import check_inputs
from mtl.training.data import Splits, read_splits
from mtl.training.train import train
from tests.mtl.stopped import StopAt, weights

FIVE = ("pos", "ner", "dep", "con", "srl")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Where stores are, which are of several chunks, made by two processes."""
    monkeypatch.setenv("MTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "_CHUNK", 17)
    monkeypatch.setattr(store, "threads_for", lambda count: 2)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def small(toy, tmp_path_factory) -> Path:
    """Some sentences of the toy corpus, of which only those of train have more than 12 words."""
    folder = tmp_path_factory.mktemp("small")
    for split, number, longest in (("train", 50, 99), ("dev", 6, 12), ("test", 6, 12)):
        sentences = [each for each in read_jsonl(toy / f"{split}.jsonl") if len(each) <= longest]
        write_jsonl(folder / f"{split}.jsonl", sentences[:number])
    return folder


@pytest.fixture
def config(small, tiny_encoder, tmp_path) -> TrainConfig:
    """A short run of five tasks."""
    return TrainConfig(
        name="run", runs=str(tmp_path / "runs"), corpus=CorpusConfig(str(small)), tasks=FIVE, max_epochs=1,
        encoder=EncoderConfig(str(tiny_encoder)), batch=BatchConfig(sentences=24),
        trainer=TrainerConfig(accelerator="cpu"),
    )  # fmt: skip


@functools.cache
def tokenizer_of(encoder: str) -> Any:
    return Encoder.from_pretrained(encoder).tokenizer


def on(where: str, config: TrainConfig) -> TrainConfig:
    """The run with its training sentences there."""
    corpus = dataclasses.replace(config.corpus, store=where)
    return dataclasses.replace(config, name=f"{config.name}-{where}", corpus=corpus)


def trained(config: TrainConfig, **more) -> tuple[Run, list[str]]:
    """A run, and what it printed before its first epoch, but for its folder and the store's."""
    said = io.StringIO()
    console = Console(file=said, width=300, markup=False)
    run = train(config, console=console, **more)
    return run, before_training(said.getvalue(), run)


def before_training(said: str, run: Run) -> list[str]:
    lines = said.replace(str(run.folder), "RUN").splitlines()
    first = next((i for i, line in enumerate(lines) if "training" in line), len(lines))
    return [line for line in lines[: first + 1] if " on disk: " not in line]


def same(first: Run, second: Run) -> bool:
    """Whether weights, scores, masks and history are the same to the last bit."""
    ours, others = weights(first), weights(second)
    rows = [
        [
            {key: value for key, value in row.items() if key != "seconds"}
            for row in csv.DictReader((run.folder / "history.csv").read_text().splitlines())
        ]
        for run in (first, second)
    ]
    return (
        ours.keys() == others.keys()
        and all(torch.equal(ours[key], others[key]) for key in ours)
        and first.metrics() == second.metrics()
        and rows[0] == rows[1]
    )


def folders(cache: Path) -> dict[str, float]:
    """The stores that there are, with the time at which their records were written."""
    return {folder.name: (folder / "records").stat().st_mtime_ns for folder in cache.iterdir()}


def splits_of(config: TrainConfig, said: list[str] | None = None) -> Splits:
    tasks, stream = config.chosen(), io.StringIO()
    corpus = load.corpus_fingerprint(config.corpus, tasks)
    splits = read_splits(config, tasks, corpus, InputCache(), Console(file=stream, width=300, markup=False))
    if said is not None:
        said += [line for line in stream.getvalue().splitlines() if " on disk: " not in line]
    return splits


@pytest.mark.slow
def test_a_run_with_masks_is_the_same_and_the_second_reads_the_store(config, cache, monkeypatch):
    masked = dataclasses.replace(
        config, tasks=("pos", "srl"), pruning="dynamic",
        gates=GatesConfig(target_open=0.5, scope="per_task"), batch=BatchConfig(sentences=24, max_words=12),
    )  # fmt: skip
    memory, said = trained(on("memory", masked))
    assert not cache.exists()
    assert any("have more than 12 words" in line and line.endswith("left out") for line in said)
    disk, as_said = trained(on("disk", masked))
    assert same(memory, disk)
    assert said == as_said
    made = folders(cache)
    assert sorted(name.split("-")[0] for name in made) == ["examples", "sentences"]

    def refuse(*_: object) -> None:
        raise AssertionError("a store is made again")

    monkeypatch.setattr(store, "_make_examples", refuse)
    monkeypatch.setattr(store, "stream_split", refuse)
    again = on("disk", dataclasses.replace(masked, name="again"))
    assert trained(again)[1] == said
    assert same(memory, Run(Path(again.runs) / again.name))
    assert folders(cache) == made


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_from_the_other_place(config):
    config = dataclasses.replace(
        config, tasks=("pos", "srl"), max_epochs=2, batch=BatchConfig(sentences=24, mode="separate"),
        trainer=TrainerConfig(accelerator="cpu", checkpoint_minutes=0.0),
    )  # fmt: skip
    unbroken, _ = trained(on("memory", config))
    broken = on("disk", config)
    with pytest.raises(RuntimeError, match="power"):
        trained(broken, observers=[StopAt(7)])
    in_memory = dataclasses.replace(broken, corpus=dataclasses.replace(broken.corpus, store="memory"))
    resumed, _ = trained(in_memory)
    assert same(unbroken, resumed)


@pytest.mark.slow
@pytest.mark.parametrize("named", [pytest.param(False, marks=pytest.mark.slow), True])
def test_translations_are_the_same_with_a_vocabulary_of_their_own(tmp_path, named):
    digits = pytest.importorskip("tests.mtl.translation.digits")
    config = digits.config(tmp_path, sentences=40)
    source, target = str(config.corpus.translate.train).split(":")
    for path, line in ((source, ""), (target, "null.")):
        with Path(path).open("a") as file:
            file.write(f"{line}\n")
    config = digits.named(config, "own") if named else config
    memory, said = trained(on("memory", config))
    disk, as_said = trained(on("disk", config))
    assert any("1 pair has an empty line" in line for line in said)
    assert said == as_said
    assert same(memory, disk)


@pytest.fixture
def mixed(small, tmp_path) -> CorpusConfig:
    """Sentences with a class each, some without arcs, and tags in a file of their own."""
    for split in ("train", "dev", "test"):
        sentences = [
            sentence.with_layers(
                {"classify": "long" if len(sentence) > 9 else "short", "lemmas": sentence.words}
                | ({"arcs": None} if number % 3 else {})
            )
            for number, sentence in enumerate(read_jsonl(small / f"{split}.jsonl"))
        ]
        write_jsonl(tmp_path / "mixed" / f"{split}.jsonl", sentences)
    return CorpusConfig(str(tmp_path / "mixed"))


def test_examples_are_the_same_for_every_kind_of_task_and_in_halves(config, mixed, small, monkeypatch):
    monkeypatch.setattr("mtl.tasks.task.half_of", lambda sentence, number: "ab"[number % 3 == 0])
    files = Files(*(str(small / f"{split}.jsonl") for split in ("train", "dev", "test")), layer="tags")
    joined = dataclasses.replace(mixed, instances={"own": files})
    named = {
        "own": Instance("tags"),
        "lemma": Instance("lemmas", layer="lemmas"),
        "half": Instance("tree", half="a", layer="arcs"),
    }
    for corpus, tasks, instances in (
        (mixed, ("classify", "dep", "srl", "control"), {}),
        (joined, ("con", *named), named),
    ):
        run = dataclasses.replace(config, corpus=corpus, tasks=tasks, instances=instances)
        tokenizer = tokenizer_of(config.encoder.name)
        both, chosen = [], run.chosen()
        for where in ("memory", "disk"):
            train_split = splits_of(on(where, run)).train
            labels = {name: train_split.labels(name, task) for name, task in chosen.items()}
            both.append((train_split, labels, *train_split.examples(tokenizer, chosen, labels)))
        (ours, labels, corpus, tally), (others, same_labels, stored, same_tally) = both
        assert list(ours) == list(others)
        assert {name: of.names for name, of in labels.items()} == {
            name: of.names for name, of in same_labels.items()
        }
        assert tally._asdict() | {"dropped": 0} == same_tally._asdict() | {"dropped": 0}
        assert len(stored) == len(corpus) == len(ours)
        for first, second in zip(corpus, stored, strict=True):
            assert first.sentence == second.sentence
            assert (first.sentence.place, first.length) == (second.sentence.place, second.length)
            assert list(first.targets) == list(second.targets)
            assert repr(first) == repr(second)
        for names in (tuple(chosen), (tasks[-1],), tasks[1:2]):
            for given, found in zip(
                example_corpus(list(corpus)).annotated_lengths(names),
                stored.annotated_lengths(names),
                strict=True,
            ):
                np.testing.assert_array_equal(given, found)
            plan = aligned_batches(corpus, names, 200, 5, np.random.default_rng(1))
            assert plan == aligned_batches(stored, names, 200, 5, np.random.default_rng(1))
            some = {name: chosen[name] for name in names}
            for batch in plan:
                units = loss_units_of([corpus[index] for index in batch.indices], some)
                assert stored.loss_units(batch.indices, some) == units


@pytest.mark.slow
def test_a_store_is_found_by_all_that_it_is_made_of_and_nothing_else(config, small, tmp_path, cache):
    shutil.copytree(small, tmp_path / "corpus")
    config = on("disk", dataclasses.replace(config, corpus=CorpusConfig(str(tmp_path / "corpus"))))

    def made(config: TrainConfig) -> set[str]:
        """The kinds of stores that are new for a configuration."""
        before = set(folders(cache)) if cache.exists() else set()
        tasks, sentences = config.chosen(), splits_of(config).train
        labels = {name: sentences.labels(name, task) for name, task in tasks.items()}
        tokenizer = tokenizer_of(config.encoder.name)
        sentences.examples(tokenizer, tasks, labels)
        return {name.split("-")[0] for name in set(folders(cache)) - before}

    both = {"sentences", "examples"}
    assert made(config) == both
    assert made(config) == set()
    for other in ({"seed": 2}, {"max_epochs": 7}, {"pruning": "dynamic"}, {"name": "other"}):
        assert made(dataclasses.replace(config, **other)) == set()
    assert made(dataclasses.replace(config, batch=BatchConfig(sentences=2))) == set()
    assert made(dataclasses.replace(config, encoder=EncoderConfig("minilm"))) == {"examples"}
    assert made(dataclasses.replace(config, batch=BatchConfig(max_words=12))) == both
    assert made(dataclasses.replace(config, tasks=("pos",))) == both
    assert made(dataclasses.replace(config, srl=dataclasses.replace(config.srl, senses=True))) == both
    path = tmp_path / "corpus" / "train.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    assert made(config) == both


def test_a_file_with_another_name_makes_another_store_since_halves_go_by_it(config, small, tmp_path):
    (tmp_path / "parts").mkdir()
    lines = (small / "train.jsonl").read_text().splitlines()
    for name, part in (("a", lines[:25]), ("b", lines[25:])):
        without_ids = [{**json.loads(line), "id": ""} for line in part]
        (tmp_path / "parts" / f"{name}.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in without_ids))
    files = Files(str(tmp_path / "parts"), *(str(small / f"{split}.jsonl") for split in ("dev", "test")))
    config = dataclasses.replace(config, corpus=CorpusConfig(None, files=files), tasks=("pos~a",))
    tasks, tokenizer = config.chosen(), tokenizer_of(config.encoder.name)
    for name in ("a", "a2"):
        (tmp_path / "parts" / "a.jsonl").rename(tmp_path / "parts" / f"{name}.jsonl")
        learned = []
        for where in ("memory", "disk"):
            sentences = splits_of(on(where, config)).train
            labels = {each: sentences.labels(each, task) for each, task in tasks.items()}
            corpus, _ = sentences.examples(tokenizer, tasks, labels)
            learned.append([bool(example.targets) for example in corpus])
            assert sentences[0].place == f"{tmp_path}/parts/{name}.jsonl:1"
        assert learned[0] == learned[1]


def test_the_place_of_sentences_is_no_part_of_a_run(config, tmp_path):
    in_memory = on("memory", config)
    on_disk = dataclasses.replace(on("disk", config), name=in_memory.name)
    both = [counting_settings(plain(dataclasses.asdict(run))) for run in (in_memory, on_disk)]
    assert both[0] == both[1]


def test_auto_goes_by_the_size_of_the_training_files(config, small, monkeypatch):
    size = (small / "train.jsonl").stat().st_size
    monkeypatch.setattr(load, "LARGE", size)
    assert not load.is_on_disk(config.corpus, config.chosen())
    monkeypatch.setattr(load, "LARGE", size - 1)
    assert load.is_on_disk(config.corpus, config.chosen())
    assert not load.is_on_disk(dataclasses.replace(config.corpus, store="memory"), config.chosen())


BAD = {
    "numbers": ('{"words": ["1", "2"], "tags": ["A", "B"]}\n' * 3, "numbers one after the other"),
    "no json": ('{"words": ["a"], "tags": ["X"]}\nnothing\n', "train.jsonl:2: not JSON"),
    "nothing annotated": ('{"words": ["a"]}\n', "no train sentence of 1 is annotated for pos"),
    "all too long": (
        '{"words": ["a", "b", "c"], "tags": ["A", "B", "C"]}\n', "no train sentence of 0 is annotated"
    ),
    "empty": ("\n", "no sentence in it"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_in_memory_is_refused_and_leaves_nothing(config, small, tmp_path, cache, name):
    shutil.copytree(small, tmp_path / "bad")
    content, message = BAD[name]
    (tmp_path / "bad" / "train.jsonl").write_text(content)
    config = dataclasses.replace(
        config, tasks=("pos",), corpus=CorpusConfig(str(tmp_path / "bad")),
        batch=BatchConfig(max_words=2 if name == "all too long" else 512),
    )  # fmt: skip
    if name == "all too long":
        for split in ("dev", "test"):
            (tmp_path / "bad" / f"{split}.jsonl").write_text('{"words": ["a", "b"], "tags": ["A", "B"]}\n')
    errors = []
    for where in ("memory", "disk"):
        with pytest.raises(InputError, match=message) as raised:
            splits_of(on(where, config))
        errors.append(str(raised.value))
    assert errors[0] == errors[1]
    assert not cache.exists() or not list(cache.iterdir())


def test_files_that_change_while_they_are_read_make_no_store(config, small, tmp_path, cache, monkeypatch):
    shutil.copytree(small, tmp_path / "changing")
    config = on("disk", dataclasses.replace(config, corpus=CorpusConfig(str(tmp_path / "changing"))))
    train_file, whole = tmp_path / "changing" / "train.jsonl", store.stream_split

    def changing(*arguments):
        train_file.write_text("".join(train_file.read_text().splitlines(keepends=True)[1:]))
        return whole(*arguments)

    monkeypatch.setattr(store, "stream_split", changing)
    with pytest.raises(InputError, match="changed while they were read: start again"):
        splits_of(config)
    assert not cache.exists() or not list(cache.iterdir())
    monkeypatch.setattr(store, "stream_split", whole)
    assert len(splits_of(config).train) == 49


def test_a_file_that_goes_from_train_to_dev_makes_another_store(config, small, tmp_path):
    lines = (small / "train.jsonl").read_text().splitlines(keepends=True)
    for number in range(4):
        part = tmp_path / "parts" / ("train" if number < 3 else "dev") / f"{number}.jsonl"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text("".join(lines[number::4][:3]))
    places = [str(tmp_path / "parts" / name) for name in ("train", "dev")]
    files = Files(*places, str(small / "test.jsonl"))
    config = on("disk", dataclasses.replace(config, corpus=CorpusConfig(None, files=files), tasks=("pos",)))
    config = dataclasses.replace(config, batch=BatchConfig(max_words=99))
    before = load.corpus_fingerprint(config.corpus, config.chosen())
    assert len(splits_of(config).train) == 9
    (tmp_path / "parts" / "train" / "2.jsonl").rename(tmp_path / "parts" / "dev" / "2.jsonl")
    assert load.corpus_fingerprint(config.corpus, config.chosen()) != before
    splits = splits_of(config)
    assert (len(splits.train), len(splits.dev)) == (6, 6)


def test_a_store_that_was_cut_is_made_anew(config, cache):
    config = on("disk", dataclasses.replace(config, tasks=("pos",)))
    first = list(splits_of(config).train)
    [folder] = cache.iterdir()
    content = (folder / "records").read_bytes()
    (folder / "records").write_bytes(content[:-1])
    said: list[str] = []
    assert list(splits_of(config, said).train) == first
    assert said[0] == f"{folder} is damaged: making it again"
    assert (folder / "records").read_bytes() == content


@pytest.mark.slow
def test_a_run_whose_store_is_damaged_ends_with_a_line_and_goes_on(config, cache):
    config = on("disk", dataclasses.replace(config, tasks=("pos",)))
    whole, _ = trained(dataclasses.replace(config, name="whole"))
    [path] = cache.glob("examples-*/records")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"record \d+ was damaged: start again, and all records are made"):
        trained(config)
    assert same(whole, trained(config)[0])


def test_a_study_looks_at_the_first_annotated_sentence_of_what_will_be_stored(config, small, tmp_path):
    shutil.copytree(small, tmp_path / "late")
    with (tmp_path / "late" / "train.jsonl").open("a") as file:
        file.write("nothing\n")
    config = dataclasses.replace(config, corpus=CorpusConfig(str(tmp_path / "late")))
    check_inputs([on("disk", config)], InputCache())
    with pytest.raises(InputError, match="not JSON"):
        check_inputs([on("memory", config)], InputCache())


def test_examples_do_not_depend_on_the_number_of_processes(config, cache, monkeypatch):
    sentences = splits_of(on("disk", config)).train
    tasks, tokenizer = config.chosen(), tokenizer_of(config.encoder.name)
    labels = {name: sentences.labels(name, task) for name, task in tasks.items()}
    contents = []
    for processes in (1, 4):
        monkeypatch.setattr(store, "threads_for", lambda count, processes=processes: processes)
        sentences.examples(tokenizer, tasks, labels)
        [folder] = cache.glob("examples-*")
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
        shutil.rmtree(folder)
    assert contents[0] == contents[1]
    expected = examples(sentences[:], tokenizer, tasks, labels, training=True)
    assert json.loads(contents[0]["facts.json"])["facts"]["annotated"] == {
        name: sum(name in example.targets for example in expected) for name in FIVE
    }


@pytest.mark.slow
def test_two_processes_train_on_one_store_as_in_memory(config, cache):
    runs = []
    for where in ("memory", "disk"):
        words = [
            f"--encoder.name={config.encoder.name}", f"--corpus.path={config.corpus.path}",
            f"--corpus.store={where}", f"--runs={config.runs}", f"--name={where}", "--max_epochs=1",
            "--tasks=[pos,dep,con]", "--trainer.accelerator=cpu", "--trainer.threads=1",
            "--trainer.devices=2",
        ]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "mtl", "train", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        runs.append(Run(Path(config.runs) / where))
    assert same(*runs)
    assert len(folders(cache)) == 2
