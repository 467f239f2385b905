"""Two runs that differ in a setting are never compared in silence, whatever the setting."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mtl.config.effective import neutral_values, plain
from mtl.config.schema import BalancerConfig, BatchConfig, ClonesConfig, GatesConfig, TrainConfig
from mtl.probes.report.answer_sharing import sharing_groups, unlike_baselines
from mtl.probes.report.data import ReportData
from mtl.runs import overlap_scores, remedies, tables
from mtl.runs.comparable import RunWithSetup
from mtl.runs.gather import gather
from mtl.runs.pair_runs import pairs_of
from mtl.runs.remedies import remedy_scores
from mtl.runs.run import Run
from mtl.runs.settings import MASKS, MEASURING, OF_ONE_RUN, comparable, differences, settings_of
from mtl.runs.setups import setups_of
from tests.mtl.studies import Study

PAIR = TrainConfig(tasks=("pos", "dep"))
CONTEXTS = {
    "pair": PAIR,
    "separate": replace(PAIR, batch=BatchConfig(mode="separate", sampling="tempered")),
    "fixed weights": replace(PAIR, balancer=BalancerConfig(name="fixed", weights={"pos": 2.0})),
    "moving average": replace(PAIR, balancer=BalancerConfig(name="moving_average")),
    "gradnorm": replace(PAIR, balancer=BalancerConfig(name="gradnorm")),
    "penalty": replace(PAIR, pruning="dynamic", gates=GatesConfig(scope="per_task", penalty=0.1)),
    "target": replace(PAIR, pruning="dynamic", gates=GatesConfig(scope="per_task", target_open=9.0)),
    "masks": replace(PAIR, pruning="fixed", gates=GatesConfig(scope="per_task", masks="a.parquet")),
    "copies": replace(PAIR, clones=ClonesConfig(kind="split", heads="contested", claims="a.json")),
    "alone": TrainConfig(tasks=("ner",)),
    "translation": TrainConfig(tasks=("translate",)),
    "sentences": TrainConfig(tasks=("cola", "classify")),
}
"""Runs that together use every key."""


def with_value(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of the configuration with another value at a dotted key."""
    first, _, rest = key.partition(".")
    inner = config.get(first)
    return {**config, first: with_value(inner or {}, rest, value) if rest else value}


OPTIONS = {
    "batch.mode": {"aligned": "separate", "separate": "aligned"},
    "batch.sampling": {"tempered": "in_turn"},
    "balancer.name": {"uniform": "pcgrad", "fixed": "uniform"},
    "clones.kind": {"none": "routed", "split": "transplant"},
    "clones.heads": {"contested": "uncontested"},
    "gates.scope": {"per_task": "shared"},
}
"""Other values of settings that decide which others a run uses."""


def another(value: Any, key: str = "") -> Any:
    if key in OPTIONS:
        return OPTIONS[key].get(value, "uniform" if key == "balancer.name" else value)
    if value is None:
        return 3.0
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, Mapping):
        return {"pos": 7.0}
    return [*value, "x"] if isinstance(value, list) else f"other-{value}"


