"""What runs, folders and corpora are called, and the order of folders, change nothing that a report shows."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from mtl.config.schema import TrainConfig
from mtl.probes.figures.style import render
from mtl.probes.report.data import ReportData
from mtl.probes.stem_cell.claims_and_losses import claims_and_losses
from mtl.probes.tables import heads_table
from mtl.probes.tables.table_files import undeclared
from mtl.runs.figures.table import draw
from mtl.runs.report.gather import gather
from tests.mtl import tiny
from tests.mtl.stem_cell.contest_study import CHOSEN, ContestStudy
from tests.mtl.stem_cell.page_data import page_data
from tests.mtl.studies import Study
from tests.probes.stem_cell.worlds_contest import HEADS, LAYERS

OF_NAMES = ("run", "folder", "source", "corpus", "finished")
"""Columns that say where something was read."""
FIGURES = {
    "contest": ("alone", "pair"), "forest": ("alone", "pair"), "conflict": ("alone", "pair"),
    "heads-kept": ("alone", "plain"), "grey": ("alone",), "correlation": ("alone",), "curve": ("plain",),
    "heads": ("pair",), "agreement": ("pair",), "rgb": ("alone",), "curve-kinds": ("plain",),
}  # fmt: skip
"""Figures over several runs, and the kinds of runs that they are drawn from."""
OF_MEASURED = {
    "labels": ("masked", "joint", "static"), "heatmap": ("masked",), "map": ("masked",),
    "layers": ("masked",), "prediction": ("masked", "joint"),
    "curve-roles": ("masked",), "curve-time": ("masked",),
}  # fmt: skip
"""The same of figures of probed and ablated runs."""
TASKS = {name: ["pos"] for name in ("labels", "heatmap", "map", "layers")}
"""The tasks of figures that show one."""
SLOW = ("contest", "forest", "heads", "rgb")
"""Figures that take seconds."""


def in_time(names: Iterable[str]) -> list[object]:
    """The names as parameters of a test, marked where it is slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> tuple[Path, dict[str, list[str]]]:
    """A folder of runs with every kind of evidence, and the names of the runs of each kind."""
    study = ContestStudy(tmp_path_factory.mktemp("named") / "world")
    kinds: dict[str, list[str]] = {}

    def add(kind: str, folder: Path) -> Path:
        kinds.setdefault(kind, []).append(folder.name)
        return folder

    for task in CHOSEN:
        for seed in (11, 12, 13):
            add("alone", study.run([task], seed))
        for seed in study.cells.seeds:
            folder = add("plain", study.run([task], seed, pruning="none", probe=False))
            if "curve" in FIGURES:
                from tests.probes.curves.figure_makers import curve_rows

                orders, points = curve_rows()
                orders.with_columns(task=pl.lit(task)).write_parquet(folder / "curve_heads.parquet")
                points.with_columns(task=pl.lit(task)).write_parquet(folder / "curve.parquet")
    for seed in study.cells.seeds:
        for task, other in (("pos", "dep"), ("pos", "srl"), ("dep", "srl")):
            folder = add("pair", study.pair(task, other, seed))
            table, made_of = heads_table.read_heads_table(folder / "heads.parquet")
            cosines = heads_table.rows(
                "gradient_conflict", "", [f"{task}-{other}"], study.random.random((1, LAYERS, HEADS)),
                np.array([9]),
            )  # fmt: skip
            heads_table.write_heads_table(folder / "heads.parquet", pl.concat([table, cosines]), made_of)
    return study.root, kinds


def shuffled_curves(study: Study, folder: Path, task: str) -> None:
    """Pruning curves of two random orders, with times, and roles of some heads."""
    layers, heads = study.shape
    places = [("self", layer, head) for layer in range(layers) for head in range(heads)]
    orders, points, times = [], [], []
    for number in (0, 1):
        part = {"by": "random", "draw": number, "task": task}
        for place, rank in zip(places, study.random.permutation(len(places)).tolist(), strict=True):
            orders.append(
                {**part, **dict(zip(("attention", "layer", "head"), place, strict=True)), "rank": rank}
            )
        for kept in (12, 7, 2):
            at = {**part, "kept": kept, "share": kept / 12, "split": "test", "figure": "f1",
                  "score": 80 * study.random.random()}  # fmt: skip
            points.append({**at, "trained_epochs": 0, "source": str(folder)})
            times += [
                {**at, "parameters": 9 * kept, "device": "CPU", "batch": batch, "multiply_adds": 5.0 * kept,
                 "operations_of_whole": kept / 12, "seconds": study.random.random(),
                 "seconds_of_whole": study.random.random()}
                for batch in (1, 8)
            ]  # fmt: skip
    from mtl.probes.curves import curve_table

    pl.DataFrame(orders, curve_table.ORDERS).write_parquet(folder / "curve_heads.parquet")
    pl.DataFrame(points, curve_table.SCORES).write_parquet(folder / "curve.parquet")
    pl.DataFrame(times, curve_table.TIMES).write_parquet(folder / "curve_time.parquet")


def more_measures(study: Study, folder: Path, tasks: Sequence[str]) -> None:
    """Add importance, ablation and roles to a run's heads."""
    table, made_of = heads_table.read_heads_table(folder / "heads.parquet")
    shape = (1, *study.shape)
    rows = [
        heads_table.rows(measure, task, [""], study.random.random(shape), np.array([300]))
        for task in tasks
        for measure in ("importance", "ablation", "confidence")
    ]
    rows += [
        heads_table.rows(measure, "", [label], study.random.random(shape) ** 0.1, np.array([300]))
        for measure, label in (("positional", "-1"), ("rare_words", ""))
    ]
    heads_table.write_heads_table(folder / "heads.parquet", pl.concat([table, *rows]), made_of)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[Path, dict[str, list[str]]]:
    """A folder of probed and ablated runs, and the names of the runs of each kind."""
    study = Study(tmp_path_factory.mktemp("named") / "measured", tiny.LAYERS, tiny.HEADS)
    kinds: dict[str, list[str]] = {}
    for seed in (2, 1, 3):
        for task in ("pos", "dep"):
            folder = study.run([task], seed)
            more_measures(study, folder, [task])
            if "curve" in FIGURES:
                shuffled_curves(study, folder, task)
            kinds.setdefault("masked", []).append(folder.name)
        folder = study.run(["pos", "dep"], seed, scope="per_task")
        more_measures(study, folder, ["pos", "dep"])
        kinds.setdefault("joint", []).append(folder.name)
    study.probe(study.root / "runs" / "static", ["pos", "dep"])
    return study.root, {**kinds, "static": ["static"]}


def renamed(root: Path, out: Path, seed: int) -> dict[str, str]:
    """A copy of the folder in which every run has another name; the new names by the old ones."""
    shutil.copytree(root, out)
    folders = sorted((out / "runs").iterdir())
    numbers = random.Random(seed).sample(range(100, 1000), len(folders))
    names = {}
    for folder, number in zip(folders, numbers, strict=True):
        path = folder / "config.yaml"
        if path.is_file():
            path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "name": f"r{number}"}))
        names[folder.name] = f"r{number}"
        folder.rename(folder.with_name(f"r{number}"))
    return names


def contents(table: pl.DataFrame) -> list[tuple[object, ...]]:
    """The rows of a table without names of runs, in an order of their own."""
    kept = table.select(pl.exclude(*OF_NAMES, "^.*_run$"))
    rounded = kept.with_columns(pl.col(pl.Float64, pl.Float32).round(9))
    return sorted(rounded.rows(), key=repr)


def evidence_of(root: Path) -> dict[str, object]:
    data = gather(root, "test", TrainConfig().main_scores())
    found: dict[str, object] = {
        "setups": data.setups,
    }
    for field in dataclasses.fields(ReportData):
        value = getattr(data, field.name)
        if isinstance(value, pl.DataFrame):
            found[field.name] = contents(value)
    found["kept"] = data.kept and contents(data.kept.table)
    found |= {name: contents(table) for name, table in data.evidence.items()}
    claims = claims_and_losses(page_data(data), [])
    found["claims"] = claims.competition and str(claims.competition.verdict)
    found["by claims"] = claims.by_claims is not None and contents(claims.by_claims)
    found["notes"] = len(data.notes)
    return found


@pytest.fixture(scope="module")
def elsewhere(world, tmp_path_factory) -> tuple[Path, dict[str, str]]:
    out = tmp_path_factory.mktemp("others") / "world"
    return out, renamed(world[0], out, 1)


@pytest.mark.slow
def test_names_change_nothing_that_a_report_gathers(world, elsewhere):
    root, _ = world
    expected = evidence_of(root)
    assert {"scores", "gates", "heads", "worth", "pairs", "cosines"} <= expected.keys()
    found = evidence_of(elsewhere[0])
    assert [key for key in expected if found.get(key) != expected[key]] == []


@pytest.fixture(scope="module")
def measured_elsewhere(measured, tmp_path_factory) -> tuple[Path, dict[str, str]]:
    out = tmp_path_factory.mktemp("others") / "measured"
    return out, renamed(measured[0], out, 7)


def check_figure(name, runs, others):
    """A figure has the same numbers from runs of other names, in whatever order they are given."""
    measure = "importance" if name in ("heads", "agreement") else "ablation"
    tasks = TASKS.get(name, [])
    expected = draw(name, runs, tasks, measure=measure)
    assert expected.tables
    for end, table in expected.tables.items():
        assert undeclared(expected.printed.get(end, table), expected.units.get(end, {})) == []
        assert undeclared(table, expected.units.get(end, {})) == []
    wanted = {end: contents(table) for end, table in expected.tables.items()}
    drawn = render(expected.figure, "svg")
    found = draw(name, others[::-1], tasks, measure=measure)  # what was first is last
    assert {end: contents(table) for end, table in found.tables.items()} == wanted
    assert render(found.figure, "svg") == drawn


@pytest.mark.parametrize("name", in_time(FIGURES))
def test_names_and_order_change_no_figure(world, elsewhere, name):
    root, kinds = world
    chosen = [run for kind in FIGURES[name] for run in kinds[kind]]
    out, names = elsewhere
    check_figure(name, [root / "runs" / run for run in chosen], [out / "runs" / names[run] for run in chosen])


@pytest.mark.slow
@pytest.mark.parametrize("task", CHOSEN)
def test_names_and_order_change_no_colour_of_a_seed(world, elsewhere, task):
    root, kinds = world
    chosen = [run for run in kinds["alone"] if run.startswith(f"{task}-")]
    out, names = elsewhere
    check_figure(
        "rgb", [root / "runs" / run for run in chosen], [out / "runs" / names[run] for run in chosen]
    )


@pytest.mark.parametrize("name", in_time(OF_MEASURED))
def test_names_and_order_change_no_figure_of_measures(measured, measured_elsewhere, name):
    root, kinds = measured
    chosen = [run for kind in OF_MEASURED[name] for run in kinds[kind]]
    out, names = measured_elsewhere
    check_figure(name, [root / "runs" / run for run in chosen], [out / "runs" / names[run] for run in chosen])
