"""The colours of names: chosen ones, else those of a palette."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.colors import is_color_like, to_hex, to_rgb

from mtl.probes.appearance import Appearance, chosen_colour, chosen_palette
from mtl.probes.figures.style import COLOURS

MASKS = ("#00FFFF", "#FF00FF", "#FFFF00")
"""The usual colours of three masks in one picture; together they are black."""


def colour_of(name: str, usual: str) -> str:
    """The colour of a name; `usual` is its colour if nothing is chosen."""
    chosen = chosen_colour(name)
    if chosen is not None:
        return to_hex(chosen)
    palette = chosen_palette()
    return _colours(palette)[COLOURS.index(usual)] if palette and usual in COLOURS else usual


def mask_colours(names: Sequence[str]) -> Float[np.ndarray, "3 3"]:
    """Red, green and blue from 0 to 1 of each of three masks in one picture."""
    palette = chosen_palette()
    usual = _colours(palette)[: len(MASKS)] if palette else MASKS
    chosen = zip(map(chosen_colour, names), usual, strict=True)
    return np.array([to_rgb(other if own is None else own) for own, other in chosen])


def check_appearance(chosen: Appearance) -> None:
    """Raise `ValueError` for colours and palettes that do not exist, and for names that are listed twice."""
    if chosen.palette:
        _colours(chosen.palette)
    for name, colour in chosen.colours.items():
        if not is_color_like(colour):
            raise ValueError(f"colours: {name}: no colour {colour!r}; write a name or '#0072B2'")
    for name in chosen.order:
        if list(chosen.order).count(name) > 1:
            raise ValueError(f"order: '{name}' is listed twice")


def _colours(palette: str) -> list[str]:
    """The first colours of a palette, as many as the usual one has."""
    known = {name: colours for name, colours in mpl.color_sequences.items() if len(colours) >= len(COLOURS)}
    if palette not in known:
        raise ValueError(f"palette: no '{palette}' with {len(COLOURS)} colours; there are {', '.join(known)}")
    return [to_hex(colour) for colour in known[palette]][: len(COLOURS)]
