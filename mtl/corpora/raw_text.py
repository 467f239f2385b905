"""Splitting running English text into sentences and words, by rules that need no download."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from nltk.tokenize.destructive import NLTKWordTokenizer
from nltk.tokenize.punkt import PunktLanguageVars, PunktParameters, PunktSentenceTokenizer

from mtl.tasks.sentence import Sentence

_ABBREVIATIONS = (
    "a.m adm al approx apr assn attn aug ave bros capt cf cmdr co col conf corp d.c dec dept dr e.g ed "
    "eg est etc ext feb fig fri ft gen gov hon i.e ie inc jan jr jul jun lt ltd m.d maj mar messrs mon "
    "mr mrs ms mt nov oct p.m p.o p.s ph ph.d pp prof rep reps rev sat sen sens sep sept sgt spec sr st "
    "sun thu thur thurs tue tues u.k u.n u.s vol vs wed"
)
_INITIALS = "a b c d e f g h j k l m n o p q r s t u v w x y z"

# A run of word characters is tried only from its start, so that a long one does not take quadratic time.
_UNBROKEN = re.compile(
    r"(?:https?://|www\.)[^\s<>()\"]*[^\s<>()\".,;:!?']"  # addresses of web pages
    r"|(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+"  # mail addresses
    r"|[:;=]-?[()DPp](?!\w)"  # emoticons
    r"|[!?]{2,}|\.{2,}|-{2,}|\*{2,}|={2,}|_{2,}|<<+|>>+"  # repeated marks
    r"|(?<!\w)\w++\*+\w+"  # sh*t
)
_JOINED = re.compile(r"(?<=\w)[-–/](?=[^\W\d_])|(?<=[^\W\d_])[-–/](?=\d)")
_APOSTROPHE = re.compile(r"(?<=[^\W\d_])’(?=[^\W\d_])")
_PREFIX = re.compile(
    r"(?:^|(?<=[\W_]))(?:anti|co|e|ex|mid|mini|multi|neo|non|post|pre|pro|re|semi|sub|un)-$", re.IGNORECASE
)
_MARKS = re.compile(r"[^\w\s]*")
_LONGEST_PREFIX = len("multi")
_UP_TO_THE_NEXT_MARK = re.compile(r"\s*\S+(?:\s+\S[^.?!]*)?")


def sentences_of(text: str) -> list[Sentence]:
    """The sentences of a text, with their text and their words.

    Sentences are found by Punkt (Kiss & Strunk 2006), with a list of English abbreviations instead of
    training, and end only before white space: no end is within a word. Words follow the Penn Treebank
    (contractions and possessives are words of their own), with the changes of the English Web Treebank: web
    and mail addresses, emoticons and repeated marks are one word; hyphens and slashes within words are words,
    except after prefixes (`e-mail`, `non-profit`). The words spell the text, apart from white space.
    """
    return [
        Sentence(tuple(_words(sentence)), text=" ".join(sentence.split())) for sentence in _stretches(text)
    ]


def _stretches(text: str) -> Iterator[str]:
    """The text of each sentence.

    Punkt also ends sentences within `?!`, `Yahoo!'s` and addresses of web pages. An end that is followed by
    further marks is moved behind them; one that is not before white space then is none.
    """
    start = looked_at = 0
    for _, end in _sentence_tokenizer().span_tokenize(text):
        if end > looked_at and (marks := _MARKS.match(text, end)):
            looked_at = marks.end()
            if looked_at == len(text) or text[looked_at].isspace():
                yield text[start:looked_at].strip()
                start = looked_at
    if rest := text[start:].strip():
        yield rest


class _Marks(PunktLanguageVars):
    """Punkt's marks that may end a sentence, without NLTK's limit of five seconds for a text."""

    def period_context_re(self) -> re.Pattern[str]:
        return re.compile(super().period_context_re().pattern, re.VERBOSE)


class _Tokenizer(PunktSentenceTokenizer):
    """Punkt, which looks for an end at the mark that it asks about, not at one within the next word."""

    def text_contains_sentbreak(self, text: str) -> bool:
        asked = _UP_TO_THE_NEXT_MARK.match(text)
        return super().text_contains_sentbreak(asked[0] if asked else text)


@cache
def _sentence_tokenizer() -> PunktSentenceTokenizer:
    parameters = PunktParameters()
    parameters.abbrev_types = {*_ABBREVIATIONS.split(), *_INITIALS.split()}
    return _Tokenizer(parameters, lang_vars=_Marks())


def _words(sentence: str) -> list[str]:
    # NLTK knows only the typewriter's apostrophe, which has the same length, so that positions stay valid.
    plain = _APOSTROPHE.sub("'", sentence)
    cuts = {cut for span in NLTKWordTokenizer().span_tokenize(plain) for cut in span}
    for match in _JOINED.finditer(sentence):
        before = sentence[max(0, match.start() - _LONGEST_PREFIX - 2) : match.end()]
        if not _PREFIX.search(before):
            cuts.update(match.span())
    for start, end in (match.span() for match in _UNBROKEN.finditer(sentence)):
        cuts.difference_update(range(start + 1, end))
        cuts.update((start, end))
    pieces = (sentence[start:end] for start, end in pairwise(sorted(cuts)))
    return [word for piece in pieces for word in piece.split()]
