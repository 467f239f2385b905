""""""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from transformers import PreTrainedModel

from mtl.collaborative import command
from mtl.collaborative.energy import captured_variance, energy_rows, mixing
from mtl.collaborative.energy_table import ENERGY, MATRICES, MIXING, components_needed, energy_curves
from mtl.collaborative.sharing import collaborate
from mtl.commands.main import main
from mtl.errors import InputError
from mtl.heads.prune import prune_heads
from mtl.models.encoder import Encoder
from mtl.runs.figures.table import draw
from tests.mtl import tiny
from tests.probes.figure_makers import TASKS, made_table
from tests.probes.palettes import require_palette
from tests.probes.test_figures_fit import faults

SIZE = tiny.HEAD_DIM


def by_numpy(matrix: np.ndarray) -> list[float]:
    squares = np.linalg.svd(matrix, compute_uv=False) ** 2
    return list(np.cumsum(squares) / squares.sum())


def captured(table: pl.DataFrame, layer: int, head: int | None, matrix: str) -> list[float]:
    chosen = table.filter(layer=layer, matrix=matrix).filter(
        pl.col("head").is_null() if head is None else pl.col("head") == head
    )
    assert chosen["component"].to_list() == list(range(1, chosen.height + 1))
    return chosen["captured"].to_list()


