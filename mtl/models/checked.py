"""Check what callers give a joint model: sentences to annotate, and a folder to load from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import OutOfMemoryError

from mtl.corpora.formats.soundness import fault
from mtl.errors import InputError
from mtl.heads.arguments import is_iterable, shown
from mtl.tasks.in_words import counted, first_line
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task

_NO_LIST = (str, bytes, Mapping, Set)
_OF_READING = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError)


def checked_sentences(sentences: Any) -> list[Sentence]:
    """The sentences, with words that are plain strings.

    Raises `InputError` for anything but sentences and lists of words, such as text in place of words, and for
    words that no reader would accept.
    """
    if isinstance(sentences, (Sentence, *_NO_LIST)) or not is_iterable(sentences):
        raise InputError(
            f"annotate takes a list of sentences, not {shown(sentences)}: give one sentence as [sentence]"
        )
    return [_checked(sentence, number) for number, sentence in enumerate(sentences, 1)]


def _checked(given: Any, number: int) -> Sentence:
    words = given.words if isinstance(given, Sentence) else given
    if isinstance(words, _NO_LIST) or not is_iterable(words):
        raise InputError(
            f"sentence {number} is {shown(words)}, not a list of words: split it, as in 'We ate .'.split() "
            "(annotate_text takes running text)"
        )
    words = tuple(words)
    for place, word in enumerate(words, 1):
        if not isinstance(word, str):
            raise InputError(f"sentence {number}: word {place} is {shown(word)}, not a string")
    words = tuple(map(str, words))
    checked = Sentence(words, second=given.second if isinstance(given, Sentence) else None)
    if wrong := fault(checked):
        raise InputError(f"sentence {number}: {wrong.what}")
    return replace(given, words=words) if isinstance(given, Sentence) else checked


def require_lengths(sentences: Sequence[Sentence], max_words: int) -> None:
    """Raise `InputError` for a sentence of more than `max_words` words."""
    for position, sentence in enumerate(sentences, 1):
        if len(sentence) > max_words:
            raise InputError(
                f"sentence {position} has {counted(len(sentence), 'word')}, and decoders are given at most "
                f"{max_words:,}: split it, or raise max_words (memory grows with its square, time with its "
                "cube)"
            )


def require_layers_of_their_own(tasks: Mapping[str, Task]) -> None:
    """Raise `InputError` if two decoders annotate the same layer."""
    layers = [task.layer for task in tasks.values() if task.layers]
    if len(set(layers)) < len(layers):
        raise InputError(
            f"{', '.join(tasks)} have decoders for the same layer, whose annotations would replace each "
            "other: annotate with a run that has one decoder per layer"
        )


@contextmanager
def damaged(folder: Path) -> Iterator[None]:
    """Turn errors that reading a model's files raises into an `InputError` that names the folder."""
    try:
        yield
    except (InputError, OutOfMemoryError):
        raise
    except Exception as error:
        # The tokenizers library raises plain exceptions.
        if not isinstance(error, _OF_READING) and type(error) is not Exception:
            raise
        raise InputError(
            f"{folder} holds a damaged or changed model ({type(error).__name__}: {first_line(error)}): "
            "restore its files, or train again"
        ) from error
