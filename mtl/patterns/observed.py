"""Attention patterns and outputs of all heads, for any `transformers` model in memory.

They are observed as tensors, and drawn as pictures and as a page to point at.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tokenizers.decoders import ByteLevel
from torch import Tensor, nn
from transformers import BatchEncoding, PreTrainedTokenizerBase

from mtl.errors import InputError
from mtl.heads.arguments import short_text, whole_number
from mtl.heads.attentions import attentions
from mtl.heads.blocks import WithBlock
from mtl.heads.families import row_given
from mtl.heads.family_table import Family
from mtl.heads.given_models import model_device
from mtl.heads.tap import HeadTap, eager_attention, tapped
from mtl.models.joint import JointModel
from mtl.models.passes import in_evaluation_mode
from mtl.probes.figures.attention import as_drawn
from mtl.probes.figures.style import FAINT, colour_bar, figure_of, new_figure, styled
from mtl.probes.sites import Site, head_name, layer_name, read_head
from mtl.tasks.in_words import counted, first_line

_ACROSS = 4
"""Heads of a layer that are side by side."""
_MOST_NAMED = 40
"""The most pieces whose names are written beside a head."""
_MOST_SPECIAL = 8
"""The most positions before the patches of an image: the class token, that of distillation, registers."""
_PIECE, _THUMB, _NAMES = 0.12, 0.42, 0.6
"""Inches of a piece in a named pattern, of a head in the view of a model, and of the names at a side."""
_ALONE, _BESIDE = 4.8, 2.4
"""Inches of a pattern whose pieces are too many to be named: of one head, and of each head of a layer."""


@dataclass(frozen=True, eq=False, repr=False)
class ObservedHeads:
    """What the heads of a model did in one pass; heads that were cut out have zeros.

    Lists have an entry for each site (a layer of one kind of attention), and `None` for sites that took no
    part.
    """

    sites: tuple[Site, ...]
    """The kind of attention and the layer of each site."""
    patterns: list[Tensor | None]
    """The attention probabilities, by row, head, attending and attended position. They sum up to 1, or to
    less in models with learned sinks."""
    outputs: list[Tensor | None]
    """What each head hands to the output projection, by row, position, head and dimension: its pattern times
    its values."""
    remaining: tuple[tuple[int, ...], ...]
    """Per site, the heads that were not cut out."""
    tokens: list[list[str]] | None
    """The pieces of each row, with padding, and `▁` for a space; `None` without a tokenizer."""
    decoder_tokens: list[list[str]] | None
    """The same of a decoder's input in an encoder-decoder model, if it was given."""
    inputs: Mapping[str, Any]
    """The arguments of the pass."""
    output: Any
    """What the model returned."""

    def __repr__(self) -> str:
        """The shapes of the tensors: all values of a model would fill many pages."""
        lines = ["ObservedHeads"]
        for site, pattern, outputs in zip(self.sites, self.patterns, self.outputs, strict=True):
            shapes = (None if part is None else tuple(part.shape) for part in (pattern, outputs))
            lines.append("{}: pattern {}, output {}".format(layer_name(site, self.sites), *shapes))
        return "\n".join(lines)

    def pattern(self, head: str) -> Float[Tensor, "row query key"]:
        """The probabilities of the head with this name (`L2H9`); raises `InputError` if there are none."""
        site, number = self.place(head)
        return self._of(self.patterns, site)[:, number]

    def head_output(self, head: str) -> Float[Tensor, "row query head_dim"]:
        """What the head with this name hands on; raises `InputError` if there is nothing."""
        site, number = self.place(head)
        return self._of(self.outputs, site)[:, :, number]

    def view(self, of: str | None = None, *, row: int = 0) -> PatternsPage:
        """A page for a notebook: all heads, or those of a layer (`L2`); what is pointed at says what it is.

        It can be saved, and loads nothing from elsewhere. `row` is the text or image. Raises `InputError` if
        there is no such row, layer or head, or it took no part in the pass.
        """

        return patterns_page(self, of, row=row)

    def place(self, head: str) -> tuple[int, int]:
        """The number of the site and of the head with this name; raises `InputError` if there is none."""
        site, number = site_and_head(head, self.sites, self.remaining)
        if number is None:
            raise InputError(f"head={short_text(head)}: this is a whole layer: name a head, such as {head}H0")
        return site, number

    def _of(self, parts: Sequence[Tensor | None], site: int) -> Tensor:
        found = parts[site]
        if found is None:
            raise InputError(f"{layer_name(self.sites[site], self.sites)} took no part in the pass")
        return found


def site_and_head(
    name: Any, sites: Sequence[Site], remaining: Sequence[Sequence[int]], what: str = "head"
) -> tuple[int, int | None]:
    """The number of the site and the head that a name stands for; `None` for a whole layer."""
    if not isinstance(name, str):
        raise InputError(f"{what}={short_text(name)}: use a name, such as 'L2H0' or 'L2'")
    try:
        site, head = read_head(name, sites, 1 + max(max(heads, default=0) for heads in remaining))
    except ValueError as error:
        raise InputError(f"{what}={short_text(name)}: {error}") from error
    if head is not None and head not in remaining[site]:
        there = ", ".join(map(str, remaining[site])) or "all gone"
        raise InputError(f"{what}={short_text(name)}: the heads of this layer are {there}")
    return site, head


def observe_heads(
    model: nn.Module,
    inputs: str | Sequence[str] | Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    family: Family | str | None = None,
) -> ObservedHeads:
    """Attention patterns and outputs of all heads of a `transformers` model, as tensors.

    Any family in the table of families works, trained here or not. The model runs once, in evaluation mode
    and without gradients, in eager attention, which has probabilities. Inside `head_scale`, heads are scaled.

    Args:
        model: The model, with or without a head on top, or a module around it; it is not changed, except that
            transformers keeps hooks of its own on it, with which it cannot be pickled.
        inputs: A text, several texts, or named arguments of the model, such as a tokenizer returns.
        tokenizer: The model's tokenizer, for texts and for the names of pieces.
        family: The model's row, if the table has none (`Family`), or the name of a row that fits.

    Returns:
        The tensors of each layer, and those of a head by its name.

    Raises:
        InputError: the model is not in the table, has masks of its own, or does not take these inputs; a text
            without a tokenizer; or an attention that does not hand out its probabilities.
    """
    transformer, row, tap = tapped(model, "observe_heads", row_given(family))
    if isinstance(model, JointModel) and model.gates is not None:
        raise InputError(
            "observe_heads runs a transformers model, and this JointModel has masks over its heads: give the "
            "transformer of its encoder, inside head_scale if a mask is to apply"
        )
    given = _inputs_of(inputs, tokenizer, model_device(transformer))
    found = attentions(transformer, row)
    served: dict[nn.Module, list[int]] = {}
    for site, attention in enumerate(found):
        served.setdefault(attention.module, []).append(site)
    seen: dict[int, list[Tensor]] = {site: [] for site in range(len(found))}
    calls = dict.fromkeys(served, 0)

    def keep(module: nn.Module, arguments: object, output: object) -> None:
        # Layers that share a module call it one after the other.
        site = served[module][calls[module] % len(served[module])]
        calls[module] += 1
        # T5 returns its bias by position before the probabilities.
        returned = output if isinstance(output, tuple | list) else ()
        parts = [part for part in returned if isinstance(part, Tensor) and part.dim() == 4]
        if not parts or parts[-1].shape[1] != len(tap.remaining[site]):
            raise InputError(
                f"{type(module).__name__} of {layer_name(tap.sites[site], tap.sites)} does not hand out its "
                "probabilities: the heads of this model can be scaled and measured, but not shown"
            )
        seen[site].append(parts[-1])

    block = WithBlock()
    with (
        torch.no_grad(),
        in_evaluation_mode(model),
        eager_attention(transformer),
        tap.observe() as outputs,
        block.hooks(after=dict.fromkeys(served, keep)),
    ):
        try:
            output = transformer(**given, output_attentions=True)
        except (InputError, torch.OutOfMemoryError):
            raise
        except (TypeError, ValueError, KeyError, IndexError, RuntimeError) as error:  # also of a long text
            raise InputError(f"inputs: the model does not take them ({first_line(error)})") from error
    several = [site for site, passes in seen.items() if len(passes) > 1]
    if several:
        name = layer_name(tap.sites[several[0]], tap.sites)
        raise InputError(f"{name} ran {len(seen[several[0]])} times: give inputs of a single pass")
    return ObservedHeads(
        tap.sites,
        [_with_cut(passes[0], tap, site) if passes else None for site, passes in seen.items()],
        [
            passes[0][..., :heads, :] if passes else None
            for passes, heads in zip(outputs.passes, tap.whole, strict=True)
        ],
        tuple(tap.remaining),
        _tokens(given.get("input_ids"), tokenizer),
        _tokens(given.get("decoder_input_ids"), tokenizer),
        given,
        output,
    )


