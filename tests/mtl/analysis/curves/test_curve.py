"""Pruning curves against scoring by hand, on planted models, and after a kill."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import yaml

import mtl.analysis.curves.curve as curve_module
from mtl.analysis.curves.curve import measure_curve
from mtl.analysis.curves.methods import methods_of, ranking_of
from mtl.analysis.curves.start import Start
from mtl.analysis.importance.gradients import task_importance
from mtl.analysis.trained import open_trained
from mtl.models.evaluate import evaluate
from mtl.models.joint import JointModel
from mtl.probes.tables import curve_table, heads_table
from tests.mtl import tiny
from tests.mtl.analysis import worth

SHAPE = (tiny.LAYERS, tiny.HEADS)
ALL = {("self", layer, head) for layer in range(tiny.LAYERS) for head in range(tiny.HEADS)}


def save(model: JointModel, toy: Path, folder: Path) -> Path:
    """A run's folder as training leaves it."""
    model.save(folder / "model")
    config = {
        "tasks": list(model.tasks), "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.fixture
def run(toy: Path, tmp_path: Path) -> Path:
    return save(worth.joint_model(toy, ("pos", "dep"), dtype=torch.float32), toy, tmp_path / "run")


def points_of(folder, by, *, sentences=8, steps=4, masks=True, **settings):
    """A curve's points by task, kept heads and draw."""
    start = Start.of(open_trained(folder, None, "test", sentences=sentences), masks)
    methods = methods_of(start, by, ranking_of(start, "dev", sentences), **settings)
    return measure_curve(start, methods, steps=steps)


def tables(folder):
    scores, _ = curve_table.read(folder / "curve.parquet")
    orders, _ = curve_table.read(folder / "curve_heads.parquet")
    return scores, orders


def by_hand(trained, kept, task):
    """A task's score with only these heads (attention, layer, head)."""
    scale = torch.zeros(SHAPE)
    for _, layer, head in kept:
        scale[layer, head] = 1
    figures = evaluate(trained.model, trained.batches(500), scale)
    return figures[task][trained.tasks[task].score]


def test_a_curve_equals_scoring_under_its_masks(run) -> None:
    points_of(run, ("importance", "random"), draws=2)
    scores, orders = tables(run)
    trained = open_trained(run, None, "dev", sentences=8)
    scored = open_trained(run, None, "test", sentences=8)
    importance = task_importance(trained.model, trained.batches(500))
    assert scores.height == 2 * 3 * 5
    for row in scores.iter_rows(named=True):
        kept = curve_table.mask_of(orders, row["by"], row["task"], row["kept"], row["draw"])
        assert len(kept) == row["kept"] == round(12 * row["share"])
        assert row["score"] == pytest.approx(by_hand(scored, kept, row["task"]), abs=1e-4)
        if row["by"] == "importance" and 0 < row["kept"] < 12:
            value = importance[row["task"]].value("importance")
            worst_kept = min(value[layer, head] for _, layer, head in kept)
            assert worst_kept >= max(value[layer, head] for _, layer, head in ALL - kept)
    assert set(scores["kept"]) == {12, 9, 6, 3, 0}
    assert set(scores["figure"]) == {"accuracy", "las"}


def test_random_orders_follow_from_the_seeds_and_are_alike_for_all_tasks(run) -> None:
    def orders(seed, of_run):
        config = yaml.safe_load((run / "config.yaml").read_text())
        (run / "config.yaml").write_text(yaml.safe_dump(config | {"seed": of_run}))
        points_of(run, ("random",), draws=2, seed=seed, sentences=2, steps=1)
        _, rows = tables(run)
        return {
            (task, draw): tuple(rows.filter(draw=draw, task=task).sort("rank").select("layer", "head").rows())
            for task in ("pos", "dep")
            for draw in (0, 1)
        }

    found = [orders(seed, of_run) for seed in (0, 1) for of_run in (1, 2)]
    assert orders(0, 1) == found[0]
    assert all(order["pos", draw] == order["dep", draw] for order in found for draw in (0, 1))
    assert len({order for by_draw in found for order in by_draw.values()}) == 8


def plant(model: JointModel, matter) -> None:
    """Let all heads but these write nothing."""
    with torch.no_grad():
        for site, layer in enumerate(model.encoder.transformer.encoder.layer):
            for head in range(tiny.HEADS):
                columns = slice(head * tiny.HEAD_DIM, (head + 1) * tiny.HEAD_DIM)
                layer.attention.output.dense.weight[:, columns] *= 30 if (site, head) in matter else 0


@pytest.mark.slow
def test_greedy_keeps_the_heads_that_matter_to_the_end(toy, tmp_path) -> None:
    model = worth.joint_model(toy, ("pos",), dtype=torch.float32)
    matter = {(0, 1), (2, 3)}
    plant(model, matter)
    folder = save(model, toy, tmp_path / "planted")
    points = points_of(folder, ("greedy", "importance"), sentences=30, steps=12)
    for point in points:
        if len(point.kept) >= 2:
            assert matter <= set(point.kept)
            assert point.score == pytest.approx(points[0].score)


@pytest.mark.slow
def test_greedy_closes_the_head_that_costs_least(run) -> None:
    points = points_of(run, ("greedy",), steps=12, sentences=3)
    trained = open_trained(run, None, "dev", sentences=3)
    for task in ("pos", "dep"):
        of_task = [set(point.kept) for point in points if point.task == task]
        for before, after in pairwise(of_task):
            found = {}
            for place in before:
                scale = torch.zeros(SHAPE)
                for layer, head in before - {place}:
                    scale[layer, head] = 1
                figures = evaluate(trained.model, trained.batches(500), scale)
                found[place] = figures[task][trained.tasks[task].score]
            [gone] = before - after
            assert found[gone] == pytest.approx(max(found.values()))


@pytest.mark.slow
def test_importance_computed_anew_sees_that_two_heads_are_one(toy, tmp_path) -> None:
    """Each of two copies of a head matters little while the other is there: the layer norm after them evens
    out how strong they are together. Ranked once both go early; ranked anew the second stays."""
    model = worth.joint_model(toy, ("pos",), dtype=torch.float32)
    first, second = (slice(head * tiny.HEAD_DIM, (head + 1) * tiny.HEAD_DIM) for head in (0, 1))
    with torch.no_grad():
        attention = model.encoder.transformer.encoder.layer[2].attention
        for linear in (attention.self.query, attention.self.key, attention.self.value):
            linear.weight[second] = linear.weight[first]
            linear.bias[second] = linear.bias[first]
        attention.output.dense.weight[:, first] *= 40
        attention.output.dense.weight[:, second] = attention.output.dense.weight[:, first]
    folder = save(model, toy, tmp_path / "copies")
    points_of(folder, ("importance", "recomputed"), steps=12, sentences=20)
    _, orders = tables(folder)

    def ranks(by):
        rows = orders.filter(by=by, layer=2).sort("head")["rank"].to_list()
        return sorted(rows[:2])

    once, anew = ranks("importance"), ranks("recomputed")
    assert once[1] - once[0] == 1
    assert anew[1] == once[1]
    assert anew[0] < once[0]  # it goes when fewer heads are left


def test_a_curve_starts_from_the_heads_that_each_task_s_mask_leaves_open(toy, tmp_path) -> None:
    model = worth.joint_model(toy, ("pos", "dep"), masks=("pos", "dep"), dtype=torch.float32)
    with torch.no_grad():
        model.gates.log_alpha[0, 0] = -9.0
        model.gates.log_alpha[1] = 9.0
    gates = model.gates.gate().detach()
    folder = save(model, toy, tmp_path / "masked")
    points = points_of(folder, ("importance",), steps=2)
    whole = {point.task: point for point in points if point.share == 1}
    assert len(whole["dep"].kept) == 12
    assert set(whole["pos"].kept) == {
        (layer, head) for layer in range(3) for head in range(4) if gates[0, layer, head] > 1e-3
    }
    trained = open_trained(folder, None, "test", sentences=8)
    plain = evaluate(trained.model, trained.batches(500))
    for task, point in whole.items():
        assert point.score == pytest.approx(plain[task][trained.tasks[task].score])
    half = next(point for point in points if point.task == "pos" and 0 < point.share < 1)
    scale = torch.zeros(SHAPE)
    for layer, head in half.kept:
        scale[layer, head] = gates[0, layer, head]
    figures = evaluate(trained.model, trained.batches(500), torch.stack([scale, scale]))
    assert half.score == pytest.approx(figures["pos"]["accuracy"])
    unmasked = points_of(folder, ("importance",), steps=2, masks=False)
    assert len(unmasked[0].kept) == 12


@pytest.mark.slow
def test_what_was_killed_is_resumed(run, monkeypatch) -> None:
    by = ("importance", "recomputed", "random")
    expected = points_of(run, by, draws=2)
    whole = tables(run)
    for name in ("curve.parquet", "curve_heads.parquet"):
        (run / name).unlink()
    compute, calls = curve_module.task_scores, []

    def counted(*given):
        calls.append(set(given[1]))
        if len(calls) == 7:
            raise KeyboardInterrupt
        return compute(*given)

    monkeypatch.setattr(curve_module, "task_scores", counted)
    with pytest.raises(KeyboardInterrupt):
        points_of(run, by, draws=2)
    assert (
        tables(run)[0].height == 16
    )  # the first two points of recomputed were known: they are those of importance
    assert points_of(run, by, draws=2) == expected
    total = len(calls)
    for ours, theirs in zip(tables(run), whole, strict=True):
        assert ours.sort(ours.columns).equals(theirs.sort(theirs.columns))
    assert points_of(run, by, draws=2) == expected
    assert len(calls) == total
    # Other sentences: nothing can be used again.
    points_of(run, by, draws=2, sentences=7)
    assert len(calls) > total


def test_a_method_is_replaced_and_others_stay(run) -> None:
    points_of(run, ("importance", "random"), draws=3)
    before, _ = tables(run)
    points_of(run, ("random",), draws=2, steps=2)
    scores, orders = tables(run)
    assert scores.filter(by="importance").equals(before.filter(by="importance"))
    assert scores.filter(by="random").height == 2 * 2 * 3
    assert set(orders.filter(by="random")["draw"]) == {0, 1}
    made = curve_table.settings_in(curve_table.read(run / "curve.parquet")[1])
    assert set(made) == {(by, task) for by in ("importance", "random") for task in ("pos", "dep")}
    assert all(re.fullmatch(r"sentences=8 of corpus \w{8}, masks=false", how) for how in made.values())


def test_any_measure_of_the_run_may_rank(run) -> None:
    rng = np.random.default_rng(0)
    value = {task: rng.random((1, *SHAPE)) for task in ("pos", "dep")}
    parts = [heads_table.rows("fisher", task, [""], value[task], np.array([5])) for task in ("pos", "dep")]
    labelled = rng.random((2, *SHAPE))
    parts.append(heads_table.rows("confidence", "", [""], value["pos"], np.array([5])))
    parts.append(heads_table.rows("clustering", "pos", ["N", "V"], labelled, np.array([90, 30])))
    parts.append(heads_table.rows("clustering_shuffled", "pos", ["N", "V"], 0 * labelled, np.array([90, 30])))
    parts.append(heads_table.rows("positional", "", ["-1", "+1"], labelled, np.array([5, 5])))
    heads_table.write(run / "heads.parquet", pl.concat(parts), {})

    def order(measure, task):
        points_of(run, (measure,), sentences=2, steps=1)
        rows = tables(run)[1].filter(by=measure, task=task).sort("rank", descending=True)
        return rows.select("layer", "head").rows()

    def ascending(values):
        return sorted(np.ndindex(SHAPE), key=lambda place: values[place])

    assert order("fisher", "pos") == ascending(value["pos"][0])
    assert order("fisher", "dep") == ascending(value["dep"][0])
    assert order("confidence", "dep") == ascending(value["pos"][0])
    assert order("positional", "dep") == ascending(labelled.max(0))
    from mtl.errors import InputError

    with pytest.raises(InputError, match="clustering for pos, not for dep: 'mtl probe RUN' makes it"):
        points_of(run, ("clustering",), sentences=2)
    with pytest.raises(InputError, match="has no ablation: 'mtl ablate RUN' makes it"):
        points_of(run, ("ablation",), sentences=2)
