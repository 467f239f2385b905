"""What runs, folders and corpora are called, and the order of folders, change nothing that a report shows."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from mtl.config.schema import TrainConfig
from mtl.probes.report.data import ReportData
from mtl.probes.stem_cell.report.claims_and_losses import claims_and_losses
from mtl.probes.tables import heads_table
from mtl.runs.figures.table import draw
from mtl.runs.report.gather import gather
from tests.mtl.stem_cell.contest_study import CHOSEN, ContestStudy
from tests.mtl.stem_cell.page_data import page_data
from tests.probes.stem_cell.worlds_contest import HEADS, LAYERS
from tests.probes.test_kinds_of_attention import curve_rows

OF_NAMES = ("run", "folder", "source", "corpus", "finished")
"""Columns that say where something was read."""
FIGURES = {
    "contest": ("alone", "pair"), "forest": ("alone", "pair"), "conflict": ("alone", "pair"),
    "dose": ("drawn",), "recovery": ("plain", "copies", "pair"), "heads-kept": ("alone", "plain"),
    "grey": ("alone",), "correlation": ("alone",), "curve": ("plain",), "heads": ("pair",),
    "agreement": ("pair",),
}  # fmt: skip
"""Figures over several runs, and the kinds of runs that they are drawn from."""


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> tuple[Path, dict[str, list[str]]]:
    """A folder of runs with every kind of evidence, and the names of the runs of each kind."""
    study = ContestStudy(tmp_path_factory.mktemp("named") / "world")
    kinds: dict[str, list[str]] = {}

    def add(kind: str, folder: Path) -> Path:
        kinds.setdefault(kind, []).append(folder.name)
        return folder

    orders, points = curve_rows()
    for task in CHOSEN:
        for seed in (11, 12, 13):
            add("alone", study.run([task], seed))
        for seed in study.cells.seeds:
            folder = add("plain", study.run([task], seed, pruning="none", probe=False))
            orders.with_columns(task=pl.lit(task)).write_parquet(folder / "curve_heads.parquet")
            points.with_columns(task=pl.lit(task)).write_parquet(folder / "curve.parquet")
    for seed in study.cells.seeds:
        for task, other in (("pos", "dep"), ("pos", "srl"), ("dep", "srl")):
            folder = add("pair", study.pair(task, other, seed))
            table, made_of = heads_table.read(folder / "heads.parquet")
            cosines = heads_table.rows(
                "gradient_conflict", "", [f"{task}-{other}"], study.random.random((1, LAYERS, HEADS)),
                np.array([9]),
            )  # fmt: skip
            heads_table.write(folder / "heads.parquet", pl.concat([table, cosines]), made_of)
        for heads in ("contested", "uncontested"):
            clones = {"kind": "routed", "heads": heads, "claims": None}
            name = f"pos-dep-{heads}-{seed}"
            add(
                "copies",
                study.run(["pos", "dep"], seed, pruning="none", probe=False, clones=clones, name=name),
            )
        for shared in (0, 2):
            masks = study.root / "masks" / f"pos+dep-overlap{shared}-draw{seed}.parquet"
            masks.parent.mkdir(exist_ok=True)
            (masks.parent / "draws.json").write_text("{}")
            folder = study.run(
                ["pos", "dep"], seed, pruning="fixed", probe=False, name=f"drawn-{shared}-{seed}",
                gates={"scope": "per_task", "masks": str(masks)},
            )  # fmt: skip
            status = json.loads((folder / "status.json").read_text())
            draw = {"tasks": ["pos", "dep"], "overlap": shared, "draw": seed, "heads": 4}
            (folder / "status.json").write_text(json.dumps({**status, "draw": draw}))
            add("drawn", folder)
    return study.root, kinds


def renamed(root: Path, out: Path, seed: int) -> dict[str, str]:
    """A copy of the folder in which every run has another name; the new names by the old ones."""
    shutil.copytree(root, out)
    folders = sorted((out / "runs").iterdir())
    numbers = random.Random(seed).sample(range(100, 1000), len(folders))
    names = {}
    for folder, number in zip(folders, numbers, strict=True):
        config = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump({**config, "name": f"r{number}"}))
        names[folder.name] = f"r{number}"
        folder.rename(folder.with_name(f"r{number}"))
    return names


def contents(table: pl.DataFrame) -> list[tuple[object, ...]]:
    """The rows of a table without names of runs, in an order of their own."""
    kept = table.select(pl.exclude(*OF_NAMES, "^.*_run$"))
    rounded = kept.with_columns(pl.col(pl.Float64, pl.Float32).round(9))
    return sorted(rounded.rows(), key=repr)


def evidence_of(root: Path) -> dict[str, object]:
    data = gather(root, "test", TrainConfig().main_figures())
    found: dict[str, object] = {
        "setups": data.setups,
        "pruning": data.pruning and contents(data.pruning.points),
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
def others(world, tmp_path_factory) -> list[tuple[Path, dict[str, str]]]:
    root, _ = world
    outs = [tmp_path_factory.mktemp("others") / f"world{seed}" for seed in (1, 2)]
    return [(out, renamed(root, out, seed)) for seed, out in enumerate(outs)]


@pytest.mark.slow
def test_names_change_nothing_that_a_report_gathers(world, others):
    root, _ = world
    expected = evidence_of(root)
    assert {"scores", "gates", "heads", "worth", "pairs", "remedies", "dose", "cosines"} <= expected.keys()
    for out, _ in others:
        found = evidence_of(out)
        assert [key for key in expected if found.get(key) != expected[key]] == []


@pytest.mark.parametrize("name", FIGURES)
def test_names_change_no_figure(world, others, name):
    root, kinds = world
    chosen = [run for kind in FIGURES[name] for run in kinds[kind]]
    measure = "importance" if name in ("heads", "agreement") else "ablation"
    expected = draw(name, [root / "runs" / run for run in chosen], measure=measure)
    assert expected.tables
    out, names = others[0]
    found = draw(name, [out / "runs" / names[run] for run in chosen], measure=measure)
    assert {end: contents(table) for end, table in found.tables.items()} == {
        end: contents(table) for end, table in expected.tables.items()
    }
