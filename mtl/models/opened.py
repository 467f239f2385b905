"""Open what a command is given: a run, or a saved model or an encoder; its device and precision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import nn

from mtl.errors import InputError
from mtl.heads.arguments import refuse_revision
from mtl.models.annotator import Annotator, damaged
from mtl.models.encoder import Encoder
from mtl.models.found import find_model, is_hub_name, is_model_folder, loader_of
from mtl.models.hub import holds_model
from mtl.models.joint import JointModel
from mtl.models.tapped import SharedEncoder, TappedModel
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted


def annotator_at(folder: Path, accelerator: Accelerator, precision: Precision) -> Annotator:
    """The model in a folder, on its device: a joint model, or what a feature opens as one.

    Raises `InputError` for a folder that holds neither.
    """
    if loader := loader_of(folder):
        model: Annotator = resolve_name(loader)(folder, accelerator, precision)
        return model
    return prepare(JointModel.from_pretrained(folder), accelerator, precision)


class Opened(NamedTuple):
    """What a command works on, in evaluation mode."""

    encoder: SharedEncoder
    """The encoder, or the whole model that takes its place."""
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
    is_joint = (folder / "config.yaml").exists() or is_model_folder(folder) or loader_of(folder)
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


Accelerator = Literal["auto", "cpu", "gpu"]
Precision = Literal["32-true", "bf16-true"]
Model = TypeVar("Model", bound=JointModel | TappedModel)


def device_of(accelerator: Accelerator, key: str = "accelerator") -> torch.device:
    """The device of an accelerator; `auto` takes a GPU if there is one.

    Raises `InputError`, which begins with the setting's `key`, for `gpu` if torch sees none.
    """
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise InputError(f"{key}=gpu, but torch sees no GPU here: use auto or cpu")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """A device's name in tables and in a run's status; of a CPU, with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type.upper()}, {counted(torch.get_num_threads(), 'thread')}"


def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices in hardware (AMX or AVX512-BF16)."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def training_precision(on_gpu: bool) -> Literal["bf16-mixed", "32-true"]:
    """What `trainer.precision=auto` is here: bfloat16 where the device multiplies it in hardware."""
    fast = torch.cuda.is_bf16_supported() if on_gpu else has_fast_bfloat16()
    return "bf16-mixed" if fast else "32-true"


def prepare(model: Model, accelerator: Accelerator = "auto", precision: Precision = "32-true") -> Model:
    """Move a model that is not being trained to its device; `bf16-true` rounds its weights to bfloat16.

    Word vectors and gates stay in float32.
    """
    model.to(device_of(accelerator))
    if precision == "bf16-true":
        for part in narrow_parts(model):
            nn.Module.to(part, torch.bfloat16)
    return model


def narrow_parts(model: JointModel | TappedModel) -> Iterator[nn.Module]:
    """What may compute in bfloat16: the transformer, and decoders that allow it (`Decoder.narrow`)."""
    if not isinstance(model, JointModel):
        yield model.transformer
        return
    yield model.encoder.transformer
    yield from (decoder for name in model.tasks if (decoder := model.decoder(name)).narrow)
