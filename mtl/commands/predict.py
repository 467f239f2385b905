"""`mtl predict`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

from mtl.runs.run import Run

_CHUNK = 512
"""Sentences read before the first is annotated: enough for well-filled batches, soon enough for a reader."""


def predict(
    run: Path,
    input: Literal["text", "tokens"] = "text",
    output: Literal["picture", "conllu", "json"] = "picture",
) -> None:
    """Annotate standard input in all of a run's tasks.

    Args:
        run: The run's folder.
        input: Running text, or tokenised sentences (a line each, words separated by spaces).
        output: A readable picture of the layers, CoNLL-U, or JSON lines.
    """
    from mtl.corpora.formats.jsonl import to_line
    from mtl.corpora.picture import picture, to_conllu
    from mtl.corpora.raw_text import sentences_of
    from mtl.models.joint import JointModel

    model = JointModel.from_pretrained(Run.open(run).model)
    show = {"picture": picture, "conllu": to_conllu, "json": to_line}[output]
    lines = (line for line in sys.stdin if line.strip())
    words: Iterable[list[str]] = (
        (line.split() for line in lines)
        if input == "tokens"
        else (sentence for line in lines for sentence in sentences_of(line))
    )
    for chunk in _chunks(words):
        for sentence in model.annotate(chunk):
            print(show(sentence))
        sys.stdout.flush()


def _chunks(words: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    iterator = iter(words)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk
