"""A pretrained encoder: subwords in, one vector per word out, by the defaults for each kind of encoder."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import ModelOutput

from mtl.errors import InputError
from mtl.heads.arguments import one_of
from mtl.heads.families import family_of, looks_back_only
from mtl.models import pretrained
from mtl.models.pass_graphs import graphs_for
from mtl.models.pretrained import AttentionKind, Dtype
from mtl.models.subwords import Subwords, SubwordTokenizer
from mtl.models.tapped import SharedEncoder, WordReader
from mtl.tasks.decoders.decoder import at_least_float32
from mtl.tasks.in_words import counted
from mtl.tasks.recursions import round_up
from mtl.tasks.task import Task

Pooling = Literal["mean", "first", "last"]


def pool(
    hidden: Float[Tensor, "row subword hidden"], subwords: Subwords, pooling: Pooling
) -> Float[Tensor, "batch word hidden"]:
    """One vector per word: the mean, the first or the last of its pieces' vectors; zeros without pieces."""
    sentences, width = subwords.sentences, subwords.width
    slot, nowhere = subwords.slot, sentences * width
    if pooling != "mean":
        # A word's pieces are adjacent in one row: keep only the position where its slot begins or ends.
        other = torch.full_like(slot[:, :1], nowhere)
        beside = (
            torch.cat([other, slot[:, :-1]], 1) if pooling == "first" else torch.cat([slot[:, 1:], other], 1)
        )
        slot = slot.masked_fill(slot == beside, nowhere)
    flat = slot.flatten()
    summed = hidden.new_zeros(nowhere + 1, hidden.shape[-1]).index_add(0, flat, hidden.flatten(0, 1))
    summed = summed[:-1]
    if pooling == "mean":
        pieces = subwords.pieces
        if pieces is None:  # in an exported graph; not by `bincount`, which on a GPU waits for the host
            ones = torch.ones(flat.numel(), dtype=torch.float32, device=flat.device)
            pieces = ones.new_zeros(nowhere + 1).index_add(0, flat, ones)[:-1].clamp(min=1)
        summed = summed / pieces[:, None].to(summed.dtype)
    return summed.view(sentences, width, -1)


Layers = Literal["last", "mix", "mix_per_task"]


def layers_read(mix: Any) -> Layers:
    """The layers that were read, from the logits of their mix in encoder.json."""
    return "last" if mix is None else "mix_per_task" if isinstance(mix, Mapping) else "mix"


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
    """The last layer's vectors, or a learned mix of all layers (Peters et al. 2018, without their gamma), for
    all tasks or one for each."""
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
                f"encoder.word_dropout={self.word_dropout} replaces words by the mask or the unknown token, "
                f"and the tokenizer of {where} has neither: use encoder.word_dropout=0"
            )
        return self.word_dropout

    def note(self, tokenizer: SubwordTokenizer, dropout: float) -> str | None:
        """A note if word dropout was not given and is 0; else `None`."""
        if self.word_dropout is not None or dropout:
            return None
        return "encoder.word_dropout is 0: the encoder's tokenizer has no mask token to put instead of words"


AS_USUAL = Reading()
"""All settings at their defaults."""


class PassInputs(NamedTuple):
    """What a pass reads besides weights."""

    ids: Int[Tensor, "row subword"]
    mask: Int[Tensor, "row subword"]
    types: Int[Tensor, "row subword"] | None
    scale: Tensor | None
    """A factor for each head [site head], or for each head in each row [row site head]."""

    def padded(self, rows: int, width: int, padding: int) -> PassInputs:
        """The same with rows of padding, which attend to themselves: rows without any token may give NaN."""
        below, beside = rows - self.ids.shape[0], width - self.ids.shape[1]
        if not below and not beside:
            return self
        corner = (0, beside, 0, below)
        scale = self.scale
        if below and scale is not None and scale.dim() == 3:
            scale = pad(scale, (0, 0, 0, 0, 0, below), value=1)
        return PassInputs(
            pad(self.ids, corner, value=padding),
            pad(pad(self.mask, (0, beside)), (0, 0, 0, below), value=1),
            None if self.types is None else pad(self.types, corner),
            scale,
        )


