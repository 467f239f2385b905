"""The collaborative attentions of a model."""

from __future__ import annotations

from transformers import PreTrainedModel

from mtl.collaborative.attention import CollaborativeAttention
from mtl.heads.attentions import attentions
from mtl.heads.families import family_of


def collaborative_modules(model: PreTrainedModel) -> list[CollaborativeAttention]:
    """The model's collaborative attentions, in the order of sites."""
    modules = [attention.module for attention in attentions(model, family_of(model))]
    return [module for module in modules if isinstance(module, CollaborativeAttention)]