def keys_of(config: TrainConfig) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every key that a run uses and that changes its result: the key, and two runs that differ in it."""
    first = plain(asdict(config))
    for key, value in neutral_values().items():
        if key in (*OF_ONE_RUN, *MEASURING) or key.startswith(("wandb.", "corpus.")):
            continue
        if key in settings_of(first).values and key not in ("pruning", "init_from"):
            given = first
            for part in key.split("."):
                given = given.get(part, value) if isinstance(given, Mapping) else value
            if another(given, key) != given:
                yield key, first, with_value(first, key, another(given, key))


def test_every_key_of_the_schema_is_used_by_some_run():
    used = {key for config in CONTEXTS.values() for key in settings_of(plain(asdict(config))).values}
    groups = {"tasks", "corpus", "wandb", "balancer"}
    absent = {
        key
        for key in neutral_values()
        if key not in used and key not in (*OF_ONE_RUN, "init_from") and key.partition(".")[0] not in groups
    }
    # Settings of tasks that no context trains, and keys that are no more.
    trained = {task for config in CONTEXTS.values() for task in config.tasks}
    known = {key for key in asdict(TrainConfig()) if key in trained}
    assert {key for key in absent if key.partition(".")[0] in known} == set()
    assert {key for key in absent if key.startswith(("gates.", "clones.", "batch.", "optimizer."))} == set()


@pytest.mark.parametrize("context", CONTEXTS)
def test_runs_that_differ_in_a_key_are_of_two_setups_and_are_not_alike(context):
    free = (remedies.MAY_DIFFER, remedies.LIMITS, overlap_scores.MAY_DIFFER, tables.MAY_DIFFER, MASKS, ())
    tried = 0
    for key, first, second in keys_of(CONTEXTS[context]):
        one, other = settings_of(first), settings_of(second)
        assert key in one.differing(other)
        assert one.differing(other) == other.differing(one)
        names = [setup.name for setup in setups_of([one, other])]
        assert len(set(names)) == 2, (key, names)
        for group in free:
            declared = any(key == name or key.startswith(f"{name}.") for name in group)
            kept, notes = comparable({"a": one, "b": other}, group)
            assert declared or (len(kept) == 1 and key in notes[0])
        assert key in differences({"a": one, "b": other})[0]
        tried += 1
    assert tried > 20


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("corpus.path", "elsewhere"), ("corpus.pos", {"train": "t", "format": "jsonl"}),
        ("corpus.files", {"train": "t", "format": "conllu"}), ("pruning", "static"), ("init_from", "gone"),
    ],
)  # fmt: skip
def test_runs_of_other_sources_are_not_alike(key, value):
    first = plain(asdict(PAIR))
    one, other = settings_of(first), settings_of({**with_value(first, key, value)})
    assert one.differing(other) != []
    assert len({setup.name for setup in setups_of([one, other])}) == 2


def test_settings_of_other_tasks_and_unused_ones_are_no_difference():
    first = plain(asdict(PAIR))
    for key, value in (
        ("ner.dropout", 0.9), ("gates.penalty", 3.0), ("batch.temperature", 9.0), ("balancer.window", 9),
        ("corpus.ner", {"train": "x"}), ("seed", 9), ("name", "b"), ("trainer.threads", 2),
        ("importance_every", 1),
    ):  # fmt: skip
        assert settings_of(first).differing(settings_of(with_value(first, key, value))) == []
    other_order = with_value(first, "tasks", ["dep", "pos"])
    assert settings_of(first).identity == settings_of(other_order).identity


def a_run(folder: Path, config: Mapping[str, Any]) -> Run:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config)))
    score = {"pos": "accuracy", "dep": "las"}
    figures = {task: {score[task]: 70.0} for task in config["tasks"]}
    (folder / "metrics.json").write_text(json.dumps({"test": figures}))
    return Run(folder)


def test_no_comparison_takes_two_runs_that_differ_in_silence(tmp_path):
    copied = plain(asdict(replace(PAIR, clones=ClonesConfig(kind="routed", heads="all"))))
    like = [a_run(tmp_path / f"like{seed}", {**copied, "seed": seed}) for seed in (1, 2)]
    for number, (key, first, second) in enumerate(keys_of(PAIR)):
        if key.startswith("clones."):
            continue
        one, other = (
            a_run(tmp_path / f"{number}-{seed}", {**config, "seed": seed})
            for seed, config in ((1, first), (2, second))
        )
        table, notes = remedy_scores([*like, one, other], "test", {"pos": "accuracy", "dep": "las"})
        assert str(other.folder) not in set(table["run"])
        assert any(key in note and str(other.folder) in note for note in notes)
        configs = [first, {**second, "tasks": ["pos", "dep"]}]
        with_setups = [
            RunWithSetup(run, config, setup)
            for run, config, setup in zip((one, other), configs, setups_of(configs), strict=True)
        ]
        said: list[str] = []
        pairs = pairs_of(with_setups, said)
        assert pairs is not None
        assert pairs["run"].n_unique() == 1
        assert any(key in note for note in said)


def test_what_sharing_costs_is_read_from_runs_that_were_trained_alike():
    evidence = ReportData.__new__(ReportData)

    for key, first, second in keys_of(PAIR):
        alone = {**second, "tasks": ["pos"]}
        both = settings_of(first).differing(settings_of(alone))
        if not both:
            continue  # of the other task
        object.__setattr__(evidence, "setups", tuple(setups_of([first, alone])))
        assert sharing_groups(evidence) == {}, key
        assert key in unlike_baselines(evidence)[0]
    object.__setattr__(evidence, "setups", tuple(setups_of([first, {**first, "tasks": ["pos"]}])))
    assert sharing_groups(evidence) == {"MTL-2": {"MTL-2": "STL"}}


def test_names_and_order_of_folders_change_no_table(tmp_path):
    found = []
    for place, order in enumerate(([0, 1, 2, 3, 4, 5, 6, 7], [5, 3, 7, 0, 6, 1, 4, 2])):
        study = Study(tmp_path / str(place))
        made = [
            (["pos"], 1, 5), (["dep"], 1, 5), (["pos"], 2, 5), (["dep"], 2, 5), (["pos", "dep"], 1, 5),
            (["pos", "dep"], 2, 5), (["pos", "dep"], 1, 9), (["pos", "dep"], 2, 9),
        ]  # fmt: skip
        for number, which in enumerate(order):
            tasks, seed, epochs = made[which]
            study.run(
                tasks, seed, pruning="none", probe=False, max_epochs=epochs,
                name=f"{'zyxwvuts'[number] * (number + 1)}",
            )  # fmt: skip
        data = gather(study.root, "test", TrainConfig().main_figures())
        assert data.pairs is not None
        found.append(
            (
                data.setups,
                data.scores.drop("run").sort("setup", "task", "seed").rows(),
                data.pairs.drop("run").sort("task", "seed").rows(),
                sharing_groups(data),
            )
        )
    assert found[0] == found[1]
