"""One tiny run for the tests that go through all commands, and the words that each command needs."""

from __future__ import annotations

from pathlib import Path

from mtl.commands.main import main
from mtl.corpora.toy.corpus import write_toy

TRAINING = ("--tasks=[pos]", "--max_epochs=1", "--trainer.accelerator=cpu", "--trainer.precision=32-true")


def made_run(encoder: Path, corpus: Path, folder: Path) -> Path:
    """A run with masks in `folder`, trained on a corpus that is made at `corpus`."""
    write_toy(corpus, 16, 6, 6, seed=1)
    words = [f"--encoder.name={encoder}", f"--corpus.path={corpus}", *TRAINING, "--pruning=dynamic"]
    words += [f"--runs={folder.parent}", f"--name={folder.name}", "--importance_every=1"]
    assert main(["train", *words, "--importance_sentences=2"]) == 0
    return folder
