"""The one place where attention heads are gated, ablated and observed, for every encoder family."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtl.heads.families import attentions, family_of, head_dim, head_numbers
from mtl.heads.family_table import Family
from probes.heads_table import Site

OnHeads = Callable[[int, Tensor], Tensor | None]
"""Given a site's index and its heads' outputs side by side, their replacement (`None`: keep them)."""


class HeadTap:
    """Reads or scales what each head hands to its output projection.

    The input of that projection is the concatenation of the heads' outputs (probabilities x values), so
    one forward-pre-hook per site serves all families. The hooks exist only inside the `with` blocks:
    outside, the model is untouched. Blocks nest; what is observed inside `scale` is scaled.

    Tensors have one row of heads per site, in the order of `sites` (in models with one kind of attention, the
    layers). Sites and heads are always numbered as in the uncut model; copies (`clone_heads`) have the
    numbers after those. For a number that no head of the site has, the scale is ignored and zeros are
    observed.

    Args:
        model: any `transformers` model of the family, with or without a head on top.
        family: its row of the table.
    """

    def __init__(self, model: PreTrainedModel, family: Family) -> None:
        found = attentions(model, family)
        self.model = model.base_model
        self.sites: tuple[Site, ...] = tuple(attention.site for attention in found)
        """The kind of attention and the layer of each row of heads."""
        self.heads, self.head_dim = head_numbers(model), head_dim(model)
        self.remaining = [attention.remaining for attention in found]
        """Per site the numbers of the heads that are there, ascending."""
        self._served: dict[nn.Module, list[int]] = {}
        self._layer: dict[nn.Module, nn.Module] = {}
        self._attentions = tuple(dict.fromkeys(attention.module for attention in found))
        for index, attention in enumerate(found):
            self._served.setdefault(attention.output, []).append(index)
            self._layer[attention.output] = attention.layer

    @contextmanager
    def scale(
        self,
        scale: Float[Tensor, "site head"] | Float[Tensor, "row site head"],
        fill: Float[Tensor, "site head head_dim"] | None = None,
    ) -> Iterator[None]:
        """Multiply each head's output by its scale, one for all rows or one per row; differentiable.

        With `fill`, x becomes scale * x + (1 - scale) * fill. Raises `ValueError` for a scale that does not
        fit the sites and heads.
        """
        if scale.shape[-2:] != (len(self.sites), self.heads):
            raise ValueError(
                f"a head scale of shape {tuple(scale.shape)} does not fit "
                f"{len(self.sites)} layers of {self.heads} heads"
            )

        def multiply(site: int, outputs: Tensor) -> Tensor:
            heads = self.remaining[site]
            factor = scale[..., site, :] if len(heads) == self.heads else scale[..., site, list(heads)]
            if scale.dim() == 3 and len(outputs) > len(scale):
                # In beam search the decoder has several neighbouring rows for each sentence.
                factor = factor.repeat_interleave(len(outputs) // len(scale), 0)
            # One factor per feature of a head: an axis of its own for the heads doubles the time.
            width = outputs.shape[-1] // max(len(heads), 1)
            factor = factor.repeat_interleave(width, -1)
            if scale.dim() == 3:
                factor = factor[:, None]
            scaled = outputs * factor.to(outputs.dtype)
            if fill is not None:
                filled = (1 - factor).to(outputs.dtype) * fill[site, list(heads)].flatten().to(outputs.dtype)
                scaled = scaled + filled
            return scaled

        with self._hooked(multiply):
            yield

    @contextmanager
    def observe(self) -> Iterator[list[Float[Tensor, "row subword head head_dim"]]]:
        """Collect each site's head outputs of the forward pass inside the block, in the order of `sites`.

        The model continues with the collected tensors, so that losses can be differentiated by them.
        """
        collected: list[Tensor] = []
        order: list[int] = []

        def collect(site: int, outputs: Tensor) -> Tensor:
            heads = self.remaining[site]
            shape = (*outputs.shape[:-1], self.heads, self.head_dim)
            if len(heads) == self.heads:
                observed = outputs.view(shape)
            else:
                observed = outputs.new_zeros(shape)
                observed[..., list(heads), :] = outputs.unflatten(-1, (len(heads), self.head_dim))
            # Decoders alternate between the kinds of attention.
            place = bisect(order, site)
            order.insert(place, site)
            collected.insert(place, observed)
            return (observed if len(heads) == self.heads else observed[..., list(heads), :]).flatten(-2)

        with self._hooked(collect):
            yield collected

    @contextmanager
    def observe_inputs(self) -> Iterator[list[Float[Tensor, "row subword hidden"]]]:
        """Collect what each site's attention reads in the forward pass inside the block.

        It is the input of the query projection: the layer's input, normed in families that norm before
        attention. In the order of the pass, which is that of `sites` in models with one kind of attention.
        """
        collected: list[Tensor] = []

        def collect(module: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
            given = (*inputs, *named.values())
            collected.append(next(value for value in given if isinstance(value, Tensor)))

        handles = [module.register_forward_pre_hook(collect, with_kwargs=True) for module in self._attentions]
        try:
            yield collected
        finally:
            for handle in handles:
                handle.remove()

    def with_cut_heads(
        self,
        attentions: Sequence[Float[Tensor, "row _ subword subword"]],
        hidden: Float[Tensor, "row subword hidden"],
    ) -> list[Float[Tensor, "row head subword subword"]]:
        """A model's `attentions` with zeros for heads that have been cut out; `hidden` gives the shape."""
        # A layer without heads has an entry of none.
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
    def _hooked(self, act: OnHeads) -> Iterator[None]:
        calls: dict[nn.Module, int] = {}

        def restart(module: nn.Module, inputs: tuple[object, ...]) -> None:
            calls.clear()

        def count(layer: nn.Module, inputs: tuple[object, ...]) -> None:
            calls[layer] = calls.get(layer, -1) + 1

        def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            # Where sites share a module, the n-th call of its layer in a forward pass is its n-th site.
            served = self._served[module]
            site = served[calls[self._layer[module]]] if len(served) > 1 else served[0]
            replaced = act(site, inputs[0])
            return None if replaced is None else (replaced, *inputs[1:])

        handles = [self.model.register_forward_pre_hook(restart)]
        try:
            # Calls of the layer are counted, since `LayerReplay` skips calls of the module.
            shared = {self._layer[module] for module, served in self._served.items() if len(served) > 1}
            handles += [layer.register_forward_pre_hook(count) for layer in shared]
            handles += [module.register_forward_pre_hook(before) for module in self._served]
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def head_scale(
    model: PreTrainedModel, scale: Float[Tensor, "site head"] | Float[Tensor, "row site head"]
) -> Iterator[None]:
    """Inside the block, multiply each head's output by its scale: 0 ablates a head, 1 leaves it as it is.

    One scale for the batch or one per row; differentiable in `scale`. Works on any `transformers` model of
    the families table. Raises `InputError` for other families, `ValueError` for a scale of another shape.
    """
    with HeadTap(model, family_of(model)).scale(scale):
        yield


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block, attention is eager and can return its probabilities (`output_attentions=True`)."""
    before = model.config._attn_implementation
    if before == "eager":
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
