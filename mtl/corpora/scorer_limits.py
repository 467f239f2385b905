"""The limits of the official scorers, from their sources; beyond them, scores are wrong or programs crash."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mtl.corpora.formats.enhanced import DEPS
from mtl.tasks.sentence import Arcs, Sentence

EVALB_WORD = 90
"""Maximum bytes of a word for EVALB, whose buffers hold 100; it only compares words."""
_EVALB_WORDS = _EVALB_BRACKETS = 200
_EVALB_LINE = 4_999
"""Maximum bytes of a line with its line feed (`fgets` of 5,000)."""
_EVALB_LABEL = 29
_NODE = re.compile(r"\(([^ ()]*) (?=(\(?))")
_CONLL2018_DEPTH = 900
"""Maximum number of arcs from a word to the root, which the program follows by recursion (Python: 1,000)."""


class Limit(NamedTuple):
    """Which sentences a program cannot score."""

    name: str
    exceeded: Callable[[tuple[Sentence, Sentence], Sequence[str]], bool]
    """Whether gold and prediction, or their texts in the program's format, are beyond its limits."""


def _beyond_evalb(_: tuple[Sentence, Sentence], texts: Sequence[str]) -> bool:
    for text in texts:
        nodes = _NODE.findall(text)
        brackets = sum(bool(inner) for _, inner in nodes)
        if (
            len(text.encode()) > _EVALB_LINE
            or brackets > _EVALB_BRACKETS
            or len(nodes) - brackets > _EVALB_WORDS
            or max(len(label.encode()) for label, _ in nodes) > _EVALB_LABEL
        ):
            return True
    return False


def _beyond_conll2018(pair: tuple[Sentence, Sentence], _: Sequence[str]) -> bool:
    return any(sentence.arcs is not None and _depth(sentence.arcs) > _CONLL2018_DEPTH for sentence in pair)


def _beyond_deps(pair: tuple[Sentence, Sentence], _: Sequence[str]) -> bool:
    return any("|" in arc.label for sentence in pair for arc in sentence.layer(DEPS).arcs)


def _depth(arcs: Arcs) -> int:
    """The maximum number of arcs between a word and the root of a tree."""
    depths = [0] * (len(arcs.heads) + 1)
    for start in range(1, len(depths)):
        path, word = [], start
        while word and not depths[word]:
            path.append(word)
            word = arcs.heads[word - 1]
        for level, node in enumerate(reversed(path), start=depths[word] + 1):
            depths[node] = level
    return max(depths)


LIMITS = {
    "tree": Limit(
        f"sentences that EVALB cannot score (more than {_EVALB_WORDS} words, {_EVALB_BRACKETS} brackets, "
        f"{_EVALB_LINE - 1:,} bytes, or {_EVALB_LABEL} bytes of a label)",
        _beyond_evalb,
    ),
    DEPS: Limit("sentences with '|' in a label, which the column DEPS cannot hold", _beyond_deps),
    "arcs": Limit(
        f"sentences that the CoNLL 2018 scorer cannot score (more than {_CONLL2018_DEPTH} arcs from a word "
        "to the root)",
        _beyond_conll2018,
    ),
}
"""The limits, by the layer that a program scores; data do not reach those of srl-eval.pl and conlleval."""
