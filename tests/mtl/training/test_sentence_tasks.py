"""Tasks on sentences beside tasks on words, each on its own files: learned, saved, resumed, predicted."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import yaml

from mtl import JointModel
from mtl.commands.main import main
from mtl.config.effective import counting_settings, different_keys, plain
from mtl.config.schema import DEFAULT_TASKS, CorpusConfig, EncoderConfig, Files, TrainConfig
from mtl.corpora.formats.jsonl import write_jsonl
from mtl.errors import InputError
from mtl.features import features
from mtl.models.inputs import InputCache
from mtl.runs.folder.run import Run
from mtl.tasks.catalogue import SENTENCE_TASKS
from mtl.tasks.sentence import Sentence
from mtl.training.check import check_inputs
from tests.kit.absent import needs

if "study" in features():
    from mtl.study.config import GridBlock, StudyConfig
    from mtl.study.grid import planned

of_studies = needs("study")

WORDS = ("the", "dog", "saw", "a", "cat")


def planted(folder: Path, seed: int, size: int) -> None:
    """Files of three tasks whose labels follow from the words, and a corpus with tags."""
    random = np.random.default_rng(seed)

    def text(length: int) -> list[str]:
        return random.choice(WORDS, size=length).tolist()

    for split in ("train", "dev", "test"):
        count = size if split == "train" else 40
        cola, mrpc, stsb, tagged = [], ["label\tsentence1\tsentence2"], ["sentence1\tsentence2\tscore"], []
        for number in range(count):
            words = text(int(random.integers(3, 7)))
            words[0] = "dog" if number % 2 else "the"
            cola.append(f"x\t{number % 2}\t\t{' '.join(words)}")
            first, second = text(4), text(4)
            second[0] = "cat" if number % 2 else "a"
            mrpc.append(f"{number % 2}\t{' '.join(first)}\t{' '.join(second)}")
            stsb.append(f"{' '.join(first)}\t{' '.join(second)}\t{5 * (second[0] == 'cat')}")
            tags = text(4)
            tagged.append(Sentence(tuple(tags), tags=tuple(word.upper() for word in tags)))
        for name, lines in (("cola", cola), ("mrpc", mrpc), ("stsb", stsb)):
            (folder / f"{name}.{split}.tsv").write_text("\n".join(lines) + "\n")
        write_jsonl(folder / f"{split}.jsonl", tagged)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    planted(folder, 0, 200)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Too little to learn from."""
    folder = tmp_path_factory.mktemp("small")
    planted(folder, 1, 60)
    return folder


