"""Studies of translation: masks of one kind of attention and of all, from scratch under masks, the report."""

from __future__ import annotations

import dataclasses
import io
import shutil
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from mtl.config.schema import TrainConfig
from mtl.corpora.formats.jsonl import write_jsonl
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.probes.tables import heads_table
from mtl.runs.report.write import write_report
from mtl.study.config import GridBlock, ProbesConfig, StudyConfig
from mtl.study.grid import planned
from mtl.study.jobs import StudyFolder
from mtl.study.perform import StudyJobs
from mtl.study.plan import carrying_out, make_plan
from mtl.tasks.sentence import Sentence
from tests.mtl.translation import digits

ENCODER = {"gates.kinds": ["encoder"], "gates.target_open": 2}
PLAIN = GridBlock(("STL",), ("none",))
PRUNED = GridBlock(("STL",), ("static",), ENCODER, "encoder")
COMPETING = GridBlock(("STL",), ("dynamic",), {"gates.target_open": 6}, "all")
SCRATCH = GridBlock(("STL",), ("fixed",), label="scratch", masks_of="encoder")


def study_of(train: TrainConfig, *grid: GridBlock, **changes) -> StudyConfig:
    train = dataclasses.replace(train, name=None, runs="runs")
    return StudyConfig(train=train, grid=grid, **{"seeds": (1,), **changes})


def test_fixed_masks_of_a_block_are_those_of_its_run_with_the_same_seed(tmp_path):
    train = digits.config(tmp_path)
    study = study_of(train, SCRATCH, PRUNED, PLAIN, seeds=(1, 2))
    runs = planned(study, tmp_path / "s")
    after = {run.name: run.needs for run in runs}
    for seed in (1, 2):
        pruned, scratch = f"translate-static-encoder-seed{seed}", f"translate-fixed-scratch-seed{seed}"
        assert after[scratch] == pruned
        assert after[pruned] == f"translate-seed{seed}"
        config = next(run.config for run in runs if run.name == scratch)
        assert config.gates.masks == str(tmp_path / "s" / "runs" / pruned / "gates.parquet")
        assert config.init_from is None
    names = list(after)
    assert all(need is None or names.index(need) < names.index(name) for name, need in after.items())


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (dataclasses.replace(SCRATCH, masks_of="other"), "masks_of=other: 0 blocks with this label"),
        (dataclasses.replace(SCRATCH, masks=("fixed_per_task",)), "with a mask per task"),
        (dataclasses.replace(SCRATCH, masks=("dynamic",)), r"set masks: \[fixed\]"),
        (
            dataclasses.replace(SCRATCH, set={"gates.masks": "m.parquet"}),
            "names the masks: leave gates.masks",
        ),
    ],
)
def test_masks_of_no_other_block_are_one_line(block, message, tmp_path):
    with pytest.raises(InputError, match=message):
        planned(study_of(digits.config(tmp_path), PLAIN, PRUNED, block), Path("s"))


def test_targets_by_kind_in_a_block(tmp_path):
    by_kind = {"encoder": 2, "decoder": 1, "cross": 0.5}
    whole = GridBlock(("STL",), ("dynamic",), {"gates.target_open": by_kind}, "whole")
    dotted = GridBlock(
        ("STL",), ("dynamic",), {f"gates.target_open.{kind}": wanted for kind, wanted in by_kind.items()},
        "dotted",
    )  # fmt: skip
    first, second = planned(study_of(digits.config(tmp_path), whole, dotted), tmp_path / "s")
    assert first.config.gates == second.config.gates
    assert first.config.gates.target_open == by_kind
    some = dataclasses.replace(whole, set={"gates.target_open.cross": 1})
    with pytest.raises(InputError, match=r"run translate-dynamic-whole-seed1: .* for encoder, decoder"):
        make_plan(study_of(digits.config(tmp_path), some), StudyFolder(tmp_path / "s"), None)
    many = dataclasses.replace(whole, set={"gates.target_open": {**by_kind, "cross": 3}})
    with pytest.raises(InputError, match=r"gates\.target_open\.cross=3: .* there are only 2 heads"):
        make_plan(study_of(digits.config(tmp_path), many), StudyFolder(tmp_path / "s"), None)


@pytest.mark.slow
def test_a_run_that_translates_is_measured_by_what_needs_no_labels_of_words(tmp_path):
    study = study_of(
        digits.config(tmp_path), PLAIN, probes=ProbesConfig(measures=("probes", "importance", "ablation"))
    )
    folder = StudyFolder(tmp_path / "s")
    [job] = make_plan(study, folder, None).wanted
    assert job.measures() == ["importance", "ablation"]
    only_probes = dataclasses.replace(study, probes=ProbesConfig())
    assert [job.probes for job in make_plan(only_probes, folder, None).wanted] == [None]


