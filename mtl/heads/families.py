"""The table of encoder families: where each keeps the pieces of its attention."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from mtl.errors import InputError
from probes.heads_table import Site


class Stack(NamedTuple):
    """One kind of attention in a family, in all of its layers."""

    kind: str
    """Its name in tables; `self` where a family has only one."""
    attention: str
    """The module that computes the heads, below the base model; `{}` is the layer's number."""
    output: str
    """The output projection, whose input is the heads side by side, below the attention module; `^` is that
    module's parent."""


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table; paths but those of the stacks are below the attention module."""

    stacks: tuple[Stack, ...]
    """The kinds of attention, in the order of `HeadTap.sites`."""
    query: str = "query"
    key: str = "key"
    value: str = "value"
    fused: Literal["", "blocks", "heads"] = ""
    """One module (`query`) gives all three: all queries, then keys, then values; or q, k, v head by head."""
    other_head_rows: tuple[str, ...] = ()
    """Further modules or parameters with a row per head dimension, where the model has them."""
    position_bias: bool = False
    """The attention module is handed a bias per head that all layers share."""
    positions_after_padding: bool = False
    """Position ids start at the padding index + 1 (RoBERTa), so padding index + 1 fewer are usable."""
    not_prunable_because: str = ""
    """Why single heads cannot be cut out; empty where they can."""


BERT = Family((Stack("self", "encoder.layer.{}.attention.self", "^.output.dense"),))
ROBERTA = replace(BERT, positions_after_padding=True)
FAMILIES = {
    "albert": Family(
        (Stack("self", "encoder.albert_layer_groups.{}.albert_layers.{}.attention", "dense"),),
        not_prunable_because="one attention module serves several layers, so a head cut from one would be "
        "gone from all",
    ),
    "bert": BERT,
    "camembert": ROBERTA,
    "data2vec-text": ROBERTA,
    "deberta": replace(
        BERT, query="in_proj", fused="heads", other_head_rows=("q_bias", "v_bias", "pos_proj", "pos_q_proj")
    ),
    "deberta-v2": replace(
        BERT,
        query="query_proj",
        key="key_proj",
        value="value_proj",
        other_head_rows=("pos_key_proj", "pos_query_proj"),
    ),
    "distilbert": Family(
        (Stack("self", "transformer.layer.{}.attention", "out_lin"),),
        query="q_lin",
        key="k_lin",
        value="v_lin",
    ),
    "electra": BERT,
    "ernie": BERT,
    "eurobert": Family(
        (Stack("self", "layers.{}.self_attn", "o_proj"),), query="q_proj", key="k_proj", value="v_proj"
    ),
    "megatron-bert": BERT,
    "modernbert": Family((Stack("self", "layers.{}.attn", "Wo"),), query="Wqkv", fused="blocks"),
    "mpnet": Family(
        (Stack("self", "encoder.layer.{}.attention.attn", "o"),),
        query="q",
        key="k",
        value="v",
        position_bias=True,
        positions_after_padding=True,
    ),
    "rembert": BERT,
    "roberta": ROBERTA,
    "roberta-prelayernorm": ROBERTA,
    "xlm-roberta": ROBERTA,
    "xlm-roberta-xl": ROBERTA,
}


class Attention(NamedTuple):
    """The attention at one site of a model: its module, its output projection, and the heads still in it."""

    site: Site
    layer: nn.Module
    """The transformer layer that it belongs to."""
    module: nn.Module
    output: nn.Linear
    output_inside: bool
    """Whether the projection is below the module."""
    remaining: tuple[int, ...]


def family_of(model: PreTrainedModel) -> Family:
    """The model's row; an `InputError` that names the missing row and likely output projections if none."""
    kind = model.config.model_type
    if kind in FAMILIES:
        return FAMILIES[kind]
    likely = ", ".join(_likely_outputs(model)) or "none found"
    raise InputError(
        f"no row {kind!r} in the table of encoder families (mtl/heads/families.py, FAMILIES); "
        f"add one; modules that look like attention output projections: {likely}"
    )


