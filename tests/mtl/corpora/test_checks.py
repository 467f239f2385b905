"""Every check finds its case, and nothing in a corpus without faults."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mtl.config.schema import CorpusConfig, Files
from mtl.corpora.checks import CHECKS, CorpusCheck, notes_on, refuse_shared_files, seen_in
from mtl.corpora.folder import convert_corpus
from mtl.corpora.formats.conll2003 import OtherColumn
from mtl.corpora.load import load_split, refuse_files_of_two_splits
from mtl.corpora.readers import BY_ORDER, MASKED, merge, read_sentences, with_real_words
from mtl.corpora.toy.corpus import toy_corpus
from mtl.errors import InputError
from mtl.tasks.catalogue import STRUCTURED, TASKS
from mtl.tasks.sentence import Arcs, Frame, Sentence, Span
from mtl.tasks.structured import Pos
from mtl.tasks.task import Labels
from mtl.tasks.tree import Tree

ALL = {name: kind() for name, kind in TASKS.items()}
WORDS = ("We", "ate")
TREE = Tree.parse("(TOP (S (NP (PRP We)) (VP (VBD ate))))")
FULL = Sentence(
    WORDS,
    tags=("PRP", "VBD"),
    upos=("PRON", "VERB"),
    entities=(Span(0, 1, "PER"),),
    arcs=Arcs((2, 0), ("nsubj", "root")),
    tree=TREE,
    frames=(Frame(1, None, (Span(0, 1, "A0"),)),),
    cola="1",
    id="full",
)
OTHER = replace(FULL, words=("They", "sat"), id="other")
NOTED = replace(OTHER, notes=("tag repaired", "tag repaired"), place="a.conll:7")


class Copied(Pos):
    """A task that finds a tag odd that is its word."""

    def is_odd(self, sentence: Sentence) -> bool:
        return sentence.tags == sentence.words


def refuse_words(sentences: Sequence[Sentence]) -> None:
    assert list(with_real_words("x", sentences)) == sentences


LOOKS = {
    "_no_label": CorpusCheck({"train": [replace(FULL, entities=())]}, ALL),
    "_reader_notes": CorpusCheck({"train": [FULL, NOTED]}, ALL),
    "_empty_layer": CorpusCheck({"train": [FULL], "dev": [replace(OTHER, frames=())]}, ALL),
    "_masked_words": CorpusCheck({"train": [FULL, replace(FULL, words=("_", "ate"))]}, ALL),
    "_odd_annotations": CorpusCheck(
        {"train": [Sentence(WORDS, tags=tags, id=tags[0]) for tags in (("We", "ate"), ("A", "B"))]},
        {"copied": Copied()},
    ),
    "_labels_left_blank": CorpusCheck(
        {"train": [FULL], "dev": [replace(OTHER, arcs=Arcs((2, 0), ("_", "root")))]}, ALL
    ),
    "_one_label": CorpusCheck({"train": [replace(FULL, tags=("X", "X"))]}, ALL),
    "_split_in_split": CorpusCheck({"train": [FULL], "dev": [OTHER, FULL]}, ALL),
    "_unseen_labels": CorpusCheck({"train": [FULL], "test": [replace(OTHER, tags=("PRP", "NN"))]}, ALL),
    "_not_represented": CorpusCheck(
        {"dev": [replace(FULL, entities=(Span(0, 1, "A"), Span(0, 2, "B")))]}, ALL
    ),
}
LINES = {
    "_no_label": "ner: no entity in 1 annotated sentence of train, from full on",
    "_reader_notes": "train: tag repaired: 2 (the first, a.conll:7)",
    "_empty_layer": "dev: srl: no frame in 1 annotated sentence",
    "_masked_words": "train: 1 of 4 words are '_'",
    "_odd_annotations": "train: 1 of 2 sentences is odd (the first, We)",
    "_labels_left_blank": "dev: dep: 1 of 2 labels are '_'",
    "_one_label": "train: pos: all 2 labels are 'X'",
    "_split_in_split": "dev: 1 of 2 sentences in train, too (the first, full)",
    "_unseen_labels": "test: pos: 1 of 2 labels are ones that training never saw (NN 1)",
    "_not_represented": "dev: ner: 1 item cannot be represented: counted as missed",
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.look.__name__)
def test_each_check_finds_its_case(check) -> None:
    name = check.look.__name__
    found = [*check.look(LOOKS[name])]
    assert len(found) == 1
    assert found[0].startswith(LINES[name])
    if check.refuses:
        with pytest.raises(InputError, match=LINES[name]):
            notes_on(LOOKS[name])
    else:
        assert found[0] in notes_on(LOOKS[name])


def test_a_corpus_without_faults_has_no_notes() -> None:
    sentences = list({sentence.words: sentence for sentence in toy_corpus(60, seed=1)}.values())
    tasks = {kind.name: kind() for kind in STRUCTURED}
    assert notes_on(CorpusCheck({"train": sentences[:50]}, tasks)) == []
    assert notes_on(CorpusCheck({"train": [FULL], "dev": [OTHER]}, ALL)) == []


@pytest.mark.parametrize("kind", STRUCTURED, ids=lambda kind: kind.name)
def test_a_layer_without_a_label_is_refused_for_every_task(kind) -> None:
    empty = {"tags": ("_", "_"), "entities": (), "frames": (), "tree": Tree("TOP", tuple(TREE.leaves()))}
    layer = kind().layer
    look = CorpusCheck(
        {"train": [replace(FULL, **{layer: empty[layer]})]} if layer in empty else {"train": []}, ALL
    )
    if layer in empty:
        with pytest.raises(InputError, match=f"{kind.name}: no "):
            notes_on(look)
    else:  # a label per word: no sentence is without
        assert sum(kind().items(FULL).values()) > 0


@pytest.mark.parametrize("layer", ["tags", "entities", "arcs", "tree", "frames", "cola"])
def test_labels_that_the_model_lacks_are_named_in_every_layer(layer: str) -> None:
    changed = {
        "tags": ("XX", "VBD"),
        "entities": (Span(0, 1, "XX"),),
        "arcs": Arcs((2, 0), ("XX", "root")),
        "tree": Tree.parse("(TOP (S (XX (PRP We)) (VP (VBD ate))))"),
        "frames": (Frame(1, None, (Span(0, 1, "XX"),)),),
        "cola": "0",
    }
    known = {name: task.labels([FULL]) for name, task in ALL.items() if name not in ("control", "cola")}
    known |= {"control": Labels(()), "cola": Labels(["1"])}
    dev = [replace(FULL, **{layer: changed[layer]})]
    lines = notes_on(CorpusCheck({"dev": dev}, ALL, known))
    assert len(lines) == 1
    assert "1 of " in lines[0]
    assert ("(0 1)" if layer == "cola" else "(XX 1)") in lines[0]
    assert any(
        "training never saw" in line for line in notes_on(CorpusCheck({"train": [FULL], "dev": dev}, ALL))
    )


@pytest.mark.parametrize(
    "spelled",
    ["{1}", "{1}.", "{1:03}", "{0}-{1}", "{0}:{1})", "{1}.0", "{0}.{1}", "#{1}", "[{1}]", "{1}-{1}9"],
)
@pytest.mark.parametrize("start", [0, 1, 7])
@pytest.mark.parametrize("step", [1, 3])
def test_words_that_number_themselves_are_refused(start: int, step: int, spelled: str) -> None:
    numbered = [
        Sentence(tuple(spelled.format(n, start + step * place) for place in range(n))) for n in (1, 4, 2)
    ]
    with pytest.raises(InputError, match="does the first column number the words"):
        refuse_words(numbered)
    odd = [Sentence(("1-2", "1", "2", "3")), Sentence(("1", "1.1", "2")), Sentence(("1", "2nd"))]
    with pytest.raises(InputError, match="does the first column number the words"):
        refuse_words([*numbered, *odd])
    refuse_words([*numbered, *[Sentence(("3", "apples")), Sentence(("2", "1"))]])
    refuse_words([Sentence(("1",)), Sentence(("7",)), Sentence(("w1", "w2"))])


def test_words_that_all_name_their_language_are_refused() -> None:
    with pytest.raises(InputError, match="every word begins with 'en:'"):
        refuse_words([Sentence(("en:We", "en:ate")), Sentence(("en:Go",))])
    refuse_words([Sentence(("en:We", "en:ate")), Sentence(("de:Go",))])
    refuse_words([Sentence(("We", "ate")), Sentence(("Go",))])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (("doc1",) * 3, ("doc2",) * 2, "every sentence repeats one word, such as 'doc1'"),
        (("-", "-"), ("-", "-", "-"), "every sentence repeats one word, such as '-'"),
        (("0=We", "1=ate"), ("1=sat", "0=They"), "every word begins with a number, as '0=We'"),
        (("PRP", "VBD"), ("NN", "VBZ"), "every word is its own tag, such as 'PRP'"),
    ],
)
def test_words_that_are_something_else_are_refused(first, second, message) -> None:
    tagged = [Sentence(words, tags=words if "PRP" in first else None) for words in (first, second)]
    with pytest.raises(InputError, match=message):
        refuse_words(tagged)
    refuse_words(tagged[:1])
    refuse_words([*tagged, FULL])


@pytest.mark.parametrize("mask", ["_", "[WORD]"])
def test_masked_words_are_refused_counted_and_never_joined(mask: str) -> None:
    masked = Sentence((mask,) * 3, tags=("A", "B", "C"))
    with pytest.raises(InputError, match=r"x: 3 of 5 words are"):
        refuse_words([masked, Sentence(WORDS)])
    refuse_words([masked, Sentence(WORDS), Sentence(WORDS)])
    merged = merge([[masked, FULL], [replace(masked, tags=None, entities=()), OTHER]])
    assert [sentence.notes for sentence in merged] == [(MASKED,), (), (MASKED,), ()]
    assert [sentence.entities for sentence in merged[:3:2]] == [None, ()]


def test_an_underscore_may_be_a_word() -> None:
    words = ("a", "_", "b")
    (joined,) = merge([[Sentence(words, tags=("A", "B", "C"))], [Sentence(words, entities=())]])
    assert joined.entities == ()


def test_repeated_sentences_join_by_id_and_else_by_order_with_a_note() -> None:
    first = [Sentence(WORDS, tags=("A", "B"), id=name) for name in ("s1", "s2", "s3")]
    second = [Sentence(WORDS, entities=(Span(0, 1, "X"),), id="s3"), Sentence(WORDS, entities=(), id="s1")]
    merged = merge([first, second])
    assert [sentence.entities for sentence in merged] == [(), None, (Span(0, 1, "X"),)]
    assert not any(sentence.notes for sentence in merged)
    merged = merge([first, [replace(sentence, id="") for sentence in second]])
    assert [sentence.notes for sentence in merged] == [(BY_ORDER,), (BY_ORDER,), ()]


def test_a_layer_that_is_left_out_is_counted() -> None:
    (joined,) = merge(
        [[Sentence(WORDS, tags=("A", "B"))], [Sentence(WORDS, tags=("A", "C"), upos=("X", "Y"))]]
    )
    assert (joined.tags, joined.upos) == (("A", "B"), ("X", "Y"))
    assert joined.notes == (
        "sentence whose 'tags' of a later source is left out: an earlier one has another",
    )
    (joined,) = merge([[FULL], [FULL]])
    assert joined.notes == ()


def test_a_note_keeps_the_place_where_it_was_read() -> None:
    first = Sentence(WORDS, tags=("A", "B"), place="acts.tsv:3")
    column = OtherColumn("read another column")
    second = Sentence(WORDS, entities=(), place="tree.conllu:8", notes=("odd", column))
    for (joined,) in (merge([[first], [second]]), merge([[first], [Sentence(WORDS, upos=WORDS)], [second]])):
        seen = seen_in([pickle.loads(pickle.dumps(joined))], {"ner": ALL["ner"]})
        assert seen.noted["odd"] == "tree.conllu:8"
        assert seen.layers["ner"].other_column == "tree.conllu: read another column"


def test_words_join_in_any_spelling() -> None:
    escaped = Sentence(("-LRB-", "cafe\u0301", "1\\/2"), entities=(Span(1, 2, "X"),))
    tree = Tree.parse("(TOP (X (A -LRB-) (B caf\u00e9) (C 1/2)))")
    plain = Sentence(("(", "caf\u00e9", "1/2"), tree=tree)
    (joined,) = merge([[escaped], [plain]])
    assert joined.words == escaped.words
    assert [leaf.children for leaf in joined.tree.leaves()] == [*escaped.words]


def folder_of_splits(folder: Path) -> Path:
    for number, split in enumerate(("train", "dev", "test"), start=1):
        row = f"1\tw{number}\t_\tX\tX\t_\t0\troot\t_\t_\n\n"
        (folder / f"x-{split}.conllu").write_text(row)
    return folder


def test_a_folder_is_not_several_splits(tmp_path: Path) -> None:
    folder = folder_of_splits(tmp_path)
    one = str(folder / "x-dev.conllu")
    whole = Files(str(folder), str(folder), str(folder), "conllu")
    for files in (
        whole,
        replace(whole, dev=one, test=None),
        replace(whole, train=one, dev=f"{folder}/*.conllu"),
    ):
        with pytest.raises(InputError, match="would be read for both train and dev: name the files"):
            refuse_files_of_two_splits(CorpusConfig(None, files=files), ("dep",))
    with pytest.raises(InputError, match="would be read for both train and test"):
        convert_corpus({"train": [f"conllu:{folder}"], "test": [f"conllu:{one}"]}, tmp_path / "out")
    refuse_shared_files({"train": [(one, [Path(one)])], "dev": [(one, [Path(one)])]})
    converted = convert_corpus({"train": [f"conllu:{one}"], "dev": [f"conllu:{one}"]}, tmp_path / "out")
    assert converted.notes == [f"dev: 1 of 1 sentence in train, too (the first, {one}:1)"]


def test_another_column_looks_like_the_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("Ann\tB-PER\tO\nleft\tO\tO\n\nGo\tO\tO\n")
    (note,) = read_sentences(path, "conll2003")[0].notes
    assert isinstance(note, OtherColumn)
    assert "column 2 has tags such as B-PER" in note
    with pytest.raises(
        InputError,
        match=r"a\.tsv: the last column .* columns: \{word: 1, entity: 2\} .* conll2003:word=1,entity=2:PATH",
    ):
        convert_corpus({"train": [f"conll2003:{path}"]}, tmp_path / "out")
    assert read_sentences(path, "conll2003:entity=2")[0].entities == (Span(0, 1, "PER"),)
    assert read_sentences(path, "conll2003:entity=3")[0].notes == ()  # named, so meant
    path.write_text("Ann\tNNP\tB-NP\nleft\tVBD\tB-VP\n")
    (note,) = read_sentences(path, "conll2003")[0].notes  # CoNLL-2000
    assert note == "the last column of a file has phrases (NP, VP), read as entities"
    path.write_text("Ann\tB-NP\tO\nleft\tB-VP\tO\n")
    assert read_sentences(path, "conll2003")[0].notes == ()  # CoNLL-2003's chunks


def test_columns_are_a_mapping_under_files(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("1\tAnn\tB-PER\tO\n2\tleft\tO\tO\n")
    files = Files(*(str(path),) * 3, format="conll2003", columns={"word": 2, "entity": 3})
    (sentence,) = load_split(CorpusConfig(None, ner=files), ("ner",), "train")
    assert (sentence.words, sentence.entities) == (("Ann", "left"), (Span(0, 1, "PER"),))
    with pytest.raises(InputError, match=r"a\.tsv:1: the first column, where words should be, numbers them"):
        load_split(CorpusConfig(None, ner=replace(files, columns={})), ("ner",), "train")
