"""`mtl curve` and the figures made of it, on a tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from pytorch_lightning import Trainer

import mtl.training.train as training
from mtl.analysis.trained import open_trained
from mtl.commands.main import main
from mtl.corpora.toy.corpus import write_toy
from mtl.curves.curve import CurvePoint, CurveStart
from mtl.curves.show import more_than_at_start
from mtl.curves.training import check_gate_points, cut_model
from mtl.errors import InputError
from mtl.models.joint import JointModel
from mtl.models.opened import device_name
from mtl.probes.curves import curve_table
from mtl.probes.curves.curve_table import surviving_roles
from mtl.probes.statistics.head_values import heads_with_roles
from mtl.probes.tables import heads_table
from tests.mtl import tiny
from tests.mtl.analysis import worth

SHAPE = (tiny.LAYERS, tiny.HEADS)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of POS on few sentences."""
    corpus = tmp_path / "corpus"
    write_toy(corpus, 12, 8, 8, seed=1)
    return folder_of(worth.joint_model(corpus, ("pos",), dtype=torch.float32), corpus, tmp_path / "run")


def folder_of(model: JointModel, corpus: Path, folder: Path, seed: int = 1) -> Path:
    model.save(folder / "model")
    config = {
        "tasks": list(model.tasks), "seed": seed, "corpus": {"path": str(corpus)},
        "encoder": {"name": "minilm"}, "max_epochs": 1, "batch": {"sentences": 4},
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def command(*words: str) -> int:
    return main(list(words))


def table(folder: Path, name: str = "curve.parquet") -> pl.DataFrame:
    return curve_table.read_curve_table(folder / name)[0]


def give_roles(folder: Path) -> None:
    """Heads 0.0 and 0.1 look at the word before, 1.2 at rare words, those of layer 2 at heads of subjects."""
    place, rare, subject = (np.zeros((1, *SHAPE)) for _ in range(3))
    place[0, 0, :2], rare[0, 1, 2], subject[0, 2] = 0.95, 0.8, 0.7
    count = np.array([30])
    parts = [
        heads_table.rows("positional", "", ["-1"], place, count),
        heads_table.rows("rare_words", "", [""], rare, count),
        heads_table.rows("syntactic", "dep", ["nsubj to head"], subject, count),
        heads_table.rows("syntactic_offset", "dep", ["nsubj to head"], np.array([0.5]), count),
        heads_table.rows("fisher", "pos", [""], np.arange(12.0).reshape(1, *SHAPE), count),
    ]
    heads_table.write_heads_table(folder / "heads.parquet", pl.concat(parts), {})


@pytest.mark.slow
def test_scores_roles_and_cut_models_are_printed_and_written(run, capsys) -> None:
    give_roles(run)
    words = ["--by=[fisher,random]", "--draws=2", "--steps=4", "--cut", "--batches=[1,4]", "--rounds=1"]
    assert command("curve", str(run), *words) == 0
    printed = capsys.readouterr().out
    assert "pos: accuracy in % on test (8 sentences)" in printed
    assert "fisher: heads with a role that are kept" in printed
    assert "largest difference between cut and masked scores: 0 points" in printed
    scores, orders, times = (
        table(run, name) for name in ("curve.parquet", "curve_heads.parquet", "curve_time.parquet")
    )
    assert scores.height == 3 * 5
    # Fisher's values rise with the heads' numbers: low ones go first.
    survival = surviving_roles(
        orders, scores, heads_with_roles(heads_table.read_heads_table(run / "heads.parquet")[0])
    )
    at = {
        (row["role"], row["kept"]): (row["with_role"], row["surviving"])
        for row in survival.filter(by="fisher").iter_rows(named=True)
    }
    assert [at["positional", kept] for kept in (12, 9, 6)] == [(2, 1.0), (2, 0.0), (2, 0.0)]
    assert [at["rare_words", kept] for kept in (9, 6, 3)] == [(1, 1.0), (1, 1.0), (1, 0.0)]
    assert [at["syntactic", kept] for kept in (6, 3, 0)] == [(4, 1.0), (4, 0.75), (4, 0.0)]
    # Cut models score as masked ones do, with fewer parameters and operations.
    assert set(times.select("by", "draw").iter_rows()) == {("fisher", 0), ("random", 0)}
    both = times.join(scores, on=["by", "draw", "task", "kept"])
    assert both.height == 2 * 5 * 2
    assert (both["score"] - both["score_right"]).abs().max() <= 1e-4
    of_fisher = times.filter(by="fisher", batch=4).sort("kept")
    assert of_fisher["parameters"].diff().drop_nulls().min() > 0
    per_head = 3 * tiny.HEAD_DIM * (4 * tiny.HEAD_DIM + 1) + 4 * tiny.HEAD_DIM * tiny.HEAD_DIM
    assert of_fisher["parameters"][-1] - of_fisher["parameters"][0] == 12 * per_head
    assert of_fisher["operations_of_whole"].diff().drop_nulls().min() > 0
    assert of_fisher["operations_of_whole"][-1] == 1.0
    assert (times["seconds"] > 0).all()
    assert times["device"].unique().to_list() == [device_name(torch.device("cpu"))]


def test_a_cut_model_gives_the_vectors_of_the_masked_one(run) -> None:
    """Scores of a random model are too coarse to tell them apart."""
    start = CurveStart.of(open_trained(run, None, "test"))
    kept = ((0, 1), (1, 0), (1, 3), (2, 2))
    cut = cut_model(start, CurvePoint("fisher", 0, "pos", kept, 1 / 3, 0.0))
    model = start.scoring.model
    for batch in start.scoring.batches(200):
        with torch.no_grad():
            masked = model.encoder(batch.subwords, start.masked("pos", kept))
            torch.testing.assert_close(cut.encoder(batch.subwords), masked, rtol=1e-5, atol=1e-5)
            plain = model.encoder(batch.subwords)
        assert (plain - masked).abs().max() > 0.1


@pytest.mark.slow
def test_cut_models_are_trained_on_with_heads_numbered_as_before(run, monkeypatch) -> None:
    give_roles(run)
    assert command("curve", str(run), "--by=fisher", "--steps=2", "--epochs=1") == 0
    scores = table(run)
    assert dict(scores.group_by("trained_epochs").len().iter_rows()) == {0: 3, 1: 3}
    half = scores.row(by_predicate=(pl.col("kept") == 6) & (pl.col("trained_epochs") == 1), named=True)
    trained = Path(half["source"])
    cut = trained.with_name(trained.name.removesuffix("-1-epochs"))
    closed = {"0": [0, 1, 2, 3], "1": [0, 1]}
    for folder in (cut, trained):
        assert json.loads((folder / "model" / "config.json").read_text())["pruned_heads"] == closed
    assert json.loads((cut / "status.json").read_text())["heads_kept"] == 6
    assert json.loads((trained / "metrics.json").read_text())["test"]["pos"]["accuracy"] == pytest.approx(
        half["score"]
    )
    before = JointModel.from_pretrained(cut).state_dict()
    after = JointModel.from_pretrained(trained).state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)

    def fail(*_, **__):
        raise AssertionError("what is trained already is trained again")

    monkeypatch.setattr(training, "_fit", fail)
    assert command("curve", str(run), "--by=fisher", "--steps=2", "--epochs=1") == 0
    assert table(run).sort(scores.columns).equals(scores.sort(scores.columns))


