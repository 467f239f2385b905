"""Translations in two files, one sentence per line; both may be compressed by gzip."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from mtl.corpora.formats.lines import controls_in, lines_of, name_of
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import CONTROL, MadeUpId, Sentence
from mtl.translation.task import Translate, source_words

SEPARATOR = ":"
"""The separator between the paths of the two files, written as one text."""


def read_parallel(source: Path, target: Path) -> Iterator[Sentence]:
    """A sentence for each line of `source`, translated by the same line of `target`.

    Words are separated by white space; the translation is kept without white space around it. Control
    characters are removed from both; empty lines are kept. Raises `InputError` for files with different
    numbers of lines.
    """
    sources, targets = _lines(source), _lines(target)
    if len(sources) != len(targets):
        raise InputError(
            f"{source} has {counted(len(sources), 'line')} and {target} {len(targets):,}: use two files "
            "whose lines belong together, with an empty line where a sentence has no translation"
        )
    for number, (text, translation) in enumerate(zip(sources, targets, strict=True), start=1):
        yield Sentence(
            words=source_words(text),
            layers={Translate.name: CONTROL.sub("", translation).strip()},
            id=MadeUpId(f"{name_of(source, suffix=True)}-{number:07d}"),
            place=f"{source}:{number}",
            notes=controls_in(text, translation),
        )


def two_paths(paths: str | Path) -> tuple[Path, Path]:
    """The paths of source and target, written SOURCE:TARGET; raises `InputError` unless there are two."""
    source, _, target = str(paths).partition(SEPARATOR)
    if not source or not target or SEPARATOR in target:
        raise InputError(
            f"{paths}: a translation is read from two files: write them as SOURCE{SEPARATOR}TARGET, for "
            f"instance train.en.gz{SEPARATOR}train.de.gz"
        )
    return Path(source), Path(target)


def pair_of_files(paths: str | Path) -> tuple[Path, Path]:
    """The same as `two_paths`; raises `InputError` also if one of them is not a file."""
    both = two_paths(paths)
    for path in both:
        if not path.is_file():
            raise InputError(f"{path}: no such file; check the path")
    return both


def _lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, broken at line feeds only."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}): copy it again") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; use the path of a readable file") from error
    lines = lines_of(path, data)
    return lines[:-1] if lines[-1] == "" else lines
