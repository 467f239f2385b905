"""The modules that biaffine decoders share: a hidden layer and biaffine scores."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class Mlp(nn.Module):
    """One hidden layer as in Dozat and Manning (2017): linear, leaky ReLU, dropout.

    Given [batch word hidden], dropout drops the same features at all words of a sentence; given vectors
    without sentences, [row hidden], it draws for each row separately. Several projections of one input are
    cheapest as one `Mlp` whose output is split.
    """

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.dropout = dropout
        nn.init.orthogonal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, vectors: Float[Tensor, "*batch row hidden"]) -> Float[Tensor, "*batch row _"]:
        output = functional.leaky_relu(self.linear(vectors), 0.1)
        if not self.training or not self.dropout:
            return output
        first_row = output[..., :1, :] if output.ndim > 2 else output
        return output * functional.dropout(torch.ones_like(first_row), self.dropout)


class Biaffine(nn.Module):
    """A bilinear form per label: x W y, plus u x if `bias_right`, v y if `bias_left`, b if both.

    Dozat and Manning (2017), where x is the left vector and y the right one; `bias_left` stands for a
    constant 1 at the end of x. Weights start at zero, so that all labels start out equally probable. supar's
    layer computes the same, but only for all pairs, and with the ones copied into its inputs.
    """

    def __init__(self, inputs: int, labels: int, bias_left: bool = True, bias_right: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(labels, inputs, inputs))
        self.of_right = nn.Parameter(torch.zeros(labels, inputs)) if bias_left else None
        self.of_left = nn.Parameter(torch.zeros(labels, inputs)) if bias_right else None
        self.bias = nn.Parameter(torch.zeros(labels)) if bias_left and bias_right else None

    def forward(
        self, left: Float[Tensor, "batch a inputs"], right: Float[Tensor, "batch b inputs"]
    ) -> Float[Tensor, "batch a b label"]:
        """Scores of all pairs."""
        batch, rows, inputs = left.shape
        labels = len(self.weight)
        half = self._times_weight(left).reshape(batch, rows * labels, inputs)
        scores = (half @ right.mT).view(batch, rows, labels, right.shape[1]).transpose(2, 3)
        if self.of_left is not None:
            scores = scores + functional.linear(left, self.of_left, self.bias)[:, :, None]
        return scores

    def pairs(
        self, left: Float[Tensor, "pair inputs"], right: Float[Tensor, "pair inputs"]
    ) -> Float[Tensor, "pair label"]:
        """Scores of given pairs only."""
        half = self._times_weight(left).view(*left.shape[:1], *self.weight.shape[:2])
        scores = (half @ right[:, :, None]).squeeze(2)
        if self.of_left is not None:
            scores = scores + functional.linear(left, self.of_left, self.bias)
        return scores

    def _times_weight(self, left: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch _"]:
        # x W + v for all labels in one product; multiplied by y, it is x W y + v y
        weight = self.weight.transpose(1, 2).flatten(0, 1)
        return functional.linear(left, weight, None if self.of_right is None else self.of_right.flatten())


class DiagonalBiaffine(nn.Module):
    """A bilinear form per label with a diagonal matrix D: x D y + v x + w y + b, at given pairs.

    Dozat and Manning (2018) suggest it instead of full matrices. Each label has vectors of weights instead of
    a matrix, so it suits hundreds of labels. Weights start at zero, so that all labels start out equally
    probable.
    """

    def __init__(self, inputs: int, labels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * inputs, labels)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(
        self, left: Float[Tensor, "pair inputs"], right: Float[Tensor, "pair inputs"]
    ) -> Float[Tensor, "pair label"]:
        return self.linear(torch.cat([left * right, left, right], 1))