@styled
def plot_patterns(
    observed: ObservedHeads,
    of: str | None = None,
    *,
    row: int = 0,
    patches_of: int | None = None,
    ax: Axes | None = None,
) -> tuple[Figure, Axes]:
    """Draw attention patterns: of all heads of a model, of the heads of a layer, or of one head.

    In each pattern, rows are attending positions and columns attended ones; padding is left out. Heads that
    were cut out are empty.

    Args:
        observed: what `observe_heads` returned.
        of: the name of a layer (`L2`, `cross L2`) or head (`L2H9`); `None`: the whole model.
        row: which of the texts or images.
        patches_of: in a model of images, the attending position whose attention to the image's patches is
            drawn over the image, for a layer or head; 0 is usually the class token; `None`: whole patterns.
        ax: where to draw; `None`: a new figure.

    Returns:
        The figure and its axes, to change and to save.

    Raises:
        InputError: an argument is wrong; there is no such row, layer or head; it took no part in the pass; or
            the attended positions are no patches of one image.
    """
    if not isinstance(observed, ObservedHeads):
        raise InputError(f"observed={short_text(observed)}: use what observe_heads returned")
    if ax is not None and not isinstance(ax, Axes):
        raise InputError(f"ax={short_text(ax)}: use axes of matplotlib")
    chosen = _chosen(observed, of, row)
    if patches_of is not None:
        if of is None:
            raise InputError("patches_of: also name a layer or a head, such as of='L2H0'")
        [(site, heads)] = chosen
        return _on_image(
            observed, site, [_cell(observed, site, head, row) for head in heads], row, patches_of, ax
        )
    if of is None:
        grid = [[_cell(observed, site, head, row) for head in heads] for site, heads in chosen]
        lines = [layer_name(observed.sites[site], observed.sites) for site, _ in chosen]
        return _draw(_Mosaic(grid, lines=lines), ax)
    [(site, heads)] = chosen
    cells = [_cell(observed, site, each, row) for each in heads]
    grid = [cells[start : start + _ACROSS] for start in range(0, len(cells), _ACROSS)]
    return _draw(_Mosaic(grid, names=_names(observed, site, row)), ax)


@dataclass(frozen=True)
class PatternsPage:
    """Patterns as a page, which a notebook shows and which loads nothing: pointing at a head enlarges it."""

    html: str

    def _repr_html_(self) -> str:
        # In a frame, its names meet none of the notebook's.
        looks = "width:100%;height:36rem;border:0"
        return f'<iframe title="attention patterns" style="{looks}" srcdoc="{escape(self.html)}"></iframe>'

    def save(self, path: str | Path) -> None:
        """Write the page as a file for a browser."""
        Path(path).write_text(self.html, encoding="utf-8")


