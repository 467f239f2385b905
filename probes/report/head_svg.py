"""Heads as small squares, layers downwards: inline SVG with one path for each shade."""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Float
from markupsafe import Markup, escape

LEVELS = 20
"""Shades beside white; finer ones are not told apart by eye."""


def head_map(values: Float[np.ndarray, "layer head"], title: str, axes: bool = False) -> Markup:
    """Values from 0 (ground) to 1 (full colour), from -1 for the opposite colour; NaN is left blank.

    The square `mark` is moved to the head that is pointed at. With `axes` layers and heads are numbered,
    from 1.
    """
    layers, heads = values.shape
    paths = [
        _path(np.rint(np.nan_to_num(sign * values) * LEVELS).astype(int), name)
        for sign, name in ((1, "up"), (-1, "down"))
    ]
    room = 1.6 if axes else 0.0
    box = f"{-room:g} {-room:g} {heads + room:g} {layers + room:g}"
    return Markup(
        f'<svg class="map{" axes" if axes else ""}" viewBox="{box}" data-heads="{heads}" '
        f'style="--columns:{heads + room:g}" role="img" aria-label="{escape(title)}">'
        f'<path class="ground" d="M0 0h{heads}v{layers}h-{heads}z"/>{"".join(paths)}'
        f"{_axes(layers, heads) if axes else ''}"
        '<rect class="mark" width="1" height="1" hidden=""/></svg>'
    )


def _path(level: np.ndarray, name: str) -> str:
    """One path per shade, neighbours in a row drawn as one."""
    runs: dict[int, list[str]] = {}
    for row, values in enumerate(level.tolist()):
        start = 0
        for value, same in itertools.groupby(values):
            length = len(list(same))
            if value > 0:
                runs.setdefault(min(value, LEVELS), []).append(f"M{start} {row}h{length}v1h-{length}z")
            start += length
    return "".join(
        f'<path class="{name}" fill-opacity="{value / LEVELS:g}" d="{"".join(runs[value])}"/>'
        for value in sorted(runs)
    )


def _axes(layers: int, heads: int) -> str:
    across = "".join(f'<text x="{place + 0.5}" y="-0.4">{place + 1}</text>' for place in _ticks(heads))
    down = "".join(f'<text x="-0.8" y="{place + 0.72}">{place + 1}</text>' for place in _ticks(layers))
    return f"<g>{across}{down}</g>"


def _ticks(count: int) -> list[int]:
    """At most twelve of them."""
    step = -(-count // 12)
    return list(range(0, count, step))


def strip(
    groups: list[int],
    values: list[float],
    names: list[str],
    unit: str,
    width: float = 420,
    height: float = 220,
) -> Markup:
    """A dot per head: its group across (moved aside a little, always alike), its value upwards."""
    low, high = min([0.0, *values]), max([0.0, *values])
    pad = 0.06 * (high - low) or 1.0
    left, bottom, top = 52.0, 34.0, 8.0
    step = (width - left) / len(names)

    def upwards(value: float) -> float:
        return top + (high + pad - value) / (high - low + 2 * pad) * (height - bottom - top)

    # A number too near to zero would be printed over it.
    ticks = [0.0, *(each for each in (low, high) if abs(each) > 0.12 * (high - low))]
    lines = [
        f'<line x1="{left}" x2="{width}" y1="{upwards(tick):.1f}" y2="{upwards(tick):.1f}"{zero}/>'
        f'<text x="{left - 6}" y="{upwards(tick) + 4:.1f}" text-anchor="end">{100 * tick:+.1f}</text>'
        for tick, zero in ((each, "" if each else ' class="zero"') for each in ticks)
    ]
    dots = []
    for cell, (group, value) in enumerate(zip(groups, values, strict=True)):
        # Steps of the golden ratio spread any number of dots evenly.
        across = left + step * (group + 0.5 + 0.7 * ((cell * 0.618034) % 1 - 0.5))
        dots.append(f'<circle cx="{across:.1f}" cy="{upwards(value):.1f}" r="3" data-cell="{cell}"/>')
    middle = 'text-anchor="middle"'
    below = [
        f'<text x="{left + step * (place + 0.5):.1f}" y="{height - 16}" {middle}>{escape(name)}</text>'
        for place, name in enumerate(names)
    ]
    return Markup(
        f'<svg class="strip" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(unit)}">'
        f"{''.join(lines)}{''.join(below)}"
        f'<text x="{(left + width) / 2:g}" y="{height - 2:g}" {middle}>{escape(unit)}</text>'
        f"{''.join(dots)}</svg>"
    )
