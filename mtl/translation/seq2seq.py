"""An encoder-decoder model: a sentence and its translation in, scores of the translation's pieces out."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoModelForSeq2SeqLM,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.features import added
from mtl.heads import load
from mtl.heads.attentions import needs_rebuild, query_key_parameters
from mtl.heads.families import family_of
from mtl.heads.family_table import FAMILIES
from mtl.heads.gates import TaskScale
from mtl.heads.load import class_for, load_errors, load_model
from mtl.heads.tap import eager_attention
from mtl.models import pretrained
from mtl.models.annotator import Annotator, Decoded
from mtl.models.batches import Batch
from mtl.models.joint import JointModel
from mtl.models.pretrained import AttentionKind, Dtype
from mtl.models.tapped import SharedEncoder, WordReader
from mtl.probes.measures.attention import AttentionMatrix
from mtl.probes.sites import head_name
from mtl.tasks.decoders.decoder import at_least_float32
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import UNKNOWN, Task
from mtl.translation.config import Seq2SeqConfig, size_of
from mtl.translation.pieces import (
    ParallelSubwords,
    ParallelTokenizer,
    WordDropout,
    require_language_codes,
    require_languages,
    subword_texts,
    train_vocabulary,
)
from mtl.translation.source_encoder import SourceEncoder
from mtl.translation.task import Translate, source_words, translation_in
from mtl.translation.translator import Translator

SiteScale = Float[Tensor, "site head"] | Float[Tensor, "batch site head"]


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

    kind = "seq2seq"
    does = "translates"
    instead = "translate text with 'mtl translate'"
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
        self._word_dropout: WordDropout | None = None
        self.hidden = int(transformer.get_output_embeddings().weight.shape[0])

    @property
    def note(self) -> str:
        """A note on the model's size."""
        return (
            f"model: {counted(self.transformer.num_parameters(), 'parameter')}, "
            f"{query_key_parameters(self.transformer):,} of them in queries and keys"
        )

    def serve(self, tasks: Mapping[str, Task]) -> None:
        """Read translations from the layer of the only task, and in training with its word dropout.

        Raises `InputError` for a word dropout that the tokenizer cannot have.
        """
        self.tokenizer.layer = next(task.layer for task in tasks.values())
        task = translation_in(tasks)
        self._word_dropout = None if task is None else WordDropout(task, self.tokenizer)

    def decoded(
        self, model: Annotator, batch: Batch, head_scale: TaskScale | None, given: bool
    ) -> dict[str, Decoded]:
        """The translations that beam search finds, and with `given` the cross-entropy of the references
        (`Translator.references`)."""
        assert isinstance(model, JointModel)
        if head_scale is None:
            head_scale = model.scales.in_pass()
        if head_scale is not None and head_scale.dim() == 3:
            head_scale = head_scale[0]  # of the only task
        task = translation_in(model.tasks)
        assert task is not None
        decoder = model.decoder(task.name)
        subwords = batch.subwords
        assert isinstance(decoder, Translator)
        assert isinstance(subwords, ParallelSubwords)
        predicted = translations(self, task, subwords, batch.sentences, head_scale)
        references = None
        if given:
            references = decoder.references(self(subwords, head_scale), batch.targets[task.name])
        return {task.name: Decoded(predicted, references)}

    def word_reader(self) -> WordReader:
        """The model's encoder, on annotated sources."""
        return SourceEncoder(self)

    def attention_in_writing(
        self,
        model: Annotator,
        site: int,
        head: int,
        sentences: Sequence[Sentence],
        texts: Sequence[str] | None,
        head_scale: Float[Tensor, "site head"] | None,
    ) -> list[AttentionMatrix]:
        """See `SharedEncoder`: for each sentence and its translation; without `texts`, the model translates.

        Sources are read as in training, with spaces between words as they were written. A row is the subword
        that the decoder predicts at a position. Columns are those that it attends to: of the source in cross
        attention, else those that the decoder has read, which begin with its start token.

        Raises `InputError` for a text with more subwords than the model reads.
        """
        task = translation_in(model.tasks)
        assert task is not None
        tokenizer, device = self.tokenizer, model.device
        if head_scale is not None:
            head_scale = head_scale.to(device)
        name, kind = head_name(self.tap.sites[site], head, self.tap.sites), self.tap.sites[site].attention
        found = []
        for number, sentence in enumerate(sentences):
            source = Sentence(source_words(sentence.text or " ".join(sentence.words)), place=sentence.place)
            pair = source if texts is None else source.with_layers({task.layer: texts[number]})
            subwords = tokenizer.collate(tokenizer.encode_sentences([pair])).to(device)
            if texts is None:
                written = self.search(
                    subwords, head_scale, beam=task.beam, length_penalty=task.length_penalty,
                    beam_spread=task.beam_spread,
                )  # fmt: skip
                read, predicted = written[:, :-1], written[:, 1:]
            else:
                assert subwords.pieces is not None
                read, predicted = decoder_inputs(self.transformer, subwords.pieces), subwords.pieces
            weights = self.attention(subwords, read, site, head, head_scale)[0]
            columns = read if kind == "decoder" else subwords.input_ids
            found.append(
                AttentionMatrix(
                    ", ".join(filter(None, (name, sentence.id))),
                    subword_texts(tokenizer, predicted[0]),
                    subword_texts(tokenizer, columns[0]),
                    weights.cpu().numpy(),
                )
            )
        return found

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        source: str = "",
        target: str = "",
        *,
        attention: AttentionKind = "sdpa",
        key: str = "translate",
    ) -> Seq2Seq:
        """A checkpoint by hub name or folder; raises `InputError` for one that cannot translate this way.

        `key` is as in `require_languages`.
        """
        transformer, tokenizer = _load(name, attention, torch.float32)
        require_languages(name, transformer.config, tokenizer, source, target, key)
        require_language_codes(name, tokenizer, source, target, key)
        return cls(transformer, tokenizer, source, target)

    @classmethod
    def from_checkpoint(cls, config: TrainConfig, tasks: Mapping[str, Task]) -> Seq2Seq:
        """The checkpoint that a run starts from, for its translation."""
        [name], task = tasks, translation_in(tasks)
        assert task is not None
        return cls.from_pretrained(
            config.encoder.name,
            task.source,
            task.target,
            attention=config.encoder.attention,
            key=f"instances.{name}" if name in config.instances else name,
        )

    @classmethod
    def from_scratch(
        cls, config: TrainConfig, tasks: Mapping[str, Task], sentences: Iterable[Sentence]
    ) -> Seq2Seq:
        """A model from scratch with a vocabulary of the training sentences."""
        task, size = translation_in(tasks), size_of(config)
        assert task is not None
        texts = (
            text
            for sentence in sentences
            for text in (" ".join(sentence.words), str(sentence.layer(task.layer)))
        )
        tokenizer = train_vocabulary(texts, size.vocabulary, MAX_LENGTH)
        model = from_scratch(size, tokenizer, config.encoder.attention)
        return cls(model, tokenizer, task.source, task.target)

    def forward(
        self, subwords: ParallelSubwords, head_scale: SiteScale | None = None, first: bool = False
    ) -> Float[Tensor, "batch piece vocabulary"]:
        """Scores of the vocabulary for each piece of the translation, given the pieces before it.

        `head_scale` multiplies each head's output. In training, some pieces are read as others
        (`WordDropout`).
        """
        assert not first
        assert subwords.pieces is not None
        sources, before = subwords.input_ids, decoder_inputs(self.transformer, subwords.pieces)
        if self.training and self._word_dropout is not None:
            sources = self._word_dropout(sources, self._word_dropout.source)
            before = self._word_dropout(before, self._word_dropout.target)
        # Models like BART add a bias in float32, which would widen all scores of a pass in bfloat16.
        bias: Tensor | None = getattr(self.transformer, "final_logits_bias", None)
        model = self.transformer if bias is None else self.transformer.base_model
        with self._scaled(head_scale):
            output = model(
                input_ids=sources,
                attention_mask=subwords.attention_mask,
                decoder_input_ids=before,
                use_cache=False,
            )
        if bias is None:
            return output.logits
        scores: Tensor = self.transformer.get_output_embeddings()(output.last_hidden_state)
        return scores.add_(bias.to(scores.dtype))

    def encode(
        self, subwords: ParallelSubwords, head_scale: SiteScale | None = None
    ) -> Float[Tensor, "batch subword hidden"]:
        """The encoder's output, which the decoder reads."""
        with self._scaled(head_scale):
            output = self.transformer.get_encoder()(
                input_ids=subwords.input_ids, attention_mask=subwords.attention_mask
            )
        encoded: Tensor = output.last_hidden_state
        return encoded

    def translate(
        self,
        subwords: ParallelSubwords,
        head_scale: SiteScale | None = None,
        *,
        encoded: Float[Tensor, "batch subword hidden"] | None = None,
        beam: int = 5,
        length_penalty: float = 1.0,
        beam_spread: float | None = None,
    ) -> list[str]:
        """The text of what `search` finds for each sentence."""
        found = self.search(
            subwords, head_scale, encoded=encoded, beam=beam, length_penalty=length_penalty,
            beam_spread=beam_spread,
        )  # fmt: skip
        return self.tokenizer.text(found)

    @torch.inference_mode()
    def search(
        self,
        subwords: ParallelSubwords,
        head_scale: SiteScale | None = None,
        *,
        encoded: Float[Tensor, "batch subword hidden"] | None = None,
        beam: int = 5,
        length_penalty: float = 1.0,
        beam_spread: float | None = None,
    ) -> Int[Tensor, "batch piece"]:
        """The best translation of each sentence that beam search finds, after the decoder's start token.

        A translation has at most twice the pieces of its source and 20 more, within the model's positions.
        `encoded` is the output of `encode` for the same rows, if known; the encoder is then not called.
        """
        limits = (2 * subwords.attention_mask.sum(1) + 20).clamp_max(self.tokenizer.max_length - 1)
        settings = copy.deepcopy(self.transformer.generation_config)
        settings.update(
            num_beams=beam, length_penalty=length_penalty, do_sample=False, max_new_tokens=int(limits.max()),
            max_length=None, early_stopping=False, use_cache=True, **self._beginning(),
        )  # fmt: skip
        processors: list[LogitsProcessor] = [_Bounded(limits, settings.eos_token_id)]
        if beam_spread is not None and beam > 1:
            processors.append(_Spread(beam_spread, beam, settings.eos_token_id))
        with self._scaled(head_scale, beam):
            pieces: Tensor = self.transformer.generate(
                input_ids=subwords.input_ids,
                attention_mask=subwords.attention_mask,
                encoder_outputs=BaseModelOutput(
                    last_hidden_state=self.encode(subwords) if encoded is None else encoded
                ),
                generation_config=settings,
                logits_processor=LogitsProcessorList(processors),
            )
        return pieces

    @torch.inference_mode()
    def attention(
        self,
        subwords: ParallelSubwords,
        read: Int[Tensor, "row piece"],
        site: int,
        head: int,
        head_scale: SiteScale | None = None,
    ) -> Float[Tensor, "row piece position"]:
        """The attention of a head of the decoder or of cross attention where the decoder reads `read`."""
        with eager_attention(self.transformer), self._scaled(head_scale):
            output = self.transformer(
                input_ids=subwords.input_ids,
                attention_mask=subwords.attention_mask,
                decoder_input_ids=read,
                use_cache=False,
                output_attentions=True,
            )
        kind, sites, remaining = self.tap.sites[site].attention, self.tap.sites, self.tap.remaining
        with_heads = [n for n, each in enumerate(sites) if each.attention == kind and remaining[n]]
        layers = [layer for layer in output[f"{kind}_attentions"] if layer.shape[1]]
        attention: Tensor = layers[with_heads.index(site)][:, remaining[site].index(head)]
        return at_least_float32(attention)

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

    def _beginning(self) -> dict[str, int]:
        """What translations begin with in training: the decoder's start, and the language's token if any.

        The checkpoint's files do not state tokens that depend on the language (mBART, M2M100, NLLB).
        """
        empty = self.tokenizer.empty()
        start = decoder_inputs(self.transformer, torch.tensor([empty]))[0, 0]
        beginning = {"decoder_start_token_id": int(start)}
        if empty[0] != self.tokenizer.tokenizer.eos_token_id:
            beginning["forced_bos_token_id"] = empty[0]
        return beginning

    def _scaled(self, head_scale: Tensor | None, neighbours: int = 1) -> AbstractContextManager[None]:
        return nullcontext() if head_scale is None else self.tap.scale(head_scale, neighbours=neighbours)


