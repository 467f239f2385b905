"""The encoder-decoder model that a translation run starts from."""

from __future__ import annotations

from collections.abc import Sequence

from mtl.config.schema import TrainConfig
from mtl.models.architectures import MAX_LENGTH, from_scratch
from mtl.models.seq2seq import Seq2Seq
from mtl.models.vocabulary import train_vocabulary
from mtl.tasks.sentence import Sentence
from mtl.tasks.translate import Translate


def build_seq2seq(config: TrainConfig, task: Translate, sentences: Sequence[Sentence]) -> Seq2Seq:
    """The checkpoint `encoder.name`, or a model from scratch with a vocabulary of the training sentences."""
    attention = config.encoder.attention
    if config.seq2seq.architecture is None:
        return Seq2Seq.from_pretrained(config.encoder.name, task.source, task.target, attention=attention)
    texts = [
        text for sentence in sentences for text in (" ".join(sentence.words), str(sentence.layer(task.name)))
    ]
    size = config.seq2seq.vocabulary
    tokenizer = train_vocabulary(texts, size, MAX_LENGTH)
    transformer = from_scratch(config.seq2seq, tokenizer, attention)
    return Seq2Seq(transformer, tokenizer, task.source, task.target)
