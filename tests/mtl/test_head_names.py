"""A head has one name, from 0, in figures, tables, the page and the terminal; and it is read back."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from mtl.analysis.ablation import Ablation
from mtl.commands import measure
from mtl.probes.figures.head_maps import head_label_heatmap, head_maps, label_map
from mtl.probes.figures.masks import gates_over_time, grey_overlap, heads_over_time, mask_picture, rgb_overlap
from mtl.probes.measures.groups import GROUPS
from mtl.probes.report.head_maps import head_map, heads_data
from mtl.probes.sites import Site, by_name, cell_names, head_name, layer_name, read_head, with_names
from mtl.probes.tables import heads_table, table_files
from mtl.probes.tables.heads_table import best_heads, markdown_summaries, weighted_means
from mtl.runs.figures.table import FIGURES

LAYERS, HEADS = 3, 4
PLANTED = (2, 1)
"""The layer and head that stand out in every output."""
SITES = tuple(Site("self", layer) for layer in range(LAYERS))
THREE = tuple(Site(kind, layer) for kind in ("encoder", "decoder", "cross") for layer in range(LAYERS))
OLD = re.compile(r"L\d+ H\d+|[Ll]ayer \d+,? (\(\w+\), )?head \d+|head \d+ of layer \d+")
"""How heads were named before."""
GATE = np.zeros((LAYERS, HEADS))
GATE[PLANTED] = 1.0

sites_of_models = st.tuples(
    st.sampled_from((("self",), ("encoder", "decoder", "cross"), ("cross", "self"))), st.integers(1, 12)
).map(lambda made: tuple(Site(kind, layer) for kind in made[0] for layer in range(made[1])))


@given(sites_of_models, st.integers(1, 130), st.data())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_name_is_read_as_what_it_was_made_of(sites: tuple[Site, ...], heads: int, data) -> None:
    place = data.draw(st.integers(0, len(sites) - 1))
    head = data.draw(st.none() | st.integers(0, heads - 1))
    site = sites[place]
    name = head_name(site, head, sites)
    number = f"{site.layer}" if head is None else f"{site.layer}.{head}"
    spellings = {name, name.lower(), f" {name} ", name.replace(" ", "."), f"{site.attention}.{number}"}
    if " " not in name:
        spellings |= {number, f"{site.attention} {name}"}
    assert {read_head(text, sites, heads) for text in spellings} == {(place, head)}
    assert len(set(cell_names(sites, heads))) == len(sites) * heads
    assert layer_name(site, sites) == head_name(site, None, sites)


@given(sites_of_models, st.integers(1, 130))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_a_table_of_one_kind_names_heads_as_that_of_all_does(sites: tuple[Site, ...], heads: int) -> None:
    rows = [(*site, head) for site in sites for head in range(heads)]
    table = pl.DataFrame(rows, schema=["attention", "layer", "head"], orient="row")
    names = dict(zip(rows, with_names(table)["name"].to_list(), strict=True))
    for kind in {site.attention for site in sites if site.attention != "self"}:
        part = with_names(table.filter(pl.col("attention") == kind))
        assert part["name"].to_list() == [name for (of, *_), name in names.items() if of == kind]


@given(st.text(max_size=12))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_other_text_is_one_line(text: str) -> None:
    try:
        found = read_head(text, SITES, HEADS)
    except ValueError as error:
        found = str(error)
    if isinstance(found, str):
        assert found.count("\n") == 0
    else:
        assert found[0] < LAYERS
        assert found[1] is None or found[1] < HEADS


@pytest.mark.parametrize(
    ("text", "sites", "message"),
    [
        ("L3 H2", SITES, "write a head as L2H9"),
        ("L3H1", SITES, "layers 0 to 2 of heads 0 to 3"),
        ("L2H4", SITES, "layers 0 to 2 of heads 0 to 3"),
        ("L2H1", THREE, "write a head as cross L2H9"),
        ("self L2H1", THREE, "no attention of kind self: it has encoder, decoder, cross"),
        ("cross L9", THREE, "the model's cross attention has layers 0 to"),
        ("H1", SITES, "write a head as L2H9"),
        ("2.-1", SITES, "write a head as L2H9"),
        ("", SITES, "write a head as L2H9"),
    ],
)
def test_what_is_no_head_says_how_one_is_written(text: str, sites, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_head(text, sites, HEADS)


def rows(measure: str, value: np.ndarray = GATE, task: str = "dep", label: str = "") -> pl.DataFrame:
    return heads_table.rows(measure, task, [label], value[None], np.array([100]))


def gates() -> pl.DataFrame:
    table = rows("gate").select("task", "attention", "layer", "head", gate="value")
    return pl.concat([table.with_columns(step=pl.lit(step), open=pl.col("gate") > 0.5) for step in (1, 2)])


def maps() -> Figure:
    table = rows("importance").select("task", "attention", "layer", "head", "value")
    return head_maps(table.with_columns(setup=pl.lit("STL"), significant=pl.lit(False)), "importance", "nats")


WITH_HEADS: dict[str, Callable[[], Figure]] = {
    "rgb": lambda: rgb_overlap(np.stack([GATE] * 3), SITES, ("a", "b", "c"), np.stack([GATE] * 3) > 0),
    "grey": lambda: grey_overlap(GATE[None], SITES),
    "gates": lambda: gates_over_time(gates()),
    "masks": lambda: mask_picture(gates()),
    "animation": lambda: mask_picture(gates()),  # its last picture
    "heatmap": lambda: head_label_heatmap(rows("attention", label="obj").with_columns(counted=True)),
    "heads": maps,
    "map": lambda: label_map(
        rows("attention", label="obj").with_columns(counted=True, skill=pl.col("value"), chance=pl.lit(0.0))
    ),
    "importance-over-time": lambda: heads_over_time(gates(), "gate", "importance"),
}
WITHOUT_HEADS = {
    "correlation", "labels", "layers", "heads-kept", "prediction", "agreement",
}  # fmt: skip


def test_every_figure_is_known_to_show_heads_or_not() -> None:
    own = {name for name, row in FIGURES.items() if (row.draw or row.animate or "").startswith("mtl.runs.")}
    assert own == {*WITH_HEADS, *WITHOUT_HEADS}


def numbers(axes: Axes, way: str) -> list[tuple[float, str]]:
    axis = axes.xaxis if way == "x" else axes.yaxis
    return [
        (float(place), label.get_text())
        for place, label in zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    ]


@pytest.mark.parametrize("name", WITH_HEADS)
def test_axes_of_figures_count_from_zero(name: str) -> None:
    """The tick of number n is at the n-th row or column, or in the middle of the n-th layer's block."""
    axes = WITH_HEADS[name]().axes[0]
    blocks = {"gates": "y", "importance-over-time": "y", "heatmap": "x"}
    if name in blocks:
        middle = 0.5 * HEADS - (0.5 if name == "heatmap" else 0)
        assert numbers(axes, blocks[name]) == [(middle + HEADS * n, str(n)) for n in range(LAYERS)]
    else:
        for way, count in (("x", HEADS), ("y", LAYERS)):
            assert numbers(axes, way) == [(n, str(n)) for n in range(count)]
    if axes.images and name != "heatmap":
        shown = np.asarray(axes.images[0].get_array(), dtype=float).reshape(LAYERS, HEADS, -1)[..., 0]
        assert np.unique(shown).size == 2
        assert (shown[PLANTED] != shown[0, 0]).all()


def on_terminal(show: Callable[[Console], None]) -> str:
    console = Console(file=io.StringIO(), width=200)
    show(console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def probed() -> pl.DataFrame:
    level = heads_table.rows("attention_offset", "dep", ["obj"], np.zeros(1), np.array([100]))
    offset = heads_table.rows("syntactic_offset", "dep", ["obj to head"], np.zeros(1), np.array([100]))
    return pl.concat([rows("attention", label="obj"), level, rows("syntactic", label="obj to head"), offset])


def closed(kind: str, heads: set[tuple[int, int]], *measured: int) -> str:
    tap = SimpleNamespace(sites=SITES, remaining=[range(HEADS)] * LAYERS)
    return measure._closed(Ablation(kind, frozenset(heads), *measured), tap)


def best(table: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    found = best_heads(table)
    return found, weighted_means(found)


TERMINAL: dict[str, Callable[[Console], None]] = {
    "probe": lambda console: measure._show_probes(*best(probed()), console),
    "roles": lambda console: measure._show_roles(probed(), console),
    "markdown": lambda console: console.print(markdown_summaries(*best(probed()))),
    "importance": lambda console: measure._show(rows("importance"), GROUPS["importance"], 1, console),
    "ablate": lambda console: console.print(closed("head", {PLANTED}, *PLANTED)),
    "ablate --heads": lambda console: console.print(closed("chosen", {PLANTED})),
    **{
        name: partial(resolve_name(group.shown), rows(group.measures[0].name))
        for name, group in GROUPS.items()
        if group.shown
    },
}


@pytest.mark.parametrize("name", TERMINAL)
def test_the_terminal_names_the_planted_head(name: str) -> None:
    text = on_terminal(TERMINAL[name])
    assert "L2H1" in text
    assert set(re.findall(r"L\d+H\d+", text)) == {"L2H1"}
    assert not OLD.search(text)


def test_layers_alone_have_names_too() -> None:
    whole = {(1, head) for head in range(HEADS)}
    assert closed("layer", whole, 1) == "L1"
    assert closed("chosen", {*whole, PLANTED}) == "L1, L2H1"


def test_tables_for_people_have_the_name(tmp_path: Path) -> None:
    one = rows("importance").filter(pl.col("value") > 0).select("task", "attention", "layer", "head", "value")
    for table, name in (
        (one, "L2H1"),
        (pl.concat([one, one.with_columns(attention=pl.lit("cross"))]), "self L2H1"),
    ):
        for kind in table_files.FORMATS:
            table_files.write_table_file(
                table, tmp_path / f"t.{kind}", kind, units={"value": table_files.ColumnUnit.NUMBER}
            )
        assert pl.read_csv(tmp_path / "t.csv").columns == [
            "task",
            "attention",
            "layer",
            "head",
            "name",
            "value",
        ]
        assert pl.read_csv(tmp_path / "t.csv")["name"][0] == name
        lines = (tmp_path / "t.tex").read_text().splitlines()
        assert lines[2] == r"task & head & value \\"
        assert lines[4] == rf"dep & {name} & 1.00 \\"
        assert pl.read_parquet(tmp_path / "t.parquet").equals(table)
    of_layer = one.drop("head")
    assert by_name(of_layer)["layer"].to_list() == ["L2"]
    assert with_names(of_layer.drop("layer")).columns == ["task", "attention", "value"]
    assert with_names(one.with_columns(head=None, layer=None).cast({"layer": pl.Int32}))[
        "name"
    ].to_list() == [None]


def test_the_page_has_names_and_axes_from_zero() -> None:
    data = json.loads(json.dumps(heads_data(SITES, HEADS, {}, None, None, None, None)))
    assert data["names"] == cell_names(SITES, HEADS)
    drawn = str(head_map(GATE, SITES, "masks"))
    assert re.findall(r">(\d+)</text>", drawn) == [*map(str, range(HEADS)), *map(str, range(LAYERS))]
    root = Path(__file__).parents[2]
    for name in ("report.js", "report.html.j2"):
        source = (root / "probes" / "report" / name).read_text()
        assert not re.search(r"\$\{[^}]*(layer|head|heads\)) \+ 1", source)
        assert not OLD.search(source)


def test_names_are_made_in_one_module() -> None:
    """No other module puts a layer or a head into a text by itself."""
    root = Path(__file__).parents[2]
    making = re.compile(
        r"L\{|H\{|[Ll]ayers? \{[^}]*layer|[Hh]ead \{(?!value)|\{[^}]*(layer|head) \+ 1\}"
        r"|\{row\['(layer|head)'\]\}"
    )
    found: Sequence[str] = sorted(
        str(path.relative_to(root))
        for package in ("probes", "mtl")
        for path in (root / package).rglob("*.py")
        if making.search(path.read_text())
    )
    assert set(found) - {"mtl/corpora/formats/dependencies.py"} == {"probes/sites.py"}
