"""Graphs of SemEval 2014 and 2015: read as they were written, or refused with the line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mtl.corpora.formats.dependencies import read_conllu, read_sdp, to_conllu, to_sdp
from mtl.errors import InputError
from mtl.tasks.sentence import Arc, Graph, Sentence

ROWS_2015 = """\
#SDP 2015
#22000001
1	The	the	DT	-	+	q:i-h-h	_	_	_
2	boy	boy	NN	-	-	n:x	BV	ARG1	ARG1
3	wants	want	VBZ	+	+	v:e-i-h	_	_	_
4	to	to	TO	-	-	_	_	_	_
5	sleep	sleep	VB	-	+	v:e-i	_	ARG2	_

#22000002
1	10 000	10 000	CD	-	-	_
"""
GRAPH = Graph((Arc(2, 1, "BV"), Arc(2, 3, "ARG1"), Arc(2, 5, "ARG1"), Arc(3, 0, "root"), Arc(5, 3, "ARG2")))


def test_both_years_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.sdp"
    path.write_text(ROWS_2015)
    first, second = read_sdp(path)
    assert first.words == ("The", "boy", "wants", "to", "sleep")
    assert (first.tags, first.layer("lemmas")) == (
        ("DT", "NN", "VBZ", "TO", "VB"),
        ("the", "boy", "want", "to", "sleep"),
    )
    assert first.layer("deps") == GRAPH
    assert first.layer("senses") == ("q:i-h-h", "n:x", "v:e-i-h", "_", "v:e-i")
    assert (first.id, first.place) == ("22000001", f"{path}:3")
    assert (second.words, second.layer("deps")) == (("10 000",), Graph(()))
    # 2014: no line at the beginning, and no column of frames.
    rows = [line.split("\t") for line in ROWS_2015.splitlines()[1:]]
    path.write_text("".join("\t".join(row[:6] + row[7:]) + "\n" for row in rows))
    older = [first.with_layers({"senses": None}), second.with_layers({"senses": None})]
    assert read_sdp(path) == older
    # CoNLL-U holds the graph, too.
    path = tmp_path / "a.conllu"
    path.write_text("".join(map(to_conllu, older)))
    assert [each.layer("deps") for each in read_conllu(path)] == [GRAPH, Graph(())]


def by_matrix(sentence: Sentence) -> str:
    """The columns of 2015, written from a table of all pairs as SemEval's own GraphWriter2015 does."""
    size = len(sentence) + 1
    label = [["_"] * size for _ in range(size)]
    for dependent, head, name in sentence.layer("deps").arcs:
        label[head][dependent] = name
    heads = [head for head in range(1, size) if set(label[head]) != {"_"}]
    lines = [f"#{sentence.id}"]
    for word in range(1, size):
        top, predicate = "-+"[label[0][word] != "_"], "-+"[word in heads]
        lemma, tag, sense = (sentence.layer(name)[word - 1] for name in ("lemmas", "tags", "senses"))
        row = [str(word), sentence.words[word - 1], lemma, tag, top, predicate, sense]
        lines.append("\t".join(row + [label[head][word] for head in heads]))
    return "".join(f"{line}\n" for line in [*lines, ""])


def test_graphs_are_written_as_by_another_writer(tmp_path: Path) -> None:
    rng = random.Random(5)
    sentences = []
    for number in range(100):
        words = tuple(rng.choice(("a", "b c", "#", "_", "é")) for _ in range(rng.randint(1, 9)))
        pairs = [(word, head) for word in range(1, len(words) + 1) for head in range(len(words) + 1)]
        chosen = [pair for pair in pairs if pair[0] != pair[1] and rng.random() < 0.2]
        arcs = [Arc(word, head, rng.choice(("ARG1", "BV", ".")) if head else "root") for word, head in chosen]
        column = {name: tuple(rng.choices("xyz_", k=len(words))) for name in ("lemmas", "tags", "senses")}
        sentences.append(Sentence(words, {**column, "deps": Graph(tuple(arcs))}, id=f"{22000001 + number}"))
    written = [to_sdp(sentence) for sentence in sentences]
    assert written == [by_matrix(sentence) for sentence in sentences]
    path = tmp_path / "a.sdp"
    path.write_text("#SDP 2015\n" + "".join(written))
    assert [(read.id, read.words, read.layer("deps")) for read in read_sdp(path)] == [
        (sentence.id, sentence.words, sentence.layer("deps")) for sentence in sentences
    ]
    path.write_text(ROWS_2015)
    assert "".join(["#SDP 2015\n", *map(to_sdp, read_sdp(path))]).strip() == ROWS_2015.strip()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("3\twants", "4\twants", "5: word number '4' where 3 is expected; put a blank line"),
        ("VBZ\t+\t+", "VBZ\tx\t+", "5: TOP is 'x'; write + or -"),
        ("VBZ\t+\t+", "VBZ\t+\t-", "3: 3 columns of arguments and 2 predicates"),
        ("\tBV\tARG1\tARG1", "\tBV\tARG1", "4: 9 columns, where the sentence's first row has 10"),
        ("\t_\tARG2\t_", "\t_\tARG2\tx y", "white space"),
        ("#SDP 2015\n", "#SDP 2014\n", None),
        ("\t-\t-\t_\n", "\t-\n", "10: 5 columns; SDP 2015 has 7 and one for each predicate"),
        ("\t_\tARG2\t_", "\t_\tARG2\tARG3", "5 another head"),
    ],
)
def test_faults_are_named(tmp_path: Path, old: str, new: str, message: str | None) -> None:
    path = tmp_path / "a.sdp"
    assert old in ROWS_2015
    path.write_text(ROWS_2015.replace(old, new))
    if message is None:  # the columns say which year it is
        assert read_sdp(path)[0].layer("deps") == GRAPH
        return
    with pytest.raises(InputError, match=r"a\.sdp:\d+: ") as error:
        read_sdp(path)
    assert message in str(error.value)
