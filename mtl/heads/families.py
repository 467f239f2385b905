"""The table of encoder families: where each keeps the pieces of its attention."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mtl.errors import InputError
from mtl.heads.projections import in_features, out_features
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
    layers: str = "num_hidden_layers"
    """The key of the model's configuration that holds its number of layers."""
    heads: str = "num_attention_heads"
    """The key that holds its number of heads."""


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
    causal: bool = False
    """A decoder-only model: each position sees those before it only."""
    other_head_rows: tuple[str, ...] = ()
    """Further modules or parameters with a row per head dimension, where the model has them."""
    norms_over_heads: tuple[str, ...] = ()
    """Norms of queries and of keys that run over all heads together (OLMo 2), below the attention module."""
    position_bias: Literal["", "given", "handed_on"] = ""
    """Layers share a bias per head: all of them are given it (MPNet), or each hands it to the next (T5)."""
    reads_configuration: bool = False
    """The attention module reads its number of heads from the model's configuration (Phi-3)."""
    positions_after_padding: bool = False
    """Position ids start at the padding index + 1 (RoBERTa), so padding index + 1 fewer are usable."""
    not_prunable_because: str = ""
    """Why single heads cannot be cut out; empty where they can."""


BERT = Family((Stack("self", "encoder.layer.{}.attention.self", "^.output.dense"),))
ROBERTA = replace(BERT, positions_after_padding=True)
SEPARATE = Family((), query="q_proj", key="k_proj", value="v_proj")
LLAMA = replace(SEPARATE, stacks=(Stack("self", "layers.{}.self_attn", "o_proj"),), causal=True)
BART = replace(
    SEPARATE,
    stacks=(
        Stack(
            "encoder", "encoder.layers.{}.self_attn", "out_proj", "encoder_layers", "encoder_attention_heads"
        ),
        Stack(
            "decoder", "decoder.layers.{}.self_attn", "out_proj", "decoder_layers", "decoder_attention_heads"
        ),
        Stack(
            "cross", "decoder.layers.{}.encoder_attn", "out_proj", "decoder_layers", "decoder_attention_heads"
        ),
    ),
)
T5 = Family(
    (
        Stack("encoder", "encoder.block.{}.layer.0.SelfAttention", "o", "num_layers", "num_heads"),
        Stack("decoder", "decoder.block.{}.layer.0.SelfAttention", "o", "num_decoder_layers", "num_heads"),
        Stack("cross", "decoder.block.{}.layer.1.EncDecAttention", "o", "num_decoder_layers", "num_heads"),
    ),
    query="q",
    key="k",
    value="v",
    position_bias="handed_on",
)
FAMILIES = {
    "albert": Family(
        (Stack("self", "encoder.albert_layer_groups.{}.albert_layers.{}.attention", "dense"),),
        not_prunable_because="one attention module serves several layers, so a head cut from one would be "
        "gone from all",
    ),
    "bart": BART,
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
    "eurobert": replace(LLAMA, causal=False),
    "gemma2": LLAMA,
    "gemma3_text": LLAMA,
    "gpt2": Family((Stack("self", "h.{}.attn", "c_proj"),), query="c_attn", fused="blocks", causal=True),
    "gpt_neox": Family(
        (Stack("self", "layers.{}.attention", "dense"),), query="query_key_value", fused="heads", causal=True
    ),
    "llama": LLAMA,
    "m2m_100": BART,
    "marian": BART,
    "mbart": BART,
    "megatron-bert": BERT,
    "mistral": LLAMA,
    "modernbert": Family((Stack("self", "layers.{}.attn", "Wo"),), query="Wqkv", fused="blocks"),
    "mpnet": Family(
        (Stack("self", "encoder.layer.{}.attention.attn", "o"),),
        query="q",
        key="k",
        value="v",
        position_bias="given",
        positions_after_padding=True,
    ),
    "mt5": T5,
    "olmo2": replace(LLAMA, norms_over_heads=("q_norm", "k_norm")),
    "opt": replace(SEPARATE, stacks=(Stack("self", "decoder.layers.{}.self_attn", "out_proj"),), causal=True),
    "pegasus": BART,
    "phi3": replace(LLAMA, query="qkv_proj", fused="blocks", reads_configuration=True),
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "rembert": BERT,
    "roberta": ROBERTA,
    "roberta-prelayernorm": ROBERTA,
    "smollm3": LLAMA,
    "t5": T5,
    "xlm-roberta": ROBERTA,
    "xlm-roberta-xl": ROBERTA,
}


