"""Files that appear whole or not at all, even if writing fails in between, and their hashes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import StatementError

from mtl import files
from mtl.files import (
    check_file_place,
    check_folder_place,
    fingerprint,
    full_disk,
    in_use,
    new_folder,
    recover_folder,
    remove_temporary_files,
    remove_unused,
    sha256,
    whole_file,
    whole_folder,
    write_text,
)


def content(folder: Path) -> dict[str, str]:
    """All files below a folder, by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write(folder: Path, text: str) -> None:
    with whole_folder(folder) as temporary:
        (temporary / "model").write_text(text)


def fail_within(block: AbstractContextManager[Path], name: str | None = None) -> None:
    """Write something new, and fail."""
    with block as temporary:
        (temporary if name is None else temporary / name).write_text("new, but not all")
        raise RuntimeError


def fail_at(monkeypatch, number: int, error: BaseException, again: bool = False) -> None:
    """Make the renaming of that number (from 1) fail; with `again` all later ones, too."""
    real, calls = Path.rename, []

    def rename(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == number or (again and len(calls) > number):
            raise error
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder" / "file"
    write_text(path, "old")
    with pytest.raises(RuntimeError):
        fail_within(whole_file(path))
    assert content(tmp_path) == {"folder/file": "old"}
    write_text(path, "new")
    assert content(tmp_path) == {"folder/file": "new"}


def test_an_error_names_the_file_and_not_its_temporary_one(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as error, whole_file(tmp_path / "folder") as path:
        path.write_text("new")
    assert error.value.filename == str(tmp_path / "folder")


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    write(tmp_path / "run", "old")
    with pytest.raises(RuntimeError):
        fail_within(whole_folder(tmp_path / "run"), "model")
    assert content(tmp_path) == {"run/model": "old"}
    write(tmp_path / "run", "new")
    assert content(tmp_path) == {"run/model": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("stale file handle")])
@pytest.mark.parametrize("number", [1, 2])
def test_an_error_while_a_folder_is_exchanged_leaves_the_old_one(tmp_path, monkeypatch, number, error):
    write(tmp_path / "run", "old")
    with monkeypatch.context() as patch:
        fail_at(patch, number, error)
        with pytest.raises(type(error)):
            write(tmp_path / "run", "new")
    assert content(tmp_path) == {"run/model": "old"}


def test_where_nothing_can_be_renamed_any_more_both_copies_stay_and_are_recovered(tmp_path, monkeypatch):
    write(tmp_path / "run", "old")
    with monkeypatch.context() as patch:
        fail_at(patch, 2, OSError("gone"), again=True)
        with pytest.raises(OSError, match="gone"):
            write(tmp_path / "run", "new")
    assert not (tmp_path / "run").exists()
    assert sorted(content(tmp_path).values()) == ["new", "old"]
    recover_folder(tmp_path / "run")
    assert content(tmp_path) == {"run/model": "old"}


def test_a_process_killed_while_a_folder_is_exchanged_loses_nothing(tmp_path):
    write(tmp_path / "run", "old")
    with whole_folder(tmp_path / "run") as temporary:
        (temporary / "model").write_text("new")
        name = temporary.name
    # As the kill leaves it: the old folder is renamed, the new one not yet.
    (tmp_path / "run").rename(tmp_path / name)
    write(tmp_path / name.replace(".new.", ".old."), "old")
    recover_folder(tmp_path / "run")
    assert content(tmp_path) == {"run/model": "old"}


def test_temporary_names_of_two_machines_with_equal_process_numbers_differ(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: 1)
    with whole_file(tmp_path / "file") as first, whole_file(tmp_path / "file") as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert content(tmp_path) == {"file": "first"}
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    with whole_folder(tmp_path / "folder") as temporary:
        assert "elsewhere" in temporary.name


def test_leftovers_of_killed_processes_are_removed_and_nothing_else(tmp_path):
    with whole_file(tmp_path / "last.ckpt") as temporary:
        temporary.write_text("half")
        shutil.copy(temporary, tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / temporary.name)
    (tmp_path / ".hidden").write_text("somebody's")
    remove_temporary_files(tmp_path)
    assert content(tmp_path) == {".hidden": "somebody's", "last.ckpt": "half"}


def test_the_fingerprint_sees_content_and_its_division_but_no_names(tmp_path):
    a, b, c = (tmp_path / name for name in "abc")
    a.write_bytes(b"xy")
    b.write_bytes(b"z")
    c.write_bytes(b"xy")
    assert sha256(a) == hashlib.sha256(b"xy").hexdigest()
    assert fingerprint([a, b]) == fingerprint([c, b])
    assert fingerprint([a, b]) != fingerprint([b, a])
    before = fingerprint([a, b])
    a.write_bytes(b"x")
    b.write_bytes(b"yz")
    assert fingerprint([a, b]) != before


FULL = OSError(errno.ENOSPC, "No space left on device")  # as of `file.write`: without a file's name
IN_WORDS = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
UNCLEAR = RuntimeError("Invalid thrift: transport error")


@pytest.mark.parametrize("block", [whole_file, whole_folder, new_folder])
@pytest.mark.parametrize(("error", "free"), [(FULL, 1 << 30), (IN_WORDS, 1 << 30), (UNCLEAR, 4096)])
def test_an_error_of_a_full_disk_names_what_was_written(tmp_path, monkeypatch, block, error, free):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    with pytest.raises(OSError, match="No space left") as raised, block(tmp_path / "run"):
        raise error
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "free"), [(UNCLEAR, 1 << 30), (PermissionError(errno.EACCES, "Permission denied"), 0)]
)
def test_another_error_stays_what_it_is(tmp_path, monkeypatch, error, free):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    with pytest.raises(type(error)) as raised, whole_file(tmp_path / "run"):
        raise error
    assert raised.value is error


