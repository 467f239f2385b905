"""Heads out of a transformer: scaled for a while, or cut out of the weights for good.

Both work on any `transformers` model of the families table, also one that never saw this framework
(transformers 5 has neither `head_mask` nor `prune_heads` any more).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtl.errors import InputError
from mtl.heads.families import Attention, Family, attentions, family_of, head_dim, pruned_heads
from mtl.heads.tap import HeadTap


@contextmanager
def head_scale(
    model: PreTrainedModel, scale: Float[Tensor, "layer head"] | Float[Tensor, "row layer head"]
) -> Iterator[None]:
    """Multiply what each head writes, inside the block: 0 ablates a head, 1 leaves it as it is.

    One scale for the batch or one per row; differentiable in `scale`.
    """
    with HeadTap(model, family_of(model)).scale(scale):
        yield


def prune_heads(
    model: PreTrainedModel,
    heads: Mapping[int, Iterable[int]],
    scale: Float[Tensor, "layer head"] | None = None,
) -> None:
    """Cut heads out of the model in place: their query, key and value rows and their output columns.

    `heads` gives, per layer, the heads to cut, both from 0 and numbered as in the uncut model however often
    it is cut; what is already gone is passed over. `scale` is multiplied into the output columns of the
    heads that stay. A layer without heads keeps the bias of its output projection. Where several heads share
    keys and values, each head that stays in a cut layer gets its own copy. The heads are recorded in
    `model.config.pruned_heads`, from which `load_pruned` rebuilds the model. Optimisers must be made anew.

    Raises:
        InputError: a family without separable heads, or a layer or head that does not exist.
    """
    family = family_of(model)
    found = attentions(model, family)
    layers, every = len(found), model.config.num_attention_heads
    wanted = {layer: set(numbers) for layer, numbers in heads.items()}
    for layer, numbers in wanted.items():
        if not 0 <= layer < layers:
            raise InputError(f"layer {layer} cannot be cut: the model has layers 0 to {layers - 1}")
        if not numbers <= set(range(every)):
            worst = max(numbers, key=abs)
            raise InputError(f"head {worst} of layer {layer} cannot be cut: heads are 0 to {every - 1}")
    if scale is not None and scale.shape != (layers, every):
        raise InputError(
            f"a scale of shape {tuple(scale.shape)} does not fit {layers} layers of {every} heads"
        )
    if why := family.whole or _mixed_heads(model):
        raise InputError(f"no heads can be cut out of {type(model).__name__}: {why}")
    size = head_dim(model)
    gone = {layer: set(numbers) for layer, numbers in pruned_heads(model).items()}
    for layer, attention in enumerate(found):
        if scale is not None:
            factor = scale[layer, list(attention.kept)].repeat_interleave(size)
            attention.output.weight.data *= factor.to(attention.output.weight)
        if cut := wanted.get(layer, set()) & set(attention.kept):
            _cut(model, family, attention, [head not in cut for head in attention.kept], size)
            gone[layer] = gone.get(layer, set()) | cut
    if gone:
        model.config.pruned_heads = {layer: sorted(numbers) for layer, numbers in sorted(gone.items())}


class NoHeads(nn.Module):
    """Stands for the attention of a layer that has lost all of its heads."""

    def __init__(self, output_name: str = "", output: nn.Module | None = None) -> None:
        super().__init__()
        self.output_name = output_name
        if output is not None:
            # Under its old name, so that paths of parameters stay what they were.
            self.add_module(output_name, output)

    def forward(
        self, hidden_states: Float[Tensor, "row subword hidden"], *_: object, **__: object
    ) -> tuple[Tensor, None]:
        """What no heads give: an empty context, or the output projection's bias where that is inside."""
        context = hidden_states[..., :0]
        return (self.get_submodule(self.output_name)(context) if self.output_name else context), None


def _cut(model: PreTrainedModel, family: Family, attention: Attention, stays: list[bool], size: int) -> None:
    """Keep those of the heads that are still there for which `stays` is true."""
    module, output = attention.module, attention.output
    device = output.weight.device
    keep = torch.tensor([index for index, stay in enumerate(stays) if stay], dtype=torch.long, device=device)
    columns = _rows(keep, size)
    output.weight = _chosen(output.weight, columns, dim=1)
    output.in_features = len(columns)
    if not len(keep):
        inside = family.output if "^" not in family.output else ""
        path = next(name for name, each in model.named_modules() if each is module)
        model.set_submodule(path, NoHeads(inside, output if inside else None))
        return
    if family.fused == "heads":
        _keep_rows(module.get_submodule(family.query), _rows(keep, 3 * size))
    elif family.fused == "blocks":
        block = len(stays) * size * torch.arange(3, device=device)[:, None]
        _keep_rows(module.get_submodule(family.query), (block + columns).flatten())
    else:
        _keep_rows(module.get_submodule(family.query), columns)
        groups = getattr(module, "num_key_value_groups", 1)
        for name in (family.key, family.value):
            _keep_rows(module.get_submodule(name), _rows(keep // groups, size))
    for name in family.also:
        part = getattr(module, name, None)
        if isinstance(part, nn.Linear):
            _keep_rows(part, columns)
        elif isinstance(part, nn.Parameter):
            setattr(module, name, _chosen(part, columns, dim=0))
    numbers = {
        "num_attention_heads": len(keep),
        "n_heads": len(keep),
        "all_head_size": len(columns),
        "num_key_value_groups": 1,
    }
    for name, number in numbers.items():
        if hasattr(module, name):
            setattr(module, name, number)
    if family.position_bias:
        if not hasattr(module, "bias_heads"):
            module.register_buffer("bias_heads", torch.arange(len(stays), device=device), persistent=False)
            module.register_forward_pre_hook(_choose_position_bias)
        module.register_buffer("bias_heads", module.get_buffer("bias_heads")[keep], persistent=False)


def _rows(heads: Tensor, size: int) -> Tensor:
    """The rows of the given heads, `size` of them each."""
    return (heads[:, None] * size + torch.arange(size, device=heads.device)).flatten()


def _chosen(parameter: Tensor, index: Tensor, dim: int) -> nn.Parameter:
    return nn.Parameter(parameter.detach().index_select(dim, index), requires_grad=parameter.requires_grad)


def _keep_rows(linear: nn.Module, rows: Tensor) -> None:
    assert isinstance(linear, nn.Linear)
    linear.weight = _chosen(linear.weight, rows, dim=0)
    if linear.bias is not None:
        linear.bias = _chosen(linear.bias, rows, dim=0)
    linear.out_features = len(rows)


def _choose_position_bias(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """MPNet computes one bias for all heads of all layers; a cut layer takes that of its own heads."""
    hidden, mask, bias, *rest = inputs
    return hidden, mask, bias[:, module.get_buffer("bias_heads")], *rest


def _mixed_heads(model: PreTrainedModel) -> str:
    if getattr(model.config, "talking_head", False):
        return "its talking heads mix the attention of all heads, so that none can go alone"
    return ""
