from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch

from mtl.analysis.probe import index_corpus, probe_heads, probe_run
from mtl.commands.main import main
from mtl.config.schema import CorpusConfig, Files
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.errors import InputError
from mtl.heads.gates import HeadGates, Mask
from mtl.models.joint import JointModel
from mtl.probes.measures.groups import MADE_BY_PROBING
from mtl.probes.tables import heads_table as table
from mtl.runs.compare.heads import heads_of
from mtl.runs.compare.run_set import RunSet
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence import Sentence
from tests.mtl import tiny

# All words of the generated corpus are among the 500 most frequent, so that none is rare.
IN_TOY = set(MADE_BY_PROBING) - {"rare_words", "syntactic_possible"}
"""Rare words need more text, `syntactic_possible` a causal model."""
NAMES = ("pos", "ner", "dep", "con", "srl")


def model(toy: Path, tasks: tuple[str, ...], masks: tuple[str, ...] | None) -> JointModel:
    """A model with random weights and some heads closed."""
    encoder = tiny.encoder("bert", dtype=torch.float32)
    chosen = {name: TASKS[name]() for name in tasks}
    sentences = read_jsonl(toy / "test.jsonl")
    gates = None
    if masks is not None:
        gates = HeadGates(encoder.layers, encoder.heads, masks=masks, init_mean=0.0, init_std=4.0)
        assert not gates.open().all()
    return JointModel(encoder, chosen, {name: task.labels(sentences) for name, task in chosen.items()}, gates)


def saved_run(built: JointModel, toy: Path, folder: Path) -> Path:
    built.save(folder / "model")
    (folder / "config.yaml").write_text(f"corpus:\n  path: {toy}\n")
    return folder


def rows(frame: pl.DataFrame, *measures: str) -> pl.DataFrame:
    return frame.filter(pl.col("measure").is_in(measures))


def own_rows(frame: pl.DataFrame, task: str) -> pl.DataFrame:
    return rows(frame, "attention", "clustering").filter(task=task)