_ROWS, _WIDTH = 4, 8
"""Of passes by graphs, rows and widths become multiples of these."""
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
                f"{type(transformer).__name__} is an encoder-decoder model, and has no vector for each word "
                "of one text: use an encoder or a decoder-only model"
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
        self._takes_bias = self.family.takes_bias and not getattr(config, "is_decoder", False)
        # A cache is for generating text, and would only cost memory here.
        self._options = {"use_cache": False} if self.family.causal else {}
        self.hidden = pretrained.hidden_size(config)
        self.reading_layers = reading.layers
        mixed = reading.layers != "last"
        if mixed and self.hidden != config.hidden_size:
            raise InputError(
                f"encoder.layers={reading.layers}: the last layer of {type(transformer).__name__} has "
                f"{counted(self.hidden, 'number')} per position and the others {config.hidden_size}: use "
                "encoder.layers=last"
            )
        # Logits over the embeddings and the layers; with a mix per task a row for each (`serve`).
        self.mixing: tuple[str, ...] = ()
        states = config.num_hidden_layers + 1
        shape = (states,) if reading.layers == "mix" else (0, states)
        self.mix = nn.Parameter(torch.zeros(shape)) if mixed else None

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
        transformer, tokenizer = pretrained.load_encoder(name, attention, dtype, revision)
        encoder = cls(transformer, tokenizer, reading, max_length=max_length)
        notes = filter(None, (pretrained.tokenizer_note(name), encoder.note))
        encoder._note = "\n".join(notes) or None
        return encoder

    def serve(self, tasks: Mapping[str, Task]) -> None:
        """With a mix per task, have a row for each, which keeps its values if it was there before."""
        if self.reading_layers != "mix_per_task":
            return
        assert self.mix is not None
        known = dict(zip(self.mixing, self.mix.detach(), strict=True))
        even = self.mix.new_zeros(self.mix.shape[1])
        self.mixing = tuple(tasks)
        self.mix = nn.Parameter(torch.stack([known.get(name, even) for name in tasks]))

    def of_task(self, name: str, words: Float[Tensor, "batch _ _"]) -> Float[Tensor, "batch _ hidden"]:
        """See `SharedEncoder`."""
        if self.reading_layers != "mix_per_task":
            return words
        assert self.mix is not None
        weights = self.mix[self.mixing.index(name)].softmax(0)
        return torch.einsum("l,bwlh->bwh", weights, words.unflatten(2, (len(weights), self.hidden)))

    def forward(
        self, subwords: Subwords, head_scale: HeadScale | None = None, first: bool = False
    ) -> Float[Tensor, "batch _ _"]:
        """One vector per word in float32 or wider, zeros at padding.

        With a mix per task it is that of all layers side by side, from which `of_task` makes each task's.

        `head_scale` multiplies each head's output. With `first`, the vector of the first special token (in a
        long sentence, of its first window) comes before those of the words, as if it were a word.

        In training, whole words are masked with probability `word_dropout`; a word in several windows is
        masked only in the window that owns it.
        """
        types = subwords.token_types if self.reads_token_types else None
        scale = self._of_rows(subwords, head_scale)
        inputs = PassInputs(self._with_word_dropout(subwords), subwords.attention_mask, types, scale)
        hidden = self._hidden_states(inputs)
        words = pool(hidden, subwords, self.pooling)
        return torch.cat([first_special(hidden, subwords), words], 1) if first else words

    def read(self, subwords: Subwords, **options: Any) -> ModelOutput:
        """The transformer's output for these subwords, of which some are masked in training."""
        types = subwords.token_types if self.reads_token_types else None
        return self._read(self._with_word_dropout(subwords), subwords.attention_mask, types, **options)

    def _read(self, ids: Tensor, mask: Tensor, types: Tensor | None, **options: Any) -> ModelOutput:
        if types is not None:
            options["token_type_ids"] = types
        if self._takes_bias and not _on_cpu(mask):
            mask = _bias(mask, self.transformer.dtype)
        return self.transformer(
            input_ids=ids,
            attention_mask=mask,
            output_hidden_states=self.mix is not None,
            **self._options,
            **options,
        )

    def words(self, output: ModelOutput, subwords: Subwords) -> Float[Tensor, "batch word hidden"]:
        """The pieces of each word, pooled; with a mix per task the mean over tasks."""
        words = pool(self._mixed(output), subwords, self.pooling)
        if self.reading_layers != "mix_per_task":
            return words
        return torch.stack([self.of_task(name, words) for name in self.mixing]).mean(0)

    def word_reader(self) -> Encoder:
        """The encoder itself."""
        return self

    def settings(self) -> dict[str, Any]:
        """How words are read, for `load`."""
        mix: Any = None if self.mix is None else self.mix.tolist()
        if self.reading_layers == "mix_per_task":
            mix = dict(zip(self.mixing, mix, strict=True))
        return {
            "pooling": self.pooling,
            "word_dropout": self.word_dropout,
            "max_length": self.tokenizer.max_length,
            "mix": mix,
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
        mix, layers = settings["mix"], layers_read(settings["mix"])
        try:
            reading = Reading(settings["pooling"], layers, float(settings["word_dropout"]))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        encoder = cls.from_pretrained(
            str(folder),
            reading,
            attention=attention,
            dtype=dtype,
            max_length=settings["max_length"],
        )
        if encoder.mix is not None and layers == "mix_per_task":
            encoder.mixing = tuple(mix)
            encoder.mix = nn.Parameter(encoder.mix.new_tensor(list(mix.values())))
        elif encoder.mix is not None:
            encoder.mix.data.copy_(torch.tensor(mix))
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
        scale = self._of_rows(subwords, head_scale)
        return nullcontext() if scale is None else self.tap.scale(scale)

    def _of_rows(self, subwords: Subwords, head_scale: Tensor | None) -> Tensor | None:
        """The scale of all rows, or of each."""
        if head_scale is None or head_scale.dim() != 3:
            return head_scale
        # The gradient of `head_scale[subwords.sentence]` would sort the sentences on a GPU.
        return head_scale.index_select(0, subwords.sentence)

    def _hidden_states(self, inputs: PassInputs) -> Float[Tensor, "row subword _"]:
        """The vectors from which words are made, by the graphs that are in use here."""
        graphs = graphs_for(self)
        if graphs is None:
            return self._hidden(*inputs)
        rows, width = inputs.ids.shape
        longest = max(width, min(round_up(width, _WIDTH), self.tokenizer.max_length))
        padded = inputs.padded(round_up(rows, _ROWS), longest, self.tokenizer.padding)
        return graphs.run(self, "the encoder", self._hidden, padded)[:rows, :width]

    def _hidden(
        self, ids: Tensor, mask: Tensor, types: Tensor | None, scale: Tensor | None
    ) -> Float[Tensor, "row subword _"]:
        with nullcontext() if scale is None else self.tap.scale(scale):
            return self._mixed(self._read(ids, mask, types))

    def _mixed(self, output: ModelOutput) -> Float[Tensor, "row subword _"]:
        if self.mix is None:
            return at_least_float32(output.last_hidden_state)
        if self.reading_layers == "mix_per_task":
            return torch.cat([*map(at_least_float32, output.hidden_states)], 2)
        states = at_least_float32(torch.stack(output.hidden_states))
        return torch.einsum("l,lrsh->rsh", self.mix.softmax(0), states)


def _on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _bias(mask: Int[Tensor, "row subword"], dtype: torch.dtype) -> Float[Tensor, "row 1 1 subword"]:
    """What attention adds to its scores: 0, and the lowest number at padding.

    From ones and zeros transformers makes a mask of its own, of which each layer makes such numbers, and for
    which it looks whether there is padding. That is worth it on a CPU; another device has to be waited for.
    """
    if torch.is_autocast_enabled(mask.device.type):
        dtype = torch.get_autocast_dtype(mask.device.type)
    return ((mask[:, None, None] - 1) * -torch.finfo(dtype).min).to(dtype)


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