def test_a_curve_stopped_while_it_learns_gates_ends_without_traceback(run, monkeypatch, capsys) -> None:
    def stop(*_: object, **__: object) -> None:
        raise SystemExit(1)  # how Lightning ends after Ctrl-C

    monkeypatch.setattr(Trainer, "fit", stop)
    assert command("curve", str(run), "--by=[]", "--targets=[4]", "--gates_epochs=1") == 130
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1] == "mtl: interrupted; run the command again to resume"
    assert len(errors) <= 2  # the bar of heads


@pytest.mark.slow
def test_learned_gates_are_points_of_the_curve(run) -> None:
    words = (
        "--by=random",
        "--draws=1",
        "--steps=1",
        "--targets=[4,0.75]",
        "--gates_epochs=1",
        "--at_least=1",
    )
    assert command("curve", str(run), *words) == 0
    scores, orders = table(run), table(run, "curve_heads.parquet")
    gates, place = scores.filter(by="gates").sort("kept"), ["attention", "layer", "head"]
    assert gates["kept"].to_list() == [4, 9]
    for row in gates.iter_rows(named=True):
        final = pl.read_parquet(Path(row["source"]) / "gates.parquet")
        last = final.filter(pl.col("open"), step=final["step"].max())
        assert last["layer"].n_unique() == 3  # --at_least=1
        final = final.filter(pl.col("step") == pl.col("step").max())
        opened = set(final.filter("open").select(place).iter_rows())
        assert curve_table.mask_of(orders, "gates", "pos", row["kept"], row["draw"]) == opened
        # Of the heads that the choice closed, those go last that it would have chosen next.
        ranked = orders.filter(by="gates", task="pos", draw=row["draw"]).join(final, on=place)
        closed = ranked.filter(~pl.col("open")).sort("rank")["log_alpha_at_choice"]
        assert closed.n_unique() == closed.len() > 1
        assert closed.is_sorted(descending=True)
        metrics = json.loads((Path(row["source"]) / "metrics.json").read_text())
        assert row["score"] == pytest.approx(metrics["test"]["pos"]["accuracy"])
    # The same runs, given by name.
    named = ",".join(gates["source"])
    assert command("curve", str(run), *words[:3], f"--gates=[{named}]") == 0
    again = table(run).filter(by="gates").sort("kept")
    assert again.select("kept", "score").equals(gates.select("kept", "score"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "--by=importence"], "did you mean 'importance'"),
        (["RUN", "--by=[random,random]"], "twice"),
        (["RUN", "--by=[]"], "--by=[] names no order: use one, or --gates or --targets"),
        (["RUN", "--by=gates"], "--gates=[RUN,...]"),
        (["RUN", "--by=fisher"], "'mtl importance RUN' makes it"),
        (["RUN", "--by=integrated"], "'mtl importance RUN --steps=N' makes it"),
        (["RUN", "--by=confidence"], "'mtl probe RUN' makes it"),
        (["RUN", "--draws=0"], "draws=0: use at least 1"),
        (["RUN", "--steps=0"], "steps=0: use at least 1"),
        (["RUN", "--epochs=0"], "epochs=0: use at least 1"),
        (["RUN", "--targets=[-1]"], "above 0"),
        (["RUN", "--task=srl"], "has no task 'srl'"),
        (["RUN", "--cut", "--rounds=0"], "rounds=0"),
        (["RUN", "--by=random", "--draws=1", "--steps=1", "--gates=[RUN]"], "has no gates"),
        (["RUN/nowhere"], "not a run folder"),
    ],
)
def test_bad_input_is_one_line(run, capsys, words, message) -> None:
    assert command("curve", *(word.replace("RUN", str(run), 1) for word in words)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("mtl: ")
    assert message.replace("RUN", "") in error.replace("RUN", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed=-1"], "seed=-1: use a number from 0 to 4,294,967,295"),
        (["--rank_sentences=0"], "rank_sentences=0: use at least 1"),
        (["--targets=[0.5]", "--gates_epochs=0"], "gates_epochs=0: use at least 1"),
        (["--gates_epochs=1"], "--gates_epochs has no effect without --targets"),
        (["--cut", "--batches=[0]"], "batches=[0]: use at least 1"),
        (["--gates=[RUN/nowhere]"], "not a run folder"),
        (["--gates=[RUN]"], "has no gates"),
        (["--targets=[4,1000]"], "--targets=1000: target 1000: there are only 12 heads"),
        (["--targets=[2.5]"], "--targets=2.5: gates.target_open=2.5: use a share of the heads"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(run, capsys, words, message) -> None:
    words = [word.replace("RUN", str(run)) for word in words]
    assert command("curve", str(run), "--by=random", "--draws=1", "--steps=1", *words) == 2
    assert message in capsys.readouterr().err
    assert not (run / "curve.parquet").exists()


@pytest.mark.slow
def test_settings_for_other_tasks_do_not_stop_the_training_of_one(tmp_path) -> None:
    """A joint run's loss weights, mask per task and comparison of gradients are for several tasks."""
    corpus = tmp_path / "corpus"
    write_toy(corpus, 12, 8, 8, seed=1)
    both = worth.joint_model(corpus, ("pos", "dep"), dtype=torch.float32)
    folder = folder_of(both, corpus, tmp_path / "both")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config |= {
        "balancer": {"name": "fixed", "weights": {"pos": 2.0, "dep": 3.0}},
        "gates": {"scope": "per_task"},
        "gradient_conflict_every": 2,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    words = ("--task=pos", "--by=random", "--draws=1", "--steps=1", "--targets=[4]", "--gates_epochs=1")
    assert command("curve", str(folder), *words, "--epochs=1") == 0
    scores = table(folder)
    assert scores.filter(by="gates")["kept"].to_list() == [4]
    assert scores.filter(by="random", trained_epochs=1).height == 2
    trained = Path(scores.filter(by="gates")["source"].item())
    assert yaml.safe_load((trained / "config.yaml").read_text())["balancer"]["weights"] == {"pos": 2.0}
    both_again = CurveStart.of(open_trained(folder, None, "test"))
    check_gate_points(both_again, (4.0,), ())
    with pytest.raises(InputError, match="there are only 12 heads"):
        check_gate_points(both_again, (13.0,), ())


def test_gates_that_keep_more_heads_than_a_masked_run_are_noted() -> None:
    """A run's masks leave four heads open, and gates for a target of six are learned on the whole model."""
    six = tuple((0, head) for head in range(6))
    points = [CurvePoint("random", 0, "pos", six[:4], 1.0, 0.0), CurvePoint("gates", 0, "pos", six, 1.5, 0.0)]
    assert more_than_at_start(points[:1]) is None
    message = more_than_at_start(points)
    assert "more heads for pos than the run's masks leave open" in message
    assert "--masks=false" in message


def test_a_cut_model_replaces_nothing_that_is_there(run, tmp_path, capsys) -> None:
    weights = tmp_path / "mine" / "model" / "weights.bin"
    weights.parent.mkdir(parents=True)
    weights.write_text("mine")
    mask = tmp_path / "gates.parquet"
    faults = {
        tmp_path / "mine": "exists, and is no empty folder: use another --out",
        weights: "is a file, not a folder",
    }
    for out, fault in faults.items():
        assert command("prune", str(run), f"--out={out}", f"--mask={mask}") == 2
        assert fault in capsys.readouterr().err
    assert weights.read_text() == "mine"


def test_what_cannot_be_cut_says_why(tmp_path, capsys) -> None:
    corpus = tmp_path / "corpus"
    write_toy(corpus, 12, 8, 8, seed=1)
    albert = worth.joint_model(corpus, ("pos",), family="albert", dtype=torch.float32)
    folder = folder_of(albert, corpus, tmp_path / "albert")
    assert command("curve", str(folder), "--by=random", "--cut") == 2
    assert "no heads can be cut out of AlbertModel" in capsys.readouterr().err
    both = worth.joint_model(corpus, ("pos", "dep"), dtype=torch.float32)
    folder = folder_of(both, corpus, tmp_path / "both")
    assert command("curve", str(folder), "--by=random", "--cut") == 2
    assert "choose with --task (pos, dep)" in capsys.readouterr().err


@pytest.mark.slow
def test_figures_of_several_runs(run, tmp_path, capsys) -> None:
    other = folder_of(JointModel.from_pretrained(run), tmp_path / "corpus", tmp_path / "second", seed=2)
    for folder in (run, other):
        give_roles(folder)
        words = ["--by=[fisher,random]", "--draws=2", "--steps=2", "--cut", "--batches=[2]", "--rounds=1"]
        assert command("curve", str(folder), *words) == 0
    for name in ("curve", "curve-roles", "curve-time"):
        out = tmp_path / f"{name}.pdf"
        assert command("figure", name, str(run), str(other), f"--out={out}") == 0
        assert out.read_bytes().startswith(b"%PDF")
        assert (tmp_path / f"{name}.tex").exists()
    means = pl.read_parquet(tmp_path / "curve.parquet")
    of_random = means.filter(by="random", percent=50.0)
    points = pl.concat([table(run), table(other)]).filter(by="random", kept=6)["score"]
    assert of_random["curves"].item() == 4
    assert of_random["score"].item() == pytest.approx(points.mean())
    assert of_random["spread"].item() == pytest.approx(points.std())
    capsys.readouterr()
    assert command("figure", "curve", str(run), "--split=dev", f"--out={tmp_path / 'x.pdf'}") == 2
    assert "scored on test, not on dev" in capsys.readouterr().err
    assert command("figure", "curve-kinds", str(run), f"--out={tmp_path / 'x.pdf'}") == 2
    assert "all heads are of one kind of attention: left out; nothing to draw" in capsys.readouterr().err
    (run / "curve.parquet").unlink()
    assert command("figure", "curve", str(run), f"--out={tmp_path / 'x.pdf'}") == 2
    assert "'mtl curve" in capsys.readouterr().err