@pytest.mark.slow
def test_a_run_that_translates_is_probed_on_annotated_sources_that_are_given(tmp_path):
    write_jsonl(tmp_path / "parsed" / "test.jsonl", [Sentence(("2", "1"), tags=("A", "B"))])
    study = study_of(
        digits.config(tmp_path), PLAIN,
        probes=ProbesConfig(measures=("probes", "importance"), corpus=str(tmp_path / "parsed")),
    )  # fmt: skip
    folder = StudyFolder(tmp_path / "s")
    [job] = make_plan(study, folder, None).wanted
    assert job.measures() == ["probes", "importance"]
    # Its content counts, its place does not.
    shutil.copytree(tmp_path / "parsed", tmp_path / "moved")
    moved = dataclasses.replace(study.probes, corpus=str(tmp_path / "moved"))
    [again] = make_plan(dataclasses.replace(study, probes=moved), folder, None).wanted
    assert again.made_of == job.made_of
    write_jsonl(tmp_path / "moved" / "test.jsonl", [Sentence(("2", "1"), tags=("A", "C"))])
    [changed] = make_plan(dataclasses.replace(study, probes=moved), folder, None).wanted
    assert {key for key in changed.made_of if changed.made_of[key] != job.made_of[key]} == {"probes"}
    on_dev = dataclasses.replace(study.probes, split="dev")
    with pytest.raises(InputError, match=r"probes\.corpus=.*: dev\.jsonl, on which .* probed, is missing"):
        make_plan(dataclasses.replace(study, probes=on_dev), folder, None)
    work_on = dataclasses.replace(study, train=dataclasses.replace(study.train, max_epochs=1))
    with carrying_out(make_plan(work_on, folder, InputCache())):
        StudyJobs(folder, InputCache()).work()
    progress = folder.progress("translate-seed1")
    assert progress.state == "finished", progress.error
    heads = pl.read_parquet(folder.run("translate-seed1") / "heads.parquet")
    assert set(heads.filter(measure="positional")["attention"]) == {"encoder"}
    page = write_report(folder.path, Console(file=io.StringIO()), at_end=True)
    assert page is not None


@pytest.mark.slow
def test_a_study_of_translation_runs_through_to_its_report(tmp_path):
    train = digits.config(
        tmp_path, epochs=2, seq2seq=dataclasses.replace(digits.config(tmp_path).seq2seq, layers=2)
    )
    probes = ProbesConfig(
        measures=("importance", "relevance", "ablation", "curve", "carry_over"),
        close=("head", "all_but_one"), orders=("importance", "random"), draws=1,
        other=digits.write(tmp_path, 5, 9),
    )  # fmt: skip
    study = study_of(train, PLAIN, PRUNED, COMPETING, SCRATCH, probes=probes, seeds=(1, 2))
    folder = StudyFolder(tmp_path / "s")
    inputs = InputCache()
    with carrying_out(make_plan(study, folder, inputs)):
        StudyJobs(folder, inputs).work()
    states = folder.snapshot().states()
    assert set(states.values()) == {"finished"}, {name: folder.progress(name).error for name in states}
    # From scratch under the masks of the run with the same seed.
    given = pl.read_parquet(folder.run("translate-static-encoder-seed2") / "gates.parquet")
    fixed = pl.read_parquet(folder.run("translate-fixed-scratch-seed2") / "gates.parquet")
    keys = ["attention", "layer", "head"]
    last = [table.filter(pl.col("step") == pl.col("step").max()).sort(keys) for table in (given, fixed)]
    assert last[0]["open"].to_list() == last[1]["open"].to_list()
    assert last[1].filter(attention="encoder")["open"].sum() == 2

    # Everything that the file asks for, of the unmasked runs alone.
    unmasked = folder.run("translate-seed1")
    heads = pl.read_parquet(unmasked / "heads.parquet")
    assert {"importance", "relevance", "ablation", "ablation_all_but_one"} <= set(heads["measure"])
    assert set(pl.read_parquet(unmasked / "curve.parquet")["by"]) == {"importance", "random"}
    carried = [
        heads_table.read_heads_table(unmasked / f"importance-{place}.parquet")[1]
        for place in ("own", "other")
    ]
    assert [made["importance.sentences"] for made in carried] == ["8", "5"]
    assert not (folder.run("translate-dynamic-all-seed1") / "curve.parquet").exists()
    # The content of the other text counts, and of the measures only carry-over.
    before = {job.name: job.made_of for job in folder.jobs()}
    changed = dataclasses.replace(probes, other=digits.write(tmp_path, 5, 10))
    for job in make_plan(dataclasses.replace(study, probes=changed), folder, None).wanted:
        differing = {part for part in job.made_of if job.made_of[part] != before[job.name][part]}
        assert differing == ({"carry_over"} if job.probes is not None else set())

    printed = io.StringIO()
    page = write_report(folder.path, Console(file=printed, width=500), at_end=True)
    assert page is not None
    text = page.read_text()
    assert "marian from scratch" in text
    assert "2 encoder, 2 decoder and 2 cross layers of 2 heads" in text
    assert '[["encoder",0],["encoder",1],["decoder",0]' in text  # by which the head explorer names heads
    assert '<section id="worth">' in text
    # Three kinds of masks with a target, two seeds.
    choices = pl.read_parquet(folder.path / "tables" / "choices.parquet")
    assert set(choices["mask"]) == {"translate"}
    assert choices.height == 4
    moved = choices["open_at_choice"] + choices["forced_open"] - choices["forced_closed"]
    assert sorted(moved.to_list()) == [2, 2, 6, 6]
    assert "What the final choice of heads for a target changed: 4 masks" in text
    assert '<section id="labels">' not in text
    assert '<section id="competition">' not in text
    notes = [line for line in printed.getvalue().splitlines() if line.startswith("note: ")]
    expected = ("were set at its end", "at all heads", "nothing was learned")
    assert [note for note in notes if not any(text in note for text in expected)] == []
    assert "no figure" not in printed.getvalue()
    for figure in ("heads-kept", "curve", "curve-kinds"):
        assert (folder.path / "figures" / f"{figure}.pdf").is_file()
