"""Training runs as a user has them: run folders, going on after SIGKILL, several processes.
What a run records of what it is made of.
"""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mtl.commands.main import main
from mtl.config.schema import CorpusConfig, EncoderConfig, TrainConfig
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run
from mtl.training.train import run_dependencies
from tests.mtl.forked import ended, forked, printed

MTL = (sys.executable, "-m", "mtl")


@pytest.fixture(scope="module")
def encoder(tiny_encoder: Path) -> Path:
    """A folder with a tiny random BERT."""
    return tiny_encoder


def train_words(encoder: Path, corpus: Path, runs: Path, *more: str) -> list[str]:
    return [
        "train",
        f"--encoder.name={encoder}", f"--corpus.path={corpus}", f"--runs={runs}",
        "--max_epochs=2", "--batch.sentences=8", "--trainer.accelerator=cpu", "--trainer.threads=1", *more,
    ]  # fmt: skip


def run(words: list[str], output: Path) -> str:
    """What the command prints, in a process of its own."""
    with forked("mtl", words, output) as process:
        assert ended(process, 240) == 0, printed(output)
    return printed(output, "out")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors") | load_file(
        folder / "model" / "decoders.safetensors"
    )


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.fixture(scope="module")
def unbroken(encoder: Path, toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of all five tasks, with masks."""
    runs = tmp_path_factory.mktemp("runs")
    words = train_words(encoder, toy, runs, "--name=whole", "--pruning=dynamic")
    done = subprocess.run([*MTL, *words], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return runs / "whole"


def test_a_run_folder_holds_what_the_design_says(unbroken):
    status = json.loads((unbroken / "status.json").read_text())
    assert status["state"] == "finished"
    assert {"seed", "versions", "device", "git", "corpus_fingerprint"} <= status.keys()
    rows = list(csv.DictReader((unbroken / "history.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    metrics = json.loads((unbroken / "metrics.json").read_text())
    assert set(metrics) == {"dev", "test"}
    assert set(metrics["test"]) == {"pos", "ner", "dep", "con", "srl"}
    assert float(rows[-1]["dev/pos/accuracy"]) == pytest.approx(metrics["dev"]["pos"]["accuracy"], abs=1e-3)
    assert not list(unbroken.rglob("*.pt")) + list(unbroken.rglob("*.bin"))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights_and_another_does_not(unbroken, encoder, toy, tmp_path):
    """Runs of this process are held against one of a process of its own."""
    words = train_words(encoder, toy, tmp_path, "--pruning=dynamic")
    assert main([*words, "--name=again"]) == 0
    assert main([*words, "--name=other", "--seed=2"]) == 0
    assert same(weights(unbroken), weights(tmp_path / "again"))
    assert not same(weights(unbroken), weights(tmp_path / "other"))


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.3, 0.7, 1.1, 1.5])
def test_a_run_killed_at_any_moment_goes_on_to_the_same_weights(unbroken, encoder, toy, tmp_path, delay):
    # A checkpoint after every batch, so that the run goes on from the middle of an epoch.
    words = train_words(
        encoder, toy, tmp_path, "--name=broken", "--pruning=dynamic", "--trainer.checkpoint_minutes=0"
    )
    checkpoint = tmp_path / "broken" / "checkpoints" / "last.ckpt"
    with forked("mtl", words, tmp_path) as process:
        deadline = time.monotonic() + 120
        while not checkpoint.exists() and time.monotonic() < deadline and process.is_alive():
            time.sleep(0.01)
        time.sleep(delay)
        process.kill()
    output = run(words, tmp_path)
    assert "resuming" in output or "finished already" in output
    assert same(weights(unbroken), weights(tmp_path / "broken"))
    assert (tmp_path / "broken" / "history.csv").read_text().count("\n") == 3


@pytest.mark.slow
def test_ctrl_c_saves_the_state_and_exits_with_130(unbroken, encoder, toy, tmp_path):
    words = train_words(encoder, toy, tmp_path, "--name=stopped", "--pruning=dynamic")
    process = subprocess.Popen([*MTL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "epoch   1" in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.fail("the run ended before the signal arrived: make it longer")
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert Run.open(tmp_path / "stopped").status()["state"] == "interrupted"
    run(words, tmp_path)
    assert same(weights(unbroken), weights(tmp_path / "stopped"))


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one_with_the_batch_of_both(encoder, toy, tmp_path):
    # No dropout: two processes draw other random numbers than one. Float32: in bfloat16, which CPUs with AMX
    # train in, sums in another order differ in their fourth digit.
    still = [
        "--trainer.precision=32-true",
        "--encoder.word_dropout=0", "--pos.dropout=0", "--ner.dropout=0", "--dep.dropout=0",
        "--con.dropout=0", "--srl.dropout=0", "--optimizer.encoder_lr=0.001",
    ]  # fmt: skip
    quiet = tmp_path / "quiet"
    settings = json.loads((encoder / "config.json").read_text())
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    quiet.mkdir()
    for file in encoder.iterdir():
        (quiet / file.name).write_bytes(file.read_bytes())
    (quiet / "config.json").write_text(json.dumps(settings))
    for name, devices in (("one", 1), ("two", 2)):
        words = train_words(quiet, toy, tmp_path, f"--name={name}", f"--trainer.devices={devices}", *still)
        run(words, tmp_path)
    one, two = (
        list(csv.DictReader((tmp_path / name / "history.csv").read_text().splitlines()))
        for name in ("one", "two")
    )
    columns = [column for column in one[0] if column.startswith("loss/")]
    assert len(columns) == 5
    for first, second in zip(one, two, strict=True):
        for column in columns:
            assert float(first[column]) == pytest.approx(float(second[column]), rel=2e-4), column
    first, second = (metrics(tmp_path / name) for name in ("one", "two"))
    assert first.keys() == second.keys()
    # Of the other metrics a single span of these few sentences is more than a point.
    by_word = [key for key in first if key.endswith(("/accuracy", "/uas", "/las"))]
    assert len(by_word) == 3
    assert max(abs(first[key] - second[key]) for key in by_word) < 1.0


def metrics(folder: Path) -> dict[str, float]:
    scores = Run.open(folder).metrics()["dev"]
    return {f"{task}/{name}": value for task, figures in scores.items() for name, value in figures.items()}


def test_another_configuration_in_the_same_folder_is_refused(unbroken, encoder, toy, capsys):
    assert main(train_words(encoder, toy, unbroken.parent, "--name=whole", "--seed=5")) == 2
    errors = capsys.readouterr().err
    assert "another configuration (seed, pruning)" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max_epoch=3"], "did you mean 'max_epochs'?"),
        (["--encoder.nam=x"], "did you mean 'encoder.name'?"),
        (["--tasks=[pos,nre]"], "nre"),
        (["--corpus.path=nowhere"], "no such folder"),
        (["--encoder.name=nowhere"], "nowhere"),
        (["--pruning=static"], "--from RUN"),
        (["--seed=null"], "seed"),
        (["--dep=null"], "dep"),
        (["--seed=100000000000"], "seed=100000000000: use a number from 0 to 4,294,967,295"),
        (["--max_epochs=0"], "max_epochs=0: use a number from 1 to"),
        (["--optimizer.accumulate=0"], "optimizer.accumulate=0: use a number from 1 to"),
        (["--batch.tokens=0"], "batch.tokens=0: use a number from 1 to"),
        (["--evaluate_every=0"], "evaluate_every=0: use a number from 1 to"),
        pytest.param(
            ["--trainer.accelerator=gpu"],
            "torch sees no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        (["--balancer.name=pcgrad", "--batch.mode=separate"], "batch.mode=aligned"),
        (["--pruning=dynamic", "--gates.target_open=1.5"], "whole"),
        (["--pruning=dynamic", "--gates.target_open=500"], "there are only 12 heads"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, said, encoder, toy, tmp_path, capsys):
    assert main([*train_words(encoder, toy, tmp_path), *words]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_a_saved_model_annotates_as_the_run_scored(unbroken):
    model = JointModel.from_pretrained(unbroken)
    (sentence,) = model.annotate([["We", "ate", "."]])
    assert sentence.words == ("We", "ate", ".")
    assert sentence.tags is not None
    assert sentence.arcs is not None
    assert sentence.arcs.heads.count(0) == 1
    assert [leaf.children for leaf in sentence.tree.leaves()] == ["We", "ate", "."]
    alone = model.annotate([["We", "ate", "."], ["The", "dog", "saw", "a", "cat", "."]])[0]
    assert alone == sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [["--trainer.devices=2"], ["--trainer.precision=bf16-mixed"]], ids=["ddp", "bf16"]
)
def test_masks_per_task_are_learned_by_two_processes_and_in_bf16(more, encoder, toy, tmp_path):
    masks = ["--pruning=dynamic", "--gates.scope=per_task", "--gates.target_open=0.5"]
    run(train_words(encoder, toy, tmp_path, "--name=run", *masks, *more), tmp_path)
    model = JointModel.from_pretrained(tmp_path / "run")
    assert model.gates.open().sum((1, 2)).tolist() == [6] * 5
    losses = [
        sum(float(row[column]) for column in row if column.startswith("loss/"))
        for row in csv.DictReader((tmp_path / "run" / "history.csv").read_text().splitlines())
    ]
    assert losses[1] < losses[0]


@pytest.mark.parametrize("start", ["cut", "cut/model"])
def test_a_run_that_starts_from_a_cut_one_records_its_heads(
    start: str, toy: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    (tmp_path / "cut" / "model").mkdir(parents=True)
    (tmp_path / "cut" / "config.yaml").write_text("tasks: [pos]\n")
    (tmp_path / "cut" / "status.json").write_text(json.dumps({"heads_kept": 5}))
    config = TrainConfig(
        tasks=("pos",), init_from=str(tmp_path / start), corpus=CorpusConfig(str(toy)),
        encoder=EncoderConfig(name=str(tiny_encoder)),
    )  # fmt: skip
    assert run_dependencies(config, "corpus", None, None)["heads_kept"] == 5
