"""Loading a model that heads have been cut out of."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from mtl.errors import InputError
from mtl.heads.prune import prune_heads


def load_pruned(folder: Path | str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model that `save_pretrained` wrote after `prune_heads`, of the same class, in evaluation mode."""
    return rebuild(AutoConfig.from_pretrained(str(folder)), Path(folder), None, dtype)


def rebuild(
    config: PretrainedConfig, folder: Path, attention: str | None, dtype: torch.dtype
) -> PreTrainedModel:
    """An uncut random model, cut as `config.pruned_heads` says, with the folder's weights put in."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no model.safetensors; give the folder of a saved model")
    weights = {name: tensor for file in files for name, tensor in load_file(file).items()}
    kind = getattr(transformers, (config.architectures or ["none stated"])[0], None)
    if kind is None:
        raise InputError(f"{folder / 'config.json'} names no known class under 'architectures'")
    heads = {int(layer): cut for layer, cut in (getattr(config, "pruned_heads", None) or {}).items()}
    config.pruned_heads = {}
    pooler = any(name.startswith("pooler.") for name in weights)
    choosable = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
    model = kind._from_config(
        config, attn_implementation=attention, **({"add_pooling_layer": pooler} if choosable else {})
    )
    prune_heads(model, heads)
    try:
        missing, unexpected = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise InputError(f"the weights in {folder} do not fit its config.json: {error}") from error
    # Tied parameters are saved once, under one of their names.
    tied = {id(each) for name, each in _parameters(model) if name in weights}
    lost = [name for name, each in _parameters(model) if name in missing and id(each) not in tied]
    if lost or unexpected:
        raise InputError(
            f"the weights in {folder} do not fit its config.json: "
            f"missing {lost[:3]}, unexpected {unexpected[:3]}"
        )
    return model.to(dtype).eval()


def _parameters(model: PreTrainedModel) -> list[tuple[str, torch.nn.Parameter]]:
    return list(model.named_parameters(remove_duplicate=False))
