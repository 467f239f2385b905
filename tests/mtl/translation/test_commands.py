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

from mtl.analysis.ablation import mean_outputs
from mtl.analysis.trained import open_trained
from mtl.commands.main import main
from mtl.errors import InputError
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run
from mtl.training.train import train
from mtl.translation.lines import translate_lines
from tests.mtl.translation import digits


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has learned a little (single digits), whose task has a name of its own."""
    folder = tmp_path_factory.mktemp("digits")
    config = digits.named(digits.config(folder, sentences=300, epochs=3, pruning="dynamic"), "names_of")
    return train(config, console=Console(quiet=True))


def given(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.slow
def test_lines_are_translated_and_empty_ones_kept(run, tmp_path, monkeypatch, capsys):
    """From standard input, from a file and in Python."""
    given(monkeypatch, b"1 2\n\n7\n")
    assert main(["translate", str(run.folder), "--beam=1"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert len(lines) == 3
    assert lines[0]
    assert not lines[1]
    assert not captured.err
    (tmp_path / "lines.txt").write_text("1 2\n\n7\n")
    assert main(["translate", str(run.folder), str(tmp_path / "lines.txt"), "--beam=1"]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    model = JointModel.from_pretrained(run.folder)
    before = dict(model.tasks)
    assert translate_lines(model, ["1 2", "", "7"], beam=1) == lines
    assert model.tasks == before
    with pytest.raises(InputError, match="line 2: 513 words, and at most 512 are translated"):
        translate_lines(model, ["1", "1 " * 513])
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


@pytest.mark.slow
def test_heads_are_measured_closed_and_cut(run, tmp_path, capsys):
    folder = str(run.folder)
    assert main(["importance", folder, "--split=dev"]) == 0
    assert main(["ablate", folder, "--heads=cross,decoder L0H1", "--sentences=2"]) == 0
    assert "decoder L0H1, all cross heads" in capsys.readouterr().out
    for heads, message in (
        ("0.1", "write a head as cross L2H9"), ("self.0", "no attention of kind self: it has encoder"),
        ("cross.1", "layers 0 to 0 of heads 0 to 1"),
    ):  # fmt: skip
        assert main(["ablate", folder, f"--heads={heads}"]) == 2
        assert message in capsys.readouterr().err
    assert main(["ablate", folder, "--split=dev", "--sentences=6"]) == 0
    table = pl.read_parquet(run.folder / "heads.parquet")
    for measure in ("importance", "ablation"):
        kinds = table.filter(measure=measure, task="names_of")["attention"]
        assert kinds.value_counts().sort("attention").rows() == [("cross", 2), ("decoder", 2), ("encoder", 2)]
    capsys.readouterr()
    assert main(["prune", folder, f"--out={tmp_path / 'cut'}"]) == 0
    cut = Run.open(tmp_path / "cut")
    assert cut.metrics()["dev"]["names_of"]["bleu"] == pytest.approx(run.metrics()["dev"]["names_of"]["bleu"])
    assert "2 of 6 heads kept" in capsys.readouterr().out


@pytest.mark.slow
def test_a_head_of_any_kind_is_shown(run, tmp_path, capsys):
    folder, sentence = str(run.folder), "--sentence=1 2"
    kinds = pl.read_parquet(run.folder / "gates.parquet")["attention"].unique().to_list()
    assert sorted(kinds) == ["cross", "decoder", "encoder"]
    for kind in kinds:
        table, picture = (tmp_path / f"{kind}.{end}" for end in ("parquet", "svg"))
        for output in (table, picture):
            assert main(["show", folder, f"{kind} L0H1", sentence, "--matrix", f"--output={output}"]) == 0
            assert "L0H1" in capsys.readouterr().out
        of_row = pl.read_parquet(table).group_by("row").agg(pl.col("weight").sum())["weight"].to_list()
        assert of_row == pytest.approx([1] * len(of_row), abs=1e-5)
        assert picture.read_text().startswith("<?xml")
    assert main(["show", folder, "cross L0H1", sentence, "--translation=zwei eins."]) == 0
    rows = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert "".join(rows).replace("▁", " ").split() == ["zwei", "eins.</s>"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cross L0H1"], "cross L0H1 is shown on a text: use --sentence"),
        (
            ["encoder L0H1", "--sentence=1", "--translation=eins"],
            "--translation is for heads of a decoder or of",
        ),
        (["cross L0H1", "--translation=eins"], "--translation is that of --sentence: add it"),
        (["cross L0H1", "--sentence=We are. You are.", "--translation=x"], "and these are 2: give one"),
        (
            ["cross L0H1", "--sentence=1", "--least=0.5", "--output=x.svg"],
            "--least has no effect on cross L0H1, which is drawn without arcs: leave it out",
        ),
        (["cross L0H7", "--sentence=1"], "cross attention has layers 0 to 0 of heads 0 to 1"),
    ],
)
def test_what_cannot_be_shown_of_a_translation_is_one_line(words, message, run, capsys):
    assert main(["show", str(run.folder), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_kind_of_attention_that_a_model_lacks_is_refused(run, capsys):
    folder = str(run.folder)
    for command in (["show", folder, "self L0H1", "--sentence=1"], ["ablate", folder, "--heads=self L0H1"]):
        capsys.readouterr()
        assert main(command) == 2
        has = capsys.readouterr().err.partition("no attention of kind self: it has ")[2]
        assert has.strip().split(", ") == ["encoder", "decoder", "cross"]


def test_ablation_without_effect_and_mean_outputs_count_positions(run):
    trained = open_trained(run.folder, None, "dev", sentences=4)
    [means] = mean_outputs(trained.model, trained.batches(64)).values()
    again = mean_outputs(trained.model, trained.batches(100_000))
    assert means.shape[:2] == (3, 2)
    for other in again.values():
        assert (means - other).abs().max() < 1e-5


def test_predict_says_that_the_run_translates(run, monkeypatch, capsys):
    given(monkeypatch, b"one two\n")
    assert main(["predict", str(run.folder)]) == 2
    assert "this one translates: translate text with 'mtl translate'" in capsys.readouterr().err


def test_a_kind_that_the_model_has_not(tmp_path, capsys, toy, tiny_encoder):
    words = ["train", f"--encoder.name={tiny_encoder}", f"--corpus.path={toy}", "--tasks=pos", "--name=x",
             f"--runs={tmp_path}", "--pruning=dynamic", "--gates.kinds=cross"]  # fmt: skip
    assert main(words) == 2
    assert "the model has no attention of kind cross: it has self" in capsys.readouterr().err
