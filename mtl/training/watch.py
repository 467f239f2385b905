"""Check that the values that training computes are finite, and end the run if one is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mtl.errors import RunError


@dataclass(frozen=True, slots=True)
class _Noted:
    """Values that are being copied to the CPU; `arrived` waits for them."""

    where: str
    names: Sequence[str]
    values: Float[Tensor, " name"]
    arrived: Callable[[], object]


class Watch:
    """Ends a run at the first value that is not finite.

    That holds in bfloat16, too, whose range is that of float32. On a CPU, values are checked when they are
    noted. On a GPU, they are checked one update later, so that the program does not wait for the device; the
    device itself skips an update whose values are not finite.
    """

    def __init__(self) -> None:
        self._noted: _Noted | None = None

    def note(self, where: str, names: Sequence[str], values: Float[Tensor, " name"]) -> None:
        """Look at the values noted before, and keep these to look at next; on a CPU look at once.

        Raises `RunError` as `look` does.
        """
        self.look()
        arrived: Callable[[], object] = bool
        if values.device.type != "cpu":
            event = torch.get_device_module(values.device).Event()
            values = values.detach().to("cpu", non_blocking=True)
            event.record()
            arrived = event.synchronize
        self._noted = _Noted(where, names, values, arrived)
        if arrived is bool:
            self.look()

    def look(self) -> None:
        """Raise `RunError` if any of the noted values is not finite; the message names the first one."""
        noted, self._noted = self._noted, None
        if noted is None:
            return
        noted.arrived()
        require_finite(noted.where, dict(zip(noted.names, noted.values.tolist(), strict=True)))


def require_finite(where: str, values: Mapping[str, float]) -> None:
    """Raise `RunError` if any of the values is not finite; the keys name them in the message."""
    wrong = [name for name, value in values.items() if not math.isfinite(value)]
    if wrong:
        more = "" if len(wrong) == 1 else f" (and {len(wrong) - 1} more)"
        raise RunError(f"{where}: {wrong[0]} is {values[wrong[0]]}{more}")
