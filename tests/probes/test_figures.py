"""Figures, read back from their pixels."""

from __future__ import annotations

import io
import itertools
import weakref

import numpy as np
import polars as pl
import pytest
from matplotlib import layout_engine
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from PIL import Image

from mtl.probes.figures.head_maps import (
    best_by_layer,
    best_label_of_heads,
    correlation_matrix,
    head_label_heatmap,
    head_maps,
    label_map,
    layer_lines,
)
from mtl.probes.figures.masks import (
    animation,
    gates_over_time,
    grey_overlap,
    history_panels,
    importance_history,
    mask_picture,
    rgb_image,
    rgb_overlap,
    shades,
)
from mtl.probes.figures.scores import PER_ROW, heads_kept, label_accuracy, learning_curves
from mtl.probes.figures.style import COLUMN, FAINT, FORCED, MOSTLY_FORCED, looks_of, pixels, render
from mtl.probes.sites import Site
from tests.probes import worlds
from tests.probes.figure_makers import made_table

LAYERS, HEADS = 3, 4


def sites(layers):
    """Layers of one kind of attention."""
    return tuple(Site("self", layer) for layer in range(layers))


SITES = sites(LAYERS)


DRAWN = weakref.WeakKeyDictionary()


def drawing(figure):
    """The figure as an image, drawn once."""
    if figure.stale or figure not in DRAWN:
        DRAWN[figure] = pixels(figure)
    return DRAWN[figure]


def at(figure, axes, x, y):
    """The colour where the data coordinates (x, y) are drawn."""
    image = drawing(figure)
    column, row = axes.transData.transform((x, y))
    return tuple(int(value) for value in image[len(image) - 1 - int(row), int(column), :3])


def cells(figure, axes, layers=LAYERS, heads=HEADS):
    """The colours of all cells of a picture of masks; off-centre, where nothing else is drawn."""
    image = drawing(figure)
    where = axes.transData.transform(
        [(head + 0.2, layer + 0.2) for layer in range(layers) for head in range(heads)]
    )
    rows, columns = len(image) - 1 - where[:, 1].astype(int), where[:, 0].astype(int)
    return image[rows, columns, :3].reshape(layers, heads, 3).astype(int)


def texts(figure):
    """All that is written in a figure."""
    drawing(figure)
    return {each.get_text() for each in figure.findobj(lambda artist: hasattr(artist, "get_text"))}


def history(gate):
    """Rows of gates (step, task, layer, head)."""
    step, task, layer, head = (axis.ravel() for axis in np.indices(gate.shape))
    columns = {
        "task": [("pos", "dep", "srl")[each] for each in task],
        "step": 10 * (step + 1),
        "layer": layer,
        "attention": ["self"] * len(layer),
    }
    return pl.DataFrame(columns | {"head": head, "gate": gate.ravel(), "open": gate.ravel() > 1e-3})


@pytest.fixture
def gate():
    """Steps, tasks, layers, heads: closing more and more, each head differently."""
    return np.clip(
        1.2 - np.random.default_rng(3).random((1, 2, LAYERS, HEADS)) * np.arange(5)[:, None, None, None], 0, 1
    )


def test_the_eight_pure_colours():
    used = np.array([[[a, b, c] for c in (0.0, 1.0)] for a in (0.0, 1.0) for b in (0.0, 1.0)])
    image = rgb_image(np.moveaxis(used, -1, 0))
    np.testing.assert_array_equal(image, 255 * (1 - used))
    assert rgb_image(np.full((3, 1, 1), 0.25))[0, 0].tolist() == [191] * 3


def test_rgb_figure_has_layers_downwards_and_heads_across():
    gates = np.random.default_rng(1).random((3, LAYERS, HEADS))
    gates[:, 0, 1], gates[:, 2, 3] = 1, 0
    figure = rgb_overlap(gates, SITES, ("pos", "dep", "srl"), gates > 0.5)
    drawn = cells(figure, figure.axes[0])
    np.testing.assert_allclose(drawn, np.rint(255 * (1 - np.moveaxis(gates, 0, -1))), atol=1)
    assert drawn[0, 1].tolist() == [0, 0, 0]
    assert drawn[2, 3].tolist() == [255, 255, 255]
    axes = figure.axes[0]
    assert axes.transData.transform((0, 0))[1] > axes.transData.transform((0, 2))[1]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "2", "3"]
    above = [
        tick.label2.get_visible() and not tick.label1.get_visible() for tick in axes.xaxis.get_major_ticks()
    ]
    assert all(above)


