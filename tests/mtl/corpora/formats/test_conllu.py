from __future__ import annotations

from itertools import product

import pytest

from mtl.corpora.formats.conllu import cycle, read_conllu
from mtl.errors import InputError
from tasks.sentence import Arcs, Sentence

TEXT = """\
# newdoc id = d
# sent_id = d-1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\tVV\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tPP\t_\t1\tobj\t_\t_
2.1\tvamos\tir\tVERB\tVV\t_\t_\t_\t1:conj\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\tIN\t_\t5\tcase\t_\t_
4\tel\tel\tDET\tDT\t_\t5\tdet\t_\t_
5\tmar mayor\tmar\tNOUN\tNN\t_\t1\tobl:arg\t_\t_

1\t#\t#\tSYM\t_\t_\t_\t_\t_\t_
"""


def test_words_tags_and_arcs(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(TEXT)
    first, second = read_conllu(path)
    assert first == Sentence(
        words=("vamos", "nos", "a", "el", "mar mayor"),
        tags=("VV", "PP", "IN", "DT", "NN"),
        upos=("VERB", "PRON", "ADP", "DET", "NOUN"),
        arcs=Arcs((0, 1, 5, 5, 1), ("root", "obj", "case", "det", "obl:arg")),
        id="d-1",
    )
    assert second == Sentence(words=("#",), tags=None, upos=("SYM",), arcs=None, id="a-0002")
    assert read_conllu(path, column="upos")[0].tags == first.upos


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("\tobj\t_\t_\n", "\tobj\t_\n", 6, "9 columns"),
        ("2\tnos", "3\tnos", 6, "word id '3' where 2 is due"),
        ("\t5\tcase", "\t6\tcase", 9, "head '6'"),
        ("\t5\tcase", "\tfive\tcase", 9, "head 'five'"),
        ("\t5\tcase", "\t-1\tcase", 9, "head '-1'"),
        ("VV\t_\t0\troot", "VV\t_\t2\troot", 5, "cycle"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, old, new, line, what):
    path = tmp_path / "a.conllu"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_conllu(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert what in str(error.value)


def test_cycles_against_following_every_word():
    for n in (1, 2, 3, 4):
        for heads in product(range(n + 1), repeat=n):

            def stays(word: int, heads: tuple[int, ...] = heads) -> bool:
                for _ in range(len(heads)):
                    word = heads[word - 1] if word else 0
                return word != 0

            found = cycle(list(heads))
            assert (found is not None) == any(stays(word) for word in range(1, n + 1))
            if found is not None:
                word, seen = heads[found], []
                while word not in seen:
                    seen.append(word)
                    word = heads[word - 1]
                assert found + 1 in seen
