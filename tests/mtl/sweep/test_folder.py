"""A sweep's folder that is damaged, lacks a file or is on a full disk; and one that is continued.
Trials that are started, performed, failed, stopped, killed and resumed, on planted objectives.
"""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import signal
import sqlite3
import time

import pytest
from rich.console import Console
from sqlalchemy.exc import OperationalError

from mtl.commands.main import main
from mtl.errors import InputError
from mtl.sweep import folder
from mtl.sweep.folder import Outcome, SweepFolder, preview, trial_progress, trials_of
from mtl.workers.queue import FullDisk
from tests.mtl.sweep.conftest import MADE_OF, PRODUCT, Bench, point_of, sweep_of


def refusal(call, *words):
    with pytest.raises(InputError) as raised:
        call(*words)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_damaged_storage(bench, capsys):
    sweep = bench()
    sweep.work()
    folder = sweep.folder
    # Its middle is gone, as after a crash of the disk.
    content = folder.storage.read_bytes()
    for damaged in (b"this is no database" * 100, content[:4096] + b"\xff" * (len(content) - 4096)):
        folder.storage.write_bytes(damaged)
        assert main(["sweep", str(folder.path), "--status"]) == 2
        errors = capsys.readouterr().err
        assert str(folder.storage) in errors
        assert "start a new sweep with another --name" in errors
        assert "SQL:" not in errors
        assert errors.count("\n") == 1
    folder.storage.write_bytes(b"")
    assert "is empty" in refusal(folder.study, sweep.sweep)
    folder.storage.write_bytes(content)
    assert "holds no trials of a sweep 'other'" in refusal(folder.study, sweep_of("other"))
    assert len(trials_of(folder.study(sweep.sweep))) == 6
    folder.storage.unlink()
    assert "is missing" in refusal(folder.study, sweep.sweep)
    assert not folder.storage.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"sweep": 3, "base": {}, "made_of": {}}', '{"sweep": {}}', "X"]
)
def test_a_damaged_plan(bench, text):
    sweep = bench()
    if text == "X":
        text = json.dumps({**json.loads(sweep.folder.sweep_file.read_text()), "made_of": {}})
    sweep.folder.sweep_file.write_text(text)
    assert "sweep.json" in refusal(sweep.folder.read_sweep)


def test_trials_without_their_plan_are_not_taken_for_those_of_another_sweep(bench, capsys):
    sweep = bench()
    sweep.work()
    sweep.folder.sweep_file.unlink()
    assert "holds trials" in refusal(list, preview(sweep.sweep, sweep.folder, None))
    for words in (["sweep", str(sweep.folder.path), "--status"], ["report", str(sweep.folder.path)]):
        assert main(words) == 2
        assert "sweep.json is missing, and" in capsys.readouterr().err
    assert "holds trials" in refusal(sweep.folder.start, sweep_of(), {}, MADE_OF)
    assert len(trials_of(sweep.study)) == 6


def test_a_start_that_was_killed_begins_again(bench):
    sweep = bench()
    sweep.folder.sweep_file.unlink()
    # The direction in the storage that was left is the first one's.
    other = sweep_of(metric={"name": "loss/pos", "goal": "minimize"})
    assert sweep.folder.start(other, {}, MADE_OF) == []
    assert sweep.folder.study(other).direction.name == "MINIMIZE"


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be made" in refusal(SweepFolder(tmp_path / "file" / "s").start, sweep_of(), {}, MADE_OF)


def test_a_full_disk_ends_the_work_and_it_goes_on(bench, monkeypatch):
    sweep = bench()
    write = folder.write_progress

    def full(study, trial, progress):
        if trial.number == 2:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise OperationalError("UPDATE", {}, error)
        write(study, trial, progress)

    monkeypatch.setattr(folder, "write_progress", full)
    with pytest.raises(FullDisk):
        sweep.work()
    monkeypatch.setattr(folder, "write_progress", write)
    sweep.work()
    assert sweep.states() == ["finished"] * 6
    assert [point_of(values) for _, values in sweep.performed] == PRODUCT


def test_what_may_change_does_and_the_order_of_points_does_not(bench):
    sweep = bench(limit=2)
    sweep.folder.sweep_file.unlink()
    sweep.folder.start(sweep.sweep, {"trainer": {"threads": 1}}, MADE_OF)
    sweep.work()
    parameters = dict(reversed(sweep.sweep.given["parameters"].items()))
    again = sweep_of(parameters=parameters, project="other", run_cap=6)
    assert sweep.folder.start(again, {"trainer": {"threads": 3}}, {**MADE_OF, "version": "new"}) != []
    stored, base, made_of = sweep.folder.read_sweep()
    assert (stored.file.project, stored.file.run_cap, base) == ("other", 6, {"trainer": {"threads": 3}})
    assert made_of == MADE_OF
    sweep.sweep, sweep.limit = stored, 6
    sweep.work(lambda number, values, look: Outcome(1.0))
    points = [trial.user_attrs["values"] for trial in trials_of(sweep.study)]
    assert sorted(map(point_of, points)) == PRODUCT


def test_a_trial_of_another_version_is_refused(bench):
    sweep = bench()
    sweep.study.ask().set_user_attr("progress", {"tries": 2, "colour": "red"})
    with pytest.raises(
        InputError, match=r"trial 0 is of another version of mtl \(unknown field colour\): start a new sweep"
    ):
        trial_progress(trials_of(sweep.study)[0])


def test_a_large_grid_is_not_laid_out():
    sweep = sweep_of(parameters={"seed": {"min": 1, "max": 10**12}, "gates.penalty": {"values": [0.1, 0.2]}})
    assert sweep.points() == 2 * 10**12
    last = 2 * 10**12 - 1
    assert folder.point(sweep, last) == {"seed": 10**12 - 1, "gates.penalty": 1}
    assert folder.drawn_at(sweep, last) == {"seed": 10**12, "gates.penalty": 1}
    assert [parameter.at(folder.point(sweep, last)[parameter.key]) for parameter in sweep.parameters] == [
        10**12,
        0.2,
    ]


def test_what_has_an_effect_on_the_server_only_is_listed():
    sweep = sweep_of(
        description="d",
        metric={"name": "dev/mean", "goal": "maximize", "impute": "worst"},
        early_terminate={"type": "hyperband", "min_iter": 1, "strict": True},
    )
    assert sweep.only_on_the_server() == ["description", "metric.impute", "early_terminate.strict"]
    assert sweep_of().only_on_the_server() == []
    assert json.dumps(sweep.given)


@pytest.mark.parametrize("name", ["lr[1]", "a?b#c%20", "{0}{SCHEMA_VERSION}", "it's", "~", "x:y@z"])
def test_trials_are_kept_in_a_folder_of_any_name(tmp_path, name):
    made = Bench(tmp_path / name, sweep_of(), limit=2)
    made.work()
    assert made.states() == ["finished"] * 2
    assert made.folder.storage.is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]


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


@pytest.mark.slow
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
    assert trial_progress(trials[1]).error == "RuntimeError: no luck"
    assert "dev/mean is nan, not a finite number" in trial_progress(trials[2]).error
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
    assert "died 3 times" in trial_progress(trials_of(sweep.study)[0]).error


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
    another = SweepFolder(sweep.folder.path.with_name("another"))
    assert another.start(sweep_of(method="random", run_cap=9), {}, MADE_OF) == []
    [note] = start(made_of={**MADE_OF, "version": "other"})
    assert "another version of mtl" in note


def test_a_folder_without_a_sweep(tmp_path):
    with pytest.raises(InputError, match="holds no sweep"):
        SweepFolder(tmp_path).read_sweep()
