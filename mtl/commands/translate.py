"""`mtl translate`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal

from mtl.config.ranges import RANGES
from mtl.errors import InputError
from mtl.runs.run import Run
from tasks.sentence import Sentence
from tasks.translate import Translate

_CHUNK = 512
"""Lines read before the first is translated: enough for well-filled batches, soon enough for a reader."""


def translate(
    run: Path,
    beam: int | None = None,
    length_penalty: float | None = None,
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
) -> None:
    """Translate standard input, a sentence a line; an empty line stays empty.

    Args:
        run: The run's folder.
        beam: Hypotheses of beam search; default: the run's own.
        length_penalty: Larger numbers favour long translations; default: the run's own.
        accelerator: Device; auto is a GPU if there is one.
    """
    from mtl.models.device import prepare
    from mtl.models.joint import JointModel

    model = prepare(JointModel.from_pretrained(Run.open(run).model), accelerator)
    task = model.tasks.get(Translate.name)
    if not isinstance(task, Translate):
        raise InputError(
            f"{run} does not translate: its tasks are {', '.join(model.tasks)}; use 'mtl predict'"
        )
    if beam is not None and beam < 1:
        raise InputError(f"--beam={beam}: give at least 1")
    penalties = RANGES["translate.length_penalty"]
    if length_penalty is not None and length_penalty not in penalties:
        raise InputError(f"--length_penalty={length_penalty:g}: give a number {penalties}")
    model.tasks[Translate.name] = replace(
        task,
        beam=task.beam if beam is None else beam,
        length_penalty=task.length_penalty if length_penalty is None else length_penalty,
    )
    lines = _lines()
    done = 0
    while chunk := list(islice(lines, _CHUNK)):
        full = [sentence for sentence in chunk if sentence.words]
        translated = iter(model.annotate(full))
        for sentence in chunk:
            print(next(translated).layer(Translate.name) if sentence.words else "")
        sys.stdout.flush()
        done += len(chunk)
        print(f"\r{done:,} lines", end="", file=sys.stderr, flush=True)
    if done:
        print(file=sys.stderr)


def _lines() -> Iterator[Sentence]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        place = f"standard input, line {number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{place}: not UTF-8 ({error.reason}); convert it, for instance with iconv -f LATIN1 -t UTF-8"
            ) from error
        words = text.removeprefix("\ufeff").split() if number == 1 else text.split()
        yield Sentence(tuple(words), place=place)
