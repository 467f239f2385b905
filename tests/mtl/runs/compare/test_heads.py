"""Values of heads are compared only if they were measured alike."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mtl.errors import InputError
from mtl.probes.tables import heads_table
from mtl.runs.compare.heads import heads_of, worth_of
from mtl.runs.compare.run_set import RunSet
from mtl.runs.figures.table import draw
from mtl.runs.folder.run_tables import read_measures, write_measures
from mtl.runs.report.gather import gather
from tests.mtl.studies import SCORES, Study

USUAL = {"split": "dev", "corpus": "c0" * 32, "sentences": "100", "per": "example", "masks": "True"}


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path / "study")


def measured(study, tasks, seed, measure="importance", pruning="none", **settings):
    """A run whose heads were measured with these settings."""
    run = study.run(tasks, seed, pruning=pruning)
    rows = [
        heads_table.rows(name, task, [""], np.full((1, *study.shape), float(seed)), np.array([50]))
        for task in tasks
        for name in (measure, "taylor")
    ]
    made_of = {f"importance.{key}": value for key, value in (USUAL | {"run": str(run)} | settings).items()}
    write_measures(run / "heads.parquet", pl.concat(rows), [measure, "taylor"], made_of)
    return run


@pytest.mark.parametrize(
    ("key", "value"),
    [("split", "test"), ("per", "token"), ("sentences", "20"), ("corpus", "0c" * 32), ("normalised", "True")],
)
def test_a_run_measured_with_other_settings_is_left_out_of_every_mean(study, key, value):
    settings = [{}, {}, {key: value}]
    if key == "normalised":
        settings = [{key: "False"} | given for given in settings]
    runs = [measured(study, ["pos"], seed, **given) for seed, given in enumerate(settings, 1)]
    told = f"{runs[2]}: importance was measured with other settings ({key}={value[:12]}, not"
    values, notes = worth_of(runs)
    assert [note for note in notes if note.startswith(told)]
    assert set(values.filter(measure="importance")["run"]) == {str(run) for run in runs[:2]}
    report = gather(study.root, "test", SCORES)
    assert set(report.worth.filter(measure="importance")["run"]) == {str(run) for run in runs[:2]}
    assert any("importance was measured with other settings" in note for note in report.notes)


@pytest.mark.parametrize(
    ("key", "value"),
    [("split", "dev"), ("final_special", "true"), ("corpus", "e0" * 32), ("constituents", "ends")],
)
def test_skill_by_other_probes_is_in_no_map_and_predicts_nothing(study, key, value):
    runs = [measured(study, ["pos"], seed) for seed in (1, 2, 3)]
    table, made_of = read_measures(runs[2] / "heads.parquet")
    heads_table.write_heads_table(runs[2] / "heads.parquet", table, made_of | {key: value})
    values, notes = worth_of(runs)
    assert set(values.filter(measure="skill")["run"]) == {str(run) for run in runs[:2]}
    assert set(values.filter(measure="importance")["run"]) == {str(run) for run in runs}
    told = f"{runs[2]}: heads were probed with other settings ({key}={value[:12]}, not"
    assert any(note.startswith(told) for note in notes)
    assert set(gather(study.root, "test", SCORES).worth.filter(measure="skill")["run"]) == {
        str(run) for run in runs[:2]
    }


@pytest.mark.parametrize("pruning", ["none", "dynamic"])
def test_masks_count_where_a_run_has_some(study, pruning):
    runs = [
        measured(study, ["pos"], seed, pruning=pruning, masks=masks)
        for seed, masks in enumerate(("True", "True", "False"), 1)
    ]
    values, notes = worth_of(runs)
    assert values.filter(measure="importance")["run"].n_unique() == 3 - (pruning != "none")
    assert any("(masks=False, not True)" in note for note in notes) == (pruning != "none")


def test_other_tasks_have_other_sentences_and_steps_belong_to_integrated_gradients(study):
    runs = [measured(study, ["pos"], 1), measured(study, ["dep"], 1, corpus="d0" * 32, sentences="70")]
    runs += [measured(study, ["ner"], seed, "integrated", steps=str(5 * seed)) for seed in (1, 2)]
    runs += [measured(study, ["ner"], seed, steps="0") for seed in (3, 4, 5)]
    values, notes = worth_of(runs)
    assert values.filter(measure="taylor")["run"].n_unique() == 7
    assert set(values.filter(measure="integrated")["run"]) == {str(runs[2])}
    assert [note for note in notes if "other settings" in note] == [
        f"{runs[3]}: importance was measured with other settings (steps=10, not 5): left out"
    ]


def test_probes_under_masks_and_without_are_never_averaged(study):
    runs = [study.run(["dep"], seed) for seed in (1, 2, 3)]
    for run, applied in zip(runs, ("true", "true", "false"), strict=True):
        table, made_of = read_measures(run / "heads.parquet")
        heads_table.write_heads_table(run / "heads.parquet", table, made_of | {"masks": applied})
    plain = study.run(["pos"], 1, pruning="none")
    report = gather(study.root, "test", SCORES)
    assert set(report.heads["run"]) == {str(run) for run in (*runs[:2], plain)}
    note = "runs/dep-dynamic-shared-seed3 was probed with other settings (masks=false, not true): left out"
    assert note in report.notes
    with pytest.raises(InputError, match=r"masks=true, .*masks=false; probe both alike"):
        heads_of(RunSet.open(runs))
    assert heads_of(RunSet.open([*runs[:2], plain]))["run"].n_unique() == 3


@pytest.mark.parametrize("name", ["labels", "heatmap"])
def test_figures_of_probes_say_where_they_average_over_setups(study, name):
    runs = [study.run(["dep"], 1), study.run(["dep"], 2, pruning="none")]
    told = "probes of stl runs are means over 2 setups: STL, dynamic; STL"
    assert any(note.startswith(told[:47]) for note in draw(name, runs).notes)
    assert not any("means over" in note for note in draw(name, runs[:1]).notes)
