"""Open what a command is given: a run, or a saved model or an encoder, here or on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mtl.errors import InputError
from mtl.heads.arguments import refuse_revision
from mtl.models.annotator import Annotator
from mtl.models.checked import damaged
from mtl.models.device import Accelerator, Precision, prepare
from mtl.models.encoder import Encoder
from mtl.models.exported import load_exported
from mtl.models.found import find_model, is_exported, is_hub_name, is_model_folder
from mtl.models.hub import holds_model
from mtl.models.joint import JointModel
from mtl.models.tapped import SharedEncoder
from mtl.runs.folder.run import Run


def annotator_at(folder: Path, accelerator: Accelerator, precision: Precision) -> Annotator:
    """The joint or exported model in a folder, on its device.

    Raises `InputError` for a folder that holds neither, and for settings that an exported model lacks.
    """
    if not is_exported(folder):
        return prepare(JointModel.from_pretrained(folder), accelerator, precision)
    if accelerator == "gpu" or precision != "32-true":
        raise InputError(
            f"{folder} holds a model exported to ONNX, which computes on the CPU in its own precision: leave "
            "out --accelerator and --precision"
        )
    return load_exported(folder)


class Opened(NamedTuple):
    """What a command works on, in evaluation mode."""

    encoder: SharedEncoder
    """The encoder, or the whole encoder-decoder model of a run that translates."""
    model: JointModel | None
    """The joint model around it; `None`: an encoder alone."""
    run: Run | None
    """The run that the model is from; `None`: from none."""


def open_target(target: str, revision: str | None = None) -> Opened:
    """Open a run, or a saved model or an encoder, here or on the hub.

    Raises `InputError` for anything else, and for a revision of a folder.
    """
    folder = Path(target)
    refuse_revision(folder, revision)
    is_joint = (folder / "config.yaml").exists() or is_model_folder(folder)
    if is_joint or (is_hub_name(target) and holds_model(target, revision)):
        found = find_model(target, revision)
        if found.run is not None:
            found.run.status()  # raises for a damaged run, before the weights are read
        model = JointModel.from_pretrained(found.model)
        return Opened(model.encoder, model, found.run)
    if (folder / Encoder.settings_file).is_file():
        with damaged(folder):
            return Opened(Encoder.load(folder).eval(), None, None)
    return Opened(Encoder.from_pretrained(target, revision=revision).eval(), None, None)