def all_sets():
    """Gates of 0 and 1 in which each of the eight sets of masks keeps heads."""
    return np.moveaxis(np.array(list(itertools.product((0.0, 1.0), repeat=3))).reshape(2, 4, 3), -1, 0)


def test_rgb_key_has_each_set_that_occurs_in_the_colours_of_its_heads():
    gates = all_sets()
    key = shades(gates, gates > 0.5)
    assert {"".join(map(str, chosen)): colours for chosen, colours in key.items()} == {
        "": [(255, 255, 255)], "0": [(0, 255, 255)], "1": [(255, 0, 255)], "2": [(255, 255, 0)],
        "01": [(0, 0, 255)], "02": [(0, 255, 0)], "12": [(255, 0, 0)], "012": [(0, 0, 0)],
    }  # fmt: skip
    # Two heads that the first mask keeps, with other gates; no head that all keep.
    half = np.where(gates > 0.5, 0.6, 0.0)
    half[0, 0, 0] = 0.2
    of_half = shades(half, half > 1e-3)
    assert of_half[0,] == [(102, 255, 255), (204, 255, 255)]
    assert () not in of_half
    figure = rgb_overlap(gates, sites(2), ("pos", "dep", "srl"), gates > 0.5)
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {
        "none", "pos", "dep", "srl", "pos+dep", "pos+srl", "dep+srl", "all",
    }  # fmt: skip
    one = rgb_overlap(gates * 0 + 1, sites(2), ("pos", "dep", "srl"), gates < 2)
    assert [text.get_text() for text in one.legends[0].get_texts()] == ["all"]
    names = tuple(f"a run with a long name, seed {seed}" for seed in (1, 2, 3))
    long = rgb_overlap(gates, sites(2), names, gates > 0.5)
    assert f"1: {names[0]}" in long.legends[0].get_title().get_text()
    assert {"1", "1+2"} <= {text.get_text() for text in long.legends[0].get_texts()}


def test_the_key_of_colours_is_drawn_in_them():
    gates = np.full((3, LAYERS, HEADS), 0.4)
    figure = rgb_overlap(gates, SITES, ("pos", "dep", "srl"), gates > 0.5)
    image = pixels(figure, dpi=300)
    box = figure.legends[0].get_window_extent()
    rows = slice(len(image) - int(box.y1), len(image) - int(box.y0))
    key = image[rows, int(box.x0) : int(box.x1), :3].reshape(-1, 3)
    assert (key == 153).all(1).any()


def test_the_grey_twin_has_a_third_of_each_head_for_each_mask():
    gates = np.random.default_rng(1).random((3, LAYERS, HEADS))
    figure = rgb_overlap(gates, SITES, ("pos", "dep", "srl"), gates > 0.5)
    twin = figure.axes[1]
    for mask, layer, head in ((0, 0, 1), (1, 2, 3), (2, 1, 0), (0, 2, 2)):
        grey = at(figure, twin, head - 0.5 + (mask + 0.5) / 3, layer)
        np.testing.assert_allclose(grey, 255 * (1 - gates[mask, layer, head]), atol=2)
    assert "left, middle, right: pos, dep, srl" in texts(figure)


def struck(axes):
    """Places of heads that are struck through, as (layer, head, direction)."""
    lines = [each for each in axes.collections if isinstance(each, LineCollection)]
    found = set()
    for (left, start), (right, end) in itertools.chain(*(each.get_segments() for each in lines)):
        found.add(
            (round((start + end) / 2), round(float((left + right) / 2), 3), "/" if end < start else "\\")
        )
    return found


FORCED_OPEN, FORCED_SHUT = np.zeros((3, LAYERS, HEADS), dtype=bool), np.zeros((3, LAYERS, HEADS), dtype=bool)
FORCED_OPEN[1, 0, 2], FORCED_SHUT[2, 1, 0] = True, True