@pytest.mark.slow
def test_a_run_is_probed_in_all_tasks_under_its_shared_mask(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = model(toy, ("pos",), ("shared",))
    run = saved_run(built, toy, tmp_path / "run")
    assert main(["probe", str(run)]) == 0
    frame, provenance = table.read_heads_table(run / "heads.parquet")
    assert set(frame["measure"]) == IN_TOY
    assert set(rows(frame, "attention", "clustering")["task"]) == set(NAMES)
    assert (provenance["split"], provenance["masks"], provenance["sentences"]) == ("test", "true", "30")
    corpus = index_corpus(read_jsonl(toy / "test.jsonl"))
    assert frame.equals(probe_heads(built.encoder, corpus, Mask("", NAMES, built.gates.gate()[0].detach())))
    layer, head = (built.gates.gate()[0] == 0).nonzero()[0].tolist()
    closed = rows(frame, "clustering").filter(layer=layer, head=head)
    assert set(closed["value"]) == {0.0}
    printed = capsys.readouterr().out
    assert "dep: attention (root+words), in %" in printed
    assert "weighted mean" in printed

    assert main(["probe", str(run), "--masks=false"]) == 0
    open_frame, provenance = table.read_heads_table(run / "heads.parquet")
    assert provenance["masks"] == "false"
    assert open_frame.equals(probe_heads(built.encoder, corpus, Mask("", NAMES, None)))


def test_each_task_is_probed_under_its_own_mask(toy: Path, tmp_path: Path) -> None:
    built = model(toy, ("pos", "dep"), ("pos", "dep"))
    built.save(tmp_path / "model")
    out = tmp_path / "out"
    assert main(["probe", str(tmp_path / "model"), f"--corpus={toy}", f"--out={out}"]) == 0
    frame, _ = table.read_heads_table(out / "heads.parquet")
    assert set(rows(frame, "attention", "clustering")["task"]) == {"pos", "dep"}
    assert set(rows(frame, "confidence")["task"]) == {"pos", "dep"}
    corpus = index_corpus(read_jsonl(toy / "test.jsonl"))
    for turn, name in enumerate(("pos", "dep")):
        alone = probe_heads(built.encoder, corpus, Mask(name, (name,), built.gates.gate()[turn].detach()))
        other = probe_heads(built.encoder, corpus, Mask(name, (name,), built.gates.gate()[1 - turn].detach()))
        assert own_rows(frame, name).equals(own_rows(alone, name))
        assert not own_rows(frame, name).equals(own_rows(other, name))


def test_measures_of_others_stay_and_own_ones_are_replaced(toy: Path, tmp_path: Path) -> None:
    run = saved_run(model(toy, ("pos",), None), toy, tmp_path / "run")
    conflict = {
        "measure": "gradient_conflict", "task": "", "label": "pos-dep", "choice": "",
        "attention": "self", "layer": 0, "head": 1, "value": 0.5, "count": 3,
    }  # fmt: skip
    pl.DataFrame([conflict, conflict | {"measure": "attention", "label": "stale"}]).write_parquet(
        run / "heads.parquet"
    )
    assert main(["probe", str(run), "--final_special=true"]) == 0
    frame, _ = table.read_heads_table(run / "heads.parquet")
    assert rows(frame, "gradient_conflict").height == 1
    assert "stale" not in frame["label"].to_list()
    assert set(rows(frame, "attention")["choice"]) == {"root+words+final", "words+final"}


@pytest.mark.slow
def test_centroids_from_train_and_markdown(toy: Path, tmp_path: Path) -> None:
    encoder = tiny.encoder("bert", dtype=torch.float32)
    encoder.save(tmp_path / "encoder")
    summary = tmp_path / "table.md"
    arguments = [f"--corpus={toy}", f"--out={tmp_path}", "--centroids=train", f"--markdown={summary}"]
    assert main(["probe", str(tmp_path / "encoder"), *arguments]) == 0
    frame, _ = table.read_heads_table(tmp_path / "heads.parquet")
    corpus = index_corpus(read_jsonl(toy / "test.jsonl"), read_jsonl(toy / "train.jsonl"), "train")
    assert frame.equals(probe_heads(encoder, corpus, Mask("", NAMES, None)))
    assert set(rows(frame, "clustering")["choice"]) == {"train"}
    assert not frame.equals(probe_heads(encoder, index_corpus(corpus.sentences), Mask("", NAMES, None)))
    assert "## pos: clustering (train)" in summary.read_text()


@pytest.mark.slow
def test_constituents_of_every_height_by_clustering_or_by_their_ends(toy: Path, tmp_path: Path) -> None:
    """Labels have heights, and lengths are in words."""
    built = model(toy, ("con", "dep"), None)
    runs = []
    for chosen in ("all", "ends", "lowest"):
        runs.append(saved_run(built, toy, tmp_path / chosen))
        assert main(["probe", str(runs[-1]), f"--constituents={chosen}"]) == 0
    every, ends, lowest = (table.read_heads_table(run / "heads.parquet")[0] for run in runs)
    assert set(own_rows(every, "con")["measure"]) == {"clustering"}
    assert set(own_rows(ends, "con")["measure"]) == {"attention"}
    labels = set(own_rows(every, "con")["label"])
    assert {"S-5", "NP-3"} <= labels
    assert labels >= set(own_rows(ends, "con")["label"])
    assert {f"{label}-3" for label in own_rows(lowest, "con")["label"].unique()} <= labels
    gaps = [
        (relation, abs(word - head))
        for sentence in read_jsonl(toy / "test.jsonl")
        for word, (head, relation) in enumerate(
            zip(sentence.arcs.heads, sentence.arcs.relations, strict=True), 1
        )
        if head
    ]
    lengths = rows(every, "attention_length").filter(task="dep")
    assert "root" not in set(lengths["label"])
    for label, value, count in lengths.select("label", "value", "count").iter_rows():
        of_label = [gap for relation, gap in gaps if relation == label]
        assert (count, value) == (len(of_label), pytest.approx(sum(of_label) / len(of_label)))


def test_records_kept_or_not_and_progress() -> None:
    encoder = tiny.encoder("bert", dtype=torch.float32)
    sentences = [Sentence(("dog", "saw"), tags=("NN", "VB")), Sentence(("the", "cat"), tags=("DT", "NN"))] * 3
    corpus = index_corpus(sentences)
    mask = Mask("", ("pos",), None)
    seen: list[int] = []
    assert probe_heads(encoder, corpus, mask, advance=seen.append).equals(
        probe_heads(encoder, corpus, mask, kept=0)
    )
    assert sum(seen) == 6


def test_what_is_missing_is_said(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "minilm", f"--corpus={toy}"]) == 2
    assert "use --out=FOLDER" in capsys.readouterr().err
    assert main(["probe", "minilm", f"--out={tmp_path}"]) == 2
    assert "use --corpus=FOLDER" in capsys.readouterr().err
    tagged = [Sentence(each.words, tags=each.tags) for each in read_jsonl(toy / "test.jsonl")]
    write_jsonl(tmp_path / "corpus" / "test.jsonl", tagged)
    run = saved_run(model(toy, ("pos", "dep"), ("pos", "dep")), toy, tmp_path / "run")
    assert main(["probe", str(run), f"--corpus={tmp_path / 'corpus'}"]) == 0
    assert "not probed: dep: no test sentence is annotated for it" in capsys.readouterr().out
    write_jsonl(tmp_path / "corpus" / "test.jsonl", [Sentence(each.words) for each in tagged])
    assert main(["probe", str(run), f"--corpus={tmp_path / 'corpus'}"]) == 2
    assert "none of 30 sentences has an annotation" in capsys.readouterr().err
    with pytest.raises(InputError, match="annotated for pos"):
        index_corpus(tagged, [Sentence(("x",))], "train")


