"""Several ranks, and several batches, are one step: equal weights however an update's sentences are split."""

from __future__ import annotations

import json
from pathlib import Path

import polars
import pytest
import torch

from mtl.config.keys import known_keys_of
from mtl.config.schema import TrainConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.models.inputs import InputCache
from mtl.runs.folder.run import Run
from tests.mtl.stopped import weights
from tests.mtl.training.still import carried_out, free_ports, still_encoder, trained
from tests.pairwise import Combination, pairwise

BALANCERS = ("uniform", "fixed", "moving_average", "uncertainty", "gradnorm", "pcgrad")
VALUES = {
    "scope": ("none", "shared", "per_task"),
    "balancer": BALANCERS,
    "sampling": ("aligned", "proportional", "tempered"),
    "conflict": (0, 2) if "gradient_conflict_every" in known_keys_of(TrainConfig) else (0,),
    "accumulate": (1, 2, 3),
    "stop": (None, 3, 7),
    "sentences": (4, 5),  # of 17: the last batch has one, or two, and so fewer than three ranks
    "ranks": (2, 3),  # compared with one
}


def possible(combination: Combination) -> bool:
    one_pass = combination["sampling"] == "aligned"
    if combination["conflict"] and not (one_pass and combination["scope"] != "per_task"):
        return False
    return one_pass or combination["balancer"] not in ("gradnorm", "pcgrad")


def words_of(combination: Combination) -> list[str]:
    scope, sampling = combination["scope"], combination["sampling"]
    words = [
        "--max_epochs=2", f"--batch.sentences={combination['sentences']}",
        f"--balancer.name={combination['balancer']}", f"--optimizer.accumulate={combination['accumulate']}",
    ]  # fmt: skip
    if combination["conflict"]:
        words.append(f"--gradient_conflict_every={combination['conflict']}")
    if combination["balancer"] == "fixed":
        words.append("--balancer.weights={pos: 0.5, srl: 2}")
    if scope != "none":
        words += ["--pruning=dynamic", f"--gates.scope={scope}", "--gates.target_open=0.5"]
    if sampling != "aligned":
        words += ["--batch.mode=separate", f"--batch.sampling={sampling}"]
    return words


def largest_difference(one: Path, other: Path) -> float:
    first, second = weights(Run(one)), weights(Run(other))
    assert first.keys() == second.keys()
    return max(float((first[key] - second[key]).abs().max()) for key in first)


@pytest.fixture(scope="module")
def still(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder without dropout."""
    return still_encoder(tiny_encoder, tmp_path_factory.mktemp("still") / "bert")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("balancer", "epochs"),
    [("uncertainty", 2), *(pytest.param(name, 4, marks=pytest.mark.slow) for name in BALANCERS)],
)
def test_batches_that_are_accumulated_are_one_batch(balancer, epochs, still, tmp_path):
    write_toy(tmp_path / "toy", 3, 1, 1, seed=5)
    scope = "per_task" if BALANCERS.index(balancer) % 2 else "shared"
    combination = {"scope": scope, "balancer": balancer, "sampling": "aligned", "conflict": 0}
    if scope == "shared":
        combination["conflict"] = 1
    inputs, runs = InputCache(keep=True), []
    for sentences, accumulate in ((3, 1), (1, 3), (1, 4))[:epochs]:
        words = words_of(combination | {"sentences": sentences, "accumulate": accumulate})
        words += [
            f"--corpus.path={tmp_path / 'toy'}", f"--encoder.name={still}", f"--runs={tmp_path}",
            f"--name=of-{sentences}-{accumulate}", f"--max_epochs={epochs}", f"--evaluate_every={epochs}",
        ]  # fmt: skip
        runs.append(trained(words, None, inputs).folder)
    for run in runs[1:]:
        assert largest_difference(runs[0], run) < 2e-5, run.name
    if scope == "shared":
        tables = [polars.read_parquet(run / "heads.parquet") for run in runs]
        for table in tables[1:]:
            assert table["count"].to_list() == tables[0]["count"].to_list()
            torch.testing.assert_close(
                table["value"].to_torch(), tables[0]["value"].to_torch(), atol=1e-4, rtol=0
            )


def write_jobs(path: Path, ranks: int, jobs: list[tuple[list[str], int | None]]) -> None:
    """Training jobs for a group of processes, each with ports of its own."""
    ports = iter(free_ports(2 * len(jobs)))
    path.write_text(
        json.dumps(
            [
                {
                    "words": [*words, f"--trainer.devices={ranks}"],
                    "stop": stop,
                    "port": next(ports),
                    "next_port": next(ports),
                }
                for words, stop in jobs
            ]
        )
    )


PARTS = 3
"""The matrix is run in so many tests, each of which takes a minute or two of one core."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_one_two_and_three_ranks_end_with_the_same_weights(part, still, tmp_path):
    write_toy(tmp_path / "toy", 17, 1, 1, seed=5)
    combinations = pairwise(VALUES, possible)
    assert PARTS < len(combinations) < 30
    here = dict(list(enumerate(combinations))[part::PARTS])

    def job(number: int, name: str) -> tuple[list[str], int | None]:
        words = [
            *words_of(here[number]), f"--corpus.path={tmp_path / 'toy'}", f"--encoder.name={still}",
            f"--runs={tmp_path}", f"--name={number}-{name}",
        ]  # fmt: skip
        return words, here[number]["stop"]

    inputs = InputCache(keep=True)
    for number in here:
        trained(job(number, "alone")[0], None, inputs)
    arguments = []
    for ranks in VALUES["ranks"]:
        jobs = [job(number, "ranks") for number, combination in here.items() if combination["ranks"] == ranks]
        write_jobs(tmp_path / f"jobs-{ranks}.json", ranks, jobs)
        arguments += [str(tmp_path / f"jobs-{ranks}.json"), str(ranks)]
    carried_out("tests.mtl.training.still", arguments)
    wrong = {}
    for number, combination in here.items():
        one, several = tmp_path / f"{number}-alone", tmp_path / f"{number}-ranks"
        if (difference := largest_difference(one, several)) > 1e-4:
            wrong[number] = difference, combination
        if combination["conflict"]:
            values = [polars.read_parquet(run / "heads.parquet")["value"] for run in (one, several)]
            torch.testing.assert_close(values[0].to_torch(), values[1].to_torch(), atol=1e-3, rtol=0)
    assert not wrong
