"""Public functions of `mtl`: wrong arguments are one line and change nothing; types of others are taken."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor
from torch.masked import masked_tensor
from transformers import BatchEncoding

import mtl
from mtl import (
    Family,
    Stack,
    ablate_heads,
    head_importance,
    head_scale,
    prune_heads,
)
from mtl.config.schema import OptimizerConfig, TrainConfig
from mtl.errors import InputError
from mtl.heads.family_table import BERT
from mtl.models.joint import JointModel
from mtl.tasks.sentence import Sentence
from tests.kit.absent import public_names
from tests.mtl import tiny
from tests.mtl.analysis import worth

pytestmark = pytest.mark.usefixtures("as_installed")
SHAPE = (tiny.LAYERS, tiny.HEADS)


def rows(model: Any, batch: Any) -> Tensor:
    found: Tensor = model(batch).last_hidden_state.tanh().sum((1, 2))
    return found


IDS = tiny.batch()[0]


def observed() -> Any:
    return mtl.observe_heads(tiny.model("bert"), {"input_ids": IDS})


FILL = [torch.zeros(*IDS.shape, tiny.HEADS, tiny.HEAD_DIM)] * tiny.LAYERS
NAN = torch.full(SHAPE, torch.nan)
VALUES = pl.DataFrame({"attention": ["self"] * 2, "layer": [0] * 2, "head": [0, 1], "value": [0.5, 0.1]})
NO_TABLES = (None, 3, "imp.parquet", VALUES.drop("head"), VALUES.drop("value"), VALUES.clear())
GOOD: dict[str, dict[str, Any]] = {
    "prune_heads": {"heads": {0: [1]}, "scale": None, "keep_shape": False},
    "collaborate": {"dim": 8, "starts": 1, "steps": 1, "seed": 0, "advance": print},
    "head_scale": {"scale": torch.ones(SHAPE), "fill": FILL, "neighbours": 1},
    "head_importance": {"batches": [IDS], "loss": rows, "per": "example", "normalise": False, "steps": 0},
    "ablate_heads": {"batches": [IDS], "score": rows, "kind": "layer", "copies": 1, "draws": 1, "seed": 0},
    "load_pruned": {"name": "nowhere", "dtype": torch.float32},
    "load_exported": {"folder": "nowhere"},
    "export_onnx": {"out": "nowhere", "weights": "float32"},
    "JointModel.annotate": {"sentences": [["We", "ate"]], "max_words": 512, "tasks": ["pos"],
                            "probabilities": 2, "batch_tokens": 64, "threads": 1},
    "JointModel.annotate_text": {"text": "We ate.", "language": "en", "max_words": 512, "tasks": ["pos"],
                                 "probabilities": 2, "batch_tokens": 64, "threads": 1},
    "JointModel.annotate_stream": {"documents": ["We ate."], "language": "en", "max_words": 512,
                                   "tasks": ["pos"], "probabilities": 2, "batch_tokens": 64, "threads": 1,
                                   "window": 8, "return_exceptions": False},
    "translate_lines": {"lines": ["We"], "beam": 2, "length_penalty": 1.0, "beam_spread": None},
    "JointModel.from_pretrained": {
        "name": "nowhere", "attention": "sdpa", "dtype": None, "revision": None,
    },
    "JointModel.save_pretrained": {"folder": "nowhere"},
    "JointModel.push_to_hub": {"name": "someone/model"},
    "probe": {
        "target": "nowhere", "source": None, "out": None, "tasks": None, "split": "test",
        "centroids": "self", "constituents": "all", "accelerator": "cpu", "precision": "32-true",
        "instances": None,
    },
    "plot_attention": {
        "sentence": ["the", "dog"], "head": "L0H0", "view": "arcs", "relation": None, "translation": None,
        "task": None, "least": 0.1, "ax": None, "tokenizer": None,
    },
    "plot_heads": {"table": VALUES, "measure": None, "task": None, "label": None, "ax": None},
    "observe_heads": {"inputs": {"input_ids": IDS}, "tokenizer": None},
    "plot_patterns": {"observed": partial(observed), "of": "L1", "row": 0, "patches_of": None, "ax": None},
    "lowest": {"table": VALUES, "n": 1, "measure": None, "task": None, "label": None},
    "train": {"config": TrainConfig()},
}  # fmt: skip
"""Right arguments of every public function, without the model."""
HEADS: tuple[Any, ...] = (
    None, [[1], [], []], "0: [1]", 3, {0: 3}, {0: "1"}, {0: None}, {0: [1.0]}, {0: [True]}, {0: [None]},
    {0: ["1"]},
    {-1: [0]}, {tiny.LAYERS: [0]}, {0: [-1]}, {0: [tiny.HEADS]}, {0.0: [1]}, {True: [1]}, {"a": [1]},
    {None: [1]},
    {0: [1], 2: [9]}, {0: [1], "0": [2]}, {0: torch.tensor([1.0])}, {0: np.array([[1, 2]])}, {0: {1: 2}},
    {0: torch.tensor([True, False])}, {"1 ": [0]}, {"-1": [0]},
    {0: torch.tensor([1], device="meta")}, {0: [torch.tensor(1, device="meta")]},
    {torch.tensor(0, device="meta"): [1]},
)  # fmt: skip
OUTPUT = ("encoder.layer.{}.attention.self", "^.output.dense")
FAMILY: tuple[Any, ...] = (
    3, b"bert", "nofamily", {}, Family, Stack,
    *(partial(Family, stacks) for stacks in ((), 3, BERT.stacks * 2, list(BERT.stacks))),
    *(partial(Family, (Stack(*stack),)) for stack in (
        ("self", "encoder.layer", "o"), ("self", "nowhere.{}", "o"), ("a b", *OUTPUT), ("", *OUTPUT),
        ("self", OUTPUT[0], "^.output.LayerNorm"), ("self", OUTPUT[0], "^.output.none"),
        ("self", *OUTPUT, "depth"), ("self", *OUTPUT, "num_hidden_layers", "depth"),
        ("self", *OUTPUT, "num_hidden_layers", "num_attention_heads", "hidden_size", "vision_config"),
        ("self", "encoder.layer.{}.intermediate", "^.output.dense"),
    )),
    *(partial(replace, BERT, **change) for change in (
        {"fused": "rows"}, {"query": 3}, {"causal": "no"}, {"layer_groups": True}, {"head_counts": "heads"},
        {"position_bias": None},
    )),
)  # fmt: skip
"""Wrong for BERT wherever its heads are found."""
TO_CUT: tuple[Any, ...] = tuple(
    partial(replace, BERT, **change)
    for change in (
        {"query": "q_proj"}, {"fused": "blocks"}, {"fused": "heads"}, {"norms_by_head": ("value",)},
        {"other_head_rows": ("dropout", "key"), "query": "none"}, {"bias_by_head": ("output.dense.weight",)},
    )
)  # fmt: skip
"""Wrong for BERT where heads are cut or copied."""
RULES = (
    3, {}, ["pos"], "", "nowhere.yaml", {"posx": {}}, {3: {}}, {"pos": None},
    {"pos": {"force": {"We": "x y"}}},
    {"pos": {"force": {3: "NN"}}}, {"pos": {"keep": {}}}, {"pos": {"force": {"We": 3}}},
    {"pos": {"forbid": [""]}},
)  # fmt: skip
TASKS = ("pos", b"pos", 3, [], [3], ["dep"], {"pos": 1}, [None])
COUNT = (0, -1, 1.5, True, None, "2", [1], torch.tensor(2, device="meta"))
SEED = (-1, 1.5, None, True, "a", 2**70, torch.tensor(2, device="meta"))
CALLS = itertools.count()
NO_PLAIN = (torch.ones(SHAPE).to_sparse(), torch.ones(SHAPE, device="meta"))
WRONG: dict[str, dict[str, tuple[Any, ...]]] = {
    "prune_heads": {
        "heads": HEADS,
        "scale": (torch.ones(3), torch.ones(4, 5), NAN, "half", {}, [[1.0] * 4],
        torch.ones(SHAPE, dtype=torch.complex64), *NO_PLAIN),
        "keep_shape": (1, 0, None, "no"),
        "family": (*FAMILY, *TO_CUT),
    },
    "collaborate": {
        "dim": (*COUNT, 33), "starts": COUNT, "steps": (-1, 1.5, True, None), "seed": SEED,
        "advance": (None, 3), "family": (*FAMILY, *TO_CUT),
    },
    "head_scale": {
        "scale": (
            None, "a", torch.ones(6), torch.ones(4, 6), torch.ones(4, 3), torch.ones(4, 1, 6, 1, 1), NAN,
            np.ones((4, 6)), *NO_PLAIN,
            [[1.0] * 6] * 4, {0: [1]}, torch.ones(SHAPE, dtype=torch.complex64), [["a"] * 4] * 3, [[1.0],
            [1.0, 2.0]],
        ),
        "fill": (
            3, "outputs", {}, FILL[0], FILL[:2], [torch.ones(SHAPE)] * 3, [None] * 3, [torch.ones(4)] * 3,
            [part[:2] for part in FILL], [part[:, :5] for part in FILL], [part + torch.nan for part in FILL],
        ),
        "neighbours": COUNT, "family": FAMILY,
    },
    "head_importance": {
        "batches": (None, 3, "ab", [], IDS, {"input_ids": IDS}, BatchEncoding({"input_ids": IDS})),
        "loss": (
            None, "nll", lambda m, b: rows(m, b).mean(), lambda m, b: rows(m, b)[:2], lambda m, b: rows(m,
            b).detach(),
            lambda m, b: None, lambda m, b: rows(m, b) * torch.nan, lambda m, b: m(b), lambda m,
            b: m(b).last_hidden_state,
        ),
        "per": ("sentence", None, 3), "normalise": (1, None, "yes"), "steps": (-1, 1.5, True, None, "2"),
        "family": FAMILY,
    },
    "ablate_heads": {
        "batches": (None, 3, "ab", [], IDS, {"input_ids": IDS}, BatchEncoding({"input_ids": IDS})),
        "score": (
            None, "accuracy", lambda m, b: rows(m, b).mean(), lambda m, b: rows(m, b)[:2], lambda m, b: None,
            lambda m, b: rows(m, b) * torch.nan, lambda m, b: m(b), lambda m, b: 1.0, lambda m, b: ["a"] * 4,
            lambda m, b: rows(m, b) + torch.rand(4), lambda m, b: rows(m, b) + next(CALLS),
            lambda m, b: [rows(m, b), 1.0], lambda m, b: [rows(m, b)[0], rows(m, b)[:2]],
        ),
        "kind": ("heads", None, 1, "chosen"), "copies": COUNT, "draws": COUNT, "seed": SEED, "family": FAMILY,
    },
    "load_pruned": {
        "name": (None, 3, "nowhere", Path("nowhere"), b"x", ["a"]),
        "dtype": ("int8", None, torch.int8, 32), "revision": ("main",), "family": FAMILY[:4],
        **{key: (None, {}, True) for key in (
            "config", "state_dict", "output_loading_info", "ignore_mismatched_sizes", "key_mapping"
        )},
    },
    "load_exported": {"folder": (None, 3, "nowhere", Path("nowhere"), b"x", ".")},
    "export_onnx": {"out": (None, 3, b"x", "."), "weights": ("int4", None, torch.int8, 8)},
    "translate_lines": {
        "lines": (None, 3, "We ate", b"We", [3], [None], [["We"]]),
        "beam": (0, -1, 1.5, True, "5", 1001), "length_penalty": ("1", 101, NAN, [1.0], math.nan),
        "beam_spread": ("1", -1, 1001, [1.0], True, math.nan),
    },
    "JointModel.annotate": {
        "sentences": (
            None, 3, "We ate", b"We ate", ["We ate"], ["We", "ate"], [["We", ""]], [["We", " "]],
            [["We", 1]], [["We", None]],
            [[1, 2]], [[]], [None], [3], {"a": 1}, [{"We": 1}], [["We", b"ate"]], [[["We"]]], [["We\n"]],
            [("We", "\ud800")],
            [{"We", "ate"}], [["We", "ate"], "We ate"],
        ),
        "max_words": (0, -1, 1.5, True, None, "5", 1), "tasks": TASKS,
        "probabilities": (0, -1, 1.5, True, "5"),
        "batch_tokens": (0, -1, 1.5, True, "5"), "threads": (0, -1, 1.5, True, "5", 10**9), "rules": RULES,
    },
    "JointModel.annotate_text": {
        "text": (None, 3, b"We ate.", ["We ate."], ("We", "ate"), "We \ud800"),
        "language": (None, 3, "", "english", "EN"),
        "max_words": (0, -1, 1.5, True, None, "5", 1), "tasks": TASKS,
        "probabilities": (0, -1, 1.5, True, "5"),
        "batch_tokens": (0, -1, 1.5, True, "5"), "threads": (0, -1, 1.5, True, "5", 10**9), "rules": RULES,
    },
    "JointModel.annotate_stream": {
        "documents": (None, 3, "We ate.", b"We ate.", {"We ate.": 1}, {"We ate."}, Sentence(("We",)),
                      ["We \ud800"],
                      [b"We ate."], [None], [3], [[]], [["We", 3]], [[["We"]]], ["We ate.", {"We"}]),
        "language": (None, 3, "", "english", "EN"),
        "max_words": (0, -1, 1.5, True, None, "5", 1), "tasks": TASKS,
        "probabilities": (0, -1, 1.5, True, "5"),
        "batch_tokens": (0, -1, 1.5, True, "5"), "threads": (0, -1, 1.5, True, "5", 10**9), "rules": RULES,
        "window": (0, -1, 1.5, True, None, "5"), "return_exceptions": (None, 1, "yes"),
    },
    "JointModel.from_pretrained": {
        "name": (None, 3, "nowhere", Path("nowhere"), b"x", "."), "attention": ("flash", None, 3),
        "dtype": ("int8", torch.int8, 32), "revision": ("main",),
    },
    "JointModel.save_pretrained": {"folder": (None, 3, b"x", __file__)},
    "JointModel.push_to_hub": {"name": (None, 3, Path("a/b"), "a b", "a/b/c")},
    "probe": {
        "target": (None, 3, b"x", "nowhere"), "source": ("data", 3), "out": (3, b"x"),
        "tasks": (["posx"], "pos", [3]), "split": ("tset", None, 3), "centroids": ("all", None),
        "constituents": ("every", None, 3),
        "accelerator": ("tpu", None), "precision": ("16-true", None), "masks": ("no", None, 1),
        "final_special": ("no", None, 1), "instances": (3, "own", ["own"], {"own": "tags"}, {3: None}),
    },
    "plot_attention": {
        "sentence": (None, 3, b"We", "", "We ate. It slept.", [], [1], ["We", ""], Sentence(())),
        "head": (None, 3, "L9H9", "L0", "x", ["L0H0"]), "view": ("heat",),
        "relation": ("nsubj", 3, ["nsubj"]), "translation": ("x", 3), "task": ("ner", 3),
        "least": (2, -1, "a", True, None), "ax": (3, "a"), "tokenizer": (3, tiny.tokenizer),
    },
    "plot_heads": {
        "table": NO_TABLES, "measure": ("loss", 3), "task": ("dep", 3), "label": ("det", 3), "ax": (3, "a"),
    },
    "observe_heads": {
        "inputs": (
            None, 3, "We ate", ["We", "ate"], [], ["a", 3], {}, {"input_ids": [[1]]}, {"ids": IDS},
            {"input_ids": IDS + 10**6}, IDS,
        ),
        "tokenizer": (3, "bert", object(), tiny.tokenizer), "family": FAMILY,
    },
    "plot_patterns": {
        "observed": (None, 3, IDS), "of": (3, "L9", "L0H9", "cross L0", "H0", ""), "row": (-1, 4, 0.5, None),
        "patches_of": (-1, 99, 0, "a"), "ax": (3, "a"),
    },
    "lowest": {
        "table": NO_TABLES, "n": (*COUNT[1:], 3), "measure": ("loss", 3), "task": ("dep", 3),
        "label": ("det", 3), "model": (3, "bert", torch.nn.Linear(2, 2)), "family": (3, "nofamily"),
    },
    "train": {
        "config": (
            None, {"tasks": ["pos"]}, partial(TrainConfig, tasks=("posx",)),
            partial(TrainConfig, max_epochs="two"), partial(TrainConfig, encoder="minilm"),
            partial(TrainConfig, optimizer=OptimizerConfig(encoder_lr=-1.0)),
        ),
    },
}  # fmt: skip
"""Per function and argument, values that are wrong."""


class Unwritable:
    """An object that cannot be written as text, such as a half-made one of another program."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


