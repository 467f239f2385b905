"""Make the heads of a transformer share query and key components (Cordonnier et al. 2020)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from mtl.errors import InputError
from mtl.heads.arguments import function_of, seed_of, whole_number
from mtl.heads.attentions import Attention, attentions
from mtl.heads.collaborative_attention import CollaborativeAttention
from mtl.heads.decomposition import Decomposition, Factors, decompose
from mtl.heads.families import family_of
from mtl.heads.family_table import Family
from mtl.heads.given_models import changeable, require_finite, require_plain, require_weights
from mtl.heads.others_hooks import replace_module, require_replaceable
from mtl.heads.position_bias import choose_given_bias
from mtl.heads.query_key import query_bias, query_key
from mtl.heads.records import recorded_components
from mtl.probes.sites import Site
from mtl.tasks.in_words import counted

_BLOCKS = "blocks"
"""What the configuration records where mixing matrices are not learned and keep their blocks."""


@dataclass(frozen=True)
class SharedAttention:
    """An attention whose heads share components, and the decomposition that they come from."""

    sites: tuple[Site, ...]
    """The layer that uses it, or all layers that share it (ALBERT)."""
    heads: tuple[int, ...]
    """The numbers of its heads, in the order of the rows of the mixing matrix."""
    decomposition: Decomposition
    seconds: float
    """Wall-clock time of the decomposition."""


def collaborate(
    model: PreTrainedModel,
    dim: int,
    *,
    starts: int = 3,
    steps: int = 200,
    seed: int = 0,
    advance: Callable[[SharedAttention], None] = lambda attention: None,
    family: Family | str | None = None,
) -> list[SharedAttention]:
    """Let the heads of each layer share `dim` query and key components, in place.

    The stack of the heads' W_Q W_K^T is decomposed by alternating least squares (`decompose`). The biases of
    queries become the heads' content biases v_h = W_K b_Q; those of keys cancel in the softmax. With
    heads x head size components the model's output does not change; with fewer it is approximated, and the
    model should be trained further. `model.config.collaborative_components` records the components per
    layer; `load_pruned` rebuilds the model from it. Existing optimisers hold the old parameters: make new
    ones.

    Args:
        model: any `transformers` model of a family whose scores are products of queries and keys alone, or
            have a bias by position added (BERT, RoBERTa, ELECTRA, DistilBERT, ALBERT, MPNet and others).
        dim: number of components, from 1 to heads x head size. Layers that have lost heads get at most the
            number at which sharing is exact.
        starts: number of starts of the decomposition; the best one is used.
        steps: steps of alternating least squares from the best start.
        seed: seed of the starts.
        advance: called after every layer.
        family: as in `prune_heads`.

    Returns:
        One entry per attention module, with its decomposition.

    Raises:
        InputError: the heads of the family cannot share (the message says why), the heads of the model share
            already, queries or keys have hooks, or `dim`, `starts` or `steps` is out of range.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(
        ...     hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24
        ... )
        >>> model = BertModel(config)
        >>> before = model.num_parameters()
        >>> shared = collaborate(model, 16, steps=20)
        >>> len(shared), 0 < shared[0].decomposition.error < 1
        (2, True)
        >>> before - model.num_parameters()  # 2 x 2 x (32 x 32 + 32) less 2 x (2 x 32 x 16 + 4 x 16 + 4 x 32)
        1792
        >>> model.config.collaborative_components
        {0: 16, 1: 16}
    """
    model, family = changeable(model, "collaborate", family)
    dim = whole_number(dim, "dim")
    starts, steps = whole_number(starts, "starts", 1), whole_number(steps, "steps", 0)
    seed = seed_of(seed)
    function_of(advance, "advance")
    check_components(model, family, dim)
    require_weights(model, "collaborate")
    found = attentions(model, family)
    require_plain(model, family, found, "made to share components")
    require_finite(found, "collaborate")
    for attention, _ in _distinct(found):
        projections = [attention.module.get_submodule(name) for name in (family.query, family.key)]
        require_replaceable(model, [attention.module], projections, "collaborate")
    made = []
    for attention, indices in _distinct(found):
        begun = time.perf_counter()
        factors = query_key(family, attention)
        components = min(dim, len(attention.remaining) * attention.size)
        result = decompose(*factors, components, starts=starts, steps=steps, seed=seed)
        content = torch.einsum("his,hs->hi", factors.keys, query_bias(family, attention)).detach()
        replacement = _put(model, family, attention, components)
        _fill(replacement, result.factors)
        replacement.content.data.copy_(content)
        shared = SharedAttention(
            tuple(found[index].site for index in indices),
            attention.remaining,
            result,
            time.perf_counter() - begun,
        )
        _record(model, dict.fromkeys(indices, components))
        made.append(shared)
        advance(shared)
    return made


@torch.no_grad()
def start_collaborative(model: PreTrainedModel, dim: int, deviation: float, *, learned: bool = True) -> None:
    """Let the heads of each layer of a new model share `dim` random components, in place.

    Each component starts in one head: the mixing matrix has ones in blocks and zeros elsewhere, which
    training fills. With heads x head size components the model starts, in distribution, as one whose heads
    share nothing; with fewer, each head starts with an equal part of them. Mixing vectors of ones, the other
    start of Cordonnier et al. (2020), would make all heads of a layer attend alike at first, with scores
    that are sums over all D components and grow with D. The heads' content biases start at zero, as biases
    of queries do.

    Args:
        model: of a family that `collaborate` takes; only the weights of queries and keys change.
        dim: components, from 1 to heads x head size.
        deviation: the standard deviation of the weights.
        learned: whether the mixing matrix is learned. If not, each head keeps the components that it starts
            with: heads are concatenated, each of `dim` / heads query and key columns.
            `model.config.collaborative_mixing` records it.

    Raises:
        InputError: as in `collaborate`; its message calls `dim` "components".
    """
    family = family_of(model)
    check_components(model, family, dim, "components")
    for attention, indices in _distinct(attentions(model, family)):
        replacement = _put(model, family, attention, dim)
        for weight in replacement.shared():
            weight.normal_(std=deviation)
        heads = len(attention.remaining)
        owner = torch.arange(dim, device=replacement.mixing.device) * heads // dim
        replacement.mixing.copy_(torch.arange(heads, device=owner.device)[:, None] == owner)
        _record(model, dict.fromkeys(indices, dim))
    if not learned:
        model.config.collaborative_mixing = _BLOCKS
        fix_mixing(model)


def require_collaborative(model: PreTrainedModel, family: Family) -> None:
    """Raise `InputError`, with the reason, if the heads of the model cannot be made to share components."""
    name = type(model).__name__
    if reason := family.not_collaborative_because:
        raise InputError(f"the heads of {name} cannot share query and key components: {reason}")
    if getattr(model.config, "is_decoder", False):
        raise InputError(
            f"the heads of {name} cannot share query and key components: it is set up as a decoder "
            "(is_decoder in its config.json), whose cache has keys of a head's size"
        )
    if recorded_components(model.config):
        raise InputError(
            f"the heads of {name} share query and key components already: use the model that it was made from"
        )


def check_components(model: PreTrainedModel, family: Family, dim: int, name: str = "dim") -> None:
    """Raise `InputError` if the heads of the model cannot share `dim` components, the setting `name`."""
    require_collaborative(model, family)
    exact = max(len(attention.remaining) * attention.size for attention in attentions(model, family))
    if not 1 <= dim <= exact:
        raise InputError(
            f"{name}={dim}: use 1 to {counted(exact, 'component')}, heads x head size, at which sharing is "
            "exact"
        )


def put_components(model: PreTrainedModel, family: Family, components: Mapping[int, int]) -> None:
    """Make sites collaborative, each with its number of components; weights are to be loaded."""
    if not components:
        return
    require_collaborative(model, family)
    for attention, indices in _distinct(attentions(model, family)):
        if indices[0] in components:
            _put(model, family, attention, components[indices[0]])
    _record(model, components)


def fix_mixing(model: PreTrainedModel) -> None:
    """Fix the mixing matrices of a model whose configuration says that they are not learned."""
    if getattr(model.config, "collaborative_mixing", None) != _BLOCKS:
        return
    for module in model.modules():
        if isinstance(module, CollaborativeAttention):
            module.mixing.requires_grad_(False)


def _distinct(found: list[Attention]) -> list[tuple[Attention, list[int]]]:
    """Each attention module that has heads, once, with the indices of the sites that use it."""
    served: dict[int, list[int]] = {}
    for index, attention in enumerate(found):
        if attention.remaining:
            served.setdefault(id(attention.module), []).append(index)
    return [(found[indices[0]], indices) for indices in served.values()]


def _put(
    model: PreTrainedModel, family: Family, attention: Attention, components: int
) -> CollaborativeAttention:
    module = attention.module
    replacement = CollaborativeAttention(
        module,
        (family.query, family.key, family.value),
        components,
        len(attention.remaining),
        attention.size,
        attention.output_path,
        family.normed_inside,
        attention.record,
    )
    replace_module(model, module, replacement)
    if hasattr(module, "bias_heads"):
        # The module has lost heads: from the bias of all heads it takes the rows of its own.
        replacement.register_buffer("bias_heads", module.get_buffer("bias_heads"), persistent=False)
        choose_given_bias(replacement)
    return replacement


@torch.no_grad()
def _fill(attention: CollaborativeAttention, factors: Factors) -> None:
    queries, keys = attention.shared()
    queries.copy_(factors.queries)
    keys.copy_(factors.keys)
    attention.mixing.copy_(factors.mixing)


def _record(model: PreTrainedModel, components: Mapping[int, int]) -> None:
    before = recorded_components(model.config)
    model.config.collaborative_components = dict(sorted({**before, **components}.items()))
