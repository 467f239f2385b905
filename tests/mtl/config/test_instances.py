"""Tasks that a configuration names: the short form, its places, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path

import pytest

from mtl.config.effective import counting_settings, different_keys, only_used, plain
from mtl.config.parse import changed, configuration_from, configured, read_configuration
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.features import features
from mtl.tasks.catalogue import KINDS
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.task import instance
from tests.kit.absent import needs

if "study" in features():
    from mtl.study.config import StudyConfig

of_studies = needs("study")

SHORT = """
tasks:
  pos: {dropout: 0.2}
  slots: {kind: spans, files: {train: a, dev: b, format: conll2003}, columns: {word: 1, label: 4}, weight: 2}
  intent: {kind: class, layer: topic}
"""


def given(folder: Path, text: str, *more: str) -> TrainConfig:
    (folder / "given.yaml").write_text(text)
    return configured("mtl train", TrainConfig, [str(folder / "given.yaml"), *more])


def test_the_short_form_is_put_where_it_belongs(tmp_path: Path) -> None:
    config = given(
        tmp_path, SHORT, "--tasks.slots.dim=40", "--tasks.pos.dropout=0.1", "--tasks.slots.files.test=c"
    )
    assert config.tasks == ("pos", "slots", "intent")
    assert config.pos.dropout == 0.1
    assert config.instances["slots"].settings() == {"dim": 40}
    files = config.corpus.files_of("slots")
    assert files is not None
    assert (files.train, files.dev, files.test, files.columns) == ("a", "b", "c", {"word": 1, "label": 4})
    assert (config.balancer.name, config.balancer.weights) == ("fixed", {"slots": 2.0})
    assert list(config.chosen()) == ["pos", "intent", "slots"]
    assert [task.layer for task in config.chosen().values()] == ["tags", "topic", "slots"]


def test_half_of_a_task_has_its_changed_settings() -> None:
    config = configured("mtl train", TrainConfig, ["--tasks=[dep~a]", "--dep.arc_dim=100", "--corpus.path=x"])
    half, whole = config.task("dep~a"), config.task("dep")
    assert (half.half, whole.half) == ("a", None)
    assert config.instances["dep~a"].settings() == {"arc_dim": 100}


def test_a_list_on_the_command_line_chooses_among_the_tasks_of_the_file(tmp_path: Path) -> None:
    config = given(tmp_path, SHORT, "--tasks=[slots]")
    assert list(config.chosen()) == ["slots"]
    used = only_used(config)
    assert list(used.instances) == ["slots"]
    assert list(used.corpus.instances) == ["slots"]


def test_a_configuration_comes_back_from_its_plain_values(tmp_path: Path) -> None:
    config = given(tmp_path, SHORT)
    values = plain(dataclasses.asdict(config))
    assert configuration_from(TrainConfig, values) == config


def test_settings_without_a_value_count_for_nothing(tmp_path: Path) -> None:
    old = plain(dataclasses.asdict(given(tmp_path, SHORT)))
    new = copy.deepcopy(old)
    del new["instances"]["slots"]["arc_dim"]
    assert different_keys(old, new) == []
    new["instances"]["slots"]["dim"] = 41
    assert different_keys(old, new) == ["instances.slots.dim"]
    assert not [key for key in counting_settings(old) if key.endswith((".train", ".dim", "slots.layer"))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks: {a: {kind: spanz}}", r"line 1: tasks\.a\.kind: unknown 'spanz': did you mean 'spans'"),
        ("tasks: {a: {dim: 3}}", r"line 1: tasks\.a has no kind: add kind: tags or "),
        ("tasks: {a: {kind: spans, arc_dim: 3}}", r"line 1: .*a task of kind spans has no such setting \(d"),
        ("tasks:\n  a: {kind: spans}\n  a: {kind: tags}", "line 3: the key a is given twice"),
        ("tasks: [poss]", "line 1: tasks: unknown 'poss': did you mean 'pos'"),
        ("tasks: {pos: {kind: tags}}", "line 1: .*pos comes with mtl: leave kind and layer out"),
        ("tasks: {shared: {kind: tags}}", "line 1: .*'shared' cannot name a task"),
        ("tasks: {a b: {kind: tags}}", "line 1: .*'a b' cannot name a task"),
        ("tasks: {poss: {dropout: 0.1}}", r"line 1: tasks\.poss has no kind.*did you mean 'pos'"),
        ("tasks: {pairs: {kind: tags}}", "line 1: .*'pairs' cannot name a task"),
        ("tasks: {a: 3}", r"line 1: tasks\.a holds other keys, and cannot be '3'"),
        ("tasks: {a: {kind: tags, dropout: 7}}", r"line 1: tasks\.a\.dropout=7\.0: use a number from 0"),
        ("tasks: {a: {kind: tags, layer: ''}}", r"line 1: .*layer: '' is no layer"),
        ("tasks: {a: {kind: tags, files: {trian: x}}}", "did you mean 'tasks.a.files.train'"),
        (
            "tasks: {a: {kind: tags, weight: 2}}\nbalancer: {name: uncertainty}",
            r"line 1: tasks\.a\.weight is for balancer\.name=fixed, and balancer\.name=uncertainty",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        given(tmp_path, text)


def test_a_key_of_a_task_that_is_not_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"graphs is not trained: .*--tasks=\[pos,slots,intent,graphs\]"):
        given(tmp_path, SHORT, "--tasks.graphs.kind=graph")


@of_studies
def test_keys_of_the_short_form_are_taken_in_blocks_of_a_study_and_by_sweeps(tmp_path: Path) -> None:
    config = given(tmp_path, SHORT)
    values = plain(dataclasses.asdict(config))
    changes = {"tasks.slots.dim": 7, "tasks.pos.dropout": 0.3, "tasks.slots.weight": 5.0}
    other = changed(TrainConfig, values, changes, "a block's set")
    assert (other.instances["slots"].settings(), other.pos.dropout) == ({"dim": 7}, 0.3)
    assert other.balancer.weights == {"slots": 5.0}
    (tmp_path / "study.yaml").write_text(f"train:{SHORT}".replace("\n", "\n  ") + "\nseeds: [1]\ngrid: []\n")
    study = configured("mtl study", StudyConfig, [str(tmp_path / "study.yaml"), "--train.tasks.slots.dim=8"])
    assert study.train.instances["slots"].settings() == {"dim": 8}
    (tmp_path / "study.yaml").write_text("train:\n  tasks:\n    a: {kind: spanz}\n")
    with pytest.raises(InputError, match=r"line 3: train\.instances\.a\.kind: unknown 'spanz'"):
        configured("mtl study", StudyConfig, [str(tmp_path / "study.yaml")])


def test_a_whole_file_may_have_the_short_form(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(SHORT)
    assert list(read_configuration(TrainConfig, tmp_path / "config.yaml").chosen()) == [
        "pos",
        "intent",
        "slots",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_every_kind_can_be_copied_and_pickled(kind: str) -> None:
    task = instance("own", KINDS[kind], "layer")()
    assert pickle.loads(pickle.dumps(task)) == task
    assert copy.deepcopy(task) == task
    assert (task.name, task.layer, task.kind) == ("own", "layer" if task.layers else "words", kind)


def test_a_task_reads_and_writes_its_own_layer_alone() -> None:
    task = instance("own", KINDS["spans"], "own")()
    sentence = Sentence(("a", "b"), entities=(Span(0, 1, "X"),)).with_layers({"own": (Span(1, 2, "Y"),)})
    assert task.labels([sentence]).names == ("Y",)
    annotated = task.annotate(sentence, (Span(0, 2, "Z"),))
    assert annotated.entities == sentence.entities
    assert annotated.layer("own") == (Span(0, 2, "Z"),)
