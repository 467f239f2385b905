"""`mtl study` and `mtl sweep`, all processes of which are killed at a place; see `test_killed_studies.py`.

    python -m tests.mtl.study.killed NOTE PLACES WORD...

A place is a file in this folder that was just written, or a change of a sweep's storage, in any of the
processes. The first place of the file PLACES that is not in the file NOTE is added to it, one a line, and
processes end there; without PLACES all places are noted, and no process is killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from optuna.storages import RDBStorage
from optuna.trial import TrialState

from mtl.commands.main import main
from tests.mtl.forked import Worker, forked_workers

STORED = (
    "create_new_study", "_create_new_trial", "set_trial_system_attr", "set_trial_user_attr",
    "set_trial_param", "set_trial_intermediate_value", "set_trial_state_values",
)  # fmt: skip
"""What changes a sweep's storage."""


def run(note: Path, chosen: Path, words: list[str]) -> int:
    """The command's exit code."""
    places = chosen.read_text(encoding="utf-8").splitlines() if chosen.exists() else None
    known = note.read_text(encoding="utf-8").splitlines()
    others: list[Worker] = []  # of the command; a worker has none

    def come_to(place: str | None) -> None:
        if place is None or place in known or (places is not None and place not in places):
            return
        known.append(place)
        with note.open("a", encoding="utf-8") as file:
            file.write(f"{place}\n")
        if places is not None:
            for worker in others:
                worker.kill()
            if not others:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def after(real: Callable[..., Any], place_of: Callable[..., str | None]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            result = real(*given, **named)
            come_to(place_of(*given, **named))
            return result

        return wrapped

    for name in STORED:

        def stored(_: RDBStorage, *given: Any, name: str = name, **named: Any) -> str:
            values = [*given, *named.values()]
            values += [value["state"] for value in values if isinstance(value, dict) and "state" in value]
            shown = [value.name if isinstance(value, TrialState) else value for value in values]
            return " ".join(
                ["sweep.db", name.strip("_"), *(str(each) for each in shown if isinstance(each, int | str))]
            )

        setattr(RDBStorage, name, after(getattr(RDBStorage, name), stored))
    drawn = patch("mtl.runs.figures.drawn.render", lambda figure, kind, notes=(): b"")
    shown = patch("mtl.probes.report.data.render", lambda figure, kind: b"<svg/>")
    moves = {name: after(getattr(os, name), written) for name in ("replace", "rename", "link")}
    with drawn, shown, patch.multiple(os, **moves), forked_workers(1) as workers:
        others.extend(workers)
        return main(words)


def written(*paths: Any, **_: Any) -> str | None:
    """The place after a file or folder was moved to where it belongs; progress counts by its state.

    `None` for what is not in this folder, and for parts of a folder that is not in its place yet.
    """
    path = Path(paths[-1]).absolute()
    if not path.is_relative_to(Path.cwd()) or path.parent.name.startswith("."):
        return None
    place = re.sub(r"[^/]+-[0-9a-f]{8}-\d+\.lease$", "command.lease", "/".join(path.parts[-2:]))
    if path.name == "status.json":
        return f"{place} {sorted(json.loads(path.read_text()))}"
    if path.name.endswith(".progress.json"):
        progress = json.loads(path.read_text())
        return f"{place} {progress['state']} {[*progress['measured']]}"
    return place


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
