"""Cut heads out of a transformer's weights for good, or close them in weights of the same shape.

Works on any `transformers` model of the families table, not only those of this project (transformers 5 has
neither `head_mask` nor `prune_heads`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtl.errors import InputError
from mtl.heads.arguments import heads_by_layer, scale_of, yes_or_no
from mtl.heads.attentions import (
    Attention,
    attentions,
    give_own_configuration,
    head_numbers,
    record,
    record_keys,
    recorded_cuts,
)
from mtl.heads.cut_attention import (
    NoHeads,
    collected_around,
    replace_module,
    require_replaceable,
    select_heads,
)
from mtl.heads.families import scale_inputs, without_inputs
from mtl.heads.family_table import Family, no_cut_because
from mtl.heads.given_models import changeable, require_heads, require_plain
from mtl.tasks.in_words import counted


def prune_heads(
    model: PreTrainedModel,
    heads: Mapping[int, Iterable[int]],
    scale: Float[Tensor, "site head"] | None = None,
    *,
    keep_shape: bool = False,
    family: Family | str | None = None,
) -> None:
    """Cut heads out of the model in place: their query, key and value rows and their output columns.

    A layer without heads keeps the bias of its output projection, and its entry in the model's `attentions`
    has no heads. If several heads share keys and values (grouped queries), these are cut with the last of the
    heads. If groups keep different numbers of heads, each head finds its keys and values by an index, so that
    neither model nor cache grows. `model.config.pruned_heads` records the heads; with grouped queries,
    `model.config.keys_of_heads` records which heads share. `load_pruned` rebuilds the model from them. Plain
    transformers loads only models of the old shape (`keep_shape`). Existing optimisers hold the old
    parameters: make new ones.

    Args:
        model: any `transformers` model of the families table.
        heads: the heads to cut, per layer (`HeadTap.sites` where there are several kinds of attention),
            from 0 and numbered as in the uncut model however often it is cut. Heads that were cut before are
            ignored.
        scale: multiplied into the output columns of the remaining heads.
        keep_shape: only set the heads' output columns to zero. The model computes the same as the cut one and
            is as large as before. `AutoModel` and other tools can load what `save_pretrained` writes.
        family: the model's row, if the table has none (`Family`), or the name of a row that fits.

    Raises:
        InputError: a family without separable heads, a layer or head that does not exist, a scale of
            another shape, or hooks on queries, keys or values of a layer that would lose all heads. The
            model is then unchanged.

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
    model, family = changeable(model, "prune_heads", family)
    wanted = {layer: set(numbers) for layer, numbers in heads_by_layer(heads).items()}
    scale = None if scale is None else scale_of(scale, "scale", model.dtype)
    yes_or_no(keep_shape, "keep_shape")
    found = attentions(model, family)
    layers, per_layer = len(found), head_numbers(found)
    sites = [attention.site for attention in found]
    require_heads(wanted, sites, [range(attention.heads) for attention in found], "cut")
    if scale is not None and scale.shape != (layers, per_layer):
        raise InputError(
            f"a scale of shape {tuple(scale.shape)} does not fit {counted(layers, 'layer')} of "
            f"{counted(per_layer, 'head')}"
        )
    if not keep_shape:
        require_prunable(model, family)
        _require_replaceable(model, found, wanted)
    require_plain(model, family, found, "closed" if keep_shape else "cut out")
    if keep_shape:
        _close(model, found, wanted, scale)
    else:
        give_own_configuration(model)
        cut_sites(model, family, wanted, scale)


