"""A training that W&B's agent starts: the arguments that it passes, and the folder of its run."""

from __future__ import annotations

import dataclasses

import pytest

from mtl.commands.train import under_agent, words_of_agent
from mtl.config.effective import plain
from mtl.config.parse import as_yaml, configured
from mtl.config.schema import TrainConfig, WandbConfig


def agent_words(**values):
    """The arguments that W&B's own code makes of a trial's values."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    return create_sweep_command_args({"args": {key: {"value": value} for key, value in values.items()}})[
        "args"
    ]


@pytest.mark.slow
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
    for name, value, mode in (
        ("WANDB_MODE", "offline", "offline"), ("WANDB_MODE", "dryrun", "offline"),
        ("WANDB_MODE", "disabled", "disabled"), ("WANDB_DISABLED", "true", "disabled"),
        ("WANDB_MODE", "online", "online"),
    ):  # fmt: skip
        assert under_agent(TrainConfig(), environment | {name: value}).wandb.mode == mode


def test_a_resumed_trial_is_given_all_that_it_logged_and_finds_its_folder():
    environment = {"WANDB_SWEEP_ID": "abc", "WANDB_RUN_ID": "r1"}
    words = ["configs/joint.yaml", "--tasks=[pos,dep]", "--corpus.path=my corpus", "--balancer.weights.pos=2"]
    first = under_agent(configured("mtl train", TrainConfig, words), environment)
    logged = {**plain(dataclasses.asdict(first)), "git": "1234567", "_wandb": {"cli_version": "0.22"}}
    given = words_of_agent([*words, *agent_words(**logged)], environment)
    assert under_agent(configured("mtl train", TrainConfig, given), environment) == first
    assert words_of_agent(["--_wandb={}", "x"], {}) == ["--_wandb={}", "x"]
