"""Heads on the page: their data, measures and maps, drawn as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Integer
from markupsafe import Markup, escape

from mtl.features import Measure
from mtl.probes.appearance import ordered
from mtl.probes.figures.masks import CHANNELS, Shades, rgb_image, set_names, shades, thirds
from mtl.probes.figures.masks import Forced as ForcedOfThree
from mtl.probes.figures.style import is_dark, mask_colours
from mtl.probes.measures.groups import MEASURES
from mtl.probes.report.data import ClaimingSetup, ReportData
from mtl.probes.sites import KEYS, Site, cell_names, grid, kind_starts, several_kinds, with_site_numbers
from mtl.probes.statistics.head_values import REGIMES
from mtl.probes.statistics.masks import Masks, force_in_words, is_shared, mostly_forced
from mtl.probes.tables.heads_table import in_texts, label_scores
from mtl.probes.tables.table_files import by_catalogue, tasks_in
from mtl.tasks.in_words import counted


@dataclass(frozen=True)
class MaskMap:
    """A mask, as the page shows it."""

    seed: int
    opened: int
    count: int
    forced: str
    """What a target forced, in words; empty if it forced no head."""
    svg: Markup


def mask_maps(
    data: ReportData, sites: Sequence[Site], heads: int
) -> list[tuple[str, dict[str, list[MaskMap]]]]:
    """The masks of all seeds, by setup and task."""
    setups: list[tuple[str, dict[str, list[MaskMap]]]] = []
    if data.gates is None:
        return setups
    for setup in data.setups:
        gates = data.gates.filter(pl.col("setup") == setup.name)
        order = tasks_in(gates)
        blocks = sorted(
            gates.group_by("task", "seed"), key=lambda item: (order.index(item[0][0]), item[0][1])
        )
        maps: dict[str, list[MaskMap]] = {}
        for (task, seed), block in blocks:
            is_open, is_learned = (grid(block, name, sites, heads) == 1 for name in ("open", "learned"))
            opened, count, said = int(is_open.sum()), block.height, force_in_words(is_open, is_learned)
            title = f"mask of {task}, seed {seed}, {setup.name}: {opened} of {counted(count, 'head')} open"
            title += f", {said}" if said else ""
            forced = is_open & ~is_learned, ~is_open & is_learned
            drawn = head_map(grid(block, "gate", sites, heads), sites, title, forced=forced)
            maps.setdefault(task, []).append(MaskMap(seed, opened, count, said, drawn))
        if maps:
            setups.append((setup.name, maps))
    return setups


def overlays(
    by_setup: Mapping[str, Masks], claimed: Masks | None, claiming: ClaimingSetup | None
) -> dict[str, Any] | None:
    """Three seeds of each task in one map: of the setup that gives claims, else of the first with three."""
    first = [(claiming.setup, claimed)] if claiming is not None and claimed is not None else []
    for setup, masks in (*first, *by_setup.items()):
        if len(masks.seeds) >= CHANNELS:
            seeds = masks.seeds[:CHANNELS]
            names = [f"seed {seed}" for seed in seeds]
            gates, opened, learned = (
                each[:, :CHANNELS] for each in (masks.gate, masks.opened, masks.learned)
            )
            forced = opened & ~learned, ~opened & learned
            inks = mask_colours(names)
            maps = {}
            for task in ordered(masks.tasks):
                place = masks.tasks.index(task)
                title = f"heads that {task} keeps with seeds {', '.join(map(str, seeds))}, {setup}"
                of_task = gates[place], masks.sites, title, (forced[0][place], forced[1][place])
                maps[task] = rgb_map(*of_task, inks), thirds_map(*of_task)
            keyed = shades(np.moveaxis(gates, 1, 0), np.moveaxis(opened, 1, 0), inks)
            return {
                "setup": setup, "names": names, "maps": maps, "key": rgb_key(keyed, names),
                "shared": all(map(is_shared, maps)),
                "forced": bool(any(each.any() for each in forced)),
                "shaded": any(len(colours) > 1 for colours in keyed.values()),
            }  # fmt: skip
    return None


def claims_map(claimed: Masks | None) -> Markup | None:
    """The share of tasks that claim each head; `None` without masks of two tasks."""
    if claimed is None or len(claimed.tasks) < 2:
        return None
    share = claimed.claimed().mean(0)
    forced = mostly_forced(claimed.claimed(), claimed.learned_claims())
    title = f"how many of {counted(len(claimed.tasks), 'task')} claim each head"
    return head_map(share, claimed.sites, title, forced=forced)


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_PER_CENT = (*(_DIGITS[number // 36] + _DIGITS[number % 36] for number in range(101)), "--")


def packed_values(values: Float[np.ndarray, "*many"]) -> str:
    """Values from 0 to 1 as per cent, two digits of base 36 each; `--` for NaN."""
    numbers = np.nan_to_num(100 * np.clip(values, 0, 1), nan=101).round().astype(int)
    return "".join([_PER_CENT[number] for number in numbers.ravel().tolist()])


def heads_data(
    sites: Sequence[Site],
    heads: int,
    by_setup: Mapping[str, Masks],
    claimed: Masks | None,
    skills: pl.DataFrame | None,
    mean_skills: pl.DataFrame | None,
    measured: pl.DataFrame | None,
) -> dict[str, Any]:
    """Masks, claims, every measure, and heads' values and skills per label, in lists over sites and heads.

    `measured` has the rows of heads.parquet of all runs, with `regime`, `run` and `seed`.
    """
    return {
        "sites": [list(site) for site in sites],
        "heads": heads,
        "names": cell_names(sites, heads),
        "masks": [
            {
                "setup": setup,
                "task": task,
                "seeds": list(masks.seeds),
                "gates": [packed_values(gate) for gate in masks.gate[place]],
                "open": packed_values(masks.opened[place].mean(0)),
                "forced": [
                    "".join("x" if head else "." for head in forced.ravel().tolist())
                    for forced in masks.forced()[place]
                ],
            }
            for setup, masks in by_setup.items()
            for place, task in enumerate(masks.tasks)
        ],
        "claims": {}
        if claimed is None
        else {
            task: packed_values(claims.astype(float))
            for task, claims in zip(claimed.tasks, claimed.claimed(), strict=True)
        },
        "means": _means(mean_skills, sites, heads),
        "measures": [] if measured is None else head_measures(measured, sites, heads),
        "skills": [] if measured is None else skill_titles(measured),
        **_labels(skills, sites, heads),
    }


def _means(table: pl.DataFrame | None, sites: Sequence[Site], heads: int) -> dict[str, list[float | None]]:
    if table is None:
        return {}
    names = [name for name in ("pretrained", "stl", "joint", "loss") if table[name].null_count() == 0]
    return {name: grid(table, name, sites, heads).round(4).ravel().tolist() for name in names}


def _labels(skills: pl.DataFrame | None, sites: Sequence[Site], heads: int) -> dict[str, Any]:
    """Value and skill of every head per regime and label."""
    if skills is None:
        return {"labels": [], "value": {}, "skill": {}}
    counts = skills.group_by("task", "label").agg(pl.col("count", "counted").max())
    labels = by_catalogue(counts.sort("count", "label", descending=[True, False]))
    known: dict[str, dict[str, list[str | None]]] = {"value": {}, "skill": {}}
    cells = with_site_numbers(skills, sites).join(labels.with_row_index("number"), on=["task", "label"])
    present = set(skills["regime"].unique())
    for regime in [name for name in REGIMES if name in present]:
        rows = cells.filter(pl.col("regime") == regime)
        number, *place = (rows[name].to_numpy() for name in ("number", "site", "head"))
        there = set(number.tolist())
        for column, by_regime in known.items():
            values = np.full((labels.height, len(sites), heads), np.nan)
            values[number, *place] = rows[column].to_numpy()
            by_regime[regime] = [packed_values(each) if n in there else None for n, each in enumerate(values)]
    return {"labels": [list(row) for row in labels.iter_rows()], **known}


TOP_LABELS = 3
"""Labels of a measure and task that are listed for a head: those farthest above chance, or from zero."""
_LABEL = ("regime", "run", "seed", "task", "label")


def head_measures(
    heads: pl.DataFrame, sites: Sequence[Site], per_site: int, measures: Collection[Measure] = MEASURES
) -> list[dict[str, Any]]:
    """Every measure with rows, other than skill, and its values for each head, rounded as they are shown.

    `heads` has the columns of heads.parquet, and `regime`, `run`, `seed`. A measure has a `title`, the `unit`
    of `Measure`, its `regimes`, the names of the numbers `beside` a value (chance, the ends of an interval,
    probabilities) and the `rows` of its heads (task and label). For each of the `heads` it has a list of
    rows: the number of one of `rows`, and per regime `None`, a value, or a list of a value and the numbers
    beside it. Shares and points are in per cent.

    A value is the mean over the runs of a regime. If a measure has companions, every seed has a row of its
    own, since an interval belongs to one run. If several runs of a regime have the same seed, the row is
    their mean without an interval. If a run has rows of several choices (such as epochs), the last one is
    shown.
    """
    listed = []
    for measure in measures:
        if measure.skill:
            continue
        rows = _rows(heads, measure)
        if rows.height:
            listed.append(_listed(measure, rows, sites, per_site))
    return listed


def skill_titles(heads: pl.DataFrame, measures: Collection[Measure] = MEASURES) -> list[str]:
    """The tasks, the title and the chance level of each measure of skill that has rows."""
    tasks = dict(
        heads.group_by("measure", maintain_order=True)
        .agg(pl.col("task").unique(maintain_order=True))
        .iter_rows()
    )
    return [
        f"{', '.join(tasks[measure.name])}: {measure.title}; chance: {measure.chance_title}"
        for measure in measures
        if measure.skill and measure.name in tasks
    ]


def _rounded(measure: Measure, name: str, value: float | None) -> float | None:
    """A number with the digits that are shown; shares and points are rounded to a tenth of a per cent."""
    if value is None or not math.isfinite(value):
        return None
    if name in ("p", "q"):
        return round(value, 3) if value >= 0.001 else float(f"{value:.0e}")
    if measure.unit in ("nats", "number"):
        return float(f"{value:.3g}")
    return round(100 * value if measure.unit == "share" else value, 1) + 0.0


def _rows(heads: pl.DataFrame, measure: Measure) -> pl.DataFrame:
    """A measure's rows, beside chance and companions: the last row of each run, task, label and head.

    If the measure has a chance level, only labels that count are included (`label_scores`).
    """
    cell = [*_LABEL, *KEYS]

    def of(name: str | None) -> pl.DataFrame:
        rows = heads.filter(pl.col("measure").is_in([name] if name else []))
        return rows.group_by(cell, maintain_order=True).last()

    rows = of(measure.name).drop_nulls("head")
    if measure.chance is None:
        rows = rows.with_columns(chance=pl.lit(None, dtype=pl.Float64))
    else:
        scores = label_scores(pl.concat([rows, of(measure.chance)]), {measure.name: measure.chance})
        rows = scores.filter("counted").drop("above", "counted")
    for name in measure.companions:
        companion = of(name).drop_nulls("head").select(*cell, pl.col("value").alias(name))
        rows = rows.join(companion, on=cell, how="left", maintain_order="left")
    return rows


def _listed(measure: Measure, rows: pl.DataFrame, sites: Sequence[Site], per_site: int) -> dict[str, Any]:
    cell = ["task", "label", *KEYS]
    if measure.companions:
        # Runs of several setups may have one seed; a mean over them has no interval of its own.
        alone = pl.when(pl.len() == 1).then(pl.col(measure.companions).first())
        rows = rows.group_by("regime", "seed", *cell, maintain_order=True).agg(
            pl.col("value", "chance").mean(), alone
        )
    else:
        rows = (
            rows.group_by("regime", *cell, maintain_order=True)
            .agg(pl.col("value", "chance").mean())
            .with_columns(seed=pl.lit(None, dtype=pl.Int64))
        )
    rows = in_texts(rows)
    above = pl.col("value") - pl.col("chance") if measure.chance else pl.col("value").abs()
    of_label = rows.group_by(cell, maintain_order=True).agg(above=above.fill_nan(None).max())
    rank = pl.col("above").rank("ordinal", descending=True).over("task", *KEYS)
    top = of_label.filter(rank <= TOP_LABELS).sort("above", descending=True, maintain_order=True)
    rows = top.join(rows, on=cell, how="left", maintain_order="left")
    present = set(rows["regime"].unique())
    regimes = [regime for regime in REGIMES if regime in present]
    place = {site: number for number, site in enumerate(sites)}
    beside = {name: name.removeprefix(f"{measure.name}_") for name in measure.companions}
    if measure.chance:
        beside = {"chance": "chance", **beside}
    listed: dict[tuple[str, str], int] = {}
    of_heads: list[dict[int, list[Any]]] = [{} for _ in range(len(sites) * per_site)]
    for row in rows.sort(pl.col("task").rank("dense"), maintain_order=True).iter_rows(named=True):
        seed = () if row["seed"] is None else (f"seed {row['seed']}",)
        key = row["task"], ", ".join(filter(None, (row["label"], *seed)))
        values = [_rounded(measure, beside.get(name, name), row[name]) for name in ("value", *beside)]
        known = values if any(value is not None for value in values[1:]) else values[0]
        of_head = of_heads[place[Site(row["attention"], row["layer"])] * per_site + row["head"]]
        of_regime = of_head.setdefault(listed.setdefault(key, len(listed)), [None] * len(regimes))
        of_regime[regimes.index(row["regime"])] = known
    return {
        "title": measure.title + (f"; in parentheses: {measure.chance_title}" if measure.chance else ""),
        "unit": measure.unit,
        "regimes": regimes,
        "beside": list(beside.values()),
        "rows": [list(key) for key in listed],
        "heads": [[[number, *values] for number, values in of_head.items()] for of_head in of_heads],
    }


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
    """Three masks in one, a colour each (as `mtl.probes.figures.masks.rgb_image`, with its `inks`).

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
