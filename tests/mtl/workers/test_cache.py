"""Folders that are made once, made again if damaged, and removed when unused."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Thread

import pytest

from mtl.errors import InputError, RunError
from mtl.workers import cache
from mtl.workers.cache import Damaged, cache_folder, kept_once


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MTL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Makes folders with a file in them, and counts how often."""

    def __init__(self, size: int = 1) -> None:
        self.size, self.made, self.said = size, 0, []

    def get(self, name: str) -> str:
        return kept_once(name, self.read, self.make, self.said.append)

    def make(self, folder: Path) -> None:
        self.made += 1
        (folder / "file").write_text("x" * self.size)

    def make_in(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.make(folder)

    def read(self, folder: Path) -> str:
        text = (folder / "file").read_text() if (folder / "file").exists() else ""
        if len(text) != self.size:
            raise Damaged(folder)
        return text


def hashed(word: str, number: int = 0) -> str:
    """A name like those of stores."""
    return f"{word}-{number:032x}"


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_folder_is_made_once_and_again_when_it_is_damaged(root):
    maker = Maker(3)
    assert [maker.get("one"), maker.get("one")] == ["xxx"] * 2
    assert (maker.made, maker.said) == (1, [])
    (root / "one" / "file").write_text("x")
    assert maker.get("one") == "xxx"
    assert (maker.made, maker.said) == (2, [f"{root / 'one'} is damaged: making it again"])
    assert [path.name for path in root.iterdir()] == ["one"]


def test_nothing_is_left_of_a_folder_that_could_not_be_made(root):
    def fails(folder: Path) -> None:
        (folder / "file").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept_once("one", Maker().read, fails, print)
    assert not root.exists() or list(root.iterdir()) == []


def test_what_a_killed_process_began_is_not_read_and_goes(root):
    code = (
        "import os\n"
        "from mtl.workers.cache import kept_once\n"
        "def make(folder):\n"
        "    (folder / 'file').write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
        "kept_once('one', None, make, print)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert len(list(root.iterdir())) == 2  # half a folder, and its lease
    assert Maker().get("one") == "x"
    assert [path.name for path in root.iterdir()] == ["one"]


def test_whoever_comes_second_waits_for_the_first(monkeypatch):
    monkeypatch.setattr(cache, "_LOOK", 0.01)
    maker, barrier, results = Maker(), Barrier(4), []

    def come() -> None:
        barrier.wait()
        results.append(maker.get("one"))

    threads = [Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (results, maker.made) == (["x"] * 4, 1)


def test_what_another_process_made_in_the_meantime_is_read(root, monkeypatch):
    free = cache.lease

    @contextmanager
    def taken_late(path: Path) -> Iterator[bool]:
        Maker().make_in(root / "one")
        with free(path) as mine:
            yield mine

    monkeypatch.setattr(cache, "lease", taken_late)
    maker = Maker()
    assert (maker.get("one"), maker.made) == ("x", 0)


def test_what_was_used_longest_ago_goes_first_unless_it_is_in_use(root, monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 250)
    maker = Maker(100)
    for age, name in enumerate(("old", "held", "new"), start=1):
        maker.get(hashed(name))
        os.utime(root / hashed(name), (age, age))
        assert len(list(root.iterdir())) == min(age, 2)
    assert names(root) == [hashed("held"), hashed("new")]
    maker.get(hashed("held"))
    maker.get(hashed("last"))
    assert names(root) == [hashed("held"), hashed("last")]
    for name in ("held", "last"):
        os.utime(root / hashed(name), (1, 1) if name == "held" else (2, 2))
    descriptor = os.open(root / hashed("held"), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    maker.get(hashed("newest"))
    os.close(descriptor)
    assert names(root) == [hashed("held"), hashed("newest")]


def test_what_others_have_in_the_folder_stays(root, monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 250)
    for name in ("corpora", f"corpora-{'0' * 31}", ".hidden.new.host.1"):
        (root / name).mkdir(parents=True)
        (root / name / "large").write_text("x" * 300)
    maker = Maker(100)
    for number in range(4):
        maker.get(hashed("own", number))
        os.utime(root / hashed("own", number), (number, number))
    others = [".hidden.new.host.1", "corpora", f"corpora-{'0' * 31}"]
    assert names(root) == [*others, hashed("own", 2), hashed("own", 3)]


def test_a_folder_that_another_process_removes_meanwhile_is_no_error(root, monkeypatch):
    monkeypatch.setattr(cache, "MOST_BYTES", 150)
    maker = Maker(100)
    maker.get(hashed("old"))
    use_and_size = cache._use_and_size

    def removed_first(folder: Path) -> tuple[float, int]:
        if folder == root / hashed("old"):
            shutil.rmtree(folder, ignore_errors=True)
        return use_and_size(folder)

    monkeypatch.setattr(cache, "_use_and_size", removed_first)
    assert maker.get(hashed("new")) == "x" * 100
    assert names(root) == [hashed("new")]


def test_what_killed_processes_left_of_other_folders_goes(root):
    for name in ("killed", "living"):
        for kind in ("new", "old"):
            (root / f".{hashed(name)}.{kind}.elsewhere.12345678").mkdir(parents=True)
    with cache.lease(root / f".{hashed('living')}.lease") as mine:
        assert mine
        assert Maker().get(hashed("other")) == "x"
        left = {name.split(".")[1] for name in names(root) if name.startswith(".")}
        assert left == {hashed("living")}
    (root / f".{hashed('mine')}.old.elsewhere.12345678").mkdir()
    assert Maker().get(hashed("mine")) == "x"
    assert names(root) == [hashed("mine"), hashed("other")]


def test_a_folder_that_cannot_be_read_when_it_is_made_is_one_line(root):
    maker = Maker(2)
    with pytest.raises(RunError, match=r"was damaged or removed as soon as it was made: .* MTL_CACHE"):
        kept_once("one", Maker(1).read, maker.make, maker.said.append)
    assert maker.made == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_one_line(root):
    root.mkdir()
    root.chmod(0o500)
    with pytest.raises(InputError, match=r"Permission denied: set MTL_CACHE .* or corpus.store=memory"):
        Maker().get("one")


def test_another_users_folder_is_one_line_and_not_made_again(root):
    def refused(folder: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder / "file"))

    maker = Maker()
    maker.make_in(root / "one")
    with pytest.raises(InputError, match=r"one/file: Permission denied: set MTL_CACHE"):
        kept_once("one", refused, maker.make, maker.said.append)
    assert (maker.made, maker.said) == (1, [])


def test_a_file_in_the_place_of_the_cache_is_one_line(root):
    root.write_text("")
    with pytest.raises(InputError, match=r"cache: Not a directory: set MTL_CACHE .* or corpus.store=memory"):
        Maker().get("one")


def test_where_the_cache_lies(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("MTL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "mtl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "mtl"
    monkeypatch.delenv("HOME")

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(InputError, match=r"no home folder .*: set MTL_CACHE .* or corpus.store=memory"):
        cache_folder()
