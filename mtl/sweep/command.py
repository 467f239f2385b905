"""What all trials have in common: the words between `mtl train` and the sweep's own arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtl.errors import InputError

ARGUMENTS = "${args}"
_FORM = f"command must be [mtl, train, FILE.yaml, --key=value, '{ARGUMENTS}'], all but the ends optional"


def base_words(given: Mapping[str, Any]) -> list[str]:
    """The words that `command`, or `program`, says; raises `InputError` if W&B's agent could not call it."""
    command, program = given.get("command"), given.get("program")
    if program is not None and not isinstance(program, str):
        raise InputError(f"program: {program} is no text")
    if command is None:
        if program is not None and Path(program).suffix not in (".yaml", ".yml"):
            raise InputError(
                f"program: {program} is no configuration file; give "
                f"command: [mtl, train, FILE.yaml, '{ARGUMENTS}']"
            )
        return [] if program is None else [program]
    if not isinstance(command, list):
        raise InputError(f"{_FORM}: a list, not '{command}'")
    for word in command:
        if isinstance(word, list | Mapping) or word is None:
            raise InputError(f"command: {word} is no word: write --key=value, in quotes if need be")
    words = [program if word == "${program}" and program is not None else str(word) for word in command]
    if program is not None and program not in words:
        raise InputError(f"program: {program} has no effect, since command leaves it out: add ${{program}}")
    if words[:1] == ["${env}"]:
        words = words[1:]
    started = words[:2] == ["mtl", "train"] or words[1:4] == ["-m", "mtl", "train"]
    if not started or words[-1] != ARGUMENTS:
        raise InputError(_FORM)
    base = words[2 if words[0] == "mtl" else 4 : -1]
    for word in base:
        if "${" in word:
            raise InputError(f"command: {word} is not known here, only {ARGUMENTS} at the end")
    return base


def check_unset(base: Sequence[str], keys: Sequence[str]) -> None:
    """Raise `InputError` if a parameter's key is also set for all trials, which would have no effect."""
    for word in base:
        if word.startswith("--") and word[2:].split("=", 1)[0] in keys:
            raise InputError(
                f"{word} in the command has no effect, since {word[2:].split('=', 1)[0]} is a parameter of "
                "the sweep: leave one of them out"
            )
