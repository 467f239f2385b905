"""Translate with a translation task's settings of beam search."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from mtl.models.parallel import ParallelSubwords
from mtl.models.seq2seq import HeadScale, Seq2Seq
from mtl.tasks.sentence import Sentence
from mtl.tasks.translate import Translate


def translations(
    encoder: Seq2Seq,
    task: Translate,
    subwords: ParallelSubwords,
    sentences: Sequence[Sentence],
    head_scale: HeadScale | None = None,
    encoded: Float[Tensor, "batch subword hidden"] | None = None,
) -> list[str]:
    """The best translation of each sentence under the task's beam and length penalty.

    `encoded` is the encoder's output for these sentences, if known.
    """
    texts = encoder.translate(
        subwords, head_scale, encoded=encoded, beam=task.beam, length_penalty=task.length_penalty
    )
    # An empty sentence has an empty translation, whatever the search makes of its end-of-text piece.
    return [text if sentence.words else "" for text, sentence in zip(texts, sentences, strict=True)]
