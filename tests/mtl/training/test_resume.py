"""Runs that were stopped, that others work on, and that are to be replaced: what happens to their folders."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from polars.testing import assert_frame_equal
from rich.console import Console

from mtl.commands.main import main
from mtl.config.schema import (
    BatchConfig,
    CorpusConfig,
    EncoderConfig,
    GatesConfig,
    OptimizerConfig,
    TrainConfig,
    TrainerConfig,
)
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.heads.gate_file import read_gates
from mtl.models import encoder
from mtl.models.joint import JointModel
from mtl.models.pass_graphs import PassGraphs
from mtl.runs.folder.run import Run
from mtl.training import assembly, step
from mtl.training import train as module
from mtl.training.checkpoint import generators, restore_generators
from mtl.training.train import train
from mtl.workers.lease import lease
from tests.launches import pass_graphs
from tests.mtl.stopped import StopAt, weights

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    """A folder with a generated corpus, smaller than other tests'."""
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder, 30, 6, 6, seed=1)
    return folder


@pytest.fixture
def config(toy, tiny_encoder, tmp_path) -> TrainConfig:
    """A short run of one task."""
    return TrainConfig(
        name="run", runs=str(tmp_path / "runs"), corpus=CorpusConfig(str(toy)), tasks=("pos",), max_epochs=1,
        encoder=EncoderConfig(str(tiny_encoder)), batch=BatchConfig(sentences=6),
        trainer=TrainerConfig(accelerator="cpu"),
    )  # fmt: skip


def epochs(run: Run) -> list[str]:
    return [row["epoch"] for row in csv.DictReader((run.folder / "history.csv").read_text().splitlines())]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_run_with_a_target_is_resumed_exactly_after_its_heads_were_chosen(config):
    config = dataclasses.replace(
        config, max_epochs=3, pruning="dynamic", gates=GatesConfig(target_open=0.5),
        trainer=TrainerConfig(accelerator="cpu", checkpoint_minutes=0.0),
    )  # fmt: skip
    unbroken = train(dataclasses.replace(config, name="unbroken"), console=QUIET)
    # 15 updates, of which the last fifth holds the choice: the checkpoint is of the 13th.
    with pytest.raises(RuntimeError, match="power"):
        train(config, console=QUIET, observers=[StopAt(14)])
    broken = Run(unbroken.folder.with_name("run"))
    assert broken.status()["state"] == "failed"
    assert "power" in broken.status()["error"]
    (broken.resume_checkpoint.parent / ".last.ckpt.1234").write_text("left by a killed process")
    checkpoint = torch.load(broken.resume_checkpoint, weights_only=True)
    state = checkpoint["callbacks"]["Evaluation"]
    assert "gates" not in state
    state["gates"] = [{"task": "pos", "step": 5}]  # of an earlier program; gates.parquet holds the same rows
    torch.save(checkpoint, broken.resume_checkpoint)
    assert train(config, console=QUIET) == broken
    first, second = weights(unbroken), weights(broken)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    status = broken.status()
    assert (status["state"], len(status["starts"])) == ("finished", 2)
    assert "error" not in status
    assert not broken.resume_checkpoint.parent.exists()
    gates = [read_gates(run.folder / "gates.parquet") for run in (unbroken, broken)]
    assert gates[0]["step"].unique().to_list() == [5, 10, 15]
    assert_frame_equal(*gates)


@pytest.mark.slow
def test_a_run_by_graphs_draws_the_same_whether_captured_or_resumed(config, monkeypatch):
    """A stand-in takes the place of a GPU's graphs; a resumed run captures each shape anew, and later."""
    monkeypatch.setattr(module, "check_machine", lambda settings: torch.device("cuda"))
    monkeypatch.setattr(encoder, "_on_cpu", lambda tensor: False)
    monkeypatch.setattr(step, "draw_by_counter", lambda model: None)
    monkeypatch.setattr(step.JointTraining, "_sparse_embedding", lambda self: None)
    trainer = TrainerConfig(accelerator="cpu", cuda_graphs=True, checkpoint_minutes=0.0)
    config = dataclasses.replace(config, max_epochs=4, tasks=("pos", "dep"), trainer=trainer)
    used: list[PassGraphs] = []

    def trained(name: str, seldom: int, *observers: StopAt) -> Run:
        def graphs(say: Callable[[str], object]) -> PassGraphs:
            used.append(PassGraphs(pass_graphs, seldom, say=say))
            return used[-1]

        monkeypatch.setattr(assembly, "PassGraphs", graphs)
        return train(dataclasses.replace(config, name=name), console=QUIET, observers=observers)

    padded, unbroken = trained("padded", 99), trained("unbroken", 1)
    with pytest.raises(RuntimeError, match="power"):
        trained("broken", 1, StopAt(14))
    found = [weights(run) for run in (padded, unbroken, trained("broken", 1))]
    assert [graphs.passes > 0 for graphs in used] == [False, True, True, True]
    for other in found[1:]:
        assert all(torch.equal(found[0][key], other[key]) for key in found[0])
    says = io.StringIO()
    rounded = dataclasses.replace(trainer, precision="bf16-master")
    train(dataclasses.replace(config, name="rounded", trainer=rounded), console=Console(file=says, width=200))
    assert says.getvalue().count("captures no passes with observed heads or copies") == 1
    assert used[-1].passes == 0


