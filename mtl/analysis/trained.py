"""A run's trained model with the annotated sentences that its heads are measured on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mtl.config.parse import read_configuration
from mtl.config.schema import CorpusConfig, TrainConfig
from mtl.corpora.load import require_layers
from mtl.corpora.sources import corpus_fingerprint
from mtl.errors import InputError, did_you_mean
from mtl.files import fingerprint
from mtl.models.batches import BatchLoader, Example, aligned_batches, examples
from mtl.models.device import Accelerator, prepare
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.limits import require_limit
from mtl.runs.folder.heads_file import check_place, write_measures
from mtl.runs.folder.provenance import git_revision, versions
from mtl.runs.folder.run import Run
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task


@dataclass(frozen=True)
class TrainedRun:
    """A run's model, and sentences of one split with their targets in the chosen tasks."""

    run: Run
    model: JointModel
    source: CorpusConfig
    split: str
    tasks: dict[str, Task]
    corpus: list[Example]
    left_out: tuple[str, ...]
    """A line for each task of the model that is not measured, with the reason."""
    table: Path
    """The heads.parquet that measures are written into: the run's, unless another is given."""

    def batches(self, tokens: int) -> BatchLoader:
        """All sentences once, in batches of nearly equal length and at most `tokens` padded subwords."""
        plan = aligned_batches(self.corpus, tuple(self.tasks), tokens, None, None)
        return BatchLoader(self.corpus, self.model.encoder.tokenizer, self.tasks, plan)

    def fingerprint(self) -> str:
        """The fingerprint of the files that the sentences are read from."""
        return corpus_fingerprint(self.source, self.tasks, (self.split,))

    def write(self, rows: pl.DataFrame, measure: str, replaced: Sequence[str], **settings: object) -> None:
        """Write rows into `table` in place of the `replaced` measures; `settings` are added to provenance."""
        made_of = {
            "run": self.run.folder.resolve(),
            "split": self.split,
            "sentences": len(self.corpus),
            "corpus": self.fingerprint(),
            "versions": json.dumps(versions()),
            "git": git_revision() or "",
            **settings,
        }
        provenance = {f"{measure}.{key}": str(value) for key, value in made_of.items()}
        write_measures(self.table, rows, replaced, provenance)


def evenly_spread(sentences: list[Sentence], most: int | None) -> list[Sentence]:
    """At most `most` of the sentences, evenly spread over them; `None`: all."""
    if most is None or most >= len(sentences):
        return sentences
    return [sentences[number * len(sentences) // most] for number in range(most)]


def model_fingerprint(run: Run) -> str:
    """The fingerprint of all files of a run's model."""
    return fingerprint(sorted(path for path in run.model.iterdir() if path.is_file()))


def open_trained(
    folder: Path,
    source: CorpusConfig | None,
    split: str,
    *,
    tasks: Sequence[str] | None = None,
    sentences: int | None = None,
    accelerator: Accelerator = "auto",
    inputs: InputCache | None = None,
    out: Path | None = None,
) -> TrainedRun:
    """A run with the sentences of a split.

    Args:
        folder: The run's folder.
        source: The corpus; `None`: the run's own.
        split: Which split of it.
        tasks: What to measure; `None`: all tasks of the model that have gold annotations in the split.
        sentences: How many sentences, spread evenly over the split; `None`: all.
        accelerator: What to compute on.
        inputs: Reads corpora.
        out: The table that measures are written into; `None`: the run's heads.parquet.

    Raises:
        InputError: there is no run or no trained model; a task is unknown; a named task, or every task, has
            no gold in the split; a sentence is longer than the run's `batch.max_words`; or the table cannot
            be written.
    """
    run = Run.open(folder)
    if out is not None and (out.suffix != ".parquet" or not out.parent.is_dir()):
        raise InputError(f"--out={out}: use a file that ends in .parquet, in a folder that exists")
    table = out or run.folder / "heads.parquet"
    check_place(table)
    model = prepare(JointModel.from_pretrained(run.model), accelerator)
    config = read_configuration(TrainConfig, run.folder / "config.yaml")
    source = source or config.corpus
    for name in tasks or ():
        if name not in model.tasks:
            raise InputError(f"{folder} has no task {name!r}{did_you_mean(name, model.tasks)}")
    chosen = {name: task for name, task in model.tasks.items() if tasks is None or name in tasks}
    gold = (inputs or InputCache()).split(source, chosen, split)
    gold = evenly_spread(gold, sentences)
    annotated = {name: task for name, task in chosen.items() if any(map(task.annotated, gold))}
    require_layers(gold, chosen if tasks is not None or not annotated else annotated, split)
    require_limit(gold, config.batch.max_words, split)
    left_out = tuple(
        f"{name}: no {split} sentence is annotated for it" for name in chosen if name not in annotated
    )
    corpus = examples(gold, model.encoder.tokenizer, annotated, model.labels)
    return TrainedRun(run, model, source, split, annotated, corpus, left_out, table)