def test_a_place_is_judged_before_anything_is_written_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    check_folder_place(tmp_path / "new" / "deep")
    check_file_place(tmp_path / "new" / "scores.json")
    check_file_place(tmp_path / "file")
    for wrong in (tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(NotADirectoryError) as caught:
            check_folder_place(wrong)
        assert caught.value.filename == str(tmp_path / "file")
    with pytest.raises(IsADirectoryError):
        check_file_place(tmp_path)
    with pytest.raises(OSError, match="/proc"):
        check_folder_place(Path("/proc/mine"))
    assert content(tmp_path) == {"file": "mine"}


def test_a_full_disk_is_recognised_however_it_is_reported(tmp_path, monkeypatch):
    assert full_disk(OSError(errno.ENOSPC, "x"), tmp_path) == errno.ENOSPC
    assert full_disk(OSError(errno.EDQUOT, "x"), tmp_path) == errno.EDQUOT
    assert (
        full_disk(RuntimeError("I/O error: No space left on device (os error 28)"), tmp_path) == errno.ENOSPC
    )
    assert full_disk(RuntimeError("Permission denied (os error 13)"), tmp_path) is None
    assert (
        full_disk(ValueError("database or disk is full"), tmp_path) is None
    )  # its number says so, not its text
    caused = ValueError("x")
    caused.__cause__ = OSError(errno.ENOSPC, "x")
    assert full_disk(caused, tmp_path) == errno.ENOSPC
    assert full_disk(OSError(errno.EACCES, "x"), tmp_path) is None
    assert full_disk(ValueError("x"), tmp_path) is None
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1 << 19))
    assert full_disk(ValueError("x"), tmp_path) == errno.ENOSPC
    assert full_disk(OSError(errno.EACCES, "x"), tmp_path) is None


@pytest.mark.parametrize("name", ["a" * 255, "ü" * 127, "~", "-n", "a [1]*?", "#%", "'\"$"])
def test_every_name_that_the_file_system_takes_can_be_written(tmp_path, name):
    check_file_place(tmp_path / name)
    write_text(tmp_path / name, "x")
    assert (tmp_path / name).read_text() == "x"
    folder = tmp_path / "in" / name
    for text in ("one", "two"):
        write(folder, text)
    assert content(tmp_path / "in") == {f"{name}/model": "two"}


