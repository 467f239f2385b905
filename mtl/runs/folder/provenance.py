"""The versions and the code with which a result was made."""

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
