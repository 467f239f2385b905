"""Files that are joined: which sentences belong together is said by their words, ids and order alone."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl.corpora.folder import convert_corpus
from mtl.corpora.formats.dependencies import read_conllu, to_conllu
from mtl.corpora.formats.jsonl import read_jsonl, to_line
from mtl.corpora.readers import merge, read_sentences
from mtl.tasks.sentence import MadeUpId, Sentence, Span

WORDS = (("Hi",), ("Thanks", "."), ("No", "."))


class Entry(NamedTuple):
    """A sentence of a file: its words, its id, and a label that no other sentence has."""

    words: tuple[str, ...]
    id: str
    label: str

    def rows(self, *columns: str) -> str:
        """A row per word; `{word}` and `{number}` are filled in."""
        row = "\t".join(columns)
        return "".join(row.format(word=word, number=n) + "\n" for n, word in enumerate(self.words, 1)) + "\n"


def conllu(entry: Entry) -> str:
    return entry.rows("{number}", "{word}", "_", entry.label, *"______")


def made_up(entry: Entry, number: int, name: str) -> Sentence:
    """The sentence as a reader of a format without ids makes it, from a file of this name."""
    words = entry.words
    return Sentence(words, entities=(Span(0, 1, entry.label),), id=MadeUpId(f"{name}-{number:04d}"))


class Form(NamedTuple):
    """How a file of a format is written: entry, its number and the file's stem in, text out."""

    format: str
    write: Callable[[Entry, int, str], str]
    head: str = ""
    has_ids: bool = False


FORMS = {
    "conllu with ids": Form("conllu", lambda e, n, s: f"# sent_id = {e.id}\n{conllu(e)}", has_ids=True),
    "conllu": Form("conllu", lambda e, n, s: conllu(e)),
    "conllu as written": Form("conllu", lambda e, n, s: to_conllu(made_up(e, n, s))),
    "jsonl with ids": Form(
        "jsonl", lambda e, n, s: to_line(Sentence(e.words, {"own": e.label}, id=e.id)) + "\n", has_ids=True
    ),
    "jsonl": Form("jsonl", lambda e, n, s: to_line(Sentence(e.words, {"own": e.label})) + "\n"),
    "jsonl as written": Form("jsonl", lambda e, n, s: to_line(made_up(e, n, s)) + "\n"),
    "conll2003": Form("conll2003", lambda e, n, s: e.rows("{word}", f"B-{e.label}")),
    "conll2003 with ids": Form(
        "conll2003", lambda e, n, s: f"# id {e.id}\n" + e.rows("{word}", f"B-{e.label}"), has_ids=True
    ),
    "uner": Form("uner", lambda e, n, s: e.rows("{number}", "{word}", f"B-{e.label}", "-")),
    "columns": Form("columns", lambda e, n, s: e.rows("{word}", e.label)),
    "brackets": Form(
        "brackets", lambda e, n, s: f"(TOP ({e.label} {' '.join(f'(X {word})' for word in e.words)}))\n"
    ),
    "conll2005": Form(
        "conll2005",
        lambda e, n, s: f"{e.words[0]}\tgo\t({e.label}*)\n"
        + "".join(f"{word}\t-\t*\n" for word in e.words[1:])
        + "\n",
    ),
    "glue": Form("glue-classify", lambda e, n, s: f"{' '.join(e.words)}\t{e.label}\n", "sentence\tlabel\n"),
}  # fmt: skip


class Source(NamedTuple):
    form: str
    entries: tuple[Entry, ...]

    def read(self, folder: Path, stem: str) -> list[Sentence]:
        form = FORMS[self.form]
        path = folder / f"{stem}.txt"
        written = (form.write(entry, number, stem) for number, entry in enumerate(self.entries, 1))
        path.write_text(form.head + "".join(written))
        return read_sentences(path, form.format)


def source(letter: str, form: str, texts: Sequence[tuple[int, str]]) -> Source:
    labels = (Entry(WORDS[words], id, f"{letter}{number}") for number, (words, id) in enumerate(texts, 1))
    return Source(form, tuple(labels))


TEXTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["s1", "s2", "s3", "1"])), min_size=1, max_size=6
)
FORM = st.sampled_from(sorted(FORMS))


def joined(first: Source, second: Source, names: tuple[str, str]) -> list[Sentence]:
    with tempfile.TemporaryDirectory() as folder:
        (one := Path(folder) / "1").mkdir()
        (two := Path(folder) / "2").mkdir()
        merged = merge([first.read(one, names[0]), second.read(two, names[1])])
    return [replace(each, id="made up" if isinstance(each.id, MadeUpId) else each.id) for each in merged]


