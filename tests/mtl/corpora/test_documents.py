"""The document of a sentence: read from formats that have one, kept on disk, in subsets and when merged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mtl.corpora.folder import convert_corpus, corpus_stats, draw_sentences, select_sentences
from mtl.corpora.formats.dependencies import read_conllu, to_conllu
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.corpora.readers import merge, read_sentences
from mtl.tasks.sentence import MadeUpId, Sentence

FILES = {
    "conllu": (
        "a.conllu",
        "1\tx\t_\tX\tX\t_\t_\t_\t_\t_\n\n# newdoc id = w 1\n# sent_id = 1\n1\ta\t_\tX\tX\t_\t_\t_\t_\t_\n\n"
        "1\tb\t_\tX\tX\t_\t_\t_\t_\t_\n\n# newdoc\n# newpar\n1\tc\t_\tX\tX\t_\t_\t_\t_\t_\n\n",
        ["", "w 1", "w 1", "a-document-0002"],
    ),
    "uner": (
        "a.iob2",
        "# newdoc id = d1\n# text = a b\n1\ta\tO\t-\t-\n2\tb\tB-LOC\t-\t-\n\n1\tc\tO\t-\t-\n2\td\tO\t-\t-\n\n"
        "# newdoc id = d2\n1\ta\tO\t-\t-\n2\te\tO\t-\t-\n\n",
        ["d1", "d1", "d2"],
    ),
    "conll2003": (
        "a.conll",
        "-DOCSTART- O\n\na O\n\nb B-PER\n\n-DOCSTART- O\n\nc O\n",
        ["a-document-0001", "a-document-0001", "a-document-0002"],
    ),
    "columns": (
        "a.conll",
        "a X\n\n-DOCSTART- -X-\n\nb X\n\n-DOCSTART- -X-\n\nc Y\n",
        ["a-document-0000", "a-document-0001", "a-document-0002"],
    ),
    "conll2012": (
        "a.gold_conll",
        "".join(
            f"#begin document ({name}); part 000\n{name} 0 0 a NN (TOP*) - - - - * -\n\n"
            f"{name} 0 0 b NN (TOP*) - - - - * -\n\n#end document\n"
            for name in ("nw/1", "nw/2")
        ),
        ["nw/1", "nw/1", "nw/2", "nw/2"],
    ),
    "json-entities": (
        "a.json",
        '{"doc_key": "d1", "sentences": [["a"], ["b"]], "ner": [[], []]}\n'
        '{"tokens": ["c"], "entities": []}\n',
        ["d1", "d1", ""],
    ),
}  # fmt: skip


def without_checksum(sentence: Sentence) -> str:
    """The sentence's document, without the checksum of a file that does not name it."""
    return re.sub("-[0-9a-f]{8}-document", "-document", sentence.document)


@pytest.mark.parametrize("form", FILES)
def test_readers_keep_documents(tmp_path: Path, form: str) -> None:
    name, text, documents = FILES[form]
    (tmp_path / name).write_text(text)
    read = read_sentences(tmp_path / name, form)
    assert [*map(without_checksum, read)] == documents
    write_jsonl(tmp_path / "b.jsonl", read)
    assert read_jsonl(tmp_path / "b.jsonl") == read
    (tmp_path / "c.conllu").write_text("".join(map(to_conllu, read)))
    again = read_conllu(tmp_path / "c.conllu")
    assert [*map(without_checksum, again)] == [document.replace(" ", "_") for document in documents]


def of_line(form: str, word: str) -> str:
    """A file of the format in which documents have no names, and which contains the word."""
    if form == "json-entities":
        return f'{{"sentences": [["{word}"], ["b"]], "ner": [[], []]}}\n'
    if form == "conllu":
        return "".join(f"# newdoc\n1\t{each}\t_\tX\tX\t_\t_\t_\t_\t_\n\n" for each in (word, "b"))
    marker = "-DOCSTART- O\n\n" if form == "conll2003" else "-DOCSTART- -X-\n\n"
    return "".join(f"{marker}{each} O\n\n" for each in (word, "b"))


