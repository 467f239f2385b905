"""What every task of the catalogue declares, and that reading it is cheap.
The names of tasks, in the catalogue's order.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from mtl.tasks.catalogue import LAYERS, SENTENCE_TASKS, STRUCTURED, TASKS, TEXTS, in_order_of_catalogue
from mtl.tasks.sentence import Arcs, Frame, Sentence, Span, is_label
from mtl.tasks.task import Task
from mtl.tasks.tree import Tree

SENTENCE = Sentence(
    words=("Ann", "sang"),
    tags=("NNP", "VBD"),
    upos=("PROPN", "VERB"),
    entities=(Span(0, 1, "PER"),),
    arcs=Arcs((2, 0), ("nsubj", "root")),
    tree=Tree.parse("(TOP (S (NP (NNP Ann)) (VP (VBD sang))))"),
    frames=(Frame(1, None, (Span(0, 1, "ARG0"),)),),
    layers={
        name: 2.5 if name in ("stsb", "regress") else (*getattr(TASKS[name], "inventory", ()), "x")[0]
        for name in (*SENTENCE_TASKS, *TEXTS)
    },
)


def test_the_catalogue_imports_no_framework() -> None:
    heavy = ("torch", "torchmetrics", "transformers", "numba", "supar", "numpy")
    code = (
        "import sys, tasks.catalogue, tasks.task, tasks.sentence\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", TASKS.values(), ids=TASKS)
def test_figures_are_those_of_the_metric(kind: type[Task]) -> None:
    metric = kind().metric()
    metric.update([], [], [])
    figures = [figure for figure in kind.scores if not figure.endswith("/")]
    assert list(metric.compute()) == figures
    assert kind.score in figures


@pytest.mark.parametrize("kind", TASKS.values(), ids=TASKS)
def test_layers_hold_the_own_one_and_labels_have_the_name_of_their_task(kind: type[Task]) -> None:
    task = kind()
    if kind.layers and kind not in STRUCTURED:
        assert kind.layers == (kind.name,)
        assert is_label(SENTENCE.layer(kind.name))
    assert task.layer in (*kind.layers, "words")
    assert task.annotated(SENTENCE)
    assert task.annotated(Sentence(("x",))) is (not kind.layers)


@pytest.mark.parametrize("kind", TASKS.values(), ids=TASKS)
def test_a_task_reads_no_more_than_its_layers(kind: type[Task]) -> None:
    bare = SENTENCE.with_layers(dict.fromkeys(set(LAYERS) - set(kind.layers)))
    task = kind()
    labels = task.labels([SENTENCE])
    assert task.labels([bare]).names == labels.names
    assert task.items(bare) == task.items(SENTENCE)
    for ours, theirs in zip(task.targets(bare, labels), task.targets(SENTENCE, labels), strict=True):
        assert ours.tolist() == theirs.tolist()
    assert task.dropped(bare, labels) == 0


def test_the_loss_is_divided_by_the_units() -> None:
    class Sentiment(TASKS["pos"]):  # type: ignore[misc]
        loss_unit = "sentence"

    assert TASKS["pos"]().loss_units(SENTENCE) == 2
    assert Sentiment().loss_units(SENTENCE) == 1


def test_any_order_becomes_the_catalogues() -> None:
    names = (
        "pos", "ner", "dep", "con", "srl", "cola", "sst2", "mrpc", "rte", "qnli", "mnli", "stsb",
        "classify", "regress",
    )  # fmt: skip
    assert in_order_of_catalogue(reversed(names)) == names == tuple(TASKS)[: len(names)]
    assert in_order_of_catalogue(["dep", "dep"]) == ("dep",)
