"""Dependencies from trees by head rules: worked by hand, by plain recursion, and beside UD's trees."""

from __future__ import annotations

from pathlib import Path

import nltk
import pytest

from mtl.corpora.formats.dependencies import read_conllu
from mtl.corpora.formats.head_rules import NO_RULE, arcs_from
from mtl.corpora.formats.lines import fault
from mtl.corpora.formats.phrase_structure import read_brackets, read_conll2012
from mtl.corpora.readers import read_sentences
from mtl.tasks.sentence import Arcs, Sentence
from mtl.tasks.tree import Tree

BY_HAND = {
    "(TOP (S (NP-TMP (NN today)) (NP-SBJ (NNP Ann)) (VP (MD will) (VP (VB give) (NP (NNP Bob)) (NP (DT a) "
    "(NN book)) (PP (IN in) (NP (NNP Ulm))))) (. .)))": (
        (3, 3, 0, 3, 4, 7, 4, 4, 8, 3),
        "VMOD SUB root VC OBJ NMOD OBJ VMOD PMOD P",
    ),
    # The head of a coordination is its first part, of a possessive its mark, of SBAR the complementiser.
    "(S (NP (NN tea) (CC and) (NN milk)) (VP (VBP are) (ADJP-PRD (RB very) (JJ good))))": (
        (4, 1, 1, 0, 6, 4),
        "SUB NMOD NMOD root AMOD PRD",
    ),
    "(S (NP (NP (NNP Bob) (POS 's)) (NN cat)) (VP (VBD said) "
    "(SBAR (IN that) (S (NP (PRP it)) (VP (VBD left))))))": (
        (2, 3, 4, 0, 4, 7, 5),
        "NMOD NMOD SUB root VMOD SUB SBAR",
    ),
    # Quotes and traces are heads of nothing; what stands after the verb of a question is its subject.
    "(SQ (VBD Did) (NP (NP (DT the) (NNS dogs)) (, ,) (NP (NNP Rex)) (, ,)) "
    "(VP (VB eat) (NP (-NONE- *T*))) (. ?))": (
        (0, 3, 1, 3, 3, 3, 1, 7, 1),
        "root NMOD SUB P NMOD P VMOD P P",
    ),
    "(FRAG (`` ``) (NP (QP (RB about) (CD 10) (CD 20)) (NNS men)) ('' ''))": (
        (5, 5, 2, 2, 0, 5),  # in QP, an adverb comes before numbers
        "P NMOD AMOD AMOD root P",
    ),
}


@pytest.mark.parametrize("text", BY_HAND)
def test_trees_worked_by_hand(text: str) -> None:
    heads, relations = BY_HAND[text]
    assert arcs_from(Tree.parse(text)) == (Arcs(heads, tuple(relations.split())), 0)


def test_readers_make_arcs_if_asked(tmp_path: Path) -> None:
    """Function tags are used, and then taken off the tree; a label without a rule is counted."""
    path = tmp_path / "a.mrg"
    text = "(TOP (S (NP-SBJ (NNP Ann)) (NP-TMP (NN today)) (VP (VBD left) (NP (-NONE- *))) (. .)))\n"
    path.write_text(text + "(TOP (IP (NN x) (NP (NN y))))\n")
    (first, second), plain = read_sentences(path, "brackets:arcs=collins"), read_brackets(path)
    assert first.arcs == Arcs((3, 3, 0, 3), ("SUB", "VMOD", "root", "P"))
    assert second.arcs == Arcs((0, 1), ("root", "DEP"))
    assert (first.notes, second.notes) == ((), (NO_RULE,))
    assert [each.with_layers({"arcs": None}) for each in (first, second)] == plain
    assert all(each.arcs is None for each in plain)


