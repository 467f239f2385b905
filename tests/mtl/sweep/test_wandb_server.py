"""A fake of W&B's server: what is sent to it, what is printed, and what its agent calls."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb

from mtl.commands.main import main

SWEEP = """
method: bayes
metric: {name: dev/mean, goal: maximize}
project: heads
command: [mtl, train, configs/joint.yaml, "${args}"]
run_cap: 9
parameters:
  gates: {parameters: {penalty: {distribution: log_uniform_values, min: 0.01, max: 1.0}}}
"""


@pytest.fixture
def server(monkeypatch):
    """Records what W&B gets."""
    told = SimpleNamespace(sweeps=[], agents=[], key=True)

    def sweep(given, entity=None, project=None):
        told.sweeps.append((given, entity, project))
        return "abc123"

    def agent(identity, **arguments):
        told.agents.append((identity, arguments))
        told.path = os.environ["PATH"]

    monkeypatch.setattr(wandb, "login", lambda prompt: told.key)
    monkeypatch.setattr(wandb, "sweep", sweep)
    monkeypatch.setattr(wandb, "agent", agent)
    monkeypatch.setattr(
        wandb, "Api", lambda: SimpleNamespace(default_entity="me", settings={"project": None})
    )
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return told


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "search.yaml"
    path.write_text(SWEEP)
    return path


def test_a_sweep_is_made_joined_and_announced(server, file, capsys):
    assert main(["sweep", str(file), "--trials=4", "--max_epochs=3"]) == 0
    [(given, entity, project)] = server.sweeps
    assert (entity, project) == (None, "heads")
    assert given["name"] == "search"
    assert given["method"] == "bayes"
    assert given["run_cap"] == 9
    assert given["command"] == ["mtl", "train", "configs/joint.yaml", "--max_epochs=3", "${args}"]
    assert given["parameters"]["gates"]["parameters"]["penalty"]["max"] == 1.0
    [(identity, arguments)] = server.agents
    assert identity == "abc123"
    assert arguments == {"entity": "me", "project": "heads", "count": 4, "forward_signals": True}
    out = capsys.readouterr().out
    assert "mtl sweep --join me/heads/abc123" in out
    assert "wandb agent me/heads/abc123" in out
    # The agent's command finds the `mtl` of this environment first.
    assert server.path.startswith(str(Path(sys.executable).parent))


def test_a_sweep_is_joined(server, capsys):
    assert main(["sweep", "--join", "team/heads/xyz"]) == 0
    [(identity, arguments)] = server.agents
    assert (identity, arguments["entity"], arguments["project"], arguments["count"]) == (
        "xyz",
        "team",
        "heads",
        None,
    )
    assert server.sweeps == []
    assert main(["sweep", "--join=xyz"]) == 2
    assert "use ENTITY/PROJECT/ID" in capsys.readouterr().err


def test_without_a_key_the_way_out_is_said(server, file, monkeypatch, capsys):
    server.key = False
    assert main(["sweep", str(file)]) == 2
    errors = capsys.readouterr().err
    assert "'mtl sweep SWEEP.yaml --local' runs a sweep without a server" in errors
    assert errors.count("\n") == 1
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["sweep", str(file)]) == 2
    assert "W&B is offline here; 'mtl sweep SWEEP.yaml --local'" in capsys.readouterr().err
    assert main(["sweep", "--join=a/b/c"]) == 2
    assert server.sweeps == server.agents == []


def test_a_bad_key_is_said_before_the_server_hears_of_it(server, file, capsys):
    file.write_text(SWEEP.replace("penalty:", "penalti:"))
    assert main(["sweep", str(file)]) == 2
    assert "did you mean 'gates.penalty'?" in capsys.readouterr().err
    assert server.sweeps == []


@pytest.mark.parametrize("failing", ["login", "sweep", "agent"])
def test_what_the_server_refuses_is_said_in_one_line(server, file, monkeypatch, capsys, failing):
    def refuse(*words, **named):
        raise wandb.errors.CommError("no way\nto the server.")

    monkeypatch.setattr(wandb, failing, refuse)
    assert main(["sweep", str(file)]) == 2
    assert capsys.readouterr().err == (
        "mtl: W&B: no way to the server; 'mtl sweep SWEEP.yaml --local' runs a sweep without a server\n"
    )
