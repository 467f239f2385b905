"""The folder that a command makes."""

from __future__ import annotations

from pathlib import Path

from mtl.errors import InputError
from mtl.files import check_folder_place


def check_new_folder(out: Path) -> None:
    """Raise `InputError` for an `--out` that is there already, and is no empty folder.

    Raises `OSError` where no folder can be made.
    """
    if out.exists() and not (out.is_dir() and next(out.iterdir(), None) is None):
        raise InputError(f"{out} exists, and is no empty folder: use another --out")
    check_folder_place(out.parent)
