"""A pretrained encoder: subwords in, one vector per word out."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import ModelOutput

from mtl.errors import InputError
from mtl.heads.clone import Copies, clone_heads, transplant_heads
from mtl.heads.collaborative import SharedAttention, collaborate
from mtl.heads.families import family_of, looks_back_only
from mtl.heads.load import save_model
from mtl.heads.prune import prune_heads
from mtl.heads.tap import HeadTap, eager_attention
from mtl.models import pretrained
from mtl.models.pooling import pool
from mtl.models.pretrained import AttentionKind, Dtype
from mtl.models.reading import AS_USUAL, Reading
from mtl.models.subwords import Subwords, SubwordTokenizer

HeadScale = Float[Tensor, "layer head"] | Float[Tensor, "batch layer head"]


@dataclass(frozen=True, slots=True)
class Observation:
    """A forward pass seen from inside; layers (sites) and heads are numbered as in the uncut model."""

    words: Float[Tensor, "batch word hidden"]
    attentions: list[Float[Tensor, "row head subword subword"]]
    """Per layer the attention probabilities."""
    outputs: list[Float[Tensor, "row subword head head_dim"]]
    """Per layer what each head hands to the output projection, scaled if a scale was given."""
    inputs: list[Float[Tensor, "row subword width"]]
    """Per layer what its attention reads (`HeadTap.observe_inputs`)."""


class Encoder(nn.Module):
    """Word vectors from a transformer, with a tap on every attention head.

    Args:
        transformer: an encoder or decoder-only model of the families table.
        tokenizer: its fast tokenizer.
        reading: how word vectors are made.
        max_length: positions of a window, at most; `None`: as many as the model can read.

    Raises:
        InputError: a model without a row in the table or with several stacks of attention, a tokenizer that
            is not fast, `reading` or `max_length` that do not fit the model.
    """

    def __init__(
        self,
        transformer: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        reading: Reading = AS_USUAL,
        *,
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        config = transformer.config
        self.transformer = transformer
        if (pooler := getattr(transformer, "pooler", None)) is not None:
            # LayoutLM cannot do without one; parameters that get no gradient make DDP fail.
            pooler.requires_grad_(False)
        self.family = family_of(transformer)
        if len(self.family.stacks) > 1:
            raise InputError(
                f"{type(transformer).__name__} translates, and has no vector for each word of one text: give "
                "an encoder or a decoder-only model"
            )
        self.causal = looks_back_only(transformer)
        """Whether no position sees a later one."""
        self.tap = HeadTap(transformer, self.family)
        longest = pretrained.window(transformer, self.family, tokenizer)
        if max_length is not None and max_length > longest:
            raise InputError(f"max_length {max_length} is more than the encoder can read ({longest})")
        self.tokenizer = SubwordTokenizer(
            tokenizer, longest if max_length is None else max_length, causal=self.causal
        )
        self.pooling = reading.pooling_of(self.causal)
        self.word_dropout = reading.word_dropout_of(self.tokenizer, type(transformer).__name__)
        self.note = reading.note(self.tokenizer, self.word_dropout)
        """A note to print on settings that were not given; `None`: nothing."""
        self._reads_token_types = _reads_token_types(transformer)
        # A cache serves the generation of text, and here only costs memory.
        self._options = {"use_cache": False} if self.family.causal else {}
        self.hidden = pretrained.hidden_size(config)
        self.layers, self.heads, self.head_dim = len(self.tap.sites), self.tap.heads, self.tap.head_dim
        mixed = reading.layers == "mix"
        if mixed and self.hidden != config.hidden_size:
            raise InputError(
                f"layers=mix: the last layer of {type(transformer).__name__} has {self.hidden} numbers per "
                f"position and the others {config.hidden_size}: give layers=last"
            )
        # Logits over the embeddings and the layers.
        self.mix = nn.Parameter(torch.zeros(config.num_hidden_layers + 1)) if mixed else None

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        reading: Reading = AS_USUAL,
        *,
        attention: AttentionKind = "sdpa",
        dtype: Dtype = torch.float32,
        max_length: int | None = None,
    ) -> Encoder:
        """A checkpoint by hub name, folder, or `minilm` for the embedded one.

        A head on the checkpoint is left out, as `AutoModel` does. `sdpa` falls back to eager attention in
        families that lack it; `max_length` makes windows shorter than the encoder could read. Raises
        `InputError` for a checkpoint that cannot be loaded.
        """
        transformer, tokenizer = pretrained.load(name, attention, dtype)
        return cls(transformer, tokenizer, reading, max_length=max_length)

    @classmethod
    def from_config(
        cls,
        config: PretrainedConfig,
        tokenizer: PreTrainedTokenizerFast,
        reading: Reading = AS_USUAL,
        *,
        attention: AttentionKind = "sdpa",
        max_length: int | None = None,
    ) -> Encoder:
        """An encoder with random weights; arguments are those of `from_pretrained`."""
        transformer = AutoModel.from_config(
            config,
            attn_implementation=pretrained.implementation(attention, config),
            **pretrained.without_pooler(config),
        )
        return cls(transformer, tokenizer, reading, max_length=max_length)

    def forward(
        self, subwords: Subwords, head_scale: HeadScale | None = None, first: bool = False
    ) -> Float[Tensor, "batch _ hidden"]:
        """One vector per word in float32 or wider, zeros at padding.

        `head_scale` multiplies each head's output. With `first` the vector of the first special token (in a
        long sentence, of its first window) comes before those of the words, as if it were a word.

        In training, whole words are masked with probability `word_dropout`; a word in several windows only in
        the window that owns it.
        """
        with self._scaled(subwords, head_scale):
            output = self.transformer(
                input_ids=self._with_word_dropout(subwords),
                attention_mask=subwords.attention_mask,
                output_hidden_states=self.mix is not None,
                **self._token_types(subwords),
                **self._options,
            )
        hidden = self._mixed(output)
        words = pool(hidden, subwords, self.pooling)
        return torch.cat([first_special(hidden, subwords), words], 1) if first else words

    def observe(self, subwords: Subwords, head_scale: HeadScale | None = None) -> Observation:
        """A forward pass in eager attention: probabilities, inputs and outputs of the heads."""
        with (
            eager_attention(self.transformer),
            self._scaled(subwords, head_scale),
            self.tap.observe() as outputs,
            self.tap.observe_inputs() as inputs,
        ):
            output = self.transformer(
                input_ids=self._with_word_dropout(subwords),
                attention_mask=subwords.attention_mask,
                output_attentions=True,
                output_hidden_states=self.mix is not None,
                **self._token_types(subwords),
                **self._options,
            )
        words = pool(self._mixed(output), subwords, self.pooling)
        probabilities = self.tap.with_cut_heads(output.attentions, output.last_hidden_state)
        return Observation(
            words,
            [*map(at_least_float32, probabilities)],
            [*map(at_least_float32, outputs)],
            [*map(at_least_float32, inputs)],
        )

    def prune(
        self,
        heads: Mapping[int, Iterable[int]],
        scale: Float[Tensor, "layer head"] | None = None,
        *,
        keep_shape: bool = False,
    ) -> None:
        """Cut heads out of the transformer; see `prune_heads`."""
        prune_heads(self.transformer, heads, scale, keep_shape=keep_shape)
        self._tap_anew()

    def clone(
        self, heads: Mapping[int, Iterable[int]], copies: int = 2, *, divide: bool = True, noise: float = 0.0,
        seed: int = 0,
    ) -> Copies:  # fmt: skip
        """Copy heads of the transformer; see `clone_heads`."""
        made = clone_heads(self.transformer, heads, copies, divide=divide, noise=noise, seed=seed)
        self._tap_anew()
        return made

    def transplant(
        self,
        heads: Mapping[int, Mapping[int, int]],
        *,
        divide: bool = True,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Overwrite heads of the transformer by copies of others; see `transplant_heads`."""
        transplant_heads(self.transformer, heads, divide=divide, noise=noise, seed=seed)
        self._tap_anew()

    def collaborate(
        self,
        dim: int,
        *,
        starts: int = 3,
        steps: int = 200,
        seed: int = 0,
        advance: Callable[[SharedAttention], None] = lambda attention: None,
    ) -> list[SharedAttention]:
        """Let the heads of each layer share query and key components; see `collaborate`."""
        made = collaborate(self.transformer, dim, starts=starts, steps=steps, seed=seed, advance=advance)
        self._tap_anew()
        return made

    def _tap_anew(self) -> None:
        self.tap = HeadTap(self.transformer, self.family)
        self.heads = self.tap.heads

    def last_layer(self) -> nn.Module:
        """The last transformer layer: the shared parameters nearest to the decoders."""
        layers = self.transformer.base_model.get_submodule(
            self.family.stacks[-1].attention.partition(".{}")[0]
        )
        assert isinstance(layers, nn.ModuleList)
        return layers[-1]

    def save(self, folder: Path, masks: Float[Tensor, "mask site head"] | None = None) -> None:
        """Write config.json, model.safetensors, tokenizer files, and our settings (encoder.json).

        `masks` are those that it was trained with, of which plain transformers is to speak (`save_model`).
        """
        folder.mkdir(parents=True, exist_ok=True)
        with pretrained.quiet():
            save_model(self.transformer, folder, masks)
            self.tokenizer.tokenizer.save_pretrained(folder)
        settings = {
            "pooling": self.pooling,
            "word_dropout": self.word_dropout,
            "max_length": self.tokenizer.max_length,
            "mix": None if self.mix is None else self.mix.tolist(),
        }
        (folder / "encoder.json").write_text(json.dumps(settings, indent=2) + "\n")

    @classmethod
    def load(
        cls, folder: Path, *, attention: AttentionKind = "sdpa", dtype: Dtype = torch.float32
    ) -> Encoder:
        """The encoder that `save` wrote; raises `InputError` for another folder."""
        path = folder / "encoder.json"
        if not path.is_file():
            raise InputError(f"{path} is missing; give a folder that Encoder.save wrote")
        settings = json.loads(path.read_text())
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
        chance[-1] = 1
        return subwords.input_ids.masked_fill(
            (chance < self.word_dropout)[subwords.slot], self.tokenizer.mask
        )

    def _token_types(self, subwords: Subwords) -> dict[str, Tensor]:
        if subwords.token_types is None or not self._reads_token_types:
            return {}
        return {"token_type_ids": subwords.token_types}

    def _scaled(self, subwords: Subwords, head_scale: Tensor | None) -> AbstractContextManager[None]:
        if head_scale is None:
            return nullcontext()
        return self.tap.scale(head_scale if head_scale.dim() == 2 else head_scale[subwords.sentence])

    def _mixed(self, output: ModelOutput) -> Float[Tensor, "row subword hidden"]:
        if self.mix is None:
            return at_least_float32(output.last_hidden_state)
        states = at_least_float32(torch.stack(output.hidden_states))
        return torch.einsum("l,lrsh->rsh", self.mix.softmax(0), states)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in its own type if that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _reads_token_types(transformer: PreTrainedModel) -> bool:
    """Whether the encoder tells the sentences of a pair apart by token types (RoBERTa has only one type)."""
    types: int = getattr(transformer.config, "type_vocab_size", 0) or 0
    return types > 1 and "token_type_ids" in inspect.signature(transformer.forward).parameters


def first_special(
    hidden: Float[Tensor, "row subword hidden"], subwords: Subwords
) -> Float[Tensor, "batch 1 hidden"]:
    """The vector at the first position of each sentence's first row."""
    if len(hidden) == subwords.sentences:
        return hidden[:, :1]
    rows = torch.arange(subwords.sentences, device=subwords.sentence.device)
    return hidden[torch.searchsorted(subwords.sentence, rows), :1]
