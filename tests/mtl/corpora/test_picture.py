from __future__ import annotations

from mtl.corpora.annotated_text import sentence_picture
from mtl.corpora.formats.dependencies import to_conllu
from mtl.tasks.sentence import Arcs, Frame, Sentence, Span
from mtl.tasks.tree import Tree
from tests.mtl.corpora.sentences import LUNCH

PICTURE = """\
We/PRP ate/VBD cold/JJ [b]pizza[\\/b]/NN in/IN [LOC New/NNP York/NNP] ./.
dependencies
└── ate (2) root
    ├── We (1) nsubj
    ├── [b]pizza[/b] (4) obj
    │   └── cold (3) amod
    ├── York (7) obl:loc
    │   ├── in (5) case
    │   └── New (6) compound
    └── . (8) punct
constituents
└── TOP
    └── S
        ├── (NP (PRP We))
        ├── VP
        │   ├── (VBD ate)
        │   ├── (NP (JJ cold) (NN [b]pizza[/b]))
        │   └── PP
        │       ├── (IN in)
        │       └── (NP (NNP New) (NNP York))
        └── (. .)
frames
  eat.01 (2)  A0 = We  A1 = cold [b]pizza[/b]
  [b]pizza[/b] (4)
upos: PRON VERB ADJ NOUN ADP PROPN PROPN PUNCT
"""


def test_picture_of_five_layers() -> None:
    """Words that look like rich's markup are left as they are."""
    assert sentence_picture(LUNCH) == PICTURE


def test_universal_tags_take_the_place_of_tags() -> None:
    """A model that learns only universal tags (`pos.inventory=upos`) predicts no others."""
    assert sentence_picture(Sentence(("We", "ate"), upos=("PRON", "VERB"))) == "We/PRON ate/VERB\n"


def test_layers_not_annotated_are_left_out() -> None:
    words = ("Hello", "there")
    assert sentence_picture(Sentence(words)) == "Hello there\n"
    nothing = Sentence(words, tags=("UH", "RB"), entities=(), frames=())
    assert sentence_picture(nothing) == "Hello/UH there/RB\nentities: none\nframes: none\n"


def test_words_without_a_head_are_shown_apart() -> None:
    sentence = Sentence(("a", "b", "c"), arcs=Arcs((2, None, 0), ("x", "_", "root")))
    assert sentence_picture(sentence).split("\n")[2:] == [
        "├── without a head", "│   └── b (2) _", "│       └── a (1) x", "└── c (3) root", ""
    ]  # fmt: skip
    assert "root" in sentence._repr_html_()


def test_entities_within_entities() -> None:
    nested = (Span(0, 1, "LOC"), Span(0, 3, "ORG"), Span(2, 3, "PER"))
    words = ("Oslo", "University", "Nansen")
    assert sentence_picture(Sentence(words, entities=nested)) == "[ORG [LOC Oslo] University [PER Nansen]]\n"


def test_deep_trees_and_long_sentences_are_not_cut() -> None:
    words = tuple(f"w{number}" for number in range(300))
    chain = Arcs(tuple(range(300)), ("dep",) * 300)
    lines = sentence_picture(Sentence(words, arcs=chain)).splitlines()
    assert lines[0] == " ".join(words)
    assert len(lines) == 302
    assert lines[-1].endswith("└── w299 (300) dep")


def test_what_a_terminal_would_obey_is_shown() -> None:
    """Escape sequences, bells, line ends and changes of direction in words stay visible text."""
    words = ("\x1b[31mred", "a\x9bb", "\x07", "c\nd\u2028e", "\u202eevil")
    tree = Tree("TOP", tuple(Tree("X", word) for word in words))
    sentence = Sentence(
        words,
        tags=("X",) * 5,
        arcs=Arcs((0, 1, 1, 1, 1), ("root", *("dep",) * 4)),
        tree=tree,
        frames=(Frame(0, None, (Span(1, 5, "A0"),)),),
    )
    text = sentence_picture(sentence)
    assert not any(character in text for character in "\x1b\x9b\x07\u2028\u202e")
    assert len(text.splitlines()) == 1 + 6 + 2 + 2
    assert text.startswith(r"\x1b[31mred/X a\x9bb/X \x07/X c\nd\u2028e/X \u202eevil/X")


def test_a_slash_in_a_word_is_no_end_of_it() -> None:
    assert sentence_picture(Sentence(("1/2", "/"), tags=("CD", "SYM"))) == "1\\/2/CD \\//SYM\n"


def test_labels_of_whole_sentences_and_pairs_are_shown() -> None:
    sentence = Sentence(("Go", "!"), classify="order", cola="1")
    assert sentence_picture(sentence) == "Go !\ncola: 1\nclassify: order\n"
    assert "# classify = order" in to_conllu(sentence).splitlines()
    pair = Sentence(("Go", "!", "Move", "!"), stsb=4.126, second=2)
    assert sentence_picture(pair) == "Go !\nMove !\nstsb: 4.13\n"
    assert sentence_picture(pair.with_layers({"stsb": 4})).endswith("stsb: 4.00\n")
    assert {"# stsb = 4.126", "# second = 3"} <= set(to_conllu(pair).splitlines())