def cut_sites(
    model: PreTrainedModel,
    family: Family,
    heads: Mapping[int, set[int]],
    scale: Float[Tensor, "site head"] | None = None,
    keys: Mapping[int, Sequence[int]] | None = None,
) -> None:
    """As `prune_heads`, with arguments that are known to fit the model.

    `keys` says for some sites which keys and values the remaining heads are to have (`select_heads`).
    """
    found, keys = attentions(model, family), keys or {}
    if scale is not None:
        _untie(model, found)
    gone = {layer: set(numbers) for layer, numbers in recorded_cuts(model.config, family).items()}
    shared: dict[int, Sequence[int]] = {}
    for layer, attention in enumerate(found):
        remaining = attention.remaining
        if scale is not None:
            factor = scale[layer, list(remaining)].repeat_interleave(attention.size)
            scale_inputs(attention.output, factor)
        cut = heads.get(layer, set()) & set(remaining)
        if not remaining or not (cut or layer in keys):
            continue
        stays = [position for position, head in enumerate(remaining) if head not in cut]
        if stays:
            shared[layer] = select_heads(family, attention, stays, keys.get(layer))
        else:
            _leave_none(model, family, attention)
            shared[layer] = ()
        if cut:
            gone[layer] = gone.get(layer, set()) | cut
    record(model, family, "pruned_heads", {layer: sorted(numbers) for layer, numbers in gone.items()})
    record_keys(model, family, shared)


def _close(
    model: PreTrainedModel,
    found: Sequence[Attention],
    heads: Mapping[int, set[int]],
    scale: Float[Tensor, "site head"] | None,
) -> None:
    """Multiply the heads' output columns by the scale, and those of the given heads by zero."""
    factors = torch.ones(len(found), head_numbers(found)) if scale is None else scale.detach().clone()
    for layer, numbers in heads.items():
        factors[layer, sorted(numbers)] = 0
    sites: dict[nn.Module, int] = {}
    for layer, attention in enumerate(found):
        first = sites.setdefault(attention.output, layer)
        if not torch.equal(factors[layer], factors[first]):
            raise InputError(
                f"layers {first} and {layer} of {type(model).__name__} share an attention module: close the "
                "same heads in all layers that share one"
            )
    _untie(model, found)
    for output, layer in sites.items():
        factor = factors[layer, list(found[layer].remaining)].repeat_interleave(found[layer].size)
        scale_inputs(output, factor)


def _untie(model: PreTrainedModel, found: Iterable[Attention]) -> None:
    """Give output projections weights of their own, as a cut does, where other modules have the same ones."""
    holders = Counter(
        id(weight) for module in model.modules() for weight in vars(module)["_parameters"].values()
    )
    for output in dict.fromkeys(attention.output for attention in found):
        weight = output.weight
        if holders[id(weight)] > 1:
            output.weight = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)


def require_prunable(model: PreTrainedModel, family: Family) -> None:
    """Raise `InputError`, with the reason, if heads of the model cannot be cut out."""
    reason = no_cut_because(family, vars(model.config))
    if not reason:
        outputs = [attention.output for attention in attentions(model, family) if attention.remaining]
        if len(set(outputs)) < len(outputs):
            reason = "several of its layers share one attention module, which has the heads of all"
    if reason:
        raise InputError(f"no heads can be cut out of {type(model).__name__}: {reason}")


def _leave_none(model: PreTrainedModel, family: Family, attention: Attention) -> None:
    """Replace an attention by one without heads."""
    output, hands_on_bias = without_inputs(attention.output), family.position_bias == "handed_on"
    replace_module(model, attention.output, output)
    record = "" if collected_around(model, attention.module, attention.record) else attention.record
    replacement = NoHeads(attention.module, output, attention.output_path, hands_on_bias, record)
    replace_module(model, attention.module, replacement)


def _require_replaceable(
    model: PreTrainedModel, found: Sequence[Attention], heads: Mapping[int, set[int]]
) -> None:
    """Raise `InputError` if modules that go with all heads of a layer have hooks or a `forward` of others."""
    emptied = [
        attention
        for layer, attention in enumerate(found)
        if attention.remaining and set(attention.remaining) <= heads.get(layer, set())
    ]
    for attention in emptied:
        replaced = (attention.module, attention.output)
        kept = {*replaced, getattr(attention.module, "relative_attention_bias", None)}
        gone = [module for module in attention.module.modules() if module not in kept]
        require_replaceable(model, replaced, gone, "prune_heads")