OF_EVERY_KIND: tuple[Any, ...] = (
    10**5000, -(10**30), Unwritable(), b"ab", bytearray(b"a"), {0: [10**30]}, {"9" * 5000: [0]},
    {0: [Unwritable()]},
    {b"0": [1]}, pl.Series([1, 2]), pl.DataFrame({"a": [1]}), np.array([None, 1], dtype=object), ..., int,
)  # fmt: skip
"""Values that are wrong for every argument below; of functions, those that cannot be called."""
OF_ANY_VALUE = {
    "prune_heads": ("heads", "keep_shape"),
    "collaborate": ("dim", "seed"),
    "load_pruned": ("dtype", "revision"),
    "load_exported": ("folder",),
    "export_onnx": ("out", "weights"),
    "head_scale": ("scale", "neighbours"),
    "head_importance": ("batches", "loss", "per", "normalise", "steps"),
    "ablate_heads": ("batches", "score", "kind", "copies", "draws", "seed"),
    "translate_lines": ("lines", "beam", "length_penalty"),
    "JointModel.annotate": ("sentences", "max_words", "tasks", "batch_tokens", "threads", "rules"),
    "JointModel.annotate_text": (
        "text",
        "language",
        "max_words",
        "tasks",
        "batch_tokens",
        "threads",
        "rules",
    ),
    "JointModel.annotate_stream": (
        "documents",
        "language",
        "max_words",
        "tasks",
        "batch_tokens",
        "threads",
        "rules",
        "window",
        "return_exceptions",
    ),
    "JointModel.from_pretrained": ("name", "attention", "dtype", "revision"),
    "JointModel.save_pretrained": ("folder",),
    "JointModel.push_to_hub": ("name", "revision"),
    "probe": (
        "target",
        "source",
        "out",
        "tasks",
        "split",
        "centroids",
        "accelerator",
        "precision",
        "instances",
    ),
    "plot_attention": ("sentence", "head", "view", "task", "least", "ax", "tokenizer"),
    "plot_heads": ("measure", "task", "label", "ax"),
    "observe_heads": ("tokenizer", "family"),
    "plot_patterns": ("observed", "of", "row", "patches_of", "ax"),
    "lowest": ("n", "measure", "task", "label", "family"),
    "train": ("config",),
}
for rows_of_names in (GOOD, WRONG, OF_ANY_VALUE):
    for gone in {*mtl.__all__} - {*public_names()}:
        rows_of_names.pop(gone, None)