def patterns_page(observed: ObservedHeads, of: str | None = None, *, row: int = 0) -> PatternsPage:
    """The page of `ObservedHeads.view`, whose arguments and errors it has."""
    lines = []
    for site, heads in _chosen(observed, of, row):
        queries, keys = _names(observed, site, row, most=math.inf)
        shown = []
        for head in heads:
            cell = _cell(observed, site, head, row)
            levels = np.rint(255 * np.nan_to_num(cell.weights)).clip(0, 255).astype(np.uint8)
            shown.append(
                {
                    "name": cell.title, "shape": levels.shape, "cut": head not in observed.remaining[site],
                    "weights": base64.b64encode(levels.tobytes()).decode("ascii"),
                }
            )  # fmt: skip
        named = {"name": layer_name(observed.sites[site], observed.sites), "queries": queries, "keys": keys}
        lines.append(named | {"heads": shown})
    size = 36 if of is None else 84
    data = json.dumps({"lines": lines}).replace("</", "<\\/")
    page = (files(__package__) / "view.html").read_text(encoding="utf-8")
    return PatternsPage(page.replace("SIZE", str(size)).replace("DATA", data))


def _with_cut(
    pattern: Shaped[Tensor, "row left query key"], tap: HeadTap, site: int
) -> Shaped[Tensor, "row head query key"]:
    """A site's probabilities, with zeros for heads that were cut out."""
    heads = tap.remaining[site]
    if len(heads) == tap.whole[site]:
        return pattern
    row, _, query, key = pattern.shape
    whole = pattern.new_zeros(row, tap.whole[site], query, key)
    whole[:, list(heads)] = pattern
    return whole


def _inputs_of(inputs: Any, tokenizer: Any, device: torch.device) -> dict[str, Any]:
    """The arguments of the pass, on the model's device."""
    if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(f"tokenizer={short_text(tokenizer)}: use the model's tokenizer of transformers")
    if isinstance(inputs, Mapping | BatchEncoding):
        named = {str(key): value for key, value in inputs.items()}
        tensors = [value for value in named.values() if isinstance(value, Tensor)]
        if not tensors:
            raise InputError(
                "inputs: no tensor of torch is among them: call the tokenizer or processor with "
                "return_tensors='pt'"
            )
        return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in named.items()}
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"inputs={short_text(inputs)}: use a text, several texts, or the model's named arguments"
        )
    if tokenizer is None:
        raise InputError("inputs: a text needs tokenizer=, that of the model")
    if len(texts) > 1 and tokenizer.pad_token is None:
        raise InputError(
            f"inputs: {counted(len(texts), 'text')} are padded, and the tokenizer has no padding: give one "
            "at a time"
        )
    made = tokenizer(list(texts), return_tensors="pt", padding=len(texts) > 1)
    if not made["input_ids"].shape[1]:
        raise InputError("inputs: the texts have no pieces")
    return {key: value.to(device) for key, value in made.items()}