def pruned_heads(model: PreTrainedModel) -> dict[int, list[int]]:
    """The heads that have been cut out of each site, in the numbering of the uncut model."""
    recorded = getattr(model.config, "pruned_heads", None) or {}
    return {int(site): sorted(heads) for site, heads in recorded.items()}


def cloned_heads(model: PreTrainedModel) -> dict[int, dict[int, int]]:
    """The copies at each site: the number of each, and the head of the uncut model that it copies."""
    return recorded_copies(model.config)


def recorded_copies(config: PretrainedConfig) -> dict[int, dict[int, int]]:
    """As `cloned_heads`, from a configuration, whose keys are text once it was saved."""
    recorded = getattr(config, "cloned_heads", None) or {}
    return {
        int(site): {int(copy): head for copy, head in heads.items()}
        for site, heads in recorded.items()
        if heads
    }


def head_numbers(model: PreTrainedModel) -> int:
    """How many numbers heads may have at a site: those of the uncut model, and after them those of copies."""
    copies = [copy for heads in cloned_heads(model).values() for copy in heads]
    return max([model.config.num_attention_heads, *(copy + 1 for copy in copies)])


def attentions(model: PreTrainedModel, family: Family) -> list[Attention]:
    """The attention at every site, by stack and layer; a module that layers share comes repeatedly."""
    config, gone, copies = model.config, pruned_heads(model), cloned_heads(model)
    places = [(stack, *place) for stack in family.stacks for place in enumerate(_module_numbers(model))]
    found = []
    for index, (stack, layer, numbers) in enumerate(places):
        path = stack.attention.format(*numbers)
        parent = path.rpartition(".")[0]
        inside = not stack.output.startswith("^")
        of_layer = stack.attention[: stack.attention.rindex("{}") + 2].format(*numbers)
        try:
            block = model.base_model.get_submodule(of_layer)
            module = model.base_model.get_submodule(path)
            output = model.base_model.get_submodule(
                f"{path}.{stack.output}" if inside else stack.output.replace("^", parent)
            )
        except AttributeError as error:
            raise InputError(
                f"{type(model).__name__} does not fit row {config.model_type!r} of mtl/heads/families.py: "
                f"{error}"
            ) from None
        uncut = set(range(config.num_attention_heads)) - set(gone.get(index, ()))
        left = tuple(sorted(uncut | set(copies.get(index, ()))))
        if not isinstance(output, nn.Linear) or (left and output.in_features % len(left)):
            raise InputError(
                f"{path}: its output projection is no linear layer over {len(left)} heads; correct its row "
                f"{config.model_type!r} in mtl/heads/families.py"
            )
        found.append(Attention(Site(stack.kind, layer), block, module, output, inside, left))
    return found


def _module_numbers(model: PreTrainedModel) -> list[tuple[int, ...]]:
    """What fills the `{}` of a path in each layer: its number, or in ALBERT its group and place in it."""
    config = model.config
    if config.model_type != "albert":
        return [(layer,) for layer in range(config.num_hidden_layers)]
    per_group = config.num_hidden_layers / config.num_hidden_groups
    return [
        (int(turn / per_group), inner)
        for turn in range(config.num_hidden_layers)
        for inner in range(config.inner_group_num)
    ]


def head_dim(model: PreTrainedModel) -> int:
    """The size of one head's output."""
    config = model.config
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _likely_outputs(model: PreTrainedModel) -> list[str]:
    hidden = getattr(model.config, "hidden_size", None)
    names = {
        re.sub(r"\.\d+\.", ".{}.", name)
        for name, module in model.base_model.named_modules()
        if isinstance(module, nn.Linear)
        and module.out_features == hidden
        and re.search(r"att", name, re.IGNORECASE)
        and re.search(r"(out|dense|proj|\bo|w_?o)\w*$", name, re.IGNORECASE)
        and not re.search(r"(^|[._])([qkv]|query|key|value)\w*$", name, re.IGNORECASE)
    }
    return sorted(names)
