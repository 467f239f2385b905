"""Cut heads out of a transformer's weights for good, and load models that were cut.

Works on any `transformers` model of the families table, not only those of this project (transformers 5 has
neither `head_mask` nor `prune_heads`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import transformers
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from mtl.errors import InputError
from mtl.heads.arguments import changeable, dtype_of, folder_of, heads_by_layer, require_plain, scale_of
from mtl.heads.collaborative import put_components
from mtl.heads.families import (
    Attention,
    attentions,
    cloned_heads,
    family_of,
    head_dim,
    head_numbers,
    heads_per_group,
    heads_per_site,
    heads_sharing_keys,
    pruned_heads,
    recorded_components,
    recorded_copies,
    recorded_sharing,
)
from mtl.heads.family_table import Family, no_copies_because, no_cut_because
from mtl.heads.no_heads import NoHeads
from mtl.heads.projections import scale_inputs, without_inputs
from mtl.heads.select import common_share, select_heads


def prune_heads(
    model: PreTrainedModel,
    heads: Mapping[int, Iterable[int]],
    scale: Float[Tensor, "site head"] | None = None,
) -> None:
    """Cut heads out of the model in place: their query, key and value rows and their output columns.

    A layer without heads keeps the bias of its output projection. Where several heads share keys and values
    (grouped queries), a group's keys and values go with its last head. If the remaining groups keep equally
    many heads, each group still shares one key and value. Otherwise as many neighbouring heads share as the
    greatest common divisor of the groups' sizes, and keys and values of larger groups are copied: the output
    is exact, and fewer parameters are saved. `model.config.pruned_heads` records the heads, and
    `model.config.heads_sharing_keys` how many heads of each such layer share keys and values; `load_pruned`
    rebuilds the model from them. Existing optimisers hold the old parameters: make new ones.

    Args:
        model: any `transformers` model of the families table.
        heads: the heads to cut, per layer (`HeadTap.sites` where there are several kinds of attention),
            from 0 and numbered as in the uncut model however often it is cut; copies (`clone_heads`) have
            the numbers after those. Heads that are gone already are ignored.
        scale: multiplied into the output columns of the heads that stay.

    Raises:
        InputError: a family without separable heads, a layer or head that does not exist, or a scale of
            another shape.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(
        ...     hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
        ... )
        >>> model = BertModel(config)
        >>> before = model.num_parameters()
        >>> prune_heads(model, {0: [1, 3], 1: [0]})
        >>> before - model.num_parameters()  # 3 heads of 3 x 8 rows of 32 + 1, and of 8 columns of 32
        3144
        >>> model.config.pruned_heads
        {0: [1, 3], 1: [0]}
    """
    model = changeable(model, "prune_heads")
    _prune(model, heads_by_layer(heads), None if scale is None else scale_of(scale, "scale"), None)


def _prune(
    model: PreTrainedModel,
    heads: Mapping[int, Iterable[int]],
    scale: Float[Tensor, "site head"] | None,
    sharing: Mapping[int, int] | None,
) -> None:
    """As `prune_heads`; `sharing` gives how many heads of a cut site share keys and values (default 1)."""
    family = family_of(model)
    found = attentions(model, family)
    layers, per_layer = len(found), head_numbers(model)
    wanted = {layer: set(numbers) for layer, numbers in heads.items()}
    for layer, numbers in wanted.items():
        if not 0 <= layer < layers:
            raise InputError(f"layer {layer} cannot be cut: the model has layers 0 to {layers - 1}")
        if not numbers <= set(range(per_layer)):
            worst = min(numbers - set(range(per_layer)))
            raise InputError(f"head {worst} of layer {layer} cannot be cut: heads are 0 to {per_layer - 1}")
    if scale is not None and scale.shape != (layers, per_layer):
        raise InputError(
            f"a scale of shape {tuple(scale.shape)} does not fit {layers} layers of {per_layer} heads"
        )
    require_prunable(model)
    require_plain(model, family, found, "cut out")
    size = head_dim(model)
    original = set(range(heads_per_site(model)))
    gone = {layer: set(numbers) for layer, numbers in pruned_heads(model).items()}
    copies, shared = cloned_heads(model), heads_sharing_keys(model)
    for layer, attention in enumerate(found):
        remaining = attention.remaining
        if scale is not None:
            factor = scale[layer, list(remaining)].repeat_interleave(size)
            scale_inputs(attention.output, factor)
        if cut := wanted.get(layer, set()) & set(remaining):
            stays = [head not in cut for head in remaining]
            stated = None if sharing is None else sharing.get(layer, 1)
            shared[layer] = _cut(model, family, attention, stays, size, stated)
            # A copy that is cut leaves no record: the model is as if it had never been copied.
            copies[layer] = {copy: head for copy, head in copies.get(layer, {}).items() if copy not in cut}
            if cut & original:
                gone[layer] = gone.get(layer, set()) | (cut & original)
        elif sharing is not None and layer in sharing and remaining:
            # No head of the layer is cut, but each was given keys and values of its own (`clone_heads`).
            select_heads(family, attention, range(len(remaining)), size, sharing[layer])
            shared[layer] = sharing[layer]
    if gone:
        model.config.pruned_heads = {layer: sorted(numbers) for layer, numbers in sorted(gone.items())}
    if cloned_heads(model):
        model.config.cloned_heads = {layer: heads for layer, heads in sorted(copies.items()) if heads}
    if shared and heads_per_group(model) > 1:
        model.config.heads_sharing_keys = dict(sorted(shared.items()))


def require_prunable(model: PreTrainedModel, verb: str = "cut out") -> None:
    """Raise `InputError`, with the reason, if heads of the model cannot be cut out (or be `copied`)."""
    reason_of = no_copies_because if verb == "copied" else no_cut_because
    reason = reason_of(family_of(model), talking_heads=getattr(model.config, "talking_head", False))
    if reason:
        of = " of" if verb == "cut out" else " in"
        raise InputError(f"no heads can be {verb}{of} {type(model).__name__}: {reason}")


def load_pruned(folder: Path | str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model that `save_pretrained` wrote after `prune_heads`, `clone_heads` or `collaborate`.

    It is in evaluation mode. Raises `InputError` as `rebuild` does.
    """
    folder, dtype = folder_of(folder), dtype_of(dtype)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: use the folder that save_pretrained wrote")
    return rebuild(AutoConfig.from_pretrained(str(folder)), folder, None, dtype)


