"""Forward passes that start at a layer's heads: everything below them returns its recorded output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtl.heads.families import Attention, attentions
from mtl.heads.family_table import Family
from mtl.heads.projections import without_hooks


class LayerReplay:
    """Records the outputs of every layer and its heads, and reuses them in later passes over the same rows.

    A change to the output of a layer's heads changes neither the layers below nor the attention that these
    heads compute. Passes that differ only in such changes share all of that, and run as copies of the rows,
    side by side in one batch.

    Args:
        model: any `transformers` model of the family, with or without a head on top.
        family: its row of the table.
        encoder_alone: passes run the encoder of an encoder-decoder model without its decoder.
    """

    def __init__(self, model: PreTrainedModel, family: Family, *, encoder_alone: bool = False) -> None:
        self.model = model.get_encoder() if encoder_alone else model.base_model
        self._attentions = attentions(model, family)
        if encoder_alone:
            # These sites come first, so they have the same numbers as in the whole model.
            self._attentions = [place for place in self._attentions if place.site.attention == "encoder"]
        layers = [attention.layer for attention in self._attentions]
        self._modules = list(dict.fromkeys(layers))
        # With several kinds of attention, sites may lie in one layer. With one kind, a module that is listed
        # repeatedly serves several layers (ALBERT) and is called once for each.
        several = len(family.stacks) > 1
        self._layer_of_site = (
            [self._modules.index(layer) for layer in layers] if several else list(range(len(layers)))
        )
        # In the order of a pass: decoders alternate between the kinds of attention.
        self._order = sorted(range(len(layers)), key=lambda site: (self._layer_of_site[site], site))
        self._layers: list[Any] = []
        self._heads: list[Tensor] = []
        self._outputs: list[Any] = []

    @property
    def sites(self) -> int:
        """The number of sites in a pass."""
        return len(self._order)

    @property
    def _rows(self) -> int:
        return len(self._heads[0])

    def first(self, sites: Iterable[int]) -> int:
        """The one of these sites that a forward pass reaches first: where a replay for all of them starts."""
        return min(sites, key=self._order.index)

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the outputs of layers and heads in the forward pass inside the block.

        Heads are recorded before any scale that is set inside the block.
        """
        self._layers, self._heads, self._outputs = [], [], []

        def add(recorded: list[Any]) -> Callable[..., None]:
            return lambda module, inputs, output=None: recorded.append(
                inputs[0] if output is None else output
            )

        modules = dict.fromkeys(attention.module for attention in self._attentions)
        projections = dict.fromkeys(attention.output for attention in self._attentions)
        handles = [module.register_forward_hook(add(self._layers)) for module in self._modules]
        handles += [module.register_forward_hook(add(self._outputs)) for module in modules]
        handles += [module.register_forward_pre_hook(add(self._heads)) for module in projections]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def start_at(self, site: int, copies: int = 1) -> Iterator[None]:
        """Inside the block, nothing below the output projection of `site` is computed again.

        Passes inside the block take the rows of the recorded pass, repeated `copies` times.
        """
        start, done = self._layer_of_site[site], 0
        attention = self._attentions[site]
        shared = self._shared_attention(site, attention, copies)

        def restart(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            nonlocal done
            done = 0

        def layer(compute: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*inputs: Any, **named: Any) -> Any:
                nonlocal done
                done += 1
                return (
                    compute(*inputs, **named)
                    if done > start
                    else _copied(self._layers[done - 1], copies, self._rows)
                )

            return forward

        def heads(compute: Callable[..., Any], given: Callable[[], Any]) -> Callable[..., Any]:
            def forward(*inputs: Any, **named: Any) -> Any:
                return given() if done == start + 1 else compute(*inputs, **named)

            return forward

        handle = self.model.register_forward_pre_hook(restart)
        try:
            # Modules are not replaced, since models read their attributes and hook them.
            for module in self._modules:
                module.__dict__["forward"] = layer(module.forward)
            if shared is not None:
                attention.module.__dict__["forward"] = heads(attention.module.forward, shared)
            yield
        finally:
            handle.remove()
            for module in (*self._modules, attention.module):
                module.__dict__.pop("forward", None)

    def _shared_attention(self, site: int, attention: Attention, copies: int) -> Callable[[], Any] | None:
        """A function that gives the attention module's output from the recorded heads; `None` if impossible.

        A module with the output projection inside may do more (ALBERT's adds its input and norms). It is
        skipped only if its recorded output is exactly the projection's.
        """
        if not attention.remaining:
            return None
        turn, rows = self._order.index(site), self._rows
        recorded, context = self._outputs[turn], self._heads[turn]
        if not attention.output_inside:
            return lambda: _copied(recorded, copies, rows)
        first = recorded[0] if isinstance(recorded, tuple) else recorded
        if not torch.equal(without_hooks(attention.output, context), first):
            return None

        def project() -> Any:
            projected = attention.output(_copied(context, copies, rows))
            if not isinstance(recorded, tuple):
                return projected
            return (projected, *(_copied(part, copies, rows) for part in recorded[1:]))

        return project


def _copied(output: Any, copies: int, rows: int) -> Any:
    """A module's output (a tensor, or a tuple that may hold tensors) with its rows repeated `copies` times.

    A tensor that all rows share, such as a bias by position, is left as it is.
    """
    if isinstance(output, torch.Tensor):
        return output.repeat(copies, *[1] * (output.dim() - 1)) if len(output) == rows else output
    return tuple(_copied(part, copies, rows) for part in output) if isinstance(output, tuple) else output
