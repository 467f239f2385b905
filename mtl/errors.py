"""The errors that the command line prints as one line, and what their messages share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONGEST_NAME = 200
"""Maximum bytes of a name that is given to a file or folder: file systems allow 255, endings included."""


class InputError(ValueError):
    """Wrong arguments or input; the message says what is wrong, where, and how to fix it (exit code 2)."""


class RunError(Exception):
    """A run cannot continue although its input was valid; the message says where and why (exit code 1)."""


@contextmanager
def as_input_error(where: str = "") -> Iterator[None]:
    """Turn a `ValueError` of the block into an `InputError` that begins with `where`.

    An `InputError` passes unchanged, since its message is complete.
    """
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from error


def did_you_mean(name: str, choices: Iterable[str], otherwise: str | None = None) -> str:
    """The end of a message about an unknown name: the nearest choice, if the name may be a misspelling of it.

    In a misspelling, at most one letter in four is wrong, missing, superfluous or swapped with the next, and
    not every letter after the dots that it shares with the choice: `optimizer.lr` is not `optimizer.clip`. A
    dotted key without its beginning counts, too, if it fits one choice only, and so does the end of some keys
    of a group (`optimizer.lr` for `optimizer.encoder_lr`). Otherwise the message ends with
    `otherwise`, by default with the list of all choices.
    """
    known = list(choices)
    most = max(1, len(name) // 4)
    # Of names whose lengths differ by more, none is near enough.
    slips = {
        choice: _slips(name.lower(), choice.lower())
        for choice in known
        if abs(len(name.lower()) - len(choice.lower())) <= most
    }
    slips = {choice: number for choice, number in slips.items() if number < len(_own_part(name, choice))}
    nearest = min(slips, key=lambda choice: slips[choice], default="")
    whole = [choice for choice in known if choice.endswith(f".{name}")]
    if nearest and slips[nearest] <= most:
        return f": did you mean '{nearest}'?"
    if len(whole) == 1:
        return f": did you mean '{whole[0]}'?"
    group, dot, end = name.rpartition(".")
    ends = [choice for choice in known if choice.startswith(f"{group}.") and choice.endswith(f"_{end}")]
    if dot and end and 0 < len(ends) <= 3:
        return f": did you mean {' or '.join(map(repr, ends))}?"
    return f"; known are {', '.join(known)}" if otherwise is None else otherwise


def _own_part(name: str, choice: str) -> str:
    """A dotted name without the first parts that a choice has, too."""
    parts, others = name.split("."), choice.split(".")
    while parts and others and parts[0] == others[0]:
        del parts[0], others[0]
    return ".".join(parts)


def _slips(one: str, other: str) -> int:
    """How many letters are wrong, missing, superfluous or swapped with the next: optimal string alignment."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        last, before, row = before, row, [i]
        for j, target in enumerate(other, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != target))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == target:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


def plain_name(value: str, what: str) -> str:
    """The value, if it can name a file in a folder; `what` says in the error what it should name.

    Raises `InputError` for names that would leave their folder (a separator, `.`, `..`, an absolute path),
    that would be hidden (a leading dot), or that terminals cannot show or file systems cannot hold.
    """
    fault = _fault_of(value)
    if fault is not None:
        shown = value if len(value) <= 60 else f"{value[:60]}…"
        raise InputError(f"{what}={shown!r} {fault}: use a plain name such as 'pos-seed1'")
    return value


def _fault_of(name: str) -> str | None:
    """Why a file cannot have this name; `None` if it can."""
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
