"""How many operations the host starts: on a GPU small batches cost what these cost, whatever their size."""

from __future__ import annotations

from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode

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
