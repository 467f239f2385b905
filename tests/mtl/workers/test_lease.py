"""Leases: one process at a time; only a dead holder is replaced."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from mtl.workers import lease as module
from mtl.workers.lease import SILENCE, Holder, exclusive, holder_of, lease

RACE = """
import sys, time
from pathlib import Path
from mtl.workers.lease import lease
place, start = Path(sys.argv[1]), float(sys.argv[2])
time.sleep(max(0, start - time.time()))
with lease(place) as mine:
    print(int(mine), flush=True)
    sys.stdin.read()
"""


def race(place: Path, count: int) -> list[subprocess.Popen[str]]:
    start = time.time() + 2.0
    return [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(place), str(start)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(count)
    ]  # fmt: skip


def winners(runners: list[subprocess.Popen[str]]) -> int:
    won = sum(int(runner.stdout.readline()) for runner in runners)
    for runner in runners:
        runner.communicate("")
    return won


@pytest.mark.slow
def test_of_many_processes_one_gets_the_lease(tmp_path):
    place = tmp_path / "jobs" / "in" / "a.lease"
    assert winners(race(place, 6)) == 1
    assert not place.exists()


def test_folders_that_a_lease_made_go_with_it(tmp_path):
    with lease(tmp_path / "jobs" / "in" / "a.lease") as mine:
        assert mine
    assert not list(tmp_path.iterdir())


def test_a_program_whose_name_is_cut_within_a_character_has_leases(tmp_path):
    script = tmp_path / f"{14 * 'a'}ä.py"  # the system keeps 15 bytes
    code = "from mtl.workers.lease import Holder; print(Holder.me())"
    script.write_text(f"#!{sys.executable}\n{code}\n", encoding="utf-8")
    script.chmod(0o700)
    started = subprocess.run([script], capture_output=True, text=True, check=False)
    assert started.stdout.startswith("process "), started.stderr


def test_a_folder_that_something_else_is_in_stays(tmp_path):
    (tmp_path / "mine").mkdir()
    for place in (tmp_path / "mine" / "a.lease", tmp_path / "a" / "b" / "a.lease"):
        with lease(place) as mine:
            assert mine
            (place.parent.parent / "file").touch()
    assert {path.name for path in tmp_path.rglob("*")} == {"mine", "file", "a"}


def test_a_folder_that_goes_with_another_lease_is_made_again(tmp_path, monkeypatch):
    place, take, went = tmp_path / "jobs" / "a.lease", module._take, []

    def late(path, me, of=None):
        if not went:
            path.parent.rmdir()
            went.append(path)
        return take(path, me, of)

    monkeypatch.setattr(module, "_take", late)
    with lease(place) as mine:
        assert mine
    assert went


@pytest.mark.slow
def test_of_many_processes_one_takes_over_from_a_dead_one(tmp_path):
    place = tmp_path / "a.lease"
    [first] = race(place, 1)
    assert first.stdout.readline() == "1\n"
    assert holder_of(place).pid == first.pid
    first.kill()
    first.communicate()
    assert place.exists()
    assert holder_of(place) is None
    assert winners(race(place, 6)) == 1


def test_nobody_else_gets_it_meanwhile_and_anyone_afterwards(tmp_path):
    place = tmp_path / "a.lease"
    with lease(place) as mine:
        assert mine
        assert holder_of(place) == Holder.me()
        with lease(place) as again:
            assert not again
        assert place.exists()
    assert not place.exists()
    with lease(place) as mine:
        assert mine


def elsewhere(place: Path, silent: float) -> None:
    place.write_text(json.dumps({"host": "another-machine", "pid": 1, "started": "0", "namespace": "n"}))
    then = time.time() - silent
    os.utime(place, (then, then))


def test_another_machine_counts_as_dead_after_a_silence(tmp_path):
    place = tmp_path / "a.lease"
    elsewhere(place, SILENCE / 2)
    assert holder_of(place).host == "another-machine"
    with lease(place) as mine:
        assert not mine
    elsewhere(place, SILENCE * 2)
    with lease(place) as mine:
        assert mine


def test_a_new_process_with_an_old_number_is_another(tmp_path):
    place = tmp_path / "a.lease"
    me = Holder.me()
    place.write_text(json.dumps(asdict(replace(me, started=me.started + "0"))))
    assert holder_of(place) is None


def test_a_container_with_the_same_host_name_is_another_machine(tmp_path):
    """Its process numbers mean nothing here: neither a free number nor this process's own is the holder."""
    place = tmp_path / "a.lease"
    for pid in (os.getpid(), 2**22 + 1):
        there = replace(Holder.me(), pid=pid, namespace="another boot pid:[1]")
        place.write_text(json.dumps(asdict(there)))
        with lease(place) as mine:
            assert not mine
        assert holder_of(place) == there
        then = time.time() - 2 * SILENCE
        os.utime(place, (then, then))
        assert holder_of(place) is None


