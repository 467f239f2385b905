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

import mtl.curves.curve as curve_module
from mtl.analysis.importance import task_importance
from mtl.analysis.trained import open_trained
from mtl.curves.curve import CurveStart, check_points, measure_curve, methods_of, ranking_of
from mtl.curves.orders import check_orders
from mtl.errors import InputError
from mtl.heads.gates import Mask
from mtl.models.evaluate import evaluate_model
from mtl.models.joint import JointModel
from mtl.probes.curves import curve_table
from mtl.probes.tables import heads_table
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
def run(few: Path, tmp_path: Path) -> Path:
    return save(worth.joint_model(few, ("pos", "dep"), dtype=torch.float32), few, tmp_path / "run")


def points_of(folder, by, *, sentences=8, steps=4, masks=True, at_least=0, **settings):
    """A curve's points by task, kept heads and draw."""
    start = CurveStart.of(open_trained(folder, None, "test", sentences=sentences), masks, at_least)
    methods = methods_of(start, by, ranking_of(start, "dev", sentences), **settings)
    return measure_curve(start, methods, steps=steps)


def tables(folder):
    scores, _ = curve_table.read_curve_table(folder / "curve.parquet")
    orders, _ = curve_table.read_curve_table(folder / "curve_heads.parquet")
    return scores, orders


def by_hand(trained, kept):
    """The scores of all tasks with only these heads (attention, layer, head)."""
    scale = torch.zeros(SHAPE)
    for _, layer, head in kept:
        scale[layer, head] = 1
    figures = evaluate_model(trained.model, trained.batches(500), scale)
    return {task: figures[task][trained.tasks[task].score] for task in trained.tasks}


@pytest.mark.slow
def test_a_curve_equals_scoring_under_its_masks(run) -> None:
    points_of(run, ("importance", "random"), draws=2)
    scores, orders = tables(run)
    trained = open_trained(run, None, "dev", sentences=8)
    scored = open_trained(run, None, "test", sentences=8)
    importance = task_importance(trained.model, trained.batches(500))
    assert scores.height == 2 * 3 * 5
    known = {}
    for row in scores.iter_rows(named=True):
        kept = curve_table.mask_of(orders, row["by"], row["task"], row["kept"], row["draw"])
        assert len(kept) == row["kept"] == round(12 * row["share"])
        if frozenset(kept) not in known:
            known[frozenset(kept)] = by_hand(scored, kept)
        assert row["score"] == pytest.approx(known[frozenset(kept)][row["task"]], abs=1e-4)
        if row["by"] == "importance" and 0 < row["kept"] < 12:
            value = importance[row["task"]].value("importance")
            worst_kept = min(value[layer, head] for _, layer, head in kept)
            assert worst_kept >= max(value[layer, head] for _, layer, head in ALL - kept)
    assert set(scores["kept"]) == {12, 9, 6, 3, 0}
    assert set(scores["figure"]) == {"accuracy", "las"}


@pytest.mark.slow
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
                figures = evaluate_model(trained.model, trained.batches(500), scale)
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


def test_a_curve_starts_from_the_heads_that_each_task_s_mask_leaves_open(few, tmp_path) -> None:
    model = worth.joint_model(few, ("pos", "dep"), masks=("pos", "dep"), dtype=torch.float32)
    with torch.no_grad():
        model.gates.log_alpha[0, 0] = -9.0
        model.gates.log_alpha[1] = 9.0
    gates = model.gates.gate().detach()
    folder = save(model, few, tmp_path / "masked")
    points = points_of(folder, ("importance",), steps=2)
    whole = {point.task: point for point in points if point.share == 1}
    assert len(whole["dep"].kept) == 12
    assert set(whole["pos"].kept) == {
        (layer, head) for layer in range(3) for head in range(4) if gates[0, layer, head] > 1e-3
    }
    trained = open_trained(folder, None, "test", sentences=8)
    plain = evaluate_model(trained.model, trained.batches(500))
    for task, point in whole.items():
        assert point.score == pytest.approx(plain[task][trained.tasks[task].score])
    half = next(point for point in points if point.task == "pos" and 0 < point.share < 1)
    scale = torch.zeros(SHAPE)
    for layer, head in half.kept:
        scale[layer, head] = gates[0, layer, head]
    figures = evaluate_model(trained.model, trained.batches(500), torch.stack([scale, scale]))
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


