"""Forward passes that start at a layer's heads: everything below them returns its recorded output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtl.heads.attentions import Attention, attentions, require_read
from mtl.heads.blocks import WithBlock
from mtl.heads.cut_attention import is_watched
from mtl.heads.families import without_hooks
from mtl.heads.family_table import Family


class OtherPassError(Exception):
    """A pass that should have been a replay has other inputs than the recorded one."""


class LayerReplay:
    """Records the outputs of every layer and its heads, and reuses them in later passes over the same rows.

    A change to the output of a layer's heads changes neither the layers below nor the attention that these
    heads compute. Passes that differ only in such changes share all of that, and run as copies of the rows,
    side by side in one batch. That holds if what was recorded is one whole pass (`repeatable`), and if later
    passes have its inputs, which each of them checks.

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
        projections = [self._attentions[site].output for site in self._order]
        self._one_pass: list[nn.Module] = [*(self._modules if several else layers), *projections]
        """The layers, then the output projections, as one pass calls them."""
        self._layers: list[Any] = []
        self._heads: list[Tensor] = []
        self._outputs: list[Any] = []
        self._inputs: list[Any] = []
        self._called: tuple[list[nn.Module], list[nn.Module]] = ([], [])
        self._outside = self._watched = False

    @property
    def sites(self) -> int:
        """The number of sites in a pass."""
        return len(self._order)

    @property
    def rows(self) -> int:
        """The rows of the recorded pass."""
        return len(self._heads[0])

    @property
    def ran(self) -> bool:
        """Whether what was recorded went through any heads."""
        return bool(self._heads)

    @property
    def calls(self) -> int:
        """How many times a site's heads were called in what was recorded."""
        return len(self._heads)

    @property
    def repeatable(self) -> bool:
        """Whether what was recorded is one pass through the whole model, without a cache of earlier ones.

        There must be no hooks inside layers, which would not be called where a layer is not computed again.
        """
        return (
            len(self._inputs) == 1
            and not (self._outside or self._watched)
            and [*self._called[0], *self._called[1]] == self._one_pass
            and len({len(heads) for heads in self._heads}) == 1
            and _is_comparable(self._inputs[0])
        )

    def first(self, sites: Iterable[int]) -> int:
        """The one of these sites that a forward pass reaches first: where a replay for all of them starts."""
        return min(sites, key=self._order.index)

    @property
    def last(self) -> int:
        """The site that a forward pass reaches last."""
        return self._order[-1]

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the outputs of layers and heads in the forward pass inside the block.

        Heads are recorded before any scale that is set inside the block.
        """
        self._layers, self._heads, self._outputs, self._inputs = [], [], [], []
        self._called, self._outside, self._watched = ([], []), False, False
        block = WithBlock()

        def whole(compute: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
            self._inputs.append(_snapshot((inputs, named)))
            running, block.of_pass = block.of_pass, True
            try:
                return compute(*inputs, **named)
            finally:
                block.of_pass = running

        def layer(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            # Callers get the first tensor, too, as a hidden state, which they may write to.
            several = isinstance(output, tuple)
            self._layers.append((_snapshot(output[0]), *output[1:]) if several else _snapshot(output))
            self._called[0].append(module)
            self._outside |= not block.of_pass
            self._watched |= is_watched(module)

        def attention(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            self._outputs.append(output)

        def heads(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._heads.append(inputs[0])
            self._called[1].append(module)
            self._outside |= not block.of_pass

        before = dict.fromkeys((place.output for place in self._attentions), heads)
        # In no family is a module both a layer and an attention.
        after = {
            **dict.fromkeys((place.module for place in self._attentions), attention),
            **dict.fromkeys(self._modules, layer),
        }
        with block.hooks(before, after, {self.model: whole}):
            yield
        if self._outputs and not self._heads:
            require_read(self._attentions, ())

    @contextmanager
    def start_at(self, site: int, copies: int = 1, *, compare: bool = True) -> Iterator[None]:
        """Inside the block, nothing below the output projection of `site` is computed again.

        The pass inside the block takes the rows of the recorded pass, repeated `copies` times. Raises
        `OtherPassError` in a pass with other inputs and in a second pass, and at the end if there was none.
        Without `compare` its inputs are not looked at: to compare them, the host waits for a GPU.
        """
        start, passes, block = self._layer_of_site[site], 0, WithBlock()
        attention = self._attentions[site]
        shared = self._shared_attention(site, attention, copies)

        def whole(compute: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
            nonlocal passes
            passes += 1
            given = inputs, named
            if passes > 1 or (
                compare and not _is_repeated(given, self._inputs[0], copies, self._input_rows())
            ):
                raise OtherPassError
            block.of_pass = 0  # the layers so far
            try:
                return compute(*inputs, **named)
            finally:
                block.of_pass = None

        def layer(compute: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
            if block.of_pass is None:
                raise OtherPassError
            block.of_pass += 1
            if block.of_pass > start:
                return compute(*inputs, **named)
            return _copied(self._layers[block.of_pass - 1], copies, self.rows)

        replaced = {self.model: whole, **dict.fromkeys(self._modules, layer)}
        if shared is not None:

            def heads(compute: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
                return shared() if block.of_pass == start + 1 else compute(*inputs, **named)

            replaced[attention.module] = heads
        # Modules are not replaced, since models read their attributes and hook them.
        with block.hooks(around=replaced):
            yield
        if not passes:
            raise OtherPassError

    def _input_rows(self) -> int:
        """The length of the first tensor that was given to the recorded pass."""
        return next((len(tensor) for tensor in _tensors(self._inputs[0]) if tensor.dim()), 0)

    def _shared_attention(self, site: int, attention: Attention, copies: int) -> Callable[[], Any] | None:
        """A function that gives the attention module's output from the recorded heads; `None` if impossible.

        A module with the output projection inside may do more (ALBERT's adds its input and norms). It is
        skipped only if its recorded output is exactly the projection's.
        """
        if not attention.remaining:
            return None
        turn, rows = self._order.index(site), self.rows
        recorded, context = self._outputs[turn], self._heads[turn]
        if not attention.output_path:
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


_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


def _snapshot(given: Any) -> Any:
    """Inputs or outputs of a module, so that later changes in place do not reach them."""
    if isinstance(given, torch.Tensor):
        return given.detach().clone()
    if isinstance(given, tuple | list):
        return tuple(_snapshot(part) for part in given)
    if type(given) is dict:
        return {name: _snapshot(part) for name, part in given.items()}
    return given


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, tuple | list):
        for part in given:
            yield from _tensors(part)
    elif type(given) is dict:
        yield from _tensors(tuple(given.values()))


def _is_comparable(given: Any) -> bool:
    """Whether inputs hold no object that passes may change, such as a cache."""
    if isinstance(given, tuple | list):
        return all(_is_comparable(part) for part in given)
    if type(given) is dict:
        return _is_comparable(tuple(given.values()))
    return isinstance(given, (torch.Tensor, *_PLAIN))


def _is_repeated(given: Any, recorded: Any, copies: int, rows: int) -> bool:
    """Whether inputs are those that were recorded, with their rows repeated `copies` times."""
    if isinstance(recorded, torch.Tensor):
        expected = recorded
        if recorded.dim() and len(recorded) == rows:
            expected = recorded.repeat(copies, *[1] * (recorded.dim() - 1))
        return isinstance(given, torch.Tensor) and torch.equal(given, expected)
    if isinstance(recorded, tuple):
        return (
            isinstance(given, tuple | list)
            and len(given) == len(recorded)
            and all(_is_repeated(*pair, copies, rows) for pair in zip(given, recorded, strict=True))
        )
    if isinstance(recorded, dict):
        return (
            isinstance(given, dict)
            and given.keys() == recorded.keys()
            and all(_is_repeated(given[name], part, copies, rows) for name, part in recorded.items())
        )
    return type(given) is type(recorded) and bool(given == recorded)
