"""The table of model families: where each keeps the parts of its attention. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple


class Stack(NamedTuple):
    """One kind of attention in a family, in all of its layers."""

    kind: str
    """Its name in tables; `self` where a family has only one."""
    attention: str
    """Path of the module that computes the heads, below the base model; `{}` is the layer's number (in ALBERT
    two: the group's, and the layer's in it)."""
    output: str
    """Path of the output projection, whose input is the concatenated heads, below the attention module; `^`
    is that module's parent."""
    layers: str = "num_hidden_layers"
    """The key of the model's configuration that holds the stack's number of layers."""
    heads: str = "num_attention_heads"
    """The key that holds the number of heads in each of these layers."""
    width: str = "hidden_size"
    """The key that holds the width of all heads together, for configurations without `head_dim`."""
    config: str = ""
    """The part of the configuration that has these keys; empty if that is the whole (unlike in CLIP's
    towers)."""


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table; paths, other than those of the stacks, are below the attention module."""

    stacks: tuple[Stack, ...]
    """The kinds of attention, in the order of `HeadTap.sites`."""
    query: str = "query"
    key: str = "key"
    value: str = "value"
    fused: Literal["", "blocks", "heads"] = ""
    """One module (`query`) computes queries, keys and values: as three blocks (`blocks`), or as q, k and v of
    one head after the other (`heads`)."""
    causal: bool = False
    """A decoder-only model: no position sees a later one."""
    other_head_rows: tuple[str, ...] = ()
    """Further modules or parameters with a row per head dimension, where the model has them."""
    norms_by_head: tuple[str, ...] = ()
    """Norms of queries and of keys that have weights for each head (Command R), where the model has them."""
    norms_over_heads: tuple[str, ...] = ()
    """Norms of queries and of keys that run over all heads together (OLMo 2), below the attention module."""
    position_bias: Literal["", "given", "handed_on"] = ""
    """Layers share a bias by relative position, per head: `given` to each (MPNet) or `handed_on` (T5)."""
    bias_by_head: tuple[str, ...] = ()
    """Parameters below the attention module or its layer with a column, or a number, for each head (BEiT's
    biases, GPT-OSS's sinks), where the model has them."""
    reads_configuration: bool = False
    """The attention module reads its number of heads from the model's configuration in every pass (Phi-3)."""
    positions_after_padding: bool = False
    """Position ids start at the padding index + 1 (RoBERTa), so padding index + 1 fewer are usable."""
    not_prunable_because: str = ""
    """Why single heads cannot be cut out; empty where they can."""
    not_prunable_if: tuple[tuple[str, str], ...] = ()
    """Keys of the configuration that mark models of the family whose heads cannot be cut, and why."""
    layer_groups: bool = False
    """Layers share their modules by groups (`num_hidden_groups`, `inner_group_num`), as in ALBERT."""
    two_sided_if: str = ""
    """The key of the configuration that lets a model of a causal family see later positions, too."""
    score_cap: str = "attn_logit_softcapping"
    """The key that holds a bound of attention scores, which SDPA cannot apply."""
    output_size: str = "hidden_size"
    """The key that holds the size of the last layer's output vectors, where it is set."""
    head_counts: tuple[str, ...] = ("num_attention_heads", "num_heads", "n_heads")
    """Attributes of the attention module that hold its number of heads, as far as it has them."""
    head_widths: tuple[str, ...] = ("all_head_size", "inner_dim", "split_size")
    """Attributes of the attention module that hold the width of all its heads, as far as it has them."""
    pair_counts: tuple[str, ...] = ("num_key_value_heads",)
    """Attributes of the attention module that hold its number of keys and values, as far as it has them."""
    not_shareable_because: str = ""
    """Why heads cannot share query and key components; empty where they can."""
    normed_inside: bool = False
    """The attention module also adds its input to the projected output, and normalises the sum (ALBERT)."""
    takes_bias: bool = False
    """The model adds a mask of numbers [row 1 1 subword] to its scores as it is (BERT); others need one of
    ones and zeros, from which they make more than that (ModernBERT's windows)."""
    encodes_words: bool = True
    """Its models read words, and can be the encoder of a run; those of images and sound cannot."""


BERT = Family((Stack("self", "encoder.layer.{}.attention.self", "^.output.dense"),), takes_bias=True)
ROBERTA = replace(BERT, positions_after_padding=True)
SEPARATE = Family((), query="q_proj", key="k_proj", value="v_proj")
_ROTATED = (
    "its queries and keys are rotated by position after their projection, so that a head has another product "
    "of the two for every distance"
)
_POSITIONS_COMPARED = (
    "the same query and key matrices of a head also compare contents with relative positions, which "
    "components shared for contents do not give"
)
_CACHED = "the cache of a decoder-only model has keys of a head's size, and shared components are wider"
_BIAS_HANDED_ON = "the first layer hands on a bias per head by relative position, which later layers add"
LLAMA = replace(
    SEPARATE,
    stacks=(Stack("self", "layers.{}.self_attn", "o_proj"),),
    causal=True,
    not_shareable_because=_ROTATED,
)
NORMED_OVER_HEADS = replace(LLAMA, norms_over_heads=("q_norm", "k_norm"))
ROTATED_ENCODER = replace(LLAMA, causal=False, takes_bias=True)
DECODER = replace(
    SEPARATE,
    stacks=(Stack("self", "layers.{}.self_attn", "out_proj"),),
    causal=True,
    not_shareable_because=_CACHED,
)
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
    not_shareable_because=_BIAS_HANDED_ON,
)
OF_IMAGES = replace(SEPARATE, stacks=(Stack("self", "layers.{}.attention", "o_proj"),), encodes_words=False)
DINO = replace(OF_IMAGES, stacks=(Stack("self", "encoder.layer.{}.attention", "o_proj"),))
OF_SOUND = replace(
    SEPARATE, stacks=(Stack("self", "encoder.layers.{}.attention", "out_proj"),), encodes_words=False
)
SPEECH_TO_TEXT = replace(BART, encodes_words=False)
TOWER = replace(
    SEPARATE, stacks=(Stack("self", "encoder.layers.{}.self_attn", "out_proj"),), encodes_words=False
)
TWO_TOWERS = replace(
    TOWER,
    stacks=(
        Stack("vision", "vision_model.encoder.layers.{}.self_attn", "out_proj", config="vision_config"),
        Stack("text", "text_model.encoder.layers.{}.self_attn", "out_proj", config="text_config"),
    ),
)
BERT_OF_IMAGES = replace(
    BERT,
    stacks=(Stack("self", "encoder.layer.{}.attention.attention", "^.output.dense"),),
    takes_bias=False,
    encodes_words=False,
)
FAMILIES = {
    "albert": Family(
        (Stack("self", "encoder.albert_layer_groups.{}.albert_layers.{}.attention", "dense"),),
        not_prunable_because="one attention module serves several layers, so a head cut from one would be "
        "gone from all",
        normed_inside=True,
        layer_groups=True,
        takes_bias=True,
    ),
    "apertus": LLAMA,
    "arcee": LLAMA,
    "audio-spectrogram-transformer": OF_IMAGES,
    "bart": BART,
    "beit": replace(
        OF_IMAGES,
        bias_by_head=("relative_position_bias.relative_position_bias_table",),
        not_prunable_if=(
            (
                "use_shared_relative_position_bias",
                "all layers share one bias by relative position, which has a part for each head",
            ),
        ),
    ),
    "bert": BERT,
    "bert-generation": BERT,
    "biogpt": DECODER,
    "blenderbot": BART,
    "blenderbot-small": BART,
    "camembert": ROBERTA,
    "clip": TWO_TOWERS,
    "clip_text_model": replace(TOWER, causal=True),
    "clip_vision_model": TOWER,
    "cohere": replace(LLAMA, norms_by_head=("q_norm", "k_norm")),
    "cohere2": LLAMA,
    "cwm": LLAMA,
    "data2vec-audio": OF_SOUND,
    "data2vec-text": ROBERTA,
    "deberta": replace(
        BERT,
        query="in_proj",
        fused="heads",
        other_head_rows=("q_bias", "v_bias", "pos_proj", "pos_q_proj"),
        not_prunable_if=(
            (
                "talking_head",
                "its talking heads mix the attention of all heads, so that none can be cut alone",
            ),
        ),
        not_shareable_because=_POSITIONS_COMPARED,
        takes_bias=False,
    ),
    "deberta-v2": replace(
        BERT,
        query="query_proj",
        key="key_proj",
        value="value_proj",
        other_head_rows=("pos_key_proj", "pos_query_proj"),
        not_shareable_because=_POSITIONS_COMPARED,
        takes_bias=False,
    ),
    "deit": OF_IMAGES,
    "dinov2": DINO,
    "dinov2_with_registers": DINO,
    "dinov3_vit": replace(
        OF_IMAGES,
        stacks=(Stack("self", "layer.{}.attention", "o_proj"),),
        not_shareable_because=_ROTATED,
    ),
    "distilbert": Family(
        (Stack("self", "transformer.layer.{}.attention", "out_lin"),),
        query="q_lin",
        key="k_lin",
        value="v_lin",
        takes_bias=True,
    ),
    "dots1": LLAMA,
    "electra": BERT,
    "ernie": BERT,
    "ernie4_5": LLAMA,
    "ernie4_5_moe": LLAMA,
    "esm": replace(ROBERTA, not_shareable_because=_ROTATED, takes_bias=False),
    "eurobert": ROTATED_ENCODER,
    "exaone4": LLAMA,
    "gemma": LLAMA,
    "gemma2": LLAMA,
    # EmbeddingGemma is a Gemma 3 without the causal mask.
    "gemma3_text": replace(LLAMA, two_sided_if="use_bidirectional_attention"),
    "glm": LLAMA,
    "glm4": LLAMA,
    "glm4_moe": LLAMA,
    "gpt2": Family(
        (Stack("self", "h.{}.attn", "c_proj"),),
        query="c_attn",
        fused="blocks",
        causal=True,
        not_shareable_because=_CACHED,
    ),
    "gpt_neox": Family(
        (Stack("self", "layers.{}.attention", "dense"),),
        query="query_key_value",
        fused="heads",
        causal=True,
        not_shareable_because=_ROTATED,
    ),
    "gpt_oss": replace(LLAMA, bias_by_head=("sinks",)),
    "gptj": replace(
        DECODER, stacks=(Stack("self", "h.{}.attn", "out_proj"),), not_shareable_because=_ROTATED
    ),
    "granite": LLAMA,
    "granitemoe": LLAMA,
    "granitemoeshared": LLAMA,
    "gte": ROTATED_ENCODER,
    "helium": LLAMA,
    "hubert": OF_SOUND,
    "hunyuan_v1_dense": LLAMA,
    "hunyuan_v1_moe": LLAMA,
    "hyperclovax": LLAMA,
    "ijepa": OF_IMAGES,
    "internlm3": LLAMA,
    "jais2": LLAMA,
    "jina_embeddings_v3": ROTATED_ENCODER,
    "layoutlm": replace(BERT, takes_bias=False),
    "llama": LLAMA,
    "m2m_100": BART,
    "marian": BART,
    "mbart": BART,
    "megatron-bert": BERT,
    "ministral": LLAMA,
    "ministral3": LLAMA,
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "modernbert": Family(
        (Stack("self", "layers.{}.attn", "Wo"),),
        query="Wqkv",
        fused="blocks",
        not_shareable_because=_ROTATED,
    ),
    "modernbert-decoder": replace(LLAMA, stacks=(Stack("self", "layers.{}.attn", "Wo"),)),
    "mpnet": Family(
        (Stack("self", "encoder.layer.{}.attention.attn", "o"),),
        query="q",
        key="k",
        value="v",
        position_bias="given",
        positions_after_padding=True,
        takes_bias=True,
    ),
    "mt5": T5,
    "nanochat": LLAMA,
    "nemotron": LLAMA,
    "nomic_bert": ROTATED_ENCODER,
    "olmo": LLAMA,
    "olmo2": NORMED_OVER_HEADS,
    "olmo3": NORMED_OVER_HEADS,
    "olmoe": NORMED_OVER_HEADS,
    "opt": replace(
        DECODER,
        stacks=(Stack("self", "decoder.layers.{}.self_attn", "out_proj"),),
        output_size="word_embed_proj_dim",  # of OPT-350m
    ),
    "pegasus": BART,
    "phi": replace(LLAMA, stacks=(Stack("self", "layers.{}.self_attn", "dense"),)),
    "phi3": replace(LLAMA, query="qkv_proj", fused="blocks", reads_configuration=True),
    "plbart": BART,
    "qwen2": LLAMA,
    "qwen2_moe": LLAMA,
    "qwen3": LLAMA,
    "qwen3_moe": LLAMA,
    "rembert": BERT,
    "roberta": ROBERTA,
    "roberta-prelayernorm": ROBERTA,
    "roc_bert": BERT,
    "roformer": replace(BERT, not_shareable_because=_ROTATED),
    "seed_oss": LLAMA,
    "sew": OF_SOUND,
    "siglip": TWO_TOWERS,
    "siglip2": TWO_TOWERS,
    "siglip2_text_model": TOWER,
    "siglip2_vision_model": TOWER,
    "siglip_text_model": TOWER,
    "siglip_vision_model": TOWER,
    "smollm3": LLAMA,
    "speech_to_text": SPEECH_TO_TEXT,
    "splinter": BERT,
    "stablelm": replace(
        LLAMA,
        not_prunable_if=(
            ("qk_layernorm", "every head has norms of its own for queries and keys, in a list of modules"),
        ),
    ),
    "starcoder2": LLAMA,
    "t5": T5,
    "umt5": replace(T5, position_bias="", bias_by_head=("relative_attention_bias.weight",)),
    "unispeech": OF_SOUND,
    "unispeech-sat": OF_SOUND,
    "vaultgemma": LLAMA,
    "videomae": BERT_OF_IMAGES,
    "vit": OF_IMAGES,
    "vit_mae": OF_IMAGES,
    "vit_msn": OF_IMAGES,
    "vivit": OF_IMAGES,
    "wav2vec2": OF_SOUND,
    "whisper": SPEECH_TO_TEXT,
    "xlm-roberta": ROBERTA,
    "xlm-roberta-xl": ROBERTA,
    "xmod": ROBERTA,
    "yolos": BERT_OF_IMAGES,
}
"""The rows, by `model_type`."""

UNFIT = {
    "convnext": "it has no attention",
    "dinov3_convnext": "it has no attention",
    "donut-swin": "its stages have different numbers of heads, over windows",
    "pvt": "its stages have different numbers of heads",
    "pvt_v2": "its stages have different numbers of heads",
    "segformer": "its stages have different numbers of heads",
    "swin": "its stages have different numbers of heads, over windows",
    "swinv2": "its stages have different numbers of heads, over windows",
    "wavlm": "it hands the weights of its projections to a function of torch, where heads are out of reach",
}
"""Why no row can describe some families that people ask for, by `model_type`."""


def no_cut_because(family: Family, config: Mapping[str, object]) -> str:
    """Why single heads cannot be cut out of a model of this configuration; empty where they can."""
    reasons = (reason for key, reason in family.not_prunable_if if config.get(key))
    return family.not_prunable_because or next(reasons, "")
