"""`mtl compare`: two sets of runs on the same sentences, and what it refuses."""

from __future__ import annotations

import html
from dataclasses import asdict
from pathlib import Path
from shutil import copytree

import numpy as np
import polars as pl
import pytest
from PIL import Image

from mtl.commands.main import main
from mtl.config.effective import plain
from mtl.config.instances import Instance
from mtl.config.schema import TrainConfig
from mtl.corpora.formats.jsonl import write_jsonl
from mtl.probes.statistics.compared_runs import compare_setups
from mtl.probes.tables.table_files import escape
from mtl.runs.folder import run_tables
from mtl.runs.folder.run import Run
from mtl.tasks.metrics import share
from mtl.tasks.sentence import Sentence
from mtl.tasks.structured import Dep

SENTENCES = 40


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of POS alone and two of POS with DEP, which are worse at POS."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    for tasks, names, skill in ((("pos",), ("a1", "a2"), 0.9), (("pos", "dep"), ("b1", "b2"), 0.7)):
        for seed, name in enumerate(names):
            run = Run(tmp_path / name)
            run.create(plain(asdict(TrainConfig(name=name, tasks=tasks, seed=seed))))
            rows = [
                {"task": task, "sentence": number, "key": number, "counts": [rng.binomial(20, skill), 20]}
                for task in tasks
                for number in range(SENTENCES)
            ]
            run_tables.write_counts(run, "test", pl.DataFrame(rows, schema=run_tables.COUNTS_SCHEMA))
    return tmp_path


def test_the_table_is_that_of_the_statistic(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A list as an option takes all words up to the next option, as a shell writes a pattern's files.
    assert main(["compare", "a1", "a2", "--against", "b1", "b2", "--out", "c.pdf", "--draws=200"]) == 0
    printed = capsys.readouterr().out
    [row] = pl.read_parquet("c.parquet").rows(named=True)
    assert (row["task"], row["runs"], row["runs_against"], row["sentences"]) == ("pos", 2, 2, SENTENCES)
    counts = [
        np.array(
            [
                run_tables.read_counts(Run(runs / name), "test").filter(task="pos")["counts"].to_list()
                for name in side
            ]
        )
        for side in (("a1", "a2"), ("b1", "b2"))
    ]
    expected = compare_setups(*counts, share, draws=200)
    assert (row["both_low"], row["both_high"]) == expected.both
    assert (row["p"], row["p_sentences"]) == (expected.p, expected.p_sentences)
    assert row["holm"] == row["p"]
    assert f"{row['difference']:+.2f}" in printed
    assert {path.name for path in runs.glob("c.*")} == {"c.pdf", "c.tex", "c.csv", "c.parquet"}


@pytest.mark.parametrize(("side", "over"), [(["a1"], "other sentences"), (["a1", "a2"], "both")])
def test_the_table_for_a_paper_says_what_its_interval_is_over(runs: Path, side: list[str], over: str) -> None:
    others = [name.replace("a", "b") for name in side]
    assert main(["compare", *side, "--against", *others, "--draws=200", "--out=c.tex"]) == 0
    written = (runs / "c.tex").read_text()
    assert f"over both; in .tex: over {over}\n" in written
    row = next(line for line in written.splitlines() if line.startswith("pos"))
    assert " to " in row
    assert "--" not in row


def test_notes_are_in_every_file(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "a1", "--against", "b1", "--draws=200"]
    kinds = ("tex", "csv", "parquet", "png", "svg", "pdf")
    assert [main([*words, f"--out={runs / 'of'}-{kind}.{kind}"]) for kind in kinds] == [0] * len(kinds)
    printed = capsys.readouterr().out.splitlines()
    notes = {line.removeprefix("note: ") for line in printed if line.startswith("note: ")}
    assert notes
    for path in runs.glob("of-*"):
        if path.suffix == ".parquet":
            text = str(pl.read_parquet(path)["notes"].to_list())
        elif path.suffix == ".png":
            with Image.open(path) as picture:
                text = picture.info["Description"]
        else:
            text = html.unescape(path.read_text(encoding="utf-8", errors="replace"))
        assert [note for note in notes if note not in text.replace("\\", "")] == [], path.name


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [
        (("a1", "a2", "--against", "b1", "b2"), "STL", "MTL-2"),
        (("a1", "a2", "--against", "b1", "b2", "--names=[alone_50%,joint]"), "alone_50%", "joint"),
        (("a1", "--against", "a2", "b1"), "first", "second"),  # two setups on one side
        (("a1", "--against", "a2"), "first", "second"),  # one setup on both
    ],
)
def test_tables_carry_the_names_of_the_sides(
    runs: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], first: str, second: str
) -> None:
    """Two ways to LaTeX: alone, and beside a figure."""
    for out in ("c.tex", "d.pdf"):
        assert main(["compare", *words, "--draws=200", f"--out={out}"]) == 0
        printed = capsys.readouterr().out
        assert f"┃ {first} ┃ {second} ┃ difference ┃" in " ".join(printed.split())
        assert f"{first} less {second} (after --against)" in " ".join(printed.split())
        header, *_ = (runs / out).with_suffix(".tex").read_text().split("\\toprule\n")[1].splitlines()
        assert header.split(" & ")[2:4] == [rf"{escape(first)}, \%", rf"{escape(second)}, \%"]
    assert pl.read_parquet("d.parquet").columns[:8][-2:] == ["mean", "mean_against"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a1", "--against=a1"), "a1 appears twice"),
        (("a1", "--against=b1", "--tasks=[dep]"), "dep: not among the tasks of both sides"),
        (("a1", "--against=nowhere"), "nowhere is not a run folder"),
        (("a1", "--against=b1", "--split=dev"), "a1 has no counts per sentence of dev; write them with"),
        (("a1", "--against=b1", "--level=95"), "--level=95"),
        (("a1", "--against=b1", "--out=c.txt"), "c.txt: use a file that ends in"),
        (("a1",), "--against=AGAINST is missing"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert main(["compare", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_copy_of_a_run_is_no_further_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copytree(runs / "a1", runs / "copy")
    assert main(["compare", "a1", "copy", "--against", "b1", "b2", "--draws=200", "--out=c.parquet"]) == 0
    [row] = pl.read_parquet("c.parquet").rows(named=True)
    assert (row["runs"], row["runs_against"], row["p"]) == (1, 2, None)
    assert "note: copy repeats a1, seed and all: left out" in capsys.readouterr().out


def test_runs_that_score_the_same_have_no_interval_over_runs(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source, other in (("a1", "a2"), ("b1", "b2")):
        run_tables.write_counts(Run(runs / other), "test", run_tables.read_counts(Run(runs / source), "test"))
    assert main(["compare", "a1", "a2", "--against", "b1", "b2", "--draws=200", "--out=c.parquet"]) == 0
    [row] = pl.read_parquet("c.parquet").rows(named=True)
    assert (row["seeds_low"], row["seeds_high"]) == (None, None)
    assert row["both_low"] < row["difference"] < row["both_high"]
    out = capsys.readouterr().out
    assert "note: pos: the runs of each side score the same: no interval over other runs" in out
    assert "a single run" not in out
    assert row["p"] < 0.0001
    assert "<0.0001" in out
    assert "0.0000" not in out


def test_counts_of_another_version_are_one_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(runs / "b2")
    counts = run_tables.read_counts(run, "test")
    more = counts.with_columns(pl.col("counts").list.concat([0.0]))
    run_tables.write_counts(run, "test", more)
    assert main(["compare", "a1", "--against", "b1", "b2"]) == 2
    error = capsys.readouterr().err
    assert "pos: b2 has other counts per sentence than a1" in error
    assert error.count("\n") == 1


def test_sentences_may_have_another_order(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in a run on files that are joined with those of other tasks."""
    command = ["compare", "a1", "--against", "b1", "b2"]
    assert main(command) == 0
    due = capsys.readouterr().out
    run = Run(runs / "b1")
    counts = run_tables.read_counts(run, "test")
    backwards = counts.with_columns(sentence=pl.col("sentence").max() - pl.col("sentence"))
    run_tables.write_counts(run, "test", backwards.sort("sentence"))
    assert main(command) == 0
    assert capsys.readouterr().out == due


def test_other_sentences_are_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(runs / "b1")
    counts = run_tables.read_counts(run, "test")
    run_tables.write_counts(run, "test", counts.with_columns(key=pl.col("key") + 1))
    assert main(["compare", "a1", "--against", "b1"]) == 2
    assert "are scored on different sentences (40 sentences and 40 of test)" in capsys.readouterr().err


def test_what_the_sides_differ_in_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed, changes in (("c1", 5, {"max_epochs": 3}), ("c2", 6, {})):
        other = Run(runs / name)
        other.create(plain(asdict(TrainConfig(name=name, tasks=("pos",), seed=seed, **changes))))
        run_tables.write_counts(other, "test", run_tables.read_counts(Run(runs / "a1"), "test"))
    assert main(["compare", "a1", "--against", "c1", "--draws=100"]) == 0
    assert "note: the two sides differ in max_epochs\n" in capsys.readouterr().out
    assert main(["compare", "a1", "--against", "c2", "b1", "--draws=100"]) == 0
    assert "the two sides differ" not in capsys.readouterr().out


def test_one_name_for_two_tasks_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of a user's own say nothing; a side may begin with a run that does not have the task."""
    kinds = {
        "d1": Instance("tags", layer="tags"),
        "d2": Instance("spans"),
        "d3": Instance("tags", layer="tags"),
    }
    for name, made in kinds.items():
        other = Run(runs / name)
        config = TrainConfig(name=name, tasks=("own",), instances={"own": made})
        other.create(plain(asdict(config)))
        counts = run_tables.read_counts(Run(runs / "a1"), "test").with_columns(task=pl.lit("own"))
        run_tables.write_counts(other, "test", counts)
    assert main(["compare", "a1", "d1", "--against", "d3", "--draws=100"]) == 0
    capsys.readouterr()
    assert main(["compare", "d1", "--against", "d2", "--draws=100"]) == 2
    error = capsys.readouterr().err
    assert "own: the runs have different tasks of this name (kind spans or tags)" in error
    assert error.count("\n") == 1


def test_runs_scored_by_other_rules_are_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The counts of DEP without punctuation are of fewer words."""
    other = Run(runs / "c1")
    other.create(plain(asdict(TrainConfig(name="c1", tasks=("pos", "dep"), dep=Dep(punct=False)))))
    run_tables.write_counts(other, "test", run_tables.read_counts(Run(runs / "b1"), "test"))
    assert main(["compare", "b1", "--against", "c1", "--tasks=[pos]", "--draws=100"]) == 0
    assert main(["compare", "b1", "--against", "c1"]) == 2
    assert "dep: the runs are scored by different dep.punct (false, true)" in capsys.readouterr().err


def test_whole_documents_are_resampled_where_counts_or_a_corpus_know_them(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """14 documents, 13 of three sentences; the counts know them or, for runs scored before, the corpus."""
    words = ["compare", "a1", "a2", "--against", "b1", "b2", "--draws=200", "--out=c.parquet"]
    assert main(words) == 0
    assert pl.read_parquet("c.parquet")["documents"].to_list() == [None]
    assert (
        "resampled: sentences, as if all were independent: the corpus does not say" in capsys.readouterr().out
    )
    (runs / "corpus").mkdir()
    sentences = [Sentence((f"w{number}",), document=f"d{number // 3}") for number in range(SENTENCES)]
    write_jsonl(runs / "corpus" / "test.jsonl", sentences)
    key = pl.Series("key", map(run_tables.key_of, sentences), pl.UInt32)
    sides = []
    for side in (("a1", "a2"), ("b1", "b2")):
        counts = []
        for name in side:
            path = runs / name / "sentence_counts" / "test.parquet"
            table = run_tables.read_counts(Run(runs / name), "test").filter(task="pos").with_columns(key)
            counts.append(table["counts"].to_list())
            table.drop("document").write_parquet(path)  # as earlier versions wrote it
        sides.append(np.array(counts)[:, : 13 * 3].reshape(2, 13, 3, 2).sum(2))
        sides[-1] = np.concatenate([sides[-1], np.array(counts)[:, 39:40]], 1)
    effective = (13 * 9 + 1) ** 2 / (13 * 81 + 1)
    expected = compare_setups(*sides, share, effective=effective, draws=200)
    for given in (["--corpus=corpus"], []):
        if not given:
            for name in ("a1", "a2", "b1", "b2"):
                table = run_tables.read_counts(Run(runs / name), "test")
                document = pl.Series("document", [sentence.document for sentence in sentences])
                run_tables.write_counts(Run(runs / name), "test", table.with_columns(document))
        assert main([*words, *given]) == 0
        printed = capsys.readouterr().out
        assert "note: resampled: 14 documents\n" in printed
        assert "other documents" in printed
        [row] = pl.read_parquet("c.parquet").rows(named=True)
        assert (row["sentences"], row["documents"]) == (SENTENCES, 14)
        assert (row["both_low"], row["both_high"], row["p"]) == pytest.approx((*expected.both, expected.p))
    write_jsonl(runs / "corpus" / "test.jsonl", sentences[::-1])
    assert main([*words, "--corpus=corpus"]) == 2
    assert "pos: --corpus has other sentences in test than the runs" in capsys.readouterr().err
