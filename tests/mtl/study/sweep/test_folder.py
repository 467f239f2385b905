"""A sweep's folder that is damaged, lacks a file or is on a full disk; and one that is continued."""

from __future__ import annotations

import json
import sqlite3

import pytest
from sqlalchemy.exc import OperationalError

from mtl.commands.main import main
from mtl.errors import InputError
from mtl.study.sweep import engine
from mtl.study.sweep.engine import Outcome
from mtl.study.sweep.folder import SweepFolder, progress_of, trials_of
from mtl.study.sweep.status import preview
from mtl.workers.worker import FullDisk
from tests.mtl.study.sweep.conftest import MADE_OF, PRODUCT, Bench, point_of, sweep_of


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
    write = engine.write_progress

    def full(study, trial, progress):
        if trial.number == 2:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise OperationalError("UPDATE", {}, error)
        write(study, trial, progress)

    monkeypatch.setattr(engine, "write_progress", full)
    with pytest.raises(FullDisk):
        sweep.work()
    monkeypatch.setattr(engine, "write_progress", write)
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
    assert sweep.folder.start(again, {"trainer": {"threads": 3}}, {**MADE_OF, "code": "new"}) != []
    stored, base, made_of = sweep.folder.read_sweep()
    assert (stored.file.project, stored.file.run_cap, base) == ("other", 6, {"trainer": {"threads": 3}})
    assert made_of == MADE_OF
    sweep.sweep, sweep.limit = stored, 6
    sweep.work(lambda number, values, look: Outcome(1.0))
    points = [trial.user_attrs["values"] for trial in trials_of(sweep.study)]
    assert sorted(map(point_of, points)) == PRODUCT


def test_what_a_later_version_wrote_of_a_trial_is_passed_over(bench):
    sweep = bench()
    sweep.study.ask().set_user_attr("progress", {"tries": 2, "colour": "red"})
    assert progress_of(trials_of(sweep.study)[0]).tries == 2


def test_a_large_grid_is_not_laid_out():
    sweep = sweep_of(parameters={"seed": {"min": 1, "max": 10**12}, "gates.penalty": {"values": [0.1, 0.2]}})
    assert sweep.points() == 2 * 10**12
    last = 2 * 10**12 - 1
    assert engine.point(sweep, last) == {"seed": 10**12 - 1, "gates.penalty": 1}
    assert engine.drawn_at(sweep, last) == {"seed": 10**12, "gates.penalty": 1}
    assert [parameter.at(engine.point(sweep, last)[parameter.key]) for parameter in sweep.parameters] == [
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
    made = Bench(tmp_path / name, sweep_of())
    made.work()
    assert made.states() == ["finished"] * 6
    assert made.folder.storage.is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]
