"""Linear maps of two classes: `nn.Linear` stores its weight as [out, in], GPT-2's `Conv1D` as [in, out]."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mtl.heads.blocks import own_forward


def input_dim(projection: nn.Linear | Conv1D) -> int:
    """The dimension of the weight that runs over inputs; the other one runs over outputs."""
    return 0 if isinstance(projection, Conv1D) else 1


def in_features(projection: nn.Linear | Conv1D) -> int:
    """The size of its input."""
    return projection.weight.shape[input_dim(projection)]


def width_read_by(projection: nn.Module) -> int | None:
    """The size of its input, also if it has an adapter (PEFT) or is quantised; `None` if it is not linear."""
    while (inside := getattr(projection, "get_base_layer", None)) is not None:
        projection = inside()
    if is_plain(projection):
        return in_features(projection)
    width = getattr(projection, "in_features", None)
    return width if isinstance(width, int) else None


def is_plain(projection: nn.Module) -> bool:
    """Whether rows and columns of its weight can be selected: a matrix of numbers that the module holds."""
    weight = projection._parameters.get("weight")
    return (
        isinstance(projection, nn.Linear | Conv1D)
        and weight is not None
        and weight.dim() == 2
        and weight.is_floating_point()
    )


def out_features(projection: nn.Linear | Conv1D) -> int:
    """The size of its output."""
    return projection.weight.shape[1 - input_dim(projection)]


@torch.no_grad()
def scale_inputs(projection: nn.Linear | Conv1D, factor: Float[Tensor, " input"]) -> None:
    """Multiply the weights of each input by a factor, in place."""
    factor = factor.to(projection.weight)
    projection.weight.mul_(factor[:, None] if input_dim(projection) == 0 else factor)


def without_hooks(
    projection: nn.Module, inputs: Float[Tensor, "*rows input"]
) -> Float[Tensor, "*rows output"]:
    """The projection's output for `inputs`, without its hooks and what blocks do to it."""
    outputs: Tensor = own_forward(projection)(inputs)
    return outputs


def note_shape(projection: nn.Module) -> None:
    """Set the sizes in the module's attributes to those of its weight."""
    if isinstance(projection, nn.Linear):
        projection.out_features, projection.in_features = projection.weight.shape
    elif isinstance(projection, Conv1D):
        projection.nx, projection.nf = projection.weight.shape


def without_inputs(projection: nn.Linear | Conv1D) -> nn.Linear:
    """The projection with no inputs, whose output is the bias alone.

    It is an `nn.Linear` for both classes, since a `Conv1D` fails without inputs.
    """
    weight = projection.weight
    # With one input, since torch warns about none, and on `meta`, so that nothing is drawn for its weights.
    empty = nn.Linear(1, out_features(projection), bias=projection.bias is not None, device="meta")
    empty.weight = nn.Parameter(
        weight.new_zeros(out_features(projection), 0), requires_grad=weight.requires_grad
    )
    empty.in_features = 0
    empty.bias = projection.bias
    empty.train(projection.training)
    return empty
