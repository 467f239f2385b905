"""Features: a bundle per word, or one feature of it as the labels of a task."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from mtl.config.instances import kind_of
from mtl.config.parse import read_configuration
from mtl.config.schema import TrainConfig
from mtl.corpora.checks import CorpusCheck, notes_on
from mtl.corpora.formats.jsonl import write_jsonl
from mtl.corpora.load import load_split
from mtl.errors import InputError
from mtl.tasks.lemmas import split_lemma_labels
from mtl.tasks.sentence import Sentence, Span, feature_of, features_in_order

TEXT = (
    "1\tIch\tich\tPRON\t_\tPerson=1|Case=Nom\t0\troot\t_\t_\n"
    "2\tihn\ter\tPRON\t_\tCase=Acc\t1\tobj\t_\t_\n"
    "3\t!\t!\tPUNCT\t_\t_\t1\tpunct\t_\t_\n\n"
)
BUNDLES = ("Case=Nom|Person=1", "Case=Acc", "_")


def configured(folder: Path, tasks: dict[str, Any], **corpus: Any) -> TrainConfig:
    path = folder / "run.yaml"
    path.write_text(json.dumps({"tasks": tasks, "corpus": {"path": None, **corpus}}))
    return read_configuration(TrainConfig, path)


def loaded(config: TrainConfig) -> list[Sentence]:
    return load_split(config.corpus, config.chosen(), "train")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "a.conllu"
    path.write_text(TEXT)
    return str(path)


def test_a_feature_of_a_bundle() -> None:
    assert [feature_of(bundle, "Case") for bundle in BUNDLES] == ["Nom", "Acc", "_"]
    assert feature_of("Number[psor]=Sing|Typo", "Number[psor]") == "Sing"
    assert features_in_order("b=1|A=2|C=3") == "A=2|b=1|C=3"
    sentence = Sentence(("a", "b", "c"), feats=BUNDLES, slots=(Span(0, 1, "A"),))
    assert sentence.layer("feats.Person") == ("1", "_", "_")
    assert sentence.with_layers({"feats.Person": ("2", "_", "_")}).layer("feats.Person") == ("2", "_", "_")
    assert sentence.layer("slots.Person") is sentence.layer("other.Person") is None


@pytest.mark.parametrize("where", ["own files", "shared files", "folder"])
def test_bundles_and_features_of_them_are_tasks(tmp_path: Path, file: str, where: str) -> None:
    tasks: dict[str, Any] = {
        "feats": {"kind": "tags"},
        "case": {"kind": "tags", "feature": "Case"},
        "person": {"kind": "tags", "feature": "Person"},
    }
    if where == "own files":
        files = {"train": file, "format": "conllu"}
        tasks = {name: {**given, "files": files} for name, given in tasks.items()}
        tasks["feats"]["layer"] = tasks["person"]["layer"] = "feats"
        config = configured(tmp_path, tasks)
    elif where == "shared files":
        config = configured(tmp_path, tasks, files={"train": file, "format": "conllu"})
    else:
        sentence = Sentence(("Ich", "ihn", "!"), feats=BUNDLES)
        write_jsonl(tmp_path / "train.jsonl", [sentence])
        config = configured(tmp_path, tasks, path=str(tmp_path))
    chosen = config.chosen()
    [read] = loaded(config)
    assert {name: task.labels([read]).names for name, task in chosen.items()} == {
        "feats": ("Case=Acc", "Case=Nom|Person=1", "_"),
        "case": ("Acc", "Nom", "_"),
        "person": ("1", "_"),
    }
    assert [task.annotated(read) for task in chosen.values()] == [True] * 3
    assert notes_on(CorpusCheck({"train": [read]}, chosen)) == []
    case = chosen["case"]
    metric = case.metric()
    metric.update([("Nom", "Nom", "_")], [read])
    assert metric.compute()["accuracy"] == pytest.approx(200 / 3)
    predicted = case.annotate(Sentence(read.words), ("Nom", "_", "_"))
    assert predicted.layers == {"feats.Case": ("Nom", "_", "_")}
    assert read.layer(case.layer) == ("Nom", "Acc", "_")


def test_a_saved_task_is_the_same_one(file: str, tmp_path: Path) -> None:
    task = configured(tmp_path, {"case": {"kind": "tags", "feature": "Case", "files": {"train": file}}}).task(
        "case"
    )
    saved = {"case": {"kind": task.kind, "layer": task.layer}}
    assert type(task) is kind_of("case", saved)
    decoder = task.new_decoder(4, task.labels([Sentence(("a",), feats=("Case=Nom",))]))
    assert decoder(torch.zeros(1, 1, 4), torch.ones(1, 1, dtype=torch.bool)).shape == (1, 1, 1)


def test_lemmas_are_read_as_lemmas_or_as_any_label(file: str, tmp_path: Path) -> None:
    files = {"train": file, "format": "conllu"}
    config = configured(tmp_path, {"lemmas": {"kind": "lemmas", "files": files}})
    [read] = loaded(config)
    assert read.layer("lemmas") == ("ich", "er", "!")
    assert split_lemma_labels(config.task("lemmas").labels([read])).scripts.names == ("L0;¦",)
    (tmp_path / "a.txt").write_text("Ich ich\nihn er\n")
    files = {"train": str(tmp_path / "a.txt"), "format": "columns"}
    config = configured(
        tmp_path, {"roots": {"kind": "lemmas", "layer": "tags", "min_count": 1, "files": files}}
    )
    assert split_lemma_labels(config.task("roots").labels(loaded(config))).scripts.names == ("=er", "L0;¦")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"kind": "tree", "feature": "Case"},
            "x.feature: features are learned by tasks of kind tags",
        ),
        ({"kind": "tags", "feature": "a b"}, "'a b' is no name of a feature, such as Case"),
        ({"kind": "tags", "min_count": 3}, "a task of kind tags has no such setting"),
        (
            {"kind": "tags", "feature": "Case", "files": {"format": "columns"}},
            "x, of kind tags, learns",
        ),
        ({"kind": "lemmas", "files": {"format": "columns"}}, "(lemmas), and these files have tags"),
        ({"kind": "tree", "files": {"format": "conllu", "layer": "feats"}}, "x: its layer holds"),
    ],
)
def test_what_does_not_fit_is_one_line(
    file: str, tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    if "files" in given:
        given = {**given, "files": {"train": file, **given["files"]}}
    with pytest.raises(InputError, match=re.escape(message)) as error:
        loaded(configured(tmp_path, {"x": given}, path="nowhere"))
    assert "\n" not in str(error.value)
