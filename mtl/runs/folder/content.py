"""What a run was given in files and folders: the same content wherever it lies, as far as that is known."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRAWS = "draws.json"
"""The file beside drawn masks that records, by the name of their file, how they were drawn."""

ENCODER_FILES = (".json", ".safetensors", ".bin", ".txt", ".model")
"""Endings of the files that a transformer and its tokenizer are loaded from."""


@dataclass(frozen=True)
class Content:
    """Files, or another run, that a run was made of."""

    place: str
    """Where it lay, or in words what it is."""
    digest: str | None = None
    """What it held; `None` where nobody recorded it, so that only its place is known."""

    def __repr__(self) -> str:
        return repr(self.digest or self.place)

    def differs(self, other: Content) -> bool:
        """Whether the contents differ; where one is unknown, whether the places do."""
        if self.digest and other.digest:
            return self.digest != other.digest
        return self.place != other.place


def digest_of(value: object) -> str:
    """A sha256 of plain values."""
    return hashlib.sha256(repr(value).encode()).hexdigest()


def place_now(path: str | Path, config: Mapping[str, Any], folder: Path | None) -> Path:
    """Where a file or folder that a run's configuration names is now.

    If it is not there any more, it may have been moved together with the run, whose folder is `folder` now:
    then it is at the same place relative to the run.
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
    """How the masks in a file were drawn, by the record beside it; `None` if they were not, or it is gone."""
    try:
        record = json.loads((path.parent / DRAWS).read_text(encoding="utf-8")).get(path.name)
    except (OSError, ValueError, AttributeError):
        return None
    return record if isinstance(record, dict) else None


def drawn_content(record: Mapping[str, Any]) -> Content:
    """Drawn masks, equal for all draws of one kind."""
    kind = {key: value for key, value in record.items() if key != "draw"}
    words = f"{'+'.join(record.get('tasks', ()))}-overlap{record.get('overlap')}"
    return Content(words, digest_of(sorted(kind.items())))


def claims_fingerprint(path: str | Path) -> str | None:
    """A sha256 of the claimed heads in a file of claims; `None` if it cannot be read."""
    try:
        claims = json.loads(Path(path).read_text(encoding="utf-8"))
        return digest_of([claims["layers"], claims["heads"], sorted(claims["claims"].items())])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
