""""""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mtl.corpora.formats.dependencies import read_conllu
from mtl.corpora.scorers import export_for_scorers
from mtl.errors import InputError
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence import Arc, Arcs, Frame, Graph, Sentence, Span
from mtl.tasks.structured import Graphs, Pos, Tags
from mtl.tasks.task import Task, instance
from mtl.tasks.tree import Tree

FIVE = ("pos", "ner", "dep", "con", "srl")


def tasks(*names: str) -> list[Task]:
    return [TASKS[name]() for name in names]


GOLD = Sentence(
    words=("Mary (", "gave", "Bob Lee", "-"),
    tags=("NNP", "VBD", "NNP", ":"),
    upos=("PROPN", "VERB", "PROPN", "PUNCT"),
    entities=(Span(0, 1, "PER"), Span(2, 3, "PER")),
    arcs=Arcs((2, 0, 2, 2), ("nsubj", "root", "obj", "punct")),
    tree=Tree.parse("(TOP (S (NP (NNP a)) (VP (VBD b) (NP (NNP c))) (: d)))"),
    frames=(Frame(1, "give.01", (Span(0, 1, "ARG0"), Span(2, 3, "ARG2"))),),
    id="one",
)
PREDICTED = replace(
    GOLD,
    tags=("NN", "VBD", "NNP", "."),
    entities=(Span(0, 2, "ORG"),),
    arcs=Arcs((2, 0, 1, 2), ("nsubj", "root", "obj", "dep")),
    tree=Tree.parse("(TOP (NP (X a) (Y b) (X c) (Z d)))"),
    frames=(
        Frame(3, None, (Span(0, 2, "ARG1"), Span(2, 3, "C-ARG1"))),
        Frame(1, "x.01", (Span(1, 3, "ARG0"),)),
    ),
)


def test_formats(tmp_path):
    paths = export_for_scorers([GOLD], [PREDICTED], tmp_path / "new", tasks(*FIVE)).paths
    texts = {path.name: path.read_text() for path in paths}
    assert texts == {
        "pos.tsv": "Mary_(\tNNP\tNN\ngave\tVBD\tVBD\nBob_Lee\tNNP\tNNP\n-\t:\t.\n\n",
        "ner.conll": "Mary_( B-PER B-ORG\ngave O I-ORG\nBob_Lee B-PER O\n- O O\n\n",
        "dep.gold.conllu": (
            "# sent_id = one\n"
            "# text = Mary_( gave Bob_Lee -\n"
            "1\tMary_(\t_\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n"
            "2\tgave\t_\tVERB\tVBD\t_\t0\troot\t_\t_\n"
            "3\tBob_Lee\t_\tPROPN\tNNP\t_\t2\tobj\t_\t_\n"
            "4\t-\t_\tPUNCT\t:\t_\t2\tpunct\t_\t_\n\n"
        ),
        "dep.pred.conllu": (
            "# sent_id = one\n"
            "# text = Mary_( gave Bob_Lee -\n"
            "1\tMary_(\t_\tPROPN\tNN\t_\t2\tnsubj\t_\t_\n"
            "2\tgave\t_\tVERB\tVBD\t_\t0\troot\t_\t_\n"
            "3\tBob_Lee\t_\tPROPN\tNNP\t_\t1\tobj\t_\t_\n"
            "4\t-\t_\tPUNCT\t.\t_\t2\tdep\t_\t_\n\n"
        ),
        "ud.gold.conllu": (
            "# sent_id = one\n"
            "# text = Mary_( gave Bob_Lee -\n"
            "1\tMary_(\t_\t_\tNNP\t_\t2\tnsubj\t_\t_\n"
            "2\tgave\t_\t_\tVBD\t_\t0\troot\t_\t_\n"
            "3\tBob_Lee\t_\t_\tNNP\t_\t2\tobj\t_\t_\n"
            "4\t-\t_\t_\t:\t_\t2\tpunct\t_\t_\n\n"
        ),
        "ud.pred.conllu": (
            "# sent_id = one\n"
            "# text = Mary_( gave Bob_Lee -\n"
            "1\tMary_(\t_\t_\tNN\t_\t2\tnsubj\t_\t_\n"
            "2\tgave\t_\t_\tVBD\t_\t0\troot\t_\t_\n"
            "3\tBob_Lee\t_\t_\tNNP\t_\t1\tobj\t_\t_\n"
            "4\t-\t_\t_\t.\t_\t2\tdep\t_\t_\n\n"
        ),
        "con.gold.mrg": "(TOP (S (NP (NNP Mary_-LRB-)) (VP (VBD gave) (NP (NNP Bob_Lee))) (: -)))\n",
        "con.pred.mrg": "(TOP (NP (NNP Mary_-LRB-) (VBD gave) (NNP Bob_Lee) (: -)))\n",
        # The predicate that only the prediction has is in the gold without arguments.
        "srl.gold.props": "- (ARG0*) *\ngave (V*) *\n- (ARG2*) *\n_ * (V*)\n\n",
        # No V within an argument.
        "srl.pred.props": "- * (ARG1*\ngave (ARG0* *)\n- *) (C-ARG1*)\n_ * (V*)\n\n",
    }


