"""Tables of three kinds of attention give what one kind with as many layers gives, each head in its place."""

from __future__ import annotations

from typing import get_args

import numpy as np
import polars as pl
import pytest

from mtl.config.schema import Kind
from mtl.probes import sites
from mtl.probes.figures.head_maps import head_label_heatmap
from mtl.probes.figures.masks import gates_over_time, grey_overlap, mask_picture, rgb_overlap
from mtl.probes.report.head_maps import head_map, heads_data
from mtl.probes.sites import Site, cell_names, grid, layer_name, shape_text, sites_of
from mtl.probes.statistics.head_values import heads_of_roles, skills
from mtl.probes.statistics.masks import correlation_table, final_masks, task_overlaps
from mtl.probes.tables import heads_table
from tests.probes import worlds
from tests.probes.worlds import KINDS, with_kinds

LAYERS, HEADS = 6, 3
SITES = tuple(Site(kind, layer) for kind in KINDS for layer in range(2))
TASKS, SEEDS = ("pos", "dep"), (1, 2, 3)


@pytest.fixture
def gates():
    """Masks of one kind of attention with six layers of three heads; about half of the heads open."""
    gate = np.random.default_rng(5).random((2, 3, LAYERS, HEADS))
    return worlds.gates(np.where(gate < 0.5, 0, gate), TASKS, SEEDS)


@pytest.fixture
def heads():
    """Probes of as many heads, alone and jointly, with different values everywhere."""
    value = np.random.default_rng(6).uniform(0.35, 0.95, (2, 3, 2, 2, LAYERS, HEADS))
    return pl.concat(
        [worlds.heads(value[0], "stl", TASKS, SEEDS), worlds.heads(value[1], "joint", TASKS, SEEDS)]
    )


def test_sites_are_in_the_order_of_the_table(gates):
    assert sites_of(with_kinds(gates)) == SITES
    assert [layer_name(site, SITES) for site in SITES[:3]] == ["encoder L0", "encoder L1", "decoder L0"]
    assert layer_name(Site("self", 2), [Site("self", 2)]) == "L2"
    assert shape_text(SITES, HEADS) == "2 encoder, 2 decoder and 2 cross layers of 3 heads"
    assert shape_text(sites_of(gates), HEADS) == "6 layers of 3 heads"


def test_masks_keep_their_kinds_apart(gates):
    flat, _ = final_masks(gates)
    masks, notes = final_masks(with_kinds(gates))
    assert (masks.sites, notes) == (SITES, ())
    np.testing.assert_array_equal(masks.gate, flat.gate)
    np.testing.assert_array_equal(masks.opened, flat.opened)
    np.testing.assert_array_equal(masks.claimed(), flat.claimed())
    assert task_overlaps(masks).equals(task_overlaps(flat))
    assert correlation_table(masks).equals(correlation_table(flat))


def test_masks_of_another_kind_are_of_another_shape(gates):
    mixed = pl.concat([gates.filter(pl.col("seed") == 1), with_kinds(gates).filter(pl.col("seed") == 2)])
    with pytest.raises(ValueError, match="masks of different shapes"):
        final_masks(mixed)


def test_skills_have_the_chance_level_of_their_own_head(heads):
    values = heads.drop_nulls("layer")
    shuffled = values.with_columns(
        measure=pl.lit("attention_offset"), value=pl.col("value") - 0.01 * (1 + pl.col("layer"))
    )
    table = skills(with_kinds(pl.concat([values, shuffled])))
    expected = skills(pl.concat([values, shuffled]))
    names = ["attention", "layer"]
    assert table.drop(names).equals(expected.drop(names))
    np.testing.assert_allclose(table["skill"], 0.01 * (1 + expected["layer"]))
    assert table.select(*names).head(len(SITES) * HEADS).rows() == [site for site in SITES for _ in "abc"]


def test_best_heads_and_roles_name_the_kind(heads):
    run = heads.filter((pl.col("regime") == "stl") & (pl.col("seed") == 1))
    flat, best = (
        heads_table.best_heads(table.select("choice", *run.columns))
        for table in (run.with_columns(choice=pl.lit("")), with_kinds(run.with_columns(choice=pl.lit(""))))
    )
    assert best.drop("attention", "layer").equals(flat.drop("attention", "layer"))
    place = [SITES[layer] for layer in flat["layer"]]
    assert best.select("attention", "layer").rows() == place
    lines = heads_table.markdown_summaries(best, heads_table.weighted_means(best))
    assert f"| {place[0].attention} L{place[0].layer}H{best['head'][0]} |" in lines
    positional = run.drop_nulls("layer").filter(pl.col("label") == "label 0", pl.col("task") == "dep")
    positional = positional.with_columns(
        measure=pl.lit("positional"), value=pl.when(layer=4, head=1).then(0.95).otherwise(0.5)
    )
    held = heads_of_roles(with_kinds(positional))
    assert held.select("attention", "layer", "head", "value").rows() == [("cross", 0, 1, 0.95)]


