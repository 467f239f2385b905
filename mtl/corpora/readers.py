"""The formats that corpora come in, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mtl.corpora.formats.brackets import read_brackets
from mtl.corpora.formats.conll2003 import read_conll2003
from mtl.corpora.formats.conll2005 import read_conll2005
from mtl.corpora.formats.conll2012 import read_conll2012
from mtl.corpora.formats.conllu import read_conllu
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.errors import InputError, did_you_mean
from tasks.sentence import Sentence


class Format(NamedTuple):
    """A reader, the names of the files that it takes from a folder, and the layers that it can give."""

    read: Callable[[Path], list[Sentence]]
    patterns: tuple[str, ...]
    layers: tuple[str, ...]


_COLUMNS = ("*.conll", "*.txt", "*.iob", "*.iob2", "*.bio")
_ONTONOTES = ("tags", "tree", "entities", "frames")
_UNIVERSAL = ("tags", "upos", "arcs")
_BRACKETS = ("*.mrg", "*.ptb", "*.brackets")

FORMATS = {
    "jsonl": Format(read_jsonl, ("*.jsonl",), ("tags", "upos", "entities", "arcs", "tree", "frames")),
    "conllu": Format(read_conllu, ("*.conllu",), _UNIVERSAL),
    "conllu-upos": Format(partial(read_conllu, column="upos"), ("*.conllu",), _UNIVERSAL),
    "conll2012": Format(
        read_conll2012, ("*gold_conll", "*gold_skel"), ("tags", "tree", "entities", "frames")
    ),
    "conll2003": Format(read_conll2003, _COLUMNS, ("entities",)),
    "conll2003-iob1": Format(partial(read_conll2003, scheme="IOB1"), _COLUMNS, ("entities",)),
    "conll2003-iob2": Format(partial(read_conll2003, scheme="IOB2"), _COLUMNS, ("entities",)),
    "conll2003-iobes": Format(partial(read_conll2003, scheme="IOBES"), _COLUMNS, ("entities",)),
    "brackets": Format(read_brackets, _BRACKETS, ("tags", "tree")),
    "brackets-verbatim": Format(partial(read_brackets, clean=False), _BRACKETS, ("tags", "tree")),
    "conll2005": Format(read_conll2005, ("*.props",), ("frames",)),
}
"""`-upos`: universal tags as tags; `-iob1` and its like: the scheme declared, not detected; `-verbatim`: with
traces and function tags."""


def read(path: str | Path, format: str) -> list[Sentence]:
    """The sentences of a file, of a folder (at any depth, by the format's file names) or of a glob."""
    reader = format_of(format).read
    sentences = [sentence for file in files(path, format) for sentence in reader(file)]
    if not sentences:
        raise InputError(f"{path}: no sentence in it; give files with {format} sentences")
    return sentences


def files(path: str | Path, format: str) -> list[Path]:
    """The files that `read` takes its sentences from, in order."""
    path, patterns = Path(path), format_of(format).patterns
    if path.is_file():
        return [path]
    if path.is_dir():
        matching = sorted({file for pattern in patterns for file in path.rglob(pattern) if file.is_file()})
        if not matching:
            raise InputError(f"{path}: no {' or '.join(patterns)} in this folder; name a file or a glob")
        return matching
    pattern = str(path.relative_to(path.anchor))
    matching = sorted(file for file in Path(path.anchor).glob(pattern) if file.is_file())
    if not matching:
        raise InputError(f"{path}: no such file, and no file matches; check the path")
    return matching


def format_of(name: str) -> Format:
    """The format of a name; raises `InputError` naming the nearest one."""
    if name not in FORMATS:
        raise InputError(f"unknown format '{name}'{did_you_mean(name, FORMATS, '')} ({', '.join(FORMATS)})")
    return FORMATS[name]