@pytest.mark.slow
def test_a_run_out_of_patience_stays_so_though_it_was_stopped_while_it_was_scored(config, monkeypatch):
    still = OptimizerConfig(encoder_lr=0.0, decoder_lr=0.0, weight_decay=0.0)
    config = dataclasses.replace(config, max_epochs=5, patience=1, optimizer=still)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run = Run(Path(config.runs) / "run")
    with monkeypatch.context() as patch:
        patch.setattr(module, "evaluate_sentences", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config, console=QUIET)
    assert (run.status()["state"], run.status()["trained"], epochs(run)) == ("interrupted", True, ["1", "2"])
    before = run.status()["training_seconds"]
    # As if it had been killed just before that was noted.
    status = run.status()
    del status["trained"], status["training_seconds"]
    (run.folder / "status.json").write_text(json.dumps(status))
    with monkeypatch.context() as patch:
        patch.setattr(module, "evaluate_sentences", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config, console=QUIET)
    assert (run.status()["trained"], epochs(run)) == (True, ["1", "2"])
    assert run.status()["training_seconds"] > 0.5 * before
    with monkeypatch.context() as patch:
        patch.setattr(module, "_fit", interrupt)
        train(config, console=QUIET)
    assert run.status()["state"] == "finished"
    assert set(run.metrics()) == {"dev", "test"}
    assert epochs(run) == ["1", "2"]


def test_the_final_scores_are_computed_on_the_device_that_was_trained_on(config, monkeypatch):
    """At the end of training Lightning moves the model to `cpu`; here the trainer's device is `cpu:0`."""
    real, moved = assembly.trainer_for, []

    def on_first_cpu(*words):
        trainer = real(*words)
        trainer.strategy._root_device = torch.device("cpu", 0)
        return trainer

    class Recorded(JointModel):
        def to(self, device):
            moved.append(device)
            return super().to(device)

    monkeypatch.setattr(assembly, "trainer_for", on_first_cpu)
    monkeypatch.setattr(module, "JointModel", Recorded)
    train(config, console=QUIET)
    assert moved == [torch.device("cpu", 0)]


@pytest.mark.slow
def test_only_another_run_is_overwritten_and_only_when_all_is_read(config, tiny_encoder):
    run = train(config, console=QUIET)
    before = content(run.folder)
    overwriting = dataclasses.replace(config, overwrite=True)
    wrong = dataclasses.replace(overwriting, encoder=EncoderConfig("nowhere/to/be/found"))
    with pytest.raises(InputError, match="nowhere"):
        train(wrong, console=QUIET)
    with pytest.raises(InputError, match="no such folder"):
        train(dataclasses.replace(overwriting, corpus=CorpusConfig("nowhere")), console=QUIET)
    # The same configuration is no other run: a job that is requeued finds its work done.
    train(overwriting, console=QUIET)
    assert content(run.folder) == before
    other = dataclasses.replace(config, seed=2)
    with pytest.raises(InputError, match=r"another configuration \(seed\): give another --name; --overwr"):
        train(other, console=QUIET)
    assert content(run.folder) == before
    with lease(run.lease) as mine:
        assert mine
        with pytest.raises(InputError, match=r"process \d+ on .* is training in it; wait until it has ended"):
            train(dataclasses.replace(other, overwrite=True), console=QUIET)
    assert content(run.folder) == before
    train(dataclasses.replace(other, overwrite=True), console=QUIET)
    assert (run.status()["state"], run.status()["seed"], len(run.status()["starts"])) == ("finished", 2, 1)
    assert [path.name for path in run.folder.parent.iterdir()] == ["run"]


