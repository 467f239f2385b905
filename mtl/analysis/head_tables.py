"""Tables of heads in a notebook: a picture, a list by name, and which heads to cut."""

from __future__ import annotations

from html import escape

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from mtl.errors import InputError
from mtl.heads.arguments import short_text, whole_number
from mtl.heads.families import row_given
from mtl.heads.family_table import Family
from mtl.heads.tap import tapped
from mtl.probes.figures.head_maps import draw_values, values_of_heads
from mtl.probes.figures.style import figure_of
from mtl.probes.sites import KEYS, Site, kinds_in_order, layer_name, sites_of, with_names

_PREFERRED = ("importance", "ablation")
"""The measures that are preferred, in this order, if a table has several."""
_SHOWN = 10
"""Heads that a notebook shows at each end of the list."""


class HeadTable:
    """A value per head, from a table of `head_importance`, `ablate_heads`, `probe` or heads.parquet.

    Notebooks show it as a list by name, with the intervals of `ablate_heads`. Rows of whole layers and rows
    without a value (null or NaN) are left out.

    Args:
        table: the table.
        measure: the measure, if there are several; `None`: importance or ablation, or the only one.
        task: the task, if there are several.
        label: the label, if there are several.

    Raises:
        InputError: the table is not one of heads; it lacks the measure, task or label; or it has several and
            none is chosen.
    """

    values: pl.DataFrame
    """Columns attention, layer, head and value: a row per head, the highest value first."""
    title: str
    """What the values are."""

    def __init__(
        self,
        table: pl.DataFrame,
        measure: str | None = None,
        task: str | None = None,
        label: str | None = None,
    ) -> None:
        if not isinstance(table, pl.DataFrame) or not {*KEYS} < {*table.columns}:
            raise InputError(
                "table: use one with a row per head, such as head_importance, ablate_heads and probe give"
            )
        # Losses by ablation are the only values of their table.
        rows = (
            table.rename({"loss": "value"})
            if "value" not in table.columns and "loss" in table.columns
            else table
        )
        if "value" not in rows.columns:
            raise InputError("table: it has neither a column 'value' nor 'loss'")
        rows = rows.fill_nan(None).drop_nulls([*KEYS, "value"])
        if rows.is_empty():
            raise InputError("table: it has no value of a head")
        if not (rows.schema["value"].is_numeric() and all(rows.schema[key].is_integer() for key in KEYS[1:])):
            raise InputError("table: use one with whole numbers as layers and heads, and numbers as values")
        chosen = []
        for column, name in (("measure", measure), ("task", task), ("label", label)):
            if name is not None or column in rows.columns:
                rows, value = _of(rows, column, name)
                chosen.append(value)
        self.title = ", ".join(filter(None, chosen)) or "score lost without the head"
        twice = rows.height - rows.n_unique([*KEYS])
        if twice:
            raise InputError(f"table: {twice} of its heads have several values: filter its rows first")
        rows = rows.sort("value", descending=True, maintain_order=True)
        self.values = rows.select(*KEYS, "value")
        self._intervals = rows.select("low", "high").rows() if {"low", "high"} < {*rows.columns} else None

    def __repr__(self) -> str:
        """The heads by name, as lines."""
        named = [*zip(with_names(self.values)["name"], self._written(), strict=True)]
        width = 2 + max(len(name) for name, _ in named)
        rows = [f"{name:<{width}}{value}" for name, value in named]
        return "\n".join([self.title, *_few(rows, "… {} heads …")])

    def _written(self) -> list[str]:
        """The values, with their intervals if they have any."""
        values = [f"{value:.4g}" for value in self.values["value"]]
        if self._intervals is None:
            return values
        return [
            value if low is None else f"{value} ({low:.2g} to {high:.2g})"
            for value, (low, high) in zip(values, self._intervals, strict=True)
        ]

    def _repr_html_(self) -> str:
        """The same as notebooks show it."""
        names, values = with_names(self.values)["name"], self.values["value"].to_list()
        most = max(map(abs, values)) or 1.0
        rows = [
            f"<tr><td>{escape(name)}</td><td style='text-align: right'>{written}</td>"
            f"<td style='width: 12em'><div style='width: {100 * abs(value) / most:.1f}%; height: 0.7em; "
            f"background: {'#D55E00' if value >= 0 else '#0072B2'}'></div></td></tr>"
            for name, value, written in zip(names, values, self._written(), strict=True)
        ]
        head = f"<tr><th>head</th><th colspan='2'>{escape(self.title)}</th></tr>"
        rows = _few(rows, "<tr><td colspan='3'>… {} heads …</td></tr>")
        return f"<table>{head}{''.join(rows)}</table>"