def _tokens(ids: Any, tokenizer: PreTrainedTokenizerBase | None) -> list[list[str]] | None:
    if tokenizer is None or not isinstance(ids, Tensor) or ids.dim() != 2:
        return None
    rows = [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
    before = getattr(getattr(tokenizer, "backend_tokenizer", None), "pre_tokenizer", None)
    if before is None or b'"ByteLevel"' not in before.__getstate__():
        return rows
    special = {*tokenizer.all_special_tokens}
    return [[piece if piece in special else _of_bytes(piece) for piece in row] for row in rows]


def _of_bytes(piece: str) -> str:
    """The text of a byte-level piece, in which each letter is a byte; part of a letter is left as it is."""
    text = ByteLevel().decode([piece])
    return piece if "\ufffd" in text else text.replace(" ", "▁").replace("\n", "\\n")


def _chosen(observed: ObservedHeads, of: str | None, row: int) -> list[tuple[int, list[int]]]:
    """The sites and heads that a name stands for; raises `InputError` if they or the row are not there."""
    ran = [site for site, pattern in enumerate(observed.patterns) if pattern is not None]
    rows = min((len(_pattern(observed, site)) for site in ran), default=0)
    if whole_number(row, "row", 0) >= rows:
        raise InputError(f"row={row}: the pass had {counted(rows, 'row')}")
    if of is None:
        return [(site, [*range(_heads(observed, site))]) for site in ran]
    site, head = site_and_head(of, observed.sites, observed.remaining, "of")
    if site not in ran:
        raise InputError(f"of={of}: this layer took no part in the pass")
    return [(site, [*range(_heads(observed, site))] if head is None else [head])]


def _on_image(
    observed: ObservedHeads, site: int, cells: Sequence[_Cell], row: int, query: int, ax: Axes | None
) -> tuple[Figure, Axes]:
    """The attention of one position to the patches, over the image, for each of the heads side by side."""
    queries, keys = cells[0].weights.shape
    if whole_number(query, "patches_of", 0) >= queries:
        raise InputError(f"patches_of={query}: there are {counted(queries, 'attending position')}")
    pixels: Any = observed.inputs.get("pixel_values")
    sides = _patches(pixels.shape[-2:], keys) if isinstance(pixels, Tensor) and pixels.dim() == 4 else None
    if sides is None:
        raise InputError(
            f"patches_of={query}: the attended positions are no patches of one image: leave it out"
        )
    high, wide = sides
    image = pixels[row].float().cpu().numpy().mean(0)
    if ax is None:
        ax = new_figure(1.9, 1.6 * len(cells) + 0.5).subplots()
    across = image.shape[1] + max(1, image.shape[1] // 8)
    ax.set_axis_off()
    most = max(float(np.nan_to_num(cell.weights[query, keys - high * wide :]).max()) for cell in cells)
    drawn: Any = None
    for place, cell in enumerate(cells):
        extent = (place * across, place * across + image.shape[1], image.shape[0], 0)
        ax.imshow(image, cmap="Greys_r", extent=extent)
        # Special positions, such as the class token, come first.
        shares = cell.weights[query, keys - high * wide :].reshape(high, wide)
        drawn = ax.imshow(
            shares, cmap="inferno", alpha=0.6, vmin=0, vmax=most, extent=extent, interpolation="nearest"
        )
        ax.text(place * across, -0.02 * image.shape[0], cell.title, color=FAINT, va="bottom")
    ax.set_xlim(0, across * len(cells))
    ax.set_ylim(image.shape[0], -0.15 * image.shape[0])
    colour_bar(figure_of(ax), drawn, "attention", ax=ax, fraction=0.04, pad=0.02)
    return figure_of(ax), ax


def _patches(sides: Sequence[int], keys: int) -> tuple[int, int] | None:
    """Rows and columns of the square patches that an image of these sides has among `keys` positions."""
    for size in range(1, min(sides) + 1):
        high, wide = sides[0] // size, sides[1] // size
        if sides[0] % size == 0 == sides[1] % size and 0 <= keys - high * wide <= _MOST_SPECIAL:
            return high, wide
    return None


class _Cell(NamedTuple):
    """A head's pattern without padding; all NaN if it was cut out."""

    title: str
    weights: Float[np.ndarray, "query key"]


class _Mosaic(NamedTuple):
    """Patterns in lines, and what is written beside them."""

    grid: Sequence[Sequence[_Cell]]
    lines: Sequence[str] = ()
    """The names of the lines; none where pieces are named."""
    names: tuple[list[str], list[str]] = ([], [])
    """The pieces of queries and of keys."""


def _pattern(observed: ObservedHeads, site: int) -> Any:
    pattern = observed.patterns[site]
    assert pattern is not None
    return pattern


def _heads(observed: ObservedHeads, site: int) -> int:
    return int(_pattern(observed, site).shape[1])


def _sides(observed: ObservedHeads, site: int) -> tuple[str, str]:
    """The names of the masks of queries and keys; empty for parts of images."""
    ours, decoder = "attention_mask", "decoder_attention_mask"
    of = {"decoder": (decoder, decoder), "cross": (decoder, ours), "vision": ("", "")}
    return of.get(observed.sites[site].attention, (ours, ours))


def _real(observed: ObservedHeads, site: int, row: int) -> list[Any]:
    """The positions of queries and keys that are no padding."""
    sizes = _pattern(observed, site).shape[-2:]
    found = []
    for name, size in zip(_sides(observed, site), sizes, strict=True):
        mask = observed.inputs.get(name)
        if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] == size:
            found.append(mask[row].bool().cpu().numpy())
        else:
            found.append(np.ones(size, dtype=bool))
    return found


def _cell(observed: ObservedHeads, site: int, head: int, row: int) -> _Cell:
    queries, keys = _real(observed, site, row)
    weights = _pattern(observed, site)[row, head].float().cpu().numpy()[np.ix_(queries, keys)]
    if head not in observed.remaining[site]:
        weights = np.full_like(weights, np.nan)
    return _Cell(head_name(observed.sites[site], head, observed.sites), weights)


def _names(
    observed: ObservedHeads, site: int, row: int, most: float = _MOST_NAMED
) -> tuple[list[str], list[str]]:
    """The pieces of queries and keys, or their positions; empty where they are more than `most`."""
    of = {"attention_mask": observed.tokens, "decoder_attention_mask": observed.decoder_tokens}
    found: list[list[str]] = []
    for side, real in zip(_sides(observed, site), _real(observed, site, row), strict=True):
        names = of_side[row] if (of_side := of.get(side)) else []
        if len(names) != len(real):
            names = [*map(str, range(len(real)))]
        few = real.sum() <= most
        found.append([name for name, there in zip(names, real, strict=True) if there] if few else [])
    return found[0], found[1]


def _draw(mosaic: _Mosaic, ax: Axes | None) -> tuple[Figure, Axes]:
    """One image of all patterns, with gaps between them."""
    cells = [cell for line in mosaic.grid for cell in line]
    high, wide = (max(cell.weights.shape[side] for cell in cells) for side in (0, 1))
    gap = 1 if mosaic.lines else max(1, math.ceil(high / 6))
    across = max(map(len, mosaic.grid))
    canvas = np.full((len(mosaic.grid) * (high + gap) - gap, across * (wide + gap) - gap), np.nan)
    for y, line in enumerate(mosaic.grid):
        for x, cell in enumerate(line):
            top, left = y * (high + gap), x * (wide + gap)
            query, key = cell.weights.shape
            canvas[top : top + query, left : left + key] = cell.weights
    if ax is None:
        inches = _THUMB if mosaic.lines else max(_PIECE * max(high, wide), 1.0)
        if not any(mosaic.names):
            inches = min(inches, _ALONE if len(cells) == 1 else _BESIDE)
        size = (len(mosaic.grid) * inches * 1.1 + _NAMES, across * inches * 1.1 + _NAMES + 0.5)
        ax = new_figure(*size).subplots()
    image = ax.imshow(
        np.ma.masked_invalid(canvas), cmap="Blues", vmin=0, vmax=1, interpolation="nearest",
        aspect="auto" if mosaic.lines else "equal",
    )  # fmt: skip
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if mosaic.lines:
        middle = [y * (high + gap) + high / 2 - 0.5 for y in range(len(mosaic.grid))]
        ax.set_yticks(middle, list(mosaic.lines))
        ax.set_xticks([x * (wide + gap) + wide / 2 - 0.5 for x in range(across)], map(str, range(across)))
        ax.set_xlabel("head")
        ax.xaxis.set_label_position("top")
        ax.xaxis.tick_top()
    else:
        queries, keys = mosaic.names
        ax.set_yticks(*_ticks(queries, len(mosaic.grid), high + gap))
        ax.set_xticks(*_ticks(keys, across, wide + gap), rotation=90)
        for y, line in enumerate(mosaic.grid):
            for x, cell in enumerate(line):
                ax.text(x * (wide + gap) - 0.5, y * (high + gap) - 0.6, cell.title, color=FAINT, va="bottom")
    colour_bar(figure_of(ax), image, "attention", ax=ax, fraction=0.04, pad=0.02)
    return figure_of(ax), ax


def _ticks(names: Sequence[str], times: int, step: int) -> tuple[list[int], list[str]]:
    """The places and the names of pieces, repeated for each pattern."""
    places = [step * turn + place for turn in range(times) for place in range(len(names))]
    return places, [as_drawn(name) for name in names] * times
