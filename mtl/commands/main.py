"""The program `mtl`: finds the command, parses its arguments, and turns errors into one line."""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mtl.config.parse import arguments_of, configuration
from mtl.errors import InputError

COMMANDS = {
    "data ewt5": ("mtl.commands.data:ewt5", "build EWT in five layers"),
    "data toy": ("mtl.commands.data:toy", "generate a small corpus with all five layers"),
    "data convert": ("mtl.commands.data:convert", "write a corpus of any format as JSON lines"),
    "data select": ("mtl.commands.data:select", "cut sentences out of a corpus by their ids"),
    "data stats": ("mtl.commands.data:stats", "count sentences, words and annotations"),
    "train": ("mtl.commands.train:train", "train a model, or go on training"),
    "evaluate": ("mtl.commands.evaluate:evaluate", "score a trained model"),
    "figure": ("mtl.commands.figure:figure", "draw a figure from runs given by hand"),
    "prune": ("mtl.commands.prune:prune", "cut closed heads out of a trained model"),
    "predict": ("mtl.commands.predict:predict", "annotate text from standard input"),
    "probe": ("mtl.commands.probe:probe", "measure what each attention head is good at"),
    "study": ("mtl.commands.study:study", "carry out a grid of runs, their probes and the report"),
    "sweep": ("mtl.commands.sweep:sweep", "search for good configurations, with W&B or without a server"),
    "report": ("mtl.commands.report:report", "make one HTML page of a folder of runs"),
    "demo": ("mtl.commands.demo:demo", "a small study on a generated corpus, from nothing to the report"),
}
"""Every command: the function behind it and what it does."""

CONFIGURED = {"train"}
"""Commands whose arguments are a configuration file and dotted keys."""

BOTH = {"study", "sweep"}
"""Commands that have options besides, and take their arguments as they are."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns 0 (done), 1 (failed), 2 (bad arguments or input) or 130 (interrupted)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # transformers would look for the hub at every start, and print progress bars for local files.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        command, rest = _command(words)
        function = _load(COMMANDS[command][0])
        if command in BOTH:
            return int(function(rest) or 0)
        read = configuration if command in CONFIGURED else arguments_of
        code = function(**read(f"mtl {command}", function, rest))
        return int(code or 0)
    except InputError as error:
        print(f"mtl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mtl: interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"mtl: the disk is full{where}: make room and give the same command again", file=sys.stderr)
        return 2


def _load(path: str) -> Callable[..., Any]:
    module, name = path.split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _command(words: Sequence[str]) -> tuple[str, list[str]]:
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        raise SystemExit(0)
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS and len(words) >= length:
            return name, list(words[length:])
    group = [name for name in COMMANDS if name.startswith(f"{words[0]} ")]
    if (group and len(words) == 1) or (group and words[1] in ("-h", "--help")):
        print(_overview(group))
        raise SystemExit(0 if len(words) > 1 else 2)
    given = " ".join(words[:2]) if group else words[0]
    close = difflib.get_close_matches(given, COMMANDS, n=1, cutoff=0.3)
    raise InputError(
        f"no command '{given}'" + (f": did you mean '{close[0]}'?" if close else "; see 'mtl --help'")
    )


def _overview(names: Sequence[str] = tuple(COMMANDS)) -> str:
    width = max(map(len, names))
    lines = [f"  mtl {name:<{width}}  {COMMANDS[name][1]}" for name in names]
    return "\n".join(["usage: mtl COMMAND [ARGUMENTS]   (mtl COMMAND --help lists them)", "", *lines])
