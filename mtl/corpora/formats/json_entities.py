"""Entities in JSON: a text with spans of its characters, or tokens with spans of tokens.

A file has one object per line, or is one list of them. An object is one of

    {"text": "Ann left.", "entities": [[0, 3, "PER"]]}                            (spaCy, doccano)
    ["Ann left.", {"entities": [[0, 3, "PER"]]}]                                  (spaCy 2)
    {"text": "Ann left.", "spans": [{"start": 0, "end": 3, "label": "PER"}]}      (Prodigy, `Doc.to_json`)
    {"tokens": ["Ann", "left", "."], "entities": [[0, 1, "PER"]]}
    {"sentences": [["Ann", "left", "."]], "ner": [[[0, 0, "PER"]]]}               (HanLP, DyGIE)

Ends are exclusive, as in Python, except in documents of `sentences`, whose spans count the tokens of the
whole document and name their last one. Tokens may be objects with `text`, or with their `start` and `end` in
the text; spans count characters wherever there is a text. Beside a text, tokens of white space (spaCy) are no
words, white space at the borders of a span is not of it, and `sents` (`Doc.to_json`) says where sentences
begin. What an annotator rejected or ignored (Prodigy's `answer`) is not annotated.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mtl.corpora.annotated_text import offsets_of
from mtl.corpora.formats.jsonl import letters, parsed_json
from mtl.corpora.formats.lines import documents_of, fault, is_blank, malformed, name_of, read_lines
from mtl.errors import InputError
from mtl.tasks.in_words import as_json
from mtl.tasks.sentence import MadeUpId, Sentence, Span

_TOKENS = ("tokens", "words", "token")
_SPANS = ("entities", "ents", "spans", "ner", "label", "labels")
_IDS = ("id", "doc_key", "doc_id")
_STARTS, _ENDS = ("start", "start_offset", "begin"), ("end", "end_offset")
_LABELS = ("label", "label_", "type", "entity", "entity_group")
MISALIGNED = "entity that does not begin and end with a word, which is left out"
ACROSS = "entity over several sentences, which is left out"
GROUPED = "span of a group ('spans') that is no entity ('ents'), which is left out"
REJECTED = "text whose entities were rejected or ignored ('answer'), which is not annotated"
UNLABELLED = "text without entities of its own ('null'), which is not annotated"


class _Words(NamedTuple):
    """A sentence: its words, the places of their first and last characters, and its text."""

    words: tuple[str, ...]
    starts: Sequence[int]
    ends: Sequence[int]
    text: str = ""


def read_json_entities(
    path: Path, language: str = "en", ends: Literal["exclusive", "inclusive"] | None = None
) -> list[Sentence]:
    """Sentences with entities.

    A text without tokens is split into sentences and words by the rules for its language; entities whose
    borders are within a word, or that go over the end of a sentence, are left out with a note.

    Args:
        path: The file.
        language: The language of texts that have no tokens.
        ends: Whether the end of a span is after it or in it; `None`: as described above.

    Raises:
        InputError: with the line, for what is not JSON or has other keys, and for spans that are not in the
            text or empty.
    """
    sentences: list[Sentence] = []
    document_of = documents_of(path)
    for number, (line, record, alone) in enumerate(_records(path), start=1):
        try:
            record, grouped = _without_groups(record)
            found = list(_sentences(record, language, ends))
        except InputError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise malformed(path, line, str(error) if alone else f"object {number}: {error}") from error
        name = next(
            (record[key] for key in _IDS if isinstance(record, dict) and record.get(key) not in (None, "")),
            None,
        )
        is_named = isinstance(name, str | int)
        stem = str(name) if is_named else f"{name_of(path)}-{number:04d}"
        document = stem if is_named else document_of(number)
        for place, sentence in enumerate(found, start=1):
            own = stem if len(found) == 1 else f"{stem}.{place}"
            made = Sentence(
                sentence.words,
                sentence.layers,
                id=own if is_named else MadeUpId(own),
                text=sentence.text,
                document=document if len(found) > 1 else "",
                place=f"{path}:{line}",
                notes=sentence.notes + ((GROUPED,) * grouped if place == 1 else ()),
            )
            if (problem := fault(made)) is not None:
                raise malformed(path, line, problem.what)
            sentences.append(made)
    return sentences


class _Record(NamedTuple):
    """An object, the line on which it or the list that it is in begins, and whether the line is its own."""

    line: int
    value: Any
    alone: bool = True


def _records(path: Path) -> Iterator[_Record]:
    """The objects of a file."""
    lines = read_lines(path)
    first = next((number for number, line in enumerate(lines) if not is_blank(line)), 0)
    if lines[first].lstrip().startswith("[") and not _is_json(lines[first]):
        try:
            yield from (_Record(first + 1, each, False) for each in parsed_json("\n".join(lines)))
            return
        except json.JSONDecodeError as error:
            raise malformed(path, error.lineno, f"not JSON ({error.msg}); {_HOW}") from error
        except (ValueError, RecursionError) as error:
            raise malformed(path, first + 1, str(error)) from error
    for number, line in enumerate(lines, start=1):
        if is_blank(line):
            continue
        try:
            record = parsed_json(line)
        except json.JSONDecodeError as error:
            what = f"not JSON ({error.msg} at column {error.colno}); {_HOW}"
            raise malformed(path, number, what) from error
        except (ValueError, RecursionError) as error:
            raise malformed(path, number, str(error)) from error
        if isinstance(record, list) and not (len(record) == 2 and isinstance(record[0], str)):
            yield from (_Record(number, each, False) for each in record)
        else:
            yield _Record(number, record)


_HOW = "write one object per line, or one list of objects"


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _sentences(record: Any, language: str, ends: str | None) -> Iterator[Sentence]:
    """The sentences of an object, without ids."""
    if isinstance(record, list) and len(record) == 2 and isinstance(record[1], dict):
        record = {"text": record[0], **record[1]}
    if not isinstance(record, dict):
        raise ValueError(f"{as_json(record)} is not an object with a text or tokens, and entities")
    rejected = record.get("answer") in ("reject", "ignore") and "sentences" not in record
    spans = None if rejected else _value(record, _SPANS, "entities")
    if "sentences" in record:
        yield from _of_document(record["sentences"], spans, ends)
        return
    tokens = next((record[key] for key in _TOKENS if record.get(key) is not None), None)
    text = record.get("text")
    if text is None and tokens is None:
        raise ValueError(f"no text and no tokens: give it a key 'text' or '{_TOKENS[0]}'")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"'text' is {as_json(text)}, not a string")
    if text is None:
        words = _forms(tokens)
        each = [_Words(words, range(len(words)), range(1, len(words) + 1))]
    elif tokens is None:
        each = _split(text, language)
    else:
        each = _placed(text, tokens, record.get("sents"))
    if spans is None:
        note = REJECTED if rejected else UNLABELLED
        yield from (Sentence(words.words, text=words.text, notes=(note,)) for words in each)
        return
    if text is None:
        yield from _annotated(each, _read_spans(spans, each[0].ends[-1], "token", ends or "exclusive"))
    else:
        found = _read_spans(spans, len(text), "character", ends or "exclusive")
        yield from _annotated(each, _without_blanks(found, text, each))


def _without_groups(record: Any) -> tuple[Any, int]:
    """An object of `Doc.to_json` without groups of spans, and the number of those that are no entities."""
    if not isinstance(record, dict) or "ents" not in record or not isinstance(record.get("spans"), dict):
        return record, 0
    entities, *groups = (
        [{key: span[key] for key in ("start", "end", "label")} for span in spans]
        for spans in (record["ents"], *record["spans"].values())
    )
    grouped = sum(span not in entities for group in groups for span in group)
    return {key: value for key, value in record.items() if key != "spans"}, grouped


def _value(record: Mapping[str, Any], keys: Sequence[str], what: str) -> Any:
    """The value of the only key of these that a record has."""
    there = [key for key in keys if key in record]
    if not there:
        raise ValueError(f"no {what}: give it a key such as '{keys[0]}' (found: {', '.join(record)})")
    if len(there) > 1:
        raise ValueError(f"both '{there[0]}' and '{there[1]}', which say the same: keep one")
    return record[there[0]]


def _of_document(sentences: Any, spans: Any, ends: str | None) -> Iterator[Sentence]:
    """The sentences of a document; its spans count the document's tokens."""
    if not isinstance(sentences, list) or not isinstance(spans, list) or len(sentences) != len(spans):
        raise ValueError("'sentences' and 'ner' must be lists of the same length")
    before = 0
    for tokens, of_sentence in zip(sentences, spans, strict=True):
        words = _forms(tokens)
        places = range(before, before + len(words))
        one = _Words(words, places, range(before + 1, before + len(words) + 1))
        before += len(words)
        yield from _annotated(
            [one], _read_spans(of_sentence, before, "token", ends or "inclusive", places[0])
        )


