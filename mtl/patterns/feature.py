"""What patterns add to the core: a group of measures, with its command."""

from __future__ import annotations

from mtl.features import Feature, Measure, MeasureGroup

FEATURE = Feature(
    measures={
        "patterns": MeasureGroup(
            "mtl.patterns.measure:measure_patterns",
            (
                Measure(
                    "sink", "share of the attention of words that goes to no word", predictor="sink share"
                ),
                Measure(
                    "entropy", "mean entropy of the attention of words, in nats", unit="nats",
                    predictor="entropy",
                ),
            ),
            "measure how much of each head's attention goes to special tokens, and how widely it spreads",
            after="importance",
        )
    }
)  # fmt: skip
