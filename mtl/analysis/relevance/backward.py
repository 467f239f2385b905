"""Backward passes that treat operations as homogeneous of degree 1; the forward passes are unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Share(torch.autograd.Function):
    """The identity, whose backward pass multiplies the gradient by `share`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, share: float) -> Tensor:
        ctx.share = share
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.share, None


class Proportional(torch.autograd.Function):
    """Given x and y = f(x), elementwise with f(0) = 0: y, differentiated as x times the constant y / x."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, outputs: Tensor) -> Tensor:
        ctx.save_for_backward(torch.where(inputs == 0, 0.0, outputs / inputs))
        return outputs.view_as(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (quotient,) = ctx.saved_tensors
        return gradient * quotient, None


class LayerNorm(torch.autograd.Function):
    """Layer norm without its bias, differentiated as a linear map: the divisor is a constant."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, shape: Sequence[int], weight: Tensor | None, epsilon: float
    ) -> Tensor:
        outputs, _, scale = torch.native_layer_norm(inputs, list(shape), weight, None, epsilon)
        ctx.axes = tuple(range(-len(shape), 0))
        ctx.save_for_backward(scale, weight)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        scale, weight = ctx.saved_tensors
        scaled = gradient * scale if weight is None else gradient * weight * scale
        return scaled - scaled.mean(ctx.axes, keepdim=True), None, None, None


class AddedConstant(torch.autograd.Function):
    """The identity for a tensor that is the sum of a part and a constant: both get the whole gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, constant: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient
