"""Conversion of corpora in any format to one folder of JSON lines; layers of several files are joined."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from mtl.corpora.checks import Look, notes_on, refuse_shared_files
from mtl.corpora.formats.table import FORMATS, format_of
from mtl.corpora.merge import merge
from mtl.corpora.readers import files, read
from mtl.corpora.splits import files_in, refuse_existing, write_splits
from mtl.errors import InputError
from mtl.tasks.catalogue import TASKS, named_in


class Source(NamedTuple):
    """A file, folder or glob, and the name of its format."""

    path: str
    format: str


class Joined(NamedTuple):
    """The number of sentences of each source of a split, by path, and of the whole split.

    `repeated` counts sentences whose id an earlier sentence of this or another split has.
    """

    sources: tuple[tuple[str, int], ...]
    sentences: int
    repeated: int


class Converted(NamedTuple):
    """How the sources of each split were joined, and a line for each oddity in them."""

    joined: dict[str, Joined]
    notes: list[str]


_OPTIONS = re.compile(r"[a-z]+=[^,/]+(,[a-z]+=[^,/]+)*")


def convert(
    splits: Mapping[str, Sequence[str]], out: Path, format: str | None = None, overwrite: bool = False
) -> Converted:
    """Write for each split its sources as `SPLIT.jsonl` into `out`; returns how they were joined.

    A source is `FORMAT:PATH`, `FORMAT:ROLE=COLUMN,…:PATH`, or `PATH` in `format`. If several readings are
    possible, the one with the longest existing path counts. Sentences of several sources with the same words
    become one; a layer that two sources have is taken from the first.
    """
    parsed = {split: [_source(text, format) for text in texts] for split, texts in splits.items() if texts}
    if not parsed:
        raise InputError("nothing to convert: use --train, --dev or --test, such as --train=conllu:PATH")
    refuse_existing(out, overwrite)
    replaced = {path.resolve() for path in files_in(out)}
    found = {
        split: [(source.path, files(source.path, source.format)) for source in sources]
        for split, sources in parsed.items()
    }
    for path in (path for of_split in found.values() for _, paths in of_split for path in paths):
        if path.resolve() in replaced:
            raise InputError(f"{path} is a source that --out={out} would replace: choose another --out")
    refuse_shared_files(found)
    joined, converted = {}, {}
    ids: set[str] = set()
    for split, sources in parsed.items():
        parts = [read(source.path, source.format) for source in sources]
        converted[split] = merge(parts)
        counts = tuple((source.path, len(part)) for source, part in zip(sources, parts, strict=True))
        identified = [sentence.id for sentence in converted[split] if sentence.id]
        repeated = len(identified) - len(set(identified) - ids)
        ids.update(identified)
        joined[split] = Joined(counts, len(converted[split]), repeated)
    tasks = {name: kind() for name, kind in (TASKS | named_in(chain(*converted.values()))).items()}
    notes = notes_on(Look(converted, tasks, trained=False))
    write_splits(out, converted)
    return Converted(joined, notes)


def _source(text: str, format: str | None) -> Source:
    prefix, colon, path = text.partition(":")
    if format is not None and Path(text).exists():
        format_of(format)
        return Source(text, format)
    if colon and prefix in FORMATS:
        if Path(path).exists():
            return Source(path, prefix)
        ends = [end.start() for end in re.finditer(":", path) if _OPTIONS.fullmatch(path[: end.start()])]
        if ends:
            # Options may hold a colon (entities=PARSEME:MWE), and so may paths: the one that is there counts.
            end = next((end for end in ends if Path(path[end + 1 :]).exists()), ends[0])
            format_of(f"{prefix}:{path[:end]}")
            return Source(path[end + 1 :], f"{prefix}:{path[:end]}")
        return Source(path, prefix)
    if format is not None:
        format_of(format)
        return Source(text, format)
    if colon and not Path(text).exists():
        format_of(prefix)  # names the nearest format
    raise InputError(
        f"{text}: in which format? write FORMAT:{text} or give --format; formats: {', '.join(FORMATS)}"
    )
