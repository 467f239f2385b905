"""Load transformers quietly and without poolers: from the hub, from a folder, or the embedded MiniLM."""

from __future__ import annotations

import inspect
import json
import logging as python_logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from huggingface_hub.utils import logging as hub_logging
from transformers import (
    MODEL_MAPPING,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from mtl.errors import InputError
from mtl.heads import load
from mtl.heads.arguments import refuse_revision
from mtl.heads.attentions import needs_rebuild
from mtl.heads.families import family_of, group_size
from mtl.heads.family_table import FAMILIES, Family
from mtl.heads.load import Loaded, class_for, load_errors, load_model
from mtl.models.found import embedded_minilm, refuse_gguf

AttentionKind = Literal["sdpa", "eager"]
Dtype = torch.dtype | Literal["auto"]
"""The type of a model's weights; `auto`: as they were saved."""


def load_encoder(
    name: str, attention: AttentionKind, dtype: Dtype, revision: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A checkpoint's encoder and its tokenizer; `name` is a hub name, a folder, or `minilm`.

    The checkpoint's head, such as a classifier, and its pooler are left out. Raises `InputError` for a
    checkpoint that cannot be loaded, or whose weights do not fit its config.json.
    """
    where = str(embedded_minilm()) if name == "minilm" else name
    refuse_revision(Path(where), revision)
    refuse_gguf(where)
    files = "config.json, model.safetensors and tokenizer files"
    advice = f"; use 'minilm', a folder with {files}, or a name on the hub"
    if (Path(where).is_absolute() or where.count("/") > 1) and not Path(where).exists():
        raise InputError(f"{where}: no such folder{advice}")
    with quiet(), load_errors(f"the encoder {name!r}", advice):
        config = load.configuration(where, revision=revision)
        family = FAMILIES.get(config.model_type)
        if family is not None:
            require_words(family, config)
            group_size(config, repr(name), family.stacks[0])
        tokenizer = load.tokenizer(where, revision=revision)
        loaded = load_model(
            where, class_for(config, MODEL_MAPPING), config, dtype=dtype, revision=revision,
            attn_implementation=implementation(attention, config), **without_pooler(config),
        )  # fmt: skip
    if misfits := list(loaded.other_shapes) or _misfits(loaded, Path(where)):
        raise InputError(
            f"the weights of the encoder {name!r} do not fit its config.json (first at {misfits[0]}): "
            "restore the files, or use another encoder"
        )
    return loaded.model, tokenizer


def random_encoder(
    name: str, attention: AttentionKind, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """An encoder with the configuration of a checkpoint and random weights, and the checkpoint's tokenizer.

    The weights are drawn as the family draws them before pretraining; torch's generator is left as it was.
    Raises `InputError` as `load_encoder` does, and for a checkpoint whose heads were cut or share components.
    """
    where = str(embedded_minilm()) if name == "minilm" else name
    refuse_gguf(where)
    with quiet(), load_errors(f"the encoder {name!r}"):
        config = load.configuration(where)
        family = FAMILIES.get(config.model_type)
        if family is not None:
            require_words(family, config)
            group_size(config, repr(name), family.stacks[0])
        if needs_rebuild(config):
            raise InputError(
                "encoder.weights=random: heads of this encoder were cut or share components: use a whole one"
            )
        tokenizer = load.tokenizer(where)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = class_for(config, MODEL_MAPPING)._from_config(
                config, dtype=torch.float32, attn_implementation=implementation(attention, config),
                **without_pooler(config),
            )  # fmt: skip
    return model.eval(), tokenizer


def require_words(family: Family, config: PretrainedConfig) -> None:
    """Raise `InputError` for a family of models that read images or sound."""
    if not family.encodes_words:
        raise InputError(
            f"models of type {config.model_type!r} do not give vectors of words: use mtl.head_importance, "
            "mtl.ablate_heads, mtl.head_scale and mtl.prune_heads on them, in Python"
        )


def tokenizer_note(name: str) -> str | None:
    """A note on an encoder's folder without settings for its tokenizer; `None` if it has them."""
    path = Path(name) / "tokenizer_config.json"
    if not path.parent.is_dir() or (path.is_file() and json.loads(path.read_text(encoding="utf-8"))):
        return None
    return (
        f"{path} {'is empty' if path.is_file() else 'is missing'}: the tokenizer has its family's settings "
        "(special tokens, lower-casing, length)"
    )


def _misfits(loaded: Loaded, folder: Path) -> list[str]:
    """Names of weights that do not fit config.json; transformers only prints a note about them.

    A folder that `Encoder.save` wrote must have exactly the model's weights. Checkpoints from elsewhere may
    have others, of a pooler or of the head that they were pretrained with, but none of further layers. No
    weight of a layer may be missing, and none at all in models whose heads were cut or share components.
    """
    model, missing, unexpected, _ = loaded
    if (folder / "encoder.json").is_file():
        return sorted(missing | unexpected)
    layers = tuple(stack.attention.partition("{}")[0] for stack in family_of(model).stacks)
    prefix = f"{model.base_model_prefix}."
    lost = missing if needs_rebuild(model.config) else [key for key in missing if key.startswith(layers)]
    return sorted([*lost, *(key for key in unexpected if key.removeprefix(prefix).startswith(layers))])


def implementation(attention: AttentionKind, config: PretrainedConfig) -> str | None:
    """`eager`, or `None`, with which transformers takes SDPA if the family has it (MPNet and DeBERTa do not).

    SDPA cannot cap attention scores, as Gemma 2 does, so models with a cap get `eager`.
    """
    family = FAMILIES.get(config.model_type)
    bounded = family is not None and getattr(config, family.score_cap, None) is not None
    return "eager" if attention == "eager" or bounded else None


def without_pooler(config: PretrainedConfig) -> dict[str, bool]:
    """The argument that leaves out the pooler, whose unused parameters would make DDP fail."""
    model = MODEL_MAPPING[type(config)]
    parameters = inspect.signature(model.__init__).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in parameters else {}


def hidden_size(config: PretrainedConfig) -> int:
    """The size of the last layer's output vectors."""
    family = FAMILIES.get(config.model_type)
    return int((family and getattr(config, family.output_size, None)) or config.hidden_size)


def window(model: PreTrainedModel, family: Family, tokenizer: PreTrainedTokenizerFast) -> int:
    """The number of positions that the encoder can read at once, special tokens included."""
    positions = model.config.max_position_embeddings
    if family.positions_after_padding:
        positions -= model.base_model.embeddings.padding_idx + 1
    return min(positions, tokenizer.model_max_length)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence load reports, progress bars and notes on retries in the block, unless logging shows `INFO`."""
    if python_logging.getLogger().isEnabledFor(python_logging.INFO):
        yield
        return
    level, hub_level = logging.get_verbosity(), hub_logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        hub_logging.set_verbosity(hub_level)
        if bars:
            logging.enable_progress_bar()
