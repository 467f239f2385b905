"""What is written is read back: the same sentences, from every format that this program writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mtl.corpora.formats.dependencies import SDP_HEADER, read_conllu, read_sdp, to_conllu, to_sdp
from mtl.corpora.formats.jsonl import read_jsonl, to_line, write_jsonl
from mtl.corpora.formats.phrase_structure import read_conll2005, to_props
from mtl.errors import InputError
from mtl.tasks.sentence import Arc, Arcs, Graph, Sentence
from mtl.tasks.tree import Tree
from tests.mtl.corpora.hostile import hostile_sentences


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


def test_json(folder: Path) -> None:
    sentences = hostile_sentences(1)
    write_jsonl(folder / "a.jsonl", sentences)
    assert read_jsonl(folder / "a.jsonl") == sentences


def test_conllu(folder: Path) -> None:
    """All layers, and the text if it differs from the words separated by blanks."""
    for sentence in hostile_sentences(2):
        path = folder / "a.conllu"
        path.write_bytes(to_conllu(sentence).encode() * 2)
        text = "" if sentence.text == " ".join(sentence.words) else sentence.text
        assert read_conllu(path) == [replace(sentence, text=text)] * 2


def test_sdp(folder: Path) -> None:
    """Tags, lemmas, senses, and graphs whose arcs from the root are labelled as the reader labels them."""
    written, graphs = [], 0
    for arcs in ([Arc(1, 1, "A")], [Arc(1, 0, "_")], [Arc(1, 0, "A"), Arc(1, 0, "B")]):
        with pytest.raises(InputError, match="sentence 'x' has arcs that its columns cannot hold: leave it"):
            to_sdp(Sentence(("a",), {"deps": Graph(tuple(arcs))}, id="x"))
    for sentence in hostile_sentences(3):
        graph: Graph | None = sentence.layer("deps")
        if graph is None:
            continue
        arcs = {(arc.dependent, arc.head): arc for arc in graph.arcs if arc.label != "_"}
        arcs = [arc._replace(label=arc.label if arc.head else "root") for arc in arcs.values()]
        graph = Graph(tuple(arc for arc in arcs if arc.dependent != arc.head))
        graphs += bool(graph.arcs)
        layers = {"tags": sentence.tags, "lemmas": sentence.upos, "deps": graph, "senses": sentence.upos}
        written.append(Sentence(sentence.words, layers, id=sentence.id))
    assert graphs > 30
    path = folder / "a.sdp"
    path.write_bytes(f"{SDP_HEADER}\n{''.join(map(to_sdp, written))}".encode())
    for sentence, read in zip(written, read_sdp(path), strict=True):
        blank = ("_",) * len(sentence)
        empty = {name: None for name in ("tags", "lemmas") if sentence.layer(name) == blank}
        assert read == sentence.with_layers({**empty, "senses": sentence.layer("senses") or blank})


@pytest.mark.parametrize("white", ["\n", "\r\n", "\t", "\x85", "\x1f"])
def test_the_lines_of_a_text_become_one(folder: Path, white: str) -> None:
    sentence = Sentence(("It", "'s", "on", "."), text=f"It's{white}on.{white}", id="1")
    (folder / "t.conllu").write_text(to_conllu(sentence))
    [read] = read_conllu(folder / "t.conllu")
    assert read == replace(sentence, text="It's on.")


def test_pairs(folder: Path) -> None:
    pair = Sentence(("a", "b", "c"), second=2, stsb=3.0, id="1")
    (folder / "p.conllu").write_text(to_conllu(pair))
    assert read_conllu(folder / "p.conllu") == [pair]
    (folder / "p.jsonl").write_text(to_line(pair))
    assert read_jsonl(folder / "p.jsonl") == [pair]


@pytest.mark.parametrize("name", ["my intent", "a=b", " a", '"x" = y', "a\u2028b", "\\", 'a\\"', "#", "é"])
def test_layers_with_odd_names(folder: Path, name: str) -> None:
    for value in ("order", 1.5, ("x", "y")):
        sentence = Sentence(("a", "b"), {name: value}, id="1")
        (folder / "n.conllu").write_text(to_conllu(sentence))
        (folder / "n.jsonl").write_text(to_line(sentence))
        assert read_conllu(folder / "n.conllu") == read_jsonl(folder / "n.jsonl") == [sentence]


@pytest.mark.parametrize(
    "label", ["", "2", "-1e3", "a b", " a ", '"', '"a"', "a\tb", "a\nb\r", "_", "\u2028", "nan"]
)
def test_labels_of_sentences_with_odd_texts(folder: Path, label: str) -> None:
    """A translation may be any text, and a class may look like a number."""
    sentence = Sentence(("a", "b"), {"translate": label, "intent": label}, id="1")
    (folder / "n.conllu").write_text(to_conllu(sentence))
    (folder / "n.jsonl").write_text(to_line(sentence))
    assert read_conllu(folder / "n.conllu") == read_jsonl(folder / "n.jsonl") == [sentence]


def test_a_name_with_a_quote_is_read_as_older_files_have_it(folder: Path) -> None:
    sentence = Sentence(("a", "b"), {'a"b': "order"}, id="1")
    (folder / "n.conllu").write_text(to_conllu(sentence).replace(r'"a\"b"', 'a"b'))
    assert '# label a"b = order' in (folder / "n.conllu").read_text()
    assert read_conllu(folder / "n.conllu") == [sentence]


def test_a_tree_with_a_level_per_word(folder: Path) -> None:
    """An undertrained decoder predicts such trees."""
    words = tuple("w" for _ in range(300))
    tree = Tree("NN", "w")
    for _ in words[1:]:
        tree = Tree("S", (Tree("NN", "w"), tree))
    sentence = Sentence(words, tree=Tree("TOP", (tree,)), id="1")
    (folder / "d.jsonl").write_text(to_line(sentence))
    (folder / "d.conllu").write_text(to_conllu(sentence))
    for [read] in (read_jsonl(folder / "d.jsonl"), read_conllu(folder / "d.conllu")):
        assert str(read.tree) == str(sentence.tree)


def test_props(folder: Path) -> None:
    """Frames in CoNLL-2005's notation, with the words in a file beside them."""
    for sentence in hostile_sentences(6):
        frames = tuple(
            replace(frame, sense=None)
            for frame in sorted(sentence.frames or (), key=lambda frame: frame.predicate)
        )
        path = folder / "a.props"
        path.write_bytes(to_props(replace(sentence, frames=frames)).encode())
        path.with_suffix(".words").write_bytes(("w\n" * len(sentence) + "\n").encode())
        assert read_conll2005(path)[0].frames == frames


def test_the_validator_of_universal_dependencies_accepts_what_is_written(folder: Path) -> None:
    """Levels 1 and 2 of the validator: ids, text, SpaceAfter, columns and trees."""
    validator = pytest.importorskip("udtools").Validator
    path = folder / "v.conllu"
    words = (
        "a",
        "Bob",
        "_",
        "#",
        "#a=b",
        "-DOCSTART-",
        "(",
        "-LRB-",
        "10 000",
        "|",
        "\\",
        "%28",
        "1-2",
        "é",
        "😀",
    )
    sentences = [
        replace(
            sentence,
            upos=("X",) * len(sentence),
            arcs=Arcs(sentence.arcs.heads, ("root", *["obl:arg"] * (len(sentence) - 1))),
            tags=None,
            deps=None,
            feats=("_", *["Number=Sing|Case=Nom"] * (len(sentence) - 1)),
            lemmas=tuple(word.lower() for word in sentence.words),
        )
        for sentence in hostile_sentences(7, words=words)
        if sentence.arcs is not None
    ]
    path.write_text("".join(map(to_conllu, sentences)), encoding="utf-8")
    state = validator(level=2, output=None).validate_files([str(path)])
    assert state.passed(), str(state)
    assert len(sentences) > 50
