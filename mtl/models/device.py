"""Where a model runs and in which precision."""

from __future__ import annotations

from typing import Literal, TypeVar

import torch
from torch import nn

from mtl.errors import InputError
from mtl.models.joint import JointModel
from mtl.models.tapped import TappedModel

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

    The weights of the transformer are rounded, and those of decoders that allow it (`Decoder.narrow`). Word
    vectors and gates stay in float32.
    """
    model.to(device_of(accelerator))
    if precision == "bf16-true":
        encoder = model.encoder if isinstance(model, JointModel) else model
        nn.Module.to(encoder.transformer, torch.bfloat16)
        if isinstance(model, JointModel):
            for name in model.tasks:
                if (decoder := model.decoder(name)).narrow:
                    decoder.to(torch.bfloat16)
    return model
