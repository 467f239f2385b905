"""A call of a torch function, as a `TorchFunctionMode` sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

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
