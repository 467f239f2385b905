"""Tables of heads in a notebook: a picture, a list by name, and the heads to cut."""

from __future__ import annotations

from html import escape

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtl.errors import InputError
from mtl.heads.arguments import shown, whole_number
from mtl.probes.figures.style import figure_of
from mtl.probes.figures.values_of_heads import draw_values, values_of_heads
from mtl.probes.head_names import with_names
from mtl.probes.sites import KEYS, Site, several_kinds, sites_of

_PREFERRED = ("importance", "ablation")
"""The measures that are taken, in this order, where a table has several."""
_SHOWN = 10
"""Heads that a notebook shows at each end."""


class HeadTable:
    """A value per head, from a table of `head_importance`, `ablate_heads`, `probe` or heads.parquet.

    Notebooks show it as a list by name. Rows of whole layers and rows without a value are left out.

    Args:
        table: the table.
        measure: the measure, where there are several; `None`: importance or ablation, or the only one.
        task: the task, where there are several.
        label: the label, where there are several.

    Raises:
        InputError: the table is not one of heads, it lacks the measure, task or label, or it has several and
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
        rows = rows.drop_nulls([*KEYS, "value"])
        if rows.is_empty():
            raise InputError("table: it has no value of a head")
        chosen = []
        for column, name in (("measure", measure), ("task", task), ("label", label)):
            if name is not None or column in rows.columns:
                rows, value = _of(rows, column, name)
                chosen.append(value)
        self.title = ", ".join(filter(None, chosen)) or "loss by ablation"
        twice = rows.height - rows.n_unique([*KEYS])
        if twice:
            raise InputError(f"table: {twice} of its heads have several values: filter its rows first")
        self.values = rows.select(*KEYS, "value").sort("value", descending=True, maintain_order=True)

    def _repr_html_(self) -> str:
        """The heads by name, as notebooks show them."""
        named = with_names(self.values)
        most = max(map(abs, named["value"].to_list())) or 1.0
        rows = [
            f"<tr><td>{escape(name)}</td><td style='text-align: right'>{value:.4g}</td>"
            f"<td style='width: 12em'><div style='width: {100 * abs(value) / most:.1f}%; height: 0.7em; "
            f"background: {'#D55E00' if value >= 0 else '#0072B2'}'></div></td></tr>"
            for name, value in named.select("name", "value").iter_rows()
        ]
        if len(rows) > 2 * _SHOWN:
            between = f"<tr><td colspan='3'>… {len(rows) - 2 * _SHOWN} heads …</td></tr>"
            rows = [*rows[:_SHOWN], between, *rows[-_SHOWN:]]
        head = f"<tr><th>head</th><th colspan='2'>{escape(self.title)}</th></tr>"
        return f"<table>{head}{''.join(rows)}</table>"


def _of(rows: pl.DataFrame, column: str, name: str | None) -> tuple[pl.DataFrame, str]:
    """The rows of one measure, task or label, and its name."""
    if column not in rows.columns:
        raise InputError(f"{column}={shown(name)}: the table has no {column}s")
    names = rows[column].cast(pl.String).unique(maintain_order=True).drop_nulls().to_list()
    if name is None:
        preferred = [each for each in _PREFERRED if each in names] if column == "measure" else []
        if len(names) > 1 and not preferred:
            raise InputError(
                f"the table has several {column}s: choose one with {column}= ({', '.join(names)})"
            )
        name = preferred[0] if preferred else names[0]
    if not isinstance(name, str) or name not in names:
        raise InputError(f"{column}={shown(name)}: the table has only {', '.join(names)}")
    return rows.filter(pl.col(column).cast(pl.String) == name), name


def plot_heads(
    table: pl.DataFrame,
    *,
    measure: str | None = None,
    task: str | None = None,
    label: str | None = None,
    ax: Axes | None = None,
) -> tuple[Figure, Axes]:
    """Draw a value per head as a map, layers downwards.

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
        raise InputError(f"ax={shown(ax)}: use axes of matplotlib")
    heads = HeadTable(table, measure, task, label)
    if ax is None:
        figure = values_of_heads(heads.values, heads.title)
        return figure, figure.axes[0]
    draw_values(heads.values, heads.title, ax)
    return figure_of(ax), ax


def lowest(
    table: pl.DataFrame,
    n: int,
    *,
    measure: str | None = None,
    task: str | None = None,
    label: str | None = None,
) -> dict[int, list[int]]:
    """The `n` heads with the lowest values, as `prune_heads` takes them.

    Args:
        table: as for `HeadTable`, as are `measure`, `task` and `label`.
        n: how many heads; of equal ones the first in the model are taken.
        measure: see there.
        task: see there.
        label: see there.

    Returns:
        The numbers of heads by layer; with several kinds of attention by the number of the site.

    Raises:
        InputError: as `HeadTable` does, and for more heads than the table has.
    """
    values = HeadTable(table, measure, task, label).values
    n = whole_number(n, "n", 0)
    if n > values.height:
        raise InputError(f"n={n}: the table has {values.height} heads")
    sites = sites_of(table)
    found: dict[int, list[int]] = {}
    in_model = values.sort("layer", "head", maintain_order=True).sort("value", maintain_order=True)
    for attention, layer, head in in_model.head(n).select(*KEYS).iter_rows():
        site = sites.index(Site(attention, layer)) if several_kinds(sites) else layer
        found.setdefault(site, []).append(head)
    return {site: sorted(heads) for site, heads in sorted(found.items())}
