"""A target as a number of heads (without torch)."""

from __future__ import annotations

from mtl.errors import InputError
from mtl.tasks.in_words import counted


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
