"""Sentences of a run: per-task files, merging, and what a task must find."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mtl.config.instances import Instance
from mtl.config.schema import CorpusConfig, Files, TrainConfig
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.load import (
    corpus_fingerprint,
    corpus_read,
    load_split,
    only,
    require_layers,
    sources,
    with_files,
)
from mtl.corpora.readers import merge
from mtl.errors import InputError
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence import Arcs, Sentence, Span
from mtl.tasks.structured import Con, Dep, Pos
from mtl.tasks.tree import Tree

WORDS = ("We", "ate")
TAGGED = Sentence(WORDS, tags=("PRP", "VBD"))
PARSED = Sentence(WORDS, arcs=Arcs((2, 0), ("nsubj", "root")))


def test_sentences_with_the_same_words_become_one_with_all_layers():
    other = Sentence(("No", "."), arcs=Arcs((0, 1), ("root", "punct")))
    merged = merge([[TAGGED], [other, PARSED]])
    assert merged == [Sentence(WORDS, tags=TAGGED.tags, arcs=PARSED.arcs), other]


def test_the_text_is_that_of_the_first_source_that_has_one():
    written = replace(PARSED, text="We  ate")
    for parts in ([[written], [TAGGED]], [[TAGGED], [written]], [[TAGGED], [written], [PARSED]]):
        [sentence] = merge(parts)
        assert sentence.text == "We  ate"
    [sentence] = merge([[written], [replace(TAGGED, text="We ate")]])
    assert sentence.text == "We  ate"


def test_a_text_that_the_kept_words_do_not_spell_is_left_out():
    escaped = Sentence(("-LRB-", "ate"), tags=TAGGED.tags)
    [sentence] = merge([[escaped], [Sentence(("(", "ate"), arcs=PARSED.arcs, text="(ate")]])
    assert (sentence.words, sentence.text) == (escaped.words, "")


def test_a_layer_that_is_left_out_is_noted_however_the_words_are_written():
    def sentence_of(bracket: str, tags: tuple[str, str]) -> Sentence:
        tree = Tree("TOP", (Tree("X", bracket), Tree("V", "ate")))
        return Sentence((bracket, "ate"), tags=tags, tree=tree)

    [sentence] = merge([[sentence_of("(", ("X", "X"))], [sentence_of("-LRB-", TAGGED.tags)]])
    assert sentence.notes == (
        "sentence whose 'tags' of a later source is left out: an earlier one has another",
    )


def test_repeated_sentences_pair_in_order():
    second = Sentence(WORDS, tags=("X", "X"))
    merged = merge([[TAGGED, second], [PARSED]])
    assert [(sentence.tags, sentence.arcs) for sentence in merged] == [
        (TAGGED.tags, PARSED.arcs),
        (second.tags, None),
    ]


def test_a_task_with_files_of_its_own_does_not_see_the_folders_layer(toy: Path, tmp_path: Path):
    (tmp_path / "ner.bio").write_text("We O\nate O\n\nKim B-PER\nslept O\n")
    files = Files(*(str(tmp_path / "ner.bio"),) * 3, format="conll2003")
    config = CorpusConfig(str(toy), ner=files)
    sentences = load_split(config, ("ner", "dep"), "dev")
    plain = read_jsonl(toy / "dev.jsonl")
    assert len(sentences) == len(plain) + 2
    assert all(
        sentence.entities is None and sentence.arcs is not None for sentence in sentences[: len(plain)]
    )
    assert [sentence.entities for sentence in sentences[-2:]] == [(), (Span(0, 1, "PER"),)]
    assert corpus_fingerprint(config, ("ner", "dep")) != corpus_fingerprint(
        CorpusConfig(str(toy)), ("ner", "dep")
    )


def test_layers_of_other_tasks_are_hidden():
    whole = Sentence(WORDS, tags=("PRP", "VBD"), entities=(), arcs=PARSED.arcs)
    assert only(whole, {"dep": Dep}) == PARSED
    assert only(whole, {"con": Con}).tags == whole.tags


def test_a_task_without_any_annotation_is_an_error():
    require_layers([TAGGED, PARSED], {"pos": Pos(), "dep": Dep()}, "train")
    with pytest.raises(InputError, match="annotated for dep"):
        require_layers([TAGGED], {"pos": Pos(), "dep": Dep()}, "train")


def test_missing_files_are_named(toy: Path):
    with pytest.raises(InputError, match="no files for pos"):
        load_split(CorpusConfig(None), ("pos",), "train")
    with pytest.raises(InputError, match="no dev file for pos"):
        load_split(CorpusConfig(None, pos=Files(train=str(toy / "train.jsonl"))), ("pos",), "dev")


def test_a_file_with_several_layers_is_named_once(tmp_path: Path):
    """Tasks whose layer the format has read `corpus.files`, unless they have files of their own."""
    (tmp_path / "a.conllu").write_text("1\tWe\t_\t_\tPRP\t_\t0\troot\t_\t_\n\n")
    (tmp_path / "a.bio").write_text("We B-X\n")
    both = Files(train=str(tmp_path / "a.conllu"), format="conllu")
    names = Files(train=str(tmp_path / "a.bio"), format="conll2003")
    config = CorpusConfig(None, files=both, ner=names)
    listed = sources(config, ("pos", "ner", "dep"))
    assert [(source.files, tuple(source.kinds)) for source in listed] == [
        (both, ("pos", "dep")),
        (names, ("ner",)),
    ]
    (sentence,) = load_split(config, ("pos", "ner", "dep"), "train")
    assert (sentence.tags, sentence.arcs, sentence.entities) == (
        ("PRP",), Arcs((0,), ("root",)), (Span(0, 1, "X"),)
    )  # fmt: skip
    with pytest.raises(InputError, match=r"no dev file for pos: set corpus\.files\.dev"):
        load_split(config, ("pos",), "dev")
    with pytest.raises(InputError, match="no files for con"):
        load_split(config, ("pos", "con"), "train")
    with pytest.raises(InputError, match="did you mean 'conllu'"):
        load_split(CorpusConfig(None, files=Files(format="conlu")), ("pos",), "train")


CONLLU = Files("train.conllu", "dev.conllu", "test.conllu", format="conllu")


@pytest.mark.parametrize(
    ("tasks", "corpus", "read"),
    [
        (("pos", "ner"), CorpusConfig("folder"), True),
        (("pos", "dep"), CorpusConfig("folder", CONLLU), False),
        (("pos", "ner"), CorpusConfig("folder", CONLLU), True),  # few files in CoNLL-U have entities
        (("pos", "ner"), CorpusConfig("folder", CONLLU, ner=CONLLU), False),
        (("pos", "con"), CorpusConfig("folder", pos=CONLLU), True),
        (("pos", "dep"), CorpusConfig("folder", pos=CONLLU, dep=CONLLU), False),
        (("pos", "slots"), CorpusConfig("folder", CONLLU, instances={"slots": CONLLU}), False),
        (("pos", "slots"), CorpusConfig("folder", CONLLU), True),
    ],
)
def test_a_folder_that_no_task_reads_is_not_part_of_the_corpus(tasks, corpus, read):
    config = TrainConfig(tasks=tasks, corpus=corpus, instances={"slots": Instance("spans")})
    assert corpus_read(config) == (corpus if read else replace(corpus, path=None))


def test_the_tasks_that_a_corpus_has_files_for():
    kinds = {name: TASKS[name] for name in ("pos", "ner", "dep", "con")} | {
        "slots": type(Instance("spans").task("slots"))
    }
    assert with_files(CorpusConfig("folder"), kinds) == tuple(kinds)
    assert with_files(CorpusConfig(None, ner=CONLLU), kinds) == ("ner",)
    assert with_files(CorpusConfig(None, CONLLU), kinds) == ("pos", "ner", "dep")
    named = CorpusConfig(None, CONLLU, con=CONLLU, instances={"slots": CONLLU})
    assert with_files(named, kinds) == tuple(kinds)
    assert with_files(CorpusConfig(None), kinds) == ()


def test_a_corpus_that_is_elsewhere_is_not_only_to_be_made_anew(tmp_path, monkeypatch):
    """A run's configuration may have a path that is relative to the folder in which it was trained."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"no such folder in {re.escape(str(tmp_path))}; go to"):
        load_split(CorpusConfig(path="data/toy"), ("pos",), "dev")
    with pytest.raises(InputError, match="no such folder; make one"):
        load_split(CorpusConfig(path=str(tmp_path / "data")), ("pos",), "dev")
    made = "make one with 'mtl data ewt5 --subset=small --out data/small'$"
    with pytest.raises(InputError, match=made):
        load_split(CorpusConfig(path="data/small"), ("pos",), "dev")
    with pytest.raises(InputError, match=r"^corpus\.path is empty: name a folder, or write null for none"):
        load_split(CorpusConfig(path=""), ("pos",), "dev")


def test_a_text_under_a_name_of_its_own_may_be_a_translation_and_must_be_a_word_as_a_class(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.jsonl"
    empty = '{"words": [], "labels": {"own": "x"}}\n'
    path.write_text('{"words": ["a", "b"], "labels": {"own": "x y"}}\n' + empty)
    config = CorpusConfig(str(tmp_path))
    translation, kind = Instance("translation").task("own"), Instance("class").task("own")
    assert [s.layer("own") for s in load_split(config, {"own": translation}, "train")] == ["x y", "x"]
    with pytest.raises(InputError, match=r"train\.jsonl:1: own: .*'x y' holds white space"):
        load_split(config, {"own": kind}, "train")
    path.write_text(empty)
    with pytest.raises(InputError, match=r"train\.jsonl:1: a sentence without words"):
        load_split(config, {"own": kind}, "train")
    for labels in ("null", '{"cola": "1"}', '{"own": 1}'):
        path.write_text(f'{{"words": [], "labels": {labels}}}')
        with pytest.raises(InputError, match="'words' is missing or empty"):
            read_jsonl(path)