@pytest.fixture(scope="module")
def joint(toy: Path) -> JointModel:
    return worth.joint_model(toy, ("pos",))


UNCHANGED: list[tuple[Any, dict[str, Tensor], str]] = []
"""A model that was given to calls which were all refused and changed nothing, its weights and settings."""


def refused(name: str, joint: JointModel, argument: str, value: Any, number: int | None = None) -> None:
    """Require that a wrong argument is refused in one line, and changes nothing."""
    case = f"{name}, {argument}, value {'' if number is None else number} of {type(value)}"
    try:
        call(name, joint, **{**GOOD[name], argument: value})
    except InputError as error:
        message = str(error)
    except Exception as error:
        error.add_note(case)
        raise
    else:
        pytest.fail(f"{case}: it is taken")
    assert "\n" not in message, case
    assert 10 < len(message) < 400, case


def call(name: str, joint: JointModel, /, **given: Any) -> Any:
    """Call a public function on a model as it was made; wrong arguments must leave the model as it was.

    An argument that only an installed package lets one make is made here.
    """
    given = {key: value() if isinstance(value, partial) else value for key, value in given.items()}
    if name.startswith("JointModel.") or name in (
        "load_exported",
        "load_pruned",
        "lowest",
        "plot_heads",
        "plot_patterns",
        "probe",
        "train",
    ):
        owner = mtl if "." not in name else JointModel if name.endswith("from_pretrained") else joint
        found = getattr(owner, name.rpartition(".")[2])(**given)
        return list(found) if name.endswith("annotate_stream") else found
    if name in ("export_onnx", "plot_attention", "translate_lines"):
        return getattr(mtl, name)(joint, **given)
    if not UNCHANGED:
        model = tiny.model("bert")
        UNCHANGED.append((model, copy.deepcopy(model.state_dict()), str(model.config)))
    model, before, config = UNCHANGED.pop()
    try:
        if name == "head_scale":
            with head_scale(model, **given):
                return model(IDS)
        return getattr(mtl, name)(model, **given)
    except Exception:
        after = model.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)
        assert str(model.config) == config
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert not any(module._forward_pre_hooks for module in model.modules())
        UNCHANGED.append((model, before, config))
        raise


