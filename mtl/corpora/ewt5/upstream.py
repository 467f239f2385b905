"""The origin of EWT-5's files: repositories, pinned commits, and each file's git blob id."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path
from typing import NamedTuple

LICENCE = "CC BY-SA 4.0"

UPSTREAM = {
    "UD_English-EWT": {
        "repository": "UniversalDependencies/UD_English-EWT",
        "commit": "15d613d8447b3478787d4c278730a1e48a945efb",
    },
    "UNER_English-EWT": {
        "repository": "UniversalNER/UNER_English-EWT",
        "commit": "8ed072de2fd24022cc62458997fe96a8fe191ea4",
        # The release drops typed O and OTH spans; this earlier train file, built on here, still has them.
        "commit of en_ewt-ud-train.iob2": "0c7ce0debb13a7d304da656f16309397e8ff36ef",
    },
    "propbank-release": {
        "repository": "propbank/propbank-release",
        "commit": "4abade0b53ce4a181e1d98b3518101c1a44d395a",
    },
}


class UpstreamFile(NamedTuple):
    """An upstream file: its path (the repository's folder, then the path within it) and its git blob id."""

    path: str
    blob: str

    @property
    def repository(self) -> str:
        return UPSTREAM[self.path.partition("/")[0]]["repository"]

    @property
    def commit(self) -> str:
        folder, _, path = self.path.partition("/")
        return UPSTREAM[folder].get(f"commit of {path}", UPSTREAM[folder]["commit"])


def manifest() -> list[UpstreamFile]:
    """All files that the build reads, and their licences."""
    text = resources.files("mtl.corpora.ewt5").joinpath("ewt5_manifest.txt").read_text(encoding="utf-8")
    return [UpstreamFile(path, blob) for blob, _, path in (line.partition(" ") for line in text.splitlines())]


def git_blob_id(path: Path) -> str:
    """The id under which git stores a file's content: sha1 over `blob LENGTH`, a zero byte, the content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
