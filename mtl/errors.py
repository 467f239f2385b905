"""The error that the command line prints as one line, and what messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_NAME = 200
"""Bytes of a name that becomes a file's or folder's, at most: file systems allow 255, endings included."""


class InputError(Exception):
    """Bad arguments or bad input; the message says what is wrong, where, and how to mend it (exit code 2)."""


class RunError(Exception):
    """A run that cannot go on, though its input was good; the message says where and why (exit code 1)."""


def did_you_mean(name: str, choices: Iterable[str], otherwise: str | None = None) -> str:
    """The end of a message about an unknown name: the nearest known one.

    Where none is near, the message ends in `otherwise`, by default the list of all choices.
    """
    known = list(choices)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    if close:
        return f": did you mean '{close[0]}'?"
    return f"; known are {', '.join(known)}" if otherwise is None else otherwise


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 run, 12 runs, 1,200 runs."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def plain_name(value: str, what: str) -> str:
    """The value, if it can name one file or folder inside another; `what` begins the message if not.

    Raises `InputError` for names that would leave their folder (a separator, `.`, `..`, an absolute path),
    that hide (a leading dot), or that no terminal or file system takes.
    """
    fault = _fault_of(value)
    if fault is not None:
        shown = value if len(value) <= 60 else f"{value[:60]}…"
        raise InputError(f"{what}={shown!r} {fault}: give a plain name such as 'pos-seed1'")
    return value


def _fault_of(name: str) -> str | None:
    """Why a name cannot be a file's; `None` if it can."""
    if not name.strip():
        return "is empty"
    if "/" in name or "\\" in name:
        return "has a path separator, and would leave its folder"
    if name.startswith("."):
        return "begins with a dot"
    if not name.isprintable() or name != name.strip():
        return "has characters that do not print, or spaces around it"
    if len(name.encode(errors="replace")) > LONGEST_NAME:
        return f"is longer than {LONGEST_NAME} bytes"
    return None
