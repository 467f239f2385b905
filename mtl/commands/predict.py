"""`mtl predict`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mtl.commands.choices import Accelerator, Precision
from mtl.commands.progress import lines_done
from mtl.config.schema import BatchConfig
from mtl.corpora import input_lines
from mtl.corpora.formats.conllu import to_conllu
from mtl.corpora.formats.jsonl import to_line
from mtl.corpora.input_lines import EMPTY, Record, Splitter, is_mostly_of_another_script
from mtl.corpora.picture import picture
from mtl.corpora.running_text import splitter_for
from mtl.errors import InputError
from mtl.models.found import find_model
from mtl.tasks.in_words import counted
from mtl.tasks.ranges import Some

if TYPE_CHECKING:
    from mtl.models.annotator import Annotator

Input = Literal["text", "tokens", "pairs"]
Output = Literal["picture", "conllu", "json"]


def predict(
    run: str,
    file: Path | None = None,
    *,
    input: Input = "text",
    output: Output = "picture",
    language: str = "en",
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    max_words: Some = BatchConfig.max_words,
    revision: str | None = None,
) -> int:
    """Annotate a file, or standard input line by line, in all tasks of a run.

    Args:
        run: A run's folder, a saved model's, an exported one's, or a model on the hub (OWNER/NAME).
        file: Text in UTF-8; by default standard input is read, and each line is annotated as it arrives.
        input: text is split into sentences and words by the rules of --language; tokens is one sentence per
            line, its words separated by blanks; pairs is the same with a tab between two sentences.
        output: picture is for reading; conllu has entities in MISC, trees and frames in comments; json is one
            object per line. Ids are line numbers, or LINE.SENTENCE if a line has several sentences.
        language: Language of running text. The rules for English (en) are built in; others are spaCy's, given
            by its code such as de or zh, and need pip install 'mtl-heads[languages]'.
        accelerator: Device; auto is a GPU if there is one.
        precision: bf16-true rounds the weights: faster if the hardware supports bfloat16, and some
            annotations may differ.
        max_words: Maximum number of words in a sentence; memory grows with its square, time with its cube.
            Longer sentences and unreadable lines are skipped and counted; the exit code is then 2.
        revision: A branch, tag or commit of a model on the hub.
    """
    folder = find_model(run, revision).model
    split = _splitter(input, language)
    where = "standard input" if file is None else str(file)
    progress = _Progress(where)
    hint = input == "text" and language == "en"
    model: Annotator | None = None
    writer = _Writer(output)
    with (
        lines_done(lambda: progress.lines, where),
        nullcontext(input_lines.standard_input()) if file is None else file.open("rb") as stream,
    ):
        for lines in input_lines.lines_as_they_come(stream):
            records = []
            if not progress.lines and (form := input_lines.is_annotated(lines[0])):
                print(f"mtl: {where} looks like {form}: every line is annotated as text", file=sys.stderr)
            for number, line in enumerate(lines, progress.lines + 1):
                of_line = input_lines.records_of(number, line, split, max_words, where)
                hint = hint and not _hinted(of_line)
                records += of_line
            ready = [record.sentence for record in records if record.skipped is None]
            if ready and model is None:
                model = _model(folder, accelerator, precision, input)
            annotated = iter(model.annotate(ready, max_words) if model is not None else ())
            for record in records:
                sentence = next(annotated) if record.skipped is None else record.sentence
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
    return input_lines.pairs if input == "pairs" else input_lines.tokens


def _model(folder: Path, accelerator: Accelerator, precision: Precision, input: Input) -> Annotator:
    from mtl.models.opened import annotator_at
    from mtl.tasks.sentence import Sentence

    model = annotator_at(folder, accelerator, precision)
    if model.translates:
        raise InputError(
            "mtl predict is for models that label the words of a text, and this one translates: "
            "translate text with 'mtl translate'"
        )
    example = Sentence(("a", "b"), second=1 if input == "pairs" else None)
    if not any(task.fits(example) for task in model.tasks.values()):
        raise InputError(
            f"none of the run's tasks ({', '.join(model.tasks)}) is for "
            + ("pairs: use another --input" if input == "pairs" else "one sentence: use --input=pairs")
        )
    return model


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
        sentence, skipped = record
        if self.output == "json":
            print(to_line(sentence, skipped))
        elif self.output == "conllu":
            if not sentence.words:
                self.pending.append(f"# line {sentence.id} has no words: {skipped}\n")
                return
            comments = "".join(self.pending) + ("" if skipped is None else f"# skipped = {skipped}\n")
            print(comments + to_conllu(sentence), end="")
            self.pending = []
        elif skipped is None:
            print(picture(sentence))
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
        if self.skipped:
            first = self.skipped[0]
            such = counted(len(self.skipped), "such sentence or line", "such sentences or lines")
            more = "" if len(self.skipped) == 1 else f" ({such} in all)"
            print(f"mtl: skipped: {first.sentence.place}: {first.skipped}{more}", file=sys.stderr)
            return 2
        if not self.annotated:
            print(f"mtl: no words in {self.where}, so nothing to annotate", file=sys.stderr)
        return 0
