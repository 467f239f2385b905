"""`mtl predict`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, fields
from functools import cached_property
from io import BufferedIOBase
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mtl.commands.common import Accelerator, Precision, line_progress, lines_done
from mtl.config.parse import read_mapping
from mtl.config.schema import BatchConfig
from mtl.corpora import running_text
from mtl.corpora.annotated_text import sentence_picture
from mtl.corpora.formats.dependencies import SDP_HEADER, to_conllu, to_sdp
from mtl.corpora.formats.jsonl import to_line
from mtl.corpora.formats.own_layers import DEPS
from mtl.corpora.running_text import EMPTY, Record, Splitter, is_mostly_of_another_script, splitter_for
from mtl.errors import InputError, did_you_mean
from mtl.models.found import find_model
from mtl.tasks.in_words import counted
from mtl.tasks.rules import UNKEPT
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Some
from mtl.workers.pool import in_processes, threads_for

if TYPE_CHECKING:
    from mtl.models.annotator import Annotator, Rules

Input = Literal["text", "tokens", "pairs"]
Output = Literal["picture", "conllu", "json", "sdp"]


def predict(
    run: str,
    file: Path | None = None,
    *,
    input: Input = "text",
    output: Output = "picture",
    tasks: tuple[str, ...] | None = None,
    also: tuple[str, ...] = (),
    rules: Path | None = None,
    language: str = "en",
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    max_words: Some = BatchConfig.max_words,
    jobs: Some = 1,
    revision: str | None = None,
) -> int:
    """Annotate a file, or standard input line by line, in the tasks of a run.

    Args:
        run: A run's folder, a saved model's, an exported one's, or a model on the hub (OWNER/NAME).
        file: Text in UTF-8; by default standard input is read, and each line is annotated as it arrives.
        input: text is split into sentences and words by the rules of --language, each line as a text of its
            own; tokens is one sentence per line, its words separated by blanks; pairs is the same with a tab
            between two sentences.
        output: picture is for reading; conllu has entities in MISC, trees and frames in comments; json is one
            object per sentence, with the places of words in the input line (offsets); sdp is SemEval's format
            of graphs (deps), without sentences that are skipped. Ids are line numbers, or LINE.SENTENCE if a
            line has several sentences.
        tasks: Only these tasks, for instance --tasks=[pos,ner]; default: all.
        also: Further runs or models, each of which adds the layers that those before it do not annotate.
        rules: A YAML file with words that must, or must not, get certain annotations, by task.
        language: Language of running text. The rules for English (en) are built in; others are spaCy's, given
            by its code such as de or zh, and need pip install 'mtl-heads[languages]'.
        accelerator: Device; auto is a GPU if there is one.
        precision: bf16-true rounds the weights: faster if the hardware supports bfloat16, and some
            annotations may differ.
        max_words: Maximum number of words in a sentence; memory grows with its square, time with its cube.
            Longer sentences and unreadable lines are skipped and counted; the exit code is then 2.
        jobs: Number of processes that annotate at the same time, each with the model and its share of the
            cores; what they print is the same, in the same order.
        revision: A branch, tag or commit of RUN on the hub; not of those in --also.
    """
    folders = [find_model(run, revision).model, *(find_model(other).model for other in also)]
    where = "standard input" if file is None else str(file)
    window = _Window(
        folders=folders,
        tasks=tasks,
        rules=None if rules is None else (str(rules), read_mapping(rules)),
        where=where,
        input=input,
        output=output,
        language=language,
        accelerator=accelerator,
        precision=precision,
        max_words=max_words,
        threads=None if jobs == 1 else threads_for(jobs),
    )
    _ = window.split  # refuses a language without rules before anything is read
    counts, last = _Counts(), ""
    with (
        lines_done(lambda: counts.lines, where),
        line_progress(file) as advance,
        nullcontext(running_text.standard_input()) if file is None else file.open("rb") as stream,
        closing(
            in_processes(window, _numbered(stream), jobs, start="spawn", remedy="use fewer --jobs")
        ) as annotated,
    ):
        for text, of_window in annotated:
            for kind in of_window.hints.keys() - counts.hints.keys():
                print(f"mtl: {of_window.hints[kind]}", file=sys.stderr)
            print(text, end="", flush=True)
            last = text or last
            counts = counts.and_later(of_window)
            advance(of_window.lines)
    if output == "conllu" and last and not last.endswith("\n\n"):
        print()  # after comments that no sentence follows
    return _report(counts, where)


def _numbered(stream: BufferedIOBase) -> Iterator[tuple[int, list[bytes]]]:
    """Lines as they come, each list with the number of its first line."""
    number = 1
    for lines in running_text.lines_as_they_come(stream):
        yield number, lines
        number += len(lines)


@dataclass(frozen=True, kw_only=True)
class _Window:
    """Annotates windows of lines. Sent to another process, it loads the models there."""

    folders: Sequence[Path]
    tasks: tuple[str, ...] | None
    rules: tuple[str, Mapping[str, Any]] | None
    """The file of rules, and what is in it."""
    where: str
    input: Input
    output: Output
    language: str
    accelerator: Accelerator
    precision: Precision
    max_words: int
    threads: int | None

    @cached_property
    def split(self) -> Splitter:
        """Splits a line into sentences."""
        return _splitter(self.input, self.language)

    @cached_property
    def _models(self) -> _Models:
        models = _Models(self.folders, self.tasks, self.accelerator, self.precision, self.input, self.output)
        if self.rules is not None:
            where, given = self.rules
            models.take_rules(given, where)
        return models

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __call__(self, window: tuple[int, list[bytes]]) -> tuple[str, _Counts]:
        """What is printed for some lines, the first of which has the given number; and their counts."""
        first, lines = window
        records, hints = [], {}
        if first == 1 and (form := running_text.is_annotated(lines[0])):
            hints["form"] = f"{self.where} looks like {form}: every line is annotated as text"
        for number, line in enumerate(lines, first):
            of_line = running_text.records_of(number, line, self.split, self.max_words, self.where)
            if self.input == "text" and self.language == "en" and "language" not in hints:
                hints |= _hint_of(of_line)
            records += of_line
        ready = [record.sentence for record in records if record.skipped is None]
        if ready:
            found = self._models.annotate_stream(ready, self.max_words, self.threads)
            records = [
                record._replace(sentence=next(found)) if record.skipped is None else record
                for record in records
            ]
        counts = _Counts(
            len(lines),
            len(ready),
            _Cases.of(
                f"{each.sentence.place}: {each.skipped}"
                for each in records
                if each.skipped not in (None, EMPTY)
            ),
            _Cases.of(
                f"{each.sentence.place}: {note}"
                for each in records
                for note in each.sentence.notes
                if UNKEPT in note
            ),
            hints,
        )
        written = "".join(_written(record, self.output) for record in records)
        return (f"{SDP_HEADER}\n{written}" if first == 1 and self.output == "sdp" else written), counts


def _splitter(input: Input, language: str) -> Splitter:
    if input == "text":
        return splitter_for(language)
    if language != "en":
        raise InputError(
            f"--language={language}: for running text only (--input=text); {input} are split already"
        )
    return running_text.sentence_pairs if input == "pairs" else running_text.tokens


class _Models:
    """The models of a run and of those that add to it, each with the tasks that it annotates in."""

    def __init__(
        self,
        folders: Sequence[Path],
        tasks: tuple[str, ...] | None,
        accelerator: Accelerator,
        precision: Precision,
        input: Input,
        output: Output,
    ) -> None:
        from mtl.models.annotator import chosen_tasks
        from mtl.models.opened import annotator_at

        models = [annotator_at(folder, accelerator, precision) for folder in folders]
        for model in models:
            if model.does:
                raise InputError(
                    f"mtl predict is for models that label the words of a text, and this one {model.does}: "
                    f"{model.instead}"
                )
        every = {name: task for model in reversed(models) for name, task in model.tasks.items()}
        wanted = chosen_tasks(every, tasks)
        unfit = [name for name, task in wanted.items() if not task.fits(_example(input))]
        if len(unfit) == len(wanted):
            raise InputError(
                f"none of the tasks ({', '.join(wanted)}) is for "
                + ("pairs: use another --input" if input == "pairs" else "one sentence: use --input=pairs")
            )
        if unfit and tasks is not None:
            given = "pairs" if input == "pairs" else "one sentence"
            raise InputError(f"--tasks: {unfit[0]} is not for {given}: leave it out")
        if output == "sdp" and not any(task.layer == DEPS for task in wanted.values()):
            raise InputError(
                f"--output=sdp holds graphs (the layer {DEPS}), and none of the tasks ({', '.join(wanted)}) "
                "makes them: use another --output"
            )
        self._models: list[tuple[Annotator, list[str]]] = []
        self._rules: dict[int, Rules | None] = {}
        made: set[str] = set()
        for folder, model in zip(folders, models, strict=True):
            new = {
                name: task for name, task in model.tasks.items() if name in wanted and task.layer not in made
            }
            made |= {task.layer for task in new.values()}
            if new:
                self._models.append((model, list(new)))
            elif tasks is None:
                raise InputError(
                    f"--also: {folder} adds nothing, since those before it annotate all of its layers: leave "
                    "it out, or name it first"
                )

    def take_rules(self, given: Mapping[str, Any], where: str) -> None:
        """Keep rules from now on, each by the model that annotates in its task."""
        makes = {name: model for model, tasks in self._models for name in tasks}
        if unknown := next((name for name in given if name not in makes), None):
            raise InputError(f"{where}: {unknown} is no task that is annotated{did_you_mean(unknown, makes)}")
        for model, tasks in self._models:
            own = {name: given[name] for name in tasks if name in given}
            self._rules[id(model)] = model.rules_for(own, where) if own else None

    def annotate_stream(
        self, sentences: Iterable[Sentence], max_words: int, threads: int | None
    ) -> Iterator[Sentence]:
        """The sentences, annotated by each model after the other."""
        for model, tasks in self._models:
            sentences = model.annotate_stream(
                sentences,
                max_words=max_words,
                tasks=tasks,
                threads=threads,
                rules=self._rules.get(id(model)),
            )
        return iter(sentences)


def _example(input: Input) -> Sentence:
    return Sentence(("a", "b"), second=1 if input == "pairs" else None)


def _hint_of(records: list[Record]) -> dict[str, str]:
    """What to do about a line that is clearly not English; empty: it may be English."""
    text = " ".join(record.sentence.text for record in records)
    if not is_mostly_of_another_script(text):
        return {}
    return {
        "language": f"{records[0].sentence.place} is not English ({text[:20]}…), and sentences and words are "
        "found by rules for English: use --language, or split the words and use --input=tokens"
    }


def _written(record: Record, output: Output) -> str:
    """A record in a format; only JSON has one for lines without words, and CoNLL-U a comment."""
    sentence, skipped, offsets = record
    if output == "json":
        return f"{to_line(sentence, skipped, offsets)}\n"
    if output == "conllu":
        if not sentence.words:
            return f"# line {sentence.id} has no words: {skipped}\n"
        return ("" if skipped is None else f"# skipped = {skipped}\n") + to_conllu(sentence)
    if output == "sdp":
        return to_sdp(sentence) if skipped is None else ""
    if skipped is None:
        return f"{sentence_picture(sentence)}\n"
    return "" if skipped == EMPTY else f"line {sentence.id} is skipped: {skipped}\n\n"


class _Cases(NamedTuple):
    """The number of cases, and the message about the first."""

    number: int = 0
    first: str = ""

    @classmethod
    def of(cls, said: Iterable[str]) -> _Cases:
        each = list(said)
        return cls(len(each), each[0]) if each else cls()

    def and_later(self, later: _Cases) -> _Cases:
        return _Cases(self.number + later.number, self.first or later.first)


class _Counts(NamedTuple):
    """What was done with lines."""

    lines: int = 0
    annotated: int = 0
    """Sentences."""
    skipped: _Cases = _Cases()
    unkept: _Cases = _Cases()
    """Rules that sentences could not keep."""
    hints: Mapping[str, str] = MappingProxyType({})
    """By kind, what the user may want to do otherwise."""

    def and_later(self, later: _Counts) -> _Counts:
        return _Counts(
            self.lines + later.lines,
            self.annotated + later.annotated,
            self.skipped.and_later(later.skipped),
            self.unkept.and_later(later.unkept),
            {**later.hints, **self.hints},
        )


def _report(counts: _Counts, where: str) -> int:
    """Print what was skipped; returns the exit code: 2 if anything was, else 0."""
    number, first = counts.unkept
    if number:
        more = "" if number == 1 else f" ({number:,} such cases in all)"
        print(f"mtl: {first}{more}", file=sys.stderr)
    number, first = counts.skipped
    if number:
        such = counted(number, "such sentence or line", "such sentences or lines")
        print(f"mtl: skipped: {first}{'' if number == 1 else f' ({such} in all)'}", file=sys.stderr)
        return 2
    if not counts.annotated:
        print(f"mtl: no words in {where}, so nothing to annotate", file=sys.stderr)
    return 0
