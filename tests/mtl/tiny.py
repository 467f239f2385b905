"""Tiny random encoders of every family, with tokenizers of the family's kind; nothing is downloaded."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.deberta.modeling_deberta import DebertaLayerNorm

from mtl.heads.family_table import FAMILIES
from mtl.models.encoder import AS_USUAL, Encoder, Reading
from mtl.models.pretrained import AttentionKind, implementation, without_pooler
from tests.pairwise import pairwise

LAYERS, HEADS, HEAD_DIM = 3, 4, 8
WORDS = ("the", "dog", "saw", "a", "cat")
LETTERS = string.ascii_letters + string.digits + string.punctuation

COMMON = {
    "hidden_size": HEADS * HEAD_DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": 16,
    "position_biased_input": False,
}
EXPERTS_IN_ALL = 4
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 8, "experts_implementation": "eager"}
"""Sizes of mixtures; `eager`, since torch's grouped products know no float64."""
GROUPED = {"num_key_value_heads": 2, "head_dim": HEAD_DIM}
LIKE_LLAMA = (
    "apertus", "arcee", "cohere", "cohere2", "cwm", "ernie4_5", "exaone4", "gemma", "glm", "glm4",
    "granite", "helium", "hunyuan_v1_dense", "hyperclovax", "internlm3", "jais2", "ministral", "ministral3",
    "modernbert-decoder", "nanochat", "nemotron", "olmo", "olmo3", "phi", "seed_oss", "stablelm",
    "starcoder2", "vaultgemma",
)  # fmt: skip
"""Decoder-only families with Llama's row, or nearly so."""
OWN: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 12},
    "deberta": DEBERTA,
    "deberta-v2": DEBERTA | {"position_buckets": 8, "share_att_key": False},
    "distilbert": {"hidden_dim": 24},
    "electra": {"embedding_size": 12},
    "eurobert": {"mask_token_id": 4, "num_key_value_heads": 2, "head_dim": HEAD_DIM},
    "modernbert": {
        "cls_token_id": 2,
        "sep_token_id": 3,
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
    },
    "gptj": {
        "n_embd": HEADS * HEAD_DIM,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_inner": 24,
        "n_positions": 64,
        "rotary_dim": 4,
    },
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 4},
    "gemma2": GROUPED | {"attn_logit_softcapping": None, "query_pre_attn_scalar": HEAD_DIM},
    "gemma3_text": GROUPED | {"query_pre_attn_scalar": HEAD_DIM},
    "gpt2": {"n_inner": 24},
    "llama": GROUPED,
    "mistral": GROUPED,
    "nomic_bert": {"head_dim": HEAD_DIM},
    "olmo2": GROUPED,
    "opt": {"ffn_dim": 24, "activation_function": "gelu", "word_embed_proj_dim": HEADS * HEAD_DIM},
    "phi3": GROUPED,
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "rembert": {"input_embedding_size": 12},
    "roc_bert": dict.fromkeys(("pronunciation_vocab_size", "shape_vocab_size"), 32)
    | dict.fromkeys(("pronunciation_embed_dim", "shape_embed_dim"), 8),
    "smollm3": GROUPED,
    "splinter": {"question_token_id": 5},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "gpt_oss": GROUPED
    | EXPERTS
    | {"num_local_experts": EXPERTS_IN_ALL, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    **dict.fromkeys(
        ("granitemoe", "granitemoeshared"), GROUPED | EXPERTS | {"num_local_experts": EXPERTS_IN_ALL}
    ),
    "olmoe": GROUPED | EXPERTS | {"num_experts": EXPERTS_IN_ALL},
    "hunyuan_v1_moe": GROUPED
    | {"num_experts": EXPERTS_IN_ALL, "moe_topk": 2, "experts_implementation": "eager"},
    "ernie4_5_moe": GROUPED
    | EXPERTS
    | {"moe_num_experts": EXPERTS_IN_ALL, "moe_k": 2, "moe_num_shared_experts": 1},
    "glm4_moe": GROUPED
    | EXPERTS
    | {"n_routed_experts": EXPERTS_IN_ALL, "n_shared_experts": 1, "n_group": 1, "topk_group": 1},
    "mixtral": GROUPED | EXPERTS | {"num_local_experts": EXPERTS_IN_ALL},
    "qwen2_moe": GROUPED | EXPERTS | {"num_experts": EXPERTS_IN_ALL, "shared_expert_intermediate_size": 8},
    "qwen3_moe": GROUPED | EXPERTS | {"num_experts": EXPERTS_IN_ALL},
    "dots1": GROUPED
    | EXPERTS
    | {
        "n_routed_experts": EXPERTS_IN_ALL,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    **dict.fromkeys(LIKE_LLAMA, GROUPED),
    "cohere": GROUPED | {"use_qk_norm": True},
}
BYTE_LEVEL = (
    "roberta", "roberta-prelayernorm", "data2vec-text", "modernbert", "eurobert", "deberta",
    *(name for name, family in FAMILIES.items() if family.causal),
)  # fmt: skip
PIECES = ("xlm-roberta", "xlm-roberta-xl", "xmod", "camembert", "albert", "deberta-v2", "rembert")
PADDING_FIRST = (
    "camembert",
    "data2vec-text",
    "esm",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)
OF_WORDS = {name: family for name, family in FAMILIES.items() if family.encodes_words}
NAMES = tuple(name for name, family in OF_WORDS.items() if len(family.stacks) == 1)
"""Encoders and decoder-only models."""
TRANSLATORS = tuple(name for name, family in OF_WORDS.items() if len(family.stacks) > 1)
"""Encoder-decoder models."""
MIXTURES = (
    "dots1", "ernie4_5_moe", "glm4_moe", "gpt_oss", "granitemoe", "granitemoeshared", "hunyuan_v1_moe",
    "mixtral", "olmoe", "qwen2_moe", "qwen3_moe",
)  # fmt: skip
"""Families whose layers choose experts for every position: a small change may choose others."""
CAUSAL = tuple(name for name, family in OF_WORDS.items() if family.causal)
SAME_ROW = (
    "bert-generation", "biogpt", "ernie", "esm", "gemma3_text", "gptj", "gte",
    "jina_embeddings_v3", "layoutlm", "megatron-bert", "mistral", "nomic_bert", "qwen2", "qwen3", "roc_bert",
    "roformer", "smollm3", "splinter", "xmod", *LIKE_LLAMA,
    *(name for name in MIXTURES if name != "gpt_oss"),
)  # fmt: skip
"""Families with the row of another one (BERT, Llama), or nearly so, whose tests are marked as slow."""
REST_OF_TRANSLATORS = ("blenderbot", "blenderbot-small", "mbart", "mt5", "pegasus", "plbart")
STRUCTURES = {
    "bert": "queries, keys and values apart, and the output projection outside of the attention module",
    "albert": "layers share one module, which adds its input and norms; no head can be cut",
    "deberta": "one projection with q, k and v of each head in turn, biases apart, and relative positions",
    "mpnet": "a bias by relative position is given to every layer; positions begin after the padding index",
    "modernbert": "an encoder with three blocks in one projection, rotated positions and local layers",
    "gpt2": "decoder-only, with three blocks in one projection whose weights are transposed",
    "phi3": "grouped queries in one projection; the number of heads is read from the configuration",
    "cohere": "grouped queries in projections of their own, with a norm for each head",
    "olmo2": "grouped queries under norms over all heads together",
    "gpt_oss": "a mixture of experts, and a sink for each head",
    "bart": "three kinds of attention, and a cache of two of them",
    "t5": "three kinds of attention, of which the first layer hands on a bias by relative position",
    "umt5": "three kinds of attention, with a bias by relative position in every layer",
    "beit": "of images, with a bias by relative position in every layer",
    "clip": "two towers with different numbers of heads",
    "wav2vec2": "of sound, behind convolutions",
    "whisper": "of sound, with three kinds of attention",
}
"""The families that differ in structure, and how. One test of each operation runs over all families; all
other tests, and the variants and options of that one, over these."""


def of_structure(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that are in `STRUCTURES`."""
    return tuple(name for name in names if name in STRUCTURES)


def with_variants(names: Iterable[str], *variants: Sequence[Any]) -> list[ParameterSet]:
    """Each family with the first variant of a test, and those of `STRUCTURES` with each."""
    return [
        _case(name, *variant)
        for name in names
        for number, variant in enumerate(variants)
        if number == 0 or name in STRUCTURES
    ]


def with_options(names: Iterable[str], *options: Sequence[Any]) -> list[ParameterSet]:
    """Each family with the first value of every option, and those of `STRUCTURES` with pairs of values."""
    names = tuple(names)
    first = [(name, *(values[0] for values in options)) for name in names]
    keys = {"name": of_structure(names), **{str(number): values for number, values in enumerate(options)}}
    pairs = [tuple(combination.values()) for combination in pairwise(keys)]
    return [_case(*case) for case in (*first, *(case for case in pairs if case not in first))]


def _case(name: str, *values: Any) -> ParameterSet:
    like_another = {*SAME_ROW, *REST_OF_TRANSLATORS} - STRUCTURES.keys()
    return pytest.param(name, *values, marks=[pytest.mark.slow] if name in like_another else [])


EVERY = tuple(with_variants(NAMES, ()))
"""`NAMES` for `pytest.mark.parametrize`."""
CUTTABLE_NAMES = tuple(name for name in NAMES if not FAMILIES[name].not_prunable_because)
CUTTABLE = of_structure(CUTTABLE_NAMES)
EVERY_TRANSLATOR = tuple(with_variants(TRANSLATORS, ()))


SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def config(name: str, **changes: Any) -> PretrainedConfig:
    """A configuration of few, small layers."""
    return CONFIG_MAPPING[name](
        **(COMMON | {"vocab_size": len(tokenizer(name))} | OWN.get(name, {}) | changes)
    )


def model(name: str, *, dtype: torch.dtype = torch.float64, **changes: Any) -> PreTrainedModel:
    """A model whose every parameter is random (biases too) and large enough to matter, without dropout."""
    settings = config(name, **changes)
    torch.manual_seed(0)
    built = AutoModel.from_config(settings, **without_pooler(settings)).to(dtype).eval()
    if dtype == torch.float64:
        _in_double(built)
    shake(built)
    return built


def _in_double(module: nn.Module) -> None:
    """Replace DeBERTa's layer norm, which computes in float32 whatever its weights are, by torch's."""
    for name, child in module.named_children():
        if isinstance(child, DebertaLayerNorm):
            norm = nn.LayerNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
            setattr(module, name, norm)
        else:
            _in_double(child)


class in_double(TorchFunctionMode):
    """Inside the block, what models compute in float32 whatever their weights are is computed in float64.

    Mixtures of experts multiply by the weights of their routers in float32. What such a product gives for a
    row depends on the number of rows and on the processor, in the last of its 24 bits.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        double = {torch.float32: torch.float64}
        func = torch.Tensor.double if func is torch.Tensor.float else func
        given = [double.get(value, value) if isinstance(value, torch.dtype) else value for value in args]
        named = {
            key: double.get(value, value) if isinstance(value, torch.dtype) else value
            for key, value in (kwargs or {}).items()
        }
        return func(*given, **named)


def translator_config(name: str, **changes: Any) -> PretrainedConfig:
    """A configuration with two small layers of each kind of attention."""
    t5 = {
        "d_model": 32, "d_kv": HEAD_DIM, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 2,
        "num_heads": HEADS,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "dropout_rate": 0.0,
        "feed_forward_proj": "gated-gelu",
    }  # fmt: skip
    bart = {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
        "max_position_embeddings": 64, "activation_function": "gelu", "bos_token_id": 2, "dropout": 0.0,
        "forced_eos_token_id": None,
    }  # fmt: skip
    common = {"vocab_size": 64, "pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2}
    return CONFIG_MAPPING[name](**(common | (t5 if name in ("t5", "mt5", "umt5") else bart) | changes))


def translator(name: str, *, dtype: torch.dtype = torch.float64, **changes: Any) -> PreTrainedModel:
    """A model with two layers of each kind of attention, as `model` makes one, with a head for words."""
    settings = translator_config(name, **changes)
    torch.manual_seed(0)
    built = AutoModelForSeq2SeqLM.from_config(settings).to(dtype).eval()
    shake(built)
    return built


def shake(module: nn.Module) -> None:
    """Add a little noise to every parameter, except to positions that follow a formula and are not saved."""
    generator = torch.Generator().manual_seed(1)
    by_formula = getattr(module, "_keys_to_ignore_on_save", None) or ()
    for name, parameter in module.named_parameters():
        if name in by_formula:
            continue
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data += 0.2 * noise.to(parameter.dtype)


def encoder(name: str, *, dtype: torch.dtype = torch.float64, **settings: Any) -> Encoder:
    """An encoder in evaluation mode; `settings` go to `Reading` and to `encoder_of`."""
    torch.manual_seed(0)
    names = {field.name for field in dataclasses.fields(Reading)}
    reading = Reading(**{key: value for key, value in settings.items() if key in names})
    rest = {key: value for key, value in settings.items() if key not in names}
    built = encoder_of(config(name), tokenizer(name), reading, **rest).to(dtype).eval()
    shake(built.transformer)
    return built


def encoder_of(
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerFast,
    reading: Reading = AS_USUAL,
    *,
    attention: AttentionKind = "sdpa",
    max_length: int | None = None,
) -> Encoder:
    """An encoder of this configuration with random weights, as `Encoder.from_pretrained` makes one."""
    transformer = AutoModel.from_config(
        config, attn_implementation=implementation(attention, config), **without_pooler(config)
    )
    return Encoder(transformer, tokenizer, reading, max_length=max_length)


def tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer of the family's kind: some whole words, else single letters."""
    if name in BYTE_LEVEL:
        pieces = _byte_level()
    elif name in PIECES:
        pieces = _sentence_pieces()
    else:
        pieces = _word_pieces()
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
    )


def _word_pieces() -> Tokenizer:
    entries = [*SPECIALS, *WORDS, *(c for c in LETTERS if c not in WORDS), *("##" + c for c in LETTERS)]
    pieces = Tokenizer(
        models.WordPiece(dict(zip(entries, range(len(entries)), strict=True)), unk_token="[UNK]")
    )
    pieces.normalizer = normalizers.BertNormalizer(lowercase=True)
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return pieces


def _byte_level() -> Tokenizer:
    merges = [("Ġ", "d"), ("o", "g"), ("Ġd", "og"), ("t", "h"), ("th", "e"), ("Ġ", "the")]
    entries = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    pieces = Tokenizer(models.BPE(dict(zip(entries, range(len(entries)), strict=True)), merges))
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pieces


def _sentence_pieces() -> Tokenizer:
    entries = [*SPECIALS, "▁", *("▁" + word for word in WORDS), *LETTERS]
    scores = [(entry, 0.0 if entry in SPECIALS else -float(2 + index)) for index, entry in enumerate(entries)]
    pieces = Tokenizer(models.Unigram(scores, unk_id=1))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    return pieces


def batch(length: int = 9, rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids and a mask with padding of different extent in every row."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, 60, (rows, length), generator=generator)
    mask = (torch.arange(length) < length - 2 * torch.arange(rows)[:, None]).long()
    return ids * mask, mask


def parallel_batch() -> dict[str, torch.Tensor]:
    """Inputs of a translator: source and target of different lengths, with padding in both."""
    ids, mask = batch(9)
    targets, target_mask = batch(7)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "decoder_input_ids": targets,
        "decoder_attention_mask": target_mask.clamp(min=0),
    }


def vectors(
    model: PreTrainedModel, ids: torch.Tensor | None = None, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """The last layer's vectors of a batch (`batch()` unless given), zeros at padding."""
    if ids is None or mask is None:
        ids, mask = batch()
    return model(input_ids=ids, attention_mask=mask).last_hidden_state * mask[..., None]


def logits(model: PreTrainedModel, given: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
    """A translator's scores for a batch (`parallel_batch()` unless given), zeros at padding."""
    given = parallel_batch() if given is None else given
    return model(**given, use_cache=False).logits * given["decoder_attention_mask"][..., None]
