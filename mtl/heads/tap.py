"""The one place where attention heads are scaled and observed, for every encoder family.

Masks and ablations are scales: a closed head has the factor 0. What reads the heads' outputs is their layer's
output projection, and the place before it is the *tap*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtl.errors import InputError
from mtl.heads.arguments import scale_of, short_text, whole_number
from mtl.heads.attentions import attentions, head_numbers, require_read
from mtl.heads.blocks import WithBlock
from mtl.heads.families import family_of
from mtl.heads.family_table import Family
from mtl.heads.given_models import model_device, require_weights, transformer_of
from mtl.probes.sites import Site, layer_name
from mtl.tasks.in_words import counted

OnHeads = Callable[[int, Tensor, bool], Tensor | None]
"""Given a site's index, its heads' outputs side by side, and whether a gradient checkpoint computes them
again, their replacement (`None`: keep them)."""


class HeadTap:
    """Reads or scales what each head hands to its output projection.

    The input of that projection is the concatenation of the heads' outputs (probabilities x values), so one
    function before each projection serves all families. It acts only inside the `with` blocks (`WithBlock`):
    outside, the model is untouched. Blocks nest; what is observed inside `scale` is scaled.

    Tensors have one row of heads per site, in the order of `sites` (in models with one kind of attention, the
    layers). Sites and heads are always numbered as in the uncut model. For a number that no head of the
    site has, the scale is ignored and zeros are observed.

    Args:
        model: any `transformers` model of the family, with or without a head on top.
        family: its row of the table.
    """

    def __init__(self, model: PreTrainedModel, family: Family) -> None:
        found = attentions(model, family)
        self.model = model.base_model
        self.sites: tuple[Site, ...] = tuple(attention.site for attention in found)
        """The kind of attention and the layer of each row of heads."""
        self.heads = head_numbers(found)
        """Head numbers of a site: those of the site with most."""
        self.sizes = tuple(attention.size for attention in found)
        """Per site, the width of a head's output."""
        self.whole = tuple(attention.heads for attention in found)
        """Per site, the number of heads in the uncut model."""
        self.remaining = [attention.remaining for attention in found]
        """Per site, the numbers of the remaining heads, ascending."""
        self._served: dict[nn.Module, list[int]] = {}
        self._layer: dict[nn.Module, nn.Module] = {}
        self._caller: dict[nn.Module, nn.Module] = {}
        self._attentions = tuple(dict.fromkeys(attention.module for attention in found))
        self._unproven = {attention.module: attention for attention in found}
        """The attentions that no pass has yet shown to call their output projection."""
        for index, attention in enumerate(found):
            if self._layer.get(attention.output, attention.layer) is not attention.layer:
                name = layer_name(attention.site, self.sites)
                raise InputError(
                    f"{name} of {type(model).__name__} has the attention module of another layer: give each "
                    "layer one of its own, or share whole layers"
                )
            self._served.setdefault(attention.output, []).append(index)
            self._layer[attention.output] = attention.layer
            self._caller[attention.layer] = attention.caller

    @contextmanager
    def scale(
        self,
        scale: Float[Tensor, "site head"] | Float[Tensor, "row site head"],
        fill: Float[Tensor, "site head head_dim"] | Sequence[Tensor | None] | None = None,
        neighbours: int = 1,
    ) -> Iterator[None]:
        """Multiply each head's output by its scale, one for all rows or one per row; differentiable.

        With `fill`, x becomes scale * x + (1 - scale) * fill; a site's entry may also have rows and positions
        before its heads, as observed outputs do. Beam search runs `neighbours` neighbouring rows for each row
        of the batch, which share its scale. Raises `InputError` for a scale that does not fit the sites and
        heads, and in a pass that does not have the rows of the scale or the rows and positions of `fill`.
        """
        if scale.dim() not in (2, 3) or scale.shape[-2:] != (len(self.sites), self.heads):
            raise InputError(
                f"a head scale of shape {tuple(scale.shape)} does not fit "
                f"{counted(len(self.sites), 'layer')} of {counted(self.heads, 'head')}"
            )

        even = len({*self.sizes}) == 1 and all(len(heads) == self.heads for heads in self.remaining)
        made: tuple[object, Sequence[Tensor]] = None, ()

        def factor_of(site: int, outputs: Tensor) -> Tensor:
            """One factor per feature of a head: an axis of its own for the heads doubles the time."""
            nonlocal made
            if not even or scale.is_inference():  # such a tensor does not tell whether it was changed
                heads = self.remaining[site]
                factor = scale[..., site, :] if len(heads) == self.heads else scale[..., site, list(heads)]
                return factor.repeat_interleave(self.sizes[site], -1).to(outputs)
            state = scale._version, torch.is_grad_enabled(), outputs.dtype, outputs.device
            if made[0] != state:  # the factors of all sites at once start fewer operations
                made = state, scale.repeat_interleave(self.sizes[0], -1).to(outputs).unbind(-2)
            return made[1][site]

        def multiply(site: int, outputs: Tensor, again: bool) -> Tensor:
            factor = factor_of(site, outputs)
            rows, scaled_rows = outputs.shape[0], scale.shape[0]  # `len` would fix them in an export
            if scale.dim() == 3 and rows != scaled_rows != 1:
                if neighbours == 1 or rows != scaled_rows * neighbours:
                    raise InputError(
                        f"a pass of {counted(rows, 'row')} under head scales for "
                        f"{counted(scaled_rows, 'row')}: which scale belongs to which row? Use one scale per "
                        "row of the pass, one for all rows, or neighbours=K in a beam search of K beams"
                    )
                factor = factor.repeat_interleave(neighbours, 0)
            if scale.dim() == 3:
                factor = factor[:, None]
            scaled = outputs * factor
            if fill is not None:
                scaled = scaled + (1 - factor) * self._fill_of_pass(fill[site], site, outputs)
            return scaled

        with self._acting_on_heads(multiply):
            yield

    def _fill_of_pass(self, given: Tensor | None, site: int, outputs: Tensor) -> Tensor:
        """What takes the place of a site's outputs in this pass."""
        if given is None:
            raise InputError(f"fill: {layer_name(self.sites[site], self.sites)} ran, and has nothing here")
        there = given[..., list(self.remaining[site]), :].flatten(-2).to(outputs)
        sizes, of_pass = there.shape[:-1], outputs.shape[:-1]
        pairs = zip(reversed(sizes), reversed(of_pass), strict=False)
        if len(sizes) > len(of_pass) or any(size not in (1, here) for size, here in pairs):
            raise InputError(
                f"fill: rows and positions {tuple(sizes)} in a pass of {tuple(of_pass)}: take them from "
                "inputs of the same shape, or take means over both"
            )
        return there

    @contextmanager
    def observe(self) -> Iterator[HeadOutputs]:
        """Collect each site's head outputs of the forward passes inside the block.

        The model continues with the collected tensors, so that losses can be differentiated by them.
        """
        collected = HeadOutputs(len(self.sites))

        def collect(site: int, outputs: Tensor, again: bool) -> Tensor:
            heads = self.remaining[site]
            shape = (*outputs.shape[:-1], self.heads, self.sizes[site])
            if len(heads) == self.heads:
                observed = outputs.view(shape)
            else:
                observed = outputs.new_zeros(shape)
                observed[..., list(heads), :] = outputs.unflatten(-1, (len(heads), self.sizes[site]))
            if not again:
                collected.passes[site].append(observed)
            return (observed if len(heads) == self.heads else observed[..., list(heads), :]).flatten(-2)

        with self._acting_on_heads(collect):
            yield collected

    @contextmanager
    def observe_inputs(self) -> Iterator[list[Float[Tensor, "row subword hidden"]]]:
        """Collect what each site's attention reads in the forward pass inside the block.

        It is the input of the query projection: the layer's input, normalised in families that do so before
        attention. In the order of the pass, which is that of `sites` in models with one kind of attention.
        """
        collected: list[Tensor] = []

        block = WithBlock()

        def collect(module: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
            given = (*inputs, *named.values())
            if not block.again:
                collected.append(next(value for value in given if isinstance(value, Tensor)))

        with block.hooks(dict.fromkeys(self._attentions, collect)):
            yield collected

    def with_cut_heads(
        self,
        attentions: Sequence[Float[Tensor, "row _ subword subword"]],
        hidden: Float[Tensor, "row subword hidden"],
    ) -> list[Float[Tensor, "row head subword subword"]]:
        """A model's `attentions` with zeros for heads that have been cut out; `hidden` gives the shape."""
        # The entry of a layer without heads has none.
        given = iter([probabilities for probabilities in attentions if probabilities.shape[1]])
        row, subword, _ = hidden.shape
        padded = []
        for heads in self.remaining:
            if len(heads) == self.heads:
                padded.append(next(given))
                continue
            probabilities = hidden.new_zeros(row, self.heads, subword, subword)
            if heads:
                probabilities[:, list(heads)] = next(given)
            padded.append(probabilities)
        return padded

    @contextmanager
    def _acting_on_heads(self, act: OnHeads) -> Iterator[None]:
        block = WithBlock()

        def restart(compute: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
            # The calls so far of the layers that sites share; none of a pass around this one.
            calls, block.of_pass = block.of_pass, None
            try:
                return compute(*inputs, **named)
            finally:
                block.of_pass = calls

        def count(layer: nn.Module, inputs: tuple[object, ...], named: object) -> None:
            calls: dict[nn.Module, int] = block.of_pass or {}
            block.of_pass = {**calls, layer: calls.get(layer, -1) + 1}

        ran: dict[nn.Module, None] = {}
        read: set[nn.Module] = set()

        def run(module: nn.Module, inputs: tuple[object, ...], named: object) -> None:
            ran[module] = None

        def before(module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
            read.add(module)
            # Where sites share a module, the n-th call of its layer in a forward pass is its n-th site.
            served = self._served[module]
            call = block.of_pass[self._layer[module]] if len(served) > 1 else 0
            site = served[call % len(served)]
            if inputs[0].shape[-1] != len(self.remaining[site]) * self.sizes[site]:
                raise InputError(
                    f"{layer_name(self.sites[site], self.sites)} had "
                    f"{counted(len(self.remaining[site]), 'head')} when the model was tapped, and has others "
                    "now: cut or copy heads before the block, and then make a new HeadTap"
                )
            replaced = act(site, inputs[0], block.again)
            return None if replaced is None else ((replaced, *inputs[1:]), named)

        # Calls of the layer are counted, since `LayerReplay` skips calls of the module.
        shared = {self._layer[module] for module, served in self._served.items() if len(served) > 1}
        unproven = dict(self._unproven)
        hooks = {
            **dict.fromkeys(unproven, run),
            **dict.fromkeys(shared, count),
            **dict.fromkeys(self._served, before),
        }
        # Callers may call the part of the model that calls the layers, without the rest.
        callers = {self.model, *(self._caller[layer] for layer in shared)} if shared else ()
        with block.hooks(hooks, around=dict.fromkeys(callers, restart)):
            yield
        require_read((unproven[module] for module in ran), read)
        for module in ran:
            self._unproven.pop(module, None)


class HeadOutputs:
    """What the heads of each site handed to their output projection, in one or more forward passes.

    Indexing and iteration return the outputs of sites in their only pass.
    """

    def __init__(self, sites: int) -> None:
        self.passes: list[list[Float[Tensor, "row subword head head_dim"]]] = [[] for _ in range(sites)]
        """Per site, the outputs of its passes in their order; none for a site that took no part."""

    def __len__(self) -> int:
        """The number of sites, of which some may have taken no part."""
        return len(self.passes)

    def clear(self) -> None:
        """Forget the passes so far."""
        for passes in self.passes:
            passes.clear()

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, site: int) -> Float[Tensor, "row subword head head_dim"]:
        """A site's outputs in the only pass; raises `InputError` if it took part in none or in several."""
        if len(self.passes[site]) != 1:
            raise InputError(
                f"site {site} took part in {counted(len(self.passes[site]), 'pass', 'passes')}, not in one"
            )
        return self.passes[site][0]


def tapped(
    model: nn.Module, function: str, family: Family | str | None
) -> tuple[PreTrainedModel, Family, HeadTap]:
    """The `transformers` model that a module is or holds, its row (or the given one), and a tap on it.

    Raises `InputError` as `transformer_of` does, and for a model without numbers.
    """
    transformer = transformer_of(model, function)
    require_weights(transformer, function)
    row = family_of(transformer, family)
    return transformer, row, HeadTap(transformer, row)


@contextmanager
def head_scale(
    model: nn.Module,
    scale: Float[Tensor, "site head"] | Float[Tensor, "row site head"],
    *,
    fill: Sequence[Tensor | None] | None = None,
    neighbours: int = 1,
    family: Family | str | None = None,
) -> Iterator[None]:
    """Multiply each head's output by its scale inside the block: 0 ablates a head, 1 does not change it.

    With `fill`, a scale of 0 patches a head: it hands on what it handed on for other inputs, or its mean.

    The scale applies only to passes of the thread (or coroutine) that entered the block. A compiled model
    runs uncompiled inside. torch's gradient checkpoints compute a pass again with the scale that it had,
    wherever the backward pass runs.

    Args:
        model: a `transformers` model of the families table, or a module that holds one.
        scale: one scale for all rows or one per row of the batch, as a tensor, an array or lists;
            differentiable.
        fill: what takes the place of what the scale takes away: x becomes scale * x + (1 - scale) * fill. One
            tensor per site (layer) by row, position, head and dimension, such as `observe_heads(…).outputs`,
            or only by head and dimension; `None` for a site that does not run.
        neighbours: the number of beams, if a beam search runs with a scale per row.
        family: the model's row, if the table has none (`Family`), or the name of a row that fits.

    Raises:
        InputError: the model is not one of these, the scale or `fill` has a wrong shape, or a pass does not
            have one row per scale, or the rows and positions of `fill` (one row of `fill` serves all).
    """
    transformer = transformer_of(model, "head_scale")
    tap = HeadTap(transformer, family_of(transformer, family))
    scales = scale_of(scale, "scale", transformer.dtype).to(model_device(transformer))
    fills = None if fill is None else _fills(fill, tap, transformer.dtype)
    with tap.scale(scales, fills, whole_number(neighbours, "neighbours", 1)):
        yield


def _fills(fill: Any, tap: HeadTap, dtype: torch.dtype) -> list[Tensor | None]:
    """What takes the place of each site's outputs; raises `InputError` if it does not fit them."""
    if not isinstance(fill, list | tuple) or len(fill) != len(tap.sites):
        raise InputError(
            f"fill={short_text(fill)}: use {counted(len(tap.sites), 'tensor')}, one for each layer, such as "
            "observe_heads(…).outputs"
        )
    found = [
        None if part is None else scale_of(part, f"fill[{site}]", dtype) for site, part in enumerate(fill)
    ]
    for site, part in enumerate(found):
        fits = tap.whole[site], tap.sizes[site]
        if part is not None and part.shape[-2:] != fits:
            raise InputError(
                f"fill[{site}] has the shape {tuple(part.shape)}: its last two axes must be the heads and "
                f"dimensions of {layer_name(tap.sites[site], tap.sites)}, {fits}"
            )
    return found


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block, attention is eager and can return its probabilities (`output_attentions=True`).

    As with head scales, passes of other threads keep their own implementation.
    """
    configs = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    with WithBlock(eager=configs).entered():
        yield
