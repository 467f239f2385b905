"""What a run was given, identified by content and not by place, and the versions it was made with."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtl.files import fingerprint

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


_PACKAGES = ("torch", "transformers", "pytorch-lightning", "supar", "numpy", "mtl-heads")


def version() -> str:
    """The version of this package. A development version is one version, whatever its commit."""
    return importlib.metadata.version("mtl-heads")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    return {"python": platform.python_version()} | {
        package: importlib.metadata.version(package) for package in _PACKAGES
    }


def git_revision() -> str | None:
    """The commit of the running code, with `-dirty` if files were changed; `None` outside of a checkout."""
    here = Path(__file__).parent
    try:
        result = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
