"""Two runs that differ in a setting are never compared in silence, whatever the setting."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from mtl.config.effective import neutral_values, plain
from mtl.config.instances import Instance
from mtl.config.schema import (
    BalancerConfig,
    BatchConfig,
    EncoderConfig,
    GatesConfig,
    TrainConfig,
    default_rates,
)
from mtl.runs.compare.settings import (
    MASKS,
    MEASURING,
    OF_ONE_RUN,
    UNUSED,
    encoder_of,
    recorded_origins,
    settings_of,
    settings_of_run,
)
from mtl.runs.compare.setups import setups_of
from mtl.runs.folder.run import Run
from mtl.runs.report.gather import gather
from mtl.tasks.catalogue import TEXTS
from tests.mtl.studies import Study, runs_with

PAIR = TrainConfig(tasks=("pos", "dep"))
CONTEXTS = {
    "pair": PAIR,
    "separate": replace(PAIR, batch=BatchConfig(mode="separate", sampling="tempered")),
    "fixed weights": replace(PAIR, balancer=BalancerConfig(name="fixed", weights={"pos": 2.0})),
    "moving average": replace(PAIR, balancer=BalancerConfig(name="moving_average")),
    "gradnorm": replace(PAIR, balancer=BalancerConfig(name="gradnorm")),
    "penalty": replace(PAIR, pruning="dynamic", gates=GatesConfig(scope="per_task", penalty=0.1)),
    "target": replace(PAIR, pruning="dynamic", gates=GatesConfig(scope="per_task", target_open=9.0)),
    "target of a kind": replace(PAIR, pruning="dynamic", gates=GatesConfig(target_open={"cross": 4.0})),
    "target and penalty": replace(
        PAIR, pruning="dynamic", gates=GatesConfig(target_open={"cross": 4.0}, penalty={"encoder": 0.5})
    ),
    "after training": replace(
        PAIR, pruning="static", init_from="gone", gates=GatesConfig(scope="per_task", penalty=0.1)
    ),
    "masks": replace(PAIR, pruning="fixed", gates=GatesConfig(scope="per_task", masks="a.parquet")),
    "alone": TrainConfig(tasks=("ner",)),
    "second-order trees": TrainConfig(tasks=("dep",), dep=replace(TrainConfig().dep, decoder="crf2o")),
    **{f"text {name}": TrainConfig(tasks=(name,)) for name in TEXTS},
    **{
        f"word dropout of {name}": replace(
            TrainConfig(tasks=(name,)),
            **{name: replace(getattr(TrainConfig(), name), source_word_dropout=0.1)},
        )
        for name in TEXTS
    },
    "sentences": TrainConfig(tasks=("cola", "classify")),
    "named": TrainConfig(tasks=("own", "pos"), instances={"own": Instance("spans", dim=30)}),
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
    "instances.own.kind": {"spans": "tags"},
    "instances.own.layer": {None: "entities"},
    "instances.own.half": {None: "a"},
    "gates.scope": {"per_task": "shared", "shared": "per_task"},
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
        return {name: number + 1 for name, number in value.items()} or {"pos": 7.0}
    return [*value, "x"] if isinstance(value, list) else f"other-{value}"


def keys_of(config: TrainConfig) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every key that one of two runs uses and that changes its result, with runs that differ in it."""
    first = plain(asdict(config))
    for key, value in neutral_values(first).items():
        if key in (*OF_ONE_RUN, *MEASURING) or key.startswith(("wandb.", "corpus.")):
            continue
        if key in settings_of(first).values and key not in ("pruning", "init_from"):
            given = first
            for part in key.split("."):
                given = given.get(part, value) if isinstance(given, Mapping) else value
            second = with_value(first, key, another(given, key))
            if another(given, key) != given and used(key, first, second):
                yield key, first, second


def used(key: str, *configs: Mapping[str, Any]) -> bool:
    return any(settings_of(config).values.get(key, UNUSED) is not UNUSED for config in configs)


