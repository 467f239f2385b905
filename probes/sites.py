"""Sites of heads in a model, and the names of heads.

If a model has several kinds of attention, or is a part of one that has, the kind comes first (`cross L2H9`).
A layer is called `L2`.
"""

from __future__ import annotations

import re
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


def attention_order(sites: Sequence[Site]) -> pl.Expr:
    """The place of the column `attention` in the order of the kinds, to sort tables by."""
    kinds = list(dict.fromkeys(site.attention for site in sites))
    return pl.col("attention").replace_strict(
        {kind: place for place, kind in enumerate(kinds)}, default=len(kinds), return_dtype=pl.Int32
    )


def with_site_numbers(rows: pl.DataFrame, sites: Sequence[Site]) -> pl.DataFrame:
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


_NAME = re.compile(
    r"(?:(?P<kind>[a-z]+)[. ] *)?"
    r"(?:L(?P<layer>[0-9]+)(?:H(?P<head>[0-9]+))?|(?P<bare_layer>[0-9]+)(?:\.(?P<bare_head>[0-9]+))?)",
    re.IGNORECASE,
)


def layer_name(site: Site, sites: Sequence[Site] = ()) -> str:
    """A layer's name in a model of these sites: `L2`, or `cross L2` with several kinds of attention.

    Without `sites`, there is one kind. Only `self` may be left out: any other kind is one of several in the
    whole model, of which a table or a stack may have this one alone.
    """
    named = several_kinds(sites) or site.attention not in ("self", "")
    return f"{site.attention} L{site.layer}" if named else f"L{site.layer}"


def head_name(site: Site, head: int | None, sites: Sequence[Site] = ()) -> str:
    """A head's name in a model of these sites; the name of the layer for `None`."""
    layer = layer_name(site, sites)
    return layer if head is None else f"{layer}H{head}"


def cell_names(sites: Sequence[Site], heads: int) -> list[str]:
    """The names of all heads, site by site, for sites of `heads` heads each."""
    return [head_name(site, head, sites) for site in sites for head in range(heads)]


def kind_in(text: str) -> str | None:
    """The kind of attention that the name of a head or layer begins with; `None` if it names none."""
    match = _NAME.fullmatch(text.strip())
    return match["kind"].lower() if match is not None and match["kind"] else None


def read_head(text: str, sites: Sequence[Site], heads: int) -> tuple[int, int | None]:
    """The number of the site and the head that a name stands for; the head is `None` for a whole layer.

    Besides `L2H9`, `L2`, `cross L2H9` and `cross L2`, bare numbers are read (`2.9`, `2`), and so is a dot
    after the kind (`cross.L2H9`, `cross.2.9`). Raises `ValueError` with one line for a text that is no name
    or lacks the kind, and for a head that a model of these sites, with `heads` heads each, does not have.
    """
    kinds = list(dict.fromkeys(site.attention for site in sites))
    match = _NAME.fullmatch(text.strip())
    if match is None or (match["kind"] is None and len(kinds) > 1):
        before = f"{kinds[-1]} " if len(kinds) > 1 else ""
        raise ValueError(f"write a head as {before}L2H9 and a whole layer as {before}L2, both counted from 0")
    kind = kind_in(text) or kinds[0]
    if kind not in kinds:
        raise ValueError(f"the model has no attention of kind {kind}: it has {', '.join(kinds)}")
    layer = int(match["layer"] or match["bare_layer"])
    number = match["head"] or match["bare_head"]
    head = None if number is None else int(number)
    if Site(kind, layer) not in sites or (head is not None and head >= heads):
        layers = sum(site.attention == kind for site in sites)
        whose = f"the model's {kind} attention" if len(kinds) > 1 else "the model"
        raise ValueError(f"{whose} has layers 0 to {layers - 1} of heads 0 to {heads - 1}")
    return list(sites).index(Site(kind, layer)), head


def with_names(table: pl.DataFrame) -> pl.DataFrame:
    """The table with a column `name` after layer and head, if it has a row per head or layer.

    Rows that belong to no layer have no name; rows without a head have the layer's name.
    """
    if "name" in table.columns or not table.schema.get("layer", pl.String).is_integer():
        return table
    keys = [key for key in KEYS if key in table.columns]
    sites = sites_of(table) if "attention" in keys else ()
    names = [_of_row(row, sites) for row in table.select(keys).iter_rows(named=True)]
    after = max(table.columns.index(key) for key in keys) + 1
    return table.clone().insert_column(after, pl.Series("name", names, dtype=pl.String))


def by_name(table: pl.DataFrame) -> pl.DataFrame:
    """The table with only the name instead of the columns for attention, layer and head."""
    named = with_names(table)
    if named is table:
        return table
    title = "head" if "head" in table.columns else "layer"
    return named.drop([key for key in KEYS if key in table.columns]).rename({"name": title})


def _of_row(row: dict[str, int | str | None], sites: Sequence[Site]) -> str | None:
    layer, head = row["layer"], row.get("head")
    if layer is None:
        return None
    site = Site(str(row.get("attention", "")), int(layer))
    return head_name(site, None if head is None else int(head), sites)
