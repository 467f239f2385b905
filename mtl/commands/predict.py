"""`mtl predict`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from mtl.config.schema import BatchConfig
from mtl.errors import InputError
from mtl.runs.run import Run

_CHUNK = 512
"""Sentences read before the first is annotated: enough for well-filled batches, soon enough for a reader."""


def predict(
    run: Path,
    input: Literal["text", "tokens"] = "text",
    output: Literal["picture", "conllu", "json"] = "picture",
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
    precision: Literal["32-true", "bf16-true"] = "32-true",
    max_words: int = BatchConfig.max_words,
) -> None:
    """Annotate standard input in all of a run's tasks.

    Args:
        run: The run's folder.
        input: Running text, or tokenised sentences (a line each, words separated by spaces).
        output: A picture to read; CoNLL-U (entities in MISC, tree and frames in comments); or JSON lines.
        accelerator: Device; auto is a GPU if there is one.
        precision: bf16-true rounds the encoder's weights: faster where bfloat16 is in hardware, and some
            annotations may differ.
        max_words: Words in a sentence, at most; memory grows with its square, time with its cube.
    """
    from mtl.corpora.formats.conllu import to_conllu
    from mtl.corpora.formats.jsonl import to_line
    from mtl.corpora.picture import picture
    from mtl.corpora.raw_text import read_text, read_tokens

    folder = Run.open(run).model
    words = (read_tokens if input == "tokens" else read_text)(sys.stdin.buffer)
    first = next(words, None)
    if first is None:
        print("mtl: no words on standard input, so nothing to annotate", file=sys.stderr)
        return
    from mtl.models.device import prepare
    from mtl.models.joint import JointModel

    model = prepare(JointModel.from_pretrained(folder), accelerator, precision)
    show = {"picture": picture, "conllu": to_conllu, "json": to_line}[output]
    end = "" if output == "conllu" else "\n"
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    done = 0
    for chunk in _chunks(chain([first], words)):
        for number, sentence_words in enumerate(chunk, done + 1):
            if len(sentence_words) > max_words:
                raise InputError(
                    f"standard input, sentence {number} ({' '.join(sentence_words[:4])} ...) has "
                    f"{len(sentence_words):,} words, and decoders are given at most {max_words:,}: split it, "
                    "or raise --max_words (memory grows with its square, time with its cube)"
                )
        for sentence in model.annotate(chunk, max_words):
            print(show(sentence), end=end)
        sys.stdout.flush()
        done += len(chunk)
        if watched:
            print(f"\r{done:,} sentences", end="", file=sys.stderr, flush=True)
    if watched:
        print(file=sys.stderr)


def _chunks(words: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    iterator = iter(words)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk
