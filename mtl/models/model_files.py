"""Write the parts of a joint model to files in a folder, and read them."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtl.config.presets import tasks_saved
from mtl.errors import InputError
from mtl.files import checksum, write_json
from mtl.heads.gates import Gates, gates_from
from mtl.models.card import Origin, origin_of
from mtl.models.checked import damaged
from mtl.models.encoder import Encoder
from mtl.models.finite import not_finite
from mtl.models.found import MODEL_FILE
from mtl.models.pretrained import AttentionKind
from mtl.models.routes import Owners, owners_as_rows, owners_from_rows
from mtl.models.seq2seq import Seq2Seq
from mtl.models.tapped import SharedEncoder
from mtl.tasks.in_words import counted
from mtl.tasks.task import Labels, Task

DECODERS = "decoders.safetensors"
LABELS = "labels.json"
_WRITTEN = (
    "config.json", "*.safetensors", "*.safetensors.index.json", LABELS, Encoder.settings_file,
    Seq2Seq.settings_file, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
)  # fmt: skip
"""Patterns of the files whose checksums are in model.json."""


class Parts(NamedTuple):
    """What a joint model is made of."""

    encoder: SharedEncoder
    tasks: Mapping[str, Task]
    labels: Mapping[str, Labels]
    gates: Gates | None
    owners: Owners | None


def write_model(
    folder: Path,
    parts: Parts,
    state: Mapping[str, Tensor],
    masks: Float[Tensor, "mask site head"] | None,
    origin: Origin | None,
) -> None:
    """Write a model with these parts and values to `folder`: JSON, safetensors and tokenizer files.

    `masks` are the factors of heads that are not part of the encoder's weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts.encoder.save(folder, masks)
    write_json(folder / LABELS, {name: labels.names for name, labels in parts.labels.items()})
    description: dict[str, Any] = {
        **described(parts.tasks),
        "gates": None if parts.gates is None else parts.gates.configuration(),
    }
    if parts.owners is not None:
        description["owners"] = owners_as_rows(parts.owners)
    weights = {
        key: value.detach().cpu().contiguous()
        for key, value in state.items()
        if not key.startswith("encoder.")
    }
    save_file(weights, folder / DECODERS)
    written = sorted({path for pattern in _WRITTEN for path in folder.glob(pattern)})
    description["files"] = {path.name: checksum(path) for path in written}
    if origin is not None:
        description["origin"] = dataclasses.asdict(origin)
    write_json(folder / MODEL_FILE, description)


def described(tasks: Mapping[str, Task]) -> dict[str, Any]:
    """The tasks as JSON, from which `tasks_saved` makes them."""
    description = {"tasks": {name: dataclasses.asdict(task) for name, task in tasks.items()}}
    instances = {
        name: {"kind": task.kind, "layer": task.layer, "half": task.half}
        for name, task in tasks.items()
        if task.standard
    }
    return description | ({"instances": instances} if instances else {})


def read_parts(
    folder: Path, attention: AttentionKind, dtype: torch.dtype | Literal["auto"]
) -> tuple[Parts, Origin, Mapping[str, str]]:
    """The parts of the model in a folder, its origin, and the checksums of its files when it was saved."""
    # Only what reads files is inside: a fault of this program does not damage a model.
    with damaged(folder):
        description = json.loads((folder / MODEL_FILE).read_bytes())
        names = json.loads((folder / LABELS).read_bytes())
        tasks = tasks_saved(description)
        labels = {name: Labels(names[name]) for name in tasks}
        gates = None if description["gates"] is None else gates_from(description["gates"])
        owners = owners_from_rows(description["owners"]) if "owners" in description else None
        kind = Seq2Seq if Seq2Seq.is_in(folder) else Encoder
        encoder = kind.load(folder, attention=attention, dtype=dtype)
        return Parts(encoder, tasks, labels, gates, owners), origin_of(folder), description.get("files", {})


def load_weights(model: nn.Module, folder: Path, files: Mapping[str, str]) -> None:
    """Load the weights that the encoder's own files do not hold.

    Raises `InputError` if they do not fit the model, if a file does not have its checksum in `files`, and for
    values that are not finite.
    """
    with damaged(folder):
        problems = model.load_state_dict(load_file(folder / DECODERS), strict=False)
    missing = [key for key in problems.missing_keys if not key.startswith("encoder.")]
    if wrong := missing + problems.unexpected_keys:
        raise InputError(
            f"{folder / DECODERS} does not fit {MODEL_FILE} (first at {wrong[0]}): restore the files, or "
            "train again"
        )
    require_files(folder, files, f"this model ({MODEL_FILE}): put it back, or train again")
    if broken := not_finite(model.named_parameters()):
        raise InputError(
            f"{folder}: {broken[0]} has values that are not finite ({counted(len(broken), 'parameter')} in "
            "all): its training diverged; train again with lower learning rates"
        )


def require_files(folder: Path, files: Mapping[str, str], advice: str) -> None:
    """Raise `InputError` if a file is missing, or does not have the checksum that it was saved with."""
    for name, saved in files.items():
        path = folder / name
        if not path.is_file() or checksum(path) != saved:
            what = "not what" if path.is_file() else "missing, and"
            raise InputError(f"{path} is {what} was saved with {advice}")


def weights_checksum(model: nn.Module) -> int:
    """A checksum of a model's weights, whatever device they are on."""
    total = 0
    for name, value in model.state_dict().items():
        numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        total = zlib.crc32(numbers, zlib.crc32(name.encode(), total))
    return total
