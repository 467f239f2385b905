"""The formats that corpora come in, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from mtl.corpora.formats.brackets import read_brackets
from mtl.corpora.formats.conll2003 import read_conll2003
from mtl.corpora.formats.conll2005 import read_conll2005
from mtl.corpora.formats.conll2012 import read_conll2012
from mtl.corpora.formats.conllu import read_conllu
from mtl.corpora.formats.glue import read_glue, unnamed_task
from mtl.corpora.formats.jsonl import iterate_jsonl
from mtl.corpora.formats.parallel import read_parallel
from mtl.errors import InputError, did_you_mean
from tasks.catalogue import LAYERS, SENTENCE_TASKS
from tasks.sentence import Sentence


class Format(NamedTuple):
    """A reader, the names of the files that it takes from a folder, and the layers that it can give.

    Without names the reader takes the two files of a path SOURCE:TARGET.
    """

    read: Callable[..., Iterable[Sentence]]
    patterns: tuple[str, ...]
    layers: tuple[str, ...]


_COLUMNS = ("*.conll", "*.txt", "*.iob", "*.iob2", "*.bio")
_UNIVERSAL = ("tags", "upos", "arcs")
_BRACKETS = ("*.mrg", "*.ptb", "*.brackets")
_GLUE = ("*.tsv", "*.txt")

FORMATS = {
    "jsonl": Format(iterate_jsonl, ("*.jsonl",), LAYERS),
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
    "parallel": Format(read_parallel, (), ("translate",)),
    "glue": Format(unnamed_task, _GLUE, ()),
    **{f"glue-{name}": Format(partial(read_glue, task=name), _GLUE, (name,)) for name in SENTENCE_TASKS},
}
"""`-upos`: universal tags as tags; `-iob1` and its like: the scheme declared, not detected; `-verbatim`: with
traces and function tags; `glue-TASK`: labels of that task (`glue` under `corpus.TASK`)."""


def format_of(name: str) -> Format:
    """The format of a name; raises `InputError` naming the nearest one."""
    if name not in FORMATS:
        raise InputError(f"unknown format '{name}'{did_you_mean(name, FORMATS, '')} ({', '.join(FORMATS)})")
    return FORMATS[name]
