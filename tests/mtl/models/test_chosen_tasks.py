"""Annotating in some of a model's tasks, by one model after another, and by rules."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from mtl.config.parse import dump
from mtl.corpora.formats.jsonl import from_json, to_json, to_line
from mtl.errors import InputError
from mtl.models.joint import JointModel
from mtl.tasks.rules import UNKEPT
from tests.mtl.analysis import worth

WORDS = [["We", "ate", "in", "Paris", "."], ["It", "rained", "."]]


@pytest.fixture(scope="module", params=[(), worth.STRUCTURED], ids=["no masks", "a mask per task"])
def model(toy: Path, request: pytest.FixtureRequest) -> JointModel:
    return worth.joint_model(toy, masks=request.param, dtype=torch.float32)


def test_only_these_decoders_are_run_and_find_what_they_find_with_the_others(model: JointModel) -> None:
    run: list[str] = []
    hooks = [
        decoder.register_forward_pre_hook(lambda *_, name=name: run.append(name))
        for name, decoder in model.decoders.items()
    ]
    whole = model.annotate(WORDS)
    run.clear()
    some = model.annotate(WORDS, tasks=["srl", "dep"])
    for hook in hooks:
        hook.remove()
    assert set(run) == {"dep", "srl"}
    for found, expected in zip(some, whole, strict=True):
        assert (found.arcs, found.frames) == (expected.arcs, expected.frames)
        assert found.tags is found.entities is found.tree is None
    text = model.annotate_text("We ate.", tasks=("ner",), probabilities=1)
    assert set(text.items[0]) <= {"ner"}
    assert text.sentences[0].arcs is None


def test_a_model_adds_to_what_another_has_annotated(model: JointModel) -> None:
    tagged = [dataclasses.replace(each, arcs=None) for each in model.annotate(WORDS, tasks=["pos"])]
    both = model.annotate(tagged, tasks=["dep"])
    expected = model.annotate(WORDS, tasks=["pos", "dep"])
    assert both == expected


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (["dip"], "the model has no task 'dip': did you mean 'dep'"),
        (["sentiment"], "has no task 'sentiment': its tasks are pos, ner, dep, con, srl"),
        ([], "tasks is empty: choose from pos, ner, dep, con, srl"),
        ("pos", "tasks='pos': use a list of names"),
    ],
)
def test_tasks_that_are_none(model: JointModel, tasks: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.annotate(WORDS, tasks=tasks)


def rules_of(model: JointModel) -> dict[str, Any]:
    """Rules that change a prediction of each task, made from what the model predicts without them."""
    plain, _ = model.annotate(WORDS, tasks=["pos", "ner", "dep"])
    assert plain.tags is not None
    assert plain.arcs is not None
    tag = next(name for name in model.labels["pos"].names if name != plain.tags[3])
    head = next(word for word in (1, 2, 3) if word != plain.arcs.heads[3])
    return {
        "pos": {"force": {"Paris": tag}, "forbid": {"ate": [plain.tags[1]]}},
        "ner": {"force": {"in Paris": model.labels["ner"].names[0]}, "forbid": ["We"]},
        "dep": {"force": {f"Paris < {WORDS[0][head - 1]}": None}},
    }


def test_rules_in_python_and_in_a_file(model: JointModel, tmp_path: Path) -> None:
    """One rule changes what it is about; the sentence without its words stays as it was."""
    rules = rules_of(model)
    whole = model.annotate(WORDS)
    first, second = model.annotate(WORDS, rules=rules)
    assert second == whole[1]
    assert first.notes == ()
    assert first.tags is not None
    assert first.arcs is not None
    tag, [(_, head)] = rules["pos"]["force"]["Paris"], [arc.split(" < ") for arc in rules["dep"]["force"]]
    assert (first.tags[3], first.arcs.heads[3]) == (tag, WORDS[0].index(head) + 1)
    assert first.tags[1] != whole[0].tags[1]
    assert (2, 4, model.labels["ner"].names[0]) in first.entities
    assert all(span.end != 1 for span in first.entities)
    path = tmp_path / "rules.yaml"
    path.write_text(dump(rules))
    for given in (path, str(path), model.rules_for(path)):
        assert model.annotate(WORDS, rules=given) == [first, second]
    (text,) = model.annotate_text("We ate in Paris.", rules=rules, probabilities=2).sentences
    assert (text.tags, text.entities, text.arcs) == (first.tags, first.entities, first.arcs)


def test_rules_that_exclude_each_other_are_said(model: JointModel) -> None:
    """No tree has both arcs; the note is in the sentence's JSON, too."""
    rules = {"dep": {"force": {"We < ate": None, "ate < We": None}}}
    [found, other] = model.annotate(WORDS, tasks=["dep"], rules=rules)
    [note] = found.notes
    assert re.fullmatch(f"{UNKEPT}: dep: force (We < ate|ate < We)", note)
    assert to_json(found)["unkept"] == [note]
    assert from_json(json.loads(to_line(found))).arcs == found.arcs
    assert other.notes == ()


@pytest.mark.parametrize(
    ("rules", "tasks", "message"),
    [
        ({"nre": {"forbid": ["x"]}}, None, "the model has no task 'nre': did you mean 'ner'"),
        ({"srl": {"forbid": ["x"]}}, None, "rules: srl: SrlDecoder takes no rules"),
        ({"ner": {"force": {"x": "CAR"}}}, None, "rules: ner: force: x: the model has no label 'CAR'"),
        ({"ner": {"forbid": ["x"]}}, ["pos"], "rules for ner, which is not among the tasks annotated in"),
        ({}, None, "rules: no rules: give them by task"),
        ("nowhere.yaml", None, "nowhere.yaml: no such file"),
    ],
)
def test_rules_that_cannot_be_meant(
    model: JointModel, rules: object, tasks: list[str] | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model.annotate(WORDS, tasks=tasks, rules=rules)
