"""Versions and code that a result was made with."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

_PACKAGES = ("torch", "transformers", "pytorch-lightning", "supar", "numpy", "mtl-heads")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    return {"python": platform.python_version()} | {
        package: importlib.metadata.version(package) for package in _PACKAGES
    }


def git_revision() -> str | None:
    """The commit of the code that runs, `-dirty` if it was changed since; `None` outside of a checkout."""
    here = Path(__file__).parent
    try:
        result = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
