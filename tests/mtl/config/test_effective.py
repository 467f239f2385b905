"""Which keys make two runs different: neutral defaults do not, changed defaults do."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from mtl.config.effective import (
    counting_settings,
    different_keys,
    only_used,
    plain,
    reference,
    with_older_defaults,
)
from mtl.config.parse import configured, read_configuration
from mtl.config.part import files_of_parts
from mtl.config.schema import (
    DEFAULT_TASKS,
    BalancerConfig,
    CorpusConfig,
    EncoderConfig,
    Files,
    GatesConfig,
    OptimizerConfig,
    TrainConfig,
)
from mtl.errors import InputError
from mtl.runs.folder.run import Run
from mtl.runs.folder.same_run import holds

CONFIGS = Path(__file__).parents[3] / "configs"


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


BERT = EncoderConfig(name="bert-base-cased")
MINILM_RATES = {"optimizer.encoder_lr": 3e-4, "optimizer.decoder_lr": 2e-3}


def test_defaults_do_not_count():
    assert counting_settings(values(TrainConfig(encoder=BERT))) == {
        "tasks": ["pos", "ner", "dep", "con", "srl"], "encoder.name": "bert-base-cased",
    }  # fmt: skip
    config = TrainConfig(
        tasks=("dep",), max_epochs=3, runs="elsewhere", init_from="runs/x",
        balancer=BalancerConfig(name="fixed", weights={"dep": 2.0}),
        corpus=CorpusConfig(path=None, dep=Files(train="a", format="conllu")),
    )  # fmt: skip
    assert counting_settings(values(config)) == {
        "tasks": ["dep"], "max_epochs": 3, "balancer.name": "fixed", "balancer.weights": {"dep": 2.0},
        "corpus.dep.format": "conllu", **MINILM_RATES,
    }  # fmt: skip


RATES = {
    "pos": (3e-4, 2e-3), "ner": (3e-4, 2e-3), "dep": (3e-4, 2e-3), "con": (3e-4, 2e-3), "srl": (3e-4, 2e-3),
    "joint": (3e-4, 2e-3), "joint10": (3e-4, 2e-3), "paper": (5e-5, 1e-3), "cola": (1e-4, 1e-3),
    "sst2": (1e-4, 1e-3), "mrpc": (1e-4, 1e-3), "glue_joint": (1e-4, 1e-3), "translation": (5e-3, 1e-3),
}  # fmt: skip
"""The learning rates of the shipped configurations, as they were when the files had all of them."""


def test_every_configuration_has_the_rates_that_it_had():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(RATES)
    for name, rates in RATES.items():
        config = configured("mtl train", TrainConfig, [str(CONFIGS / f"{name}.yaml")])
        assert tuple(config.rates().values()) == rates


@pytest.mark.parametrize(
    ("given", "rates"),
    [
        ([], (3e-4, 2e-3)),
        (["--encoder.name=bert-base-cased"], (5e-5, 1e-3)),
        (["--encoder.name=bert-base-cased", "--optimizer.encoder_lr=1e-5"], (1e-5, 1e-3)),
        (["--optimizer.decoder_lr=0.1"], (3e-4, 0.1)),
        (["--seq2seq.architecture=bart"], (5e-5, 1e-3)),
    ],
)
def test_rates_that_are_not_given_follow_from_the_encoder(given, rates):
    config = configured("mtl train", TrainConfig, given)
    assert tuple(config.rates().values()) == rates
    spelt = OptimizerConfig(encoder_lr=rates[0], decoder_lr=rates[1])
    same = dataclasses.replace(config, optimizer=spelt)
    assert different_keys(values(config), values(same)) == []
    assert counting_settings(values(config)) == counting_settings(values(same))


def test_an_older_run_that_names_no_rates_had_those_of_that_time():
    old = without(without(values(TrainConfig()), "optimizer.encoder_lr"), "optimizer.decoder_lr")
    assert different_keys(old, values(TrainConfig())) == ["optimizer.encoder_lr", "optimizer.decoder_lr"]
    bert = without(values(TrainConfig(encoder=BERT)), "optimizer.encoder_lr")
    assert different_keys(bert, values(TrainConfig(encoder=BERT))) == []


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
    assert counting_settings(config) == {"tasks": ["pos"], **MINILM_RATES}
    masked = values(only_used(TrainConfig(tasks=("pos",), pruning="dynamic", gates=GatesConfig())))
    assert counting_settings(masked)["gates.init_mean"] == 2.0


def test_runs_from_before_the_default_of_masks_was_a_third():
    old = values(TrainConfig(gates=GatesConfig(penalty=0.01)))  # what every run recorded
    assert different_keys(old, values(TrainConfig())) == []
    masked = old | {"pruning": "dynamic"}
    assert different_keys(masked, values(TrainConfig(pruning="dynamic"))) == ["gates.penalty"]
    assert counting_settings(masked) == {"pruning": "dynamic", "tasks": list(DEFAULT_TASKS), **MINILM_RATES}
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
        "gates.target_open.cross": 4.0, **MINILM_RATES,
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
    assert holds(Run(tmp_path), new, "corpus")
    changed("optimizer.schedule", "constant")
    with pytest.raises(InputError, match=r"another configuration \(optimizer.schedule\)"):
        holds(Run(tmp_path), new, "corpus")


@pytest.mark.parametrize(
    "key", ["corpus.path", "encoder.name", "init_from", "gates.masks", *files_of_parts()]
)
def test_a_run_is_resumed_however_the_paths_of_its_inputs_are_spelt(tmp_path, key, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "place").mkdir()
    (tmp_path / "link").symlink_to("place")

    def spelt(place: str) -> dict:
        settings = values(TrainConfig(name="x", pruning="fixed"))
        group, _, last = key.rpartition(".")
        (settings[group] if group else settings)[last] = place
        return settings

    run = Run(tmp_path / "run")
    run.create(spelt("place"))
    for place in ("place/", "./place", str(tmp_path / "place"), "link"):
        assert holds(run, spelt(place), "corpus")
    with pytest.raises(InputError, match="holds a run with") as raised:
        holds(run, spelt("elsewhere"), "corpus")
    if key != "encoder.name":
        assert "at another place" in str(raised.value)
        assert "overwrite" not in str(raised.value)


def test_inputs_that_have_moved_count_by_their_content(tmp_path):
    run = Run(tmp_path / "run")
    run.create(
        values(TrainConfig(name="x", corpus=CorpusConfig("old"), encoder=EncoderConfig("old/encoder")))
    )
    run.update_status({"corpus_fingerprint": "c", "encoder_fingerprint": "e"})
    moved = values(TrainConfig(name="x", corpus=CorpusConfig("new")))
    moved["encoder"]["name"] = "moved/encoder"
    assert holds(run, moved, "c", encoder="e")
    with pytest.raises(InputError, match="on other sentences"):
        holds(run, moved, "d", encoder="e")
    with pytest.raises(InputError, match="of another encoder"):
        holds(run, moved, "c", encoder="f")


def test_volatile_keys_make_no_difference():
    other = values(TrainConfig(overwrite=True, runs="x"))
    other["wandb"]["project"] = "y"
    other["trainer"]["threads"] = 2
    assert different_keys(values(TrainConfig()), other) == []
