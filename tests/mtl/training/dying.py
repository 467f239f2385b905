"""`mtl train` in which one rank dies in its third update, for `test_ranks.py`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mtl.commands.main import main
from mtl.training.step import JointTraining


def die(how: str) -> None:
    """End this process, or its training."""
    if how == "raises":
        raise RuntimeError("the disk is full")
    if how == "exits":
        os._exit(3)
    os.kill(os.getpid(), signal.Signals[how])
    time.sleep(600)


def run(how: str, rank: int, note: Path, words: list[str]) -> int:
    """The command's exit code; `note` appears when the rank dies."""
    real = JointTraining.training_step

    def step(self: JointTraining, *given: Any, **named: Any) -> Any:
        if self.trainer.global_step == 2 and self.global_rank == rank:
            note.write_text(str(os.getpid()))
            die(how)
        return real(self, *given, **named)

    with patch.object(JointTraining, "training_step", step):
        return main(["train", *words])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
