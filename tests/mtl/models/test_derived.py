"""`mtl prune`: what it scores, and what it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mtl.commands.main import main
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.models import evaluate as module
from mtl.models.joint import JointModel

CORPUS_FILES = ("train", "dev", "test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path, few: Path) -> Path:
    """Runs of two tasks with a shared mask and with a mask per task, and their corpus."""
    folder = tmp_path_factory.mktemp("prune")
    for split in CORPUS_FILES:
        write_jsonl(folder / "corpus" / f"{split}.jsonl", read_jsonl(few / f"{split}.jsonl"))
    for scope in ("shared", "per_task"):
        words = [
            "train", f"--corpus.path={folder / 'corpus'}", f"--encoder.name={tiny_encoder}",
            f"--runs={folder}", f"--name={scope}", "--tasks=pos,dep", "--max_epochs=1", "--pruning=dynamic",
            f"--gates.scope={scope}", "--gates.init_std=1.0", "--trainer.accelerator=cpu",
        ]  # fmt: skip
        assert main(words) == 0
    return folder


def test_the_masked_model_is_scored_once_for_all_tasks(folder, tmp_path, monkeypatch, capsys):
    scored: list[int] = []
    evaluate = module.evaluate_model

    def counted(model: JointModel, *arguments: object) -> module.Scores:
        scored.append(len(model.tasks))
        return evaluate(model, *arguments)

    monkeypatch.setattr(module, "evaluate_model", counted)
    assert main(["prune", str(folder / "shared"), f"--out={tmp_path / 'cut'}"]) == 0
    assert scored == [2, 2]
    text = capsys.readouterr().out
    assert "dev, masked" in text
    assert "dev, cut" in text


def test_a_mask_file_and_a_task_give_that_task_alone(folder, tmp_path, capsys):
    words = ["prune", str(folder / "shared"), f"--mask={folder / 'per_task' / 'gates.parquet'}"]
    assert main([*words, f"--out={tmp_path / 'x'}"]) == 2
    assert "has a mask per task: choose one with --task (pos, dep)" in capsys.readouterr().err
    assert main([*words, f"--out={tmp_path / 'dep'}", "--task=dep"]) == 0
    assert list(JointModel.from_pretrained(tmp_path / "dep").tasks) == ["dep"]
    assert main([*words, f"--out={tmp_path / 'srl'}", "--task=srl"]) == 2


@pytest.mark.slow
def test_decoders_are_kept_and_left_out(folder, tmp_path, capsys):
    """Of a model with one mask, also cut; of several masks, a cut takes one."""
    assert main(["prune", str(folder / "shared"), f"--out={tmp_path / 'cut'}"]) == 0
    for source in (folder / "shared", tmp_path / "cut"):
        out = tmp_path / f"dep_of_{source.name}"
        assert main(["prune", str(source), f"--out={out}", "--task=[dep]"]) == 0
        smaller, whole = (JointModel.from_pretrained(each) for each in (out, source))
        assert list(smaller.tasks) == list(smaller.decoders) == ["dep"]
        words = [["We", "ate", "."]]
        assert smaller.annotate(words) == whole.annotate(words, tasks=["dep"])
    assert main(["prune", str(tmp_path / "cut"), f"--out={tmp_path / 'both'}", "--task=[dep,pos]"]) == 0
    assert list(JointModel.from_pretrained(tmp_path / "both").tasks) == ["pos", "dep"]
    capsys.readouterr()
    for source, task in (("per_task", "[pos,dep]"), ("shared", "ner")):
        assert main(["prune", str(folder / source), f"--out={tmp_path / 'x'}", f"--task={task}"]) == 2
    refused = capsys.readouterr().err
    assert "every task has a mask of its own: choose one with --task (pos, dep)" in refused
    assert "the model has no task 'ner': its tasks are pos, dep" in refused


def test_a_corpus_that_lacks_a_layer_is_one_line(folder, tmp_path, capsys):
    path = folder / "corpus" / "dev.jsonl"
    whole = read_jsonl(path)
    write_jsonl(path, [dataclasses.replace(sentence, arcs=None) for sentence in whole])
    try:
        assert main(["prune", str(folder / "shared"), f"--out={tmp_path / 'cut'}"]) == 2
    finally:
        write_jsonl(path, whole)
    errors = capsys.readouterr().err
    assert "annotated for dep" in errors
    assert errors.count("\n") == 1
