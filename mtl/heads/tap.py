"""The one place where attention heads are gated, ablated and observed, for every encoder family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtl.heads.families import Family, attentions, head_dim

OnHeads = Callable[[int, Tensor], Tensor | None]
"""Given a layer and its heads' outputs side by side, what to put in their place (`None`: leave them)."""


class HeadTap:
    """Reads or scales what each head hands to its layer's output projection.

    The input of that projection is the concatenation of the heads' outputs (probabilities x values), so that
    one forward-pre-hook per layer does for all families. The hooks are there only inside the `with` blocks:
    outside, the model is untouched. Blocks nest; what is observed inside `scale` is scaled.

    Layers and heads are always numbered as in the uncut model: a scale for a head that has been cut out is
    ignored, and its output is observed as zeros.
    """

    def __init__(self, model: PreTrainedModel, family: Family) -> None:
        found = attentions(model, family)
        self.model = model.base_model
        self.layers, self.heads, self.head_dim = len(found), model.config.num_attention_heads, head_dim(model)
        self.kept = [attention.kept for attention in found]
        """The heads still there, per layer."""
        self._served: dict[nn.Module, list[int]] = {}
        for layer, attention in enumerate(found):
            self._served.setdefault(attention.output, []).append(layer)

    @contextmanager
    def scale(self, scale: Float[Tensor, "layer head"] | Float[Tensor, "row layer head"]) -> Iterator[None]:
        """Multiply each head's output by its scale, one for all rows or one per row; differentiable."""
        if scale.shape[-2:] != (self.layers, self.heads):
            raise ValueError(
                f"a head scale of shape {tuple(scale.shape)} does not fit "
                f"{self.layers} layers of {self.heads} heads"
            )

        def multiply(layer: int, outputs: Tensor) -> Tensor:
            kept = self.kept[layer]
            factor = scale[..., layer, :] if len(kept) == self.heads else scale[..., layer, list(kept)]
            split = outputs.unflatten(-1, (len(kept), outputs.shape[-1] // max(len(kept), 1)))
            # [head] or [row head] against [row subword head head_dim].
            factor = factor.to(outputs.dtype)[..., None] if scale.dim() == 2 else factor[:, None, :, None]
            return (split * factor.to(outputs.dtype)).flatten(-2)

        with self._hooked(multiply):
            yield

    @contextmanager
    def observe(self) -> Iterator[list[Float[Tensor, "row subword head head_dim"]]]:
        """Collect each layer's head outputs of the forward pass inside the block.

        They are what the model goes on with, so that gradients in them can be asked for.
        """
        collected: list[Tensor] = []

        def collect(layer: int, outputs: Tensor) -> Tensor:
            kept = self.kept[layer]
            shape = (*outputs.shape[:-1], self.heads, self.head_dim)
            if len(kept) == self.heads:
                collected.append(outputs.view(shape))
                return collected[-1].flatten(-2)
            whole = outputs.new_zeros(shape)
            whole[..., list(kept), :] = outputs.unflatten(-1, (len(kept), self.head_dim))
            collected.append(whole)
            return whole[..., list(kept), :].flatten(-2)

        with self._hooked(collect):
            yield collected

    def whole_attentions(
        self,
        attentions: Sequence[Float[Tensor, "row _ subword subword"] | None],
        hidden: Float[Tensor, "row subword hidden"],
    ) -> list[Float[Tensor, "row head subword subword"]]:
        """A model's `attentions` with zeros for heads that have been cut out; `hidden` gives the shape."""
        # A layer that has lost all of its heads hands out nothing, or not even that.
        given = iter([each for each in attentions if each is not None])
        row, subword, _ = hidden.shape
        wholes = []
        for kept in self.kept:
            if len(kept) == self.heads:
                wholes.append(next(given))
                continue
            whole = hidden.new_zeros(row, self.heads, subword, subword)
            if kept:
                whole[:, list(kept)] = next(given)
            wholes.append(whole)
        return wholes

    @contextmanager
    def _hooked(self, act: OnHeads) -> Iterator[None]:
        calls: dict[nn.Module, int] = {}

        def restart(module: nn.Module, inputs: tuple[object, ...]) -> None:
            calls.clear()

        def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            # Where layers share a module, its n-th call in a forward pass is its n-th layer.
            served = self._served[module]
            turn = calls.get(module, 0)
            calls[module] = turn + 1
            replaced = act(served[turn], inputs[0])
            return None if replaced is None else (replaced, *inputs[1:])

        handles = [self.model.register_forward_pre_hook(restart)]
        try:
            handles += [module.register_forward_pre_hook(before) for module in self._served]
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Attention that can hand out its probabilities (`output_attentions=True`), restored afterwards."""
    before = model.config._attn_implementation
    if before == "eager":
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
