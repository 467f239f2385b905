"""Encoder-decoder models with random weights, of the size that a configuration gives."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mtl.config.schema import Seq2SeqConfig
from mtl.heads.collaborative import start_collaborative
from mtl.models.pretrained import AttentionKind

MAX_LENGTH = 512
"""Positions that a model from scratch has."""


def from_scratch(
    config: Seq2SeqConfig, tokenizer: PreTrainedTokenizerFast, attention: AttentionKind = "sdpa"
) -> PreTrainedModel:
    """A model with random weights; source, translation and output share their embeddings.

    Models like BART start with weights of standard deviation 1 / sqrt(width), which for square matrices is
    Xavier's; T5 models start as transformers initialises them. The architecture determines whether norms come
    before or after each sublayer. If `components` is set, the heads of each layer share that many components
    (`start_collaborative`).
    """
    assert config.architecture is not None
    shared = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        # mBART begins with the last token of the translation. M2M100 counts padding as a position in search
        # but not in training.
        "decoder_start_token_id": (
            tokenizer.eos_token_id if config.architecture in ("mbart", "m2m_100") else tokenizer.pad_token_id
        ),
    }
    sizes = _of_t5(config) if config.architecture in ("t5", "mt5") else _of_bart(config)
    settings = CONFIG_MAPPING[config.architecture](**shared, **sizes)
    settings.tie_word_embeddings = True
    model = AutoModelForSeq2SeqLM.from_config(
        settings, attn_implementation="eager" if attention == "eager" else None
    )
    if config.components is not None:
        learned = config.mixing == "learned"
        start_collaborative(model, config.components, config.width**-0.5, learned=learned)
    return model


def _of_bart(config: Seq2SeqConfig) -> dict[str, Any]:
    return {
        "d_model": config.width,
        "encoder_layers": config.layers,
        "decoder_layers": config.decoder_layers or config.layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.feed_forward,
        "decoder_ffn_dim": config.feed_forward,
        "dropout": config.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "activation_function": "relu",
        "scale_embedding": True,
        "init_std": config.width**-0.5,
        "max_position_embeddings": MAX_LENGTH,
        "bos_token_id": None,
        "forced_eos_token_id": None,
    }


def _of_t5(config: Seq2SeqConfig) -> dict[str, Any]:
    return {
        "d_model": config.width,
        "d_kv": config.width // config.heads,
        "d_ff": config.feed_forward,
        "num_layers": config.layers,
        "num_decoder_layers": config.decoder_layers or config.layers,
        "num_heads": config.heads,
        "dropout_rate": config.dropout,
        "feed_forward_proj": "relu",
    }
