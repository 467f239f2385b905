"""Translation runs: trained, stopped and resumed, under masks of some kinds of attention, and refused."""

from __future__ import annotations

import csv
import dataclasses
import json

import polars as pl
import pytest
import torch
import yaml
from rich.console import Console

from mtl.commands.main import main
from mtl.config.effective import plain
from mtl.config.instances import Instance
from mtl.config.schema import (
    BatchConfig,
    CorpusConfig,
    GatesConfig,
    OptimizerConfig,
    TrainConfig,
    TrainerConfig,
)
from mtl.errors import InputError
from mtl.models.joint import JointModel
from mtl.probes.sites import Site
from mtl.runs.folder.run import Run
from mtl.training.assembly import warmup_share
from mtl.training.check import check_settings
from mtl.training.gate_loss import ungated_sites
from mtl.training.step import rate_factor
from mtl.training.train import train
from mtl.translation.config import Seq2SeqConfig
from mtl.translation.task import Translate
from tests.mtl.stopped import StopAt, weights
from tests.mtl.translation import digits

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run, for others to start from."""
    return train(digits.config(tmp_path_factory.mktemp("before")), console=QUIET)


def history(run: Run) -> list[dict[str, str]]:
    rows = list(csv.DictReader((run.folder / "history.csv").read_text().splitlines()))
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.mark.slow
def test_a_task_under_a_name_of_its_own_trains_as_translate_does(before, tmp_path):
    run = train(digits.named(digits.config(tmp_path), "own"), console=QUIET)
    first, second = weights(before), weights(run)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert {split: {"own": of["translate"]} for split, of in before.metrics().items()} == run.metrics()


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_model_and_history(tmp_path):
    config = digits.config(
        tmp_path, epochs=2, pruning="dynamic", batch=BatchConfig(tokens=128, sentences=None),
        seq2seq=Seq2SeqConfig("marian", 1, None, 2, 16, 16, 0.1, 300),
        trainer=TrainerConfig(accelerator="cpu", precision="32-true", checkpoint_minutes=0.0),
        gates=GatesConfig(kinds=("encoder", "cross"), target_open=2.0),
    )  # fmt: skip
    unbroken = train(dataclasses.replace(config, name="unbroken"), console=QUIET)
    with pytest.raises(RuntimeError, match="power"):
        train(config, console=QUIET, observers=[StopAt(7)])
    broken = train(config, console=QUIET)
    first, second = weights(unbroken), weights(broken)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert history(unbroken) == history(broken)
    assert (unbroken.model / "tokenizer.json").read_text() == (broken.model / "tokenizer.json").read_text()
    # Heads of the decoder have no gate: they stay open, beside the two that were wanted.
    table = pl.read_parquet(broken.folder / "gates.parquet")
    last = table.filter(pl.col("step") == pl.col("step").max())
    opened = dict(last.group_by("attention").agg(pl.col("open").sum()).iter_rows())
    assert opened["decoder"] == 2
    assert opened["encoder"] + opened["cross"] == 2
    assert last.filter(attention="decoder")["gate"].to_list() == [1.0, 1.0]
    assert last.filter(attention="decoder")["log_alpha"].null_count() == 2
    assert float(history(broken)[-1]["gates/shared/open"]) == 2
    metrics = json.loads((broken.folder / "metrics.json").read_text())
    assert metrics["signatures"]["translate"]["bleu"].startswith("nrefs:1|")
    assert set(broken.metrics()) == {"dev", "test"}
    assert set(broken.metrics()["dev"]["translate"]) == {"bleu", "chrf", "cross_entropy"}


@pytest.mark.slow
def test_targets_by_kind_are_met_by_kind_through_the_command_and_when_resumed(tmp_path, capsys):
    config = digits.config(
        tmp_path, epochs=2, pruning="dynamic", batch=BatchConfig(tokens=128, sentences=None),
        seq2seq=Seq2SeqConfig("marian", 2, 1, 4, 16, 16, 0.1, 300),
        trainer=TrainerConfig(accelerator="cpu", precision="32-true", checkpoint_minutes=0.0),
    )  # fmt: skip
    file = tmp_path / "digits.yaml"
    file.write_text(yaml.safe_dump(plain(dataclasses.asdict(config))))
    words = [
        "train",
        str(file),
        "--gates.target_open={encoder: 3, cross: 0.5}",
        "--gates.penalty.decoder=0.1",
    ]
    assert main([*words, "--name=unbroken"]) == 0
    printed = capsys.readouterr().out
    unbroken = Run.open(tmp_path / "runs" / "unbroken")
    gates = GatesConfig(target_open={"encoder": 3.0, "cross": 0.5}, penalty={"decoder": 0.1})
    with pytest.raises(RuntimeError, match="power"):
        train(dataclasses.replace(config, gates=gates), console=QUIET, observers=[StopAt(7)])
    assert main([*words, "--name=run"]) == 0
    broken = Run.open(tmp_path / "runs" / "run")
    first, second = weights(unbroken), weights(broken)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert history(unbroken) == history(broken)

    table = pl.read_parquet(broken.folder / "gates.parquet")
    last = table.filter(pl.col("step") == pl.col("step").max())
    opened = dict(last.group_by("attention").agg(pl.col("open").sum()).iter_rows())
    assert (opened["encoder"], opened["cross"]) == (3, 2)
    assert last.filter(attention="decoder")["log_alpha_at_choice"].null_count() == 4
    assert last.filter(attention="cross")["log_alpha_at_choice"].null_count() == 0
    choices = broken.status()["choices"]
    assert list(choices) == ["shared/encoder", "shared/cross"]
    for name, wanted in (("shared/encoder", 3), ("shared/cross", 2)):
        choice = choices[name]
        assert choice["open_at_choice"] + choice["forced_open"] - choice["forced_closed"] == wanted
        for figure, number in choice.items():
            assert int(history(broken)[-1][f"gates/{name}/{figure}"]) == number
    forced = choices["shared/encoder"]
    if forced["forced_open"] + forced["forced_closed"]:
        assert "warning: mask shared, encoder: training left" in printed


def test_a_static_run_trains_the_encoder_alone(before, tmp_path):
    config = digits.config(tmp_path)
    after = train(
        dataclasses.replace(config, name="static", pruning="static", init_from=str(before.folder)),
        console=QUIET,
    )
    first, second = weights(before), weights(after)
    changed = {key for key in first if not torch.equal(first[key], second[key])}
    assert changed
    assert all(".encoder.layers." in key for key in changed)


@pytest.mark.slow
def test_empty_lines_are_left_out_of_training_and_scored_in_dev(tmp_path, capsys):
    config = digits.config(tmp_path)
    for paths in (config.corpus.translate.train, config.corpus.translate.dev):
        source, target = paths.split(":")
        for path, line in ((source, "\n"), (target, "eins.\n")):
            with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
                file.write(line)
    run = train(config, console=Console(width=200))
    printed = capsys.readouterr().out
    assert "1.digits:65): left out" in printed
    assert "2.digits:9): scored as they are" in printed
    assert "training translate on 64 sentences" in printed
    assert run.status()["state"] == "finished"


@pytest.mark.slow
def test_digits_are_learned(tmp_path):
    config = digits.config(
        tmp_path, sentences=4000, held_out=40, epochs=12,
        seq2seq=Seq2SeqConfig("marian", 2, None, 4, 64, 128, 0.0, 300),
        batch=dataclasses.replace(digits.config(tmp_path).batch, tokens=1024),
        optimizer=OptimizerConfig(
            encoder_lr=2e-3, weight_decay=0.0, schedule="inverse_sqrt", warmup_updates=60, beta2=0.98
        ),
    )  # fmt: skip
    run = train(config, console=QUIET)
    assert run.metrics()["test"]["translate"]["bleu"] > 90


def test_a_model_that_translates_is_no_start_for_one_that_labels(before, tmp_path, toy):
    pos = TrainConfig(
        name="pos", runs=str(tmp_path / "runs"), tasks=("pos",), corpus=CorpusConfig(str(toy)),
        init_from=str(before.folder),
    )  # fmt: skip
    with pytest.raises(
        InputError, match="was trained for translate, and its model cannot be trained for pos"
    ):
        train(pos, console=QUIET)


def test_settings_that_cannot_be():
    with pytest.raises(InputError, match="minilm has no decoder, and cannot translate"):
        check_settings(TrainConfig(tasks=("translate",)))
    scratch = Seq2SeqConfig("marian")
    with pytest.raises(InputError, match=r"translate is trained alone, .* leave out pos"):
        check_settings(TrainConfig(tasks=("pos", "translate"), seq2seq=scratch))
    named = {"de_en": Instance("translation"), "fr_en": Instance("translation"), "ner2": Instance("spans")}
    for other in ("pos", "ner2", "fr_en", "translate"):
        config = TrainConfig(tasks=("de_en", other), instances=named, seq2seq=scratch)
        with pytest.raises(InputError, match=r"^\S+ is trained alone, .* leave out \S+$") as error:
            check_settings(config)
        assert {"de_en", other} < set(str(error.value).split())
    with pytest.raises(InputError, match=r"seq2seq\.architecture=marian is for translations, and tasks is p"):
        check_settings(TrainConfig(tasks=("pos",), seq2seq=scratch))
    check_settings(TrainConfig(tasks=("translate",), seq2seq=scratch, translate=Translate("en", "de")))


def test_kinds_of_attention_choose_sites():
    sites = [Site("encoder", 0), Site("decoder", 0), Site("cross", 0), Site("encoder", 1)]
    assert ungated_sites(None, sites) == ()
    assert ungated_sites(("encoder",), sites) == (1, 2)
    with pytest.raises(InputError, match="no attention of kind self: it has encoder, decoder, cross"):
        ungated_sites(("encoder", "self"), sites)
    with pytest.raises(InputError, match=r"gates\.kinds is empty"):
        ungated_sites((), sites)


def test_rates_fall_with_the_root_of_the_update():
    assert warmup_share(OptimizerConfig(warmup=0.2), 100) == 0.2
    share = warmup_share(OptimizerConfig(warmup_updates=25), 100)
    assert share == 0.25
    assert warmup_share(OptimizerConfig(warmup_updates=250), 100) == 1.0
    factors = [rate_factor(update, 100, share, "inverse_sqrt") for update in range(100)]
    assert factors[0] == pytest.approx(1 / 26)
    assert max(factors) == factors[25] == 1.0
    assert factors[99] == pytest.approx((25 / 99) ** 0.5)


def test_a_model_of_another_run_keeps_its_settings(before, tmp_path):
    config = digits.config(
        tmp_path, name="other", init_from=str(before.folder), seq2seq=Seq2SeqConfig("marian", layers=7)
    )
    with pytest.raises(InputError, match=r"seq2seq\.layers=7, but .* was trained with 1"):
        train(config, console=QUIET)
    assert JointModel.from_pretrained(before.model).encoder.layers == 3
