"""A study's folder: records of other versions, jobs that are removed meanwhile, names of leases."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from mtl.commands.main import main
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.study.command import _status
from mtl.study.jobs import Job, JobProgress, StudyFolder, StudyView
from mtl.workers.lease import Holder
from mtl.workers.queue import interrupted_by_signals
from mtl.workers.watch import run_locally


@pytest.fixture
def study(tmp_path):
    folder = StudyFolder(tmp_path / "s")
    for number, name in enumerate(("pos-seed1", "ner-seed1")):
        config = TrainConfig(tasks=("pos",))
        folder.write_job(Job(name, "STL", config, number=number, made_of={"version": "c"}))
        folder.write_progress(name, JobProgress("finished", made_of={"version": "c"}))
    return folder


def change(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(("kind", "read"), [("job", StudyFolder.jobs), ("progress", StudyFolder.snapshot)])
def test_a_record_of_another_version_is_refused(study, kind, read):
    file = study.path / "jobs" / f"pos-seed1.{kind}.json"
    change(file, colour="red")
    with pytest.raises(InputError) as refused:
        read(study)
    assert str(refused.value) == (
        f"{file} cannot be read (unknown field colour): it is damaged, or from another version of mtl; "
        "remove it, and run 'mtl study' with the study's file again"
    )


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": "pos-seed1"}', '"text"'])
def test_a_damaged_record_is_one_line(study, capsys, text):
    (study.path / "jobs" / "pos-seed1.job.json").write_text(text)
    with pytest.raises(InputError, match=r"pos-seed1.job.json cannot be read"):
        study.jobs()
    assert main(["study", str(study.path), "--status"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_long_names_are_folded_on_a_terminal_and_one_line_elsewhere(study, capsys):
    config = study.jobs()[0].config
    name = "pos+ner+dep+con+srl-dynamic_per_task-a-long-label-of-a-block-seed1"
    study.write_job(
        Job(name, "pos+ner+dep+con+srl dynamic_per_task a-long-label-of-a-block", config, number=2)
    )
    terminal = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    view = StudyView(study)
    view.show(view.snapshot(), terminal)
    shown = terminal.file.getvalue()
    assert "…" not in shown
    cells = [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")]
    assert "".join(cells).endswith(name)
    assert main(["study", str(study.path), "--status"]) == 0
    _, header, *rows, totals = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "state", "setup", "epochs", "time", "remarks"]
    assert rows[-1].split()[:2] == [name, "waiting"]
    assert totals.startswith("3 jobs: ")


def test_the_epochs_of_every_run_that_was_started_are_shown(study, capsys):
    run = study.run("pos-seed1")
    run.mkdir(parents=True, exist_ok=True)
    (run / "history.csv").write_text("epoch,update\n1,10\n2,20\n")
    study.write_progress("pos-seed1", JobProgress("finished", made_of={"version": "c"}))
    assert main(["study", str(study.path), "--status"]) == 0
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("pos-seed1")]
    assert f"2/{study.jobs()[0].config.max_epochs}" in row.split()


def test_the_work_of_runs_is_told_in_one_unit_and_their_room_by_the_largest_of_them(study, monkeypatch):
    joint = replace(study.jobs()[0], name="joint", number=2)
    study.write_job(replace(joint, config=TrainConfig(tasks=("pos", "ner"))))
    for name in ("pos-seed1", "joint"):
        study.run(name).mkdir(parents=True)
        (study.run(name) / "history.csv").write_text("epoch,update\n1,10\n3,30\n")
    view = StudyView(study)
    assert view.done() == {"pos-seed1": 3.0, "ner-seed1": 0.0, "joint": pytest.approx(3.3)}
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    card = SimpleNamespace(total_memory=80e9)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: card)
    assert (view.fits("0"), view.capacity(0, ["0"])) == (1, 1)
    for name, peak in (("pos-seed1", 0.9), ("ner-seed1", 2.5)):
        study.write_progress(name, JobProgress("finished", made_of={"version": "c"}, gpu_gigabytes=peak))
    assert (view.fits("0"), view.capacity(0, ["0"])) == (21, 8)


def test_a_job_that_is_removed_while_the_jobs_are_listed_is_left_out(study):
    # Its name is listed, and the file is gone when it is read.
    (study.path / "jobs" / "dep-seed1.job.json").symlink_to("nothing")
    assert [job.name for job in study.jobs()] == ["pos-seed1", "ner-seed1"]


@pytest.mark.slow
def test_no_process_is_started_where_all_jobs_have_ended(study):
    with interrupted_by_signals():
        run_locally(StudyView(study), "no_such_module:work", 2, Console(quiet=True))
        assert not (study.path / "logs").exists()
        study.write_progress("ner-seed1", JobProgress("waiting", made_of={"version": "c"}))
        with pytest.raises(InputError, match="worker processes keep crashing"):
            run_locally(StudyView(study), "no_such_module:work", 1, Console(quiet=True))


@pytest.mark.slow
def test_the_state_on_a_terminal_follows_a_command_until_it_ends(study, monkeypatch):
    terminal = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    looks = iter((True, True, False))

    def commands(folder: StudyFolder) -> list[Holder]:
        study.write_progress("ner-seed1", JobProgress("failed", made_of={"version": "c"}, error="no luck"))
        return [Holder.me()] if next(looks) else []

    monkeypatch.setattr(StudyFolder, "commands", commands)
    assert _status(study, terminal) == 0
    shown = terminal.file.getvalue()
    assert "ner-seed1: failed: no luck" in shown
    assert shown.rstrip().endswith("2 jobs: 1 finished, 1 failed")


def test_commands_in_two_containers_with_one_host_name_have_two_leases(study):
    me = Holder.me()
    other = replace(me, namespace="another boot pid:[1]")
    assert study.command(me) != study.command(other)
    study.command(other).parent.mkdir()
    study.command(other).write_text(json.dumps(asdict(other)))
    assert study.commands() == [other]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds: [", "is no YAML"),
        ("- 1", "holds no keys"),
        ("", "is empty"),
        ("name: 3", "name: expected a text (in quotes) or null, not '3'"),
    ],
)
def test_the_state_of_a_study_whose_file_is_bad_is_one_line(tmp_path, capsys, text, message):
    file = tmp_path / "s.yaml"
    file.write_text(text)
    assert main(["study", str(file), "--status"]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert str(file) in errors
    assert errors.count("\n") == 1


@pytest.fixture
def reads(monkeypatch):
    """The names of the files of jobs and progress that are read."""
    read, names = Path.read_bytes, []

    def counted(file):
        names.append(file.name)
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", counted)
    return names


def settle(study):
    """As if nothing had been written for a minute."""
    for file in (study.path / "jobs").glob("*.json"):
        os.utime(file, (file.stat().st_atime - 60, file.stat().st_mtime - 60))


def test_a_snapshot_reads_what_has_changed_and_nothing_else(tmp_path, reads):
    study = StudyFolder(tmp_path)
    for number, name in enumerate(("a", "b")):
        study.write_job(Job(name, "STL", TrainConfig(), number=number, made_of={"version": "1"}))
        study.write_progress(name, JobProgress("waiting"))
    settle(study)
    first = study.snapshot()
    assert sorted(reads) == ["a.job.json", "a.progress.json", "b.job.json", "b.progress.json"]
    reads.clear()
    assert study.snapshot() == first
    assert reads == []
    study.write_progress("b", JobProgress("finished", made_of={"version": "1"}))
    assert study.snapshot().states() == {"a": "waiting", "b": "finished"}
    assert reads == ["b.progress.json"]
    study.remove_job("a")
    assert list(study.snapshot().jobs) == ["b"]
    assert study.last_progress("a") == JobProgress()


def test_a_file_that_was_written_just_now_is_read_again(tmp_path, reads):
    """Its successor could have the same time, size and inode number."""
    study = StudyFolder(tmp_path)
    study.write_progress("a", JobProgress("running"))
    file = tmp_path / "jobs" / "a.progress.json"
    assert study.last_progress("a").state == "running"
    state = file.stat()
    file.write_text(file.read_text().replace("running", "waiting"))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_ino) == (state.st_size, state.st_ino)
    assert study.last_progress("a").state == "waiting"
    assert len(reads) == 2
