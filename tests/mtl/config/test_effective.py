"""Which keys make two runs different: neutral defaults do not, changed defaults do."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from mtl.config import effective
from mtl.config.effective import (
    counting_settings,
    different_keys,
    only_used,
    plain,
    reference,
    with_older_defaults,
)
from mtl.config.parse import read_configuration
from mtl.config.schema import (
    DEFAULT_TASKS,
    BalancerConfig,
    CorpusConfig,
    Files,
    GatesConfig,
    OptimizerConfig,
    TrainConfig,
)
from mtl.errors import InputError
from mtl.runs.run import Run


def values(config: TrainConfig) -> dict:
    return plain(dataclasses.asdict(config))


def without(config: dict, key: str) -> dict:
    """A configuration of the time before there was such a key."""
    first, _, rest = key.partition(".")
    return {
        name: without(value, rest) if name == first else value
        for name, value in config.items()
        if rest or name != first
    }


@pytest.fixture
def changed(monkeypatch):
    """Make a default one that was changed."""
    return lambda key, value: monkeypatch.setitem(effective.CHANGED_DEFAULTS, key, value)


def test_defaults_do_not_count():
    assert counting_settings(values(TrainConfig())) == {"tasks": ["pos", "ner", "dep", "con", "srl"]}
    config = TrainConfig(
        tasks=("dep",), max_epochs=3, runs="elsewhere", init_from="runs/x",
        balancer=BalancerConfig(name="fixed", weights={"dep": 2.0}),
        corpus=CorpusConfig(path=None, dep=Files(train="a", format="conllu")),
    )  # fmt: skip
    assert counting_settings(values(config)) == {
        "tasks": ["dep"], "max_epochs": 3, "balancer.name": "fixed", "balancer.weights": {"dep": 2.0},
        "corpus.dep.format": "conllu",
    }  # fmt: skip


@pytest.mark.parametrize("key", ["optimizer.schedule", "gates.init_std", "keep", "dep.dropout", "gates"])
def test_a_key_that_is_added_with_a_neutral_default_makes_no_difference(key):
    new = values(TrainConfig(tasks=("dep",), max_epochs=3))
    old = without(new, key)
    assert counting_settings(old) == counting_settings(new)
    assert different_keys(old, new) == different_keys(new, old) == []


def test_a_key_that_is_added_counts_where_it_is_set():
    old = without(values(TrainConfig()), "optimizer.schedule")
    new = values(TrainConfig(optimizer=OptimizerConfig(schedule="cosine")))
    assert different_keys(old, new) == ["optimizer.schedule"]
    assert counting_settings(new)["optimizer.schedule"] == "cosine"


def test_a_default_that_is_changed_counts(changed):
    before = counting_settings(values(TrainConfig(optimizer=OptimizerConfig(warmup=0.06))))
    changed("optimizer.warmup", 0.06)  # as if 0.1, the default now, had been 0.06
    assert counting_settings(values(TrainConfig(optimizer=OptimizerConfig(warmup=0.06)))) != before
    assert "optimizer.warmup" not in counting_settings(
        values(TrainConfig(optimizer=OptimizerConfig(warmup=0.06)))
    )
    assert counting_settings(values(TrainConfig()))["optimizer.warmup"] == 0.1
    old = without(values(TrainConfig()), "optimizer.warmup")
    assert different_keys(old, values(TrainConfig())) == ["optimizer.warmup"]
    assert different_keys(old, values(TrainConfig(optimizer=OptimizerConfig(warmup=0.06)))) == []


def test_a_changed_default_does_not_count_where_it_is_not_used(changed):
    changed("gates.init_mean", 0.0)
    changed("dep.arc_dim", 500)
    changed("balancer.window", 3)
    config = values(only_used(TrainConfig(tasks=("pos",))))
    assert counting_settings(config) == {"tasks": ["pos"]}
    masked = values(only_used(TrainConfig(tasks=("pos",), pruning="dynamic", gates=GatesConfig())))
    assert counting_settings(masked)["gates.init_mean"] == 2.0


def test_runs_from_before_the_default_of_masks_was_a_third():
    old = values(TrainConfig(gates=GatesConfig(penalty=0.01)))  # what every run recorded
    assert different_keys(old, values(TrainConfig())) == []
    masked = old | {"pruning": "dynamic"}
    assert different_keys(masked, values(TrainConfig(pruning="dynamic"))) == ["gates.penalty"]
    assert counting_settings(masked) == {"pruning": "dynamic", "tasks": list(DEFAULT_TASKS)}
    target = TrainConfig(pruning="dynamic", gates=GatesConfig(target_open=0.5))
    before = TrainConfig(pruning="dynamic", gates=GatesConfig(penalty=0.01, target_open=0.5))
    assert only_used(target) == only_used(before)


def test_targets_and_penalties_by_kind_count_by_kind():
    def masked(**gates) -> TrainConfig:
        return TrainConfig(tasks=("translate",), pruning="dynamic", gates=GatesConfig(**gates))

    one = masked(target_open={"encoder": 8.0, "cross": 4.0}, penalty=0.3)
    settings = counting_settings(values(only_used(one)))
    assert settings == {
        "tasks": ["translate"], "pruning": "dynamic", "gates.target_open.encoder": 8.0,
        "gates.target_open.cross": 4.0,
    }  # fmt: skip
    other_order = masked(target_open={"cross": 4.0, "encoder": 8.0})
    assert different_keys(values(only_used(one)), values(only_used(other_order))) == []
    both = masked(target_open={"cross": 4.0}, penalty={"encoder": 0.01}, penalty_warmup=0.1)
    assert only_used(both) == dataclasses.replace(both, corpus=only_used(both).corpus)
    assert different_keys(values(both), values(masked(target_open=4.0))) == [
        "gates.penalty.encoder", "gates.penalty_warmup", "gates.target_open.cross", "gates.penalty",
        "gates.target_open",
    ]  # fmt: skip


def test_an_older_file_without_a_key_is_read_with_the_default_of_its_time(changed, tmp_path):
    changed("gates.init_mean", 0.0)
    changed("gates.gone", 1)  # a key that exists no more
    old = without(values(TrainConfig(seed=7)), "gates.init_mean")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(old))
    config = read_configuration(TrainConfig, path)
    assert (config.seed, config.gates.init_mean) == (7, 0.0)
    assert "gone" not in with_older_defaults(old)["gates"]
    assert reference().gates.init_mean == 0.0


def test_a_run_folder_of_before_a_key_can_be_resumed(tmp_path, changed):
    new = values(TrainConfig(name="x"))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(without(new, "optimizer.schedule")))
    assert Run(tmp_path).holds(new, "corpus")
    changed("optimizer.schedule", "constant")
    with pytest.raises(InputError, match=r"another configuration \(optimizer.schedule\)"):
        Run(tmp_path).holds(new, "corpus")


@pytest.mark.parametrize("key", ["corpus.path", "encoder.name", "init_from", "gates.masks", "clones.claims"])
def test_a_run_is_resumed_however_the_paths_of_its_inputs_are_spelt(tmp_path, key, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "place").mkdir()
    (tmp_path / "link").symlink_to("place")

    def spelt(place: str) -> dict:
        settings = values(TrainConfig(name="x"))
        group, _, last = key.rpartition(".")
        (settings[group] if group else settings)[last] = place
        return settings

    run = Run(tmp_path / "run")
    run.create(spelt("place"))
    for place in ("place/", "./place", str(tmp_path / "place"), "link"):
        assert run.holds(spelt(place), "corpus")
    with pytest.raises(InputError, match="holds a run with") as raised:
        run.holds(spelt("elsewhere"), "corpus")
    if key != "encoder.name":
        assert "at another place" in str(raised.value)
        assert "overwrite" not in str(raised.value)


def test_inputs_that_have_moved_count_by_their_content(tmp_path):
    run = Run(tmp_path / "run")
    run.create(values(TrainConfig(name="x", corpus=CorpusConfig("old"))))
    run.update_status({"corpus_fingerprint": "c", "encoder_fingerprint": "e"})
    moved = values(TrainConfig(name="x", corpus=CorpusConfig("new")))
    moved["encoder"]["name"] = "moved/encoder"
    assert run.holds(moved, "c", encoder="e")
    with pytest.raises(InputError, match="on other sentences"):
        run.holds(moved, "d", encoder="e")
    with pytest.raises(InputError, match="of another encoder"):
        run.holds(moved, "c", encoder="f")


def test_volatile_keys_make_no_difference():
    other = values(TrainConfig(overwrite=True, runs="x"))
    other["wandb"]["project"] = "y"
    other["trainer"]["threads"] = 2
    assert different_keys(values(TrainConfig()), other) == []
