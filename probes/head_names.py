"""The name of a head, which is made and read only here: `L2H9`, both numbers from 0, as in transformers.

If a model has several kinds of attention, the kind comes first (`cross L2H9`). A layer is called `L2`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from mtl.probes.sites import KEYS, Site, several_kinds, sites_of

_NAME = re.compile(
    r"(?:(?P<kind>[a-z]+)[. ] *)?"
    r"(?:L(?P<layer>[0-9]+)(?:H(?P<head>[0-9]+))?|(?P<bare_layer>[0-9]+)(?:\.(?P<bare_head>[0-9]+))?)",
    re.IGNORECASE,
)
_FROM_ONE = re.compile(r"\bL[0-9]+ +H[0-9]+", re.IGNORECASE)


def layer_name(site: Site, sites: Sequence[Site] = ()) -> str:
    """A layer's name in a model of these sites: `L2`, or `cross L2` with several kinds of attention.

    Without `sites`, there is one kind.
    """
    return f"{site.attention} L{site.layer}" if several_kinds(sites) else f"L{site.layer}"


def head_name(site: Site, head: int | None, sites: Sequence[Site] = ()) -> str:
    """A head's name in a model of these sites; the name of the layer for `None`."""
    layer = layer_name(site, sites)
    return layer if head is None else f"{layer}H{head}"


def cell_names(sites: Sequence[Site], heads: int) -> list[str]:
    """The names of all heads, site by site, for sites of `heads` heads each."""
    return [head_name(site, head, sites) for site in sites for head in range(heads)]


def read_head(text: str, sites: Sequence[Site], heads: int) -> tuple[int, int | None]:
    """The number of the site and the head that a name stands for; the head is `None` for a whole layer.

    Besides `L2H9`, `L2`, `cross L2H9` and `cross L2`, bare numbers are read (`2.9`, `2`), and so is a dot
    after the kind (`cross.L2H9`, `cross.2.9`). Raises `ValueError` with one line for a text that is no name
    or lacks the kind, and for a head that a model of these sites, with `heads` heads each, does not have.
    """
    kinds = list(dict.fromkeys(site.attention for site in sites))
    match = _NAME.fullmatch(text.strip())
    if match is None or (match["kind"] is None and len(kinds) > 1):
        if _FROM_ONE.search(text):
            raise ValueError(
                "names with a blank between layer and head are from older reports and count from 1: take 1 "
                "off both numbers and leave out the blank, as in L2H9"
            )
        before = f"{kinds[-1]} " if len(kinds) > 1 else ""
        raise ValueError(f"write a head as {before}L2H9 and a whole layer as {before}L2, both counted from 0")
    kind = (match["kind"] or kinds[0]).lower()
    if kind not in kinds:
        raise ValueError(f"the model has no attention of kind {kind}: it has {', '.join(kinds)}")
    layer = int(match["layer"] or match["bare_layer"])
    number = match["head"] or match["bare_head"]
    head = None if number is None else int(number)
    if Site(kind, layer) not in sites or (head is not None and head >= heads):
        layers = sum(site.attention == kind for site in sites)
        raise ValueError(f"the model has layers 0 to {layers - 1} of heads 0 to {heads - 1}")
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