def test_only_annotated_sentences_are_written(tmp_path):
    bare = Sentence(words=("Hm",), tags=("UH",))
    paths = export_for_scorers(
        [bare, GOLD], [replace(PREDICTED, words=("Hm",), tags=("NN",)), PREDICTED], tmp_path, tasks(*FIVE)
    ).paths
    lines = {path.name: path.read_text().split("\n\n") for path in paths}
    assert len(lines["pos.tsv"]) == 3
    assert len(lines["ner.conll"]) == len(lines["dep.gold.conllu"]) == len(lines["srl.pred.props"]) == 2
    assert (
        export_for_scorers([bare], [bare], tmp_path / "none", tasks("ner", "dep", "con", "srl")).paths == ()
    )
    (tmp_path / "mine.txt").touch()
    export_for_scorers([bare], [bare], tmp_path, tasks("ner", "dep", "con", "srl"))
    assert {path.name for path in tmp_path.iterdir()} == {"pos.tsv", "mine.txt"}  # none of an earlier export


def test_empty_layers_are_annotated(tmp_path):
    empty = replace(GOLD, entities=(), frames=())
    paths = export_for_scorers([empty], [empty], tmp_path, tasks("ner", "srl")).paths
    assert paths[0].read_text().splitlines()[0] == "Mary_( O O"
    assert paths[1].read_text() == "-\n-\n-\n-\n\n"


def test_no_word_breaks_a_file(tmp_path):
    words = ("-X-", "#", "", "\u00a0", "a\tb\nc\u2028d", "()", "x" * 300, "é" * 80, "\x00")
    size = len(words)
    sentence = Sentence(
        words,
        tags=("NN",) * size,
        entities=(),
        arcs=Arcs((0, *[1] * (size - 1)), ("root", *["dep"] * (size - 1))),
        tree=Tree("TOP", tuple(Tree("NN", word) for word in words)),
        frames=tuple(Frame(index, None, ()) for index in range(size)),
    )
    for path in export_for_scorers([sentence], [sentence], tmp_path, tasks(*FIVE)).paths:
        text = path.read_text()
        if path.suffix == ".mrg":
            assert [leaf.label for leaf in Tree.parse(text).leaves()] == ["NN"] * size
            assert max(len(word.encode()) for word in text.split()) < 100
            continue
        rows = [line for line in text.split("\n") if line and not line.startswith("# text")]
        assert len(rows) == size
        # The number of columns is right for any notion of white space.
        columns = {".tsv": 3, ".conll": 3, ".conllu": 10, ".props": 1 + size}[path.suffix]
        assert {len(row.split()) for row in rows} == {columns}
        assert not any(row.startswith("-X- ") for row in rows)


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("ner", {"entities": None}, "no entities"),
        ("con", {"tree": Tree.parse("(TOP (A a) (B b))")}, "does not span"),
        ("con", {"tree": Tree.parse("(TOP (A a) (B b) (C c) (D d) (E e))")}, "more words"),
        ("pos", {"words": ("a", "b", "c", "d")}, "different words"),
    ],
)
def test_what_cannot_be_written_is_an_error(tmp_path, task, changes, message):
    with pytest.raises(InputError, match=message):
        export_for_scorers([GOLD], [replace(PREDICTED, **changes)], tmp_path, tasks(task))


def test_a_layer_without_a_scorer_is_an_error(tmp_path):
    class Words(Pos):
        layer = "words"

    with pytest.raises(InputError, match="no official scorer reads words"):
        export_for_scorers([GOLD], [PREDICTED], tmp_path, [Words()])


def test_universal_tags_are_written_if_they_are_learnt(tmp_path):
    path, *_ = export_for_scorers(
        [GOLD], [replace(PREDICTED, upos=("X",) * 4)], tmp_path, [Pos("upos")]
    ).paths
    assert path.read_text().splitlines()[1] == "gave\tVERB\tX"


