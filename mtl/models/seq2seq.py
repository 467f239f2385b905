"""An encoder-decoder model: a sentence and its translation in, scores of the translation's pieces out."""

from __future__ import annotations

import copy
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import BaseModelOutput

from mtl.errors import InputError
from mtl.heads.families import family_of
from mtl.heads.family_table import FAMILIES
from mtl.heads.load import class_for, load_errors, load_model
from mtl.heads.query_key import query_key_parameters
from mtl.heads.records import needs_rebuild
from mtl.models import pretrained
from mtl.models.languages import require_language_codes, require_languages
from mtl.models.parallel import ParallelSubwords, ParallelTokenizer
from mtl.models.pretrained import AttentionKind, Dtype
from mtl.models.tapped import SharedEncoder, WordReader
from mtl.tasks.in_words import counted
from mtl.tasks.task import UNKNOWN

HeadScale = Float[Tensor, "site head"] | Float[Tensor, "batch site head"]


class Seq2Seq(SharedEncoder):
    """Scores of a translation's pieces from an encoder-decoder model, with a tap on every attention head.

    In a joint model it takes the place of the encoder. An encoder gives a vector per word; this model gives,
    per piece of the translation, the scores of all pieces of the vocabulary.

    Args:
        transformer: the model, with its head over the vocabulary.
        tokenizer: for source and translation.
        source: the source's language; empty if there is only one.
        target: the translation's language, likewise.
        max_length: maximum number of pieces per sentence; `None`: the number of the model's positions.

    Raises:
        InputError: a model without a row in the families table, or without a decoder that reads an encoder.
    """

    settings_file = "seq2seq.json"

    def __init__(
        self,
        transformer: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        source: str = "",
        target: str = "",
        *,
        max_length: int | None = None,
    ) -> None:
        super().__init__(transformer, family_of(transformer))
        require_decoder(transformer.config.model_type, type(transformer).__name__)
        self.source, self.target = source, target
        if max_length is None:
            # T5, with relative positions, has no limit.
            positions = getattr(transformer.config, "max_position_embeddings", None) or 100_000
            max_length = min(positions, tokenizer.model_max_length)
        self.tokenizer = ParallelTokenizer(tokenizer, max_length, source, target)
        self.hidden = int(transformer.get_output_embeddings().weight.shape[0])

    @property
    def note(self) -> str:
        """A note on the model's size."""
        return (
            f"model: {counted(self.transformer.num_parameters(), 'parameter')}, "
            f"{query_key_parameters(self.transformer):,} of them in queries and keys"
        )

    @property
    def translator(self) -> Seq2Seq:
        """The model itself."""
        return self

    def word_reader(self) -> WordReader:
        """The model's encoder, on annotated sources."""
        from mtl.models.source_encoder import SourceEncoder  # which reads the sources of this class

        return SourceEncoder(self)

    @classmethod
    def from_pretrained(
        cls, name: str, source: str = "", target: str = "", *, attention: AttentionKind = "sdpa"
    ) -> Seq2Seq:
        """A checkpoint by hub name or folder; raises `InputError` for one that cannot translate this way."""
        transformer, tokenizer = _load(name, attention, torch.float32)
        require_languages(name, transformer.config, tokenizer, source, target)
        require_language_codes(name, tokenizer, source, target)
        return cls(transformer, tokenizer, source, target)

    def forward(
        self, subwords: ParallelSubwords, head_scale: HeadScale | None = None, first: bool = False
    ) -> Float[Tensor, "batch piece vocabulary"]:
        """Scores of the vocabulary for each piece of the translation, given the pieces before it.

        `head_scale` multiplies each head's output.
        """
        assert not first
        assert subwords.pieces is not None
        # Models like BART add a bias in float32, which would widen all scores of a pass in bfloat16.
        bias: Tensor | None = getattr(self.transformer, "final_logits_bias", None)
        model = self.transformer if bias is None else self.transformer.base_model
        with self._scaled(head_scale):
            output = model(
                input_ids=subwords.input_ids,
                attention_mask=subwords.attention_mask,
                decoder_input_ids=_shifted(self.transformer, subwords.pieces),
                use_cache=False,
            )
        if bias is None:
            return output.logits
        scores: Tensor = self.transformer.get_output_embeddings()(output.last_hidden_state)
        return scores.add_(bias.to(scores.dtype))

    def encode(
        self, subwords: ParallelSubwords, head_scale: HeadScale | None = None
    ) -> Float[Tensor, "batch subword hidden"]:
        """The encoder's output, which the decoder reads."""
        with self._scaled(head_scale):
            output = self.transformer.get_encoder()(
                input_ids=subwords.input_ids, attention_mask=subwords.attention_mask
            )
        encoded: Tensor = output.last_hidden_state
        return encoded

    @torch.inference_mode()
    def translate(
        self,
        subwords: ParallelSubwords,
        head_scale: HeadScale | None = None,
        *,
        encoded: Float[Tensor, "batch subword hidden"] | None = None,
        beam: int = 5,
        length_penalty: float = 1.0,
    ) -> list[str]:
        """The best translation of each sentence that beam search finds.

        A translation has at most twice the pieces of its source and 20 more, within the model's positions.
        `encoded` is the output of `encode` for the same rows, if known; the encoder is then not called.
        """
        limits = (2 * subwords.attention_mask.sum(1) + 20).clamp_max(self.tokenizer.max_length - 1)
        settings = copy.deepcopy(self.transformer.generation_config)
        settings.update(
            num_beams=beam, length_penalty=length_penalty, do_sample=False, max_new_tokens=int(limits.max()),
            max_length=None, early_stopping=False, use_cache=True, **self._beginning(),
        )  # fmt: skip
        with self._scaled(head_scale, beam):
            pieces = self.transformer.generate(
                input_ids=subwords.input_ids,
                attention_mask=subwords.attention_mask,
                encoder_outputs=BaseModelOutput(
                    last_hidden_state=self.encode(subwords) if encoded is None else encoded
                ),
                generation_config=settings,
                logits_processor=LogitsProcessorList([_Bounded(limits, settings.eos_token_id)]),
            )
        return self.tokenizer.text(pieces)

    def freeze_decoder(self) -> None:
        """Train only the encoder's layers (Voita et al. 2019): freeze the decoder and all embeddings.

        The decoder is set to evaluation mode.
        """
        trained = {id(parameter) for parameter in self.transformer.get_encoder().parameters()}
        trained -= {id(parameter) for parameter in self.transformer.get_input_embeddings().parameters()}
        for parameter in self.transformer.parameters():
            if id(parameter) not in trained:
                parameter.requires_grad_(False)
        self.transformer.get_decoder().eval()

    def settings(self) -> dict[str, Any]:
        """The languages, and the longest sentence."""
        return {"source": self.source, "target": self.target, "max_length": self.tokenizer.max_length}

    @classmethod
    def load(
        cls, folder: Path, *, attention: AttentionKind = "sdpa", dtype: Dtype = torch.float32
    ) -> Seq2Seq:
        """The model that `save` wrote."""
        settings = json.loads((folder / Seq2Seq.settings_file).read_bytes())
        transformer, tokenizer = _load(str(folder), attention, dtype)
        return cls(transformer, tokenizer, **settings)

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Whether `save` wrote into the folder."""
        return (folder / Seq2Seq.settings_file).is_file()

    def _beginning(self) -> dict[str, int]:
        """What translations begin with in training: the decoder's start, and the language's token if any.

        The checkpoint's files do not state tokens that depend on the language (mBART, M2M100, NLLB).
        """
        empty = self.tokenizer.empty()
        start = _shifted(self.transformer, torch.tensor([empty]))[0, 0]
        beginning = {"decoder_start_token_id": int(start)}
        if empty[0] != self.tokenizer.tokenizer.eos_token_id:
            beginning["forced_bos_token_id"] = empty[0]
        return beginning

    def _scaled(self, head_scale: Tensor | None, neighbours: int = 1) -> AbstractContextManager[None]:
        return nullcontext() if head_scale is None else self.tap.scale(head_scale, neighbours=neighbours)


def _shifted(model: PreTrainedModel, pieces: Int[Tensor, "row piece"]) -> Int[Tensor, "row piece"]:
    """What the decoder reads: the pieces shifted by one position, after the family's start token."""
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        shifted: Tensor = model.prepare_decoder_input_ids_from_labels(pieces)
        return shifted
    # M2M100 has no such method.
    start = pieces.new_full((len(pieces), 1), model.config.decoder_start_token_id)
    before = torch.cat([start, pieces[:, :-1]], 1)
    return before.masked_fill(before == UNKNOWN, model.config.pad_token_id)


