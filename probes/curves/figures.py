"""Pruning curves: scores, roles and time against the heads that are kept; and their part of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.curves.curve_table import UNITS
from mtl.probes.figures.style import FAINT, SeriesStyle, looks_of, styled, task_panels
from mtl.probes.report.data import embedded
from mtl.probes.report.page_part import PageData, ShownEvidence
from mtl.probes.sites import KINDS, kinds_in_order
from mtl.probes.statistics.head_values import ROLES
from mtl.probes.tables.table_files import About, tasks_in
from mtl.tasks.in_words import counted

METHOD_NAMES = {
    "importance": "importance",
    "recomputed": "importance, recomputed",
    "random": "random order",
    "greedy": "greedy by score",
    "gates": "learned gates",
    "rare_words": "rare words",
}
"""How legends print methods and roles; other names are printed with spaces."""


@styled
def pruning_curves(
    points: pl.DataFrame, metrics: Mapping[str, str], known: Sequence[str] = tuple(METHOD_NAMES)
) -> Figure:
    """A panel for each task and a line for each method: score against the share of heads kept.

    `points`: rows of curve.parquet with a column `run`. `metrics`: the name of each task's score. `known`:
    methods that have looks by their order (`looks_of`). A line is the mean over runs and draws, with a band
    of one standard deviation (n - 1) to both sides. Learned gates are points, since each is a training of its
    own. Dashed lines are models that were trained on after heads were cut out.
    """
    tasks, methods = tasks_in(points), list(points["by"].unique(maintain_order=True))
    panels = task_panels(tasks, looks_of(methods, known=known), metrics)
    for task, axes in panels.by_task.items():
        of_task = points.filter(pl.col("task") == task)
        for (method, epochs), rows in of_task.group_by("by", "trained_epochs", maintain_order=True):
            _drawn(axes, rows, "score", panels.looks[str(method)], str(method), broken=bool(epochs))
        axes.set_xlim(-2, 102)
    handles = [look.key(_title(name), 2.8, float(name != "gates")) for name, look in panels.looks.items()]
    epochs_after = [number for number in points["trained_epochs"].unique().sort() if number]
    if epochs_after:
        unit = "epoch" if epochs_after == [1] else "epochs"
        words = f"cut, and trained on for {', '.join(map(str, epochs_after))} {unit}"
        handles.append(Line2D([], [], color=FAINT, linewidth=1.0, linestyle="--", label=words))
    bands = any(axes.collections for axes in panels.by_task.values())
    spread = " (bands: standard deviation over runs and draws)" if bands else ""
    return panels.finished(f"heads kept, %{spread}", handles)


@styled
def role_curves(survival: pl.DataFrame) -> Figure:
    """A panel for each method: the share kept of heads with a role, against the share kept of all heads.

    `survival`: rows of `surviving_roles` with a column `run`. Lines are means over runs, tasks and draws,
    bands are standard deviations (n - 1), and the dotted line is what chance would keep.
    """
    names = {name: _title(name) for name in survival["role"].unique(maintain_order=True)}
    return _survival_curves(survival, "role", names, ROLES, "heads of a role kept, %")


@styled
def kind_curves(survival: pl.DataFrame) -> Figure:
    """A panel for each method: the share kept of each kind of attention, against the share kept of all heads.

    `survival`: rows of `surviving_kinds` with a column `run`. On the dotted line, a kind keeps the same share
    as all heads; a kind below it goes before the others. The legend has the number of heads at the start.
    """
    most = dict(survival.group_by("attention").agg(pl.col("at_start").max()).iter_rows())
    names = {kind: f"{kind} ({counted(most[kind], 'head')})" for kind in kinds_in_order(most)}
    return _survival_curves(survival, "attention", names, KINDS, "heads of a kind kept, %")


def _survival_curves(
    survival: pl.DataFrame, group: str, names: Mapping[str, str], known: Sequence[str], axis: str
) -> Figure:
    methods = list(survival["by"].unique(maintain_order=True))
    panels = task_panels(methods, looks_of(names, known=known), {})
    for method, axes in panels.by_task.items():
        axes.set_title(_title(method).replace(", ", ",\n"))  # as wide as a panel
        axes.set_ylabel("")
        axes.plot([0, 100], [0, 100], color=FAINT, linewidth=0.8, linestyle=":")
        of_method = survival.filter(pl.col("by") == method).with_columns(pl.col("surviving") * 100)
        for name, look in panels.looks.items():
            _drawn(axes, of_method.filter(pl.col(group) == name), "surviving", look, method)
        axes.set_xlim(-2, 102)
        axes.set_ylim(-4, 104)
    panels.figure.supylabel(axis, fontsize=7)
    handles = [look.key(names[name], 2.8, 1.0) for name, look in panels.looks.items()]
    return panels.finished("heads kept, % (dotted: by chance)", handles)


@styled
def time_curves(times: pl.DataFrame) -> Figure:
    """A panel for each task: a cut encoder's time per sentence over the uncut one's, a line per batch size.

    `times`: rows of curve_time.parquet with a column `run`. Dashed lines are counted operations.
    """
    tasks = tasks_in(times)
    sizes = [str(size) for size in times["batch"].unique().sort()]
    panels = task_panels(tasks, looks_of(sizes), {})
    for task, axes in panels.by_task.items():
        axes.set_ylabel("% of the uncut encoder")
        of_task = times.filter(pl.col("task") == task).with_columns(
            pl.col("seconds_of_whole", "operations_of_whole") * 100
        )
        for (size,), rows in of_task.group_by("batch", maintain_order=True):
            look = panels.looks[str(size)]
            _line(axes, rows, "seconds_of_whole", look)
        _line(axes, of_task, "operations_of_whole", SeriesStyle(FAINT, ""), broken=True)
        axes.set_xlim(-2, 102)
    handles = [
        look.key(f"{size} sentence{'s' * (size != '1')} per batch", 2.8, 1.0)
        for size, look in panels.looks.items()
    ]
    handles.append(Line2D([], [], color=FAINT, linewidth=1.0, linestyle="--", label="counted operations"))
    return panels.finished("heads kept, %", handles)


def mean_curves(points: pl.DataFrame, value: str, by: Sequence[str]) -> pl.DataFrame:
    """At each share of heads kept: a value's mean, its standard deviation (n - 1; null for one), its number.

    Shares that round to the same per cent are taken together, since runs may differ by a head.
    """
    percent = (100 * pl.col("share")).round().alias("percent")
    return (
        points.group_by(*by, percent, maintain_order=True)
        .agg(pl.col(value).mean(), spread=pl.col(value).std(), curves=pl.len())
        .sort(*by, "percent", descending=[False] * len(by) + [True], maintain_order=True)
    )


def _drawn(
    axes: Axes, rows: pl.DataFrame, value: str, look: SeriesStyle, method: str, *, broken: bool = False
) -> None:
    """Points for learned gates, each of which is a training of its own; a line for any other method."""
    if method != "gates":
        _line(axes, rows, value, look, broken=broken)
        return
    axes.plot(
        100 * rows["share"], rows[value], marker=look.shape, linestyle="none", color=look.colour, markersize=3
    )


def _line(axes: Axes, rows: pl.DataFrame, value: str, look: SeriesStyle, *, broken: bool = False) -> None:
    means = mean_curves(rows, value, ())
    axes.plot(
        means["percent"], means[value], color=look.colour, linewidth=1.0, linestyle="--" if broken else "-",
        marker=look.shape, markersize=2.6, markeredgewidth=0.5,
    )  # fmt: skip
    if means["spread"].null_count() < means.height:
        spread = means["spread"].fill_null(0)
        axes.fill_between(
            means["percent"], means[value] - spread, means[value] + spread, color=look.colour, alpha=0.15,
            linewidth=0,
        )  # fmt: skip


def _title(name: str) -> str:
    return METHOD_NAMES.get(name, name.replace("_", " "))


_FIGURE = Markup(
    '<figure class="drawn">{}<figcaption class="long">{}: score on {} as heads are closed (pruning curves).'
    "</figcaption></figure>\n"
)
_KINDS = Markup(
    '<figure class="drawn">{}<figcaption class="long">{}: heads of each kind of attention that are kept. A '
    "kind below the dotted line\nis closed before the others.</figcaption></figure>\n"
)


def shown_curves(page: PageData) -> ShownEvidence:
    """What the page shows of curves: figures in the section on scores, and two tables."""
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
