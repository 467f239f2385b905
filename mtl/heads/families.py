"""The table of encoder families: where each keeps the pieces of its attention."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torch import nn
from transformers import PreTrainedModel

from mtl.errors import InputError


@dataclass(frozen=True, slots=True)
class Family:
    """One row: paths below the base model (`attention`) or below the attention module (the others)."""

    attention: str
    """The module that computes the heads; `{}` is the layer's number."""
    output: str = "^.output.dense"
    """The output projection, whose input is the heads side by side; `^` is the attention module's parent."""
    query: str = "query"
    key: str = "key"
    value: str = "value"
    fused: Literal["", "blocks", "heads"] = ""
    """One module (`query`) gives all three: all queries, then keys, then values; or q, k, v head by head."""
    also: tuple[str, ...] = ()
    """Further modules or parameters whose rows are the heads', where the model has them."""
    position_bias: bool = False
    """The attention module is handed a bias per head that all layers share."""
    positions_after_padding: bool = False
    """Positions are counted from the padding index + 1, so that many fewer are to be had."""
    whole: str = ""
    """Why single heads cannot be cut out; empty where they can."""


BERT = Family("encoder.layer.{}.attention.self")
ROBERTA = replace(BERT, positions_after_padding=True)
FAMILIES = {
    "albert": Family(
        "encoder.albert_layer_groups.{}.albert_layers.{}.attention",
        output="dense",
        whole="one attention module serves several layers, so a head cut from one would be gone from all",
    ),
    "bert": BERT,
    "camembert": ROBERTA,
    "data2vec-text": ROBERTA,
    "deberta": Family(
        "encoder.layer.{}.attention.self",
        query="in_proj",
        fused="heads",
        also=("q_bias", "v_bias", "pos_proj", "pos_q_proj"),
    ),
    "deberta-v2": Family(
        "encoder.layer.{}.attention.self",
        query="query_proj",
        key="key_proj",
        value="value_proj",
        also=("pos_key_proj", "pos_query_proj"),
    ),
    "distilbert": Family(
        "transformer.layer.{}.attention", output="out_lin", query="q_lin", key="k_lin", value="v_lin"
    ),
    "electra": BERT,
    "ernie": BERT,
    "eurobert": Family("layers.{}.self_attn", output="o_proj", query="q_proj", key="k_proj", value="v_proj"),
    "megatron-bert": BERT,
    "modernbert": Family("layers.{}.attn", output="Wo", query="Wqkv", fused="blocks"),
    "mpnet": Family(
        "encoder.layer.{}.attention.attn",
        output="o",
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
    "xlm-roberta-xl": replace(ROBERTA, attention="encoder.layer.{}.attention.self"),
}


class Attention(NamedTuple):
    """One layer's attention in a model: its module, its output projection, and the heads still in it."""

    module: nn.Module
    output: nn.Linear
    kept: tuple[int, ...]


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
    """The heads that have been cut out of each layer, in the numbering of the uncut model."""
    recorded = getattr(model.config, "pruned_heads", None) or {}
    return {int(layer): sorted(heads) for layer, heads in recorded.items()}


def attentions(model: PreTrainedModel, family: Family) -> list[Attention]:
    """Every layer's attention in the order of the layers; a module that layers share comes repeatedly."""
    base, config, gone = model.base_model, model.config, pruned_heads(model)
    if config.model_type == "albert":
        depth, groups, inner = config.num_hidden_layers, config.num_hidden_groups, config.inner_group_num
        numbers = [(int(n / (depth / groups)), i) for n in range(depth) for i in range(inner)]
    else:
        numbers = [(n, 0) for n in range(config.num_hidden_layers)]
    found = []
    for layer, number in enumerate(numbers):
        path = family.attention.format(*number)
        parent = path.rpartition(".")[0]
        try:
            module = base.get_submodule(path)
            output = base.get_submodule(f"{path}.{family.output}".replace(f"{path}.^", parent))
        except AttributeError as error:
            raise InputError(
                f"{type(model).__name__} does not fit row {config.model_type!r} of mtl/heads/families.py: "
                f"{error}"
            ) from None
        kept = tuple(head for head in range(config.num_attention_heads) if head not in gone.get(layer, ()))
        if not isinstance(output, nn.Linear) or (kept and output.in_features % len(kept)):
            raise InputError(
                f"{path}: its output projection is no linear layer over {len(kept)} heads; mend its row "
                f"{config.model_type!r} in mtl/heads/families.py"
            )
        found.append(Attention(module, output, kept))
    return found


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