def expected(first: Source, second: Source) -> set[tuple[str, ...]]:
    """The labels of each joined sentence: the same ids in their order, then the rest in theirs."""
    by_id = FORMS[first.form].has_ids and FORMS[second.form].has_ids
    rest: list[list[Entry]] = [list(first.entries), list(second.entries)]
    found: set[tuple[str, ...]] = set()
    for same_id in (True, False) if by_id else (False,):
        for one in list(rest[0]):
            fits = [two for two in rest[1] if two.words == one.words and (two.id == one.id or not same_id)]
            if fits:
                found.add((one.label, fits[0].label))
                rest[0].remove(one)
                rest[1].remove(fits[0])
    return found | {(entry.label,) for entries in rest for entry in entries}


@pytest.mark.slow
@given(FORM, TEXTS, FORM, TEXTS)
def test_names_of_files_decide_nothing(form, texts, other_form, other_texts) -> None:
    first, second = source("A", form, texts), source("B", other_form, other_texts)
    results = [joined(first, second, names) for names in product(("train", "tr"), repeat=2)]
    assert all(result == results[0] for result in results)
    assert [[*map(str, each.notes)] for each in results[0]] == [
        [*map(str, each.notes)] for each in results[3]
    ]
    labels = [tuple(sorted(set(re.findall(r"[AB]\d", repr(dict(each.layers)))))) for each in results[0]]
    left_out = any("is left out: an earlier one" in note for each in results[0] for note in each.notes)
    if not left_out:  # both formats may have the same layer
        assert set(labels) == expected(first, second)


@pytest.mark.parametrize("other", ["train", "tr"])
def test_repeated_sentences_of_files_without_ids_are_joined_in_order(other: str, tmp_path: Path) -> None:
    """The first of two repeated sentences has the number of the second one in the other file."""
    thanks = [("Thanks", "."), ("Thanks", ".")]
    first = [Entry(words, "", f"A{n}") for n, words in enumerate([("Hi",), *thanks], 1)]
    second = [Entry(words, "", f"B{n}") for n, words in enumerate(thanks, 1)]
    for folder, form, name, entries in (
        ("ud", "conllu", "train", first),
        ("ner", "conll2003", other, second),
    ):
        (tmp_path / folder).mkdir()
        Source(form, tuple(entries)).read(tmp_path / folder, name)
    files = [f"conllu:{tmp_path}/ud/train.txt", f"conll2003:{tmp_path}/ner/{other}.txt"]
    convert_corpus({"train": files}, tmp_path / "out")
    found = [(s.upos[0], s.entities) for s in read_jsonl(tmp_path / "out" / "train.jsonl")]
    assert [(upos, label and label[0].label) for upos, label in found] == [
        ("A1", None), ("A2", "B1"), ("A3", "B2")
    ]  # fmt: skip


def test_ids_that_were_made_up_stay_so(tmp_path: Path) -> None:
    """In JSON lines and CoNLL-U; a given id replaces one that was made up, whichever file comes first."""
    for form in FORMS:
        sentences = source("A", form, [(0, "s1"), (1, "s2")]).read(tmp_path, "train")
        kinds = [type(sentence.id) for sentence in sentences]
        (tmp_path / "a.jsonl").write_text("".join(f"{to_line(sentence)}\n" for sentence in sentences))
        (tmp_path / "a.conllu").write_text("".join(map(to_conllu, sentences)))
        again = read_jsonl(tmp_path / "a.jsonl")
        assert [(s.id, type(s.id)) for s in again] == [(s.id, type(s.id)) for s in sentences]
        if all(sentence.id for sentence in sentences):
            assert [type(s.id) for s in read_conllu(tmp_path / "a.conllu")] == kinds
        given_ids = [Sentence(words, id=f"g{n}") for n, words in enumerate(WORDS[:2])]
        for parts in ([sentences, given_ids], [given_ids, sentences]):
            named = sentences if FORMS[form].has_ids and parts[0] is sentences else given_ids
            assert [s.id for s in merge(parts)] == [s.id for s in named]


def test_the_same_id_several_times_is_joined_in_order() -> None:
    one = [Sentence(WORDS[1], tags=(tag, tag), id="1") for tag in "XY"]
    two = [Sentence(WORDS[1], entities=(Span(0, 1, label),), id="1") for label in "AB"]
    merged = merge([one, two])
    assert [(s.tags[0], s.entities[0].label) for s in merged] == [("X", "A"), ("Y", "B")]
    assert not any(sentence.notes for sentence in merged)