def public() -> set[str]:
    """The public functions, and the public methods of classes that make or use a model."""
    methods = {
        f"{name}.{method}"
        for name in public_names()
        if isinstance(getattr(mtl, name), type)
        for method in (
            "annotate",
            "annotate_text",
            "annotate_stream",
            "from_pretrained",
            "save_pretrained",
            "push_to_hub",
        )
        if hasattr(getattr(mtl, name), method)
    }
    return {name for name in public_names() if not isinstance(getattr(mtl, name), type)} | methods


OF_OTHERS = {
    "cache_dir", "token", "local_files_only", "private", "commit_message", "create_pr",
    "console", "inputs", "material", "observers", "progress",
}  # fmt: skip
"""Arguments that huggingface_hub judges, and objects of this program for programs that share them."""


def test_every_public_function_has_its_rows() -> None:
    assert public() == set(GOOD) == set(WRONG)
    for name, arguments in WRONG.items():
        owner, _, function = name.rpartition(".")
        parameters = inspect.signature(getattr(JointModel if owner else mtl, function)).parameters.values()
        named = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} - {"model", "self"}
        assert named - OF_OTHERS - {"revision"} <= set(arguments), name
        assert set(GOOD[name]) <= named, name
    assert set(dir(mtl)) >= {*mtl.__all__, "__version__"}
    assert mtl.__version__
    with pytest.raises(AttributeError):
        mtl.nothing  # noqa: B018


