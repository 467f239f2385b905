"""The files of a joint model: what it is made of, written to a folder and read from one."""

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
from mtl.models.hub import MODEL_FILE
from mtl.models.pretrained import AttentionKind
from mtl.models.routes import Owners, owners_as_rows, owners_from_rows
from mtl.models.seq2seq import Seq2Seq
from mtl.models.tapped import SharedEncoder
from mtl.tasks.in_words import counted
from mtl.tasks.task import Labels, Task

_WEIGHTS = "decoders.safetensors"
_WRITTEN = (
    "config.json", "*.safetensors", "*.safetensors.index.json", "labels.json", Encoder.settings_file,
    Seq2Seq.settings_file, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
)  # fmt: skip
"""Patterns of the files of a model beside model.json, which knows what they were when it was saved."""


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

    `masks` are the factors of heads that the encoder's weights do not have in them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts.encoder.save(folder, masks)
    write_json(folder / "labels.json", {name: labels.names for name, labels in parts.labels.items()})
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
    save_file(weights, folder / _WEIGHTS)
    written = sorted({path for pattern in _WRITTEN for path in folder.glob(pattern)})
    description["files"] = {path.name: checksum(path) for path in written}
    if origin is not None:
        description["origin"] = dataclasses.asdict(origin)
    write_json(folder / MODEL_FILE, description)


def described(tasks: Mapping[str, Task]) -> dict[str, Any]:
    """What `tasks_saved` makes the tasks of."""
    described: dict[str, Any] = {"tasks": {name: dataclasses.asdict(task) for name, task in tasks.items()}}
    named = {name: task for name, task in tasks.items() if task.standard}
    if named:
        described["instances"] = {
            name: {"kind": task.kind, "layer": task.layer, "half": task.half} for name, task in named.items()
        }
    return described


def read_parts(
    folder: Path, attention: AttentionKind, dtype: torch.dtype | Literal["auto"]
) -> tuple[Parts, Origin, Mapping[str, str]]:
    """The parts of the model in a folder, its origin, and the checksums of its files when it was saved."""
    # Only what reads files: a fault of this program is not a fault of the model.
    with damaged(folder):
        description = json.loads((folder / MODEL_FILE).read_bytes())
        names = json.loads((folder / "labels.json").read_bytes())
        tasks = tasks_saved(description)
        labels = {name: Labels(names[name]) for name in tasks}
        gates = None if description["gates"] is None else gates_from(description["gates"])
        owners = owners_from_rows(description["owners"]) if "owners" in description else None
        kind = Seq2Seq if Seq2Seq.is_in(folder) else Encoder
        encoder = kind.load(folder, attention=attention, dtype=dtype)
        return Parts(encoder, tasks, labels, gates, owners), origin_of(folder), description.get("files", {})


def load_weights(model: nn.Module, folder: Path, files: Mapping[str, str]) -> None:
    """Load what the encoder's own files do not hold.

    Raises `InputError` if it does not fit the model, if the checksums of `files` are others, and for values
    that are not finite.
    """
    with damaged(folder):
        problems = model.load_state_dict(load_file(folder / _WEIGHTS), strict=False)
    missing = [key for key in problems.missing_keys if not key.startswith("encoder.")]
    if wrong := missing + problems.unexpected_keys:
        raise InputError(
            f"{folder / _WEIGHTS} does not fit model.json (first at {wrong[0]}): was it changed?"
        )
    require_files(folder, files, f"this model ({MODEL_FILE}): put it back, or train again")
    if broken := not_finite(model.named_parameters()):
        raise InputError(
            f"{folder}: {broken[0]} has values that are not finite, as have "
            f"{counted(len(broken) - 1, 'other')}: "
            "its training diverged; train again with lower learning rates"
        )


def require_files(folder: Path, files: Mapping[str, str], advice: str) -> None:
    """Raise `InputError` if a file is gone, or has not the checksum that it was saved with."""
    for name, saved in files.items():
        path = folder / name
        if not path.is_file() or checksum(path) != saved:
            what = "not what was saved" if path.is_file() else "gone, which was saved"
            raise InputError(f"{path} is {what} with {advice}")


def weights_checksum(model: nn.Module) -> int:
    """A number that is another one after any change of the weights, wherever they are."""
    total = 0
    for name, value in model.state_dict().items():
        numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        total = zlib.crc32(numbers, zlib.crc32(name.encode(), total))
    return total