def test_forced_heads_are_struck_through_in_colours_and_in_the_twin_and_the_key_says_so():
    gates = np.full((3, LAYERS, HEADS), 0.5)
    forced = (FORCED_OPEN, FORCED_SHUT)
    figure = rgb_overlap(gates, SITES, ("pos", "dep", "srl"), gates > 0, forced)
    picture, twin = figure.axes
    assert struck(picture) == {(0, 2.0, "/"), (1, 0.0, "\\")}
    assert struck(twin) == {(0, 2.0, "/"), (1, 0.333, "\\")}
    assert FORCED in figure.legends[0].get_title().get_text().replace("\n", " ")
    plain = rgb_overlap(gates, SITES, ("pos", "dep", "srl"), gates > 0, (FORCED_OPEN & False,) * 2)
    assert struck(plain.axes[0]) == set()
    assert FORCED not in plain.legends[0].get_title().get_text()


@pytest.mark.slow
def test_forced_heads_are_struck_through_in_masks_and_in_grey(gate, tmp_path):
    table = history(gate[-2:])
    last = pl.col("step") == pl.col("step").max()
    # Of pos, L0H2 was opened by force; of dep, L1H0 closed.
    changed = {("pos", 0, 2): (0.5, True, False), ("dep", 1, 0): (0.0, False, True)}
    rows = [
        row | dict(zip(("gate", "open", "learned"), changed[place], strict=True))
        if row["step"] == 20 and (place := (row["task"], row["layer"], row["head"])) in changed
        else row | {"learned": row["open"]}
        for row in table.iter_rows(named=True)
    ]
    made = pl.DataFrame(rows)
    figure = mask_picture(made)
    assert struck(figure.axes[0]) == {(0, 2.0, "/")}
    assert struck(figure.axes[1]) == {(1, 0.0, "\\")}
    opened = made.filter(last, task="pos")["open"].sum()
    assert f"pos: {opened} of 12 open,\n1 opened by force" in texts(figure)
    assert any(text.startswith("dep: ") and text.endswith(",\n1 closed by force") for text in texts(figure))
    assert any(FORCED in text for text in texts(figure))
    assert not any(FORCED in text for text in texts(mask_picture(table)))
    assert animation(made, tmp_path / "forced.gif") == 2
    with Image.open(tmp_path / "forced.gif") as marked:
        marked.seek(1)
        image = np.asarray(marked.convert("L"))
    animation(made.with_columns(learned="open"), tmp_path / "plain.gif")
    with Image.open(tmp_path / "plain.gif") as plain:
        plain.seek(1)
        assert (np.asarray(plain.convert("L"))[: len(image) // 2] != image[: len(image) // 2]).any()
    gates = np.full((3, LAYERS, HEADS), 0.5)
    grey = grey_overlap(gates, SITES, (FORCED_OPEN.any(0), FORCED_SHUT.any(0)))
    assert struck(grey.axes[0]) == {(0, 2.0, "/"), (1, 0.0, "\\")}
    assert any(MOSTLY_FORCED in text for text in texts(grey))


def test_grey_figure_is_black_where_all_masks_are_open():
    gates = np.random.default_rng(1).random((5, LAYERS, HEADS))
    gates[:, 1, 2], gates[:, 2, 0] = 1, 0
    figure = grey_overlap(gates, sites(gates.shape[-2]))
    drawn = cells(figure, figure.axes[0])
    np.testing.assert_allclose(drawn, 255 * (1 - gates.mean(0))[..., None] * np.ones(3), atol=2)
    assert drawn[1, 2].tolist() == [0, 0, 0]
    assert drawn[2, 0].tolist() == [255, 255, 255]
    assert "mean gate over 5 masks" in texts(figure)


def test_mask_picture_shows_the_last_step(gate):
    figure = mask_picture(history(gate))
    for task, axes in enumerate(figure.axes[:2]):
        expected = 255 * (1 - gate[-1, task])[..., None] * np.ones(3)
        np.testing.assert_allclose(cells(figure, axes), expected, atol=2)
    assert f"pos: {(gate[-1, 0] > 1e-3).sum()} of 12 open" in texts(figure)
    with pytest.raises(ValueError, match="not one gate for every"):
        mask_picture(history(gate)[1:])


def test_importance_is_shown_as_shares_and_nothing_is_struck_through(gate):
    importance = history(gate + 0.1).rename({"gate": "value"})
    figure = history_panels(importance_history(importance))
    for task, axes in enumerate(figure.axes[:2]):
        values = gate[-1, task] + 0.1
        expected = 255 * (1 - values / values.max())[..., None] * np.ones(3)
        np.testing.assert_allclose(cells(figure, axes), expected, atol=2)


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_animation_shows_every_step_and_is_the_same_every_time(gate, kind, tmp_path):
    paths = [tmp_path / f"{name}.{kind}" for name in "ab"]
    table = history(gate[::2])
    notes = ("seed 3 is left out", "gates of é")
    assert [animation(table, path, kind, notes=notes) for path in paths] == [3, 3]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with Image.open(paths[0]) as image:
        assert image.format == kind.upper()
        assert image.n_frames == 3
        assert image.info["loop"] == 0
        assert all(note.encode() in image.info["comment" if kind == "gif" else "exif"] for note in notes)
        darkness = []
        for frame in range(3):
            image.seek(frame)
            darkness.append(255 - np.asarray(image.convert("L"), dtype=float).mean())
    # Heads only close: every picture is lighter than the one before.
    assert np.all(np.diff(darkness) < 0)


def test_a_long_history_is_thinned(tmp_path, monkeypatch):
    monkeypatch.setattr("mtl.probes.figures.masks.MOST_FRAMES", 6)
    gates = np.linspace(1, 0, 18)[:, None, None, None] * np.ones((1, 1, 1, 1))
    assert animation(history(gates), tmp_path / "long.gif") == 6


def test_gates_over_time_has_heads_downwards_and_time_across(gate):
    figure = gates_over_time(history(gate))
    axes = figure.axes[1]
    for step in range(5):
        for layer, head in ((0, 0), (1, 3), (2, 2)):
            grey = at(figure, axes, 10 * step + 5, layer * HEADS + head + 0.5)
            np.testing.assert_allclose(grey, 255 * (1 - gate[step, 1, layer, head]), atol=2)


def test_maps_of_heads_are_of_the_setup_in_their_title():
    rows = [
        ("pos", setup, "self", layer, head, value + layer + 0.1 * head, False)
        for setup, value in (("STL", 1.0), ("MTL-2", 5.0))
        for layer in range(LAYERS)
        for head in range(HEADS)
    ]
    columns = ("task", "setup", "attention", "layer", "head", "value", "significant")
    figure = head_maps(made_table(rows, *columns), "ablation", "points")
    shown = {axes.get_title(): axes.images[0].get_array()[1, 2] for axes in figure.axes if axes.images}
    assert shown == pytest.approx({"pos, STL": 2.2, "pos, MTL-2": 6.2})


def test_correlation_matrix_has_each_pair_once_and_zero_is_white():
    table = pl.DataFrame(
        {
            "first": ["pos", "pos", "dep"], "second": ["pos", "dep", "dep"], "paper": [0.91, 0.38, None],
            "pairwise": [0.9, 0.3, 0.8],
        }
    )  # fmt: skip
    figure = correlation_matrix(table)
    assert {"91", "38", "–"} <= texts(figure)
    axes = figure.axes[0]
    assert len([text for text in axes.texts if text.get_text()]) == 3
    assert at(figure, axes, 0.6, 0.4) == (255, 255, 255)
    red, _, blue = at(figure, axes, -0.4, 1.4)
    assert red > blue
    below = correlation_matrix(table.with_columns(paper=pl.Series([0.9, -0.5, 0.0])))
    red, _, blue = at(below, below.axes[0], -0.4, 1.4)
    assert red < blue
    zero = at(below, below.axes[0], 0.6, 1.4)
    assert min(zero) >= 240
    assert {"90", "30", "80"} <= texts(correlation_matrix(table, "pairwise"))
    correlation_matrix(table.with_columns(paper=pl.lit(None, dtype=pl.Float64)))


def test_numbers_of_a_correlation_can_be_read_on_their_ground():
    """At least 4.5 to 1 (WCAG 2, level AA)."""
    pairs = [*itertools.combinations_with_replacement("abcdef", 2)]
    first, second = zip(*pairs, strict=True)
    table = pl.DataFrame({"first": first, "second": second, "paper": np.linspace(-1, 1, len(pairs))})
    figure = correlation_matrix(table)
    axes = figure.axes[0]
    numbers = [text for text in axes.texts if text.get_text()]
    assert len(numbers) == len(pairs) == 21
    for text in numbers:
        column, row = text.get_position()
        ground = np.array(at(figure, axes, column - 0.4, row + 0.4)) / 255
        lights = [luminance(ground), luminance(np.array(to_rgb(text.get_color())))]
        assert (max(lights) + 0.05) / (min(lights) + 0.05) >= 4.5, text.get_text()


def luminance(colour):
    """Relative luminance of an sRGB colour (WCAG 2)."""
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def labels(count):
    values = np.linspace(0.9, 0.2, count)
    columns = {"task": "dep", "label": [f"r{n}" for n in range(count)], "count": 30 + np.arange(count, 0, -1)}
    setups = {"pretrained": values + 0.08, "stl": values, "pair": values - 0.1, "joint": values - 0.15}
    return pl.DataFrame(columns | setups | {"chance": 0.02, "counted": True})


def test_label_accuracy_has_a_marker_of_each_setup_at_its_value():
    table = labels(10)
    figure = label_accuracy(table)
    axes = figure.axes[0]
    looks = looks_of(("STL", "MTL-2", "MTL"))
    colours = {"pretrained": FAINT} | {
        setup: looks[name].colour for setup, name in (("stl", "STL"), ("pair", "MTL-2"), ("joint", "MTL"))
    }
    for setup, name in colours.items():
        colour = np.rint(255 * np.array(to_rgb(name)))
        image = pixels(figure, dpi=400)
        for place in (0, 4, 9):
            column, row = axes.transData.transform((place + 0.08, 100 * table[setup][place]))
            np.testing.assert_allclose(image[len(image) - 1 - int(row), int(column), :3], colour, atol=40)
    assert {"pretrained", "STL", "MTL-2", "MTL"} <= texts(figure)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        f"{label} {count}" for label, count in table.select("label", "count").iter_rows()
    ]


def test_labels_stand_beside_chance_and_those_that_do_not_count_are_left_out():
    table = labels(5).with_columns(counted=pl.col("label") != "r1", chance=pl.col("pretrained") - 0.5)
    figure = label_accuracy(table)
    chance = figure.axes[0].collections[4].get_segments()  # behind the four regimes
    drawn = [segment[0, 1] for segment in chance]
    assert drawn == pytest.approx((100 * table.filter("counted")["chance"]).to_list())
    assert {"chance", "1 label left out: root, or fewer than 30 items", "r0\n35"} <= texts(figure)
    assert "r1\n34" not in texts(figure)
    with pytest.raises(ValueError, match="no label with at least 30 items"):
        label_accuracy(table.with_columns(counted=False))


def test_many_labels_take_several_rows_and_a_missing_value_has_no_marker():
    table = labels(PER_ROW + 5).with_columns(
        joint=pl.when(pl.col("label") == "r3").then(None).otherwise("joint")
    )
    figure = label_accuracy(table)
    assert len(figure.axes) == 2
    assert [len(axes.get_xticklabels()) for axes in figure.axes] == [PER_ROW, 5]
    segments = figure.axes[0].collections[3].get_segments()
    drawn = [segment for segment in segments if len(segment) and not np.isnan(segment).any()]
    assert len(drawn) == PER_ROW - 1
    assert label_accuracy(table.drop("pair")).axes


def test_heat_map_orders_labels_and_marks_the_best_head():
    values = np.array([[0.1, 0.9, 0.3, 0.2], [0.5, 0.2, 0.8, 0.1], [0, 0, 0, 1.0]])
    label, head = (axis.ravel() for axis in np.indices(values.shape))
    table = pl.DataFrame(
        {
            "label": [("rare", "often", "hapax")[each] for each in label],
            "count": np.array([5, 50, 1])[label],
            "attention": "self", "layer": head // 2, "head": head % 2, "value": values.ravel(),
            "counted": label == 1,
        }
    )  # fmt: skip
    figure = head_label_heatmap(table, top=2)
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["often", "rare *"]
    starred = "accuracy, % (circle: best head)\n* root, or fewer than 30 items"
    assert starred in texts(figure)
    assert starred not in texts(head_label_heatmap(table, top=1))
    assert "label (1 rarer ones left out)" in texts(figure)
    marked = [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in axes.lines
        if line.get_marker() == "o"
    ]
    assert marked == [(2, 0), (1, 1)]
    dark, light = at(figure, axes, 0.3, 1.3), at(figure, axes, 2.3, 0.3)
    assert sum(dark) < sum(light)
    with pytest.raises(ValueError, match="empty"):
        head_label_heatmap(table.clear())


def planted_skills() -> pl.DataFrame:
    """Two layers of two heads: L1H0 is best on `subj`, L0H1 on `obj`; L0H0 is at chance; `rare` is out."""
    values = {"subj": [0.2, 0.3, 0.9, 0.4], "obj": [0.3, 0.8, 0.5, 0.3], "rare": [1.0, 1.0, 1.0, 1.0]}
    chance = {"subj": 0.2, "obj": 0.3, "rare": 0.0}
    rows = [
        ("dep", label, "self", head // 2, head % 2, value, chance[label], 50, label != "rare")
        for label, of_heads in values.items()
        for head, value in enumerate(of_heads)
    ]
    columns = ["task", "label", "attention", "layer", "head", "value", "chance", "count", "counted"]
    table = pl.DataFrame(rows, schema=columns, orient="row")
    return table.with_columns(skill=(pl.col("value") - pl.col("chance")).clip(0))


def test_every_head_has_the_label_that_it_is_farthest_above_chance_on():
    table = planted_skills()
    best = best_label_of_heads(table).sort("layer", "head").select("layer", "head", "label").rows()
    assert best == [(0, 1, "obj"), (1, 0, "subj"), (1, 1, "subj")]
    figure = label_map(table)
    [axes] = [axes for axes in figure.axes if axes.images]
    written = {text.get_position()[::-1]: text.get_text() for text in axes.texts}
    assert written == {(0, 1): "obj", (1, 0): "subj", (1, 1): "subj"}
    shown = np.ma.filled(axes.images[0].get_array(), -1)
    np.testing.assert_allclose(shown, [[-1, 50], [70, 20]])
    with pytest.raises(ValueError, match="no label with at least 30 items"):
        label_map(table.with_columns(counted=pl.lit(False)))


def test_lines_of_labels_are_those_of_each_layers_best_head():
    table = planted_skills()
    assert best_by_layer(table).select("label", "layer", "head", "value").rows() == [
        ("obj", 0, 1, 0.8), ("obj", 1, 0, 0.5), ("subj", 0, 1, 0.3), ("subj", 1, 0, 0.9),
    ]  # fmt: skip
    axes = layer_lines(table).axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "-"}
    assert drawn == {"obj": pytest.approx([80, 50]), "subj": pytest.approx([30, 90])}
    dotted = [list(line.get_ydata()) for line in axes.lines if line.get_linestyle() == ":"]
    assert sorted(dotted) == [pytest.approx([20, 20]), pytest.approx([30, 30])]
    assert "1 rarer label left out" in texts(layer_lines(table, top=1))
    with pytest.raises(ValueError, match="no label with at least 30 items"):
        layer_lines(table.with_columns(counted=pl.lit(False)))


def test_dollars_in_labels_are_no_formulas():
    table = labels(3).with_columns(label=pl.Series(["$", "PRP$", r"$\frac$"]))
    assert {"$\n33", "PRP$\n32", "$\\frac$\n31"} <= texts(label_accuracy(table))
    assert label_accuracy(table).axes


def kept_runs() -> pl.DataFrame:
    """Two settings of one setup with two seeds each, and one run of another setup between them."""
    return pl.DataFrame(
        {
            "task": ["pos"] * 5 + ["dep"],
            "setup": ["STL, dynamic"] * 4 + ["STL, static"] * 2,
            "setting": ["0.1", "0.1", "0.9", "0.9", "0.1", "0.1"],
            "kept": [50, 60, 8, 12, 30, 40],
            "score": [90.0, 92, 80, 82, 99, 70],
        }
    )


METRICS = {"pos": "accuracy", "dep": "las", "srl": "f1"}


def test_heads_kept_joins_settings_of_one_setup_and_no_others():
    figure = heads_kept(kept_runs(), 72, METRICS)
    pos, dep = figure.axes
    joined = [line for axes in figure.axes for line in axes.lines if line.get_linestyle() == "-"]
    (line,) = joined
    np.testing.assert_array_equal(line.get_xydata(), [[10, 81], [55, 91]])
    assert line.axes is pos
    points = [
        [line.get_xydata().tolist() for line in axes.lines if line.get_alpha() is not None]
        for axes in (pos, dep)
    ]
    assert points == [[[[50, 90], [60, 92], [8, 80], [12, 82]], [[30, 99]]], [[[40, 70]]]]


def test_heads_kept_names_the_score_of_each_task():
    figure = heads_kept(kept_runs(), 72, METRICS)
    assert [axes.get_ylabel() for axes in figure.axes] == ["accuracy, %", "LAS, %"]
    assert [axes.get_title() for axes in figure.axes] == ["pos", "dep"]
    assert {"STL, dynamic", "STL, static"} <= texts(figure)
    assert any(text.startswith("open heads of 72") for text in texts(figure))


def test_heads_kept_has_a_colour_and_a_marker_for_each_setup():
    figure = heads_kept(kept_runs(), 72, METRICS)
    runs = [line for axes in figure.axes for line in axes.lines if line.get_alpha() is not None]
    dynamic, static, same = [(line.get_marker(), line.get_color()) for line in runs]
    assert dynamic[0] != static[0]
    assert dynamic[1] != static[1]
    assert static == same


def test_heads_kept_shows_the_spread_over_seeds():
    figure = heads_kept(kept_runs(), 72, METRICS)
    spread = 2**0.5  # of 80 and 82; of 8 and 12 it is twice that
    bars = [segment for bar in figure.axes[0].collections for segment in bar.get_segments()]
    assert any(np.allclose(bar, [[10, 81 - spread], [10, 81 + spread]]) for bar in bars)
    assert any(np.allclose(bar, [[10 - 2 * spread, 81], [10 + 2 * spread, 81]]) for bar in bars)


def test_heads_kept_without_settings_joins_nothing():
    runs = kept_runs().with_columns(setting=pl.lit(None, dtype=pl.String))
    figure = heads_kept(runs, 72, METRICS)
    assert not [line for axes in figure.axes for line in axes.lines if line.get_linestyle() == "-"]


def scores_over_time() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "setup": ["STL"] * 4 + ["MTL-2"], "task": ["dep"] * 5, "run": ["a", "a", "b", "b", "c"],
            "update": [10, 20, 10, 20, 10], "score": [50.0, 60, 52, 66, 40],
        }
    )  # fmt: skip


