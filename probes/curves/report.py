"""Pruning curves in the report: figures in the section on scores, and two tables."""

from __future__ import annotations

import polars as pl
from markupsafe import Markup

from mtl.probes.curves.curve_table import UNITS
from mtl.probes.curves.figures import kind_curves, pruning_curves
from mtl.probes.report.data import embedded
from mtl.probes.report.page_part import PageData, ShownEvidence
from mtl.probes.tables.table_files import About

_FIGURE = Markup(
    '<figure class="drawn">{}<figcaption class="long">{}: score on {} as heads are closed (pruning curves).'
    "</figcaption></figure>\n"
)
_KINDS = Markup(
    '<figure class="drawn">{}<figcaption class="long">{}: heads of each kind of attention that are kept. A '
    "kind below the dotted line\nis closed before the others.</figcaption></figure>\n"
)


def shown_curves(page: PageData) -> ShownEvidence:
    """What the page shows of curves."""
    points = page.data.evidence.get("pruning-curves")
    if points is None:
        return ShownEvidence()
    kinds = page.data.evidence.get("pruning-kinds")
    about = {
        "pruning-curves": About(UNITS, ("share: of the heads that were open at the start",)),
        "pruning-kinds": About(
            UNITS, ("share: of all heads that are kept; surviving: of the heads of this kind",)
        ),
    }
    tables = {"pruning-curves": points} | ({} if kinds is None else {"pruning-kinds": kinds})
    return ShownEvidence(on_scores=_figures(points, kinds, page.data.split), tables=tables, about=about)


def _figures(points: pl.DataFrame, kinds: pl.DataFrame | None, split: str) -> Markup:
    """Per setup its pruning curves, and the heads kept of each kind of attention, if there are several."""
    figures = dict(points.select("task", "figure").unique(maintain_order=True).iter_rows())
    html = Markup()
    for setup in points["setup"].unique(maintain_order=True):
        drawn = pruning_curves(points.filter(setup=setup), figures)
        html += Markup('<div class="maps">\n')
        html += _FIGURE.format(embedded(drawn, f"pruning curves, {setup}"), setup, split)
        of_setup = None if kinds is None else kinds.filter(setup=setup)
        if of_setup is not None and of_setup.height:
            by_kind = embedded(kind_curves(of_setup), f"heads kept by kind of attention, {setup}")
            html += _KINDS.format(by_kind, setup)
        html += Markup("</div>")
    return html