def _forms(tokens: Any) -> tuple[str, ...]:
    """The words of a list of tokens, which are strings or objects with their text."""
    if not isinstance(tokens, list) or not tokens:
        raise ValueError(f"{as_json(tokens)} is not a list of tokens")
    forms: list[str] = []
    for token in tokens:
        form = token.get("text") if isinstance(token, dict) else token
        if not isinstance(form, str):
            raise ValueError(f"the token {as_json(token)} is not a string, and has no 'text'")
        forms.append(form)
    return tuple(forms)


def _split(text: str, language: str) -> list[_Words]:
    """The sentences and words of a text by the rules for a language, with their places in it."""
    from mtl.corpora.running_text import split

    sentences = split(text, language)
    if not sentences:
        raise ValueError("a text without words; take it out")
    places = offsets_of(text, sentences)
    return [
        _Words(sentence.words, [start for start, _ in each], [end for _, end in each], sentence.text)
        for sentence, each in zip(sentences, places, strict=True)
    ]


def _placed(text: str, tokens: Any, sents: Any) -> list[_Words]:
    """Given tokens, with their places in the text; without places of their own, they are looked for in it.

    `sents` may have an object with the `start` of each sentence. Tokens of white space are left out.
    """
    own = isinstance(tokens, list) and all(
        isinstance(each, dict) and {"start", "end"} <= {*each} for each in tokens
    )
    if own and tokens:
        places = [(each["start"], each["end"]) for each in tokens]
        for start, end in places:
            if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
                raise ValueError(
                    f"a token from {as_json(start)} to {as_json(end)}, and the text has {len(text)}"
                )
        for before, (start, end) in pairwise(places):
            if start < before[0] or end < before[1]:
                raise ValueError(
                    f"a token from {start} to {end} after one from {before[0]} to {before[1]}: "
                    "write tokens in order"
                )
        words = tuple(word for place in places if not (word := text[slice(*place)]).isspace())
        places = [place for place in places if not text[slice(*place)].isspace()]
    else:
        words = tuple(word for word in _forms(tokens) if not word.isspace())
        if not all(words):
            raise ValueError(f"token {words.index('') + 1} is empty; give it a form, or take it out")
        places = [*offsets_of(text, [Sentence(words)])[0]]
    if not words:
        raise ValueError("a text without words; take it out")
    begins = (
        sorted(each["start"] for each in sents if isinstance(each, dict) and type(each.get("start")) is int)
        if isinstance(sents, list)
        else []
    )
    found = []
    each = ((word, start, end) for word, (start, end) in zip(words, places, strict=True))
    for _, group in groupby(each, lambda word: bisect(begins, word[1])):
        forms, starts, ends = zip(*group, strict=True)
        found.append(_Words(forms, starts, ends, _spelled(text[starts[0] : ends[-1]], forms)))
    return found