def by_recursion(tree: nltk.Tree, heads: dict[int, int], number: list[int]) -> int:
    """Heads of noun phrases and of verb phrases only, from the rules as they are printed."""
    if isinstance(tree[0], str):
        number[0] += 1
        return number[0]
    labels = [child.label() for child in tree]
    own = [by_recursion(child, heads, number) for child in tree]
    if tree.label() == "VP":
        order = ["TO", "VBD", "VBN", "MD", "VBZ", "VB", "VBG", "VBP", "VP", "ADJP", "NN", "NNS", "NP"]
        place = min(
            range(len(labels)), key=lambda at: (order.index(labels[at]) if labels[at] in order else 99, at)
        )
    else:
        nouns = [at for at, label in enumerate(labels) if label in ("NN", "NNP", "NNPS", "NNS", "NML", "POS")]
        phrases = [at for at, label in enumerate(labels) if label == "NP"]
        place = nouns[-1] if nouns else phrases[0] if phrases else len(labels) - 1
    for at, head in enumerate(own):
        if at != place:
            heads[head] = own[place]
    return own[place]


def _skeletons(upstream: Path) -> list[Path]:
    return sorted((upstream / "propbank-release/data/google/ewt").rglob("*.gold_skel"))


def test_heads_of_phrases_agree_with_plain_recursion(upstream: Path) -> None:
    """On real phrases of nouns and verbs without conjunctions and punctuation."""
    plain = {
        "NP",
        "VP",
        "NML",
        "DT",
        "NN",
        "NNS",
        "NNP",
        "NNPS",
        "POS",
        "VBD",
        "VBZ",
        "VB",
        "MD",
        "TO",
        "VBG",
        "VBN",
        "VBP",
    }
    seen = 0
    for path in _skeletons(upstream)[::30]:
        for sentence in read_conll2012(path):
            assert sentence.tree is not None
            for phrase in nltk.Tree.fromstring(str(sentence.tree)).subtrees(
                lambda node: node.label() in ("NP", "VP")
            ):
                if {node.label() for node in phrase.subtrees()} <= plain and len(phrase.leaves()) > 1:
                    heads: dict[int, int] = {}
                    heads[by_recursion(phrase, heads, [0])] = 0
                    arcs, _ = arcs_from(Tree.parse(" ".join(str(phrase).split())))
                    assert arcs.heads == tuple(heads[word + 1] for word in range(len(heads)))
                    seen += 1
    assert seen > 500


COMMON = {"DT", "PDT", "PRP$", "JJ", "JJR", "JJS", "VBN", "VBG", "NN", "NNS"}
"""Tags of phrases with common nouns: in names and numbers, UD has other heads."""


@pytest.mark.slow
def test_flat_noun_phrases_have_the_heads_of_ud(upstream: Path) -> None:
    """UD's trees are by hand and on the same words: one word of a noun phrase has its head outside."""
    files = {path.name.partition(".")[0]: path for path in _skeletons(upstream)}
    by_document: dict[str, list[Sentence]] = {}
    for sentence in read_conllu(upstream / "UD_English-EWT/en_ewt-ud-dev.conllu"):
        by_document.setdefault(sentence.id.partition("-")[2].rpartition("-")[0], []).append(sentence)
    equal = phrases = 0
    for document in sorted(by_document.keys() & {*files})[::2]:
        ours = read_conll2012(files[document], arcs="collins")
        for mine, theirs in zip(ours, by_document[document], strict=False):
            if len(mine) != len(theirs) or mine.tree is None or mine.tags is None:
                continue
            assert fault(mine) is None
            for start, end in _flat_noun_phrases(mine.tree):
                if {*mine.tags[start:end]} <= COMMON:
                    phrases += 1
                    equal += _head_in(mine.arcs, start, end) == _head_in(theirs.arcs, start, end)
    assert phrases > 300
    assert equal > 0.98 * phrases


def _flat_noun_phrases(tree: Tree) -> list[tuple[int, int]]:
    """The places of noun phrases of two or more words and nothing else, without conjunctions."""
    found, here = [], 0
    for node in nltk.Tree.fromstring(str(tree)).subtrees(
        lambda node: isinstance(node[0], str) or node.height() == 3
    ):
        if isinstance(node[0], str):
            here += 1
        elif node.label() == "NP" and len(node) > 1 and "CC" not in {child.label() for child in node}:
            found.append((here, here + len(node)))
    return found


def _head_in(arcs: Arcs | None, start: int, end: int) -> list[int]:
    """The words of a phrase whose heads are outside of it."""
    assert arcs is not None
    return [word for word in range(start, end) if not start < arcs.heads[word] <= end]
