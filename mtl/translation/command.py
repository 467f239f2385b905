"""`mtl translate`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from mtl.commands.common import Accelerator, line_progress, lines_done
from mtl.corpora.running_text import line_text, lines_as_they_come, standard_input
from mtl.errors import InputError
from mtl.models.found import find_model
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.translation.task import Beam, BeamSpread, LengthPenalty

if TYPE_CHECKING:
    from mtl.models.batches import Tokenizer


def translate(
    run: str,
    file: Path | None = None,
    *,
    beam: Beam | None = None,
    length_penalty: LengthPenalty | None = None,
    beam_spread: BeamSpread | None = None,
    accelerator: Accelerator = "auto",
    revision: str | None = None,
) -> int:
    """Translate a file, or standard input as it arrives, one sentence per line; an empty line stays empty.

    For a line that is not UTF-8, or has more than 512 words or more subwords than the model reads, an empty
    line is printed; such lines are counted, and the exit code is then 2.

    Args:
        run: A run's folder, a saved model's, or a model on the hub (OWNER/NAME).
        file: Text in UTF-8; by default standard input is read.
        beam: Number of hypotheses in beam search; default: the run's own.
        length_penalty: Larger numbers favour long translations; default: the run's own.
        beam_spread: Drop hypotheses whose log probability is more than this below the best one's; default:
            the run's own.
        accelerator: Device; auto is a GPU if there is one.
        revision: A branch, tag or commit of a model on the hub.
    """
    from mtl.models.joint import JointModel
    from mtl.models.opened import prepare
    from mtl.translation.lines import require_several, searching, translated

    model = prepare(JointModel.from_pretrained(find_model(run, revision).model), accelerator)
    try:
        model, task = searching(model, beam, length_penalty, beam_spread, run)
    except InputError as error:
        raise InputError(f"{error}; use 'mtl predict'") from None
    require_several(task.beam, "--", beam_spread=beam_spread, length_penalty=length_penalty)
    where = "standard input" if file is None else str(file)
    done = 0
    skipped: list[str] = []
    with (
        lines_done(lambda: done, where),
        line_progress(file) as advance,
        nullcontext(standard_input()) if file is None else file.open("rb") as stream,
    ):
        for lines in lines_as_they_come(stream):
            sentences = [
                _sentence(line, f"{where}, line {number}", model.tokenizer, skipped)
                for number, line in enumerate(lines, done + 1)
            ]
            for text in translated(model, task, sentences):
                print(text)
            sys.stdout.flush()
            done += len(lines)
            advance(len(lines))
    if skipped:
        more = "" if len(skipped) == 1 else f" ({counted(len(skipped), 'such line')} in all)"
        print(f"mtl: left empty: {skipped[0]}{more}", file=sys.stderr)
    return 2 if skipped else 0


def _sentence(line: bytes, place: str, tokenizer: Tokenizer, skipped: list[str]) -> Sentence:
    """The words of a line; for one that cannot be translated, none and the reason in `skipped`."""
    from mtl.translation.lines import source_sentence

    try:
        return source_sentence(line_text(line), place, tokenizer)
    except ValueError as error:
        skipped.append(f"{place}: {str(error).removeprefix(f'{place}: ')}")
        return Sentence((), place=place)
