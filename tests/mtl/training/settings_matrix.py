"""Short training runs with any values of all settings."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError, RunError
from mtl.models.inputs import InputCache
from mtl.tasks.sentence import Arc, Graph, Sentence
from mtl.training.check import check_settings, check_target
from mtl.training.train import train
from tests.mtl.training.setting_values import Combination, all_values, words_of
from tests.mtl.training.still import in_ranks, take_place

QUIET = Console(quiet=True)


class Watched(InputCache):
    """Knows whether a corpus was read."""

    has_read = False

    def split(self, *given: Any) -> list[Sentence]:
        """As `InputCache`."""
        self.has_read = True
        return super().split(*given)


def write_corpus(folder: Path) -> None:
    """A toy corpus with a layer for a task of every kind."""
    write_toy(folder, 12, 2, 2, seed=5)
    for path in folder.glob("*.jsonl"):
        write_jsonl(path, [of_every_kind(number, each) for number, each in enumerate(read_jsonl(path))])


def of_every_kind(number: int, sentence: Sentence) -> Sentence:
    """A sentence with layers for lemmas, a graph, a class, a number and a translation."""
    arcs = sentence.arcs
    assert arcs is not None
    graph = Graph(tuple(Arc(i, head, arcs.relations[i - 1]) for i, head in enumerate(arcs.heads, 1)))
    layers = {
        "lemmas": tuple(word.lower() for word in sentence.words), "graph": graph,
        "classify": "long" if number % 2 else "short", "regress": float(number),
        "translate": " ".join(reversed(sentence.words)),
    }  # fmt: skip
    return sentence.with_layers(layers)


class Matrix:
    """Trains with combinations of values, some of them from runs that learned the same tasks before."""

    def __init__(self, folder: Path, encoder: Path) -> None:
        write_corpus(folder / "toy")
        self.folder = folder
        self.given = [
            f"--corpus.path={folder / 'toy'}", f"--encoder.name={encoder}", "--max_epochs=1",
            "--trainer.accelerator=cpu", f"--runs={folder}",
        ]  # fmt: skip
        self.inputs = Watched(keep=True)
        self.tasks = {tasks: number for number, tasks in enumerate(all_values()["tasks"])}
        for tasks, number in self.tasks.items():
            self.run(f"source-{number}", self.words({"tasks": tasks}))
            self.run(f"masks-{number}", self.words({"tasks": tasks, "pruning": "dynamic"}))
        gc.freeze()  # what these have imported is not searched for garbage after every run that follows

    def words(self, combination: Combination) -> list[str]:
        """The command line of a combination."""
        number = self.tasks[combination["tasks"]]
        places = {
            "SOURCE": self.folder / f"source-{number}",
            "MASKS": self.folder / f"masks-{number}" / "gates.parquet",
        }
        return [*self.given, *words_of(combination, places)]

    def run(self, name: str, words: list[str]) -> None:
        """Train with these settings."""
        config = configured("mtl train", TrainConfig, [*words, f"--name={name}"])
        train(config, console=QUIET, inputs=self.inputs)

    def accepted(self, combination: Combination) -> bool:
        """Whether the settings are in order, as far as that is known without a model."""
        try:
            config = configured("mtl train", TrainConfig, self.words(combination))
            check_settings(config)
            check_target(config)
        except InputError:
            return False
        return True

    def outcome(self, name: str, combination: Combination) -> str:
        """`outcome` of training with a combination."""
        return outcome([*self.words(combination), f"--name={name}"], self.folder / name, self.inputs)


def outcome(words: list[str], folder: Path, inputs: Watched) -> str:
    """`trained`, or a message behind `early`, `late` (after something was read), `not finite` or its type."""
    inputs.has_read = False
    try:
        train(configured("mtl train", TrainConfig, words), console=QUIET, inputs=inputs)
    except RunError as error:
        return f"{'not finite' if re.search(' is -?(nan|inf)', str(error)) else 'late'}: {error}"
    except InputError as error:
        return f"{'late' if inputs.has_read or folder.exists() else 'early'}: {error}"
    except Exception as error:  # which nobody expects
        return f"{type(error).__name__}: {error}"
    return "trained"


def outcomes_of_rank(jobs: Path, rank: int, ranks: int) -> None:
    """Train with many words, one after the other, as one rank; write a line with each outcome.

    The rank ends at the first that is no outcome of settings, since others wait for it.
    """
    take_place(rank, ranks)
    inputs = Watched(keep=True)
    with jobs.with_suffix(f".{rank}").open("w") as lines:
        for job in json.loads(jobs.read_text()):
            os.environ["MASTER_PORT"] = str(job["port"])
            said = outcome(job["words"], Path(job["folder"]), inputs)
            print(json.dumps(said), file=lines, flush=True)
            if not ended_well(said):
                sys.exit(said)
            gc.freeze()


def ended_well(outcome: str) -> bool:
    """Whether a run was trained, refused in one line before anything was read, or ended by a number that is
    none, which the largest rates lead to."""
    return outcome == "trained" or ("\n" not in outcome and outcome.startswith(("early: ", "not finite: ")))


if __name__ == "__main__":
    torch.set_num_threads(1)
    in_ranks(Path(sys.argv[1]), int(sys.argv[2]), outcomes_of_rank)
