"""`mtl evaluate` on a corpus that is annotated for some of a run's tasks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from mtl.commands.main import main
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.corpora.toy.corpus import write_toy
from tests.mtl.analysis import worth


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of POS and DEP."""
    write_toy(tmp_path / "corpus", 8, 8, 8, seed=1)
    model = worth.joint_model(tmp_path / "corpus", ("pos", "dep"), dtype=torch.float32)
    model.save(tmp_path / "run" / "model")
    config = f"tasks: [pos, dep]\ncorpus: {{path: {tmp_path / 'corpus'}}}\n"
    (tmp_path / "run" / "config.yaml").write_text(config)
    return tmp_path / "run"


def scores(run: Path, *words: str) -> dict[str, dict[str, float]]:
    """The scores that the command writes for the test split."""
    out = run / "scores.json"
    assert main(["evaluate", str(run), f"--json_out={out}", *words]) == 0
    written: dict[str, dict[str, float]] = json.loads(out.read_text())["test"]
    return written


def test_tasks_without_gold_are_named_and_the_others_scored(run, tmp_path, capsys) -> None:
    both = scores(run)
    assert set(both) == {"pos", "dep"}
    sentences = read_jsonl(tmp_path / "corpus" / "test.jsonl")
    (tmp_path / "tags").mkdir()
    tagged = [dataclasses.replace(sentence, arcs=None) for sentence in sentences]
    write_jsonl(tmp_path / "tags" / "test.jsonl", tagged)
    capsys.readouterr()
    assert scores(run, f"--corpus={tmp_path / 'tags'}", f"--export={tmp_path / 'out'}") == {
        "pos": both["pos"]
    }
    assert "not scored: dep: no test sentence is annotated for it" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "pos.tsv",
        "ud.gold.conllu",
        "ud.pred.conllu",
    }


def test_scores_of_some_tasks_leave_the_counts_of_all(run, capsys) -> None:
    both = scores(run)
    counts = (run / "sentence_counts" / "test.parquet").read_bytes()
    assert scores(run, "--tasks=[dep]") == {"dep": both["dep"]}
    assert (run / "sentence_counts" / "test.parquet").read_bytes() == counts
    assert main(["evaluate", str(run), "--tasks=[ner]"]) == 2
    assert "the model has no task 'ner': its tasks are pos, dep" in capsys.readouterr().err


def test_a_corpus_without_any_gold_is_refused(run, tmp_path, capsys) -> None:
    (tmp_path / "bare").mkdir()
    sentences = read_jsonl(tmp_path / "corpus" / "test.jsonl")
    bare = [dataclasses.replace(sentence, arcs=None, tags=None, upos=None) for sentence in sentences]
    write_jsonl(tmp_path / "bare" / "test.jsonl", bare)
    assert main(["evaluate", str(run), f"--corpus={tmp_path / 'bare'}"]) == 2
    message = "no test sentence of 8 is annotated for pos, dep: use another --corpus or --split"
    assert message in capsys.readouterr().err
    file = tmp_path / "bare" / "test.jsonl"
    assert main(["evaluate", str(run), f"--corpus={file}"]) == 2
    assert f"corpus.path={file}: a file, not a folder: use the folder" in capsys.readouterr().err


def test_sentences_that_the_model_was_trained_on_are_counted(run, tmp_path, capsys) -> None:
    corpus = tmp_path / "corpus"
    train, test = (read_jsonl(corpus / f"{split}.jsonl") for split in ("train", "test"))
    new = [sentence for sentence in test if sentence.words not in {known.words for known in train}]
    write_jsonl(corpus / "test.jsonl", new)
    scores(run)
    assert "in train, too" not in capsys.readouterr().out
    write_jsonl(corpus / "test.jsonl", [*new, *train[:3]])
    scores(run)
    said = f"test: 3 of {len(new) + 3} sentences in train, too (the first, "
    assert said in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    (corpus / "test.jsonl").rename(tmp_path / "other" / "test.jsonl")
    scores(run, f"--corpus={tmp_path / 'other'}")
    assert said in capsys.readouterr().out
    (corpus / "train.jsonl").unlink()
    scores(run, f"--corpus={tmp_path / 'other'}")
    assert "test: whether its sentences are in train is not known: " in capsys.readouterr().out


def test_a_score_that_one_label_for_all_words_reaches_is_called_so(run, tmp_path, capsys) -> None:
    """The decoder of tags always gives the most frequent one."""
    from collections import Counter

    from mtl.models.joint import JointModel

    words = [
        tag for sentence in read_jsonl(tmp_path / "corpus" / "test.jsonl") for tag in sentence.tags or ()
    ]
    ((most, count),) = Counter(words).most_common(1)
    model = JointModel.from_pretrained(run / "model")
    last = [module for module in model.decoders["pos"].modules() if isinstance(module, torch.nn.Linear)][-1]
    last.weight.data.zero_()
    last.bias.data.zero_()
    last.bias.data[model.labels["pos"].index(most)] = 1.0
    model.save(run / "model")
    found = scores(run)["pos"]
    assert found["accuracy"] == found["majority"] == pytest.approx(100 * count / len(words))
    assert found["chance"] == pytest.approx(
        100 * sum((number / len(words)) ** 2 for number in Counter(words).values())
    )
    printed = capsys.readouterr().out
    assert (
        f"note: pos: nothing was learned: accuracy {found['majority']:.2f} on test, where one label"
        in printed
    )
    last.bias.data[model.labels["pos"].index(most)] = -1.0
    model.save(run / "model")
    scores(run)
    assert "note: pos: nothing was learned" in capsys.readouterr().out  # a worse one, too