def test_a_link_keeps_pointing_to_the_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("one", "two"):
        write_text(tmp_path / "link", text)
        assert (tmp_path / "file").read_text() == text
    assert (tmp_path / "link").is_symlink()


def sources_with(pattern: str) -> list[str]:
    """The names of the modules in whose source a pattern is found."""
    root = Path(__file__).parents[2]
    sources = [path for room in ("mtl", "probes", "tasks") for path in (root / room).rglob("*.py")]
    assert len(sources) > 100
    return [path.name for path in sources if re.search(pattern, path.read_text(encoding="utf-8"))]


def test_tables_are_opened_in_one_place():
    """Polars takes brackets in a path for a pattern, wherever it opens a file itself."""
    assert sources_with(r"\b(?:pl|polars)\.(?:read|scan)_\w+") == ["table_files.py"]


def test_no_text_is_read_as_the_locale_says():
    """A program that imports mtl may run in any locale; files are in UTF-8 all the same."""
    assert sources_with(r"\bread_text\((?!encoding=)") == []


def test_a_full_database_has_its_number(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("CREATE TABLE a (b)")
        database.execute("PRAGMA max_page_count = 3")
        with pytest.raises(sqlite3.OperationalError) as raised:
            database.execute("INSERT INTO a VALUES (?)", ("x" * 100_000,))
    assert full_disk(raised.value, tmp_path) == errno.ENOSPC
    assert full_disk(StatementError("x", None, None, raised.value), tmp_path) == errno.ENOSPC


AT_THE_LIMIT = """
import resource, signal, sys
import numpy, polars, safetensors.numpy
from mtl.files import _system_number

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for write in (
    lambda path: safetensors.numpy.save_file({"a": numpy.zeros(10_000)}, path),
    lambda path: polars.DataFrame({"a": numpy.random.random(100_000)}).write_parquet(path),
):
    try:
        write(sys.argv[1])
    except Exception as error:
        print(_system_number(error))
"""


def test_errors_of_libraries_in_rust_have_the_systems_number(tmp_path):
    """A file that may not grow stands for a full disk: the libraries report both in the same way."""
    ended = subprocess.run(
        [sys.executable, "-c", AT_THE_LIMIT, tmp_path / "file"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == [str(errno.EFBIG)] * 2


def test_of_two_that_make_one_new_folder_the_first_wins_and_the_second_is_told(tmp_path):
    def make(name: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        with new_folder(tmp_path / "out") as folder:
            (folder / "model").write_text(name)
            meanwhile()

    with pytest.raises(FileExistsError, match="another process") as raised:
        make("second", lambda: make("first"))
    assert raised.value.filename == str(tmp_path / "out")
    assert content(tmp_path) == {"out/model": "first"}


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_the_next_writer_removes_what_a_killed_process_left_and_not_what_a_living_one_writes(whole, tmp_path):
    path = tmp_path / "x"
    with whole(path) as alive:
        left = alive.with_name(alive.name + "0")
        if whole is whole_file:
            alive.write_text("alive")
            left.write_text("half")
        else:
            left.mkdir()
            (left / "model").write_text("half")
        with whole(path) as other:
            assert sorted(tmp_path.iterdir()) == sorted([alive, other])
            (other if whole is whole_file else other / "model").write_text("other")
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_what_is_removed_is_locked_meanwhile_and_what_is_in_use_stays(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("x")
    with (folder / "file").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not remove_unused(folder / "file")
    seen, removed = [], files.remove

    def looked_at(path: Path) -> None:
        seen.append(in_use(path))
        removed(path)

    monkeypatch.setattr(files, "remove", looked_at)
    assert remove_unused(folder)
    assert (seen, folder.exists()) == ([True], False)
    assert remove_unused(folder)