def rebuild(
    config: PretrainedConfig, folder: Path, attention: str | None, dtype: torch.dtype
) -> PreTrainedModel:
    """A model with the heads that the configuration records, and the folder's weights.

    `config.cloned_heads` records which heads are copies, `config.pruned_heads` which are cut out,
    `config.heads_sharing_keys` how many share keys and values, and `config.collaborative_components` how many
    components they share. Raises `InputError` for a folder without weights, an unknown class of model, and
    weights that do not fit the configuration.
    """
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no model.safetensors; give the folder of a saved model")
    weights = {name: tensor for file in files for name, tensor in load_file(file).items()}
    kind = getattr(transformers, (config.architectures or ["none stated"])[0], None)
    if kind is None:
        raise InputError(f"{folder / 'config.json'} names no known class under 'architectures'")
    heads = {int(layer): cut for layer, cut in (getattr(config, "pruned_heads", None) or {}).items()}
    copies, sharing = recorded_copies(config), recorded_sharing(config)
    components = recorded_components(config)
    config.pruned_heads, config.cloned_heads, config.heads_sharing_keys = {}, {}, {}
    config.collaborative_components = {}
    pooler = any(name.startswith("pooler.") for name in weights)
    choosable = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
    model = kind._from_config(
        config, attn_implementation=attention, **({"add_pooling_layer": pooler} if choosable else {})
    )
    _put_copies(model, copies)
    put_components(model, components)
    if heads or sharing:
        _prune(model, heads, None, sharing)
    try:
        missing, unexpected = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise InputError(f"the weights in {folder} do not fit its config.json: {error}") from error
    # Tied parameters are saved once, under one of their names.
    tied = {id(parameter) for name, parameter in _parameters(model) if name in weights}
    # Position embeddings that follow a formula are not saved (Marian).
    computed = set(model._keys_to_ignore_on_save or ())
    lost = [
        name
        for name, parameter in _parameters(model)
        if name in missing and id(parameter) not in tied and name not in computed
    ]
    if lost or unexpected:
        raise InputError(
            f"the weights in {folder} do not fit its config.json: "
            f"missing {lost[:3]}, unexpected {unexpected[:3]}"
        )
    return model.to(dtype).eval()


def _parameters(model: PreTrainedModel) -> list[tuple[str, torch.nn.Parameter]]:
    return list(model.named_parameters(remove_duplicate=False))


def _put_copies(model: PreTrainedModel, copies: Mapping[int, Mapping[int, int]]) -> None:
    """Give an uncut model the recorded copies; their weights are to be loaded."""
    if not copies:
        return
    family = family_of(model)
    found, size = attentions(model, family), head_dim(model)
    for layer, sources in copies.items():
        numbers = sorted({*found[layer].remaining, *sources})
        select_heads(family, found[layer], [sources.get(number, number) for number in numbers], size)
    model.config.cloned_heads = {layer: dict(sources) for layer, sources in copies.items()}


def _cut(
    model: PreTrainedModel,
    family: Family,
    attention: Attention,
    stays: list[bool],
    size: int,
    sharing: int | None,
) -> int:
    """Keep the remaining heads for which `stays` is true; returns how many then share keys and values.

    `sharing` sets that number; `None`: the largest possible (`common_share`).
    """
    index = [position for position, stay in enumerate(stays) if stay]
    if index:
        sharing = common_share(attention, index) if sharing is None else sharing
        select_heads(family, attention, index, size, sharing)
        return sharing
    module, output = attention.module, attention.output
    stack = next(stack for stack in family.stacks if stack.kind == attention.site.attention)
    inside, empty = attention.output_inside, without_inputs(output)
    paths = {child: name for name, child in model.named_modules()}
    model.set_submodule(paths[output], empty)
    replacement = NoHeads(
        module, empty if inside else None, stack.output, family.position_bias == "handed_on"
    )
    model.set_submodule(paths[module], replacement)
    return 1
