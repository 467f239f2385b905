from __future__ import annotations

import errno
import io

import pytest
from rich.console import Console

from mtl.corpora.folder import corpus_stats, draw_sentences, select_sentences, stats_table, write_splits
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.tasks.sentence import Arcs, Frame, Sentence, Span
from mtl.tasks.tree import Tree

FULL = Sentence(
    words=("Ann", "left"),
    tags=("NNP", "VBD"),
    entities=(Span(0, 1, "PER"),),
    arcs=Arcs((2, 0), ("nsubj", "root")),
    tree=Tree.parse("(TOP (S (NP (NNP Ann)) (VP (VBD left))))"),
    frames=(Frame(1, "leave.01", (Span(0, 1, "ARG0"),)),),
    id="a-1",
)
BARE = Sentence(words=("Hm",), id="b-1")


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    tree = Tree.parse("(TOP (X (RB So) (WP what) (. ?)))")
    empty = Sentence(("So", "what", "?"), entities=(), frames=(), tree=tree, id="a-2")
    write_jsonl(folder / "train.jsonl", [FULL, empty])
    write_jsonl(folder / "test.jsonl", [BARE])
    return folder


def test_counts(corpus):
    stats = corpus_stats(corpus)
    assert list(stats) == ["train", "test"]
    assert stats["train"] == {
        "sentences": 2,
        "words": 5,
        "pos": {"sentences": 1, "tags": 2},
        "ner": {"sentences": 2, "entities": 1},
        "dep": {"sentences": 1, "arcs": 2},
        "con": {"sentences": 2, "constituents": 4},
        "srl": {"sentences": 2, "frames": 1, "arguments": 1},
    }
    assert stats["test"]["words"] == 1
    assert all(counts["sentences"] == 0 for counts in stats["test"].values() if isinstance(counts, dict))
    printed = io.StringIO()
    Console(width=100, file=printed).print(stats_table(stats, title="corpus"))
    rows = [line.split() for line in printed.getvalue().replace("│", " ").splitlines()]
    assert ["train", "2", "5", "words"] in rows
    assert ["con", "2", "4", "constituents"] in rows


def test_no_corpus(tmp_path):
    with pytest.raises(InputError, match=r"no \*.jsonl files"):
        corpus_stats(tmp_path)
    with pytest.raises(InputError, match=r"no \*.jsonl files"):
        select_sentences(tmp_path, [tmp_path / "x.ids"], tmp_path / "out")


def test_what_is_no_folder_is_named(corpus, tmp_path):
    for command in (
        corpus_stats,
        lambda place: select_sentences(place, [tmp_path / "x.ids"], tmp_path / "out"),
    ):
        with pytest.raises(InputError, match=r"train\.jsonl: a file, not a folder"):
            command(corpus / "train.jsonl")
        with pytest.raises(InputError, match="none: no such folder"):
            command(tmp_path / "none")


def test_selection_keeps_the_lists_order_over_all_splits(corpus, tmp_path):
    first, second = tmp_path / "first.ids", tmp_path / "second.ids"
    first.write_text("b-1\na-1\n")
    second.write_text("a-2\n\n")
    out = tmp_path / "out"
    assert select_sentences(corpus, [first, second], out) == {"first": 2, "second": 1}
    assert read_jsonl(out / "first.jsonl") == [BARE, FULL]
    assert [sentence.id for sentence in read_jsonl(out / "second.jsonl")] == ["a-2"]
    with pytest.raises(InputError, match=r"already holds a corpus \(first.jsonl, second.jsonl\)"):
        select_sentences(corpus, [first], out)
    (out / "notes.txt").write_text("mine")
    assert select_sentences(corpus, [first], out, overwrite=True) == {"first": 2}
    assert sorted(path.name for path in out.iterdir()) == ["first.jsonl", "notes.txt"]
    with pytest.raises(InputError, match="is the corpus itself"):
        select_sentences(corpus, [first], corpus, overwrite=True)