@pytest.mark.slow
def test_an_overwritten_run_is_kept_until_the_new_one_has_finished(config):
    """A run may fail in its first step, for instance for want of memory."""
    run = train(config, console=QUIET)
    before = content(run.folder)
    other = dataclasses.replace(config, seed=2, overwrite=True)
    told = Console(record=True, file=io.StringIO(), width=300)
    with pytest.raises(RuntimeError, match="power"):
        train(other, console=told, observers=[StopAt(1)])
    [aside] = run.replaced.iterdir()
    assert content(aside) == before
    assert f"the run that was there is in {aside} until this one has finished" in told.export_text()
    assert run.status()["state"] == "failed"
    train(other, console=QUIET)
    assert (run.status()["state"], run.status()["seed"]) == ("finished", 2)
    assert [path.name for path in run.folder.parent.iterdir()] == ["run"]


def test_a_run_on_a_full_disk_ends_in_one_line_and_leaves_no_temporary_files(config, monkeypatch, capsys):
    def save(model: JointModel, folder: Path) -> None:
        (folder / "model.json").write_text("{")
        raise RuntimeError("I/O error: No space left on device (os error 28)")  # as safetensors does

    monkeypatch.setattr(JointModel, "save", save)
    words = [f"--runs={config.runs}", f"--corpus.path={config.corpus.path}", "--tasks=pos", "--name=run"]
    words += [f"--encoder.name={config.encoder.name}", "--max_epochs=1", "--trainer.accelerator=cpu"]
    assert main(["train", *words]) == 2
    folder = Path(config.runs) / "run"
    assert capsys.readouterr().err == (
        f"mtl: {folder}/model: the disk is full: free some space and run the command again\n"
    )
    assert [path.name for path in folder.parent.rglob(".*")] == []
    monkeypatch.undo()
    assert main(["train", *words]) == 0


