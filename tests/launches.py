"""How many operations the host starts: on a GPU small batches cost what these cost, whatever their size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

FREE = {
    "_record_function_enter_new", "_record_function_exit",
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal", "empty", "empty_like",
    "empty_strided", "expand", "lift_fresh", "new_empty", "new_empty_strided", "permute", "promote_types",
    "scalar_tensor", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind",
    "unsqueeze", "view",
}  # fmt: skip
"""Views, and what only reserves memory or asks for a type."""
WAITS = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "unique"}
"""What the host waits for: it reads a number, or the size of the result depends on the numbers."""


class Launches(TorchDispatchMode):
    """Counts the operations with a kernel inside the block, those of backward passes, too."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()

    def total(self) -> int:
        """All of them."""
        return self.by_name.total()

    def waits(self) -> int:
        """Those that the host waits for."""
        return sum(self.by_name[name] for name in WAITS)

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        name = operation._schema.name.partition("::")[2]
        if name not in FREE:
            self.by_name[name] += 1
        return operation(*arguments, **(options or {}))


def pass_graphs(
    forward: Callable[[], Tensor], backward: Callable[[Tensor], object]
) -> tuple[Callable[[], object], Tensor, Callable[[], object]]:
    """A stand-in for CUDA graphs of an encoder's pass, whose operations are not started one by one.

    As on a GPU, a pass that waits is refused, outputs have no values before the first replay, and each
    replay reads what is at the places of inputs and weights, and overwrites the output and the gradients.
    """
    with Launches() as launches:
        output = forward()
        backward(output)
    if launches.waits():
        raise RuntimeError("called a synchronizing CUDA operation")
    made = torch.full_like(output.detach(), torch.nan)
    passes: list[Tensor] = []

    def there() -> None:
        with _disable_current_modes(), torch.enable_grad():
            passes[:] = [forward()]
            made.copy_(passes[0].detach())

    def back() -> None:
        with _disable_current_modes():
            backward(passes[0])

    return there, made, back
