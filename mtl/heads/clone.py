"""Copy heads within their layer: as additional heads, or over other heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtl.errors import InputError
from mtl.heads.arguments import heads_by_layer, heads_to_heads, seed_of, share_of, whole_number, yes_or_no
from mtl.heads.attentions import Attention, attentions
from mtl.heads.family_table import Family
from mtl.heads.given_models import changeable, require_heads, require_plain, require_weights
from mtl.heads.projections import input_dim
from mtl.heads.prune import require_prunable
from mtl.heads.records import record_keys, recorded_copies
from mtl.heads.select import head_parts, put_copies
from mtl.probes.head_names import head_name

Copies = dict[int, dict[int, tuple[int, ...]]]
"""Per layer and copied head, the numbers of its copies."""
MOST_COPIES = 1000
"""The largest number of times that a head may exist."""


def clone_heads(
    model: PreTrainedModel,
    heads: Mapping[int, Iterable[int]],
    copies: int = 2,
    *,
    divide: bool = True,
    noise: float = 0.0,
    seed: int = 0,
    family: Family | str | None = None,
) -> Copies:
    """Copy heads of the model in place, so that each exists `copies` times.

    Heads keep their numbers. A copy is a separate head with the next free number of its layer (12, 13, ... if
    the uncut model has 12 heads). It is scaled, gated, observed and cut (`prune_heads`) by that number.
    `model.config.cloned_heads` records the original of each copy; `load_pruned` rebuilds the model from it.
    Existing optimisers hold the old parameters: make new ones.

    Args:
        model: any `transformers` model of the families table whose heads can be cut.
        heads: the heads to copy, per layer (`HeadTap.sites` where there are several kinds of attention).
        copies: how often each of them exists afterwards, including the original.
        divide: divide the output columns of a head and its copies by their number, so that the model's output
            does not change (Net2Net, Chen et al. 2016). If false, each has the full output of the head, and
            the output of the model is unchanged only with a scale that leaves one of them open.
        noise: standard deviation of noise on the parameters of the new heads, as a share of the root mean
            square of each parameter's block. Without noise, copies get equal gradients and stay equal.
        seed: seed of the noise.
        family: as in `prune_heads`.

    Returns:
        For each layer and head, the numbers of its copies.

    Raises:
        InputError: a family without separable heads, a layer or head that does not exist, fewer than 1
            copies.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(
        ...     hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
        ... )
        >>> model = BertModel(config)
        >>> clone_heads(model, {1: [0, 3]}, copies=3)
        {1: {0: (4, 5), 3: (6, 7)}}
        >>> model.config.cloned_heads
        {1: {4: 0, 5: 0, 6: 3, 7: 3}}
    """
    model, family = changeable(model, "clone_heads", family)
    chosen = heads_by_layer(heads)
    copies, seed = whole_number(copies, "copies", 1, MOST_COPIES), seed_of(seed)
    yes_or_no(divide, "divide")
    noise = share_of(noise, "noise")
    found = _checked(model, family, chosen)
    if noise:
        require_weights(model, "clone_heads")
    made: Copies = {}
    for layer, numbers in chosen.items():
        free = max(found[layer].heads, 1 + max(found[layer].remaining))
        made[layer] = {
            head: tuple(range(free + turn * (copies - 1), free + (turn + 1) * (copies - 1)))
            for turn, head in enumerate(numbers)
        }
        sources = {copy: head for head, copied in made[layer].items() for copy in copied}
        _put(model, family, found[layer], layer, sources, divide, noise, seed)
    return made


def transplant_heads(
    model: PreTrainedModel,
    heads: Mapping[int, Mapping[int, int]],
    *,
    divide: bool = True,
    noise: float = 0.0,
    seed: int = 0,
    family: Family | str | None = None,
) -> None:
    """Overwrite heads of the model in place with copies of other heads of their layer; adds no parameters.

    A copy keeps the number of the head that it overwrites. Otherwise as `clone_heads`.

    Args:
        model: any `transformers` model of the families table whose heads can be cut.
        heads: per layer, for each head that is overwritten, the head that it becomes a copy of.
        divide: divide the output columns of a head and its copies by their number.
        noise: standard deviation of noise on the parameters of the copies, as in `clone_heads`.
        seed: seed of the noise.
        family: as in `prune_heads`.

    Raises:
        InputError: a family without separable heads, a layer or head that does not exist, a head that is both
            copied and overwritten.
    """
    model, family = changeable(model, "transplant_heads", family)
    chosen = heads_to_heads(heads)
    seed, noise = seed_of(seed), share_of(noise, "noise")
    yes_or_no(divide, "divide")
    named = {layer: sorted({*places, *places.values()}) for layer, places in chosen.items()}
    found = _checked(model, family, named)
    if noise:
        require_weights(model, "transplant_heads")
    for layer, places in chosen.items():
        both = sorted(set(places) & set(places.values()))
        if both:
            sites = [attention.site for attention in found]
            name = head_name(sites[layer], both[0], sites)
            raise InputError(f"{name} cannot be copied and overwritten at once")
    for layer, places in chosen.items():
        _put(model, family, found[layer], layer, places, divide, noise, seed)


def _checked(model: PreTrainedModel, family: Family, heads: Mapping[int, Iterable[int]]) -> list[Attention]:
    """The model's attentions; raises `InputError` unless all heads exist and can be copied."""
    require_prunable(model, family, "copied")
    found = attentions(model, family)
    sites = [attention.site for attention in found]
    require_heads(heads, sites, [attention.remaining for attention in found], "copied")
    require_plain(model, family, found, "copied")
    return found


def _put(
    model: PreTrainedModel,
    family: Family,
    attention: Attention,
    layer: int,
    sources: Mapping[int, int],
    divide: bool,
    noise: float,
    seed: int,
) -> None:
    """Put copies at the numbers in `sources`, each of the head that is given there."""
    if not sources:
        return
    size = attention.size
    numbers, keys = put_copies(family, attention, sources)
    record_keys(model, family, {layer: keys})
    after = {number: position for position, number in enumerate(numbers)}
    weight, columns = attention.output.weight, input_dim(attention.output)
    if divide:
        for head in set(sources.values()):
            alike = [head, *(number for number, source in sources.items() if source == head)]
            for number in alike:
                first = after[number] * size
                weight.data.narrow(columns, first, size).div_(len(alike))
    if noise:
        generator = torch.Generator().manual_seed(seed * 1000 + layer)
        for number in sorted(sources):
            position = torch.tensor([after[number]], device=weight.device)
            for part in head_parts(family, attention, position):
                _shake(part.parameter, part.dim, part.rows, noise, generator)
    records = recorded_copies(model.config)
    before = records.get(layer, {})
    roots = {number: before.get(source, source) for number, source in sources.items()}
    records[layer] = dict(sorted({**before, **roots}.items()))
    model.config.cloned_heads = dict(sorted(records.items()))


@torch.no_grad()
def _shake(parameter: Tensor, dim: int, rows: Tensor, noise: float, generator: torch.Generator) -> None:
    """Add noise to some rows or columns, relative to their root mean square."""
    block = parameter.index_select(dim, rows)
    drawn = torch.randn(block.shape, generator=generator, dtype=torch.float32).to(block)
    parameter.index_copy_(dim, rows, block + noise * block.square().mean().sqrt() * drawn)
