"""Open the encoder of a run, of a saved model, or by its name."""

from __future__ import annotations

from pathlib import Path

from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from mtl.models.tapped import SharedEncoder
from mtl.runs.folder.run import Run


def open_encoder(target: str) -> SharedEncoder:
    """The encoder, in evaluation mode; `target` is a run's folder, a model's, or an encoder's folder or name.

    For a run that translates it is the whole encoder-decoder model.
    """
    folder = Path(target)
    if (folder / "config.yaml").exists():
        folder = Run.open(folder).model
    if (folder / "model.json").is_file():
        return JointModel.from_pretrained(folder).encoder.eval()
    if (folder / "encoder.json").is_file():
        return Encoder.load(folder).eval()
    return Encoder.from_pretrained(str(folder) if folder.is_dir() else target).eval()
