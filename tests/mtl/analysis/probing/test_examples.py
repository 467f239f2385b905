"""The examples beside heads.parquet are the sentences that its values are measured on."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch

from mtl.analysis.probe import index_corpus, probe_heads
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.heads.gates import Mask
from mtl.probes.measures.attention import LENGTHS, ExampleProbe, kept_sentence_numbers
from mtl.probes.report.data import RunExamples
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import SENTENCES, ExampleTables
from mtl.runs.report.gather import examples_of
from tests.mtl import tiny

TASKS = ("dep", "srl")


@pytest.mark.parametrize(("family", "final"), [("bert", False), ("bert", True), ("gpt2", False)])
def test_hits_are_those_of_the_probes(toy: Path, tmp_path: Path, family: str, final: bool) -> None:
    encoder = tiny.encoder(family, dtype=torch.float32)
    fitting = [sentence for sentence in read_jsonl(toy / "dev.jsonl") if len(sentence) in LENGTHS]
    corpus = index_corpus(fitting[:SENTENCES])
    seen = ExampleProbe(corpus, "", final)
    measured = probe_heads(
        encoder, corpus, Mask("", TASKS, None), final_special=final, watch=seen.update, kept=0
    )
    heads_table.write_examples(tmp_path / "e", ExampleTables(seen.sentences, seen.table(encoder.tap.sites)))
    read = heads_table.read_examples(tmp_path / "e")
    assert [each.words for each in read.sentences] == [sentence.words for sentence in corpus.sentences]
    rows = []
    for row in read.table.iter_rows(named=True):
        arcs = read.sentences[row["sentence"]].arcs
        rows += [
            (arc.task, arc.label, row["layer"], row["head"], float(hit))
            for arc, hit in zip(arcs, row["hit"], strict=True)
        ]
        assert len(row["attended"]) == len(row["share"]) == len(read.sentences[row["sentence"]].words)
        assert set(row["attended"]) <= {-1, *range(len(row["attended"]))} | ({-2} if final else set())
    keys = ["task", "label", "layer", "head"]
    shown = pl.DataFrame(rows, [*keys, "hit"], orient="row").group_by(keys).agg(pl.col("hit").mean())
    both = measured.filter(measure="attention").join(
        shown.cast({"layer": pl.Int32, "head": pl.Int32}), on=keys, how="full"
    )
    assert both["hit"].null_count() == both["value"].null_count() == 0
    assert (both["hit"] - both["value"]).abs().max() < 1e-6


def test_a_long_corpus_gives_some_of_its_sentences(toy: Path) -> None:
    sentences = read_jsonl(toy / "train.jsonl")
    numbers = kept_sentence_numbers(sentences)
    assert len(set(numbers)) == SENTENCES
    assert numbers[-1] > len(sentences) / 2
    assert all(len(sentences[number]) in LENGTHS for number in numbers)
    assert kept_sentence_numbers([]) == ()


def test_of_each_regime_and_task_the_first_run_is_read_and_a_damaged_file_noted(tmp_path: Path) -> None:
    runs = [
        ("stl", "a", 2, "dep"),
        ("stl", "b", 1, "dep"),
        ("stl", "c", 1, "pos"),
        ("pretrained", "d", 0, "dep"),
    ]
    empty = ExampleTables((), pl.DataFrame(schema=heads_table.EXAMPLES_SCHEMA))
    for _, name, _, _ in runs:
        (tmp_path / name).mkdir()
        heads_table.write_examples(tmp_path / name / heads_table.FILE, empty)
    (tmp_path / "d" / heads_table.FILE).write_bytes(b"no table")
    (tmp_path / "c" / heads_table.FILE).unlink()
    heads = pl.DataFrame(
        [(regime, str(tmp_path / name), seed, task) for regime, name, seed, task in runs],
        ["regime", "run", "seed", "task"], orient="row",
    )  # fmt: skip
    notes: list[str] = []
    found = examples_of(heads, notes)
    assert [(each.regime, Path(each.run).name, each.tasks) for each in found] == [("stl", "b", ("dep",))]
    assert all(isinstance(each, RunExamples) for each in found)
    assert len(notes) == 1
    assert "d/examples.parquet: cannot be read" in notes[0]
    assert examples_of(None, notes) == ()
