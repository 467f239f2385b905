"""`mtl predict`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from mtl.config.schema import BatchConfig
from mtl.errors import InputError, counted
from mtl.runs.run import Run
from tasks.sentence import Sentence

_CHUNK = 512
"""Sentences read before the first is annotated: enough for well-filled batches, soon enough for a reader."""


def predict(
    run: Path,
    input: Literal["text", "tokens", "pairs"] = "text",
    output: Literal["picture", "conllu", "json"] = "picture",
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
    precision: Literal["32-true", "bf16-true"] = "32-true",
    max_words: int = BatchConfig.max_words,
) -> None:
    """Annotate standard input in all of a run's tasks.

    Args:
        run: The run's folder.
        input: Running text; or a sentence a line, its words separated by spaces; or pairs, the same with a
            tab between two sentences.
        output: A picture to read; CoNLL-U (entities in MISC, tree and frames in comments); or JSON lines.
        accelerator: Device; auto is a GPU if there is one.
        precision: bf16-true rounds the encoder's weights: faster where bfloat16 is in hardware, and some
            annotations may differ.
        max_words: Words in a sentence, at most; memory grows with its square, time with its cube.
    """
    from mtl.corpora.formats.conllu import to_conllu
    from mtl.corpora.formats.jsonl import to_line
    from mtl.corpora.picture import picture
    from mtl.corpora.raw_text import read_pairs, read_text, read_tokens

    folder = Run.open(run).model
    lines = sys.stdin.buffer
    sentences: Iterator[Sentence]
    if input == "pairs":
        sentences = (Sentence((*first, *second), second=len(first)) for first, second in read_pairs(lines))
    elif input == "tokens":
        sentences = (Sentence(tuple(words)) for words in read_tokens(lines))
    else:
        sentences = read_text(lines)
    first = next(sentences, None)
    if first is None:
        print("mtl: no words on standard input, so nothing to annotate", file=sys.stderr)
        return
    from mtl.models.device import prepare
    from mtl.models.joint import JointModel
    from mtl.models.seq2seq import Seq2Seq

    model = prepare(JointModel.from_pretrained(folder), accelerator, precision)
    if isinstance(model.encoder, Seq2Seq):
        raise InputError(
            "mtl predict is for models that label the words of a text, and this one translates: "
            "translate text with 'mtl translate'"
        )
    if not any(task.fits(first) for task in model.tasks.values()):
        raise InputError(
            f"none of the run's tasks ({', '.join(model.tasks)}) is for "
            + ("pairs: give another --input" if input == "pairs" else "one sentence: give --input=pairs")
        )
    show = {"picture": picture, "conllu": to_conllu, "json": to_line}[output]
    end = "" if output == "conllu" else "\n"
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    done = 0
    for chunk in _chunks(chain([first], sentences)):
        for number, sentence in enumerate(chunk, done + 1):
            if len(sentence) > max_words:
                raise InputError(
                    f"standard input, sentence {number} ({' '.join(sentence.words[:4])} ...) has "
                    f"{len(sentence):,} words, and decoders are given at most {max_words:,}: split it, "
                    "or raise --max_words (memory grows with its square, time with its cube)"
                )
        for sentence in model.annotate(chunk, max_words):
            print(show(sentence), end=end)
        sys.stdout.flush()
        done += len(chunk)
        if watched:
            print(f"\r{counted(done, 'sentence')}", end="", file=sys.stderr, flush=True)
    if watched:
        print(file=sys.stderr)


def _chunks(sentences: Iterable[Sentence]) -> Iterator[list[Sentence]]:
    iterator = iter(sentences)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk
