"""Which keys make two runs different: neutral defaults do not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mtl.config.effective import (
    counting_settings,
    different_keys,
    only_used,
    plain,
    settings_in,
    unused_keys,
    without_effect,
)
from mtl.config.parse import configured
from mtl.config.schema import (
    BalancerConfig,
    CorpusConfig,
    EncoderConfig,
    Files,
    GatesConfig,
    OptimizerConfig,
    TrainConfig,
)
from mtl.errors import InputError
from mtl.features import features
from mtl.runs.folder.run import Run, holds
from tests.kit.absent import needs

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
BERT_RATES = {"optimizer.encoder_lr": 5e-5, "optimizer.decoder_lr": 1e-3}
MINILM_RATES = {"optimizer.encoder_lr": 3e-4, "optimizer.decoder_lr": 2e-3}


def test_defaults_do_not_count():
    assert counting_settings(values(TrainConfig(encoder=BERT))) == {
        "tasks": ["pos", "ner", "dep", "con", "srl"], "encoder.name": "bert-base-cased", **BERT_RATES,
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
    "sample": (3e-4, 2e-3),
}  # fmt: skip
"""The learning rates of the shipped configurations, as they were when the files had all of them."""


def test_every_configuration_has_the_rates_that_it_had():
    there = {path.stem for path in CONFIGS.glob("*.yaml")}
    of_features = {"translation": "translation", "sample": "demo"}
    assert there == set(RATES) - {name for name, made_by in of_features.items() if made_by not in features()}
    for name, rates in ((name, rates) for name, rates in RATES.items() if name in there):
        config = configured("mtl train", TrainConfig, [str(CONFIGS / f"{name}.yaml")])
        assert tuple(config.rates().values()) == rates


@pytest.mark.parametrize(
    ("given", "rates"),
    [
        ([], (3e-4, 2e-3)),
        (["--encoder.name=bert-base-cased"], (5e-5, 1e-3)),
        (["--encoder.name=bert-base-cased", "--optimizer.encoder_lr=1e-5"], (1e-5, 1e-3)),
        (["--optimizer.decoder_lr=0.1"], (3e-4, 0.1)),
        pytest.param(["--seq2seq.architecture=bart"], (5e-5, 1e-3), marks=needs("translation")),
    ],
)
def test_rates_that_are_not_given_follow_from_the_encoder(given, rates):
    config = configured("mtl train", TrainConfig, given)
    assert tuple(config.rates().values()) == rates
    spelt = OptimizerConfig(encoder_lr=rates[0], decoder_lr=rates[1])
    same = dataclasses.replace(config, optimizer=spelt)
    assert different_keys(values(config), values(same)) == []
    assert counting_settings(values(config)) == counting_settings(values(same))


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


@needs("translation")
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
        "gates.penalty.encoder", "gates.penalty_warmup", "gates.target_open.cross", "gates.target_open",
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["corpus.path", "encoder.name", "init_from", "gates.masks"])
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


@pytest.mark.parametrize("place", ["ner", "tasks.slots"])
def test_settings_of_another_decoder_make_no_difference(place):
    def made(*words):
        of_own = ["--tasks=ner"]
        if place != "ner":
            of_own = ["--tasks=slots", f"--{place}.kind=spans", f"--{place}.files.train=t"]
        return configured("mtl train", TrainConfig, [*of_own, *(f"--{place}.{word}" for word in words)])

    with pytest.raises(InputError, match="decoder: unknown 'crf': choose from spans, bio"):
        made("decoder=crf")
    tags, others = made("decoder=bio"), made("decoder=bio", "dim=7", "threshold=0.9")
    key = "ner" if place == "ner" else "instances.slots"
    assert without_effect(others) == (f"{key}.dim", f"{key}.threshold")
    assert without_effect(made("dim=7")) == ()
    assert different_keys(values(tags), values(others)) == []
    assert different_keys(values(made()), values(made("dim=7"))) == [f"{key}.dim"]
    assert counting_settings(values(only_used(others))) == counting_settings(values(only_used(tags)))


@pytest.mark.parametrize(("path", "said"), [("null", ()), ("data/other", ("corpus.path",))])
def test_no_folder_beside_files_of_the_tasks_is_no_setting_without_effect(path, said):
    words = ["--tasks=ner", f"--corpus.path={path}"]
    files = [f"--corpus.ner.{key}=x" for key in ("train", "dev", "test")]
    given = configured("mtl train", TrainConfig, [*words, *files, "--corpus.ner.format=conll2003"])
    assert without_effect(given) == said


def test_a_record_uses_the_settings_that_its_run_uses() -> None:
    """Tasks with names of their own are plain values there, perhaps with settings of another version."""
    for words in (
        ["--tasks={tagged: {kind: tags}, tree: {kind: tree, decoder: crf}}"],
        ["--tasks=[pos,con]"],
    ):
        config = configured("mtl train", TrainConfig, words)
        record = plain(dataclasses.asdict(config))
        for values in record["instances"].values():
            values["of_another_version"] = 1
        assert unused_keys(settings_in(record)) == unused_keys(config)