def options(corpus: Path, encoder: Path, *tasks: str) -> list[str]:
    """The command line of a short training on the planted files."""
    files = [
        f"--corpus.{task}.{split}={corpus}/{task}.{split}.tsv"
        for task in tasks
        if task != "pos"
        for split in ("train", "dev", "test")
    ]
    formats = [f"--corpus.{task}.format=glue" for task in tasks if task != "pos"]
    path = corpus if "pos" in tasks else "null"
    return [
        "train", f"--tasks=[{','.join(tasks)}]", f"--corpus.path={path}", f"--encoder.name={encoder}",
        "--encoder.word_dropout=0", "--optimizer.encoder_lr=0.003", "--optimizer.decoder_lr=0.01",
        "--trainer.accelerator=cpu", "--trainer.precision=32-true", *files, *formats,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def joint(corpus: Path, tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """POS, CoLA by the first token, MRPC by attention and STS-B by the mean, in one model."""
    runs = tmp_path_factory.mktemp("runs")
    words = options(corpus, tiny_encoder, "pos", "cola", "mrpc", "stsb")
    words += ["--cola.pooling=first", "--mrpc.pooling=attention", "--cola.dropout=0", f"--runs={runs}"]
    assert main([*words, "--name=joint", "--max_epochs=12"]) == 0
    return Run(runs / "joint")


@pytest.mark.slow
def test_everything_planted_is_learned(joint: Run) -> None:
    test = joint.metrics()["test"]
    assert list(test) == ["pos", "cola", "mrpc", "stsb"]
    assert test["pos"]["accuracy"] > 90
    assert test["cola"]["matthews"] > 90
    assert list(test["mrpc"]) == ["accuracy", "f1", "majority", "chance"]
    assert test["mrpc"]["accuracy"] > 90
    assert test["stsb"]["pearson"] > 90


@pytest.mark.slow
def test_evaluate_export_and_predict(joint, corpus, tmp_path, monkeypatch, capsys) -> None:
    scores = tmp_path / "scores.json"
    assert main(["evaluate", str(joint.folder), f"--export={tmp_path / 'out'}", f"--json_out={scores}"]) == 0
    assert yaml.safe_load(scores.read_text())["test"] == joint.metrics()["test"]
    lines = (tmp_path / "out" / "mrpc.tsv").read_text().splitlines()
    assert len(lines) == 40
    agree = [gold == guess for _, gold, guess in (line.split("\t") for line in lines)]
    assert 100 * sum(agree) / 40 == pytest.approx(joint.metrics()["test"]["mrpc"]["accuracy"])
    capsys.readouterr()

    def predicted(text: str, *words: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["predict", str(joint.folder), *words]) == 0
        return capsys.readouterr().out

    assert predicted("dog saw the cat\n", "--input=tokens") == "dog/DOG saw/SAW the/THE cat/CAT\ncola: 1\n\n"
    pair = predicted("the dog saw a\tcat a the dog\n", "--input=pairs").splitlines()
    assert pair[:3] == ["the dog saw a", "cat a the dog", "mrpc: 1"]
    assert float(pair[3].removeprefix("stsb: ")) > 2.5
    assert '"second": 1' in predicted("a\tcat\n", "--input=pairs", "--output=json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "input", "message"),
    [
        ("a cat\n", "pairs", "standard input, line 1: a pair is two sentences separated by one tab"),
        ("a\tb\tc\n", "pairs", "here are 2 tabs and 3 sentences"),
        ("a\t\n", "pairs", "here are 1 tab and 1 sentence"),
    ],
)
def test_pairs_that_are_none(text, input, message, joint, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["predict", str(joint.folder), f"--input={input}"]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_input_that_no_task_fits(corpus, tiny_encoder, tmp_path, monkeypatch, capsys) -> None:
    words = options(corpus, tiny_encoder, "cola")
    assert main([*words, f"--runs={tmp_path}", "--max_epochs=1"]) == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\tcat\n")))
    assert main(["predict", str(tmp_path / "cola-seed1"), "--input=pairs"]) == 2
    assert "none of the tasks (cola) is for pairs" in capsys.readouterr().err
    assert main(["probe", str(tmp_path / "cola-seed1")]) == 0
    assert "cola: clustering" in capsys.readouterr().out


@pytest.mark.slow
def test_a_model_is_what_it_was_saved_as(joint, tmp_path) -> None:
    model = JointModel.from_pretrained(joint.folder)
    assert model.tasks["cola"].pooling == "first"
    assert "decoders.mrpc.pooling.query" in model.state_dict()
    model.save(tmp_path / "copy")
    again = JointModel.from_pretrained(tmp_path / "copy")
    sentences = [Sentence(("dog", "saw")), Sentence(("dog", "saw", "cat"), second=2)]
    assert again.annotate(sentences) == model.annotate(sentences)


@pytest.mark.slow
def test_probing_leaves_tasks_on_pairs_out_with_a_reason(joint, capsys) -> None:
    assert main(["probe", str(joint.folder)]) == 0
    printed = capsys.readouterr().out
    assert "not probed: mrpc: it labels pairs, and heads are probed on single sentences" in printed
    assert "not probed: stsb:" in printed
    assert set(pl.read_parquet(joint.folder / "heads.parquet")["task"]) <= {"pos", "cola", "sst2", ""}


@pytest.mark.slow
def test_masks_per_task_and_pruning(small, tiny_encoder, tmp_path, capsys) -> None:
    words = options(small, tiny_encoder, "pos", "cola", "mrpc", "stsb")
    words += ["--pruning=dynamic", "--gates.scope=per_task", "--cola.pooling=first", f"--runs={tmp_path}"]
    assert main([*words, "--name=masks", "--max_epochs=2"]) == 0
    gates = pl.read_parquet(tmp_path / "masks" / "gates.parquet")
    assert set(gates["task"]) == {"pos", "cola", "mrpc", "stsb"}
    assert main(["prune", str(tmp_path / "masks"), f"--out={tmp_path / 'cut'}", "--task=mrpc"]) == 0
    model = JointModel.from_pretrained(tmp_path / "cut")
    assert list(model.tasks) == ["mrpc"]
    (pair,) = model.annotate([Sentence(("a", "dog", "cat"), second=2)])
    assert pair.layer("mrpc") in ("0", "1")


@pytest.mark.slow
def test_an_interrupted_run_resumes_exactly(small, tiny_encoder, tmp_path, monkeypatch) -> None:
    words = options(small, tiny_encoder, "pos", "cola", "stsb")
    words += [
        "--cola.pooling=attention",
        "--max_epochs=2",
        "--trainer.checkpoint_minutes=0",
        f"--runs={tmp_path}",
    ]
    assert main([*words, "--name=whole"]) == 0

    class Stopped(Exception):
        pass

    steps = 0
    import mtl.training.step as step

    original = step.JointTraining.training_step

    def stopping(self, *arguments):
        nonlocal steps
        steps += 1
        if steps == 6:
            raise Stopped
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(step.JointTraining, "training_step", stopping)
        with pytest.raises(Stopped):
            main([*words, "--name=parts"])
    assert main([*words, "--name=parts"]) == 0
    assert Run(tmp_path / "parts").metrics() == Run(tmp_path / "whole").metrics()
    whole, parts = (JointModel.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "parts"))
    for key, value in whole.items():
        torch.testing.assert_close(parts[key], value, rtol=0, atol=0)


def test_no_labels_in_test_files_of_glue(corpus, tiny_encoder, tmp_path, capsys) -> None:
    blind = tmp_path / "test.tsv"
    blind.write_text("index\tsentence\n0\tthe dog\n")
    words = options(corpus, tiny_encoder, "cola")
    assert main([*words, f"--corpus.cola.test={blind}", f"--runs={tmp_path}"]) == 2
    errors = capsys.readouterr().err
    assert "GLUE's own test files have none" in errors
    assert errors.count("\n") == 1


def test_studies_look_at_files_of_sentence_tasks_before_they_start(corpus, tiny_encoder, tmp_path) -> None:
    def config(path: Path) -> TrainConfig:
        files = Files(*(str(path),) * 3, format="glue")
        return TrainConfig(
            tasks=("cola",), corpus=CorpusConfig(None, cola=files), encoder=EncoderConfig(str(tiny_encoder))
        )

    check_inputs([config(corpus / "cola.dev.tsv")], InputCache())
    empty = tmp_path / "empty.tsv"
    empty.write_text("sentence\tlabel\nthe dog\t-\n")
    with pytest.raises(InputError, match="no train sentence of 1 is annotated for cola"):
        check_inputs([config(empty)], InputCache())


def test_new_slots_change_no_fingerprint_and_no_run() -> None:
    encoder = EncoderConfig("bert-base-cased")
    config = plain(dataclasses.asdict(TrainConfig(tasks=("pos", "dep"), encoder=encoder)))
    old = {key: value for key, value in config.items() if key not in SENTENCE_TASKS}
    old["corpus"] = {key: value for key, value in config["corpus"].items() if key not in SENTENCE_TASKS}
    assert old.keys() < config.keys()
    rates = {"optimizer.encoder_lr": 5e-5, "optimizer.decoder_lr": 1e-3}
    settings = {"tasks": ["pos", "dep"], "encoder.name": "bert-base-cased", **rates}
    assert counting_settings(config) == counting_settings(old) == settings
    assert different_keys(old, config) == []


def test_the_default_is_the_tasks_on_words() -> None:
    assert TrainConfig().tasks == DEFAULT_TASKS == ("pos", "ner", "dep", "con", "srl")
    assert TrainConfig().run_name() == "joint-seed1"
    assert TrainConfig(tasks=(*DEFAULT_TASKS, "cola")).run_name() == "pos-ner-dep-con-srl-cola-seed1"


@of_studies
def test_a_study_probes_runs_with_tasks_on_words_only(tmp_path) -> None:
    study = StudyConfig(
        train=TrainConfig(tasks=("pos", "cola", "sst2")),
        grid=(GridBlock(setups=("STL", "MTL")),),
        seeds=(1,),
    )
    probed = {run.config.tasks: run.probes is not None for run in planned(study, tmp_path)}
    assert probed == {("pos",): True, ("cola",): False, ("sst2",): False, ("pos", "cola", "sst2"): True}
    alone = StudyConfig(
        train=TrainConfig(tasks=("cola",)), grid=(GridBlock(setups=("pretrained", "MTL")),), seeds=(1,)
    )
    with pytest.raises(InputError, match=r"train\.tasks has no task on words"):
        planned(alone, tmp_path)
