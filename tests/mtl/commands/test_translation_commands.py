"""Commands on a translation run, from training to ablation."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from sacrebleu import corpus_bleu
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from mtl.analysis.ablation.joint import mean_outputs
from mtl.analysis.trained import open_trained
from mtl.commands.main import main
from mtl.config.schema import GatesConfig
from mtl.probes.tables import curve_table
from mtl.runs.folder.run import Run
from mtl.training.train import train
from tests.mtl import digits


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has learned a little (single digits), whose task has a name of its own."""
    folder = tmp_path_factory.mktemp("digits")
    config = digits.named(digits.config(folder, sentences=300, epochs=3, pruning="dynamic"), "names_of")
    return train(config, console=Console(quiet=True))


def given(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_lines_are_translated_and_empty_ones_kept(run, monkeypatch, capsys):
    given(monkeypatch, b"1 2\n\n7\n")
    assert main(["translate", str(run.folder), "--beam=1"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert len(lines) == 3
    assert lines[0]
    assert not lines[1]
    assert not captured.err
    given(monkeypatch, b"1\nM\xe4n\n" + b"1 " * 513 + b"\n7\n")
    assert main(["translate", str(run.folder)]) == 2
    captured = capsys.readouterr()
    assert [bool(line) for line in captured.out.splitlines()] == [True, False, False, True]
    assert captured.err.startswith("mtl: left empty: standard input, line 2: not UTF-8 (")
    assert captured.err.endswith("(2 such lines in all)\n")
    given(monkeypatch, b"1\n" + b"1" * 5000 + b"\n" + b"1 " * 512 + b"\r\n\xc2\xa0\n7")
    assert main(["translate", str(run.folder), "--beam=1"]) == 2
    captured = capsys.readouterr()
    assert [bool(line) for line in captured.out.splitlines()] == [True, False, False, False, True]
    assert captured.err == (
        "mtl: left empty: standard input, line 2: 5,002 subwords, and the model reads at most 512: split the "
        "sentence (2 such lines in all)\n"
    )
    assert main(["translate", str(run.folder), "--beam=0"]) == 2
    capsys.readouterr()
    assert main(["translate", str(run.folder), "--length_penalty=1000"]) == 2
    assert "--length_penalty=1000.0: use a number from -100 to 100" in capsys.readouterr().err


def test_a_run_is_scored_on_other_files_and_exported(run, tmp_path, capsys):
    other = digits.write(tmp_path, 8, 9)
    assert main(["evaluate", str(run.folder), f"--corpus={other}", f"--export={tmp_path / 'out'}",
                 f"--json_out={tmp_path / 'scores.json'}"]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert "tok:13a|smooth:exp" in printed
    gold, predicted = (
        (tmp_path / "out" / f"names_of.{side}.txt").read_text().splitlines() for side in ("gold", "pred")
    )
    assert gold == Path(other.split(":")[1]).read_text().splitlines()
    assert f"{corpus_bleu(predicted, [gold]).score:.2f}" in printed


def test_exported_translations_are_what_sacrebleus_paired_bootstrap_takes(run, tmp_path, monkeypatch, capsys):
    """The test of two systems in docs/translation.md, here for two widths of beam."""
    scores, out = tmp_path / "scores.json", tmp_path / "out"
    assert main(["evaluate", str(run.folder), f"--export={out}", f"--json_out={scores}"]) == 0
    gold, first = ((out / f"names_of.{side}.txt").read_text().splitlines() for side in ("gold", "pred"))
    given(
        monkeypatch, Path(run.config()["corpus"]["instances"]["names_of"]["test"].split(":")[0]).read_bytes()
    )
    capsys.readouterr()
    assert main(["translate", str(run.folder), "--beam=1"]) == 0
    systems = [("beam of 2", first), ("beam of 1", capsys.readouterr().out.splitlines())]
    _, results = PairedTest(systems, {"BLEU": BLEU()}, [gold], "bs", n_samples=100)()
    whole, other = results["BLEU"]
    assert whole.score == pytest.approx(json.loads(scores.read_text())["test"]["names_of"]["bleu"])
    assert 0 < other.p_value <= 1


def test_heads_are_measured_closed_and_cut(run, tmp_path, capsys):
    folder = str(run.folder)
    assert main(["importance", folder, "--split=dev"]) == 0
    assert main(["ablate", folder, "--heads=cross L0H1,decoder.0", "--sentences=2"]) == 0
    for heads, message in (
        ("0.1", "write a head as cross L2H9"), ("self.0", "no attention of kind self: it has encoder"),
        ("cross.1", "layers 0 to 0 of heads 0 to 1"),
    ):  # fmt: skip
        assert main(["ablate", folder, f"--heads={heads}"]) == 2
        assert message in capsys.readouterr().err
    assert main(["ablate", folder, "--split=dev", "--sentences=6"]) == 0
    assert main(["relevance", folder, "--sentences=6", "--output=predicted"]) == 0
    assert "cross L0H" in capsys.readouterr().out
    table = pl.read_parquet(run.folder / "heads.parquet")
    for measure in ("importance", "ablation", "relevance", "relevance_signed"):
        kinds = table.filter(measure=measure, task="names_of")["attention"]
        assert kinds.value_counts().sort("attention").rows() == [("cross", 2), ("decoder", 2), ("encoder", 2)]
    capsys.readouterr()
    assert main(["prune", folder, f"--out={tmp_path / 'cut'}"]) == 0
    cut = Run.open(tmp_path / "cut")
    assert cut.metrics()["dev"]["names_of"]["bleu"] == pytest.approx(run.metrics()["dev"]["names_of"]["bleu"])
    assert "2 of 6 heads kept" in capsys.readouterr().out


def test_ablation_without_effect_and_mean_outputs_count_positions(run):
    trained = open_trained(run.folder, None, "dev", sentences=4)
    [means] = mean_outputs(trained.model, trained.batches(64)).values()
    again = mean_outputs(trained.model, trained.batches(100_000))
    assert means.shape[:2] == (3, 2)
    for other in again.values():
        assert (means - other).abs().max() < 1e-5


@pytest.mark.slow
def test_pruning_curves_show_how_many_heads_of_each_kind_are_left(run, tmp_path, capsys):
    words = ["curve", str(run.folder), "--masks=false", "--steps=3", "--draws=2", "--sentences=4"]
    assert main([*words, "--by=importance,recomputed,random,greedy"]) == 0
    printed = " ".join(capsys.readouterr().out.split())  # titles are as narrow as their tables
    assert "greedy: heads of each kind that are kept" in printed
    assert "random: heads of each kind that are kept (means over 2 draws)" in printed
    orders = pl.read_parquet(run.folder / "curve_heads.parquet")
    for (by, _draw), order in orders.group_by("by", "draw"):
        assert sorted(order["rank"]) == [0, 1, 2, 3, 4, 5], by
        kinds = dict(order.group_by("attention").len().iter_rows())
        assert kinds == {"encoder": 2, "decoder": 2, "cross": 2}
    out = tmp_path / "kinds.png"
    assert main(["figure", "curve-kinds", str(run.folder), f"--out={out}"]) == 0
    assert out.is_file()
    means = pl.read_parquet(tmp_path / "kinds.parquet").filter(by="greedy")
    heads = means.group_by("percent").agg(pl.col("surviving").sum() * 2)
    assert dict(heads.iter_rows()) == pytest.approx({100.0: 6.0, 67.0: 4.0, 33.0: 2.0, 0.0: 0.0})


@pytest.mark.slow
def test_learned_gates_of_one_kind_are_points_of_a_curve(run, tmp_path, capsys):
    gates = GatesConfig(kinds=("encoder",), target_open=0.5)
    config = digits.named(digits.config(tmp_path, pruning="dynamic", gates=gates), "names_of")
    other = train(config, console=Console(quiet=True))
    words = ["curve", str(run.folder), "--masks=false", "--steps=1", "--draws=1", "--sentences=4"]
    assert main([*words, "--by=random", f"--gates=[{other.folder}]"]) == 0
    assert "gates: heads of each kind that are kept" in " ".join(capsys.readouterr().out.split())
    table = pl.read_parquet(other.folder / "gates.parquet")
    last = table.filter(pl.col("step") == pl.col("step").max(), pl.col("open"))
    opened = set(last.select("attention", "layer", "head").iter_rows())
    assert len(opened) == 5  # one of the encoder's, and all of those without gates
    orders = pl.read_parquet(run.folder / "curve_heads.parquet")
    assert curve_table.mask_of(orders, "gates", "names_of", 5) == opened


@pytest.mark.slow
def test_a_pruning_curve_of_a_translation_run(run, capsys):
    words = ["curve", str(run.folder), "--by=importance,random", "--draws=1", "--steps=3"]
    assert main([*words, "--masks=false", "--sentences=8", "--cut", "--batches=[2]", "--rounds=1"]) == 0
    kept = pl.read_parquet(run.folder / "curve.parquet").filter(by="importance")["kept"].to_list()
    assert kept == [6, 4, 2, 0]
    assert pl.read_parquet(run.folder / "curve_time.parquet").height == 8


def test_predict_says_that_the_run_translates(run, monkeypatch, capsys):
    given(monkeypatch, b"one two\n")
    assert main(["predict", str(run.folder)]) == 2
    assert "this one translates: translate text with 'mtl translate'" in capsys.readouterr().err


def test_a_kind_that_the_model_has_not(tmp_path, capsys, toy, tiny_encoder):
    words = ["train", f"--encoder.name={tiny_encoder}", f"--corpus.path={toy}", "--tasks=pos", "--name=x",
             f"--runs={tmp_path}", "--pruning=dynamic", "--gates.kinds=cross"]  # fmt: skip
    assert main(words) == 2
    assert "the model has no attention of kind cross: it has self" in capsys.readouterr().err