@pytest.mark.slow
def test_every_key_of_the_schema_is_used_by_some_run():
    configs = [plain(asdict(config)) for config in CONTEXTS.values()]
    known = {key for config in configs for key in settings_of(config).values if used(key, config)}
    groups = {"tasks", "corpus", "wandb", "balancer"}
    absent = {
        key
        for key in neutral_values()
        if key not in known and key not in (*OF_ONE_RUN, "init_from") and key.partition(".")[0] not in groups
    }
    # Settings of tasks that no context trains, and keys that are no more.
    trained = {task for config in CONTEXTS.values() for task in config.tasks}
    groups = {key for key in asdict(TrainConfig()) if key in trained}
    assert {key for key in absent if key.partition(".")[0] in groups} == set()
    assert {key for key in absent if key.startswith(("gates.", "batch.", "optimizer."))} == set()


FAST = ("target of a kind", "text translate", "named")


@pytest.mark.parametrize(
    "context", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in CONTEXTS]
)
def test_runs_that_differ_in_a_key_are_of_two_setups_and_are_not_alike(context):
    free = (MASKS, (), ("gates.masks",))
    tried = 0
    for key, first, second in keys_of(CONTEXTS[context]):
        one, other = settings_of(first), settings_of(second)
        assert key in one.differing(other)
        assert sorted(one.differing(other)) == sorted(other.differing(one))
        names = [setup.name for setup in setups_of([one, other])]
        assert len(set(names)) == 2, (key, names)
        for group in free:
            declared = any(key == name or key.startswith(f"{name}.") for name in group)
            runs = runs_with(a=one, b=other)
            assert declared or (len(runs.like_most(group)) == 1 and key in runs.notes[0])
        runs = runs_with(a=one, b=other)
        runs.note_differences()
        assert key in runs.notes[0]
        tried += 1
    assert tried > 20


@pytest.mark.parametrize(
    ("first", "second"),
    [*combinations([name for name in CONTEXTS if CONTEXTS[name].tasks == PAIR.tasks], 2)],
)
def test_a_key_that_only_one_of_two_runs_uses_is_a_difference(first, second):
    one, other = (settings_of(plain(asdict(CONTEXTS[name]))) for name in (first, second))
    assert one.values.keys() ^ other.values.keys() <= {"init_from"}  # unknown where the source is gone
    both = one.values.keys() & other.values.keys()
    keys = {key for key in both if (one.values[key] is UNUSED) != (other.values[key] is UNUSED)}
    assert keys.difference(MEASURING) <= set(one.differing(other))
    assert one.differing(other)
    assert sorted(one.differing(other)) == sorted(other.differing(one))
    assert len({setup.name for setup in setups_of([one, other])}) == 2
    runs = runs_with(a=one, b=other)
    assert len(runs.like_most()) == 1
    assert one.differing(other)[0] in runs.notes[0]


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


SAME, OTHER = "5a" * 32, "07" * 32
"""Fingerprints of two contents."""


def alike(*runs: tuple[Mapping[str, Any], Mapping[str, Any]]) -> tuple[bool, list[str]]:
    """Whether runs, given their configuration and status, count as made alike everywhere; and the notes."""
    one, other = (
        settings_of(config, {"corpus_fingerprints": dict.fromkeys(config["tasks"], SAME)} | status)
        for config, status in runs
    )
    runs, shown = runs_with(a=one, b=other), runs_with(a=one, b=other)
    same = [not one.differing(other), not other.differing(one), len(runs.like_most()) == 2]
    same.append(len({setup.name for setup in setups_of([one, other])}) == 1)
    assert len(set(same)) == 1
    shown.note_differences()
    assert same[0] or any("differ in" in note for note in shown.notes)
    return same[0], [*runs.notes, *shown.notes]


@pytest.mark.parametrize(
    ("key", "recorded", "context"),
    [
        (
            "corpus.path",
            lambda digest: {
                "corpus_fingerprints": {"pos": digest, "dep": digest},
            },
            "pair",
        ),
        ("encoder.name", lambda digest: {"encoder_fingerprint": digest}, "pair"),
        ("gates.masks", lambda digest: {"masks_fingerprint": digest}, "masks"),
        ("gates.masks", lambda digest: {"origins": {"gates.masks": ["a", digest]}}, "masks"),
        ("init_from", lambda digest: {"origins": {"init_from": ["a", digest]}}, "pair"),
    ],
)
def test_what_a_run_was_given_counts_by_its_content(key, recorded, context):
    here = with_value(plain(asdict(CONTEXTS[context])), key, "here")
    there = with_value(here, key, "there")
    assert alike((here, recorded(SAME)), (there, recorded(SAME)))[0]
    same, notes = alike((here, recorded(SAME)), (here, recorded(OTHER)))
    assert not same
    assert not any("compared by path" in note for note in notes)
    # Where one of them recorded nothing, its place is all that is known of it.
    if "origins" not in recorded(SAME):
        nothing = dict.fromkeys(recorded(SAME))
        same, notes = alike((here, recorded(SAME)), (here, nothing))
        assert same
        assert key == "encoder.name" or any("1 run did not record what was in" in note for note in notes)
        assert not alike((here, recorded(SAME)), (there, nothing))[0]