@pytest.mark.slow
def test_a_method_is_replaced_and_others_stay(run) -> None:
    points_of(run, ("importance", "random"), draws=3)
    before, _ = tables(run)
    points_of(run, ("random",), draws=2, steps=2)
    scores, orders = tables(run)
    assert scores.filter(by="importance").equals(before.filter(by="importance"))
    assert scores.filter(by="random").height == 2 * 2 * 3
    assert set(orders.filter(by="random")["draw"]) == {0, 1}
    made = curve_table.curve_settings(curve_table.read_curve_table(run / "curve.parquet")[1])
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
    heads_table.write_heads_table(run / "heads.parquet", pl.concat(parts), {})

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

    with pytest.raises(InputError, match=r"for pos, not for dep: choose with --task \(pos\), or"):
        points_of(run, ("clustering",), sentences=2)
    with pytest.raises(InputError, match="has no ablation: 'mtl ablate RUN' makes it"):
        points_of(run, ("ablation",), sentences=2)


def give_fisher(run: Path) -> dict[str, np.ndarray]:
    """Values of a measure for both tasks, written as heads.parquet."""
    value = {
        task: np.random.default_rng(seed).random((1, *SHAPE)) for seed, task in enumerate(("pos", "dep"))
    }
    parts = [heads_table.rows("fisher", task, [""], value[task], np.array([5])) for task in value]
    heads_table.write_heads_table(run / "heads.parquet", pl.concat(parts), {})
    return {task: of_task[0] for task, of_task in value.items()}


@pytest.mark.parametrize("at_least", [0, 2])
def test_orders_go_both_ways_through_given_points_and_leave_heads_in_every_layer(run, at_least) -> None:
    """Against the published procedure: the last heads of each layer are protected, then the first go."""
    value = give_fisher(run)
    points_of(run, ("fisher", "-fisher"), steps=(0.25, 10, 0.0), at_least=at_least, sentences=2)
    scores, orders = tables(run)
    scored = open_trained(run, None, "test", sentences=2)
    for (by, task), of_curve in scores.group_by("by", "task"):
        sign = -1 if by.startswith("-") else 1
        order = sorted(np.ndindex(SHAPE), key=lambda place: sign * value[task][place])
        free, protected = [], dict.fromkeys(range(SHAPE[0]), 0)
        for layer, head in reversed(order):
            if protected[layer] < at_least:
                protected[layer] += 1
            else:
                free.insert(0, (layer, head))
        assert of_curve["kept"].to_list() == ([12, 10, 6] if at_least else [12, 10, 3, 0])
        for kept, score in of_curve.select("kept", "score").iter_rows():
            mask = curve_table.mask_of(orders, by, task, kept)
            assert ALL - mask == {("self", *place) for place in free[: 12 - kept]}
            assert score == pytest.approx(by_hand(scored, mask)[task], abs=1e-4)
    made = curve_table.curve_settings(curve_table.read_curve_table(run / "curve.parquet")[1])
    assert {how.endswith(", at_least=2") for how in made.values()} == {bool(at_least)}


@pytest.mark.slow
def test_the_reverse_of_orders_that_are_computed_again(run) -> None:
    """The head that costs most goes first, the layer's last one excepted; importance is of those left."""
    by = ("-greedy", "-recomputed")
    points = points_of(run, by, steps=(11, 10), at_least=3, sentences=3)
    trained = open_trained(run, None, "dev", sentences=3)
    for task in ("pos", "dep"):
        _, first, second = (set(each.kept) for each in points if (each.task, each.by) == (task, "-greedy"))
        for before, after in (({place[1:] for place in ALL}, first), (first, second)):
            free = [place for place in before if sum(layer == place[0] for layer, _ in before) > 3]
            costs = {
                place: by_hand(trained, [("self", *other) for other in before - {place}])[task]
                for place in free
            }
            [gone] = before - after
            assert costs[gone] == pytest.approx(min(costs.values()))
        _, first, second = (
            set(each.kept) for each in points if (each.task, each.by) == (task, "-recomputed")
        )
        scale = torch.zeros(SHAPE)
        for place in first:
            scale[place] = 1
        importance = task_importance(
            trained.model, trained.batches(500), masks=[Mask("", ("pos", "dep"), scale)]
        )
        value = importance[task].value("importance")
        [gone] = first - second
        free = [place for place in first if sum(layer == place[0] for layer, _ in first) > 3]
        assert value[gone] == max(value[place] for place in free)


def test_points_and_heads_that_cannot_be_are_refused(run) -> None:
    def said(steps=4, at_least=0):
        start = CurveStart.of(open_trained(run, None, "test", sentences=2), at_least=at_least)
        with pytest.raises(InputError) as error:
            check_points(start, steps)
        return str(error.value)

    assert said((0.5, 13)) == "--keep=13: target 13: there are only 12 heads"
    assert said((0.01,)).startswith("--keep=0.01: target 0.01: less than one of 12 heads")
    assert said(at_least=4).startswith(
        "--at_least=4 leaves no head to close, since no layer has more than 4 open"
    )
    for name, reason in (("-random", "no reverse"), ("-radnom", "no such order"), ("-gates", "is no order")):
        with pytest.raises(InputError, match=reason):
            check_orders([name])