def test_drawn_sentences_keep_their_order_and_depend_on_the_seed_alone(tmp_path):
    sentences = [Sentence((f"w{place}",), id=str(place)) for place in range(50)]
    for split in ("train", "dev"):
        write_jsonl(tmp_path / f"{split}.jsonl", sentences)

    def drawn(numbers, seed=1):
        assert draw_sentences(tmp_path, numbers, tmp_path / "out", seed, overwrite=True) == numbers
        return {
            split: [int(one.id) for one in read_jsonl(tmp_path / "out" / f"{split}.jsonl")]
            for split in numbers
        }

    both = drawn({"train": 10, "dev": 10})
    assert len(set(both["train"])) == 10
    assert both["train"] == sorted(both["train"])
    assert both["train"] != both["dev"]
    assert drawn({"dev": 10}) == {"dev": both["dev"]}
    assert drawn({"dev": 10}, seed=2) != {"dev": both["dev"]}
    assert drawn({"dev": 50}) == {"dev": list(range(50))}
    assert not (tmp_path / "out" / "train.jsonl").exists()
    with pytest.raises(InputError, match=r"dev\.jsonl: 51 of 50 sentences: draw fewer"):
        draw_sentences(tmp_path, {"dev": 51}, tmp_path / "other")
    with pytest.raises(InputError, match=r"no test\.jsonl to draw sentences from; it has dev, train"):
        draw_sentences(tmp_path, {"test": 1}, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_ids_are_found_with_and_without_blanks_around_them(corpus, tmp_path):
    write_jsonl(corpus / "dev.jsonl", [Sentence(("Hm",), id=" c")])
    (tmp_path / "x.ids").write_text(" c\n b-1 \n")
    assert select_sentences(corpus, [tmp_path / "x.ids"], tmp_path / "out") == {"x": 2}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a-1\nc-1\n", ":2: no sentence 'c-1'"),
        ("a-1\na-1\n", ":2: the id 'a-1' is listed twice"),
        ("\n", "no ids"),
    ],
)
def test_faulty_lists(corpus, tmp_path, text, what):
    path = tmp_path / "x.ids"
    path.write_text(text)
    with pytest.raises(InputError, match=what):
        select_sentences(corpus, [path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ids_that_collide(corpus, tmp_path):
    (tmp_path / "x.ids").write_text("a-1\n")
    with pytest.raises(InputError, match="have the same name"):
        select_sentences(corpus, [tmp_path / "x.ids", tmp_path / "sub" / "x.ids"], tmp_path / "out")
    write_jsonl(corpus / "dev.jsonl", [BARE])
    with pytest.raises(InputError, match=r"test\.jsonl:1: the id 'b-1' is also that of .*dev\.jsonl:1"):
        select_sentences(corpus, [tmp_path / "x.ids"], tmp_path / "out")
    write_jsonl(corpus / "dev.jsonl", [Sentence(("Hm",))])
    with pytest.raises(InputError, match=r"dev\.jsonl:1: a sentence without an id"):
        select_sentences(corpus, [tmp_path / "x.ids"], tmp_path / "out")


def test_an_empty_split_is_an_error(corpus):
    (corpus / "dev.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"dev\.jsonl: no sentence in it"):
        corpus_stats(corpus)


def test_a_set_of_splits_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """If the second file cannot be written, the old corpus stays unchanged."""
    write_splits(tmp_path, {"train": [FULL], "extra": [BARE]})
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}

    def full_disk(sentence):
        if sentence is BARE:
            raise OSError(errno.ENOSPC, "No space left on device")
        return "{}"

    monkeypatch.setattr("mtl.corpora.folder.to_line", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_splits(tmp_path, {"train": [FULL, FULL], "dev": [BARE]})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_a_toy_corpus_has_sentences_in_every_split(tmp_path):
    for sizes in ((0, 1, 1), (1, -1, 1)):
        with pytest.raises(InputError, match="at least one sentence"):
            write_toy(tmp_path / "toy", *sizes)
    assert not (tmp_path / "toy").exists()
