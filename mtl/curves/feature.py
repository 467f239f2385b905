"""What pruning curves add to the core."""

from __future__ import annotations

from mtl.features import Command, Evidence, Feature, FigureRow, Keys, MeasureGroup

_RUNS = "mtl.curves.runs"
_KEYS = "mtl.curves.keys"
_SCORED = ("tasks", "split")

FEATURE = Feature(
    commands={
        "curve": Command(
            "mtl.curves.command:curve", "score a model with fewer and fewer heads", resumes=True,
            answers=True, after="ablate",
        ),
    },
    measures={
        "curve": MeasureGroup(
            "mtl.curves.curve:methods_of",
            made_by="mtl curve RUN",
            settings=("split", "sentences", "orders", "draws"),
            keys={"orders": f"{_KEYS}:ORDERS_KEY", "draws": f"{_KEYS}:DRAWS_KEY"},
            file="curve.parquet",
            by_settings="mtl.curves.curve:measure_curves",
            check="mtl.curves.orders:check_measured",
            after="ablation",
        ),
    },
    keys={
        "trained_parts": Keys(
            f"{_KEYS}:PARTS_KEY", f"{_KEYS}:trains_no_encoder", f"{_KEYS}:refuse_parts",
            start=f"{_KEYS}:freeze_other_parts", joint=False,
        ),
    },
    figures={
        "curve-roles": FigureRow(
            "roles that survive along pruning curves", f"{_RUNS}:draw_curve_roles", uses=_SCORED,
            after="curve",
        ),
        "curve-epochs": FigureRow(
            "pruning curves after epochs of the training (mtl curve --epoch=N)",
            f"{_RUNS}:draw_curve_epochs", uses=_SCORED, after="curve-time",
        ),
        "curve-time": FigureRow(
            "time per sentence of cut models along pruning curves", f"{_RUNS}:draw_curve_times",
            after="curve-kinds",
        ),
    },
    evidence={
        "pruning-curves": Evidence(
            title="pruning curves",
            table=f"{_RUNS}:points_of_report",
            of_report=f"{_RUNS}:runs_of_figures",
            shown="mtl.probes.curves.figures:shown_curves",
            tables=("pruning-curves.*", "pruning-kinds.*"),
            figures={
                "curve": FigureRow(
                    "score against heads kept, of runs with pruning curves (mtl curve)",
                    f"{_RUNS}:draw_curves", uses=_SCORED, after="importance-over-time",
                ),
                "curve-kinds": FigureRow(
                    "heads of each kind of attention that are kept along pruning curves: which kind goes "
                    "first",
                    f"{_RUNS}:draw_curve_kinds", uses=_SCORED, after="curve-roles",
                ),
            },
        ),
        "pruning-kinds": Evidence(
            title="kinds of attention along pruning curves", table=f"{_RUNS}:kinds_of_report"
        ),
    },
)  # fmt: skip
