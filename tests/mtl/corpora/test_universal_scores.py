"""Our scores equal those of the evaluator of Universal Dependencies on the exported files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from mtl.corpora.formats.dependencies import read_conllu
from mtl.corpora.scorers import export_for_scorers
from mtl.tasks.catalogue import KINDS
from mtl.tasks.lemmas import RankedScripts, script
from mtl.tasks.sentence import Arcs, Sentence
from mtl.tasks.structured import Dep
from mtl.tasks.task import Task, instance

FIGURES = {"upos": "UPOS", "xpos": "XPOS", "feats": "UFeats", "lemmas": "Lemmas"}
LAYERS = {"upos": "upos", "xpos": "tags", "feats": "feats", "lemmas": "lemmas"}
WORDS = ("Ann", "sang", "_", "10 000", "É", "as", "|")
FEATURES = ("_", "Case=Nom", "Case=Nom|Number=Sing", "Number=Plur")


def tasks() -> list[Task]:
    of_kind = {"lemmas": "lemmas"}
    made = [instance(name, KINDS[of_kind.get(name, "tags")], layer)() for name, layer in LAYERS.items()]
    return [*made, Dep()]


def annotated(rng: random.Random, words: Sequence[str], name: str) -> Sentence:
    size = len(words)
    root = rng.choice((0, 0, size - 1))
    heads = tuple(0 if word == root else root + 1 for word in range(size))
    relations = tuple(rng.choice(("nsubj:pass", "case", "obj")) if head else "root" for head in heads)
    return Sentence(
        tuple(words),
        tags=tuple(rng.choices("AB", k=size)),
        upos=tuple(rng.choices(("NOUN", "VERB"), k=size)),
        arcs=Arcs(heads, relations),
        feats=tuple(rng.choices(FEATURES, k=size)),
        lemmas=tuple(rng.choice((word, word.lower(), "_")) for word in words),
        id=name,
    )


def pairs(seed: int) -> tuple[list[Sentence], list[Sentence]]:
    rng = random.Random(seed)
    texts = [rng.choices(WORDS, k=rng.randint(1, 8)) for _ in range(80)]
    gold, predicted = (
        [annotated(rng, words, str(number)) for number, words in enumerate(texts)] for _ in range(2)
    )
    return gold, predicted


def evaluated(folder: Path) -> dict[str, Any]:
    udeval = pytest.importorskip("udtools.udeval", reason="udtools is not installed")
    texts = [(folder / f"ud.{side}.conllu").read_text(encoding="utf8") for side in ("gold", "pred")]
    files = [udeval.load_conllu(StringIO(text), "", {}) for text in texts]
    return {name: 100 * score.f1 for name, score in udeval.evaluate(*files).items()}


def ours(task: Task, gold: Sequence[Sentence], predicted: Sequence[Sentence]) -> dict[str, float]:
    def decoded(sentence: Sentence) -> Any:
        value = sentence.layer(task.layer)
        if task.kind != "lemmas":
            return value
        scripts = ((script(word, lemma),) for word, lemma in zip(sentence.words, value, strict=True))
        return RankedScripts(tuple(scripts), {})

    metric = task.metric()
    metric.update(list(map(decoded, predicted)), gold)
    return metric.compute()


@pytest.mark.parametrize("seed", range(3))
def test_scores(tmp_path: Path, seed: int) -> None:
    gold, predicted = pairs(seed)
    assert export_for_scorers(gold, predicted, tmp_path, tasks()).left_out == {}
    printed = evaluated(tmp_path)
    by_name = {task.name: task for task in tasks()}
    for name, figure in FIGURES.items():
        assert ours(by_name[name], gold, predicted)["accuracy"] == pytest.approx(printed[figure]), figure
    dep = ours(by_name["dep"], gold, predicted)
    assert (dep["uas"], dep["las"]) == pytest.approx((printed["UAS"], printed["LAS"]))
    assert 0 < printed["MLAS"] < printed["CLAS"]
    assert 0 < printed["BLEX"] < printed["CLAS"]


def test_the_gold_scores_100_in_all(tmp_path: Path) -> None:
    gold, _ = pairs(9)
    export_for_scorers(gold, gold, tmp_path, tasks())
    printed = evaluated(tmp_path)
    assert {printed[figure] for figure in printed if figure not in ("ELAS", "EULAS")} == {100.0}
    assert [replace(s, text="") for s in read_conllu(tmp_path / "ud.gold.conllu")] == [
        replace(s, words=tuple(word.replace(" ", "_") for word in s.words)) for s in gold
    ]


def test_only_what_is_predicted_is_written_and_heads_may_be_placeholders(tmp_path: Path) -> None:
    gold, predicted = pairs(4)
    chosen = [task for task in tasks() if task.name in ("upos", "lemmas")]
    export_for_scorers(gold, predicted, tmp_path, chosen)
    printed = evaluated(tmp_path)
    assert ours(chosen[0], gold, predicted)["accuracy"] == pytest.approx(printed["UPOS"])
    assert ours(chosen[1], gold, predicted)["accuracy"] == pytest.approx(printed["Lemmas"])
    assert printed["LAS"] == 0
    read = read_conllu(tmp_path / "ud.pred.conllu")
    assert {layer for sentence in read for layer in sentence.layers} == {"upos", "lemmas"}
    comments = (tmp_path / "ud.pred.conllu").read_text().count("# arcs_made_up = true\n")
    assert comments == len(read) > 0


def test_sentences_without_one_of_the_layers_are_left_out_and_counted(tmp_path: Path) -> None:
    gold, predicted = pairs(5)
    bare = [gold[0].with_layers({"lemmas": None}), gold[1].with_layers({"arcs": None}), *gold[2:]]
    exported = export_for_scorers(bare, predicted, tmp_path, tasks())
    [(name, count)] = exported.left_out.items()
    assert ("not annotated for all of upos, tags, feats, lemmas, arcs" in name, count) == (True, 2)
    assert [sentence.id for sentence in read_conllu(tmp_path / "ud.pred.conllu")] == [
        sentence.id for sentence in gold[2:]
    ]
    nothing = export_for_scorers(bare[:2], predicted[:2], tmp_path, tasks())
    assert not (tmp_path / "ud.gold.conllu").exists()
    assert nothing.left_out[name] == 2
    export_for_scorers(bare[:1], predicted[:1], tmp_path, tasks())
    [read] = read_conllu(tmp_path / "ud.pred.conllu")
    assert set(read.layers) == {"upos", "tags", "feats", "arcs"}  # no gold has lemmas


def test_a_task_of_the_same_name_has_files_of_its_own(tmp_path: Path) -> None:
    gold, predicted = pairs(6)
    named = [*tasks()[:1], instance("ud", KINDS["tree"], "arcs")()]
    paths = export_for_scorers(gold, predicted, tmp_path, named).paths
    assert sorted(path.name for path in paths) == sorted({*(path.name for path in tmp_path.iterdir())})
    own, universal = (read_conllu(tmp_path / f"{stem}.pred.conllu") for stem in ("ud", "ud_"))
    assert [sentence.arcs for sentence in own] == [sentence.arcs for sentence in predicted]
    assert {layer for sentence in universal for layer in sentence.layers} == {"upos", "arcs"}
    bare = [gold[0].with_layers({"upos": None}), *gold[1:]]
    assert export_for_scorers(bare, predicted, tmp_path, named).left_out == {
        "sentences of ud_.*, not annotated for all of upos, arcs": 1
    }
