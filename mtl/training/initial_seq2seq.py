"""The encoder-decoder model that a translation run starts from."""

from __future__ import annotations

from collections.abc import Iterable

from mtl.config.schema import TrainConfig
from mtl.models.architectures import MAX_LENGTH, from_scratch
from mtl.models.seq2seq import Seq2Seq
from mtl.models.vocabulary import train_vocabulary
from mtl.tasks.sentence import Sentence
from mtl.tasks.translate import Translate


def seq2seq_checkpoint(config: TrainConfig, task: Translate) -> Seq2Seq | None:
    """The checkpoint `encoder.name`; `None` if the model is made from scratch."""
    if config.seq2seq.architecture is not None:
        return None
    return Seq2Seq.from_pretrained(
        config.encoder.name, task.source, task.target, attention=config.encoder.attention
    )


def seq2seq_from_scratch(config: TrainConfig, task: Translate, sentences: Iterable[Sentence]) -> Seq2Seq:
    """A model from scratch with a vocabulary of the training sentences."""
    texts = (
        text for sentence in sentences for text in (" ".join(sentence.words), str(sentence.layer(task.layer)))
    )
    tokenizer = train_vocabulary(texts, config.seq2seq.vocabulary, MAX_LENGTH)
    transformer = from_scratch(config.seq2seq, tokenizer, config.encoder.attention)
    return Seq2Seq(transformer, tokenizer, task.source, task.target)
