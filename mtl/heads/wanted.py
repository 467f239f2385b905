"""A target as a number of heads (without torch)."""

from __future__ import annotations

from collections.abc import Sequence

from mtl.errors import InputError
from mtl.tasks.in_words import counted

DEFAULT_TARGET = 1 / 3
"""Share of heads that stay open if neither a target nor a penalty is given (see docs/masks.md)."""


def heads_wanted(target: int | float, heads: int, group: int = 1) -> int:
    """A target as a number of heads; it is given as a share of `heads` in (0, 1] or a whole number above 1.

    If heads go by groups of `group`, a share is rounded to whole groups. Raises `InputError` for a target
    that is no such number, is less than one head or group, is above `heads`, or divides a group.
    """
    if 0 < target <= 1:
        wanted = round(target * heads / group) * group
        if wanted < 1:
            least = f"{'a group' if group > 1 else 'one'} of {counted(heads, 'head')}"
            raise InputError(f"target {target}: less than {least}; use {group / heads:.4f} or more")
        return wanted
    if not target > 0:
        raise InputError(f"target {target}: use a share of the heads in (0, 1] or a number of heads above 1")
    if target > heads:
        raise InputError(f"target {target:g}: there are only {counted(heads, 'head')}")
    if target != int(target):
        raise InputError(f"target {target}: a number of heads must be whole (a share is in (0, 1])")
    if int(target) % group:
        raise InputError(f"target {target:g}: heads go by groups of {group}: use a multiple of {group}")
    return int(target)


def check_at_least(at_least: int, layers: Sequence[int], wanted: int, group: int = 1, name: str = "") -> None:
    """Raise `InputError` if `wanted` open heads cannot be at least this many in every layer.

    `layers` has the number of heads of each layer. A layer that has fewer keeps all of them. Groups of
    `group` heads are open as a whole. `name` says what has the target, where there are several.
    """
    shown = f"gates.at_least={at_least}{f' ({name})' if name else ''}"
    if at_least > max(layers):
        raise InputError(
            f"{shown}: no layer has more than {counted(max(layers), 'head')}: use a smaller number"
        )
    fewest = sum(min(-(-at_least // group) * group, heads) for heads in layers)
    if fewest > wanted:
        raise InputError(
            f"{shown}: {counted(len(layers), 'layer')} would keep {counted(fewest, 'head')}, and the target "
            f"is {wanted}: use a smaller number, or a larger target"
        )
