"""The encoder-decoder model from scratch that a translation run starts from."""

from __future__ import annotations

from collections.abc import Iterable

from mtl.config.schema import Seq2SeqConfig
from mtl.models.architectures import MAX_LENGTH, from_scratch
from mtl.models.pretrained import AttentionKind
from mtl.models.seq2seq import Seq2Seq
from mtl.models.vocabulary import train_vocabulary
from mtl.tasks.sentence import Sentence
from mtl.tasks.translate import Translate


def seq2seq_from_scratch(
    config: Seq2SeqConfig, attention: AttentionKind, task: Translate, sentences: Iterable[Sentence]
) -> Seq2Seq:
    """A model from scratch with a vocabulary of the training sentences."""
    texts = (
        text for sentence in sentences for text in (" ".join(sentence.words), str(sentence.layer(task.layer)))
    )
    tokenizer = train_vocabulary(texts, config.vocabulary, MAX_LENGTH)
    return Seq2Seq(from_scratch(config, tokenizer, attention), tokenizer, task.source, task.target)