def of_both(digest: str) -> dict[str, Any]:
    """What a run of the pair records of its corpus."""
    return {"corpus_fingerprints": {"pos": digest, "dep": digest}}


def test_two_contents_of_one_place_are_not_alike_because_a_third_run_recorded_nothing():
    config = plain(asdict(PAIR))
    runs = {
        name: settings_of({**config, "seed": seed}, status)
        for seed, (name, status) in enumerate({"a": {}, "b": of_both(SAME), "c": of_both(OTHER)}.items())
    }
    assert not {"b", "c"} <= {run.name for run in runs_with(**runs).like_most()}
    assert len({setup.name for setup in setups_of([runs["b"], runs["c"]])}) == 2


def test_tasks_with_files_of_their_own_are_compared_task_by_task():
    pair = with_value(
        with_value(plain(asdict(PAIR)), "corpus.pos", {"train": "p"}), "corpus.dep", {"train": "d"}
    )
    alone = {**pair, "tasks": ["pos"]}
    one, other = (
        settings_of(pair, {"corpus_fingerprints": {"pos": SAME, "dep": OTHER}}),
        settings_of(alone, {"corpus_fingerprints": {"pos": SAME}}),
    )
    assert one.differing(other) == []
    changed = settings_of(alone, {"corpus_fingerprints": {"pos": OTHER}})
    assert one.differing(changed) == ["corpus.pos"]


def test_runs_from_runs_that_are_gone_are_told_apart(tmp_path):
    config = plain(asdict(PAIR))
    for seed, epochs in ((1, 5), (2, 5), (3, 9)):
        a_run(tmp_path / f"source{seed}", {**config, "seed": seed, "max_epochs": epochs})
    made = [{**config, "init_from": str(tmp_path / f"source{seed}")} for seed in (1, 2, 3)]
    recorded = [{"origins": recorded_origins(one)} for one in made]
    assert alike((made[0], {}), (made[1], {}))[0]
    assert not alike((made[0], {}), (made[2], {}))[0]
    assert settings_of(made[0]).identity == settings_of(made[1]).identity
    for seed in (1, 2, 3):
        shutil.rmtree(tmp_path / f"source{seed}")
    assert alike((made[0], recorded[0]), (made[1], recorded[1]))[0]
    assert not alike((made[0], recorded[0]), (made[2], recorded[2]))[0]
    same, notes = alike((made[0], {}), (made[1], {}))
    assert not same
    assert "init_from" in notes[0]
    same, notes = alike((made[0], {}), (made[0], {}))
    assert same
    assert any("2 runs did not record what was in init_from" in note for note in notes)


@pytest.mark.parametrize("encoder", [{}, {"pooling": "first"}])
def test_a_run_from_a_run_that_replaced_its_source_can_be_read(tmp_path, encoder):
    """a; b from a; a again, from b: what b started from is gone."""
    config = plain(asdict(replace(PAIR, encoder=EncoderConfig(**encoder))))
    one, other = tmp_path / "a", tmp_path / "b"
    runs = [
        a_run(folder, {**config, "seed": seed, "init_from": str(source)})
        for seed, (folder, source) in enumerate([(one, other), (other, one)])
    ]
    first, second = map(settings_of_run, runs)
    assert first.differing(second) == ["init_from"]  # unknown, as what is gone
    assert [encoder_of(run).place for run in runs] == ["minilm", "minilm"]
    assert recorded_origins({**config, "init_from": str(one)})["init_from"] is not None


