"""The sentences of a text by the rules of Punkt (Kiss & Strunk 2006), without its training.

The rules are those of NLTK's `PunktSentenceTokenizer` (Apache License 2.0, © NLTK Project) with a list of
abbreviations, and no collocations, sentence starters and orthographic contexts. They stand
here since importing any part of NLTK loads scipy and scikit-learn. A test compares both.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterator
from itertools import pairwise

import regex

_NO_WORD = r"""[)";}\]*:@'({\[\u2018\u2019\u201c\u201d\xab\xbb!?]"""
_MARKS = r"(?:-{2,}|\.{2,}|(?:\.\s){2,}\.)"
_TOKEN = regex.compile(
    rf"{_MARKS}|(?=[^(\"`{{\[:;&#*@)}}\]\-,])\S+?(?=\s|$|{_NO_WORD}|{_MARKS}|,(?=$|\s|{_NO_WORD}|{_MARKS}))|\S"
)
_END = regex.compile(rf"[.?!](?=(?P<after>{_NO_WORD}|\s+(?P<next>\S+)))")
_CLOSING = regex.compile(r"""(?m)["')\]}\u2018\u2019\u201c\u201d\xab\xbb]+?(?:\s+|(?=--)|$)""")
_NUMBER = regex.compile(r"-?[.,]?\d[\d,.-]*\.?$")
_INITIAL = regex.compile(r"[^\W\d]\.$")


def sentences(text: str, abbreviations: Collection[str]) -> list[str]:
    """The sentences, as they are written.

    `abbreviations` are in small letters, without their last full stop.
    """
    pieces = list(_pieces(text, abbreviations))
    found, moved = [], 0
    for (start, end), following in zip(pieces, [*pieces[1:], None], strict=True):
        start += moved
        moved = 0
        if following is not None and (closing := _CLOSING.match(text[slice(*following)])):
            # A bracket or quotation mark belongs to the sentence that it ends.
            end = following[0] + len(closing.group().rstrip())
            moved = closing.end()
            found.append(text[start:end])
        elif start < end:
            found.append(text[start:end])
    return found


def _pieces(text: str, abbreviations: Collection[str]) -> Iterator[tuple[int, int]]:
    """Start and end of sentences, which closing marks may still begin."""
    start = 0
    for end, begin, context in _candidates(text):
        if _ends(context, abbreviations):
            yield start, end
            start = begin
    yield start, len(text.rstrip())


def _candidates(text: str) -> Iterator[tuple[int, int, str]]:
    """Where a sentence may end and the next one begin, with the word before and what follows.

    Of several marks behind one word only the last one counts.
    """
    word, last = slice(0, 0), None
    for match in _END.finditer(text):
        start = _after_blank(text, word.stop, match.start()) or word.start
        if last is not None and word.stop <= start:
            yield _candidate(text, word, last)
        word, last = slice(start, match.start()), match
    if last is not None:
        yield _candidate(text, word, last)


def _candidate(text: str, word: slice, match: regex.Match[str]) -> tuple[int, int, str]:
    begin = match.start("next") if match["next"] else match.end()
    return match.end(), begin, text[word] + match.group() + match["after"]


def _after_blank(text: str, start: int, end: int) -> int | None:
    """The place behind the last white space of a part of the text that does not begin with it."""
    last = next((place for place in range(end - 1, start, -1) if text[place] in string.whitespace), None)
    return None if last is None else last + 1


def _ends(context: str, abbreviations: Collection[str]) -> bool:
    """Whether a sentence ends before the last token of a context."""
    tokens = [token for line in context.split("\n") if line.strip() for token in _TOKEN.findall(line)]
    return any(_is_end(*pair, abbreviations) for pair in pairwise(tokens))


def _is_end(token: str, following: str, abbreviations: Collection[str]) -> bool:
    if token in ("?", "!"):
        return True
    if not token.endswith(".") or token.endswith(".."):
        return False
    bare = token[:-1].lower()
    if bare in abbreviations or bare.rpartition("-")[2] in abbreviations:
        return False
    initial = _INITIAL.match(token) is not None
    if not (initial or _NUMBER.match(token)):
        return True
    in_sentence = following in tuple(";:,.!?") or following[0].islower()
    return not (in_sentence or (initial and following[0].isupper()))
