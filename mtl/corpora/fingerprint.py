"""What identifies files: git's blob id, sha256, and one fingerprint of a whole corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def fingerprint(paths: Iterable[Path]) -> str:
    """One sha256 over the contents of files, in the order given (their names and places do not count)."""
    return hashlib.sha256("".join(sha256(path) for path in paths).encode()).hexdigest()


def sha256(path: Path) -> str:
    """The sha256 of a file's content, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_blob_id(path: Path) -> str:
    """The id under which git stores a file's content: sha1 over `blob LENGTH`, a zero byte, the content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
