"""The bodies of requests to `mtl serve` and of its answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mtl.corpora.annotated_text import AnnotatedText
from mtl.corpora.formats.jsonl import from_json
from mtl.corpora.running_text import Offset, offsets_of, split
from mtl.models.annotation import Probable
from mtl.models.checked import checked_sentences
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence

_KEYS = ("text", "sentences", "probabilities")
_MOST_VALUES = 1000


@dataclass(frozen=True)
class Limits:
    """Limits on a request, and on all waiting requests."""

    bytes: int
    """Maximum of a body."""
    sentences: int
    """Maximum of a request."""
    words: int
    """Maximum of a sentence."""
    waiting: int
    """Maximum number of sentences in all requests that wait."""
    seconds: float
    """Time within which a body must arrive."""


class Request(NamedTuple):
    """The sentences to annotate, and how."""

    sentences: list[Sentence]
    text: str | None
    offsets: list[tuple[Offset, ...]] | None
    k: int | None
    """Number of most probable values per item; `None`: no probabilities."""


class TooLarge(ValueError):
    """A request beyond a limit; the message says which."""


def parsed(body: bytes, language: str, limits: Limits) -> Request:
    """The request in a body; raises `ValueError` saying what is wrong with it, and `TooLarge`."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"the body is not JSON ({str(error)[:100]}): send an object with 'text' or 'sentences'"
        ) from error
    if not isinstance(given, dict) or ("text" in given) == ("sentences" in given):
        raise ValueError("send an object with either 'text' (a string) or 'sentences' (a list)")
    if unknown := next((key for key in given if key not in _KEYS), None):
        raise ValueError(f"unknown key {unknown[:50]!r}: the keys are {', '.join(_KEYS)}")
    k = given.get("probabilities")
    if k is not None and (type(k) is not int or not 1 <= k <= _MOST_VALUES):
        raise ValueError(f"'probabilities' must be a whole number from 1 to {_MOST_VALUES:,}, or null")
    text, offsets = given.get("text"), None
    if "text" in given:
        if not isinstance(text, str):
            raise ValueError("'text' must be a string")
        sentences = split(text, language)
        offsets = offsets_of(text, sentences)
        sentences = [replace(each, id=str(number)) for number, each in enumerate(sentences, 1)]
    else:
        sentences = _sentences(given["sentences"])
    if len(sentences) > limits.sentences:
        raise TooLarge(
            f"{counted(len(sentences), 'sentence')}, and a request may have {limits.sentences:,}: send fewer"
        )
    for number, sentence in enumerate(sentences, 1):
        if len(sentence) > limits.words:
            what = f"sentence {number} has {counted(len(sentence), 'word')}, and may have {limits.words:,}"
            raise TooLarge(f"{what}: split it")
    return Request(sentences, text, offsets, k)


def _sentences(given: Any) -> list[Sentence]:
    """Sentences given as lists of words, or as objects of our own format."""
    if not isinstance(given, list):
        raise ValueError("'sentences' must be a list of sentences, each a list of words or an object")
    sentences: list[Any] = []
    for number, each in enumerate(given, 1):
        try:
            sentences.append(from_json(each) if isinstance(each, dict) else each)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"sentence {number}: {error}") from error
    checked = checked_sentences(sentences)
    if empty := next((number for number, each in enumerate(checked, 1) if not len(each)), None):
        raise ValueError(f"sentence {empty} has no words: leave it out")
    return checked


def response_body(request: Request, annotated: Sequence[Probable]) -> bytes:
    """The body of a response: the annotated sentences as JSON."""
    sentences = tuple(sentence for sentence, _ in annotated)
    items = None if request.k is None else tuple(items for _, items in annotated)
    offsets = request.offsets or ((),) * len(annotated)
    record = AnnotatedText(request.text or "", sentences, tuple(offsets), items).to_json()
    if request.text is None:
        for each in record["sentences"]:
            del each["offsets"]
        del record["text"]
    return json.dumps(record, ensure_ascii=False).encode()
