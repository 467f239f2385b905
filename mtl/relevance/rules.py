"""The rules of layer-wise relevance propagation, as changes to the backward pass of any model.

The relevance of a tensor is tensor x gradient if every operation is homogeneous of degree 1 in the tensors
that carry relevance. Most operations are; these rules make the others so. The forward pass is unchanged.

| rule | operations | what the backward pass sees |
|---|---|---|
| LINEAR | sums, products with constants, moved entries | the operation (epsilon rule, epsilon -> 0) |
| BIAS | an added tensor or number without relevance | a sink that keeps its share |
| LAYERNORM | layer norm, RMS norm | division by a constant, in layer norm after the mean is subtracted |
| SCALE | divisors, roots, variances | a constant |
| ACTIVATION | f with f(0) = 0, elementwise | x times the constant f(x) / x (identity rule) |
| BILINEAR | products of n tensors that all carry relevance | an n-th of the relevance for each |
| ATTENTION | softmax | a constant (Voita et al. 2019), or its Jacobian (Achtibat et al. 2024) |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from mtl.errors import InputError
from mtl.heads.blocks import WithBlock

Rules = Literal["paper", "attnlrp"]
"""The rule for softmax. `paper`: attention weights are constants (Voita et al. 2019). `attnlrp`: relevance
also flows to queries and keys (Achtibat et al. 2024)."""

_LINEAR = frozenset({
    "T", "broadcast_to", "chunk", "clone", "contiguous", "copy", "cumsum", "diagonal", "double", "dropout",
    "dropout1d", "expand", "expand_as", "flatten", "flip", "float", "gather", "getitem", "index_select",
    "iter", "mT", "masked_select", "mean", "movedim", "narrow", "neg", "pad", "permute", "positive", "repeat",
    "repeat_interleave", "reshape", "reshape_as", "roll", "select", "split", "squeeze", "sum", "swapaxes",
    "t", "take_along_dim", "tile", "to", "transpose", "tril", "triu", "type", "type_as", "unbind",
    "unflatten", "unsqueeze", "view", "view_as",
})  # fmt: skip
_PRODUCTS = frozenset({"bmm", "einsum", "matmul", "mul"})
_SUMS = frozenset({
    "add", "cat", "index_add", "index_put", "masked_fill", "rsub", "scatter", "setitem", "stack", "sub",
    "where",
})  # fmt: skip
_SCALES = frozenset({"norm", "rdiv", "reciprocal", "rsqrt", "sqrt", "std", "var"})
_ACTIVATIONS = frozenset({
    "elu", "erf", "gelu", "hardswish", "leaky_relu", "mish", "relu", "relu6", "silu", "square", "tanh",
})  # fmt: skip
_NUMBERS_ADDED = {
    "add": (1, "other"), "sub": (1, "other"), "rsub": (1, "other"), "masked_fill": (2, "value"),
    "where": (1, 2),
}  # fmt: skip
"""The arguments, by position or name, in which an operation may get a plain number to add."""


class RelevanceSource(NamedTuple):
    """Where relevance ends: an embedding, or a constant that the model adds."""

    rule: Literal["EMBEDDING", "BIAS", "ATTENTION"]
    leaf: Tensor
    """A copy of what was looked up or added, which requires a gradient."""

    def relevance(self, gradient: Tensor | None) -> float:
        """The relevance that ends here, given the gradient (`None`: the output does not depend on it)."""
        if gradient is None:
            return 0.0
        # Minus infinity in an attention mask has a gradient of 0: its relevance is 0 and not NaN.
        return torch.where(gradient == 0, 0.0, self.leaf.detach() * gradient).double().sum().item()


class RelevanceRules(TorchFunctionMode):
    """Inside the block, operations on tensors that carry relevance have the backward passes of the rules.

    A tensor carries relevance if it requires a gradient. Relevance ends at embeddings, so parameters must not
    require gradients (`frozen`). Raises `InputError` for an operation without a rule.

    Args:
        rules: the rule for softmax.
        model: the type of the model, for errors.
        account: whether to collect in `sources` the embeddings and all added constants, whose relevance sums
            to the output; it costs time and memory.
    """

    def __init__(self, rules: Rules, model: str, account: bool = False) -> None:
        super().__init__()
        self.rules, self.model, self.account = rules, model, account
        self.sources: list[RelevanceSource] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """The result of a torch function, with the backward pass of its rule."""
        call = Call(func, args, kwargs or {})
        name, in_place = call.name()
        if name == "embedding":
            # A copy, because models add to embeddings in place.
            return self._source("EMBEDDING", call()).clone()
        carriers = call.carriers()
        if not carriers:
            return call()
        if name in _PRODUCTS and len(carriers) > 1 and not in_place:
            return call.with_carriers(lambda tensor: Share.apply(tensor, 1 / len(carriers)))()
        if name in _LINEAR or (name in _PRODUCTS and len(carriers) == 1):
            return call()
        if name == "div" and len(carriers) == 1 and _carries(call.argument(0, "input")):
            return call()
        if name in _SUMS:
            return self._with_sinks(call, name, in_place)() if self.account else call()
        if name == "linear" and not call.argument(1, "weight").requires_grad:
            return self._linear(call, 2, "bias")
        if name == "addmm" and not in_place and _is_projection(call):  # GPT-2's linear maps
            return self._linear(call, 0, "input")
        if name == "baddbmm" and not call.kwargs and not in_place:
            added, left, right = call.args
            with self:
                return added + left @ right
        if in_place:
            return self._without_rule(call)
        constant = call.with_carriers(Tensor.detach)
        if name == "div":
            return call.with_arguments(
                lambda place, value: value.detach() if place in (1, "other") and _carries(value) else value
            )()
        if name in _SCALES or (name == "softmax" and self.rules == "paper"):
            return constant()
        if name == "softmax":
            return self._softmax(call)
        if name in _ACTIVATIONS or (name == "pow" and _is_power(call)):
            return Proportional.apply(carriers[0], constant())
        if name in ("layer_norm", "rms_norm"):
            return self._norm(call, name)
        return self._without_rule(call)

    def _source(self, rule: Literal["EMBEDDING", "BIAS", "ATTENTION"], constant: Tensor) -> Tensor:
        leaf = constant.detach().clone().requires_grad_()
        if self.account:
            self.sources.append(RelevanceSource(rule, leaf))
        return leaf

    def _sink(self, bias: Tensor) -> Tensor:
        return self._source("BIAS", bias) if self.account else bias

    def _with_sinks(self, call: Call, name: str, in_place: bool) -> Call:
        """The call with sinks for the constants that it adds, except the tensor that it writes into."""
        like = call.carriers()[0]

        def changed(place: int | str, value: Any) -> Any:
            if in_place and place in (0, "input"):
                return value
            if type(value) in (list, tuple):
                return type(value)(changed("", part) for part in value)
            if isinstance(value, Tensor):
                return self._sink(value) if value.is_floating_point() and not value.requires_grad else value
            if isinstance(value, int | float) and place in _NUMBERS_ADDED.get(name, ()):
                return self._sink(torch.tensor(value, dtype=like.dtype, device=like.device))
            return value

        return call.with_arguments(changed)

    def _linear(self, call: Call, position: int, bias: str) -> Tensor:
        return call.with_arguments(
            lambda place, value: (
                self._sink(value) if place in (position, bias) and isinstance(value, Tensor) else value
            )
        )()

    def _norm(self, call: Call, name: str) -> Tensor:
        vectors, shape = call.argument(0, "input"), call.argument(1, "normalized_shape")
        weight = call.argument(2, "weight")
        if name == "layer_norm":
            bias = call.argument(3, "bias")
            outputs: Tensor = LayerNorm.apply(vectors, shape, weight, call.argument(4, "eps", 1e-5))
            return outputs if bias is None else outputs + self._sink(bias)
        epsilon = call.argument(3, "eps")
        epsilon = torch.finfo(vectors.dtype).eps if epsilon is None else epsilon
        squares = vectors.detach().square().mean(tuple(range(-len(shape), 0)), keepdim=True)
        outputs = vectors * (squares + epsilon).rsqrt()
        return outputs if weight is None else outputs * weight

    def _softmax(self, call: Call) -> Tensor:
        """The softmax y of x; its own gradient, times x, is AttnLRP's rule R_x = x (R_y - y sum(R_y))."""
        weights: Tensor = call()
        if not self.account:
            return weights
        # What y has beside the linear part J x is a constant, which keeps its share.
        y, x = weights.detach(), call.argument(0, "input").detach().to(weights.dtype)
        products = torch.where(y == 0, 0.0, y * x)
        linear = products - y * products.sum(call.argument(1, "dim"), keepdim=True)
        return AddedConstant.apply(weights, self._source("ATTENTION", y - linear))

    def _without_rule(self, call: Call) -> Any:
        """The result, if it carries no relevance; otherwise raises `InputError`."""
        result = call()
        if any(_carries(part) for part in (result if isinstance(result, list | tuple) else (result,))):
            raise InputError(
                f"relevance: no rule for {call.path()} in model type {self.model!r}; rules are in "
                "mtl/relevance/rules.py"
            )
        return result


