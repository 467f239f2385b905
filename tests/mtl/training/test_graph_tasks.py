"""A task of the kind `graph` from files of CoNLL-U to scores, annotations, exported files and probes."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import yaml

from mtl.commands.main import main
from mtl.corpora.formats.dependencies import read_conllu, read_sdp, to_conllu
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.tasks.sentence import Arc, Graph, Sentence

pytestmark = pytest.mark.slow


def with_graph(sentence: Sentence) -> Sentence:
    """The tree's arcs, and for each word two steps below another its arc from there."""
    assert sentence.arcs is not None
    heads = (0, *sentence.arcs.heads)
    arcs = [
        Arc(word, head, relation)
        for word, (head, relation) in enumerate(
            zip(sentence.arcs.heads, sentence.arcs.relations, strict=True), start=1
        )
    ]
    further = [Arc(arc.dependent, heads[arc.head], "via") for arc in arcs if arc.head and heads[arc.head]]
    return Sentence(sentence.words, id=sentence.id).with_layers({"deps": Graph((*arcs, *further))})


@pytest.fixture(scope="module")
def run(toy: Path, tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    files = {}
    for split in ("train", "dev", "test"):
        sentences = map(with_graph, read_jsonl(toy / f"{split}.jsonl")[:30])
        (folder / f"{split}.conllu").write_text("".join(map(to_conllu, sentences)), encoding="utf-8")
        files[split] = str(folder / f"{split}.conllu")
    task = {"kind": "graph", "connected": True, "arc_dim": 32, "files": {**files, "format": "conllu"}}
    config = {
        "tasks": {"deps": task, "tree": {"kind": "tree", "layer": "arcs"}},
        "corpus": {"path": str(toy)},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    given = [
        str(folder / "config.yaml"), f"--encoder.name={tiny_encoder}", f"--runs={folder}", "--name=run",
        "--max_epochs=1", "--batch.sentences=8", "--trainer.accelerator=cpu", "--trainer.threads=1",
        "--wandb.mode=disabled",
    ]  # fmt: skip
    assert main(["train", *given]) == 0
    return folder / "run"


def test_scores_are_in_the_run_and_files_are_exported(run: Path, tmp_path: Path) -> None:
    scores = json.loads((run / "metrics.json").read_text())
    assert "unlabelled_f1" in json.dumps(scores)
    assert main(["evaluate", str(run), "--split=dev", f"--export={tmp_path}"]) == 0
    gold, predicted = (read_conllu(tmp_path / f"deps.{side}.conllu") for side in ("gold", "pred"))
    for true, guess in zip(gold, predicted, strict=True):
        assert {arc.label for arc in true.layer("deps").arcs} >= {"root"}
        graph = guess.layer("deps")
        assert {arc.dependent for arc in graph.arcs} == set(range(1, len(guess) + 1))
        assert all((arc.label == "root") == (arc.head == 0) for arc in graph.arcs)


def test_semevals_files_hold_the_same_graphs(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["evaluate", str(run), "--split=dev", f"--export={tmp_path}"]) == 0
    for side in ("gold", "pred"):
        columns, rows = read_conllu(tmp_path / f"deps.{side}.conllu"), read_sdp(tmp_path / f"deps.{side}.sdp")
        assert [(each.id, each.words) for each in rows] == [(each.id, each.words) for each in columns]
        assert [each.layer("deps") for each in rows] == [each.layer("deps") for each in columns]
    (tmp_path / "words.txt").write_text("a dog slept\n\na cat\n")
    found = {}
    for output, read in (("conllu", read_conllu), ("sdp", read_sdp)):
        capsys.readouterr()
        assert main(["predict", str(run), str(tmp_path / "words.txt"), f"--output={output}"]) == 0
        (tmp_path / "out").write_text(capsys.readouterr().out)
        found[output] = [(each.id, each.words, each.layer("deps")) for each in read(tmp_path / "out")]
    assert found["sdp"] == found["conllu"]
    assert [id for id, *_ in found["sdp"]] == ["1", "3"]
    assert main(["predict", str(run), str(tmp_path / "words.txt"), "--output=sdp", "--tasks=[tree]"]) == 2
    assert "none of the tasks (tree) makes them: use another --output" in capsys.readouterr().err


def test_words_are_annotated_in_the_column(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "words.txt").write_text("a dog slept\n")
    assert main(["predict", str(run), str(tmp_path / "words.txt"), "--output=conllu"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if "\t" in line]
    assert [row[1] for row in rows] == ["a", "dog", "slept"]
    assert all(":" in row[8] for row in rows)
    assert any(row[8].startswith("0:root") for row in rows)


def test_heads_are_probed_for_its_arcs(run: Path) -> None:
    assert main(["probe", str(run), "--split=dev"]) == 0
    heads = pl.read_parquet(run / "heads.parquet").filter(pl.col("task") == "deps")
    assert {"attention", "attention_offset", "syntactic", "syntactic_offset"} <= set(heads["measure"])
    assert {"root", "via"} <= set(heads.filter(pl.col("measure") == "attention")["label"])