CASES = [(name, argument) for name, arguments in WRONG.items() for argument in arguments]


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_wrong_arguments_are_one_line_and_change_nothing(name, argument, joint) -> None:
    for number, value in enumerate(WRONG[name][argument]):
        refused(name, joint, argument, value, number)


@pytest.mark.parametrize("name", OF_ANY_VALUE)
def test_values_of_no_argument_are_one_line(name, joint) -> None:
    for argument in OF_ANY_VALUE[name]:
        for value in OF_EVERY_KIND:
            if callable(value) and argument in ("loss", "score"):
                continue
            refused(name, joint, argument, value)


@pytest.mark.parametrize("name", ["x" * 5000, "a\nb", "no/such\x1bmodel"])
def test_a_name_of_a_model_leaves_the_message_on_one_line(name) -> None:
    with pytest.raises(InputError, match=r"^cannot load ") as caught:
        mtl.load_pruned(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "heads",
    [
        {np.int64(0): np.array([1, 2])}, {torch.tensor(0): torch.tensor([1, 2])}, json.loads('{"0": [1, 2]}'),
        {0: {1, 2}}, {0: (2, 1, 1)}, {0: range(1, 3)}, {0: iter([1, 2])},
        {0: np.array([1, 2], dtype=np.uint8)},
        {0: torch.tensor([0, 1, 1, 0]).nonzero().flatten()}, SimpleNamespace(heads={0: [1, 2]}).heads,
        {0: [np.int32(1), torch.tensor(2)]},
    ],
)  # fmt: skip
def test_heads_of_other_types_are_recorded_as_plain_integers(heads, tmp_path) -> None:
    model = tiny.model("bert")
    prune_heads(model, heads)
    assert model.config.pruned_heads == {0: [1, 2]}
    assert json.dumps(model.config.pruned_heads) == '{"0": [1, 2]}'
    model.save_pretrained(tmp_path)
    assert torch.equal(mtl.load_pruned(tmp_path, torch.float64)(IDS)[0], model(IDS)[0])


