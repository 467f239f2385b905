"""What relevance adds to the core: a group of measures, with its command."""

from __future__ import annotations

from mtl.features import Feature, FigureRow, Measure, MeasureGroup

FEATURE = Feature(
    measures={
        "relevance": MeasureGroup(
            "mtl.relevance.measure:measure_relevance",
            (
                Measure(
                    "relevance", "share of its layer's relevance for the score of a task",
                    predictor="relevance",
                ),
                Measure("relevance_signed", "relevance for the score of a task", unit="number"),
            ),
            "measure how much of a task's score passes through each attention head",
            shown="mtl.relevance.measure:show_relevance",
            after="ablation",
        )
    },
    figures={
        "contributions": FigureRow(
            "what the source contributes to translations by position, of runs that mtl relevance "
            "--contributions measured",
            "mtl.relevance.contributions:draw_contributions",
            uses=(),
            after="agreement",
        )
    },
)  # fmt: skip
