from __future__ import annotations

import nltk
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl.corpora.formats.phrase_structure import (
    read_brackets,
    rooted,
    with_words,
    without_functions,
    without_traces,
)
from mtl.errors import InputError
from mtl.tasks.spans import constituents
from mtl.tasks.tree import Tree

TEXT = """\
( (S
    (NP-SBJ-1 (NNS prices))
    (VP (VBD were)
      (VP (VBN cut) (NP (-NONE- *-1))
        (ADVP=2 (RB 1\\/2)) (-LRB- -LRB-) (PRN (UH yes)) (-RRB- -RRB-)))
    (. .)) )
(ROOT (INTJ (UH ok)))   (S (NP-PRD (PRP$ its) (NN -)))
(NN word)
"""


def test_trees_on_one_or_many_lines(tmp_path):
    path = tmp_path / "a.mrg"
    path.write_text(TEXT)
    sentences = read_brackets(path)
    assert [str(sentence.tree) for sentence in sentences] == [
        "(TOP (S (NP (NNS prices)) (VP (VBD were) (VP (VBN cut) (ADVP (RB 1/2)) "
        "(-LRB- -LRB-) (PRN (UH yes)) (-RRB- -RRB-))) (. .)))",
        "(TOP (INTJ (UH ok)))",
        "(TOP (S (NP (PRP$ its) (NN -))))",
        "(TOP (NN word))",
    ]
    assert sentences[0].words == ("prices", "were", "cut", "1/2", "(", "yes", ")", ".")
    assert sentences[0].tags == ("NNS", "VBD", "VBN", "RB", "-LRB-", "UH", "-RRB-", ".")
    assert [sentence.id for sentence in sentences] == ["a-0001", "a-0002", "a-0003", "a-0004"]
    raw = read_brackets(path, clean=False)[0]
    assert raw.words[3] == "*-1"
    assert "(NP-SBJ-1 " in str(raw.tree)


def test_agrees_with_nltk(tmp_path):
    path = tmp_path / "a.mrg"
    path.write_text(TEXT)
    theirs = [nltk.Tree.fromstring(str(sentence.tree)) for sentence in read_brackets(path, clean=False)]
    blocks = TEXT.replace("   (S", "\n(S").replace("(ROOT", "\n(ROOT").replace("(NN word)", "\n(NN word)")
    first = nltk.Tree.fromstring(blocks.partition("\n\n")[0])
    assert theirs[0].label() == "TOP"
    assert list(theirs[0].treepositions()) == list(first.treepositions())
    ours, labels = ([node.label() for node in tree.subtrees()] for tree in (theirs[0], first))
    assert ours[1:] == labels[1:]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("(TOP (NN a))\n(TOP\n (NN b)\n", 2, "1 bracket"),
        ("(TOP (NN a))\n(TOP (NN b)))\n", 2, "outside of any tree"),
        ("(TOP (NN a))\nword\n", 2, "'word' outside"),
        ("(TOP (NN a))\n(TOP\n(N\u00a0P (NN b)))\n", 3, r"white space in the label 'N\\xa0P'"),
        ("(TOP (NN a))\n(TOP (NP a\n (NN b)))\n", 2, "'NP' holds the word 'a' without a tag"),
        ("(TOP\n (NP )\n)\n", 1, r"'\(NP\)' has a label and nothing below it"),
        ("(TOP (NN a))\n\n(TOP (NP (-NONE- *)))\n", 3, "nothing but traces"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, text, line, what):
    path = tmp_path / "a.mrg"
    path.write_text(text)
    with pytest.raises(InputError, match=what) as error:
        read_brackets(path)
    assert str(error.value).startswith(f"{path}:{line}: ")


def trees(depth: int) -> st.SearchStrategy[Tree]:
    leaf = st.builds(Tree, st.sampled_from(["NN", "-NONE-", "-LRB-"]), st.sampled_from("ab"))
    if depth == 0:
        return leaf
    label = st.sampled_from(["NP", "NP-SBJ", "S=1", "WHNP-2=3", "-X-"])
    return leaf | st.builds(Tree, label, st.lists(trees(depth - 1), min_size=1, max_size=3).map(tuple))


@given(trees(3))
def test_cleaning_laws(tree):
    words = [leaf.children for leaf in tree.leaves() if leaf.label != "-NONE-"]
    kept = without_traces(tree)
    assert [leaf.children for leaf in kept.leaves()] == words if kept else not words
    plain = without_functions(tree)
    assert without_functions(plain) == plain
    assert list(plain.leaves()) == list(tree.leaves())
    expected = {"NP": "NP", "NP-SBJ": "NP", "S=1": "S", "WHNP-2=3": "WHNP", "-X-": "-X-"}
    if not tree.is_preterminal:
        assert plain.label == expected[tree.label]
    top = rooted(tree)
    assert top.label == "TOP"
    assert rooted(top) == top
    count = len(list(tree.leaves()))
    renamed = with_words(tree, [str(index) for index in range(count)])
    assert [leaf.children for leaf in renamed.leaves()] == [str(index) for index in range(count)]
    for wrong in (count - 1, count + 1):
        with pytest.raises(ValueError, match=f"{count} words?, the sentence {wrong}"):
            with_words(tree, ["x"] * wrong)


def test_a_root_as_in_negra_is_no_constituent(tmp_path):
    """VROOT is above the sentence and its punctuation; a parser must not learn it."""
    path = tmp_path / "negra.mrg"
    path.write_text("(VROOT (S (NP (PPER Sie)) (VVFIN singt)) ($. .))\n")
    (sentence,) = read_brackets(path)
    assert str(sentence.tree) == "(TOP (S (NP (PPER Sie)) (VVFIN singt)) ($. .))"
    assert [span.label for span in constituents(sentence.tree)] == ["S", "NP"]
