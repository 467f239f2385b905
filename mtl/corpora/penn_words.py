"""The words of an English sentence by the rules of the Penn Treebank, as NLTK's `NLTKWordTokenizer` has them.

NLTK (Apache License 2.0, © NLTK Project) has the rules from Robert MacIntyre's script. They stand here since
importing any part of NLTK loads scipy and scikit-learn. A test compares both.
"""

from __future__ import annotations

from collections.abc import Iterator

import regex

_CLOSING = """[\\]\\)}>"\\'»”’ ]*+"""
_RULES = [
    (regex.compile(rule), made)
    for rule, made in (
        # Starting quotes.
        (r"([«“‘„]|[`]+)", r" \1 "),
        (r'^"', r"``"),
        (r"(``)", r" \1 "),
        (r"([ (\[{<])(\"|'{2})", r"\1 `` "),
        (r"(?i)(?<!\w)(')(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", r"\1 "),
        # Punctuation.
        (rf"([^.])(\.)({_CLOSING})\s*$", r"\1 \2 \3 "),
        (r"([:,])([^\d])", r" \1 \2"),
        (r"([:,])$", r" \1 "),
        (r"\.{2,}", r" \g<0> "),
        (r"[;@#$%&]", r" \g<0> "),
        (r"[\u2012-\u2015]", r" \g<0> "),
        (r"""([^.])(\.)([\])}>"']*)\s*$""", r"\1 \2\3 "),
        (r"[?!]", r" \g<0> "),
        (r"([^'])' ", r"\1 ' "),
        (r"[*]", r" \g<0> "),
        (r"[\]\[(){}<>]", r" \g<0> "),
        (r"--", r" -- "),
        (r"\A|\Z", " "),
        # Ending quotes, clitics.
        (r"([»”’])", r" \1 "),
        (r"''", " '' "),
        (r'"', " '' "),
        (r"\s+", " "),
        (r"([^' ])('[sS]|'[mM]|'[dD]|') ", r"\1 \2 "),
        (r"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", r"\1 \2 "),
        # Contractions.
        (r"(?i)\b(can)(not)\b", r" \1 \2 "),
        (r"(?i)\b(d)('ye)\b", r" \1 \2 "),
        (r"(?i)\b(gim)(me)\b", r" \1 \2 "),
        (r"(?i)\b(gon)(na)\b", r" \1 \2 "),
        (r"(?i)\b(got)(ta)\b", r" \1 \2 "),
        (r"(?i)\b(lem)(me)\b", r" \1 \2 "),
        (r"(?i)\b(more)('n)\b", r" \1 \2 "),
        (r"(?i)\b(wan)(na)(?=\s)", r" \1 \2 "),
        (r"(?i) ('t)(is)\b", r" \1 \2 "),
        (r"(?i) ('t)(was)\b", r" \1 \2 "),
    )
]
_QUOTE = regex.compile(r"``|'{2}|\"")


def spans(sentence: str) -> Iterator[tuple[int, int]]:
    """Start and end of every word, in code points."""
    text = sentence
    for rule, made in _RULES:
        text = rule.sub(made, text)
    quotes = iter(_QUOTE.findall(sentence) if '"' in sentence or "''" in sentence else ())
    point = 0
    for word in text.split():
        written = next(quotes, word) if word in ('"', "``", "''") else word
        start = sentence.index(written, point)
        point = start + len(written)
        yield start, point