def test_a_corpus_of_folders_and_globs_is_probed(toy: Path, tmp_path: Path) -> None:
    """As configs/study/ontonotes.yaml gives it: not a file but a folder, or a glob, for each split."""
    corpus = tmp_path / "corpus"
    lines = (toy / "test.jsonl").read_text().splitlines(keepends=True)
    for number, part in enumerate((lines[:10], lines[10:])):
        (corpus / "test").mkdir(parents=True, exist_ok=True)
        (corpus / "test" / f"{number}.jsonl").write_text("".join(part))
    run = saved_run(model(toy, ("pos",), None), toy, tmp_path / "run")
    whole = probe_run(str(run), CorpusConfig(str(toy)), tmp_path / "whole")
    untrained = ", ".join(name for name in NAMES if name != "pos")
    assert whole.notes == (f"the model was not trained on {untrained}: its heads learned other tasks",)
    for test in (corpus / "test", corpus / "test" / "*.jsonl"):
        source = CorpusConfig(path=None, pos=Files(test=str(test)))
        result = probe_run(str(run), source, tmp_path / "parts")
        assert result.notes == ()
        assert rows(result.heads, "clustering").equals(rows(whole.heads, "clustering").filter(task="pos"))
        written, provenance = table.read_heads_table(result.path)
        assert written.equals(result.heads)
        assert len(provenance["corpus"]) == 64


def test_runs_keep_every_measure_when_they_are_read_together(toy: Path, tmp_path: Path) -> None:
    run = saved_run(model(toy, ("pos", "dep"), None), toy, tmp_path / "run")
    (run / "config.yaml").write_text(
        f"corpus: {{path: {toy}}}\ntasks: [pos, dep]\nseed: 1\nencoder: {{name: tiny}}\n"
    )
    probe_run(str(run))
    heads = heads_of(RunSet.open([run]))
    assert set(heads["measure"]) == IN_TOY
    assert set(heads["task"]) == {"pos", "dep", ""}