def _is_projection(call: Call) -> bool:
    """Whether an `addmm` is a linear map: only the vectors carry relevance, and both factors are 1."""
    carriers = [_carries(call.argument(0, "input")), _carries(call.argument(2, "mat2"))]
    return not any(carriers) and call.argument(3, "beta", 1) == call.argument(4, "alpha", 1) == 1


def _carries(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _is_power(call: Call) -> bool:
    """Whether a carrier is raised to a constant power above 0."""
    exponent = call.argument(1, "exponent")
    return _carries(call.argument(0, "input")) and isinstance(exponent, int | float) and exponent > 0


@contextmanager
def single_activations(model: nn.Module) -> Iterator[None]:
    """Inside the block, ACTIVATION also holds for activations that transformers composes of operations.

    It does not for those with f(0) other than 0: each of their operations needs a rule.
    """

    def whole(compute: Callable[..., Tensor], vectors: Tensor, *given: Any, **named: Any) -> Tensor:
        outputs = compute(vectors.detach(), *given, **named)
        return Proportional.apply(vectors, outputs) if vectors.requires_grad else outputs

    single = [
        module
        for module in model.modules()
        if type(module).__module__ == "transformers.activations" and not module(torch.zeros(1)).any()
    ]
    with WithBlock().hooks(around=dict.fromkeys(single, whole)):
        yield


def relevance_by_rule(sources: Sequence[RelevanceSource], output: Float[Tensor, ""]) -> dict[str, float]:
    """How much of the relevance of `output` ends under each rule; with all sources, it sums to `output`."""
    leaves = [source.leaf for source in sources]
    gradients = torch.autograd.grad(output, leaves, retain_graph=True, allow_unused=True)
    ended = {"EMBEDDING": 0.0, "BIAS": 0.0, "ATTENTION": 0.0}
    for source, gradient in zip(sources, gradients, strict=True):
        ended[source.rule] += source.relevance(gradient)
    return ended


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


_ALIASES = {
    "concat": "cat", "concatenate": "cat", "divide": "div", "multiply": "mul", "radd": "add", "rmul": "mul",
    "rtruediv": "rdiv", "subtract": "sub", "true_divide": "div", "truediv": "div",
}  # fmt: skip
_IN_PLACE = {"iadd": "add", "imul": "mul", "isub": "sub", "itruediv": "div", "setitem": "setitem"}


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments; those that require a gradient are the call's carriers."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def __call__(self) -> Any:
        """The function's result."""
        return self.function(*self.args, **self.kwargs)

    def name(self) -> tuple[str, bool]:
        """The operation (the same for `torch.add`, `Tensor.add_` and `+=`), and whether it is in place."""
        name = self.function.__name__
        if name == "__get__":
            name = cast(Any, self.function).__self__.__name__
        if name.startswith("__") and name.endswith("__"):
            name = name[2:-2]
            if name in _IN_PLACE:
                return _IN_PLACE[name], True
        in_place = name.endswith("_") or bool(self.kwargs.get("inplace"))
        name = name.rstrip("_")
        return _ALIASES.get(name, name), in_place

    def path(self) -> str:
        """The function's public name, for messages."""
        return torch.overrides.resolve_name(self.function) or self.function.__name__

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument that may be given by position or by name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    def carriers(self) -> list[Tensor]:
        """The tensors that require a gradient, including those in lists."""
        values = (*self.args, *self.kwargs.values())
        parts = [
            part for value in values for part in (value if isinstance(value, list | tuple) else (value,))
        ]
        return [part for part in parts if isinstance(part, Tensor) and part.requires_grad]

    def with_carriers(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with every carrier changed."""

        def changed(value: Any) -> Any:
            if type(value) in (list, tuple):
                return type(value)(changed(part) for part in value)
            return change(value) if isinstance(value, Tensor) and value.requires_grad else value

        return self.with_arguments(lambda place, value: changed(value))

    def with_arguments(self, change: Callable[[int | str, Any], Any]) -> Call:
        """The same call with every argument changed, given its position or name."""
        return replace(
            self,
            args=[change(position, value) for position, value in enumerate(self.args)],
            kwargs={name: change(name, value) for name, value in self.kwargs.items()},
        )
