"""Open what a command is given: a run, a saved model, an encoder, or one of the latter two on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mtl.errors import InputError
from mtl.heads.arguments import refuse_revision
from mtl.models.annotator import Annotator
from mtl.models.device import Accelerator, Precision, prepare
from mtl.models.encoder import Encoder
from mtl.models.exported import load_exported
from mtl.models.found import find_model, is_exported, is_hub_name, is_model_folder
from mtl.models.hub import holds_model
from mtl.models.joint import JointModel
from mtl.models.tapped import SharedEncoder
from mtl.runs.folder.run import Run


def annotator_at(folder: Path, accelerator: Accelerator, precision: Precision) -> Annotator:
    """A joint model on its device, or an exported one.

    Raises `InputError` for a folder that holds neither, and for settings that an exported model lacks.
    """
    if not is_exported(folder):
        return prepare(JointModel.from_pretrained(folder), accelerator, precision)
    if accelerator == "gpu" or precision != "32-true":
        raise InputError(
            f"{folder} is exported to ONNX, which computes on the CPU and with its own weights: leave out "
            "--accelerator and --precision"
        )
    return load_exported(folder)


class Opened(NamedTuple):
    """What a command works on, in evaluation mode."""

    encoder: SharedEncoder
    """The encoder; of a run that translates the whole encoder-decoder model."""
    model: JointModel | None
    """The joint model around it; `None`: an encoder alone."""
    run: Run | None
    """The run that it is from; `None`: from none."""


def open_target(target: str, revision: str | None = None) -> Opened:
    """Open a run's folder, a model's or an encoder's, or a model or an encoder on the hub.

    Raises `InputError` for what is none of these, and for a revision of a folder.
    """
    folder = Path(target)
    refuse_revision(folder, revision)
    is_joint = (folder / "config.yaml").exists() or is_model_folder(folder)
    if is_joint or (is_hub_name(target) and holds_model(target, revision)):
        found = find_model(target, revision)
        if found.run is not None:
            found.run.status()  # a damaged one is known before the weights are read
        model = JointModel.from_pretrained(found.model)
        return Opened(model.encoder, model, found.run)
    if (folder / "encoder.json").is_file():
        return Opened(Encoder.load(folder).eval(), None, None)
    return Opened(Encoder.from_pretrained(target, revision=revision).eval(), None, None)