def decoder_inputs(model: PreTrainedModel, pieces: Int[Tensor, "row piece"]) -> Int[Tensor, "row piece"]:
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


class _Spread(LogitsProcessor):
    """Drops hypotheses whose log probability is more than `spread` below the best of their sentence.

    A processor is not told the scores of hypotheses. They follow from those of the step before: a hypothesis
    is one of that step and one more piece. It must be the last processor.
    """

    def __init__(self, spread: float, beam: int, end: int | list[int]) -> None:
        self.spread, self.beam, self.end = spread, beam, torch.tensor(end).flatten()
        self._read: Int[Tensor, "sentence beam position"] | None = None
        self._totals: Float[Tensor, "sentence beam vocabulary"]
        """The log probability of each hypothesis of the step before with each further piece."""

    def __call__(
        self, input_ids: Int[Tensor, "hypothesis piece"], scores: Float[Tensor, "hypothesis vocabulary"]
    ) -> Float[Tensor, "hypothesis vocabulary"]:
        """The scores, changed so that nothing follows dropped hypotheses."""
        read = input_ids.unflatten(0, (-1, self.beam))
        if self._read is None:  # the hypotheses are copies, of which `generate` takes the first
            total = scores.new_zeros(read.shape[:2])
        else:
            same = (read[:, :, None, :-1] == self._read[:, None]).all(3)
            parent = same.int().argmax(2)  # the first of equal ones, as above
            row = torch.arange(len(read), device=read.device)[:, None]
            total = self._totals[row, parent, read[:, :, -1]]
            # `generate` keeps hypotheses that have ended if it has no others; they do not count.
            total = total.masked_fill(torch.isin(read[:, :, -1], self.end.to(read.device)), -torch.inf)
        dropped = total < total.amax(1, keepdim=True) - self.spread
        scores = scores.masked_fill(dropped.flatten()[:, None], -torch.inf)
        self._read, self._totals = read.clone(), total[:, :, None] + scores.unflatten(0, (-1, self.beam))
        return scores


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
        config = load.configuration(name)
        require_decoder(config.model_type, repr(name))
        tokenizer = load.tokenizer(name)
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