def test_what_was_moved_with_a_run_is_found(tmp_path):
    source = plain(asdict(replace(PAIR, runs=str(tmp_path / "old" / "runs"), name="source")))
    made = {**source, "name": "made", "init_from": str(tmp_path / "old" / "runs" / "source")}
    before = (
        a_run(tmp_path / "old" / "runs" / "source", source),
        a_run(tmp_path / "old" / "runs" / "made", made),
    )
    known = settings_of_run(before[1])
    (tmp_path / "old").rename(tmp_path / "new")
    assert settings_of_run(Run(tmp_path / "new" / "runs" / "made")).identity == known.identity


def test_what_comes_with_the_run_to_start_from_is_no_difference_to_it(tmp_path):
    """A run that starts from another records what `null` stands for there."""
    source = plain(asdict(replace(PAIR, runs=str(tmp_path), name="source")))
    read = {**source["encoder"], "pooling": "mean", "word_dropout": 0.2}
    made = {**source, "name": "made", "init_from": str(tmp_path / "source"), "encoder": read}
    one, other = (settings_of_run(a_run(tmp_path / run["name"], run)) for run in (source, made))
    assert one.differing(other) == ["init_from"]
    elsewhere = settings_of({**made, "init_from": None})
    assert one.differing(elsewhere) == ["encoder.pooling", "encoder.word_dropout"]


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


@pytest.mark.parametrize("encoder", ["minilm", "bert-base-uncased"])
def test_a_rate_that_is_not_given_is_the_one_that_it_stands_for(encoder):
    config = plain(asdict(PAIR))
    unset = with_value(config, "encoder.name", encoder)
    given = unset
    for key, rate in default_rates(encoder, None).items():
        given = with_value(given, f"optimizer.{key}", rate)
    assert unset["optimizer"] != given["optimizer"]
    assert settings_of(unset).identity == settings_of(given).identity
    assert settings_of(given).differing(settings_of(with_value(given, "optimizer.encoder_lr", 1e-6)))


def test_a_balancer_counts_where_there_is_something_to_weigh():
    """`mtl train joint` and `mtl train dep` are compared, since a weight of NER does nothing to DEP alone."""
    weighed = BalancerConfig(name="fixed", weights={"pos": 2.0})
    joint, plain_joint, dep, pos, weighed_dep, weighed_pos, uncertain = (
        settings_of(plain(asdict(TrainConfig(tasks=tasks, balancer=balancer))))
        for tasks, balancer in (
            (("pos", "dep"), weighed), (("pos", "dep"), BalancerConfig()), (("dep",), BalancerConfig()),
            (("pos",), BalancerConfig()), (("dep",), weighed), (("pos",), weighed),
            (("dep",), BalancerConfig(name="uncertainty")),
        )
    )  # fmt: skip
    for alike in ((joint, dep, pos), (plain_joint, dep, pos), (joint, weighed_dep, weighed_pos)):
        assert len(runs_with(**{str(place): one for place, one in enumerate(alike)}).like_most()) == 3
    for one, other in (
        (joint, plain_joint), (pos, weighed_pos), (plain_joint, weighed_pos), (dep, uncertain),
        (joint, uncertain),
    ):  # fmt: skip
        assert len(runs_with(one=one, other=other).like_most()) == 1
    assert len(runs_with(dep=dep, joint=joint, pos=pos, plain=plain_joint).like_most()) == 3


def a_run(folder: Path, config: Mapping[str, Any]) -> Run:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config)))
    score = {"pos": "accuracy", "dep": "las"}
    figures = {task: {score[task]: 70.0} for task in config["tasks"]}
    (folder / "metrics.json").write_text(json.dumps({"test": figures}))
    return Run(folder)


def in_two_orders(folder):
    """What is gathered from the same runs under other names, in another order of folders."""
    for place, order in enumerate(([0, 1, 2, 3, 4, 5, 6, 7], [5, 3, 7, 0, 6, 1, 4, 2])):
        study = Study(folder / str(place))
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
        yield gather(study.root, "test", TrainConfig().main_scores())


def test_names_and_order_of_folders_change_no_table(tmp_path):
    one, other = in_two_orders(tmp_path)
    assert one.setups == other.setups
    scores = [data.scores.drop("run").sort("setup", "task", "seed").rows() for data in (one, other)]
    assert scores[0] == scores[1]