def check(table: pl.DataFrame, layer: int, queries: np.ndarray, keys: np.ndarray, sharing: int = 1) -> None:
    """`queries` and `keys` are inputs by heads x size; as many neighbouring heads share keys."""
    close = {"abs": 1e-9}
    every = [np.arange(SIZE) + SIZE * head for head in range(tiny.HEADS)]
    shared = [np.arange(SIZE) + SIZE * (head // sharing) for head in range(tiny.HEADS)]
    product = sum(queries[:, q] @ keys[:, k].T for q, k in zip(every, shared, strict=True))
    assert captured(table, layer, None, "query") == pytest.approx(by_numpy(queries), **close)
    of_keys = by_numpy(keys)
    assert captured(table, layer, None, "key")[: len(of_keys)] == pytest.approx(of_keys, **close)
    assert captured(table, layer, None, "product") == pytest.approx(by_numpy(product), **close)
    for head, (q, k) in enumerate(zip(every, shared, strict=True)):
        assert captured(table, layer, head, "query") == pytest.approx(by_numpy(queries[:, q]), **close)
        assert captured(table, layer, head, "key") == pytest.approx(by_numpy(keys[:, k]), **close)
        of_product = by_numpy(queries[:, q] @ keys[:, k].T)[:SIZE]
        assert captured(table, layer, head, "product") == pytest.approx(of_product, **close)


def weights(model: PreTrainedModel, path: str) -> np.ndarray:
    """A projection's weight, inputs by outputs."""
    module = model.base_model.get_submodule(path)
    weight = module.weight.detach().double().numpy()
    return weight if type(module).__name__ == "Conv1D" else weight.T


def test_separate_projections() -> None:
    model = tiny.model("bert")
    table = energy_rows(model, "tiny")
    assert table.schema == ENERGY
    assert table["model"].unique().to_list() == ["tiny"]
    for layer in range(tiny.LAYERS):
        path = f"encoder.layer.{layer}.attention.self"
        check(table, layer, weights(model, f"{path}.query"), weights(model, f"{path}.key"))


def test_fused_projections_in_blocks_and_by_head() -> None:
    model = tiny.model("gpt2")
    whole, width = weights(model, "h.1.attn.c_attn"), tiny.HEADS * SIZE
    check(energy_rows(model, "tiny"), 1, whole[:, :width], whole[:, width : 2 * width])
    model = tiny.model("gpt_neox")
    by_head = weights(model, "layers.1.attention.query_key_value").reshape(-1, tiny.HEADS, 3, SIZE)
    queries, keys = (by_head[:, :, part].reshape(-1, width) for part in (0, 1))
    check(energy_rows(model, "tiny"), 1, queries, keys)


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_keys_that_heads_share(name: str) -> None:
    model = tiny.model(name)
    if name == "llama":
        queries, keys = (weights(model, f"layers.0.self_attn.{part}_proj") for part in "qk")
    else:
        whole = weights(model, "layers.0.self_attn.qkv_proj")
        queries, keys = whole[:, : 4 * SIZE], whole[:, 4 * SIZE : 6 * SIZE]
    check(energy_rows(model, "tiny"), 0, queries, keys, sharing=2)


@pytest.mark.parametrize("name", tiny.EVERY)
def test_every_family_has_a_share_for_every_head(name: str) -> None:
    table = energy_rows(tiny.model(name), name)
    assert set(table.drop_nulls("head")["head"]) == set(range(tiny.HEADS))
    last = table.group_by("layer", "head", "matrix").agg(pl.col("captured").last())
    assert last.height == tiny.LAYERS * (tiny.HEADS + 1) * 3
    assert last["captured"].to_list() == pytest.approx([1.0] * last.height)


@pytest.mark.parametrize("name", ["bert", "olmo2"])
def test_heads_that_were_cut_have_no_rows_and_others_keep_theirs(name: str) -> None:
    model = tiny.model(name)
    before = energy_rows(model, "tiny")
    prune_heads(model, {0: [0, 2], 1: [0, 1, 2, 3]})
    table = energy_rows(model, "tiny")
    assert sorted(table.filter(layer=0)["head"].drop_nulls().unique()) == [1, 3]
    assert table.filter(layer=1).is_empty()
    for matrix in ("query", "key", "product"):
        assert captured(table, 0, 3, matrix) == pytest.approx(captured(before, 0, 3, matrix))


def test_sharing_all_components_leaves_products_as_they_are() -> None:
    model = tiny.model("bert")
    before = energy_rows(model, "tiny")
    collaborate(model, tiny.HEADS * SIZE)
    table = energy_rows(model, "tiny")
    assert captured(table, 1, None, "product") == pytest.approx(captured(before, 1, None, "product"))
    assert captured(table, 1, 2, "product")[:SIZE] == pytest.approx(captured(before, 1, 2, "product"))


def test_mixing_vectors_are_the_models() -> None:
    model = tiny.model("bert")
    with pytest.raises(InputError, match="the heads of tiny share no components"):
        mixing(model, "tiny")
    collaborate(model, 5, steps=3)
    prune_heads(model, {0: [1]})
    table = mixing(model, "tiny")
    assert table.schema == MIXING
    assert table.height == (3 * tiny.HEADS - 1) * 5
    weight = model.encoder.layer[0].attention.self.mixing  # heads 0, 2 and 3
    [value] = table.filter(layer=0, head=2, component=4)["value"]
    assert value == pytest.approx(weight[1, 4].item())


def test_components_needed() -> None:
    values = torch.tensor([3.0, 1.0, 2.0, 0.0])
    shares = captured_variance(values)
    assert shares.tolist() == pytest.approx([9 / 14, 13 / 14, 1, 1])
    assert captured_variance(torch.zeros(2)).tolist() == [1, 1]
    table = pl.DataFrame(
        {
            "model": "m", "attention": "self", "layer": 0, "head": None, "matrix": "query",
            "component": range(1, 5), "captured": shares.tolist(),
        },
        schema=ENERGY,
    )  # fmt: skip
    needed = components_needed(table)
    assert needed.select("needs_50", "needs_90", "needs_95", "of").row(0) == (1, 2, 3, 4)


def test_a_figure_has_a_line_per_model_and_panel() -> None:
    tables = [energy_rows(tiny.model("bert"), name) for name in ("one", "two")]
    figure = energy_curves(pl.concat(tables))
    assert len(figure.axes) == 6
    # Two models and the line at 90 %.
    assert all(len(axes.lines) == 3 for axes in figure.axes)
    alone = energy_curves(tables[0])
    assert [len(axes.lines) for axes in alone.axes] == [tiny.LAYERS + 2, 2] * 3


def test_encoders_that_were_loaded_are_measured(tiny_encoder) -> None:
    table = energy_rows(Encoder.from_pretrained(str(tiny_encoder)).transformer, "tiny")
    assert table.filter(pl.col("head").is_null(), matrix="query").height == tiny.LAYERS * tiny.HEADS * SIZE


def test_a_figures_suffix_may_be_in_capitals(tiny_encoder, tmp_path) -> None:
    assert main(["energy", str(tiny_encoder), f"--figure={tmp_path / 'energy.PDF'}"]) == 0
    assert (tmp_path / "energy.PDF").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_have_no_components(value: float) -> None:
    model = tiny.model("bert")
    model.encoder.layer[2].attention.self.key.weight.data[0, 0] = value
    names = list(model.state_dict())
    for call in (lambda: collaborate(model, 8, starts=1, steps=1), lambda: energy_rows(model, "bert")):
        with pytest.raises(InputError, match=r"key\.weight of L2 has values that are not finite"):
            call()
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_table_with_values_that_are_not_finite_is_not_drawn(bad: float, tmp_path: Path) -> None:
    row = {"model": "m", "attention": "self", "layer": 0, "head": None, "matrix": "key", "component": 1}
    pl.DataFrame([row | {"captured": bad}], schema=ENERGY).write_parquet(tmp_path / "energy.parquet")
    with pytest.raises(InputError, match="have values that are not finite: make them again with"):
        draw("energy", [tmp_path / "energy.parquet"])


def test_the_figure_does_not_depend_on_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", "energy", "runs", f"--out={tmp_path / 'x.pdf'}", "--tasks=pos"]) == 2
    refused = "the figure energy does not depend on --tasks: leave it out"
    assert refused in capsys.readouterr().err


def energy_figure(tasks: tuple[str, ...]) -> Figure:
    rows = [
        (f"runs/{task}", matrix, "self", 0, head, component, component / 4)
        for task in tasks for matrix in ("query", "key", "product") for head in (None, 0)
        for component in (1, 2, 3, 4)
    ]  # fmt: skip
    return energy_curves(
        made_table(rows, "model", "matrix", "attention", "layer", "head", "component", "captured")
    )


@pytest.mark.parametrize("count", [3, *(pytest.param(many, marks=pytest.mark.slow) for many in (1, 2, 5, 9))])
def test_the_figure_fits(count: int) -> None:
    assert faults(energy_figure(TASKS[:count])) == []


def test_the_figure_has_no_other_colour_than_those_of_the_chosen_palette() -> None:
    require_palette("energy", energy_figure, TASKS[:3])


def of_energy() -> pl.DataFrame:
    return pl.DataFrame(
        [
            ("m", "self", layer, head, matrix, 1, 2, 3)
            for layer in range(3)
            for head in (None, 0)
            for matrix in MATRICES
        ],
        ("model", "attention", "layer", "head", "matrix", "needs_50", "needs_90", "needs_95"),
        orient="row",
    )


def test_layers_have_names_on_the_terminal() -> None:
    console = Console(file=io.StringIO(), width=200)
    command._show("m", of_energy(), console)
    assert set(re.findall(r"L\d+", console.file.getvalue())) == {"L0", "L1", "L2"}
