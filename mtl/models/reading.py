"""How word vectors are made from a transformer's output, and the defaults for each kind of encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from mtl.errors import InputError
from mtl.heads.arguments import one_of
from mtl.models.pooling import Pooling
from mtl.models.subwords import SubwordTokenizer

Layers = Literal["last", "mix"]
WORD_DROPOUT = 0.2
"""Default word dropout of encoders whose tokenizer has a token to put in place of words."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings as the user gave them; `pooling_of` and `word_dropout_of` fill in an encoder's defaults.

    Raises `InputError` for a pooling or layers that do not exist.
    """

    pooling: Pooling | None = None
    """How the vectors of a word's pieces become one. `None`: their mean; in decoder-only models the vector of
    the last piece, the only one that has seen the whole word."""
    layers: Layers = "last"
    """The last layer's vectors, or a learned mix of all layers (Peters et al. 2018, without their gamma)."""
    word_dropout: float | None = None
    """Probability in training that a word's pieces are replaced by the mask token, or by the unknown token if
    there is no mask token. `None`: 0.2, or 0 without either token. In decoder-only models `None` is 0 without
    a mask token, since their unknown token is often the end-of-text token."""

    def __post_init__(self) -> None:
        if self.pooling is not None:
            one_of(self.pooling, "pooling", get_args(Pooling))
        one_of(self.layers, "layers", get_args(Layers))

    def pooling_of(self, causal: bool) -> Pooling:
        """How an encoder's word vectors are made; `causal`: no position sees a later one."""
        return self.pooling or ("last" if causal else "mean")

    def word_dropout_of(self, tokenizer: SubwordTokenizer, where: str) -> float:
        """The word dropout of an encoder with this tokenizer; `where` names the encoder in errors.

        Raises `InputError` for one outside [0, 1), or above 0 if the tokenizer has neither token.
        """
        if self.word_dropout is None:
            masks = tokenizer.has_mask_token or (tokenizer.mask is not None and not tokenizer.causal)
            return WORD_DROPOUT if masks else 0.0
        if not 0 <= self.word_dropout < 1:
            raise InputError(f"word_dropout {self.word_dropout} is outside [0, 1)")
        if self.word_dropout and tokenizer.mask is None:
            raise InputError(
                f"word_dropout={self.word_dropout} replaces words by the mask or the unknown token, and the "
                f"tokenizer of {where} has neither: use word_dropout=0"
            )
        return self.word_dropout

    def note(self, tokenizer: SubwordTokenizer, dropout: float) -> str | None:
        """A note if word dropout was not given and is 0; else `None`."""
        if self.word_dropout is not None or dropout:
            return None
        return "encoder.word_dropout is 0: the encoder's tokenizer has no mask token to put instead of words"


AS_USUAL = Reading()
"""All settings at their defaults."""
