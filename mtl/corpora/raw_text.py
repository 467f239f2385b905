"""Splitting running English text into sentences and words, by rules that need no download."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

from nltk.tokenize.destructive import NLTKWordTokenizer
from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

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
_LONGEST_PREFIX = len("multi")


def sentences_of(text: str) -> list[Sentence]:
    """The sentences of a text, with their text and their words.

    Sentences are found by Punkt (Kiss & Strunk 2006), with a list of English abbreviations instead of
    training. Words follow the Penn Treebank (contractions and possessives are words of their own), with the
    changes of the English Web Treebank: web and mail addresses, emoticons and repeated marks are one word;
    hyphens and slashes within words are words, except after prefixes (`e-mail`, `non-profit`). The words
    spell the text, apart from white space.
    """
    return [
        Sentence(tuple(_words(sentence)), text=" ".join(sentence.split()))
        for sentence in _sentence_tokenizer().tokenize(text)
    ]


@cache
def _sentence_tokenizer() -> PunktSentenceTokenizer:
    parameters = PunktParameters()
    parameters.abbrev_types = {*_ABBREVIATIONS.split(), *_INITIALS.split()}
    return PunktSentenceTokenizer(parameters)


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
