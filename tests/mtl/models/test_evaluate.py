"""Scores under head scales: none, ones, ablated heads, masks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.heads.gates import HeadGates
from mtl.heads.prune import prune_heads
from mtl.models.annotator import TaskScores
from mtl.models.batches import Example, examples
from mtl.models.evaluate import Scores, batches, evaluate_model, same_answer_scores
from mtl.models.joint import JointModel
from mtl.tasks.catalogue import STRUCTURED, TASKS
from mtl.tasks.sentence import Sentence
from mtl.tasks.structured import Drawn
from tests.mtl import tiny


@pytest.fixture(scope="module")
def corpus(toy: Path) -> list:
    return read_jsonl(toy / "dev.jsonl")


def model_of(corpus: list, masks: tuple[str, ...] | None = None) -> JointModel:
    """Five tasks with random weights, the same in every call."""
    torch.manual_seed(0)
    encoder = tiny.encoder("bert", dtype=torch.float32)
    tasks = {task.name: task() for task in STRUCTURED}
    torch.manual_seed(1)
    model = JointModel(encoder, tasks, {name: task.labels(corpus) for name, task in tasks.items()}).eval()
    for decoder in model.decoders.values():
        tiny.shake(decoder)
    if masks is not None:
        model.gates = HeadGates(
            encoder.layers, encoder.heads, masks=masks, init_mean=0.0, init_std=3.0
        ).eval()
    return model


def examples_of(model: JointModel, corpus: list) -> list[Example]:
    return examples(corpus, model.encoder.tokenizer, model.tasks, model.labels)


def scores_of(model: JointModel, corpus: list, scale: torch.Tensor | None = None) -> Scores:
    return evaluate_model(model, batches(examples_of(model, corpus), model), scale)


def test_a_scale_of_ones_changes_nothing(corpus):
    model = model_of(corpus)
    shape = (model.encoder.layers, model.encoder.heads)
    plain = scores_of(model, corpus)
    assert scores_of(model, corpus, torch.ones(shape)) == plain
    assert scores_of(model, corpus, torch.ones(len(model.tasks), *shape)) == plain


def test_ones_score_a_masked_model_without_its_masks(corpus):
    masked = model_of(corpus, ("shared",))
    plain = scores_of(model_of(corpus), corpus)
    assert scores_of(masked, corpus) != plain
    assert scores_of(masked, corpus, torch.ones(masked.encoder.layers, masked.encoder.heads)) == plain


def test_a_zero_ablates_the_head(corpus):
    model = model_of(corpus)
    scale = torch.ones(model.encoder.layers, model.encoder.heads)
    scale[1, [0, 2]] = 0
    ablated = scores_of(model, corpus, scale)
    assert ablated != scores_of(model, corpus)
    prune_heads(model.encoder.transformer, {1: [0, 2]})
    assert scores_of(model, corpus) == ablated


@pytest.mark.parametrize("masks", [("shared",), tuple(task.name for task in STRUCTURED)])
def test_the_gates_as_a_scale_score_as_the_gates_do(corpus, masks):
    model = model_of(corpus, masks)
    assert model.gates is not None
    with torch.no_grad():
        gates = model.gates.gate()
    scale = gates[0] if len(gates) == 1 else gates
    assert scores_of(model_of(corpus), corpus, scale) == scores_of(model, corpus)


def test_a_scale_per_task_is_that_of_each_task_alone(corpus):
    model = model_of(corpus)
    scales = torch.rand(len(model.tasks), model.encoder.layers, model.encoder.heads)
    batch = next(iter(batches(examples_of(model, corpus), model)))
    with torch.no_grad():
        together = model(batch, scales)
        for scale, name in zip(scales, model.tasks, strict=True):
            torch.testing.assert_close(first(together[name]), first(model(batch, scale)[name]))


@pytest.mark.parametrize("masks", [None, ("shared",), tuple(task.name for task in STRUCTURED)])
def test_a_scale_per_sentence_multiplies_the_gates_or_the_given_scale(corpus, masks):
    model = model_of(corpus, masks)
    some = examples_of(model, corpus)[:3]
    batch = next(iter(batches(some, model)))
    shape = (model.encoder.layers, model.encoder.heads)
    generator = torch.Generator().manual_seed(2)
    on_top = torch.rand(len(batch.sentences), *shape, generator=generator)
    given = torch.rand(len(model.tasks), *shape, generator=generator)
    with torch.no_grad():
        gates = torch.ones(1, *shape) if model.gates is None else model.gates.gate()
        gates = gates.expand(len(model.tasks), -1, -1)
        for below, scale in (
            (gates, None),
            (given[:1].expand(len(STRUCTURED), -1, -1), given[0]),
            (given, given),
        ):
            scores = model(batch, scale, sentence_scale=on_top)
            for sentence, factors in enumerate(on_top):
                # The same factors for all sentences, as one scale per task.
                alone = model(batch, below * factors)
                for name, rows in batch.rows.items():
                    if sentence in rows:
                        row = rows.tolist().index(sentence)
                        torch.testing.assert_close(first(scores[name])[row], first(alone[name])[row])


def first(output: TaskScores) -> torch.Tensor:
    return output.scores if isinstance(output.scores, torch.Tensor) else output.scores[0]


@pytest.mark.parametrize(
    ("name", "layer"), [("pos", "tags"), ("sst2", "sst2"), ("cola", "cola"), ("mrpc", "mrpc")]
)
def test_the_best_same_answer_is_that_of_all_labels_tried(name: str, layer: str) -> None:
    """Accuracy of words, sentences and pairs, and Matthews' correlation, which is 0 for any constant."""
    labels = ["1"] * 6 + ["0"] * 3
    pair = {"second": 1} if name == "mrpc" else {}
    gold = (
        [Sentence(("a", "b", "c"), tags=("X", "Y", "X")), Sentence(("a",), tags=("X",))]
        if name == "pos"
        else [Sentence(("a", "b"), {layer: label}, **pair) for label in labels]
    )
    task = TASKS[name]()
    tried = {}
    for label in {label for sentence in gold for label in task.labels_in(sentence)}:
        metric = task.metric()
        metric.update([task.same_answer(sentence, label) for sentence in gold], gold)
        tried[label] = float(metric.compute()[task.score])
    found = same_answer_scores(task, gold)
    assert found["majority"] == pytest.approx(max(tried.values()))
    by_hand = {
        "pos": (75.0, 62.5),
        "sst2": (200 / 3, 500 / 9),
        "cola": (0.0, None),
        "mrpc": (200 / 3, 500 / 9),
    }[name]
    assert (found["majority"], found.get("chance")) == pytest.approx(by_hand)


def test_tasks_without_classes_or_tags_have_no_same_answer() -> None:
    spans = Sentence(("a", "b"), entities=())
    assert same_answer_scores(TASKS["ner"](), [spans]) == {}
    assert same_answer_scores(Drawn(), [spans]) == {}
    assert same_answer_scores(TASKS["pos"](), []) == {}
