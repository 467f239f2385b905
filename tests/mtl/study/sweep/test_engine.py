"""Trials that are started, performed, failed, stopped, killed and resumed, on planted objectives."""

from __future__ import annotations

import io
import math
import multiprocessing
import os
import signal
import time

import pytest
from rich.console import Console

from mtl.errors import InputError
from mtl.study.sweep.engine import Outcome
from mtl.study.sweep.folder import SweepFolder, progress_of, trials_of
from tests.mtl.study.sweep.conftest import MADE_OF, PRODUCT, point_of, sweep_of

fork = multiprocessing.get_context("fork")


def at_work(bench, journal, seconds=0.0):
    """A process that works on a sweep and writes down what it begins and ends."""

    def perform(number, values, look):
        with journal.open("a") as file:
            file.write(f"begin {number} {point_of(values)} {os.getpid()}\n")
        time.sleep(seconds)
        with journal.open("a") as file:
            file.write(f"end {number} {point_of(values)} {os.getpid()}\n")
        return Outcome(float(number))

    process = fork.Process(target=bench.work, args=(perform,))
    process.start()
    return process


def lines(journal, word):
    return (
        [line for line in journal.read_text().splitlines() if line.startswith(word)]
        if journal.exists()
        else []
    )


def test_a_grid_is_covered_once_and_in_order(bench):
    sweep = bench()
    sweep.work()
    assert [point_of(values) for _, values in sweep.performed] == PRODUCT
    sweep.work()
    assert len(sweep.performed) == len(PRODUCT)
    assert sweep.states() == ["finished"] * 6


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_workers_and_a_kill_cover_the_grid_once(bench, tmp_path):
    sweep, journal = bench(), tmp_path / "journal"
    victim = at_work(sweep, journal, 60)
    while not lines(journal, "begin"):
        time.sleep(0.01)
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    assert sweep.states() == ["interrupted"]
    workers = [at_work(sweep, journal, 0.05) for _ in range(2)]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    ended = [line.split(" ", 2)[2].rsplit(" ", 1) for line in lines(journal, "end")]
    assert sorted(point for point, _ in ended) == sorted(map(str, PRODUCT))
    # The killed trial was begun twice, all others once.
    assert len(lines(journal, "begin")) == 7
    assert sweep.states() == ["finished"] * 6
    assert not list((sweep.folder.path / "leases").iterdir())


def test_the_number_of_trials_counts_over_all_times(bench):
    sweep = bench(method="random", limit=3)
    sweep.work()
    sweep.work()
    assert len(sweep.performed) == 3
    sweep.limit = 5
    sweep.work()
    assert [number for number, _ in sweep.performed] == [0, 1, 2, 3, 4]


def test_an_interrupted_trial_is_taken_up_with_the_same_values(bench):
    sweep = bench(
        method="random", limit=3, parameters={"gates.penalty": {"min": 0.0, "max": 1.0}, "seed": {"value": 1}}
    )

    def interrupted(number, values, look):
        look(1, 0.5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.work(interrupted)
    assert sweep.states() == ["interrupted"]

    def seen(number, values, look):
        look(1, 0.5)  # an evaluation that is told of twice counts once
        look(2, 0.7)
        return Outcome(0.7)

    sweep.work(seen)
    assert sweep.performed[0] == sweep.performed[1]
    assert len(sweep.performed) == 4
    assert trials_of(sweep.study)[0].intermediate_values == {1: 0.5, 2: 0.7}
    assert sweep.states() == ["finished"] * 3


def test_a_failed_trial_stops_no_other_and_can_be_tried_again(bench):
    sweep = bench()

    def perform(number, values, look):
        if number == 1:
            raise RuntimeError("no\nluck")
        return Outcome(math.nan if number == 2 else 1.0)

    sweep.work(perform)
    assert sweep.states() == ["finished", "failed", "failed", "finished", "finished", "finished"]
    trials = trials_of(sweep.study)
    assert progress_of(trials[1]).error == "RuntimeError: no luck"
    assert "dev/mean is nan, not a finite number" in progress_of(trials[2]).error
    log = sweep.folder.log("trial-0001")
    assert "Traceback" in log.read_text()
    view = sweep.view()
    assert view.line(view.snapshot(), "trial-0001") == f"trial-0001: failed: RuntimeError: no luck ({log})"
    sweep.work()
    assert len(sweep.performed) == 6
    assert sweep.folder.try_again(sweep.study) == 2
    sweep.work()
    assert [number for number, _ in sweep.performed[6:]] == [1, 2]
    assert sweep.states() == ["finished"] * 6


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_trial_whose_process_dies_again_and_again_is_given_up(bench, tmp_path):
    sweep = bench(limit=1)

    def dies(number, values, look):
        os._exit(9)

    for _ in range(3):
        process = fork.Process(target=sweep.work, args=(dies,))
        process.start()
        process.join()
    sweep.work()
    assert sweep.performed == []
    assert "died 3 times" in progress_of(trials_of(sweep.study)[0]).error


def test_a_target_ends_the_sweep(bench):
    sweep = bench(metric={"name": "dev/mean", "goal": "maximize", "target": 2.0})
    sweep.work(lambda number, values, look: Outcome(float(number)))
    assert len(sweep.performed) == 3
    down = sweep_of(metric={"name": "loss/pos", "goal": "minimize", "target": 2.0}).metric
    assert down.reached(1.5)
    assert not down.reached(2.5)


def test_status_shows_scores_heads_and_parameters(bench):
    sweep = bench()
    sweep.work(lambda number, values, look: Outcome(80.0 + number, {"shared": 10.0 - number}))
    console = Console(width=200, file=io.StringIO())
    view = sweep.view(8)
    view.show(view.snapshot(), console)
    text = console.file.getvalue()
    for word in ("trial-0005", "85", "open heads", "gates.penalty", "best", "finished"):
        assert word in text
    assert text.splitlines()[-1] == "8 trials: 6 finished, 2 to come"
    assert not view.all_ended(view.snapshot())
    assert sweep.view(6).all_ended(view.snapshot())


def test_a_changed_sweep_is_refused_and_said(bench, tmp_path):
    sweep = bench()
    sweep.work()

    def start(base=None, made_of=MADE_OF, **changes):
        return sweep.folder.start(sweep_of(**changes), base or {}, made_of)

    assert start(run_cap=3, project="p") == []
    [note] = start(run_cap=3, description="more", project="p")
    assert note == "these keys have no effect without W&B's server: description"
    for changes, message in (
        ({"method": "random", "run_cap": 9}, "other method"),
        ({"parameters": {"seed": {"values": [1, 2, 3]}}}, "other parameters.gates, parameters.seed"),
        ({"metric": {"name": "dev/mean", "goal": "minimize"}}, "metric.goal"),
        ({"early_terminate": {"type": "hyperband", "min_iter": 1}}, "early_terminate"),
        ({"base": {"max_epochs": 3}}, "max_epochs"),
        ({"made_of": {**MADE_OF, "corpus": "other"}}, "the corpus"),
    ):
        with pytest.raises(InputError, match="another --name") as raised:
            start(**changes)
        assert message in str(raised.value)
    [note] = start(made_of={**MADE_OF, "code": "other"})
    assert "code has changed" in note


def test_a_folder_without_a_sweep(tmp_path):
    with pytest.raises(InputError, match="holds no sweep"):
        SweepFolder(tmp_path).read_sweep()
