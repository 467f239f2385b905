"""Tiny runs for the tests of commands."""

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


def with_and_without_masks(encoder: Path, corpus: Path, folder: Path, tasks: str) -> None:
    """Two runs in `folder` on a corpus that is there: `none`, and `dynamic` with a mask."""
    for name, more in (("none", []), ("dynamic", ["--gates.init_std=1.0"])):
        words = [
            "train", f"--corpus.path={corpus}", f"--encoder.name={encoder}", f"--runs={folder}",
            f"--name={name}", f"--tasks={tasks}", "--max_epochs=1", f"--pruning={name}",
            "--trainer.accelerator=cpu",
        ]  # fmt: skip
        assert main([*words, *more]) == 0