def translations(
    encoder: Seq2Seq,
    task: Translate,
    subwords: ParallelSubwords,
    sentences: Sequence[Sentence],
    head_scale: SiteScale | None = None,
    encoded: Float[Tensor, "batch subword hidden"] | None = None,
) -> list[str]:
    """The best translation of each sentence under the task's beam and length penalty.

    `encoded` is the encoder's output for these sentences, if known.
    """
    texts = encoder.translate(
        subwords, head_scale, encoded=encoded, beam=task.beam, length_penalty=task.length_penalty,
        beam_spread=task.beam_spread,
    )  # fmt: skip
    # An empty sentence has an empty translation, whatever the search makes of its end-of-text piece.
    return [text if sentence.words else "" for text, sentence in zip(texts, sentences, strict=True)]


MAX_LENGTH = 512
"""Positions that a model from scratch has."""


def from_scratch(
    config: Seq2SeqConfig, tokenizer: PreTrainedTokenizerFast, attention: AttentionKind = "sdpa"
) -> PreTrainedModel:
    """A model with random weights; source, translation and output share their embeddings.

    Models like BART start with weights of standard deviation 1 / sqrt(width), which for square matrices is
    Xavier's; T5 models start as transformers initialises them. The architecture determines whether norms come
    before or after each sublayer. Features then change the heads as the settings say.
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
    for record in added(lambda feature: feature.head_records).values():
        resolve_name(record.start)(model, config)
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
