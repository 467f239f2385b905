"""What a run was given in files and folders, identified by content if it is known, and not by place."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtl.files import fingerprint

DRAWS = "draws.json"
"""The file beside drawn masks that records, by the name of each mask file, how it was drawn."""

ENCODER_FILES = (".json", ".safetensors", ".bin", ".txt", ".model")
"""Endings of the files from which a transformer and its tokenizer are loaded."""


@dataclass(frozen=True)
class Content:
    """Files, or another run, from which a run was made."""

    place: str
    """Where it was, or a description of it."""
    digest: str | None = None
    """A hash of what it held; `None` if it was not recorded, so that only the place is known."""

    def __repr__(self) -> str:
        return repr(self.digest or self.place)

    def differs(self, other: Content) -> bool:
        """Whether the contents differ or, if one of them is unknown, the places."""
        if self.digest and other.digest:
            return self.digest != other.digest
        return self.place != other.place

    def another_encoder(self, other: Content) -> bool:
        """Whether two encoders differ; of one that was not recorded, the folder counts as it is now."""
        return self.differs(other) and self._with_digest().differs(other._with_digest())

    def _with_digest(self) -> Content:
        folder = Path(self.place)
        if self.digest or not folder.is_dir():
            return self
        return Content(self.place, fingerprint(files_of_encoder(folder)))


def digest_of(value: object) -> str:
    """The sha256 of plain values."""
    return hashlib.sha256(repr(value).encode()).hexdigest()


def place_now(path: str | Path, config: Mapping[str, Any], folder: Path | None) -> Path:
    """Where a file or folder that a run's configuration names is now.

    If it is gone, it may have been moved together with the run, whose folder is now `folder`: then it is at
    the same place relative to the run.
    """
    recorded = Path(path)
    if recorded.exists() or folder is None or not config.get("runs") or not config.get("name"):
        return recorded
    run = Path(config["runs"]) / str(config["name"])
    if run.is_absolute() != recorded.is_absolute():
        return recorded
    moved = Path(os.path.normpath(folder / os.path.relpath(recorded, run)))
    return moved if moved.exists() else recorded


def files_of_encoder(folder: Path) -> list[Path]:
    """The configuration, weights and tokenizer of an encoder in a folder."""
    return sorted(path for path in folder.iterdir() if path.suffix in ENCODER_FILES)


def draw_of(path: Path) -> dict[str, Any] | None:
    """How the masks in a file were drawn, by the record beside it; `None` if there is no such record."""
    try:
        record = json.loads((path.parent / DRAWS).read_text(encoding="utf-8")).get(path.name)
    except (OSError, ValueError, AttributeError):
        return None
    return record if isinstance(record, dict) else None


def drawn_content(record: Mapping[str, Any]) -> Content:
    """The content of drawn masks, which is equal for all draws of one kind."""
    kind = {key: value for key, value in record.items() if key != "draw"}
    words = f"{'+'.join(record.get('tasks', ()))}-overlap{record.get('overlap')}"
    return Content(words, digest_of(sorted(kind.items())))
