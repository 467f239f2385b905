"""Claims: one process at a time, the dead give way, the living do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from mtl.workers import lease as module
from mtl.workers.lease import SILENCE, Owner, claimed, owner_of

RACE = """
import sys, time
from pathlib import Path
from mtl.workers.lease import claimed
place, start = Path(sys.argv[1]), float(sys.argv[2])
time.sleep(max(0, start - time.time()))
with claimed(place) as mine:
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


def test_of_many_processes_one_gets_the_claim(tmp_path):
    place = tmp_path / "jobs" / "a.claim"
    assert winners(race(place, 6)) == 1
    assert not list(place.parent.iterdir())


def test_of_many_processes_one_takes_over_from_a_dead_one(tmp_path):
    place = tmp_path / "a.claim"
    [first] = race(place, 1)
    assert first.stdout.readline() == "1\n"
    assert owner_of(place).pid == first.pid
    first.kill()
    first.communicate()
    assert place.exists()
    assert owner_of(place) is None
    assert winners(race(place, 6)) == 1


def test_nobody_else_gets_it_meanwhile_and_anyone_afterwards(tmp_path):
    place = tmp_path / "a.claim"
    with claimed(place) as mine:
        assert mine
        assert owner_of(place) == Owner.me()
        with claimed(place) as again:
            assert not again
        assert place.exists()
    assert not place.exists()
    with claimed(place) as mine:
        assert mine


def elsewhere(place: Path, silent: float) -> None:
    place.write_text(json.dumps({"host": "another-machine", "pid": 1, "started": "0"}))
    then = time.time() - silent
    os.utime(place, (then, then))


def test_another_machine_counts_as_dead_after_a_silence(tmp_path):
    place = tmp_path / "a.claim"
    elsewhere(place, SILENCE / 2)
    assert owner_of(place).host == "another-machine"
    with claimed(place) as mine:
        assert not mine
    elsewhere(place, SILENCE * 2)
    with claimed(place) as mine:
        assert mine


def test_a_new_process_with_an_old_number_is_another(tmp_path):
    place = tmp_path / "a.claim"
    me = Owner.me()
    place.write_text(json.dumps({"host": me.host, "pid": me.pid, "started": me.started + "0"}))
    assert owner_of(place) is None


def test_the_clock_on_the_wall_may_be_set(tmp_path, monkeypatch):
    place = tmp_path / "a.claim"
    with claimed(place):
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: 1.0)
        assert owner_of(place) == Owner.me()


def test_silence_is_measured_by_the_clock_of_the_file_system(tmp_path, monkeypatch):
    place = tmp_path / "a.claim"
    elsewhere(place, SILENCE / 2)
    monkeypatch.setattr(time, "time", lambda: 9e9)
    assert owner_of(place).host == "another-machine"


def dead(place: Path) -> None:
    me = Owner.me()
    place.write_text(json.dumps({"host": me.host, "pid": me.pid, "started": "long ago"}))


def test_who_comes_late_to_a_dead_owners_claim_leaves_the_new_owners_in_place(tmp_path, monkeypatch):
    """A third one's claim cannot slip in, since the new owner's is never moved away."""
    place = tmp_path / "a.claim"
    dead(place)
    ended, inode, lives = [], [], module._lives

    def while_others_are_quicker(owner: Owner, claim: Path) -> bool:
        if owner.started == "long ago" and not ended:
            ended.extend(race(place, 1))
            assert ended[0].stdout.readline() == "1\n"
            inode.append(place.stat().st_ino)
            return False  # as it was seen before
        return lives(owner, claim)

    monkeypatch.setattr(module, "_lives", while_others_are_quicker)
    with claimed(place) as mine:
        assert not mine
    assert place.stat().st_ino == inode[0]
    assert owner_of(place).pid == ended[0].pid
    ended[0].communicate("")
    assert not list(tmp_path.iterdir())


def test_one_that_dies_while_it_takes_over_does_not_block_the_claim(tmp_path):
    place = tmp_path / "a.claim"
    dead(place)
    killed = """
import os, sys
from pathlib import Path
from mtl.workers import lease as claim
claim.Path.replace = lambda *_: os._exit(9)
with claim.claimed(Path(sys.argv[1])):
    pass
"""
    assert subprocess.run([sys.executable, "-c", killed, str(place)], check=False).returncode == 9
    assert list(tmp_path.glob(".*.right"))
    with claimed(place) as mine:
        assert mine
    assert not list(tmp_path.glob("*.right"))


def test_a_damaged_claim_is_nobodys(tmp_path):
    place = tmp_path / "a.claim"
    place.write_text("")
    with claimed(place) as mine:
        assert mine


def test_a_process_whose_claim_was_taken_over_ends_at_once(tmp_path):
    place = tmp_path / "a.claim"
    lines = f"""
import time
from pathlib import Path
from mtl.workers import lease as claim
claim.BEAT = 0.05
with claim.claimed(Path({str(place)!r})):
    elsewhere = Path({str(tmp_path / "other")!r})
    elsewhere.write_text('{{"host": "another-machine", "pid": 1, "started": "0"}}')
    elsewhere.replace({str(place)!r})
    time.sleep(20)
"""
    ended = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=False)
    assert ended.returncode == module.LOST
    assert "was taken over by another process" in ended.stderr
    assert json.loads(place.read_text())["host"] == "another-machine"


def test_the_holder_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BEAT", 0.05)
    place = tmp_path / "a.claim"
    with claimed(place):
        os.utime(place, (0, 0))
        time.sleep(0.5)
        assert time.time() - place.stat().st_mtime < 5
