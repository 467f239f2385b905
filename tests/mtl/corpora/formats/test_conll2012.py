from __future__ import annotations

import pytest

from mtl.corpora.formats.phrase_structure import read_conll2012
from mtl.errors import InputError
from mtl.tasks.sentence import Frame, Span

# document, part, number, word, tag, bit, lemma, frameset, sense, speaker, name, arguments..., coreference
ONTONOTES = """\
#begin document (nw/x/00/x_0001); part 000
nw/x/00/x_0001 0 0 Ann NNP (TOP(S(NP*) - - - - (PERSON) (ARG0*) (ARG0*) (0)
nw/x/00/x_0001 0 1 wants VBZ (VP* want 01 1 - * (V*) * -
nw/x/00/x_0001 0 2 to TO (S(VP* - - - - * (ARG1* * -
nw/x/00/x_0001 0 3 go VB (VP*))) go 02 1 - * *) (V*) -
nw/x/00/x_0001 0 4 -LRB- -LRB- (PRN* - - - - (ORG* * (ARG4* -
nw/x/00/x_0001 0 5 UN NNP (NP*) - - - - *) * * -
nw/x/00/x_0001 0 6 -RRB- -RRB- *)) - - - - * * *) -
nw/x/00/x_0001 0 7 /. . *)) - - - - * * * -

nw/x/00/x_0001 0 0 Yes UH (TOP(INTJ*)) - - - - * -

#end document
#begin document (nw/x/00/x_0001); part 001
nw/x/00/x_0001 1 0 report NN (TOP(NP*)) report 01 1 - * -

#end document
"""
PROPBANK = """\
g/d.xml 0 0 [WORD] PRP (TOP(S(NP*) - - (ARG0*) *
g/d.xml 0 1 [WORD] VBD (VP* give give_up.07 (V*) *
g/d.xml 0 2 [WORD] RP (PRT*) - - (C-V*) *
g/d.xml 0 3 [WORD] NN (NP*)) walk walk.01 (ARG1*) (V*)
g/d.xml 0 4 [WORD] , * - - * *
g/d.xml 0 5 [WORD] NN (NP*))) - - (C-ARG1*) (R-ARG0*)

g/d.xml 1 0 [WORD] UH (TOP(INTJ*)) - -
"""


def test_ontonotes(tmp_path):
    path = tmp_path / "x_0001.v4_gold_conll"
    path.write_text(ONTONOTES)
    first, second, third = read_conll2012(path)
    assert first.id == "nw/x/00/x_0001-0-0001"
    assert first.words == ("Ann", "wants", "to", "go", "(", "UN", ")", ".")
    assert first.tags == ("NNP", "VBZ", "TO", "VB", "-LRB-", "NNP", "-RRB-", ".")
    assert first.entities == (Span(0, 1, "PERSON"), Span(4, 6, "ORG"))
    assert str(first.tree) == (
        "(TOP (S (NP (NNP Ann)) (VP (VBZ wants) (S (VP (TO to) (VP (VB go)))) "
        "(PRN (-LRB- -LRB-) (NP (NNP UN)) (-RRB- -RRB-))) (. .)))"
    )
    assert first.frames == (
        Frame(1, "want.01", (Span(0, 1, "ARG0"), Span(2, 4, "ARG1"))),
        Frame(3, "go.02", (Span(0, 1, "ARG0"), Span(4, 7, "ARG4"))),
    )
    assert (second.frames, second.entities, second.id) == ((), (), "nw/x/00/x_0001-0-0002")
    # a frameset without a column of its own is not a frame
    assert (third.frames, third.id) == ((), "nw/x/00/x_0001-1-0001")
    assert all(sentence.arcs is None and sentence.upos is None for sentence in (first, second, third))


def test_a_file_without_tags_has_none(tmp_path):
    """As DKPro and WebAnno write it; a single `-` among other tags is a tag."""
    row = "d 0 {} {} {} - - - - - (PER) -\n"
    path = tmp_path / "x.gold_conll"
    path.write_text(row.format(0, "Ann", "-") + row.format(1, "left", "-"))
    assert read_conll2012(path)[0].tags is None
    path.write_text(row.format(0, "Ann", "NNP") + row.format(1, "-", "-"))
    assert read_conll2012(path)[0].tags == ("NNP", "-")


def test_propbank_skeleton(tmp_path):
    path = tmp_path / "d.xml.gold_skel"
    path.write_text(PROPBANK)
    first, second = read_conll2012(path)
    assert first.words == ("[WORD]",) * 6
    assert first.frames == (
        Frame(1, "give_up.07", (Span(0, 1, "ARG0"), Span(3, 4, "ARG1"), Span(5, 6, "C-ARG1"))),
        Frame(3, "walk.01", (Span(5, 6, "R-ARG0"),)),
    )
    assert first.entities is None
    assert (first.id, second.id, second.frames) == ("g/d.xml-0", "g/d.xml-1", ())


@pytest.mark.parametrize(
    ("text", "old", "new", "line", "what"),
    [
        (ONTONOTES, "(ARG4*", "(ARG4", 6, "not in start-end notation|never closed"),
        (ONTONOTES, "(PRN*", "*", 9, "never opened"),
        (ONTONOTES, " (0)", "", 3, "14 columns, where the sentence's first row has 13"),
        (ONTONOTES, "go 02", "go -", 5, "without a frameset"),
        (PROPBANK, "(TOP(INTJ*)) - -", "(TOP(INTJ*))", 8, "6 columns"),
        (PROPBANK, "(ARG1*)", "*)", 4, "never opened"),
        (PROPBANK, "(ARG1*)", "(V*)", 4, r"a second '\(V\*\)' in column 9"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, text, old, new, line, what):
    path = tmp_path / "a_gold_conll"
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=what) as error:
        read_conll2012(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
