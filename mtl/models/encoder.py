"""A pretrained encoder: subwords in, one vector per word out."""

from __future__ import annotations

import inspect
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import ModelOutput

from mtl.errors import InputError
from mtl.heads.families import family_of, looks_back_only
from mtl.models import pretrained
from mtl.models.pooling import pool
from mtl.models.pretrained import AttentionKind, Dtype
from mtl.models.reading import AS_USUAL, Reading
from mtl.models.subwords import Subwords, SubwordTokenizer
from mtl.models.tapped import SharedEncoder, WordReader
from mtl.tasks.in_words import counted
from mtl.tasks.precision import at_least_float32

HeadScale = Float[Tensor, "layer head"] | Float[Tensor, "batch layer head"]


class Encoder(WordReader, SharedEncoder):
    """Word vectors from a transformer, with a tap on every attention head.

    Args:
        transformer: an encoder or decoder-only model of the families table.
        tokenizer: its fast tokenizer.
        reading: how word vectors are made.
        max_length: maximum number of positions per window; `None`: the most that the model can read.

    Raises:
        InputError: a model without a row in the table or with several stacks of attention, a tokenizer that
            is not fast, `reading` or `max_length` that do not fit the model.
    """

    settings_file = "encoder.json"

    def __init__(
        self,
        transformer: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        reading: Reading = AS_USUAL,
        *,
        max_length: int | None = None,
    ) -> None:
        super().__init__(transformer, family_of(transformer))
        if len(self.family.stacks) > 1:
            raise InputError(
                f"{type(transformer).__name__} translates, and has no vector for each word of one text: use "
                "an encoder or a decoder-only model"
            )
        config = transformer.config
        for name in ("pooler", "contact_head"):  # LayoutLM and ESM cannot be loaded without one
            if (unused := getattr(transformer, name, None)) is not None:
                unused.requires_grad_(False)  # parameters that get no gradient make DDP fail
        self.causal = looks_back_only(transformer)
        longest = pretrained.window(transformer, self.family, tokenizer)
        if max_length is not None and max_length > longest:
            raise InputError(f"max_length {max_length} is more than the encoder can read ({longest})")
        self.tokenizer = SubwordTokenizer(
            tokenizer, longest if max_length is None else max_length, causal=self.causal
        )
        self.pooling = reading.pooling_of(self.causal)
        self.word_dropout = reading.word_dropout_of(self.tokenizer, type(transformer).__name__)
        self._note = reading.note(self.tokenizer, self.word_dropout)
        self.reads_token_types = _reads_token_types(transformer)
        # A cache is for generating text, and would only cost memory here.
        self._options = {"use_cache": False} if self.family.causal else {}
        self.hidden = pretrained.hidden_size(config)
        mixed = reading.layers == "mix"
        if mixed and self.hidden != config.hidden_size:
            raise InputError(
                f"layers=mix: the last layer of {type(transformer).__name__} has "
                f"{counted(self.hidden, 'number')} per position and the others {config.hidden_size}: use "
                "layers=last"
            )
        # Logits over the embeddings and the layers.
        self.mix = nn.Parameter(torch.zeros(config.num_hidden_layers + 1)) if mixed else None

    @property
    def note(self) -> str | None:
        """A note on settings that were not given; `None`: nothing."""
        return self._note

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        reading: Reading = AS_USUAL,
        *,
        attention: AttentionKind = "sdpa",
        dtype: Dtype = torch.float32,
        max_length: int | None = None,
        revision: str | None = None,
    ) -> Encoder:
        """Load a checkpoint: `minilm` (the embedded one), a folder, or a name on the hub with a `revision`.

        A head on the checkpoint is left out, as `AutoModel` does. `sdpa` falls back to eager attention in
        families that lack it; `max_length` makes windows shorter than the encoder could read. Raises
        `InputError` for a checkpoint that cannot be loaded.
        """
        transformer, tokenizer = pretrained.load(name, attention, dtype, revision)
        encoder = cls(transformer, tokenizer, reading, max_length=max_length)
        notes = filter(None, (pretrained.tokenizer_note(name), encoder.note))
        encoder._note = "\n".join(notes) or None
        return encoder

    def forward(
        self, subwords: Subwords, head_scale: HeadScale | None = None, first: bool = False
    ) -> Float[Tensor, "batch _ hidden"]:
        """One vector per word in float32 or wider, zeros at padding.

        `head_scale` multiplies each head's output. With `first`, the vector of the first special token (in a
        long sentence, of its first window) comes before those of the words, as if it were a word.

        In training, whole words are masked with probability `word_dropout`; a word in several windows is
        masked only in the window that owns it.
        """
        with self.scaled(subwords, head_scale):
            output = self.read(subwords)
        hidden = self._mixed(output)
        words = pool(hidden, subwords, self.pooling)
        return torch.cat([first_special(hidden, subwords), words], 1) if first else words

    def read(self, subwords: Subwords, **options: Any) -> ModelOutput:
        """The transformer's output for these subwords, of which some are masked in training."""
        if subwords.token_types is not None and self.reads_token_types:
            options["token_type_ids"] = subwords.token_types
        return self.transformer(
            input_ids=self._with_word_dropout(subwords),
            attention_mask=subwords.attention_mask,
            output_hidden_states=self.mix is not None,
            **self._options,
            **options,
        )

    def words(self, output: ModelOutput, subwords: Subwords) -> Float[Tensor, "batch word hidden"]:
        """The pieces of each word, pooled."""
        return pool(self._mixed(output), subwords, self.pooling)

    def word_reader(self) -> Encoder:
        """The encoder itself."""
        return self

    def settings(self) -> dict[str, Any]:
        """How words are read, for `load`."""
        return {
            "pooling": self.pooling,
            "word_dropout": self.word_dropout,
            "max_length": self.tokenizer.max_length,
            "mix": None if self.mix is None else self.mix.tolist(),
        }

    @classmethod
    def load(
        cls, folder: Path, *, attention: AttentionKind = "sdpa", dtype: Dtype = torch.float32
    ) -> Encoder:
        """The encoder that `save` wrote; raises `InputError` for another folder."""
        path = folder / cls.settings_file
        if not path.is_file():
            raise InputError(f"{path} is missing; use a folder that Encoder.save wrote")
        settings = json.loads(path.read_bytes())
        encoder = cls.from_pretrained(
            str(folder),
            Reading(
                settings["pooling"],
                "last" if settings["mix"] is None else "mix",
                float(settings["word_dropout"]),
            ),
            attention=attention,
            dtype=dtype,
            max_length=settings["max_length"],
        )
        if encoder.mix is not None:
            encoder.mix.data.copy_(torch.tensor(settings["mix"]))
        return encoder

    def _with_word_dropout(self, subwords: Subwords) -> Tensor:
        if not self.training or self.word_dropout == 0:
            return subwords.input_ids
        assert self.tokenizer.mask is not None
        chance = torch.rand(subwords.sentences * subwords.width + 1, device=subwords.slot.device)
        chance[-1:].fill_(1)  # an assignment would copy the number from the host, and wait
        return subwords.input_ids.masked_fill(
            (chance < self.word_dropout)[subwords.slot], self.tokenizer.mask
        )

    def scaled(self, subwords: Subwords, head_scale: Tensor | None) -> AbstractContextManager[None]:
        """Inside the block, the scale, or one per sentence, applies to passes over these subwords."""
        if head_scale is None:
            return nullcontext()
        return self.tap.scale(head_scale if head_scale.dim() == 2 else head_scale[subwords.sentence])

    def _mixed(self, output: ModelOutput) -> Float[Tensor, "row subword hidden"]:
        if self.mix is None:
            return at_least_float32(output.last_hidden_state)
        states = at_least_float32(torch.stack(output.hidden_states))
        return torch.einsum("l,lrsh->rsh", self.mix.softmax(0), states)


def _reads_token_types(transformer: PreTrainedModel) -> bool:
    """Whether the encoder tells the sentences of a pair apart by token types (RoBERTa has only one type)."""
    types: int = getattr(transformer.config, "type_vocab_size", 0) or 0
    return types > 1 and "token_type_ids" in inspect.signature(transformer.forward).parameters


def first_special(
    hidden: Float[Tensor, "row subword hidden"], subwords: Subwords
) -> Float[Tensor, "batch 1 hidden"]:
    """The vector at the first position of each sentence's first row."""
    sentences = torch.arange(subwords.sentences, device=subwords.sentence.device)
    rows = (subwords.sentence < sentences[:, None]).sum(1)
    return hidden[rows, :1]