def _without_blanks(spans: Sequence[Span], text: str, sentences: Sequence[_Words]) -> Iterator[Span]:
    """The spans of a text without white space at their borders, unless it is part of a word."""
    starts = {start for words in sentences for start in words.starts}
    ends = {end for words in sentences for end in words.ends}
    for span in spans:
        start, end, label = span
        while start < end and start not in starts and text[start].isspace():
            start += 1
        while start < end and end not in ends and text[end - 1].isspace():
            end -= 1
        yield Span(start, end, label) if start < end else span


def _spelled(text: str, words: Sequence[str]) -> str:
    """The text on one line if the words spell it, as a sentence's text must be; else nothing."""
    return " ".join(text.split()) if letters(text) == letters("".join(words)) else ""


def _read_spans(spans: Any, length: int, unit: str, ends: str, first: int = 0) -> list[Span]:
    """Spans of characters or tokens, with exclusive ends."""
    if not isinstance(spans, list):
        raise ValueError(f"the entities {as_json(spans)} are not a list")
    found = []
    for span in spans:
        if isinstance(span, dict):
            values = [_value(span, keys, keys[0]) for keys in (_STARTS, _ENDS, _LABELS)]
        else:
            values = list(span[:3]) if isinstance(span, list) else []
        if [type(value) for value in values] != [int, int, str]:
            raise ValueError(f"the entity {as_json(span)}; an entity is [start, end, label]")
        start, end, label = values[0], values[1] + (ends == "inclusive"), values[2]
        if not first <= start < end <= length:
            last = length - (ends == "inclusive")
            what = f"the entity {as_json(span)}; {unit}s are {first} to {last}, and ends are {ends}"
            how = " (if an end is the last of its entity, use json-entities:ends=inclusive)"
            raise ValueError(what + (how if start == end and ends == "exclusive" else ""))
        found.append(Span(start, end, label))
    return found


def _annotated(sentences: Sequence[_Words], spans: Iterable[Span]) -> Iterator[Sentence]:
    """The sentences of a text with their entities; spans that fit no words become notes."""
    entities: list[list[Span]] = [[] for _ in sentences]
    notes: list[list[str]] = [[] for _ in sentences]
    ends = [words.ends[-1] for words in sentences]
    firsts = [_indices(words.starts) for words in sentences]
    lasts = [_indices(words.ends) for words in sentences]
    for span in sorted(spans):
        here = min(bisect(ends, span.start), len(sentences) - 1)
        first, last = firsts[here].get(span.start), lasts[here].get(span.end)
        if span.end > ends[here] and here + 1 < len(sentences) and span.end > sentences[here + 1].starts[0]:
            notes[here].append(ACROSS)
        elif first is not None and last is not None and first <= last:
            entities[here].append(Span(first, last + 1, span.label))
        else:
            notes[here].append(MISALIGNED)
    for each, of_sentence, of_notes in zip(sentences, entities, notes, strict=True):
        yield Sentence(each.words, entities=tuple(of_sentence), text=each.text, notes=tuple(of_notes))


def _indices(places: Sequence[int]) -> dict[int, int]:
    """The index of the first word at each place."""
    return {place: len(places) - 1 - index for index, place in enumerate(reversed(places))}
