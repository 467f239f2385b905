"""Tables of heads in notebooks: lists by name, pictures, and the heads to cut."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
from matplotlib.figure import Figure

import mtl
from mtl import HeadTable, ablate_heads, head_importance, lowest, plot_heads, prune_heads
from mtl.errors import InputError
from mtl.probes.sites import head_name, sites_of
from tests.mtl import tiny
from tests.mtl.commands.runs_for_commands import made_run

IDS = tiny.batch()[0]


def rows(model, batch):
    return model(batch).last_hidden_state.tanh().sum((1, 2))


@pytest.fixture(scope="module")
def importance() -> pl.DataFrame:
    return head_importance(tiny.model("bert"), [IDS], rows)


def test_the_lowest_heads_are_cut(importance: pl.DataFrame) -> None:
    of_measure = importance.filter(pl.col("measure") == "importance").sort("value")
    expected = {(row["layer"], row["head"]) for row in of_measure.head(5).iter_rows(named=True)}
    heads = lowest(importance, 5)
    assert {(layer, head) for layer, numbers in heads.items() for head in numbers} == expected
    model = tiny.model("bert")
    prune_heads(model, heads)
    assert model.config.pruned_heads == heads
    assert lowest(importance, 0) == {}
    assert lowest(importance, 12) == {layer: [0, 1, 2, 3] for layer in range(3)}
    assert lowest(importance, 5, measure="fisher") != heads


def test_losses_by_ablation_are_taken() -> None:
    table = ablate_heads(tiny.model("bert"), [IDS], rows, draws=1)
    [first] = table.sort("loss").head(1).iter_rows(named=True)
    assert lowest(table, 1) == {first["layer"]: [first["head"]]}
    title, highest, *_ = repr(HeadTable(table)).splitlines()
    assert title == "score lost without the head"
    last = table.sort("loss").row(-1, named=True)
    assert highest.split() == [f"L{last['layer']}H{last['head']}", f"{last['loss']:.4g}"]


def test_nan_is_no_value(importance: pl.DataFrame) -> None:
    lacking = pl.when(layer=0).then(float("nan")).otherwise("value").alias("value")
    table = HeadTable(importance.with_columns(lacking))
    assert table.values["layer"].unique().sort().to_list() == [1, 2]
    assert "nan" not in table._repr_html_()


def test_equal_heads_are_taken_in_their_order_and_sites_are_numbered() -> None:
    model = tiny.translator("bart")
    cells = [(kind, layer, head, 1.0) for kind in ("encoder", "cross") for layer in (0, 1) for head in (0, 1)]
    table = pl.DataFrame(cells, ["attention", "layer", "head", "value"], orient="row")
    assert lowest(table, 3, model=model) == {0: [0, 1], 4: [0]}
    named = HeadTable(table)._repr_html_()
    assert head_name(sites_of(table)[2], 1, sites_of(table)) == "cross L0H1"
    assert "cross L0H1" in named


def test_the_lowest_heads_of_several_kinds_are_cut() -> None:
    """Whatever rows there are, and in which order: a model's sites have numbers over all kinds."""
    model, given = tiny.translator("t5"), tiny.parallel_batch()

    def score(model, batch):
        return tiny.logits(model, batch).log_softmax(-1)[..., 5].sum(1)

    prune_heads(model, {1: [0, 1, 2, 3]})
    table = ablate_heads(model, [given], score, draws=1)
    for rows in (table, table.sort("loss"), table.filter(pl.col("attention") != "encoder")):
        expected = {
            (row["attention"], row["layer"], row["head"])
            for row in rows.sort("loss", maintain_order=True).head(4).iter_rows(named=True)
        }
        kinds = ("encoder", "decoder", "cross")
        found = lowest(rows, 4, model=model)
        assert {(kinds[site // 2], site % 2, head) for site in found for head in found[site]} == expected
        with pytest.raises(InputError, match=r"of sites run over all kinds .* use lowest\(…, model=MODEL\)"):
            lowest(rows, 4)
    with pytest.raises(InputError, match=r"the table has \w+ L\d, which the model lacks: use its own"):
        lowest(table, 4, model=tiny.model("bert"))


def test_a_notebook_shows_heads_by_name(importance: pl.DataFrame) -> None:
    table = ElementTree.fromstring(HeadTable(importance)._repr_html_())
    names = [row[0].text for row in table.findall("tr")]
    best = importance.filter(pl.col("measure") == "importance").sort("value", descending=True)
    expected = [f"L{layer}H{head}" for layer, head in best.select("layer", "head").iter_rows()]
    assert names == ["head", *expected]
    many = pl.DataFrame(
        [("self", 0, head, float(head)) for head in range(40)],
        ["attention", "layer", "head", "value"], orient="row",
    )  # fmt: skip
    table = ElementTree.fromstring(HeadTable(many)._repr_html_())
    assert [row[0].text for row in table.findall("tr")][9:13] == ["L0H31", "L0H30", "… 20 heads …", "L0H9"]


def test_intervals_of_losses_are_shown_where_they_are() -> None:
    cells = [("self", 0, 0, 0.25, 0.123, 0.5), ("self", 0, 1, 0.5, None, None)]
    table = HeadTable(
        pl.DataFrame(cells, ["attention", "layer", "head", "loss", "low", "high"], orient="row")
    )
    assert repr(table).splitlines()[1:] == ["L0H1  0.5", "L0H0  0.25 (0.12 to 0.5)"]
    shown = ElementTree.fromstring(table._repr_html_())
    assert [row[1].text for row in shown.findall("tr")][1:] == ["0.5", "0.25 (0.12 to 0.5)"]


def test_a_map_of_values(importance: pl.DataFrame) -> None:
    figure, axes = plot_heads(importance, measure="taylor")
    assert figure.axes[0] is axes
    assert axes.images[0].get_array().shape == (3, 4)
    assert figure.axes[1].get_ylabel() == "taylor"
    other = Figure()
    inner = other.subplots(1, 2)[1]
    assert plot_heads(importance, ax=inner) == (other, inner)


def test_a_map_has_the_kinds_in_the_order_of_the_model() -> None:
    kinds = {"encoder": 0.0, "decoder": 5.0, "cross": 3.0}
    cells = [(kind, layer, 0, value + layer) for kind, value in kinds.items() for layer in (0, 1)]
    table = pl.DataFrame(cells, ["attention", "layer", "head", "value"], orient="row")
    for rows in (table, table.sort("value"), table.reverse()):
        _, axes = plot_heads(rows)
        assert axes.images[0].get_array().flatten().tolist() == [0, 1, 5, 6, 3, 4]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"table": [1]}, "table: use one with a row per head"),
        ({"measure": "loss"}, "measure='loss': the table has only"),
        ({"task": "dep"}, "task='dep': the table has only"),
        ({"table": pl.DataFrame({"attention": ["self"], "layer": [0], "head": [0], "x": [1]})}, "neither a"),
        ({"table": pl.DataFrame({"attention": ["self"], "layer": [0], "head": [None], "value": [1]})},
         "it has no value of a head"),
        ({"table": pl.DataFrame({"attention": ["self"], "layer": [0], "head": [1.0], "value": [1]})},
         "whole numbers as layers and heads"),
        ({"table": pl.DataFrame({"attention": ["self"], "layer": [0], "head": [1], "value": ["1"]})},
         "and numbers as values"),
        ({"n": 13}, "n=13: the table has 12 heads"),
        ({"n": -1}, "n=-1: use a whole number of at least 0"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("as_installed")
def test_what_is_no_table_of_heads_is_one_line(changed, message, importance: pl.DataFrame) -> None:
    with pytest.raises(InputError, match=message):
        lowest(**{"table": importance, "n": 2, **changed})


def test_several_labels_need_a_choice() -> None:
    table = pl.DataFrame(
        [("attention", task, label, "self", 0, head, 0.5) for task in ("dep", "srl") for label in "ab"
         for head in (0, 1)],
        ["measure", "task", "label", "attention", "layer", "head", "value"], orient="row",
    )  # fmt: skip
    with pytest.raises(InputError, match=r"several tasks: choose one with task= \(dep, srl\)"):
        lowest(table, 1)
    with pytest.raises(InputError, match=r"several labels: choose one with label= \(a, b\)"):
        lowest(table, 1, task="dep")
    assert lowest(table, 1, task="dep", label="b") == {0: [0]}


@pytest.mark.slow
def test_a_notebook_shows_a_run(tiny_encoder: Path, tmp_path: Path) -> None:
    run = mtl.Run.open(made_run(tiny_encoder, tmp_path / "toy", tmp_path / "a<b"))
    table = ElementTree.fromstring(run._repr_html_())
    cells = {row[0].text: row[1].text for row in table}
    assert cells["run"] == str(tmp_path / "a<b")
    assert (cells["tasks"], cells["masks"], cells["state"]) == ("pos", "dynamic", "finished")
    assert cells["dev, pos"].startswith("accuracy ")