class Attention(NamedTuple):
    """The attention at one site of a model: its module, its output projection, and the heads still in it."""

    site: Site
    layer: nn.Module
    """The transformer layer that it belongs to."""
    module: nn.Module
    output: nn.Linear | Conv1D
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
    return max([heads_per_site(model), *(copy + 1 for copy in copies)])


def heads_sharing_keys(model: PreTrainedModel) -> dict[int, int]:
    """How many neighbouring heads share keys and values, at the sites where heads were cut or copied."""
    return recorded_sharing(model.config)


def recorded_sharing(config: PretrainedConfig) -> dict[int, int]:
    """As `heads_sharing_keys`, from a configuration, whose keys are text once it was saved."""
    recorded = getattr(config, "heads_sharing_keys", None) or {}
    return {int(site): int(number) for site, number in recorded.items()}


def attentions(model: PreTrainedModel, family: Family) -> list[Attention]:
    """The attention at every site, by stack and layer; a module that layers share comes repeatedly."""
    config, gone, copies = model.config, pruned_heads(model), cloned_heads(model)
    heads = heads_per_site(model)
    heads_per_group(model)
    places = [
        (stack, *place) for stack in family.stacks for place in enumerate(_module_numbers(model, stack))
    ]
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
        uncut = set(range(heads)) - set(gone.get(index, ()))
        left = tuple(sorted(uncut | set(copies.get(index, ()))))
        if not isinstance(output, nn.Linear | Conv1D) or (left and in_features(output) % len(left)):
            raise InputError(
                f"{path}: its output projection is no linear layer over {len(left)} heads; correct its row "
                f"{config.model_type!r} in mtl/heads/families.py"
            )
        found.append(Attention(Site(stack.kind, layer), block, module, output, inside, left))
    return found


def _module_numbers(model: PreTrainedModel, stack: Stack) -> list[tuple[int, ...]]:
    """What fills the `{}` of a path in each layer: its number, or in ALBERT its group and place in it."""
    config = model.config
    if config.model_type != "albert":
        return [(layer,) for layer in range(getattr(config, stack.layers))]
    per_group = config.num_hidden_layers / config.num_hidden_groups
    return [
        (int(turn / per_group), inner)
        for turn in range(config.num_hidden_layers)
        for inner in range(config.inner_group_num)
    ]


def heads_per_site(model: PreTrainedModel) -> int:
    """The number of heads at every site of the uncut model; all stacks must have the same."""
    numbers = {stack.kind: int(getattr(model.config, stack.heads)) for stack in family_of(model).stacks}
    if len(set(numbers.values())) > 1:
        listed = ", ".join(f"{kind} {number}" for kind, number in numbers.items())
        raise InputError(
            f"{type(model).__name__} has another number of heads per kind of attention ({listed}), and "
            "scales and masks have one for all: give a model with as many heads in all of them"
        )
    return next(iter(numbers.values()))


def heads_per_group(model: PreTrainedModel) -> int:
    """How many query heads of the uncut model share keys and values; 1 where each has its own."""
    config = model.config
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    if heads % groups:
        raise InputError(
            f"{type(model).__name__}: {groups} groups of keys and values do not divide {heads} heads: "
            "correct num_key_value_heads in its config.json"
        )
    return int(heads // groups)


def looks_back_only(model: PreTrainedModel) -> bool:
    """Whether no position of the model sees a later one."""
    # EmbeddingGemma is a Gemma 3 without the causal mask.
    return family_of(model).causal and not getattr(model.config, "use_bidirectional_attention", False)


def head_dim(model: PreTrainedModel) -> int:
    """The size of one head's output."""
    config = model.config
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _likely_outputs(model: PreTrainedModel) -> list[str]:
    hidden = getattr(model.config, "hidden_size", None)
    names = {
        re.sub(r"\.\d+\.", ".{}.", name)
        for name, module in model.base_model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and out_features(module) == hidden
        and re.search(r"att", name, re.IGNORECASE)
        and re.search(r"(out|dense|proj|\bo|w_?o)\w*$", name, re.IGNORECASE)
        and not re.search(r"(^|[._])([qkv]|query|key|value)\w*$", name, re.IGNORECASE)
    }
    return sorted(names)
