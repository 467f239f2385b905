"""Reading the sentences of files, folders and globs in their format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mtl.corpora.find_files import folders_below, is_hidden, matching
from mtl.corpora.formats.parallel import pair_of_files
from mtl.corpora.formats.table import format_of
from mtl.corpora.real_words import with_words
from mtl.errors import InputError
from mtl.tasks.sentence import Sentence
from mtl.workers.collector import without_collector


def read(path: str | Path, format: str) -> list[Sentence]:
    """The sentences of a file, a folder or a glob; a folder is searched at any depth.

    Raises `InputError` for what the format does not allow, if there is no sentence, and if the words are not
    words (`real_words.with_words`).
    """
    with without_collector():
        return list(stream(path, format))


def iterate(path: str | Path, format: str) -> Iterator[Sentence]:
    """The sentences of `read`, one by one, without its checks; JSON lines are parsed on demand."""
    read, patterns, *_ = format_of(format)
    if not patterns:
        yield from read(*files(path, format))
        return
    for file in files(path, format):
        yield from read(file)


def stream(path: str | Path, format: str) -> Iterator[Sentence]:
    """The sentences of `read`, one by one; errors about all of them are raised at the end."""
    count = 0
    for sentence in with_words(path, iterate(path, format)):
        count += 1
        yield sentence
    if not count:
        raise no_sentence(path, format)


def no_sentence(path: str | Path, format: str) -> InputError:
    """The error for files without a sentence."""
    return InputError(f"{path}: no sentence in it; use files with {format} sentences")


def files(path: str | Path, format: str) -> list[Path]:
    """The files that `read` takes its sentences from, in order; each once, however many links lead to it.

    Hidden files are left out unless they are named: editors keep copies in them (`.ipynb_checkpoints`).
    """
    path, patterns = Path(path), format_of(format).patterns
    if not patterns:
        return [*pair_of_files(path)]
    if path.is_file():
        return [path]
    if path.is_dir():
        found = _each_once(
            file
            for folder in folders_below(path)
            for pattern in patterns
            for file in folder.glob(pattern)
            if not is_hidden(file, folder)
        )
        if not found:
            raise InputError(f"{path}: no {' or '.join(patterns)} in this folder; name a file or a glob")
        return found
    if path.exists():
        raise InputError(f"{path}: a pipe or a device, and files are read more than once; use a file")
    found = _each_once(matching(path))
    if not found:
        raise InputError(f"{path}: no such file, and no file matches; check the path")
    return found


def _each_once(paths: Iterable[Path]) -> list[Path]:
    """The files among paths, sorted; if several paths are one file, the first."""
    found = {path.resolve(): path for path in sorted(set(paths), reverse=True) if path.is_file()}
    return sorted(found.values())


def reader_modules(corpus: Mapping[str, Any]) -> tuple[str, ...]:
    """The modules that read the files of a corpus, given as in a run's configuration.

    They belong to the code that produces a run; the readers of other formats do not.
    """
    of_tasks = (*corpus.values(), *(corpus.get("instances") or {}).values())
    formats = {files["format"] for files in of_tasks if isinstance(files, Mapping) and "format" in files}
    if corpus.get("path") is not None:
        formats.add("jsonl")
    readers = (format_of(name).read for name in formats)
    return tuple(sorted({getattr(reader, "func", reader).__module__ for reader in readers}))
