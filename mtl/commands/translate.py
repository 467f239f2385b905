"""`mtl translate`."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from mtl.commands.choices import Accelerator
from mtl.commands.progress import lines_done
from mtl.corpora.formats.parallel import source_words
from mtl.corpora.input_lines import lines_as_they_come, standard_input, text_of
from mtl.errors import InputError
from mtl.models.found import find_model
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.translate import Beam, LengthPenalty, translation_in

if TYPE_CHECKING:
    from mtl.models.batches import Tokenizer

_LINE_END = re.compile(r"[\r\n]+")
"""Line ends that a model may write into a translation, which must be one line of output."""


def translate(
    run: str,
    beam: Beam | None = None,
    length_penalty: LengthPenalty | None = None,
    accelerator: Accelerator = "auto",
    revision: str | None = None,
) -> int:
    """Translate standard input, one sentence per line; an empty line stays empty.

    For a line that is not UTF-8, or has more than 512 words or more subwords than the model reads, an empty
    line is printed; such lines are counted, and the exit code is then 2.

    Args:
        run: A run's folder, a saved model's, or a model on the hub (OWNER/NAME).
        beam: Number of hypotheses in beam search; default: the run's own.
        length_penalty: Larger numbers favour long translations; default: the run's own.
        accelerator: Device; auto is a GPU if there is one.
        revision: A branch, tag or commit of a model on the hub.
    """
    from mtl.models.device import prepare
    from mtl.models.joint import JointModel

    model = prepare(JointModel.from_pretrained(find_model(run, revision).model), accelerator)
    task = translation_in(model.tasks)
    if task is None:
        raise InputError(
            f"{run} does not translate: its tasks are {', '.join(model.tasks)}; use 'mtl predict'"
        )
    model.tasks[task.name] = replace(
        task,
        beam=task.beam if beam is None else beam,
        length_penalty=task.length_penalty if length_penalty is None else length_penalty,
    )
    stream = standard_input()
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    done = 0
    skipped: list[str] = []
    with lines_done(lambda: done, "standard input"):
        for lines in lines_as_they_come(stream):
            sentences = [
                _sentence(number, line, model.encoder.tokenizer, skipped)
                for number, line in enumerate(lines, done + 1)
            ]
            translated = iter(model.annotate([sentence for sentence in sentences if sentence.words]))
            for sentence in sentences:
                text = str(next(translated).layer(task.layer)) if sentence.words else ""
                print(" ".join(_LINE_END.split(text)))
            sys.stdout.flush()
            done += len(lines)
            if watched:
                print(f"\r{counted(done, 'line')}", end="", file=sys.stderr, flush=True)
    if watched:
        print(file=sys.stderr)
    if skipped:
        more = "" if len(skipped) == 1 else f" ({counted(len(skipped), 'such line')} in all)"
        print(f"mtl: left empty: {skipped[0]}{more}", file=sys.stderr)
    return 2 if skipped else 0


def _sentence(number: int, line: bytes, tokenizer: Tokenizer, skipped: list[str]) -> Sentence:
    """The words of a line; for one that cannot be translated, none and the reason in `skipped`."""
    from mtl.models.limits import MAX_WORDS

    place = f"standard input, line {number}"
    try:
        words = source_words(text_of(line))
        if len(words) > MAX_WORDS:
            raise ValueError(
                f"{counted(len(words), 'word')}, and at most {MAX_WORDS:,} are translated: split it"
            )
        sentence = Sentence(words, place=place)
        tokenizer.encode_sentences([sentence])
    except ValueError as error:
        skipped.append(f"{place}: {str(error).removeprefix(f'{place}: ')}")
        return Sentence((), place=place)
    return sentence
