"""Tasks with names of a user's own: each does what the task of its kind does, under another name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml
from safetensors.torch import load_file

from mtl.commands.main import main
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run
from mtl.tasks.spans import constituents

NAMED = {"pos": "a_tags", "ner": "b_spans", "dep": "c_tree", "con": "d_brackets", "srl": "e_frames"}
"""In the order of the tasks that they are like, since decoders are made one after the other."""
KINDS = {"pos": "tags", "ner": "spans", "dep": "tree", "con": "constituents", "srl": "frames"}
LAYERS = {"pos": "tags", "ner": "entities", "dep": "arcs", "con": "tree", "srl": "frames"}


@pytest.fixture(scope="module")
def corpus(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy corpus with every layer under a second name, too."""
    folder = tmp_path_factory.mktemp("named")
    for split, number in (("train", 24), ("dev", 8), ("test", 8)):
        lines = [json.loads(line) for line in (toy / f"{split}.jsonl").read_text().splitlines()[:number]]
        for line in lines:
            line["layers"] = {NAMED[task]: line[layer] for task, layer in LAYERS.items()}
            line["labels"] = {"classify": line["tags"][0][0], "own": line["tags"][0][0]}
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def trained(folder: Path, encoder: Path, corpus: Path, name: str, tasks: Any, *more: str) -> Run:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"tasks": tasks, "corpus": {"path": str(corpus)}}))
    given = [
        str(file), f"--encoder.name={encoder}", f"--runs={folder}", f"--name={name}", "--max_epochs=1",
        "--batch.sentences=8", "--trainer.accelerator=cpu", "--trainer.threads=1", "--keep=last", *more,
    ]  # fmt: skip
    assert main(["train", *given]) == 0
    return Run(folder / name)


MASKS = ("--pruning=dynamic", "--gates.scope=per_task", "--gates.target_open=5")


@pytest.fixture(scope="module")
def runs(tiny_encoder: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """The five tasks on words with a mask each, as they come and under names of their own."""
    folder = tmp_path_factory.mktemp("runs")
    named = {NAMED[task]: {"kind": kind} for task, kind in KINDS.items()}
    return (
        trained(folder, tiny_encoder, corpus, "plain", list(KINDS), *MASKS),
        trained(folder, tiny_encoder, corpus, "named", named, *MASKS),
    )


def renamed(text: str) -> str:
    for task, name in NAMED.items():
        text = text.replace(name, task)
    return text


def test_the_model_and_its_scores_are_those_of_the_tasks_of_the_same_kinds(runs: tuple[Run, Run]) -> None:
    plain, named = (load_file(run.model / "decoders.safetensors") for run in runs)
    assert {renamed(key) for key in named} == plain.keys()
    assert all(torch.equal(value, plain[renamed(key)]) for key, value in named.items())
    metrics = [json.loads((run.folder / "metrics.json").read_text()) for run in runs]
    assert json.loads(renamed(json.dumps(metrics[1]))) == metrics[0]


def test_annotations_are_those_of_the_tasks_of_the_same_kinds(runs: tuple[Run, Run], corpus: Path) -> None:
    words = [sentence.words for sentence in read_jsonl(corpus / "dev.jsonl")]
    plain, named = (JointModel.from_pretrained(run.folder).annotate(words) for run in runs)
    for one, other in zip(plain, named, strict=True):
        for task in ("pos", "ner", "dep", "srl"):
            assert other.layer(NAMED[task]) == one.layer(LAYERS[task])
        trees = [one.tree, other.layer("d_brackets")]
        assert constituents(trees[0]) == constituents(trees[1])


@pytest.mark.slow
def test_probes_and_importance_are_those_of_the_tasks_of_the_same_kinds(runs: tuple[Run, Run]) -> None:
    tables = []
    for run in runs:
        assert main(["probe", str(run.folder), "--split=dev"]) == 0
        assert main(["importance", str(run.folder)]) == 0
        tables.append(pl.read_parquet(run.folder / "heads.parquet"))
    by = ["task", "mask", "measure", "label", "layer", "head"]
    by = [name for name in by if name in tables[0].columns]
    named = tables[1].with_columns(pl.col(column).map_elements(renamed, pl.String) for column in ("task",))
    named = named.filter(pl.col("task").is_in([*KINDS, ""]))
    assert named.height > 1000
    joined = tables[0].join(named, on=by, how="inner", suffix="_named", nulls_equal=True)
    assert joined.height == tables[0].height
    assert joined.filter(pl.col("value").ne_missing(pl.col("value_named"))).is_empty()


@pytest.mark.slow
def test_classes_of_sentences(tiny_encoder: Path, corpus: Path, tmp_path: Path) -> None:
    plain = trained(tmp_path, tiny_encoder, corpus, "plain", ["classify"])
    named = trained(tmp_path, tiny_encoder, corpus, "named", {"own": {"kind": "class"}})
    probed = []
    for run, name in ((plain, "classify"), (named, "own")):
        assert main(["probe", str(run.folder), "--split=dev"]) == 0
        heads = pl.read_parquet(run.folder / "heads.parquet").filter(task=name, measure="clustering")
        probed.append(heads.drop("task"))
    assert probed[0].height == probed[0]["label"].n_unique() * 12 > 12
    assert probed[0].equals(probed[1])
    one, other = (load_file(run.model / "decoders.safetensors") for run in (plain, named))
    assert all(torch.equal(value, other[key.replace("classify", "own")]) for key, value in one.items())


def test_files_of_its_own_are_read_under_the_tasks_name(
    tiny_encoder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentences = read_jsonl(corpus / "train.jsonl")
    lines = "\n\n".join(
        "\n".join(f"{word.replace(' ', '_')} {len(word)}" for word in s.words) for s in sentences
    )
    (tmp_path / "x.txt").write_text(lines + "\n")
    files = {split: str(tmp_path / "x.txt") for split in ("train", "dev", "test")}
    tasks = {"pos": None, "size": {"kind": "tags", "files": {**files, "format": "columns"}, "weight": 2.0}}
    run = trained(tmp_path, tiny_encoder, corpus, "mixed", tasks)
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert config["balancer"]["weights"] == {"size": 2.0}
    [sentence] = JointModel.from_pretrained(run.folder).annotate([["a", "dog"]])
    assert set(sentence.layer("size")) <= {str(len(word)) for s in sentences for word in s.words}
    capsys.readouterr()
    assert main(["evaluate", str(run.folder), "--split=dev"]) == 0
    assert "size" in capsys.readouterr().out
