"""Find the model that a command is given: in a run's folder, in another folder, or on the hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from mtl.errors import InputError
from mtl.runs.folder.run import Run

MODEL_FILE = "model.json"
"""The file that a joint model's folder is known by."""
EXPORTED = "exported.json"
"""The file that the folder of a model exported to ONNX is known by."""


class Found(NamedTuple):
    """Where a joint model is."""

    model: Path
    run: Run | None
    """The run that the model belongs to; `None`: a saved model, here or on the hub, which has no
    configuration, corpus or tables."""


def is_hub_name(target: str | Path) -> bool:
    """Whether a command takes this for a repository on the hub: OWNER/NAME, and there is no such folder."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(target)) is not None and not Path(target).exists()


def is_model_folder(folder: Path) -> bool:
    """Whether a folder holds a joint model without its run."""
    return (folder / MODEL_FILE).is_file() and not (folder / "config.yaml").exists()


def is_exported(folder: Path) -> bool:
    """Whether a folder holds a joint model that was exported to ONNX."""
    return (folder / EXPORTED).is_file()


def find_model(target: str, revision: str | None = None) -> Found:
    """Find the model of a run, in a folder, or on the hub, from where it is downloaded.

    Raises `InputError` for a folder or repository that is not there or holds no joint model, for a damaged
    run, and for a revision of a folder.
    """
    if revision is None and is_exported(Path(target)):
        return Found(Path(target), None)
    if revision is None and not is_hub_name(target) and not is_model_folder(Path(target)):
        run = Run.open(target)
        return Found(run.model, run)
    from mtl.models.hub import model_folder

    return Found(model_folder(target, revision), None)


def require_run(target: str | Path, needs: str) -> None:
    """Raise `InputError` for the name of a model on the hub, if a command `needs` what only runs have."""
    if is_hub_name(target):
        raise InputError(
            f"{target}: there is no such folder, and a model on the hub has no {needs}: use a run's folder"
        )
