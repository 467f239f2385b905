"""Records on disk: what was written comes back, and a damaged folder is never read as a complete one."""

from __future__ import annotations

import errno
import locale
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mtl.errors import RunError
from mtl.files import in_use
from mtl.training.store import Records, RecordWriter, packed_record
from mtl.workers.cache import Damaged

VALUES = [("word", number, b"\0" * number) for number in range(40)]


@pytest.fixture
def folder(tmp_path) -> Path:
    with RecordWriter(tmp_path) as writer:
        writer.add(map(packed_record, VALUES[:25]))
        assert list(writer.written()) == VALUES[:25]
        writer.add(map(packed_record, VALUES[25:]))
        assert list(writer.written()) == VALUES
        writer.finish({"labels": ["a", "ä"]}, {"lengths": np.arange(40)})
    return tmp_path


def test_what_was_written_comes_back(folder):
    records: Records[tuple[str, int, bytes]] = Records(folder)
    assert list(records) == VALUES
    assert len(records) == 40
    assert records[17] == VALUES[17]
    assert records[38:99] == VALUES[38:]
    with pytest.raises(IndexError):
        records[40]
    assert records.facts == {"labels": ["a", "ä"]}
    assert records.array("lengths").tolist() == list(range(40))


@pytest.mark.skipif(bool(sys.flags.utf8_mode), reason="no locale decides: Python is in its UTF-8 mode")
def test_facts_are_read_alike_in_this_process_in_another_locale(folder):
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    try:
        with Path(os.devnull).open() as plain:
            assert "utf" not in plain.encoding.lower()
        assert Records(folder).facts["labels"] == ["a", "ä"]
    finally:
        locale.setlocale(locale.LC_CTYPE, before)


@pytest.mark.slow
def test_facts_are_read_alike_in_every_locale(folder):
    code = f"from mtl.training.store import *; print(ascii(Records(Path({str(folder)!r})).facts['labels']))"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    read = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | plain, capture_output=True, text=True, check=False
    )
    assert read.stdout == "['a', '\\xe4']\n", read.stderr


def test_a_folder_is_in_use_while_it_is_open(folder):
    assert not in_use(folder)
    records: Records[object] = Records(folder)
    assert in_use(folder)
    del records
    assert not in_use(folder)


def test_no_record_is_a_folder_too(tmp_path):
    with RecordWriter(tmp_path) as writer:
        writer.finish({}, {})
    assert list(Records(tmp_path)) == []


def test_a_folder_that_was_not_finished_is_damaged(tmp_path):
    with RecordWriter(tmp_path) as writer:
        writer.add(map(packed_record, VALUES))
    with pytest.raises(Damaged):
        Records(tmp_path)


@pytest.mark.parametrize("name", ["records", "ends.npy", "sums.npy", "lengths.npy", "facts.json"])
def test_a_file_that_was_cut_or_removed_is_noticed(folder, name):
    content = (folder / name).read_bytes()
    for length in (0, 1, len(content) // 2, len(content) - 2):
        (folder / name).write_bytes(content[:length])
        with pytest.raises(Damaged):
            Records(folder)
    (folder / name).unlink()
    with pytest.raises(Damaged):
        Records(folder)


def with_a_changed_byte(folder: Path) -> Records[tuple[str, int, bytes]]:
    content = bytearray((folder / "records").read_bytes())
    at = random.Random(1).randrange(len(content))
    content[at] ^= 1
    (folder / "records").write_bytes(content)
    return Records(folder)


def test_a_changed_byte_in_a_folder_that_can_only_be_read_is_told_how_to_be_rid_of(folder, monkeypatch):
    def refused(path: Path, missing_ok: bool) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(RunError, match=r"was damaged: delete the folder, or set MTL_CACHE to another place"):
        list(with_a_changed_byte(folder))


def test_a_changed_byte_is_noticed_when_its_record_is_read_and_all_are_made_anew(folder):
    records = with_a_changed_byte(folder)
    with pytest.raises(
        RunError, match=r"record \d+ was damaged: start again, and all records are made again"
    ):
        list(records)
    with pytest.raises(Damaged):
        Records(folder)


def test_a_file_that_is_cut_while_it_is_open_is_noticed(folder):
    records: Records[tuple[str, int, bytes]] = Records(folder)
    with (folder / "records").open("r+b") as file:
        file.truncate(100)
    assert records[0] == VALUES[0]
    with pytest.raises(RunError, match="record 39 was damaged"):
        records[39]


def test_records_of_another_user_are_not_taken_for_damaged(folder, monkeypatch):
    def refused(path: Path, flags: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError):
        Records(folder)
