"""`mtl` that is killed at the first place that no earlier try was killed at, for `test_killed.py`.

    python -m tests.mtl.training.killed NOTE WORD...

A place is a file that was just written, or a call of an observer or of W&B that has just returned. The places
at which tries were killed are in the file NOTE, one a line; without the file nothing is killed. Of the tables
and the figures of a report, those of one format are one place; its figures stay empty.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mtl.analysis.observers import ImportanceOverTime, MaskPictures, RunLoggers
from mtl.commands.main import main
from mtl.runs.folder.wandb_view import WandbView

OBSERVERS = (MaskPictures, ImportanceOverTime, RunLoggers)
CALLS = {
    **dict.fromkeys(OBSERVERS, ("on_run_start", "on_evaluation", "on_final_scores")),
    WandbView: ("begin", "log", "log_row", "summarise", "keep", "end"),
}


def run(note: Path, words: list[str]) -> int:
    """The command's exit code."""
    known = note.read_text(encoding="utf-8").splitlines() if note.exists() else None

    def die_at(place: str | None) -> None:
        if known is not None and place is not None and place not in known:
            with note.open("a", encoding="utf-8") as file:
                file.write(f"{place}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    def after(real: Callable[..., Any], place_of: Callable[..., str | None]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            result = real(*given, **named)
            die_at(place_of(*given))
            return result

        return wrapped

    with contextlib.ExitStack() as patched:
        patched.enter_context(
            patch.multiple(os, replace=after(os.replace, written), rename=after(os.rename, written))
        )
        if words[0] == "report":
            patched.enter_context(patch("mtl.runs.figures.drawn.render", lambda *_, **__: b""))
            patched.enter_context(patch("mtl.probes.report.data.render", lambda *_: b"<svg/>"))
        for kind, methods in CALLS.items():
            for method in methods:
                place = f"{kind.__name__}.{method}"
                setattr(kind, method, after(getattr(kind, method), lambda *given, place=place: place))
        return main(words)


def written(*paths: Any) -> str | None:
    """The place after a file or folder was moved to where it belongs; a status counts by its entries.

    `None` for W&B's own files and those of a folder that is not in its place yet.
    """
    path = Path(paths[-1])
    if "wandb" in path.parts or path.parent.name.startswith("."):
        return None
    name = ".old" if ".old." in path.name else path.name
    if path.parent.name in ("tables", "figures"):
        return f"{path.parent.name}/*{path.suffix}"
    return f"{name} {sorted(json.loads(path.read_text()))}" if name == "status.json" else name


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
