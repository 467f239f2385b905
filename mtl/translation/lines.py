"""Translate lines of text by a model in memory."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mtl.errors import InputError
from mtl.heads.arguments import is_iterable, short_text, whole_number
from mtl.models.batches import MAX_WORDS
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.translation.task import Translate, source_words, translation_in

if TYPE_CHECKING:
    from mtl.models.batches import Tokenizer
    from mtl.models.joint import JointModel

_MOST_BEAM = 1_000
_LINE_END = re.compile(r"[\r\n]+")
"""Line ends that a model may write into a translation, which must be one line of output."""


def translate_lines(
    model: JointModel,
    lines: Sequence[str],
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
    beam_spread: float | None = None,
) -> list[str]:
    """The translation of each line by a model that was trained to translate; an empty line stays empty.

    Args:
        model: a model of the task `translate`, as `JointModel.from_pretrained` gives it.
        lines: sentences, their words separated by white space.
        beam: the number of hypotheses in beam search; `None`: that of the model's task.
        length_penalty: larger numbers favour long translations; `None`: that of the model's task.
        beam_spread: hypotheses whose log probability is more than this below the best one's are dropped;
            `None`: that of the model's task.

    Raises:
        InputError: the model does not translate, a line is no string, or it has more than 512 words or more
            subwords than the model reads.
    """
    if isinstance(lines, str | bytes) or not is_iterable(lines):
        raise InputError(f"lines={short_text(lines)}: use a list of lines")
    beam = None if beam is None else whole_number(beam, "beam", 1, _MOST_BEAM)
    if length_penalty is not None and not (
        isinstance(length_penalty, int | float) and -100 <= length_penalty <= 100
    ):
        raise InputError(f"length_penalty={short_text(length_penalty)}: use a number from -100 to 100")
    if beam_spread is not None and not (
        isinstance(beam_spread, int | float)
        and not isinstance(beam_spread, bool)
        and 0 <= beam_spread <= 1_000
    ):
        raise InputError(f"beam_spread={short_text(beam_spread)}: use a number from 0 to 1,000")
    searcher, task = searching(model, beam, length_penalty, beam_spread, "the model")
    require_several(task.beam, beam_spread=beam_spread, length_penalty=length_penalty)
    sentences = []
    for number, line in enumerate(lines, 1):
        if not isinstance(line, str):
            raise InputError(f"line {number} is {short_text(line)}, not a string")
        try:
            sentences.append(source_sentence(line, f"line {number}", model.tokenizer))
        except ValueError as error:
            raise InputError(str(error)) from error
    return translated(searcher, task, sentences)


def searching(
    model: JointModel,
    beam: int | None,
    length_penalty: float | None,
    beam_spread: float | None,
    what: str,
) -> tuple[JointModel, Translate]:
    """A model of the same weights that searches with these settings, and its task.

    Raises `InputError`, which names the model by `what`, if it does not translate.
    """
    task = translation_in(model.tasks)
    if task is None:
        raise InputError(f"{what} does not translate: its tasks are {', '.join(model.tasks)}")
    task = replace(
        task,
        beam=task.beam if beam is None else beam,
        length_penalty=task.length_penalty if length_penalty is None else length_penalty,
        beam_spread=task.beam_spread if beam_spread is None else beam_spread,
    )
    searcher = copy.copy(model)
    searcher.tasks = {**model.tasks, task.name: task}
    return searcher, task


def require_several(beam: int, before: str = "", **given: float | None) -> None:
    """Raise `InputError` for settings that are given though a single hypothesis has no use for them.

    The message begins with `before` and the setting's name.
    """
    for name, value in given.items():
        if beam == 1 and value is not None:
            raise InputError(
                f"{before}{name}={value:g}: with beam=1 there are no others to compare: leave one of them out"
            )


def source_sentence(line: str, place: str, tokenizer: Tokenizer) -> Sentence:
    """The words of a line; raises `ValueError`, which begins with its place, if they are too many."""
    words = source_words(line)
    if len(words) > MAX_WORDS:
        raise ValueError(
            f"{place}: {counted(len(words), 'word')}, and at most {MAX_WORDS:,} are translated: split it"
        )
    sentence = Sentence(words, place=place)
    if words:
        tokenizer.encode_sentences([sentence])
    return sentence


def translated(model: JointModel, task: Translate, sentences: Sequence[Sentence]) -> list[str]:
    """The translation of each sentence, without line ends; empty where there are no words."""
    found = iter(model.annotate([sentence for sentence in sentences if sentence.words]))
    texts = [str(next(found).layer(task.layer)) if sentence.words else "" for sentence in sentences]
    return [" ".join(_LINE_END.split(text)) for text in texts]