def _few(rows: list[str], between: str) -> list[str]:
    """The first and last rows, and between them how many others there are."""
    left_out = len(rows) - 2 * _SHOWN
    return rows if left_out <= 0 else [*rows[:_SHOWN], between.format(left_out), *rows[-_SHOWN:]]


def _of(rows: pl.DataFrame, column: str, name: str | None) -> tuple[pl.DataFrame, str]:
    """The rows of one measure, task or label, and its name."""
    if column not in rows.columns:
        raise InputError(f"{column}={short_text(name)}: the table has no column of {column}s: leave it out")
    names = rows[column].cast(pl.String).unique(maintain_order=True).drop_nulls().to_list()
    if name is None:
        preferred = [each for each in _PREFERRED if each in names] if column == "measure" else []
        if len(names) > 1 and not preferred:
            raise InputError(
                f"the table has several {column}s: choose one with {column}= ({', '.join(names)})"
            )
        name = preferred[0] if preferred else names[0]
    if not isinstance(name, str) or name not in names:
        raise InputError(f"{column}={short_text(name)}: the table has only {', '.join(names)}")
    return rows.filter(pl.col(column).cast(pl.String) == name), name


def plot_heads(
    table: pl.DataFrame,
    *,
    measure: str | None = None,
    task: str | None = None,
    label: str | None = None,
    ax: Axes | None = None,
) -> tuple[Figure, Axes]:
    """Draw a value per head as a map, with layers downwards in the order of the model.

    Args:
        table: as for `HeadTable`, as are `measure`, `task` and `label`.
        measure: see there.
        task: see there.
        label: see there.
        ax: where to draw; `None`: a new figure.

    Returns:
        The figure and its axes, to change and to save.

    Raises:
        InputError: as `HeadTable` does.
    """
    if ax is not None and not isinstance(ax, Axes):
        raise InputError(f"ax={short_text(ax)}: use axes of matplotlib")
    heads = HeadTable(table, measure, task, label)
    kinds = kinds_in_order(heads.values["attention"].cast(pl.String))
    place = pl.col("attention").cast(pl.String).replace_strict(kinds, range(len(kinds)))
    values = heads.values.sort(place, "layer", "head")
    if ax is None:
        figure = values_of_heads(values, heads.title)
        return figure, figure.axes[0]
    draw_values(values, heads.title, ax)
    return figure_of(ax), ax


def lowest(
    table: pl.DataFrame,
    n: int,
    *,
    measure: str | None = None,
    task: str | None = None,
    label: str | None = None,
    model: nn.Module | None = None,
    family: Family | str | None = None,
) -> dict[int, list[int]]:
    """The `n` heads with the lowest values, as `prune_heads` takes them.

    Args:
        table: as for `HeadTable`, as are `measure`, `task` and `label`.
        n: how many heads; among equal ones, the first in the model are taken.
        measure: see there.
        task: see there.
        label: see there.
        model: the model, needed if it has several kinds of attention: its sites are numbered over all kinds,
            and the table may lack some of them.
        family: as in `prune_heads`.

    Returns:
        The numbers of heads by layer; with several kinds of attention, by the number of the site.

    Raises:
        InputError: as `HeadTable` does; for more heads than the table has; for heads of other kinds of
            attention than `self` without `model`; or with a model that lacks them.
    """
    values = HeadTable(table, measure, task, label).values
    n = whole_number(n, "n", 0)
    if n > values.height:
        raise InputError(f"n={n}: the table has {values.height} heads")
    numbers = _site_numbers(values, model, row_given(family))
    places = pl.DataFrame(
        [(*site, number) for site, number in numbers.items()],
        {"attention": pl.String, "layer": values.schema["layer"], "site": pl.Int64},
        orient="row",
    )
    in_model = (
        values.with_columns(pl.col("attention").cast(pl.String))
        .join(places, on=("attention", "layer"))
        .sort("value", "layer", "head", "site")
    )
    found: dict[int, list[int]] = {}
    for site, head in in_model.head(n).select("site", "head").iter_rows():
        found.setdefault(site, []).append(head)
    return {site: sorted(heads) for site, heads in sorted(found.items())}


def _site_numbers(values: pl.DataFrame, model: nn.Module | None, family: Family | None) -> dict[Site, int]:
    """The number in the model of each site of the table."""
    sites = sites_of(values)
    if model is None:
        kinds = kinds_in_order(site.attention for site in sites)
        if kinds != ["self"]:
            raise InputError(
                f"the table has heads of other kinds of attention than self ({', '.join(kinds)}), and the "
                "numbers of sites run over all kinds that a model has: use lowest(…, model=MODEL)"
            )
        return {site: site.layer for site in sites}
    of_model = tapped(model, "lowest", family)[2].sites
    for site in sites:
        if site not in of_model:
            raise InputError(f"the table has {layer_name(site, sites)}, which the model lacks: use its own")
    return {site: of_model.index(site) for site in sites}