@pytest.mark.parametrize(
    "scale",
    [
        np.ones(SHAPE),
        [[1.0] * 4] * 3,
        torch.ones(SHAPE, dtype=torch.long),
        torch.ones(SHAPE, dtype=torch.bool),
        np.ma.masked_array(np.ones(SHAPE), mask=False),
        np.ones(SHAPE)[::-1],
        pl.DataFrame(np.ones(SHAPE)),
        [torch.ones(4, requires_grad=True), [torch.tensor(1.0)] * 4, [1.0] * 4],
    ],
)
def test_scales_of_other_types_are_taken(scale) -> None:
    model = tiny.model("bert")
    with torch.no_grad(), head_scale(model, scale):
        scaled = model(IDS)[0]
    assert torch.equal(scaled, model(IDS)[0])
    prune_heads(model, {}, scale)


def hiding(values: Any) -> list[Any]:
    """Array-likes whose values are not what they hold: masked out, missing, or of no type of numbers."""
    values = np.asarray(values, dtype=float)
    mask = np.zeros(values.shape, dtype=bool)
    mask.flat[-1] = True
    masked = np.ma.masked_array(values, mask)
    rows: list[Any] = [[None, *row[1:]] for row in np.atleast_2d(values).tolist()]
    rows = rows if values.ndim > 1 else rows[0]
    objects = values.astype(object)
    plain = torch.as_tensor(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them prototypes
        prototypes = [
            masked_tensor(plain, torch.as_tensor(~mask)),
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        ]
    return [
        *prototypes, masked, masked.astype(np.float32), masked.astype(int), masked.astype(object),
        np.ma.masked_all(values.shape), list(masked), tuple(masked), [np.ma.masked] * len(values),
        {"a": masked},
        np.array(rows, dtype=object), rows, objects * (1 + 0j), values + 1j, np.full(values.shape, np.nan),
        values.astype(str), values.astype(bytes), values.astype("datetime64[s]"),
        values.astype([("value", float)]), values.astype([("value", float)]).view(np.recarray),
        plain.to_sparse(), plain.to("meta"), pl.DataFrame(rows, orient="row"), pl.Series(rows),
    ]  # fmt: skip


def test_values_that_are_not_what_is_held_are_one_line(joint) -> None:
    """Masked arrays, arrays of objects and records, and series with gaps, wherever numbers are taken."""
    numbers = {
        "copies", "seed", "draws", "noise", "dim", "starts", "steps", "neighbours", "max_words",
        "probabilities", "normalise", "keep_shape",
    }  # fmt: skip
    cases: list[tuple[str, str, Any]] = []
    for name, arguments in GOOD.items():
        for argument in numbers & set(arguments):
            single = [np.ma.masked, np.ma.masked_array(1, True), np.array("1"), pl.Series([None])]
            cases += [(name, argument, value) for value in [*single, *hiding([1.0])]]
        cases += [(name, "scale", value) for value in hiding(np.ones(SHAPE)) if "scale" in arguments]
        if "heads" in arguments:
            heads = [value for value in hiding([0.0, 1.0]) if not isinstance(value, Tensor)]
            cases += [(name, "heads", {0: value}) for value in heads]
        for argument in {"score", "loss"} & set(arguments):
            cases += [(name, argument, lambda *_, value=value: value) for value in hiding(np.ones(len(IDS)))]
    for name, argument, value in cases:
        with warnings.catch_warnings():
            refused(name, joint, argument, value)


def test_masked_batches_stay_masked_in_copies() -> None:
    batch = np.ma.masked_array(IDS.numpy(), mask=IDS.numpy() == 0)

    def score(model: Any, given: Any) -> Tensor:
        assert np.ma.is_masked(given)
        return rows(model, torch.as_tensor(given.filled(0)))

    once, thrice = (ablate_heads(tiny.model("bert"), [batch], score, copies=n, draws=1) for n in (1, 3))
    assert thrice["loss"].to_list() == pytest.approx(once["loss"].to_list(), abs=1e-9)


MASK = tiny.batch()[1]


class Pair(NamedTuple):
    ids: Tensor
    mask: Tensor


@dataclass
class Record:
    ids: Tensor
    mask: Tensor


BATCHES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "mapping": ({"ids": IDS, "mask": MASK}, lambda b: (b["ids"], b["mask"])),
    "tuple": ((IDS, MASK), lambda b: b),
    "list": ([IDS, MASK], lambda b: b),
    "None beside": ({"ids": IDS, "types": None, "mask": MASK}, lambda b: (b["ids"], b["mask"])),
    "texts beside": ({"ids": IDS, "mask": MASK, "text": ["a", "b", "c", "d"]},
    lambda b: (b["ids"], b["mask"])),
    "a number beside": ({"ids": IDS, "mask": MASK, "t": torch.tensor(2.0), "n": 3},
    lambda b: (b["ids"], b["mask"])),
    "encoding": (BatchEncoding({"ids": IDS, "mask": MASK}), lambda b: (b.ids, b.mask)),
    "arrays": ({"ids": IDS.numpy(), "mask": MASK.numpy()},
    lambda b: map(torch.as_tensor, (b["ids"], b["mask"]))),
    "rows": ([IDS[0], IDS[1]], lambda b: (torch.stack(list(b)), None)),
    "object": (SimpleNamespace(ids=IDS, mask=MASK), lambda b: (b.ids, b.mask)),
    "named tuple": (Pair(IDS, MASK), lambda b: (b.ids, b.mask)),
    "data class": (Record(IDS, MASK), lambda b: (b.ids, b.mask)),
    "nested": ({"x": (IDS, MASK), "y": IDS}, lambda b: (b["y"], None)),
}  # fmt: skip