def test_learning_curves_are_runs_and_their_means():
    figure = learning_curves(scores_over_time(), METRICS)
    (axes,) = figure.axes
    faint = [line.tolist() for of_setup in axes.collections for line in of_setup.get_segments()]
    means = [line.get_xydata().tolist() for line in axes.lines]
    assert faint == [[[10, 50], [20, 60]], [[10, 52], [20, 66]], [[10, 40]]]
    assert means == [[[10, 51], [20, 63]], [[10, 40]]]
    assert axes.get_ylabel() == "LAS, %"


def test_masks_and_gates_have_names_for_their_axes_and_a_key(gate):
    for figure in (mask_picture(history(gate)), gates_over_time(history(gate))):
        assert "gate: white closed, black open" in texts(figure)
    assert {"head", "layer"} <= texts(mask_picture(history(gate)))
    drawn = texts(gates_over_time(history(gate)))
    assert {"update (a column for each evaluation, ending there)", "layer (a row for each head)"} <= drawn
    assert "50" in drawn


@pytest.mark.parametrize(("kind", "starts"), [("pdf", b"%PDF"), ("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_files_are_the_same_every_time_and_a_column_wide(kind, starts):
    gates = np.random.default_rng(0).random((3, LAYERS, HEADS))
    contents = [render(rgb_overlap(gates, SITES, ("1", "2", "3"), gates > 0.5), kind) for _ in range(2)]
    assert contents[0] == contents[1]
    assert contents[0].startswith(starts)
    if kind == "png":
        with Image.open(io.BytesIO(contents[0])) as image:
            assert image.width == pytest.approx(300 * COLUMN, abs=1)


def test_the_last_digits_of_the_layouts_solver_change_no_file(monkeypatch):
    """The solver adds up in the order of memory addresses: here its noise is planted."""
    solve, calls = layout_engine.do_constrained_layout, itertools.count()

    def solve_with_noise(figure, **options):
        grids = solve(figure, **options)
        noise = 1e-13 * next(calls)
        for axes in figure.axes:
            axes.set_position(np.add(axes.get_position(original=True).bounds, noise))
            axes.set_in_layout(True)
        return grids

    monkeypatch.setattr(layout_engine, "do_constrained_layout", solve_with_noise)
    contents = {render(learning_curves(scores_over_time(), METRICS), "svg") for _ in range(3)}
    assert len(contents) == 1
    assert next(calls) >= 3


@pytest.mark.parametrize(("layers", "heads"), [(6, 12), (12, 12), (24, 16), (1, 2), (48, 40)])
def test_numbers_of_layers_and_heads_do_not_touch(layers, heads):
    figure = grey_overlap(np.ones((1, layers, heads)), sites(layers))
    pixels(figure)
    axes = figure.axes[0]
    for ticks, ends in ((axes.get_xticklabels(), ("x0", "x1")), (axes.get_yticklabels(), ("y0", "y1"))):
        boxes = sorted(
            (getattr(box, ends[0]), getattr(box, ends[1])) for box in (t.get_window_extent() for t in ticks)
        )
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(boxes))
        assert ticks[0].get_text() == "0"


def test_no_text_leaves_the_figure():
    gates = worlds.random_gates(np.random.default_rng(0))
    figures = (
        rgb_overlap(gates[0], sites(gates.shape[-2]), ("a", "b", "c"), gates[0] > 0),
        grey_overlap(gates[0], sites(gates.shape[-2])),
        label_accuracy(labels(30)),
    )
    for figure in figures:
        pixels(figure)
        for axes in figure.axes:
            box = axes.get_tightbbox()
            assert box.x0 >= -1
            assert box.x1 <= figure.bbox.x1 + 1


def test_gates_over_time_mark_the_heads_that_a_target_forced(gate):
    rows = history(gate)
    last = pl.col("step") == pl.col("step").max()
    opened = last & (pl.col("task") == "pos") & pl.col("open") & (pl.col("head") == 0)
    closed = last & (pl.col("task") == "pos") & ~pl.col("open") & (pl.col("head") == 1)
    forced = rows.with_columns(learned=pl.col("open") ^ (opened | closed))
    figure = gates_over_time(forced)
    marks = [
        {
            line.get_marker(): sorted(line.get_ydata())
            for line in axes.get_lines()
            if line.get_marker() in ("^", "v")
        }
        for axes in figure.axes[:2]
    ]
    wanted = {}
    for mark, rows_of in (("^", opened), ("v", closed)):
        places = forced.filter(rows_of).select("layer", "head").iter_rows()
        wanted[mark] = sorted(HEADS * layer + head + 0.5 for layer, head in places)
    assert marks == [{mark: rows for mark, rows in wanted.items() if rows}, {}]
    assert marks[0]
    assert any("forced open" in text for text in texts(figure))
    assert not any("forced" in text for text in texts(gates_over_time(rows.with_columns(learned="open"))))
