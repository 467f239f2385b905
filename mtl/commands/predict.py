"""`mtl predict`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mtl.commands.common import Accelerator, Precision, lines_done
from mtl.config.parse import read_mapping
from mtl.config.schema import BatchConfig
from mtl.corpora import running_text
from mtl.corpora.formats.conllu import to_conllu
from mtl.corpora.formats.jsonl import to_line
from mtl.corpora.picture import sentence_picture
from mtl.corpora.running_text import EMPTY, Record, Splitter, is_mostly_of_another_script, splitter_for
from mtl.errors import InputError, did_you_mean
from mtl.models.found import find_model
from mtl.tasks.in_words import counted
from mtl.tasks.rules import UNKEPT
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Some

if TYPE_CHECKING:
    from mtl.models.annotator import Annotator, Rules

Input = Literal["text", "tokens", "pairs"]
Output = Literal["picture", "conllu", "json"]


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
    revision: str | None = None,
) -> int:
    """Annotate a file, or standard input line by line, in the tasks of a run.

    Args:
        run: A run's folder, that of a model saved in any form, or a model on the hub (OWNER/NAME).
        file: Text in UTF-8; by default standard input is read, and each line is annotated as it arrives.
        input: text is split into sentences and words by the rules of --language, each line as a text of its
            own; tokens is one sentence per line, its words separated by blanks; pairs is the same with a tab
            between two sentences.
        output: picture is for reading; conllu has entities in MISC, trees and frames in comments; json is one
            object per line, with the places of words in their line (offsets). Ids are line numbers, or
            LINE.SENTENCE if a line has several sentences.
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
        revision: A branch, tag or commit of a model on the hub.
    """
    folders = [find_model(run, revision).model, *(find_model(other).model for other in also)]
    split = _splitter(input, language)
    where = "standard input" if file is None else str(file)
    progress = _Progress(where)
    hint = input == "text" and language == "en"
    given = None if rules is None else read_mapping(rules)
    model: _Models | None = None
    writer = _Writer(output)
    with (
        lines_done(lambda: progress.lines, where),
        nullcontext(running_text.standard_input()) if file is None else file.open("rb") as stream,
    ):
        for lines in running_text.lines_as_they_come(stream):
            records = []
            if not progress.lines and (form := running_text.is_annotated(lines[0])):
                print(f"mtl: {where} looks like {form}: every line is annotated as text", file=sys.stderr)
            for number, line in enumerate(lines, progress.lines + 1):
                of_line = running_text.records_of(number, line, split, max_words, where)
                hint = hint and not _hinted(of_line)
                records += of_line
            ready = [record.sentence for record in records if record.skipped is None]
            if ready and model is None:
                model = _Models(folders, tasks, accelerator, precision, input)
                if given is not None:
                    model.take_rules(given, str(rules))
            annotated = model.annotate_stream(ready, max_words) if model is not None else iter(())
            for record in records:
                sentence = next(annotated) if record.skipped is None else record.sentence
                progress.unkept += [(sentence.place, note) for note in sentence.notes if UNKEPT in note]
                writer.write(record._replace(sentence=sentence))
            sys.stdout.flush()
            progress.count(lines, records)
    writer.end()
    return progress.end()


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
        if not any(task.fits(_example(input)) for task in wanted.values()):
            raise InputError(
                f"none of the tasks ({', '.join(wanted)}) is for "
                + ("pairs: use another --input" if input == "pairs" else "one sentence: use --input=pairs")
            )
        self._models: list[tuple[Annotator, list[str]]] = []
        self._rules: dict[int, Rules | None] = {}
        made: set[str] = set()
        for model in models:
            new = {
                name: task for name, task in model.tasks.items() if name in wanted and task.layer not in made
            }
            made |= {task.layer for task in new.values()}
            if new:
                self._models.append((model, list(new)))

    def take_rules(self, given: Mapping[str, Any], where: str) -> None:
        """Keep rules from now on, each by the model that annotates in its task."""
        makes = {name: model for model, tasks in self._models for name in tasks}
        if unknown := next((name for name in given if name not in makes), None):
            raise InputError(f"{where}: {unknown} is no task that is annotated{did_you_mean(unknown, makes)}")
        for model, tasks in self._models:
            own = {name: given[name] for name in tasks if name in given}
            self._rules[id(model)] = model.rules_for(own, where) if own else None

    def annotate_stream(self, sentences: Iterable[Sentence], max_words: int) -> Iterator[Sentence]:
        """The sentences, annotated by each model after the other."""
        for model, tasks in self._models:
            sentences = model.annotate_stream(
                sentences, max_words=max_words, tasks=tasks, rules=self._rules.get(id(model))
            )
        return iter(sentences)


def _example(input: Input) -> Sentence:
    return Sentence(("a", "b"), second=1 if input == "pairs" else None)


def _hinted(records: list[Record]) -> bool:
    """Print what to do about a line that is clearly not English; returns whether it is one."""
    text = " ".join(record.sentence.text for record in records)
    if not is_mostly_of_another_script(text):
        return False
    print(
        f"mtl: {records[0].sentence.place} is not English ({text[:20]}…), and sentences and words are found "
        "by rules for English: use --language, or split the words and use --input=tokens",
        file=sys.stderr,
    )
    return True


class _Writer:
    """Prints records in a format; only JSON has a record for lines without words."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.pending: list[str] = []
        """Comments on lines without words, which CoNLL-U has before the next sentence, or at the end."""

    def write(self, record: Record) -> None:
        sentence, skipped, offsets = record
        if self.output == "json":
            print(to_line(sentence, skipped, offsets))
        elif self.output == "conllu":
            if not sentence.words:
                self.pending.append(f"# line {sentence.id} has no words: {skipped}\n")
                return
            comments = "".join(self.pending) + ("" if skipped is None else f"# skipped = {skipped}\n")
            print(comments + to_conllu(sentence), end="")
            self.pending = []
        elif skipped is None:
            print(sentence_picture(sentence))
        elif skipped != EMPTY:
            print(f"line {sentence.id} is skipped: {skipped}\n")

    def end(self) -> None:
        """Print the comments that no sentence follows."""
        if self.pending:
            print("".join(self.pending))


