"""Forward passes that start at a layer: the layers below it hand out what they gave before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from mtl.heads.families import Family, attentions


class LayerReplay:
    """Records what every layer of a transformer gives, and repeats it in later passes over the same rows.

    A change in one layer leaves the layers below it as they are. Passes that differ only from a layer on can
    share what is below: they are laid side by side as copies of the rows in one batch.

    Args:
        model: any `transformers` model of the family, with or without a head on top.
        family: its row of the table.
    """

    def __init__(self, model: PreTrainedModel, family: Family) -> None:
        layers = [attention.layer for attention in attentions(model, family)]
        self.model = model.base_model
        self._modules = list(dict.fromkeys(layers))
        # Sites of several kinds of attention may lie in one layer. With one kind, a module that comes
        # repeatedly serves several layers (ALBERT), and is called once for each.
        several = len(family.stacks) > 1
        self.layer_of_site = [self._modules.index(layer) for layer in layers] if several else range(len(layers))
        """Per site the number of its layer, counted in the order in which layers are computed."""
        self._recorded: list[Any] = []

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record what every layer gives in the forward pass inside the block."""
        self._recorded = []

        def add(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            self._recorded.append(output)

        handles = [module.register_forward_hook(add) for module in self._modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def start_at(self, site: int, copies: int = 1) -> Iterator[None]:
        """Inside the block, layers below the one of `site` hand out what was recorded.

        Passes inside the block are over the rows of the recorded one, repeated `copies` times.
        """
        start, done = self.layer_of_site[site], 0

        def restart(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            nonlocal done
            done = 0

        def replaying(compute: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*inputs: Any, **named: Any) -> Any:
                nonlocal done
                done += 1
                return compute(*inputs, **named) if done > start else _copied(self._recorded[done - 1], copies)

            return forward

        handle = self.model.register_forward_pre_hook(restart)
        try:
            for module in self._modules:
                # The layer itself stays where it is, since models read its attributes and hook it.
                module.__dict__["forward"] = replaying(module.forward)
            yield
        finally:
            handle.remove()
            for module in self._modules:
                module.__dict__.pop("forward", None)


def _copied(output: Any, copies: int) -> Any:
    """A layer's output (a tensor, or a tuple that holds some) for that many copies of its rows."""
    if isinstance(output, torch.Tensor):
        return output.repeat(copies, *[1] * (output.dim() - 1))
    return tuple(_copied(part, copies) for part in output) if isinstance(output, tuple) else output