@pytest.mark.parametrize("kind", BATCHES)
def test_batches_of_every_kind(kind) -> None:
    batch, parts = BATCHES[kind]
    model = tiny.model("bert")

    def score(model: Any, given: Any) -> Tensor:
        ids, mask = parts(given)
        found: Tensor = model(ids, mask).last_hidden_state.tanh().sum((1, 2))
        return found

    one, several = (ablate_heads(model, [batch], score, copies=copies, draws=1)["loss"] for copies in (1, 4))
    assert several.to_list() == pytest.approx(one.to_list(), abs=1e-9)
    assert one.abs().min() > 0
    assert head_importance(model, (batch for _ in range(2)), score).height == 3 * 12


def test_words_of_other_types_are_plain_strings(joint) -> None:
    expected = joint.annotate([["We", "ate"]])
    for words in (("We", "ate"), np.array(["We", "ate"]), (word for word in ("We", "ate")), expected[0]):
        [found] = joint.annotate([words])
        assert found == expected[0]
        assert all(type(word) is str for word in found.words)
    assert joint.annotate(iter([["We", "ate"]])) == joint.annotate((("We", "ate"),)) == expected
    assert joint.annotate([]) == []


def test_the_second_sentence_of_a_pair_begins_within_it(joint) -> None:
    for second in (-1, 0, 2):
        with pytest.raises(InputError, match=f"sentence 1: 'second' is {second}; the second sentence of a"):
            joint.annotate([Sentence(("a", "b"), second=second)])


def test_probabilities_come_beside_the_same_annotations(joint) -> None:
    words = [["We", "ate", "."], ["Go"], ["A", "b", "c", "d"]]
    found = joint.annotate(words, probabilities=2)
    assert [sentence for sentence, _ in found] == joint.annotate(words)
    for sentence, items in found:
        assert list(items) == [name for name, task in joint.tasks.items() if task.annotated(sentence)]
        assert all(0 <= item.start < item.end <= len(sentence) for of in items.values() for item in of)
        assert all(1 <= len(item.best) <= 2 for of in items.values() for item in of)
