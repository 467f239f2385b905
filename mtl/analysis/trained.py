"""A run's trained model with the sentences for its heads; results in parts that are replaced one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from mtl.config.instances import kinds_in
from mtl.config.parse import read_configuration
from mtl.config.schema import CorpusConfig, TrainConfig
from mtl.corpora.load import corpus_at, corpus_fingerprint, require_layers
from mtl.errors import InputError, did_you_mean
from mtl.files import fingerprint, whole_file
from mtl.models.batches import BatchLoader, Example, aligned_batches, examples, require_limit
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.opened import Accelerator, prepare
from mtl.probes.tables.table_files import read_complete, write_parquet
from mtl.runs.folder.run import Run, git_revision, mark_of, versions
from mtl.runs.folder.run_tables import check_place, require_finite_rows, write_measures
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task
from mtl.workers.lease import changing

CHOOSING = "dev"
"""The split for measures that choose heads, such as importance."""
BATCH_TOKENS = 2048
"""Padded positions in a batch: few, since the attention of all layers is in memory at once."""


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

    def batches(self, tokens: int = BATCH_TOKENS) -> BatchLoader:
        """All sentences once, in batches of nearly equal length and at most `tokens` padded subwords."""
        plan = aligned_batches(self.corpus, tuple(self.tasks), tokens, None, None)
        return BatchLoader(self.corpus, self.model.encoder.tokenizer, self.tasks, plan)

    def fingerprint(self) -> str:
        """The fingerprint of the files that the sentences are read from."""
        return corpus_fingerprint(self.source, self.tasks, (self.split,))

    def write(self, rows: pl.DataFrame, measure: str, replaced: Sequence[str], **settings: object) -> None:
        """Write rows into `table` in place of the `replaced` measures; `settings` are added to provenance."""
        provenance = {f"{measure}.{key}": str(value) for key, value in self.made_of(**settings).items()}
        write_measures(self.table, rows, replaced, provenance)

    def made_of(self, **settings: object) -> dict[str, object]:
        """What something is made of that is measured on this run with these settings."""
        return {
            "run": self.run.folder.resolve(),
            "split": self.split,
            "sentences": len(self.corpus),
            "corpus": self.fingerprint(),
            "versions": json.dumps(versions()),
            "git": git_revision() or "",
            **settings,
        }


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
    check_place(table, run.folder)
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


Part = Mapping[str, str | int]
"""Values of columns that select a part of a table; without values, the whole table."""


def opened_by(
    settings: Mapping[str, Any],
    inputs: InputCache,
    split: str,
    source: str | None = None,
    out: Path | None = None,
) -> TrainedRun:
    """A run opened by settings alone, as a measure's `by_settings` has them; prints what is left out."""
    run, sentences = Path(settings["target"]), settings.get("sentences")
    corpus = None if source is None else corpus_at(source, kinds_in(Run.open(run).config()))
    trained = open_trained(run, corpus, split, sentences=sentences, inputs=inputs, out=out)
    for reason in trained.left_out:
        print(f"not measured: {reason}")
    return trained


@dataclass(frozen=True)
class KeyedTable:
    """A table in a file, in parts; each part has a key, a hash of what it was made from.

    A killed process leaves finished and unfinished parts; the next process continues from them. A part with
    another key is not read.
    """

    path: Path
    schema: Mapping[str, Any]
    command: str
    """What makes the table, for messages: `mtl ablate`."""
    scratch: bool = False
    """Whether the file is deleted when the command ends. If so, a damaged one is ignored; if not, it is an
    `InputError`."""

    def read(self, part: Part, key: str) -> pl.DataFrame:
        """The rows of a part; none if it has another key."""
        table, keys = self._all()
        if keys.get(_name(part)) != key:
            return table.clear()
        return table.filter(_is_part(table, part))

    def holds(self, part: Part, key: str) -> bool:
        """Whether there is a part with this key."""
        return self._all()[1].get(_name(part)) == key

    def put(self, part: Part, key: str, rows: pl.DataFrame) -> None:
        """Replace the rows and the key of a part."""
        require_finite_rows(rows, self.path)
        with changing(self.path):
            table, keys = self._all()
            others = table.filter(~_is_part(table, part))
            fitting = rows.select(table.columns).cast(table.schema)
            self._write(pl.concat([others, fitting]), {**keys, _name(part): key})

    def forget(self, part: Part) -> None:
        """Remove all parts that have these values."""
        with changing(self.path):
            table, keys = self._all()
            gone = [name for name in keys if set(part.items()) <= set(json.loads(name).items())]
            if gone:
                rest = {name: key for name, key in keys.items() if name not in gone}
                self._write(table.filter(~_is_part(table, part)), rest)

    def values(self, column: str, part: Part) -> set[int]:
        """The values of a column in the rows of a part, whatever its key."""
        table, _ = self._all()
        return set(table.filter(_is_part(table, part))[column])

    def _all(self) -> tuple[pl.DataFrame, dict[str, str]]:
        if not self.path.exists():
            return pl.DataFrame(schema=self.schema), {}
        try:
            table, keys = read_complete(self.path, self.schema, self.command)
        except ValueError as error:
            if self.scratch:
                return pl.DataFrame(schema=self.schema), {}
            raise InputError(str(error)) from error
        return table, {name: key for name, key in keys.items() if name.startswith("{")}

    def _write(self, table: pl.DataFrame, keys: Mapping[str, str]) -> None:
        with whole_file(self.path) as temporary:
            write_parquet(table, temporary, {**keys, **mark_of(self.path.parent)})


def _name(part: Part) -> str:
    return json.dumps(dict(sorted(part.items())))


def _is_part(table: pl.DataFrame, part: Mapping[str, str | int]) -> pl.Expr:
    """Whether a row has these values in these columns."""
    return pl.all_horizontal(pl.lit(True), *(pl.col(name) == value for name, value in part.items()))
