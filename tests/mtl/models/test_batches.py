"""Plans and batches: nothing lost, nothing doubled, the same on every rank.
Sentences too long for the decoders: left out or refused with file and line, in bounded memory.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtl.commands.main import main
from mtl.corpora.formats.dependencies import read_conllu
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.formats.phrase_structure import read_brackets
from mtl.errors import InputError
from mtl.models.batches import (
    BATCH_PAIRS,
    MAX_WORDS,
    BatchIndices,
    BatchLoader,
    Example,
    aligned_batches,
    buckets,
    describe_long,
    examples,
    require_limit,
)
from mtl.models.joint import JointModel
from mtl.models.subwords import SubwordTokenizer, Tokens
from mtl.tasks.decoders.decoder import copied
from mtl.tasks.sentence import Sentence
from mtl.tasks.structured import Pos
from tests.mtl import tiny

NO_TOKENS = Tokens(np.zeros(1, np.int32), np.ones(1, np.int32))


def example(length: int, *tasks: str) -> Example:
    targets: dict[str, Any] = dict.fromkeys(tasks, ())
    return Example(Sentence(("a",) * length), NO_TOKENS, length, targets)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=80),
    st.integers(1, 200),
    st.one_of(st.none(), st.integers(1, 9)),
    st.one_of(st.none(), st.integers(0, 5)),
)
def test_buckets_hold_every_index_once_within_the_budget(lengths, budget, most, seed):
    rng = None if seed is None else np.random.default_rng(seed)
    batches = buckets(lengths, budget, most, rng)
    assert Counter(index for batch in batches for index in batch) == Counter(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[index] for index in batch)
        assert padded <= budget or len(batch) == 1
        assert most is None or len(batch) <= most


def test_buckets_are_nearly_without_padding():
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 60, 2000).tolist()
    batches = buckets(lengths, 6400, 16, np.random.default_rng(1))
    padded = sum(len(batch) * max(lengths[index] for index in batch) for batch in batches)
    assert sum(lengths) / padded > 0.85


@given(st.lists(st.integers(1, 300), min_size=1, max_size=200), st.integers(1, 2000))
def test_deterministic_batches_hold_little_padding(lengths, budget):
    for batch in buckets(lengths, budget, None, None):
        of_batch = [lengths[index] for index in batch]
        assert len(batch) * max(of_batch) - sum(of_batch) <= budget / 16


def test_batches_differ_from_epoch_to_epoch_and_not_from_rank_to_rank():
    lengths = list(range(1, 100))
    first, again, other = (buckets(lengths, 200, None, np.random.default_rng([1, e])) for e in (0, 0, 1))
    assert first == again
    assert first != other


CORPUS = [
    example(5, "pos", "dep"),
    example(6, "pos"),
    example(7),
    example(8, "dep"),
    example(9, "pos", "dep"),
]


def test_an_aligned_plan_has_every_annotated_sentence_once_for_all_tasks():
    steps = aligned_batches(CORPUS, ("pos", "dep"), 20, None, np.random.default_rng(0))
    assert sorted(index for step in steps for index in step.indices) == [0, 1, 3, 4]
    assert {step.tasks for step in steps} == {("pos", "dep")}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_each_batch_and_divide_by_the_units_of_the_whole_update(ranks):
    tokenizer, tasks = SubwordTokenizer(tiny.tokenizer("bert"), 64), {"pos": Pos()}
    sentences = [Sentence(("dog",) * length, tags=("NN",) * length) for length in (1, 2, 4, 8, 16)]
    corpus = examples(sentences, tokenizer, tasks, {"pos": tasks["pos"].labels(sentences)})
    plan = [BatchIndices(indices, ("pos",)) for indices in ((4, 0, 1), (2,), (3,))]
    loaders = [
        BatchLoader(corpus, tokenizer, tasks, plan, rank, ranks, accumulate=2) for rank in range(ranks)
    ]
    shares = [list(loader) for loader in loaders]
    for number, of_ranks in enumerate(zip(*shares, strict=True)):
        chosen = plan[number].indices
        assert [batch.idle for batch in of_ranks] == [rank >= len(chosen) for rank in range(ranks)]
        taken = [sentence for batch in of_ranks if not batch.idle for sentence in batch.sentences]
        assert sorted(map(len, taken)) == sorted(len(sentences[index]) for index in chosen)
        words = 1 + 2 + 4 + 16 if number < 2 else 8
        assert all(batch.loss_units == {"pos": words} for batch in of_ranks)


def test_an_interrupted_epoch_goes_on_where_it_was():
    tokenizer = SubwordTokenizer(tiny.tokenizer("bert"), 64)
    corpus = [
        Example(Sentence(("dog",) * length), tokenizer.encode(("dog",) * length), length, {})
        for length in (1, 2, 4)
    ]
    loader = BatchLoader(corpus, tokenizer, {}, [BatchIndices((index,), ()) for index in range(3)], skip=2)
    first, second = ([len(batch.sentences[0]) for batch in loader] for _ in range(2))
    assert (first, second) == ([4], [1, 2, 4])


def test_tensors_packed_in_one_block_are_what_they_were():
    made = [
        torch.arange(3),
        torch.tensor([[True, False, True]]),
        torch.zeros(0, 4, dtype=torch.long),
        torch.tensor(0.5),
        torch.arange(6.0).view(2, 3).T,
        torch.arange(4, dtype=torch.int32),
        torch.tensor(7).expand(1),
    ]
    packed = copied(made, torch.device("cpu"))
    for one, other in zip(made, packed, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)
    assert len({tensor.untyped_storage().data_ptr() for tensor in packed}) == 1


def long_line(words: int, step: int = 1) -> str:
    """A sentence in all five layers, as a line of JSON; every `step`-th word is a predicate."""
    return json.dumps(
        {
            "id": "long", "words": ["cat"] * words, "tags": ["NN"] * words,
            "arcs": {"heads": [0, *range(1, words)], "relations": ["root", *["dep"] * (words - 1)]},
            "tree": f"(TOP (S {' '.join(['(NN cat)'] * words)}))",
            "entities": [[0, 1, "PER"]],
            "frames": [
                {"predicate": word, "sense": None, "arguments": [[words - 1 - word, words - word, "A0"]]}
                for word in range(0, words, step)
            ],
        }
    )  # fmt: skip


@pytest.fixture
def corpus(few: Path, tmp_path: Path) -> Path:
    """A small corpus, whose train split has 10,000 words in its fourth sentence."""
    for split in ("train", "dev", "test"):
        text = (few / f"{split}.jsonl").read_text().splitlines(keepends=True)
        if split == "train":
            text.insert(3, long_line(10_000, 100) + "\n")
        (tmp_path / f"{split}.jsonl").write_text("".join(text))
    return tmp_path


def words_of(corpus: Path, encoder: Path) -> list[str]:
    return [
        "train", f"--corpus.path={corpus}", f"--encoder.name={encoder}", f"--runs={corpus / 'runs'}",
        "--name=run", "--max_epochs=1", "--trainer.accelerator=cpu",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_long_sentence_is_left_out_of_training_with_file_and_line(corpus, tiny_encoder, capsys):
    assert main(words_of(corpus, tiny_encoder)) == 0
    text = capsys.readouterr().out.replace("\n", " ")
    expected = f"train: 1 sentence has more than 512 words (the first, {corpus / 'train.jsonl'}:4, 10,000)"
    assert f"{expected}: left out" in text
    assert "train: 24 sentences" in text


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_long_sentence_that_would_be_scored_is_refused(split, corpus, tiny_encoder, capsys):
    with (corpus / f"{split}.jsonl").open("a") as file:
        file.write(long_line(600, 100) + "\n")
    start = time.process_time()
    assert main(words_of(corpus, tiny_encoder)) == 2
    assert time.process_time() - start < 20
    errors = capsys.readouterr().err
    assert f"{corpus / split}.jsonl:9" in errors
    assert "raise batch.max_words" in errors
    assert errors.count("\n") == 1
    assert not (corpus / "runs" / "run").exists()


@pytest.mark.slow
def test_annotating_a_long_sentence_ends_in_one_line(toy, tiny_encoder, tmp_path, monkeypatch, capsys):
    words = words_of(toy, tiny_encoder)
    words[3] = f"--runs={tmp_path}"
    assert main([*words, "--tasks=pos,con"]) == 0
    model = JointModel.from_pretrained(tmp_path / "run")
    with pytest.raises(InputError, match="sentence 2 has 5,000 words, and decoders are given at most 512"):
        model.annotate([["a"], ["a"] * 5000])
    assert len(model.annotate([["a"] * 12], max_words=12)) == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b\n" + b"a " * 5000)))
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), "--input=tokens"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("mtl: skipped: standard input, line 2: ")
    assert "5,000 words" in errors
    assert errors.count("\n") == 1


def test_readers_know_where_a_sentence_was(tmp_path):
    (tmp_path / "a.jsonl").write_text('\n{"words": ["a"]}\n')
    (tmp_path / "a.conllu").write_text("# x\n1\ta\t_\t_\t_\t_\t0\troot\t_\t_\n\n")
    (tmp_path / "a.mrg").write_text("\n\n(TOP (S (NN a)))\n")
    places = [
        reader(tmp_path / name)[0].place
        for reader, name in ((read_jsonl, "a.jsonl"), (read_conllu, "a.conllu"), (read_brackets, "a.mrg"))
    ]
    assert places == [f"{tmp_path / 'a.jsonl'}:2", f"{tmp_path / 'a.conllu'}:2", f"{tmp_path / 'a.mrg'}:3"]
    assert Sentence(("a",), place="x:1") == Sentence(("a",), place="y:2")


def test_the_limit_counts_words():
    sentences = [Sentence(("a",) * length, id=f"s{length}") for length in (3, 4, 5, 9)]
    assert describe_long(sentences, 9) is None
    assert describe_long(sentences, 4) == "2 sentences have more than 4 words (the first, sentence 's5', 5)"
    with pytest.raises(InputError, match=r"^test: 1 sentence has more than 8 words"):
        require_limit(sentences, 8, "test")


def test_a_batch_is_bounded_in_pairs_of_words():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 600, 300).tolist()
    batches = buckets(lengths, 10**6, None, rng)
    assert sorted(index for batch in batches for index in batch) == list(range(300))
    for batch in batches:
        pairs = len(batch) * max(lengths[index] for index in batch) ** 2
        assert pairs <= BATCH_PAIRS or len(batch) == 1
    assert buckets([1500, 3], 10**6, None, None) == [(0,), (1,)]


SCRIPT = """
import sys, torch
from pathlib import Path
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.models.batches import buckets, collate, examples
from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from mtl.tasks.catalogue import STRUCTURED
tasks = {task.name: task() for task in STRUCTURED}
for sentences in map(read_jsonl, map(Path, sys.argv[1:])):
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(Encoder.from_pretrained("minilm"), tasks, labels)
    optimizer = torch.optim.AdamW(model.parameters())
    corpus = examples(sentences, model.encoder.tokenizer, tasks, labels)
    [rows] = buckets([example.length for example in corpus], 6400, 16, None)
    batch = collate([corpus[index] for index in rows], model.encoder.tokenizer, tasks)
    sum(model.losses(batch, model(batch)).values()).backward()
    optimizer.step()
    model.annotate([sentence.words for sentence in sentences])
    del model, optimizer, batch
    # Unlike ru_maxrss, which a child inherits, VmHWM begins with the program.
    [peak] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print(len(rows), int(peak.split()[1]) / 2**20)
"""


@pytest.mark.slow
def test_the_longest_sentences_train_and_are_annotated_in_under_4_gib(tmp_path):
    """One sentence at the limit in which each word is a predicate, and a full batch with a fifth of them."""
    cases, files = [(1, MAX_WORDS, 1), (16, 250, 5)], []
    for sentences, words, step in cases:
        files.append(tmp_path / f"{sentences}.jsonl")
        files[-1].write_text(f"{long_line(words, step)}\n" * sentences)
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *files],
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    printed = [line.split() for line in result.stdout.splitlines()]
    assert [int(rows) for rows, _ in printed] == [sentences for sentences, *_ in cases]
    assert all(float(gib) < 4 for _, gib in printed), result.stdout
