"""Labelled spans that must not overlap."""

from __future__ import annotations

from collections.abc import Iterable

from mtl.tasks.sentence import Span


def without_overlaps(spans: Iterable[Span]) -> list[Span]:
    """The spans in order of the text; of overlapping ones the first, the longest if they start together."""
    disjoint: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if not disjoint or span.start >= disjoint[-1].end:
            disjoint.append(span)
    return disjoint