class _Progress:
    """Counts what was read, annotated and skipped."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.watched = sys.stderr.isatty() and not sys.stdout.isatty()
        self.lines = self.annotated = 0
        self.skipped: list[Record] = []
        self.unkept: list[tuple[str, str]] = []
        """Places of sentences, and rules that they could not keep."""

    def count(self, lines: list[bytes], records: list[Record]) -> None:
        self.lines += len(lines)
        self.annotated += sum(record.skipped is None for record in records)
        self.skipped += [record for record in records if record.skipped not in (None, EMPTY)]
        if self.watched:
            print(f"\r{counted(self.annotated, 'sentence')}", end="", file=sys.stderr, flush=True)

    def end(self) -> int:
        """Print what was skipped; returns the exit code: 2 if anything was, else 0."""
        if self.watched:
            print(file=sys.stderr)
        if self.unkept:
            place, note = self.unkept[0]
            more = "" if len(self.unkept) == 1 else f" ({len(self.unkept):,} such cases in all)"
            print(f"mtl: {place}: {note}{more}", file=sys.stderr)
        if self.skipped:
            first = self.skipped[0]
            such = counted(len(self.skipped), "such sentence or line", "such sentences or lines")
            more = "" if len(self.skipped) == 1 else f" ({such} in all)"
            print(f"mtl: skipped: {first.sentence.place}: {first.skipped}{more}", file=sys.stderr)
            return 2
        if not self.annotated:
            print(f"mtl: no words in {self.where}, so nothing to annotate", file=sys.stderr)
        return 0
