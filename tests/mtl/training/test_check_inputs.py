"""Corpora and encoders that runs cannot use are refused, also by a dry run that only looks at them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mtl.config.schema import CorpusConfig, Files, TrainConfig
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.training.check_inputs import check_inputs


@pytest.fixture
def corpus(toy: Path, tmp_path: Path) -> Path:
    """A few sentences of the toy corpus, that may be changed."""
    for split in ("train", "dev", "test"):
        write_jsonl(tmp_path / f"{split}.jsonl", read_jsonl(toy / f"{split}.jsonl")[:8])
    return tmp_path


def config_of(folder: Path) -> TrainConfig:
    return TrainConfig(tasks=("pos", "srl"), corpus=CorpusConfig(path=str(folder)))


def test_a_dry_run_reads_no_further_than_the_first_annotated_sentence(corpus):
    sentences = read_jsonl(corpus / "train.jsonl")
    without_frames = [dataclasses.replace(sentence, frames=None) for sentence in sentences[:3]]
    write_jsonl(corpus / "train.jsonl", [*without_frames, *sentences[3:]])
    check_inputs([config_of(corpus)], None)
    with (corpus / "train.jsonl").open("a") as file:
        file.write("{}\n")
    check_inputs([config_of(corpus)], None)
    with pytest.raises(InputError, match=r"train\.jsonl:9: 'words' is missing"):
        check_inputs([config_of(corpus)], InputCache(keep=True))


@pytest.mark.parametrize("inputs", [None, InputCache(keep=True)])
def test_a_task_without_an_annotated_sentence_is_refused(corpus, inputs):
    path = corpus / "dev.jsonl"
    write_jsonl(path, [dataclasses.replace(sentence, frames=None) for sentence in read_jsonl(path)])
    with pytest.raises(InputError, match="no dev sentence of 8 is annotated for srl: leave srl out of tasks"):
        check_inputs([config_of(corpus)], inputs)


@pytest.mark.parametrize("inputs", [None, InputCache(keep=True)])
def test_a_blind_test_split_needs_a_sentence_only(corpus, inputs):
    path = corpus / "test.jsonl"
    write_jsonl(path, [dataclasses.replace(sentence, frames=None) for sentence in read_jsonl(path)])
    check_inputs([config_of(corpus)], inputs)
    path.write_text("")
    with pytest.raises(InputError, match=r"test\.jsonl: no sentence in it"):
        check_inputs([config_of(corpus)], inputs)


@pytest.mark.parametrize("inputs", [None, InputCache(keep=True)])
def test_files_that_are_not_there_are_named(corpus, inputs):
    own = Files(str(corpus / "train.jsonl"), str(corpus / "dev.jsonl"), None, "jsonl")
    config = TrainConfig(tasks=("pos",), corpus=CorpusConfig(path=None, pos=own))
    with pytest.raises(InputError, match=r"no test file for pos: set corpus\.pos\.test"):
        check_inputs([config], inputs)
    (corpus / "dev.jsonl").unlink()
    with pytest.raises(InputError, match=r"dev\.jsonl: no such file"):
        check_inputs([config], inputs)