@pytest.mark.skipif(
    subprocess.run(["unshare", "-rpf", "--mount-proc", "true"], capture_output=True, check=False).returncode
    if shutil.which("unshare")
    else True,
    reason="no process namespaces for this user",
)
def test_two_process_namespaces_do_not_take_each_others_leases(tmp_path):
    place = tmp_path / "a.lease"
    inside = ["unshare", "-rpf", "--mount-proc", sys.executable, "-c", RACE, str(place), "0"]
    with lease(place) as mine:
        assert mine
        ended = subprocess.run(inside, input="", stdout=subprocess.PIPE, text=True, check=True)
        assert ended.stdout == "0\n"
    with subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout.readline() == "1\n"
        with lease(place) as mine:
            assert not mine
        runner.stdin.close()


def test_the_clock_on_the_wall_may_be_set(tmp_path, monkeypatch):
    place = tmp_path / "a.lease"
    with lease(place):
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: 1.0)
        assert holder_of(place) == Holder.me()


def test_silence_is_measured_by_the_clock_of_the_file_system(tmp_path, monkeypatch):
    place = tmp_path / "a.lease"
    elsewhere(place, SILENCE / 2)
    monkeypatch.setattr(time, "time", lambda: 9e9)
    assert holder_of(place).host == "another-machine"


def dead(place: Path) -> None:
    me = Holder.me()
    place.write_text(json.dumps(asdict(replace(me, started="long ago"))))


@pytest.mark.slow
def test_who_comes_late_to_a_dead_holders_lease_leaves_the_new_holders_in_place(tmp_path, monkeypatch):
    """A third one's lease cannot slip in, since the new holder's is never moved away."""
    place = tmp_path / "a.lease"
    dead(place)
    ended, inode, lives = [], [], module._lives

    def while_others_are_quicker(holder: Holder, path: Path) -> bool:
        if holder.started == "long ago" and not ended:
            ended.extend(race(place, 1))
            assert ended[0].stdout.readline() == "1\n"
            inode.append(place.stat().st_ino)
            return False  # as it was seen before
        return lives(holder, path)

    monkeypatch.setattr(module, "_lives", while_others_are_quicker)
    with lease(place) as mine:
        assert not mine
    assert place.stat().st_ino == inode[0]
    assert holder_of(place).pid == ended[0].pid
    ended[0].communicate("")
    assert not list(tmp_path.iterdir())


KILLED = """
import os, sys
from pathlib import Path
from mtl.workers import lease as module
real = {name: getattr(Path, name) for name in ("replace", "stat")}
def die(name):
    def act(path, *given, **named):
        found = real[name](path, *given, **named)
        if name == "replace" or "new" in path.name:
            os._exit(9)
        return found
    return act
if sys.argv[2] == "before":
    module.Path.replace = lambda *_: os._exit(9)
else:
    setattr(module.Path, sys.argv[2], die(sys.argv[2]))
with module.lease(Path(sys.argv[1])):
    pass
"""


@pytest.mark.parametrize("when", ["before", "replace", "stat"])
def test_one_that_dies_while_it_takes_over_leaves_nothing_to_those_who_follow(tmp_path, when):
    """Before and after it replaced the lease, and while it asks for the file system's time."""
    place = tmp_path / "a.lease"
    dead(place)
    if when == "stat":
        other = replace(Holder.me(), namespace="another")
        place.write_text(json.dumps(asdict(other)))
        long_ago = time.time() - 2 * SILENCE
        os.utime(place, (long_ago, long_ago))
    killed = [sys.executable, "-c", KILLED, str(place), when]
    assert subprocess.run(killed, check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) > 1
    with lease(place) as mine:
        assert mine
        assert list(tmp_path.iterdir()) == [place]
    assert not list(tmp_path.iterdir())


def test_a_damaged_lease_is_nobodys(tmp_path):
    place = tmp_path / "a.lease"
    place.write_text("")
    with lease(place) as mine:
        assert mine


def test_a_process_whose_lease_was_taken_over_ends_at_once(tmp_path):
    place = tmp_path / "a.lease"
    lines = f"""
import time
from dataclasses import asdict, replace
from pathlib import Path
from mtl.workers import lease as module
module.BEAT = 0.05
with module.lease(Path({str(place)!r})):
    elsewhere = Path({str(tmp_path / "other")!r})
    elsewhere.write_text('{{"host": "another-machine", "pid": 1, "started": "0", "namespace": "n"}}')
    elsewhere.replace({str(place)!r})
    time.sleep(20)
"""
    ended = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=False)
    assert ended.returncode == module.LOST
    assert "was taken over by another process" in ended.stderr
    assert json.loads(place.read_text())["host"] == "another-machine"


def test_the_holder_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BEAT", 0.05)
    place = tmp_path / "a.lease"
    with lease(place):
        os.utime(place, (0, 0))
        time.sleep(0.5)
        assert time.time() - place.stat().st_mtime < 5


@pytest.mark.slow
def test_who_waits_for_a_lease_gets_it_when_it_is_given_back(tmp_path):
    place = tmp_path / "a.lease"
    [other] = race(place, 1)
    assert other.stdout.readline() == "1\n"
    threading.Timer(0.3, other.communicate, ("",)).start()
    with exclusive(place):
        assert holder_of(place) == Holder.me()
    assert other.wait() == 0


def test_a_full_disk_is_named_and_nothing_is_left_behind(tmp_path, monkeypatch):
    def write(path: Path, text: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write)
    with pytest.raises(OSError, match="No space") as raised, lease(tmp_path / "x.lease"):
        pass
    assert raised.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