def test_unequal_numbers_of_sentences(tmp_path):
    with pytest.raises(InputError, match="2 gold sentences but 1"):
        export_for_scorers([GOLD, GOLD], [PREDICTED], tmp_path, tasks(*FIVE))
    with pytest.raises(InputError, match="no words"):
        export_for_scorers([Sentence((), tags=())], [Sentence((), tags=())], tmp_path, tasks(*FIVE))


def test_what_a_format_cannot_hold_is_left_out_and_counted(tmp_path):
    """What training leaves out is also left out of the files, and the files of later tasks are written."""
    crossing = replace(
        GOLD,
        entities=(Span(1, 2, "ORG"), Span(0, 3, "PER"), Span(0, 3, "PER"), Span(3, 4, "LOC")),
        frames=(
            Frame(1, "give.01", (Span(2, 4, "B"), Span(1, 3, "A"), Span(1, 2, "V"), Span(0, 1, "C"))),
            Frame(1, "give.02", (Span(0, 1, "D"),)),
            Frame(3, None, (Span(3, 4, "E"),)),
        ),
    )
    exported = export_for_scorers([crossing], [PREDICTED], tmp_path, tasks(*FIVE))
    assert exported.left_out == {
        "overlapping entities in gold": 2,
        "second frames of a predicate in gold": 1,
        "overlapping arguments in gold": 1,
    }
    assert len(exported.paths) == 10
    gold = [line.split()[1] for line in (tmp_path / "ner.conll").read_text().splitlines() if line]
    assert gold == ["B-PER", "I-PER", "I-PER", "B-LOC"]
    assert (tmp_path / "srl.gold.props").read_text() == "- (C*) *\ngave (A* *\n- *) *\n_ * (E*)\n\n"


def test_a_bracket_as_a_tag_does_not_break_the_tree(tmp_path):
    """STTS has the tag `$(`."""
    tree = Tree("TOP", (Tree("$(", "("), Tree("NN", "b")))
    sentence = Sentence(("(", "b"), tree=tree)
    export_for_scorers([sentence], [sentence], tmp_path, tasks("con"))
    assert (tmp_path / "con.gold.mrg").read_text() == "(TOP ($%28 -LRB-) (NN b))\n"


def test_placeholders_for_a_tree_are_not_read_back_as_one(tmp_path: Path) -> None:
    """Files with tags or graphs alone have arcs only because their scorers need some."""
    gold = [Sentence(("We", "ate"), upos=("X", "Y"), deps=Graph((Arc(1, 2, "a"), Arc(2, 0, "root"))))]
    tasks = [instance("upos", Tags, "upos")(), instance("deps", Graphs, "deps")()]
    for task in tasks:
        export_for_scorers(gold, gold, tmp_path / task.name, [task])
    read = [read_conllu(path) for path in sorted(tmp_path.glob("*/*.conllu"))]
    assert len(read) == 4
    assert all(sentence.arcs is None for [sentence] in read)


def test_files_for_semevals_scorer_have_the_tags_and_only_the_senses_of_the_gold(tmp_path: Path) -> None:
    layers = {"tags": ("PRP", "VBD"), "senses": ("_", "v:e"), "lemmas": ("we", "eat")}
    twice = Graph((Arc(1, 2, "a"), Arc(1, 2, "b")))
    gold = [
        Sentence(
            ("We", "ate"), {**layers, "deps": Graph((Arc(1, 2, "a"), Arc(2, 0, "root")))}, id="22000001"
        ),
        Sentence(("We", "ate"), {**layers, "deps": twice}, id="22000002"),
    ]
    found = Sentence(("We", "ate"), {"deps": Graph((Arc(1, 0, "root"), Arc(2, 1, "a")))}, id="22000001")
    task = instance("deps", Graphs, "deps")()
    exported = export_for_scorers(gold, [found, replace(found, id="22000002")], tmp_path, [task])
    [(what, number)] = exported.left_out.items()
    assert what.startswith(
        "sentences of deps.*.sdp, with two labels for two words, an arc from a word to its"
    )
    assert number == 1
    assert (tmp_path / "deps.gold.sdp").read_text() == (
        "#SDP 2015\n#22000001\n1\tWe\twe\tPRP\t-\t-\t_\ta\n2\tate\teat\tVBD\t+\t+\tv:e\t_\n\n"
    )
    assert (tmp_path / "deps.pred.sdp").read_text() == (
        "#SDP 2015\n#22000001\n1\tWe\twe\tPRP\t+\t+\t_\t_\n2\tate\teat\tVBD\t-\t-\t_\ta\n\n"
    )
    assert len(read_conllu(tmp_path / "deps.gold.conllu")) == 2
    export_for_scorers(gold[1:], [found], tmp_path, [task])
    assert not [*tmp_path.glob("*.sdp")]  # none of an earlier export
