"""Sites: the layers of each kind of attention, each with a row of heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from jaxtyping import Float

from mtl.tasks.in_words import counted

KEYS = ("attention", "layer", "head")
"""The columns that name a head in every table."""
KINDS = ("self", "vision", "text", "encoder", "decoder", "cross")
"""The kinds of attention in the order of a model's sites, for tables whose rows are in another order."""


class Site(NamedTuple):
    """A layer of one kind of attention."""

    attention: str
    """The kind of attention; `self` in encoders."""
    layer: int
    """The number of the layer within its kind, from 0."""


def sites_of(table: pl.DataFrame) -> tuple[Site, ...]:
    """The sites of a table: kinds in the order in which they first appear, and the layers of each ascending.

    Rows without a layer do not count.
    """
    return sites_among(table.select("attention", "layer").unique(maintain_order=True).iter_rows())


def sites_among(places: Iterable[tuple[Any, Any]]) -> tuple[Site, ...]:
    """As `sites_of`, from pairs of a kind of attention and a layer."""
    rows = [Site(kind, layer) for kind, layer in dict.fromkeys(places) if None not in (kind, layer)]
    kinds = list(dict.fromkeys(site.attention for site in rows))
    return tuple(sorted(rows, key=lambda site: (kinds.index(site.attention), site.layer)))


def kinds_in_order(kinds: Iterable[str]) -> list[str]:
    """These kinds of attention, each once, in the order of `KINDS`; unknown ones after them."""
    there = set(kinds)
    return [*(kind for kind in KINDS if kind in there), *sorted(there.difference(KINDS))]


def in_order(sites: Sequence[Site]) -> pl.Expr:
    """The place of the column `attention` in the order of the kinds, to sort tables by."""
    kinds = list(dict.fromkeys(site.attention for site in sites))
    return pl.col("attention").replace_strict(
        {kind: place for place, kind in enumerate(kinds)}, default=len(kinds), return_dtype=pl.Int32
    )


def numbered(rows: pl.DataFrame, sites: Sequence[Site]) -> pl.DataFrame:
    """The rows with a column `site`, the place of each row's site among these."""
    names = pl.DataFrame(sites, schema={"attention": pl.String, "layer": rows.schema["layer"]}, orient="row")
    return rows.join(names.with_row_index("site"), on=["attention", "layer"], maintain_order="left")


def grid(
    rows: pl.DataFrame, column: str, sites: Sequence[Site], heads: int
) -> Float[np.ndarray, "site head"]:
    """A column of a table with a row per head, laid out by site and head; NaN if there is no row or value."""
    place = {site: number for number, site in enumerate(sites)}
    values = np.full((len(sites), heads), np.nan)
    for kind, layer, head, value in zip(*(rows[name].to_list() for name in (*KEYS, column)), strict=True):
        if head is not None and value is not None:
            values[place[Site(kind, layer)], head] = value
    return values


def several_kinds(sites: Sequence[Site]) -> bool:
    """Whether there is more than one kind of attention, so that a layer's number alone does not name it."""
    return len({site.attention for site in sites}) > 1


def kind_starts(sites: Sequence[Site]) -> list[int]:
    """The places of the sites with which a kind of attention begins."""
    return [
        place for place, site in enumerate(sites) if not place or sites[place - 1].attention != site.attention
    ]


def shape_text(sites: Sequence[Site], heads: int) -> str:
    """`6 layers of 12 heads`, or `6 encoder, 6 decoder and 6 cross layers of 8 heads`."""
    counts: dict[str, int] = {}
    for site in sites:
        counts[site.attention] = counts.get(site.attention, 0) + 1
    if len(counts) <= 1:
        return f"{counted(len(sites), 'layer')} of {counted(heads, 'head')}"
    *first, (last, number) = counts.items()
    others = ", ".join(f"{count} {kind}" for kind, count in first)
    return f"{others} and {counted(number, f'{last} layer')} of {counted(heads, 'head')}"