def test_a_checkpoint_is_written_where_it_belongs_and_nowhere_else(config, monkeypatch, tmp_path):
    """Lightning's own way writes it to the folder of temporary files first, which may be a small disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
    with pytest.raises(RuntimeError, match="power"):
        train(dataclasses.replace(config, max_epochs=2), console=QUIET, observers=[StopAt(6)])
    run = Run(Path(config.runs) / "run")
    assert [path.name for path in run.resume_checkpoint.parent.iterdir()] == ["last.ckpt"]
    assert train(dataclasses.replace(config, max_epochs=2), console=QUIET).status()["state"] == "finished"


def test_a_folder_that_is_no_run_is_not_overwritten(config):
    folder = Path(config.runs) / "run"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(
        InputError, match=r"is not a run folder \(no config.yaml\): overwrite=true deletes runs"
    ):
        train(dataclasses.replace(config, overwrite=True), console=QUIET)
    assert content(folder) == {"thesis.tex": b"years of work"}


def test_a_corpus_that_changed_under_a_run_is_refused(config, toy, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for file in toy.glob("*.jsonl"):
        (corpus / file.name).write_bytes(file.read_bytes())
    config = dataclasses.replace(config, corpus=CorpusConfig(str(corpus)))
    with pytest.raises(RuntimeError, match="power"):
        train(config, console=QUIET, observers=[StopAt(2)])
    run = Run(Path(config.runs) / "run")
    old = run.status()["corpus_fingerprint"]
    lines = (corpus / "train.jsonl").read_text().splitlines(keepends=True)
    (corpus / "train.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(InputError, match=r"the corpus was changed since it started: give another --name"):
        train(config, console=QUIET)
    assert run.status()["corpus_fingerprint"] == old
    train(dataclasses.replace(config, overwrite=True), console=QUIET)
    assert run.status()["corpus_fingerprint"] != old
    assert len(run.status()["starts"]) == 1


@pytest.mark.slow
def test_settings_that_come_with_another_run_are_recorded_or_refused(config, capsys):
    own = dataclasses.replace(config.encoder, pooling="first", word_dropout=0.1)
    source = train(dataclasses.replace(config, name="source", encoder=own), console=QUIET)
    further = dataclasses.replace(config, encoder=EncoderConfig(), init_from=str(source.folder))
    for given, message in (
        (EncoderConfig(pooling="last"), "encoder.pooling=last, but .* was trained with first"),
        (EncoderConfig(word_dropout=0.3), "encoder.word_dropout=0.3, but .* was trained with 0.1"),
        (
            EncoderConfig(name="somewhere/else"),
            r"encoder.name=somewhere/else, but .* out \(of files, too\), or use --encoder.name=",
        ),
    ):
        with pytest.raises(InputError, match=message):
            train(dataclasses.replace(further, encoder=given), console=QUIET)
    dropout = dataclasses.replace(config.pos, dropout=0.77)
    with pytest.raises(InputError, match=r"pos.dropout=0.77, but .*: leave pos.dropout out"):
        train(dataclasses.replace(further, pos=dropout), console=QUIET)
    assert not (Path(config.runs) / "run").exists()
    words = [f"--from={source.folder}", "--tasks=pos", f"--runs={config.runs}", "--name=run"]
    assert main(["train", *words, "--encoder.pooling=mean"]) == 2  # the default, but given
    message = f"encoder.pooling=mean, but {source.folder} was trained with first"
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (Path(config.runs) / "run").exists()
    run = train(further, console=QUIET)
    assert run.config()["encoder"] == source.config()["encoder"]
    assert train(further, console=QUIET).status()["state"] == "finished"


def test_a_checkpoint_from_elsewhere_runs_no_code(config, tmp_path):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "owned",)

    with pytest.raises(RuntimeError, match="power"):
        train(config, console=QUIET, observers=[StopAt(2)])
    run = Run(Path(config.runs) / "run")
    run.resume_checkpoint.parent.mkdir(exist_ok=True)
    torch.save({"state_dict": Evil()}, run.resume_checkpoint)
    with pytest.raises(InputError, match=r"last\.ckpt is damaged, or holds more than tensors"):
        train(config, console=QUIET)
    assert not (tmp_path / "owned").exists()


@pytest.fixture
def stopped(config) -> Run:
    """A run that was stopped after its second update and has a checkpoint."""
    config = dataclasses.replace(config, trainer=TrainerConfig(accelerator="cpu", checkpoint_minutes=0.0))
    with pytest.raises(RuntimeError, match="power"):
        train(config, console=QUIET, observers=[StopAt(2)])
    return Run(Path(config.runs) / "run")


@pytest.mark.parametrize(
    "damage",
    ["cut", *(pytest.param(each, marks=pytest.mark.slow) for each in ("empty", "text", "list", "legacy"))],
)
def test_a_damaged_checkpoint_is_one_line_and_nothing_is_lost(config, stopped, damage):
    config = dataclasses.replace(config, trainer=TrainerConfig(accelerator="cpu", checkpoint_minutes=0.0))
    path = stopped.resume_checkpoint
    whole = path.read_bytes()
    if damage == "list":
        torch.save([1, 2], path)
    elif damage == "legacy":
        torch.save({"state_dict": {"a": torch.ones(1)}}, path, _use_new_zipfile_serialization=False)
    else:
        path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "text": b"no checkpoint"}[damage])
    damaged = path.read_bytes()
    with pytest.raises(InputError, match=r"last\.ckpt is damaged: delete it and run the command again"):
        train(config, console=QUIET)
    assert path.read_bytes() == damaged
    path.write_bytes(whole)
    assert train(config, console=QUIET).status()["state"] == "finished"


def test_a_checkpoint_with_other_parameters_is_refused(config, stopped):
    config = dataclasses.replace(config, trainer=TrainerConfig(accelerator="cpu", checkpoint_minutes=0.0))
    content = torch.load(stopped.resume_checkpoint, weights_only=True)
    name = sorted(content["state_dict"])[0]
    content["state_dict"]["renamed"] = content["state_dict"].pop(name)
    torch.save(content, stopped.resume_checkpoint)
    with pytest.raises(InputError, match=r"by another version of mtl \(2 of its tensors differ"):
        train(config, console=QUIET)
    stopped.resume_checkpoint.unlink()
    assert train(config, console=QUIET).status()["state"] == "finished"


def test_generators_of_a_machine_with_more_gpus_are_restored(monkeypatch):
    state = generators()
    restored: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: restored.append(device))
    first = torch.rand(3)
    restore_generators({**state, "cuda": [torch.zeros(1), torch.zeros(1)]})
    assert torch.equal(torch.rand(3), first)
    assert restored == [0]