@pytest.mark.parametrize("form", ["conllu", "conll2003", "columns", "json-entities"])
def test_what_files_with_one_name_do_not_name_is_theirs_alone(tmp_path: Path, form: str) -> None:
    """Documents without names are units of their own, and made-up ids are unique in a converted corpus."""
    places = [
        tmp_path / f"{place}" / f"x.{'json' if form == 'json-entities' else 'conllu'}" for place in "abc"
    ]
    apart = set()
    for place in places:
        place.parent.mkdir()
        place.write_text(of_line(form, place.parent.name))
        documents = {sentence.document for sentence in read_sentences(place, form)}
        assert "" not in documents
        assert documents.isdisjoint(apart)
        apart |= documents
    together = {sentence.document for sentence in read_sentences(tmp_path / "*" / places[0].name, form)}
    assert together == apart
    sources = {"train": [f"{form}:{tmp_path}/[ab]/{places[0].name}"], "dev": [f"{form}:{places[2]}"]}
    converted = convert_corpus(sources, tmp_path / "all")
    assert [joined.repeated for joined in converted.joined.values()] == [0, 0]
    stats = corpus_stats(tmp_path / "all")
    assert stats["train"]["documents"] + stats["dev"]["documents"] == len(apart)
    whole = [each for split in sources for each in read_jsonl(tmp_path / "all" / f"{split}.jsonl")]
    assert {type(sentence.id) for sentence in whole} == {MadeUpId}
    (tmp_path / "some.ids").write_text("".join(f"{sentence.id}\n" for sentence in whole))
    select_sentences(tmp_path / "all", [tmp_path / "some.ids"], tmp_path / "some")
    chosen = read_jsonl(tmp_path / "some" / "some.jsonl")
    assert [sentence.words for sentence in chosen] == [sentence.words for sentence in whole]


def test_a_marker_at_the_top_alone_separates_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("-DOCSTART- O\n\na O\n\nb B-PER\n")
    assert {sentence.document for sentence in read_sentences(tmp_path / "a.conll", "conll2003")} == {""}


def test_documents_survive_joining_drawing_and_selecting(tmp_path: Path) -> None:
    name, text, documents = FILES["conllu"]
    (tmp_path / name).write_text(text)
    (tmp_path / "own.conll").write_text("x O\n\na B-LOC\n\nb O\n\nc O\n")
    convert_corpus(
        {"test": [f"conll2003:{tmp_path}/own.conll", f"conllu:{tmp_path / name}"]}, tmp_path / "all"
    )
    whole = read_jsonl(tmp_path / "all" / "test.jsonl")
    assert [*map(without_checksum, whole)] == documents
    assert whole[1].entities
    assert whole[1].tags
    assert corpus_stats(tmp_path / "all")["test"]["documents"] == 2
    draw_sentences(tmp_path / "all", {"test": 3}, tmp_path / "some")
    (tmp_path / "dev.ids").write_text("".join(f"{sentence.id}\n" for sentence in whole[::-1]))
    select_sentences(tmp_path / "all", [tmp_path / "dev.ids"], tmp_path / "listed")
    of_words = {sentence.words: sentence.document for sentence in whole}
    for file, count in (("some/test.jsonl", 3), ("listed/dev.jsonl", 4)):
        subset = read_jsonl(tmp_path / file)
        assert [sentence.document for sentence in subset] == [of_words[each.words] for each in subset]
        assert len(subset) == count


def test_a_document_of_any_source_counts() -> None:
    plain, known = Sentence(("a",), id="1"), Sentence(("a",), upos=("X",), document="d")
    assert [each.document for each in merge([[plain], [known]])] == ["d"]
    assert plain != Sentence(("a",), id="1", document="d")
