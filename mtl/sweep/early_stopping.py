"""Early termination: when the trials of a sweep are compared and the worse ones stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtl.errors import InputError
from mtl.sweep.yaml_file import count, known

_KEYS = ("type", "min_iter", "max_iter", "s", "eta", "strict")


@dataclass(frozen=True)
class Stopping:
    """Trials are compared after `first` evaluations, `first * eta`, and so on; one in `eta` continues.

    This is a single bracket of hyperband (asynchronous successive halving), as in W&B.
    """

    first: int
    eta: int
    last: int | None = None
    """The number of evaluations after which no comparison comes; `None`: as long as trials last."""

    def compares_after(self, evaluation: int) -> bool:
        """Whether a comparison may come after this number of evaluations."""
        return self.last is None or evaluation <= self.last

    def __str__(self) -> str:
        end = ", …" if self.last is None else f", … up to {self.last}"
        return f"after {self.first}, {self.first * self.eta}{end} evaluations one in {self.eta} continues"


def stopping_from(given: Any) -> Stopping | None:
    """What a sweep file says under `early_terminate`; raises `InputError` for what would have no effect."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or given.get("type") != "hyperband":
        raise InputError(
            "early_terminate: type must be hyperband, for instance {type: hyperband, min_iter: 3}"
        )
    known(given, _KEYS, "early_terminate")
    if not isinstance(given.get("strict", False), bool):
        raise InputError(f"early_terminate.strict: '{given['strict']}' is neither true nor false")
    eta = count(given, "eta", "early_terminate.") or 3
    if eta < 2:
        raise InputError(f"early_terminate.eta={eta}: one trial in eta continues; give 2 or more")
    first, last, times = (count(given, key, "early_terminate.") for key in ("min_iter", "max_iter", "s"))
    if first is not None and (last is not None or times is not None):
        other = "max_iter" if last is not None else "s"
        raise InputError(
            f"early_terminate: of min_iter and {other} one has no effect: give min_iter, or max_iter and s"
        )
    if first is not None:
        return Stopping(first, eta)
    if last is None or times is None:
        raise InputError(
            "early_terminate: give min_iter, or max_iter and s, the number of comparisons before it"
        )
    while last < eta**times:  # W&B leaves out comparisons that would come before the first evaluation
        times -= 1
    if times == 0:
        raise InputError(f"early_terminate: max_iter={last} leaves no comparison; raise it, or lower eta")
    return Stopping(last // eta**times, eta, last // eta)