def colours(figure, axes):
    """The greys of all cells of a picture of heads; off-centre, where nothing else is drawn."""
    from mtl.probes.figures.style import pixels

    image = pixels(figure)
    where = axes.transData.transform(
        [(head + 0.2, site + 0.2) for site in range(LAYERS) for head in range(HEADS)]
    )
    drawn = image[len(image) - 1 - where[:, 1].astype(int), where[:, 0].astype(int), 0]
    return drawn.reshape(LAYERS, HEADS).astype(int)


NAMED = ["encoder 0", "1", "decoder 0", "1", "cross 0", "1"]


def test_pictures_of_masks_have_a_row_for_each_layer_of_each_kind(gates):
    masks, _ = final_masks(with_kinds(gates))
    one = with_kinds(gates.filter(pl.col("seed") == 1))
    pictures = [
        (grey_overlap(masks.gate[:, 0], masks.sites), masks.gate[:, 0].mean(0)),
        (rgb_overlap(masks.gate[0], masks.sites, ("1", "2", "3"), masks.opened[0]), masks.gate[0, 0]),
        (mask_picture(one), masks.gate[0, 0]),
    ]
    for figure, expected in pictures:
        axes = figure.axes[0]
        np.testing.assert_allclose(colours(figure, axes), 255 * (1 - expected), atol=2)
        assert [tick.get_text() for tick in axes.get_yticklabels()] == NAMED
        edges = [line.get_ydata()[0] for line in axes.lines]
        assert edges == [1.5, 3.5]
    figure = gates_over_time(one)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == NAMED
    drawn = figure.axes[0].collections[0].get_array().ravel()
    np.testing.assert_allclose(drawn, masks.gate[0, 0].ravel())


def test_a_heat_map_has_the_heads_of_each_kind_apart(heads):
    run = heads.filter((pl.col("regime") == "stl") & (pl.col("seed") == 1) & (pl.col("task") == "dep"))
    run = run.drop_nulls("layer").with_columns(counted=True)
    figure = head_label_heatmap(with_kinds(run))
    matrix = figure.axes[0].images[0].get_array()
    for row, label in enumerate(tick.get_text() for tick in figure.axes[0].get_yticklabels()):
        expected = grid(run.filter(label=label), "value", sites_of(run), HEADS)
        np.testing.assert_allclose(matrix[row], 100 * expected.ravel())
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == [
        name.replace(" ", "\n") for name in NAMED
    ]


def test_the_reports_data_keep_kinds_apart(gates, heads):
    def data(gates, heads):
        masks, _ = final_masks(gates)
        return heads_data(masks.sites, HEADS, {"STL": masks}, masks, skills(heads), None, heads)

    flat, result = data(gates, heads), data(with_kinds(gates), with_kinds(heads))
    assert result.pop("sites") == [list(site) for site in SITES]
    assert result.pop("names") == cell_names(SITES, HEADS)
    assert flat.pop("names") == cell_names(sites_of(gates), HEADS)
    assert flat.pop("sites") == [["self", layer] for layer in range(LAYERS)]
    assert result == flat
    assert cell_names(SITES, HEADS)[13] == "cross L0H1"
    assert cell_names(sites_of(gates), HEADS)[13] == "L4H1"
    drawn = str(head_map(np.zeros((LAYERS, HEADS)), SITES, "masks"))
    for name in NAMED:
        assert f">{name}</text>" in drawn
    assert 'class="kinds" d="M0 2h3M0 4h3"' in drawn


def test_the_kinds_of_the_configuration_are_those_of_the_tables():
    """A run's encoder reads words: towers of images and text have heads in memory alone."""
    assert get_args(Kind) == tuple(kind for kind in sites.KINDS if kind not in ("vision", "text"))
    assert sites.kinds_in_order(["cross", "other", "encoder"]) == ["encoder", "cross", "other"]