class _Bounded(LogitsProcessor):
    """Bounds the length of each translation by its own source, regardless of the rest of its batch."""

    def __init__(self, limits: Int[Tensor, " row"], end: int | list[int]) -> None:
        self.limits, self.end = limits, end

    def __call__(
        self, input_ids: Int[Tensor, "hypothesis piece"], scores: Float[Tensor, "hypothesis vocabulary"]
    ) -> Float[Tensor, "hypothesis vocabulary"]:
        """The scores, changed so that hypotheses at their limit can only end."""
        ended = input_ids.shape[1] >= self.limits.repeat_interleave(len(scores) // len(self.limits))
        if not bool(ended.any()):
            return scores  # most steps; saves two passes over the scores of the vocabulary
        last = torch.full_like(scores, -torch.inf)
        last[:, self.end] = 0.0
        return torch.where(ended[:, None], last, scores)


def require_decoder(kind: str, where: str) -> None:
    """Raise `InputError` for a family (`kind`) without cross attention; `where` names the model."""
    family = FAMILIES.get(kind)
    if family is not None and "cross" not in {stack.kind for stack in family.stacks}:
        raise InputError(
            f"{where} has no decoder that reads an encoder, and cannot translate: use an encoder-decoder "
            "model (marian, bart, t5 or another), or seq2seq.architecture for one from scratch"
        )


def _load(
    name: str, attention: AttentionKind, dtype: Dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    advice = "; use a folder with config.json, model.safetensors and tokenizer files, or a name on the hub"
    with pretrained.quiet(), load_errors(f"the encoder-decoder model {name!r}", advice):
        config = AutoConfig.from_pretrained(name)
        require_decoder(config.model_type, repr(name))
        tokenizer = AutoTokenizer.from_pretrained(name)
        kind = pretrained.implementation(attention, config)
        loaded = load_model(
            name, class_for(config, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING), config, dtype=dtype,
            attn_implementation=kind,
        )  # fmt: skip
    if misfits := list(loaded.other_shapes) or sorted(loaded.missing if needs_rebuild(config) else ()):
        raise InputError(
            f"the weights of {name!r} do not fit its config.json (first at {misfits[0]}): restore the files, "
            "or use another model"
        )
    return loaded.model, tokenizer
