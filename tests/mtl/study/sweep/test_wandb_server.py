"""A fake of W&B's server: what is sent to it, what is printed, and what its agent calls."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb

from mtl.commands.main import main
from mtl.config.effective import plain
from mtl.config.parse import as_yaml, configured
from mtl.config.schema import TrainConfig, WandbConfig
from mtl.study.sweep.wandb_server import under_agent, words_of_agent

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
    assert "add --local" in errors
    assert errors.count("\n") == 1
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["sweep", str(file)]) == 2
    assert "W&B is offline here; add --local" in capsys.readouterr().err
    assert main(["sweep", "--join=a/b/c"]) == 2
    assert server.sweeps == server.agents == []


def test_a_bad_key_is_said_before_the_server_hears_of_it(server, file, capsys):
    file.write_text(SWEEP.replace("penalty:", "penalti:"))
    assert main(["sweep", str(file)]) == 2
    assert "did you mean 'gates.penalty'?" in capsys.readouterr().err
    assert server.sweeps == []


def agent_words(**values):
    """The arguments that W&B's own code makes of a trial's values."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    return create_sweep_command_args({"args": {key: {"value": value} for key, value in values.items()}})[
        "args"
    ]


def test_what_the_agent_passes_is_understood():
    words = agent_words(
        optimizer={"encoder_lr": 1e-05, "clip": 0.5}, tasks=["pos", "dep"], patience=None, overwrite=True,
        gates={"scope": "per_task", "lr": None},
        **{"balancer.weights": {"ner": 2.0}, "encoder.layers": "mix"},
    )  # fmt: skip
    assert "--patience=None" in words
    config = configured("mtl train", TrainConfig, ["configs/joint.yaml", *words])
    assert config.optimizer.encoder_lr == 1e-5
    assert config.balancer.name == "fixed"  # as the file says
    assert config.tasks == ("pos", "dep")
    assert (config.patience, config.overwrite, config.gates.lr) == (None, True, None)
    assert config.gates.scope == "per_task"
    assert config.balancer.weights == {"ner": 2.0}
    assert config.encoder.layers == "mix"


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("None", "null"),
        ("{'a': None, 'b': [True, 'x']}", '{"a": null, "b": [true, "x"]}'),
        ("runs/None-such", "runs/None-such"),
        ("[None", "[None"),
        ("0.5", "0.5"),
    ],
)
def test_spelling(text, spelt):
    assert as_yaml(text) == spelt


def test_runs_under_an_agent_have_folders_of_their_own_and_are_logged():
    environment = {"WANDB_SWEEP_ID": "abc", "WANDB_RUN_ID": "r1"}
    config = under_agent(TrainConfig(), environment)
    assert (config.runs, config.name) == ("runs/sweep-abc", "joint-seed1-r1")
    assert config.wandb.mode == "online"
    offline = under_agent(TrainConfig(wandb=WandbConfig(mode="offline")), environment)
    assert offline.wandb.mode == "offline"
    assert under_agent(TrainConfig(), {}) == TrainConfig()


@pytest.mark.parametrize("failing", ["login", "sweep", "agent"])
def test_what_the_server_refuses_is_said_in_one_line(server, file, monkeypatch, capsys, failing):
    def refuse(*words, **named):
        raise wandb.errors.CommError("no way\nto the server.")

    monkeypatch.setattr(wandb, failing, refuse)
    assert main(["sweep", str(file)]) == 2
    assert capsys.readouterr().err == (
        "mtl: W&B: no way to the server; add --local to run a sweep without a server\n"
    )


def test_a_resumed_trial_is_given_all_that_it_logged_and_finds_its_folder():
    environment = {"WANDB_SWEEP_ID": "abc", "WANDB_RUN_ID": "r1"}
    words = ["configs/joint.yaml", "--tasks=[pos,dep]", "--corpus.path=my corpus", "--balancer.weights.pos=2"]
    first = under_agent(configured("mtl train", TrainConfig, words), environment)
    logged = {**plain(dataclasses.asdict(first)), "git": "1234567", "_wandb": {"cli_version": "0.22"}}
    given = words_of_agent([*words, *agent_words(**logged)], environment)
    assert under_agent(configured("mtl train", TrainConfig, given), environment) == first
    assert words_of_agent(["--_wandb={}", "x"], {}) == ["--_wandb={}", "x"]
