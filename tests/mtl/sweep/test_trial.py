"""Trials that train on a tiny corpus and encoder: their files, and the command that runs them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import time

import psutil
import pytest
import yaml

from mtl.commands.main import main
from mtl.models import pretrained
from mtl.models.inputs import InputCache
from mtl.sweep.command import trial_dependencies
from mtl.sweep.folder import Engine, SweepFolder, trials_of
from mtl.sweep.trial import Training
from mtl.sweep.trial_config import base_of, check_sweep, trial_name
from tests.conftest import undraw
from tests.mtl.forked import ended, forked, printed
from tests.mtl.sweep.conftest import MADE_OF, sweep_of
from tests.mtl.wandb_log import logs


def command(toy, tiny_encoder, *words):
    return [
        "mtl", "train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", "--tasks=[pos]",
        "--trainer.accelerator=cpu", *words, "${args}",
    ]  # fmt: skip


def rows(folder, number):
    return list(csv.DictReader((folder.run(trial_name(number)) / "history.csv").read_text().splitlines()))


@pytest.mark.slow
def test_trials_train_from_one_material_are_stopped_and_leave_wandb_logs(
    toy, tiny_encoder, tmp_path, monkeypatch
):
    loaded = []
    load = pretrained.load_encoder
    monkeypatch.setattr(pretrained, "load_encoder", lambda *words: loaded.append(words) or load(*words))
    sweep = sweep_of(
        command=command(toy, tiny_encoder, "--pruning=dynamic", "--max_epochs=3"),
        metric={"name": "loss/pos", "goal": "minimize"},
        parameters={"optimizer.decoder_lr": {"values": [1e-2, 1e-8, 2e-2]}},
        early_terminate={"type": "hyperband", "min_iter": 1, "eta": 2},
    )
    base = base_of(sweep)
    material = InputCache(keep=True)
    check_sweep(sweep, base, material)
    folder = SweepFolder(tmp_path / "s")
    folder.start(sweep, base, MADE_OF)
    Engine(folder, sweep, Training(folder, sweep, base, "offline", material), 3).work()
    assert [words[0] for words in loaded].count(str(tiny_encoder)) == 1  # the others are the kept models
    trials = trials_of(folder.study(sweep))
    assert [folder.state(trial) for trial in trials] == ["finished", "stopped", "finished"]
    # One that learns nothing is stopped at its first comparison, the others are trained to the end.
    assert [len(rows(folder, number)) for number in range(3)] == [3, 1, 3]
    for trial in trials:
        run = folder.run(trial_name(trial.number))
        epoch = json.loads((run / "status.json").read_text())["kept_epoch"]
        kept_rows = [row for row in rows(folder, trial.number) if int(row["epoch"]) == epoch]
        assert trial.values == [pytest.approx(float(kept_rows[0]["loss/pos"]))]
        assert trial.user_attrs["open_heads"] == {"shared": float(kept_rows[0]["gates/shared/open"])}
        config = yaml.safe_load((run / "config.yaml").read_text())
        assert config["optimizer"]["decoder_lr"] == trial.user_attrs["values"]["optimizer.decoder_lr"]
        assert config["wandb"]["group"] == "s"
        [log] = logs(run)
        assert any("loss/pos" in row for row in log.rows)


def program(said, *words):
    """`mtl sweep`, forked with two workers; what it prints is in SAID.out and SAID.err."""
    return forked("mtl", ["sweep", *words], said, workers=2)


def until(condition, seconds=240):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, "waited too long"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_sweep_goes_on_to_the_same_end(toy, tiny_encoder, tmp_path, capsys, monkeypatch):
    words = {
        # Fast enough that something is learned: masks of nothing would be left out of the figures.
        "command": command(
            toy, tiny_encoder, "--max_epochs=2", "--pruning=dynamic", "--optimizer.decoder_lr=0.02"
        ),
        "method": "grid",
        "metric": {"name": "dev/mean", "goal": "maximize"},
        "parameters": {"gates.penalty": {"values": [0.01, 1.0]}, "seed": {"values": [1, 2]}},
    }
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump(words))
    arguments = [str(file), "--local", "--jobs=2", f"--sweeps={tmp_path}"]
    folder = SweepFolder(tmp_path / "search")
    with program(tmp_path / "first", *arguments) as first:
        until(lambda: len(list(folder.runs.glob("*/history.csv"))) >= 2)
        # The program dies, and one of its workers; the other sees that and stops.
        workers = psutil.Process(first.pid).children()
        assert len(workers) == 2
        workers[0].kill()
        first.kill()
    until(lambda: not any(worker.is_running() for worker in workers))
    sweep, _, _ = folder.read_sweep()
    before = {trial.number: dict(trial.user_attrs["values"]) for trial in trials_of(folder.study(sweep))}
    with program(tmp_path / "again", *arguments) as again:
        assert ended(again, 600) == 0, printed(tmp_path / "again")
    out = printed(tmp_path / "again", "out")
    trials = trials_of(folder.study(sweep))
    points = [tuple(trial.user_attrs["values"].values()) for trial in trials]
    assert points == [(0.01, 1), (0.01, 2), (1.0, 1), (1.0, 2)]
    assert all(trials[number].user_attrs["values"] == values for number, values in before.items())
    assert {folder.state(trial) for trial in trials} == {"finished"}
    assert [len(rows(folder, number)) for number in range(4)] == [2] * 4
    best = max(trials, key=lambda trial: trial.values[0])
    assert f"best: trial-{best.number:04}" in out
    lines = out.splitlines()
    last = max(place for place, line in enumerate(lines) if line.startswith("trial-"))
    assert 3 < len(lines) - last <= 15
    assert "wandb sync" in out
    assert "data:image/svg+xml" in (folder.path / "report.html").read_text()
    for name in ("figures/parallel-coordinates.pdf", "figures/heads-kept.png", "tables/trials.csv"):
        assert (folder.path / name).stat().st_size > 0
    undraw(monkeypatch)
    assert main(["sweep", *arguments]) == 0
    assert "4 trials: 4 finished" in capsys.readouterr().out.splitlines()[0]
    assert main(["sweep", str(folder.path), "--status"]) == 0
    assert "trial-0003" in capsys.readouterr().out
    # What the runs are made from has changed.
    words["parameters"]["seed"]["values"] = [1, 2, 3]
    file.write_text(yaml.safe_dump(words))
    assert main(["sweep", *arguments]) == 2
    assert "other parameters.seed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_failing_trial_and_ctrl_c(toy, tiny_encoder, tmp_path):
    words = {
        # PCGrad cannot work with batches of one task.
        "command": command(toy, tiny_encoder, "--tasks=[pos,dep]", "--batch.mode=separate", "--max_epochs=2"),
        "method": "grid",
        "parameters": {"balancer.name": {"values": ["pcgrad", "uniform"]}},
    }
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump(words))
    arguments = [str(file), "--local", f"--sweeps={tmp_path}", "--wandb=disabled"]
    folder = SweepFolder(tmp_path / "search")
    with program(tmp_path / "first", *arguments) as first:
        until(lambda: (folder.run("trial-0001") / "history.csv").exists())
        os.kill(first.pid, signal.SIGINT)
        assert ended(first, 240) == 130
    assert "run the command again to resume" in printed(tmp_path / "first", "err")
    sweep, _, _ = folder.read_sweep()
    assert folder.state(trials_of(folder.study(sweep))[0]) == "failed"
    with program(tmp_path / "again", *arguments) as again:
        assert ended(again, 400) == 1
    out, errors = (printed(tmp_path / "again", stream) for stream in ("out", "err"))
    assert "1 tried again" in out
    assert "batch.mode=aligned" in out
    assert "1 trial failed; run the command again to retry" in errors
    assert [folder.state(trial) for trial in trials_of(folder.study(sweep))] == ["failed", "finished"]
    assert json.loads((folder.run("trial-0001") / "status.json").read_text())["state"] == "finished"
    assert not (folder.run("trial-0001") / "wandb").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_sweep_is_started_as_messages_say(toy, tiny_encoder, tmp_path, monkeypatch, capsys):
    words = {
        "command": command(toy, tiny_encoder, "--max_epochs=1"),
        "method": "grid",
        "metric": {"name": "dev/mean", "goal": "maximize"},
        "parameters": {"seed": {"values": [1]}},
    }
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(words))
    (tmp_path / "search").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["sweep", str(tmp_path / "search"), "--status"]) == 2
    assert "holds no sweep; start one with 'mtl sweep SWEEP.yaml --local'" in capsys.readouterr().err
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert main(["sweep", "search.yaml"]) == 2
    assert "'mtl sweep SWEEP.yaml --local' runs a sweep without a server" in capsys.readouterr().err
    assert main(["sweep", "search.yaml", "--local", "--sweeps=.", "--wandb=disabled"]) == 0
    capsys.readouterr()
    assert main(["sweep", "search", "--status"]) == 0
    assert "1 trial: 1 finished" in capsys.readouterr().out


def test_without_an_end_or_a_file_it_is_said(tmp_path, capsys):
    file = tmp_path / "a.yaml"
    file.write_text("{method: random, parameters: {seed: {min: 1, max: 9}}}")
    assert main(["sweep"]) == 2
    assert "needs a file" in capsys.readouterr().err
    assert main(["sweep", str(tmp_path), "--status"]) == 2
    assert "holds no sweep" in capsys.readouterr().err
    assert main(["sweep", str(file), "--local", "--trials=0"]) == 2
    assert "--trials=0" in capsys.readouterr().err
    assert main(["sweep", str(file), "--local", "--corpus.path=nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_corpora_that_parameters_name_are_the_sweeps_corpora(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the default corpus is not
    copies = [shutil.copytree(toy, tmp_path / name) for name in ("one", "two")]
    for copy in copies:
        with (copy / "train.jsonl").open("a") as lines:
            lines.write((copy / "dev.jsonl").read_text().splitlines()[0].replace("dev", copy.name) + "\n")
    values = {"corpus.path": {"values": [str(copy) for copy in copies]}}
    sweep = sweep_of(command=["mtl", "train", "--tasks=[pos]", "${args}"], parameters=values)
    before = trial_dependencies(sweep, base_of(sweep))
    assert trial_dependencies(sweep, base_of(sweep)) == before
    with (copies[1] / "train.jsonl").open("a") as lines:
        lines.write((toy / "test.jsonl").read_text().splitlines()[0] + "\n")
    after = trial_dependencies(sweep, base_of(sweep))
    assert (before["corpus"] != after["corpus"], before["version"] == after["version"]) == (True, True)
