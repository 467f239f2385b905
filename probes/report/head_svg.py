"""Maps of heads as inline SVG: small squares, layers downwards, with one path for each shade."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Integer
from markupsafe import Markup, escape

from mtl.probes.figures.rgb_overlap import CHANNELS, Shades, rgb_image, set_names, thirds
from mtl.probes.figures.rgb_overlap import Forced as ForcedOfThree
from mtl.probes.figures.style import is_dark
from mtl.probes.sites import Site, kind_starts, several_kinds

LEVELS = 20
"""The number of shades besides white; the eye cannot tell finer ones apart."""
Forced = tuple[Bool[np.ndarray, "site cell"], Bool[np.ndarray, "site cell"]]
"""The cells that a target forced open, and those that it forced shut."""
ABOVE = 1.6
"""Space for the numbers of heads above a map, in heads; the numbers of layers on the left have as much."""


def head_map(
    values: Float[np.ndarray, "site head"],
    sites: Sequence[Site],
    title: str,
    marked: Bool[np.ndarray, "site head"] | None = None,
    forced: Forced | None = None,
) -> Markup:
    """A map of values from 0 (ground) to 1 (full colour), and down to -1 in another colour; NaN is blank.

    `marked` heads have a dot, `forced` heads a stroke.
    """
    paths = [*_shaded(values), *([] if forced is None else _strokes(forced, values > 0.5))]
    if marked is not None:
        paths += [
            f'<circle class="dot" cx="{head + 0.5}" cy="{site + 0.5}" r="0.17"/>'
            for site, head in np.argwhere(marked).tolist()
        ]
    return _map("".join(paths), sites, values.shape[1], title)


def rgb_map(
    gates: Float[np.ndarray, "3 site head"],
    sites: Sequence[Site],
    title: str,
    forced: ForcedOfThree,
    inks: Float[np.ndarray, "3 3"] | None = None,
) -> Markup:
    """Three masks in one, a colour each (as `mtl.probes.figures.rgb_overlap.rgb_image`, with its `inks`).

    Heads that are forced in any of the masks are struck through.
    """
    image = rgb_image(gates, inks)
    cells = "".join(
        f'<rect x="{head}" y="{site}" width="1" height="1" fill="{_hex(image[site, head])}"/>'
        for site, head in np.ndindex(gates.shape[1:])
    )
    opened, closed = (np.any(each, axis=0, keepdims=True)[0] for each in forced)
    strokes = "".join(_strokes((opened, closed), is_dark(image / 255)))
    return _map(cells + strokes, sites, gates.shape[2], title, " rgb")


def thirds_map(
    gates: Float[np.ndarray, "3 site head"], sites: Sequence[Site], title: str, forced: ForcedOfThree
) -> Markup:
    """The same three masks in grey: each has a third of every cell, from left to right."""
    values, opened, closed = thirds(gates), thirds(forced[0]), thirds(forced[1])
    width = 1 / CHANNELS
    paths = [*_shaded(values, width), *_strokes((opened, closed), values > 0.5, width)]
    layers, heads = gates.shape[1:]
    between = "".join(f"M{head} 0v{layers}" for head in range(1, heads))
    return _map(f'{"".join(paths)}<path class="between" d="{between}"/>', sites, heads, title)


def _shaded(values: Float[np.ndarray, "site cell"], width: float = 1.0) -> list[str]:
    return [
        _path(np.rint(np.nan_to_num(sign * values) * LEVELS).astype(int), name, width)
        for sign, name in ((1, "up"), (-1, "down"))
    ]


def _strokes(forced: Forced, dark: Bool[np.ndarray, "site cell"], width: float = 1.0) -> list[str]:
    """A stroke through every cell that was forced: upwards if forced open, downwards if forced shut."""
    strokes: dict[str, list[str]] = {}
    for cells, way in zip(forced, ("open", "shut"), strict=True):
        for site, cell in np.argwhere(cells).tolist():
            start, rise = (site + 1, -1) if way == "open" else (site, 1)
            ground = "dark" if dark[site, cell] else "light"
            strokes.setdefault(f"forced {way} on-{ground}", []).append(
                f"M{cell * width:g} {start}l{width:g} {rise}"
            )
    return [f'<path class="{name}" d="{"".join(lines)}"/>' for name, lines in strokes.items()]


def _map(cells: str, sites: Sequence[Site], heads: int, title: str, looks: str = "") -> Markup:
    """A map with layers and heads numbered from 0; the script moves the square `mark` to the chosen head.

    With several kinds of attention, a line separates them, and the name of each is at its first layer.
    """
    layers, left = len(sites), ABOVE
    if several_kinds(sites):
        left += 0.32 * max(len(site.attention) for site in sites)
    between = "".join(f"M0 {start}h{heads}" for start in kind_starts(sites)[1:])
    lines = f'<path class="kinds" d="{between}"/>' if between else ""
    return Markup(
        f'<svg class="map axes{looks}" viewBox="{-left:g} {-ABOVE:g} {heads + left:g} {layers + ABOVE:g}" '
        f'data-heads="{heads}" style="--columns:{heads + left:g}" role="img" aria-label="{escape(title)}">'
        f'<path class="ground" d="M0 0h{heads}v{layers}h-{heads}z"/>{cells}'
        f"{lines}{_axes(sites, heads)}"
        '<rect class="mark" width="1" height="1" hidden=""/></svg>'
    )


def rgb_key(keyed: Shades, names: Sequence[str]) -> Markup:
    """The legend of `rgb_map`: the sets of masks that keep heads, with the colours of their heads."""
    swatches = []
    for colours, text in zip(keyed.values(), set_names(list(keyed), names, " and "), strict=True):
        parts = [_hex(np.array(colour)) for colour in colours]
        stops = ",".join(
            f"{part} {100 * place / len(parts):.0f}% {100 * (place + 1) / len(parts):.0f}%"
            for place, part in enumerate(parts)
        )
        swatches.append(
            f'<span><i style="background:linear-gradient(to right,{stops})"></i> {escape(text)}</span>'
        )
    return Markup(f'<span class="legend key">{" ".join(swatches)}</span>')


def _hex(colour: Integer[np.ndarray, " channel"]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour.tolist())


def _path(level: np.ndarray, name: str, width: float = 1.0) -> str:
    """One path per shade; neighbours in a row are drawn as one. Cells are `width` wide."""
    runs: dict[int, list[str]] = {}
    for row, values in enumerate(level.tolist()):
        start = 0
        for value, same in itertools.groupby(values):
            length = len(list(same))
            if value > 0:
                runs.setdefault(min(value, LEVELS), []).append(
                    f"M{start * width:g} {row}h{length * width:g}v1h-{length * width:g}z"
                )
            start += length
    return "".join(
        f'<path class="{name}" fill-opacity="{value / LEVELS:g}" d="{"".join(runs[value])}"/>'
        for value in sorted(runs)
    )


def _axes(sites: Sequence[Site], heads: int) -> str:
    across = "".join(f'<text x="{place + 0.5}" y="-0.4">{place}</text>' for place in _ticks(heads))
    starts = kind_starts(sites)
    if len(starts) == 1:
        down = "".join(f'<text x="-0.8" y="{place + 0.72}">{place}</text>' for place in _ticks(len(sites)))
        return f"<g>{across}{down}</g>"
    ticks = [
        start + place
        for start, end in itertools.pairwise([*starts, len(sites)])
        for place in _ticks(end - start)
    ]
    names = [f"{escape(sites[place].attention)} " if place in starts else "" for place in ticks]
    down = "".join(
        f'<text class="layer" x="-0.5" y="{place + 0.72}">{name}{sites[place].layer}</text>'
        for place, name in zip(ticks, names, strict=True)
    )
    return f"<g>{across}{down}</g>"


def _ticks(count: int) -> list[int]:
    """At most twelve numbers from 0 to `count`, evenly spaced."""
    step = -(-count // 12)
    return list(range(0, count, step))


def strip(
    groups: list[int],
    values: list[float],
    names: list[str],
    across: str,
    upwards: str,
    width: float = 460,
    height: float = 250,
) -> Markup:
    """A dot per head: its group across, its value upwards in points. Dots that touch are moved aside."""
    low, high = min([0.0, *values]), max([0.0, *values])
    pad = 0.06 * (high - low) or 1.0
    left, bottom, top, radius = 74.0, 38.0, 8.0, 3.0
    step = (width - left) / len(names)

    def up(value: float) -> float:
        return top + (high + pad - value) / (high - low + 2 * pad) * (height - bottom - top)

    # A number too near to zero would be printed over the zero.
    ticks = [0.0, *(end for end in (low, high) if abs(end) > 0.12 * (high - low))]
    lines = [
        f'<line x1="{left}" x2="{width}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"{zero}/>'
        f'<text x="{left - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{100 * tick:+.1f}</text>'
        for tick, zero in ((tick, "" if tick else ' class="zero"') for tick in ticks)
    ]
    dots = []
    for group in range(len(names)):
        cells = [cell for cell, of_cell in enumerate(groups) if of_cell == group]
        aside = _side_by_side([up(values[cell]) for cell in cells], 2 * radius, step / 2 - radius)
        centre = left + step * (group + 0.5)
        dots += [
            f'<circle cx="{centre + shift:.1f}" cy="{up(values[cell]):.1f}" r="{radius:g}" '
            f'data-cell="{cell}"/>'
            for cell, shift in zip(cells, aside, strict=True)
        ]
    middle = 'text-anchor="middle"'
    below = [
        f'<text x="{left + step * (place + 0.5):.1f}" y="{height - 20}" {middle}>{escape(name)}</text>'
        for place, name in enumerate(names)
    ]
    middle_height = (height - bottom + top) / 2
    title = f"{escape(upwards)} by {escape(across)}"
    return Markup(
        f'<svg class="strip" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{title}">'
        f"{''.join(lines)}{''.join(below)}"
        f'<text x="{(left + width) / 2:g}" y="{height - 4:g}" {middle}>{escape(across)}</text>'
        f'<text x="14" y="{middle_height:g}" {middle} transform="rotate(-90 14 {middle_height:g})">'
        f"{escape(upwards)}</text>"
        f"{''.join(dots)}</svg>"
    )


def _side_by_side(heights: Sequence[float], size: float, most: float) -> list[float]:
    """How far each dot is moved aside so that none covers another; 0 if none is near or there is no room."""
    placed: list[tuple[float, float]] = []
    shifts = [0.0] * len(heights)
    for place in sorted(range(len(heights)), key=lambda place: heights[place]):
        near = [shift for height, shift in placed if abs(height - heights[place]) < size]
        free = (
            sign * count * size
            for count in range(int(most / size) + 1)
            for sign in (1, -1)
            if all(abs(sign * count * size - shift) >= size - 1e-9 for shift in near)
        )
        shifts[place] = next(free, 0.0)
        placed.append((heights[place], shifts[place]))
    return shifts
