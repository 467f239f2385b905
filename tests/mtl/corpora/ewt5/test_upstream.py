"""The ids under which git stores files."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from mtl.corpora.ewt5.upstream import git_blob_id


def test_blob_ids_known_to_git(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"")
    assert git_blob_id(path) == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    path.write_bytes(b"hello\n")
    assert git_blob_id(path) == "ce013625030ba8dba906f756967f9e9ca394464a"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_blob_ids_against_git(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(range(256)) * 40)
    command = ["git", "hash-object", "--no-filters", str(path)]
    assert (
        git_blob_id(path)
        == subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    )
