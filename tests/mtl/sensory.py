"""Tiny random models of images and sound, of every family that does not encode words, and their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModel, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mtl.heads.family_table import FAMILIES
from tests.mtl import tiny

LAYERS, HEADS, HEAD_DIM, ROWS = 2, 4, 8, 3
HIDDEN = HEADS * HEAD_DIM
NAMES = tuple(name for name, family in FAMILIES.items() if not family.encodes_words)
OF_VECTORS = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
}
IMAGES = OF_VECTORS | {"image_size": 16, "patch_size": 8}
WAVES = OF_VECTORS | {
    "conv_dim": [12, 12],
    "conv_kernel": [4, 4],
    "conv_stride": [4, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "vocab_size": 12,
}
CAPTIONS = OF_VECTORS | {
    "vocab_size": 40,
    "max_position_embeddings": 16,
    "projection_dim": 12,
    "bos_token_id": 1,
    "eos_token_id": 39,
    "pad_token_id": 0,
}
"""Sizes of a text tower, which may differ from those of the tower for images (`TWO_HEADS`)."""
TWO_HEADS = {"num_attention_heads": 2, "hidden_size": 24}
"""A text tower of 2 heads of 12 numbers beside one of images with 4 heads of 8."""
SPEECH = {
    "d_model": HIDDEN, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": 40,
    "num_mel_bins": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
    "max_source_positions": 8, "max_target_positions": 16,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "audio-spectrogram-transformer": OF_VECTORS
    | {"patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": 12, "num_mel_bins": 8},
    "beit": IMAGES | {"use_relative_position_bias": True},
    "clip": {
        "text_config": CAPTIONS | TWO_HEADS,
        "vision_config": IMAGES | {"projection_dim": 12},
        "projection_dim": 12,
    },
    "clip_text_model": CAPTIONS,
    "data2vec-audio": WAVES | {"conv_pos_kernel_size": 3, "num_conv_pos_embeddings": 2},
    "dinov3_vit": IMAGES | {"num_register_tokens": 2},
    "sew": WAVES | {"squeeze_factor": 2},
    "siglip": {"text_config": CAPTIONS | {"projection_size": HIDDEN}, "vision_config": IMAGES},
    "siglip2": {
        "text_config": CAPTIONS | {"projection_size": HIDDEN},
        "vision_config": OF_VECTORS | {"patch_size": 8, "num_patches": 4},
    },
    "siglip2_vision_model": OF_VECTORS | {"patch_size": 8, "num_patches": 4},
    "siglip_text_model": CAPTIONS,
    "siglip2_text_model": CAPTIONS,
    "speech_to_text": SPEECH
    | {"input_feat_per_channel": 6, "conv_channels": 8, "conv_kernel_sizes": [3], "num_conv_layers": 1},
    "videomae": IMAGES | {"num_frames": 2, "tubelet_size": 2},
    "vit_mae": IMAGES | {"mask_ratio": 0.0},
    "vivit": IMAGES | {"num_frames": 2, "tubelet_size": [2, 8, 8]},
    "whisper": SPEECH,
    "yolos": IMAGES | {"image_size": [16, 16], "num_detection_tokens": 2},
    **dict.fromkeys(("hubert", "unispeech", "unispeech-sat", "wav2vec2"), WAVES),
}


def model(name: str, kind: str = "") -> PreTrainedModel:
    """A model in evaluation mode whose every parameter is random and large enough to matter, in float64.

    `kind` is its class; left out, that of the family's models without a head on top.
    """
    torch.manual_seed(0)
    settings = CONFIG_MAPPING[name](**OWN.get(name, IMAGES))
    kind = kind or {"siglip_text_model": "SiglipTextModel", "siglip2_text_model": "Siglip2TextModel"}.get(
        name, ""
    )
    make = getattr(transformers, kind)._from_config if kind else AutoModel.from_config
    built = make(settings).double().eval()
    tiny.shake(built)
    return built


def batch(name: str) -> dict[str, Tensor]:
    """Random inputs of the family's models, by the names that they have there."""
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(ROWS, *shape, generator=generator, dtype=torch.float64)

    words = torch.randint(5, 38, (ROWS, 6), generator=generator)
    words[:, 5] = 39
    captions = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    patches = {
        "pixel_values": drawn(4, 192),
        "pixel_attention_mask": torch.ones(ROWS, 4, dtype=torch.long),
        "spatial_shapes": torch.tensor([[2, 2]] * ROWS),
    }
    if name.endswith("text_model"):
        return captions
    if name == "siglip2":
        return patches | captions
    if name == "siglip2_vision_model":
        return patches
    if name in ("clip", "siglip"):
        return {"pixel_values": drawn(3, 16, 16)} | captions
    if name == "audio-spectrogram-transformer":
        return {"input_values": drawn(12, 8)}
    if name == "whisper":
        return {"input_features": drawn(6, 16), "decoder_input_ids": words}
    if name == "speech_to_text":
        return {"input_features": drawn(12, 6), "decoder_input_ids": words}
    if name == "vit_mae":  # which patches it hides is drawn at random unless given
        return {"pixel_values": drawn(3, 16, 16), "noise": torch.rand(ROWS, 4, generator=generator)}
    if name in ("videomae", "vivit"):
        return {"pixel_values": drawn(2, 3, 16, 16)}
    if "image_size" in OWN.get(name, IMAGES):
        return {"pixel_values": drawn(3, 16, 16)}
    return {"input_values": drawn(200)}


def vectors(model: PreTrainedModel, given: Mapping[str, Tensor]) -> Tensor:
    """What a model computes last: vectors, or the scores of images and captions."""
    found = model(**given)
    return found[0] if isinstance(found[0], Tensor) else found.last_hidden_state
