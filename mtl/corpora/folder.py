"""A corpus in one folder of JSON lines, one file per split.

Its splits are written, all replaced together. A corpus of any format is converted into such a folder, a
subset selected, and what is in it counted.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from mtl.config.schema import SPLITS
from mtl.corpora.checks import CorpusCheck, notes_on, refuse_shared_files
from mtl.corpora.formats.jsonl import read_jsonl, to_line
from mtl.corpora.formats.lines import BLANKS, malformed, read_lines
from mtl.corpora.readers import FORMATS, files, format_of, merge, read_sentences
from mtl.errors import InputError
from mtl.files import new_folder, whole_file, write_json
from mtl.tasks.catalogue import STRUCTURED, TASKS, named_in
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import MadeUpId, Sentence

PROVENANCE = "provenance.json"


def files_in(folder: Path) -> list[Path]:
    """The files of the corpus in a folder: its splits and `provenance.json`, if there is one."""
    return [*sorted(folder.glob("*.jsonl")), *folder.glob(PROVENANCE)]


def require_folder(folder: Path, where: str, how: str) -> None:
    """Raise `InputError` if a corpus's folder is a file or missing; `where` and `how` frame the message."""
    if folder.is_file():
        raise InputError(f"{where}: a file, not a folder: use the folder of the .jsonl files")
    if not folder.is_dir():
        raise InputError(f"{where}: no such folder{how}")


def split_files(folder: Path) -> list[Path]:
    """The splits of the corpus in a folder; raises `InputError` if there is no such folder or no split."""
    require_folder(folder, str(folder), "; check the path")
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise InputError(
            f"{folder}: no *.jsonl files; make them with 'mtl data convert', 'data ewt5' or 'data toy'"
        )
    return paths


def refuse_existing(folder: Path, overwrite: bool) -> None:
    """Raise `InputError` if a folder already holds a corpus, unless that may be overwritten."""
    present = files_in(folder)
    if present and not overwrite:
        raise InputError(
            f"{folder} already holds a corpus ({', '.join(path.name for path in present)}): "
            "choose another --out, or replace it with --overwrite"
        )


def write_splits(
    folder: Path,
    splits: Mapping[str, Sequence[Sentence]],
    provenance: Callable[[Sequence[Path]], Any] | None = None,
) -> list[Path]:
    """Write `NAME.jsonl` for each split, in place of any corpus in `folder`; returns the paths.

    `provenance` makes the content of `provenance.json` from the paths of the splits. A new folder appears
    with all of its files. In an existing one, all splits are written before the first one gets its name, so
    that a full disk leaves the old corpus intact.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        with new_folder(folder) as made:
            _replace(made, splits, provenance)
    else:
        _replace(folder, splits, provenance)
    return [folder / f"{name}.jsonl" for name in splits]


def _replace(
    folder: Path,
    splits: Mapping[str, Sequence[Sentence]],
    provenance: Callable[[Sequence[Path]], Any] | None,
) -> None:
    old = files_in(folder)
    paths = [folder / f"{name}.jsonl" for name in splits]
    with ExitStack() as stack:
        for path, sentences in zip(paths, splits.values(), strict=True):
            temporary = stack.enter_context(whole_file(path))
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(f"{to_line(sentence)}\n" for sentence in sentences)
    for path in old:
        if path not in paths:
            path.unlink()
    if provenance is not None:
        write_json(folder / PROVENANCE, provenance(paths))


class FormattedPath(NamedTuple):
    """A file, folder or glob, and the name of its format."""

    path: str
    format: str


class JoinCounts(NamedTuple):
    """The number of sentences of each source of a split, by path, and of the whole split.

    `repeated` counts sentences with an id from a file that an earlier sentence of this or another split has.
    """

    sources: tuple[tuple[str, int], ...]
    sentences: int
    repeated: int


class Converted(NamedTuple):
    """How the sources of each split were joined, and a line for each oddity in them."""

    joined: dict[str, JoinCounts]
    notes: list[str]


_OPTIONS = re.compile(r"[a-z]+=[^,/]+(,[a-z]+=[^,/]+)*")


def convert_corpus(
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
    in_format = {source.path for sources in parsed.values() for source in sources} & {
        *chain(*splits.values())
    }
    if format is not None and not in_format:
        raise InputError(
            f"--format={format} is for paths that name no format, and all of these do: leave it out"
        )
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
        parts = [read_sentences(source.path, source.format) for source in sources]
        converted[split] = _with_ids_of_their_own(merge(parts), ids)
        counts = tuple((source.path, len(part)) for source, part in zip(sources, parts, strict=True))
        identified = [sentence.id for sentence in converted[split] if sentence.id]
        repeated = len(identified) - len(set(identified) - ids)
        ids.update(identified)
        joined[split] = JoinCounts(counts, len(converted[split]), repeated)
    tasks = {name: kind() for name, kind in (TASKS | named_in(chain(*converted.values()))).items()}
    notes = notes_on(CorpusCheck(converted, tasks, trained=False))
    write_splits(out, converted)
    return Converted(joined, notes)


def _with_ids_of_their_own(sentences: Sequence[Sentence], taken: Collection[str]) -> list[Sentence]:
    """The sentences, those with a made-up id that another one has under a further id.

    `taken` are the ids of earlier splits. Files with the same name give rise to the same ids.
    """
    used = {*taken, *(each.id for each in sentences if not isinstance(each.id, MadeUpId))}
    times: Counter[str] = Counter()
    found = []
    for sentence in sentences:
        name = sentence.id
        while isinstance(sentence.id, MadeUpId) and name in used:
            times[sentence.id] += 1
            name = MadeUpId(f"{sentence.id}-{times[sentence.id] + 1}")
        used.add(name)
        found.append(replace(sentence, id=name))
    return found


def _source(text: str, format: str | None) -> FormattedPath:
    prefix, colon, path = text.partition(":")
    if format is not None and Path(text).exists():
        format_of(format)
        return FormattedPath(text, format)
    if colon and prefix in FORMATS:
        if Path(path).exists():
            return FormattedPath(path, prefix)
        ends = [end.start() for end in re.finditer(":", path) if _OPTIONS.fullmatch(path[: end.start()])]
        if ends:
            # Options may hold a colon (entities=PARSEME:MWE), and so may paths: the one that is there counts.
            end = next((end for end in ends if Path(path[end + 1 :]).exists()), ends[0])
            format_of(f"{prefix}:{path[:end]}")
            return FormattedPath(path[end + 1 :], f"{prefix}:{path[:end]}")
        return FormattedPath(path, prefix)
    if format is not None:
        format_of(format)
        return FormattedPath(text, format)
    if colon and not Path(text).exists():
        format_of(prefix)  # names the nearest format
    raise InputError(
        f"{text}: in which format? write FORMAT:{text} or give --format; formats: {', '.join(FORMATS)}"
    )


def select_sentences(corpus: Path, ids: Sequence[Path], out: Path, overwrite: bool = False) -> dict[str, int]:
    """Write `X.jsonl` into `out` for each list `X.ids` (one id per line); returns the sentences per list.

    Sentences come in the list's order, from all `*.jsonl` files of `corpus`. With `overwrite`, all splits of
    the corpus in `out` are replaced.
    """
    _check_place(corpus, out, overwrite)
    if len({path.stem for path in ids}) < len(ids):
        raise InputError(f"two lists have the same name: {', '.join(map(str, ids))}; rename one")
    sentences = _by_id(corpus)
    chosen = {path.stem: _chosen(path, sentences, corpus) for path in ids}
    write_splits(out, chosen)
    return {name: len(subset) for name, subset in chosen.items()}


def draw_sentences(
    corpus: Path, numbers: Mapping[str, int], out: Path, seed: int = 1, overwrite: bool = False
) -> dict[str, int]:
    """Draw `numbers` of sentences from the splits at random and write them to `out`; returns `numbers`.

    Sentences keep their order. What is drawn from a split does not depend on other splits.
    """
    _check_place(corpus, out, overwrite)
    paths = {path.stem: path for path in split_files(corpus)}
    chosen = {}
    for split, number in numbers.items():
        if split not in paths:
            raise InputError(f"{corpus}: no {split}.jsonl to draw sentences from; it has {', '.join(paths)}")
        sentences = read_jsonl(paths[split])
        if number > len(sentences):
            raise InputError(
                f"{paths[split]}: {number:,} of {counted(len(sentences), 'sentence')}: draw fewer"
            )
        drawn = np.random.default_rng([seed, zlib.crc32(split.encode())]).permutation(len(sentences))[:number]
        chosen[split] = [sentences[place] for place in sorted(drawn.tolist())]
    write_splits(out, chosen)
    return dict(numbers)


def _check_place(corpus: Path, out: Path, overwrite: bool) -> None:
    if out.resolve() == corpus.resolve():
        raise InputError(f"{out} is the corpus itself: choose another --out")
    refuse_existing(out, overwrite)


def _by_id(corpus: Path) -> dict[str, Sentence]:
    sentences: dict[str, Sentence] = {}
    for path in split_files(corpus):
        for sentence in read_jsonl(path):
            if not sentence.id:
                raise InputError(f"{sentence.place}: a sentence without an id; give every sentence one")
            if (other := sentences.get(sentence.id)) is not None:
                raise InputError(
                    f"{sentence.place}: the id '{sentence.id}' is also that of {other.place}; make ids unique"
                )
            sentences[sentence.id] = sentence
    return sentences


def _chosen(path: Path, sentences: dict[str, Sentence], corpus: Path) -> list[Sentence]:
    subset: dict[str, Sentence] = {}
    for number, line in enumerate(read_lines(path), start=1):
        name = line if line in sentences else line.strip(BLANKS)
        if not name:
            continue
        if name not in sentences:
            raise malformed(path, number, f"no sentence '{name}' in {corpus}; list ids as they are there")
        if name in subset:
            raise malformed(path, number, f"the id '{name}' is listed twice; list each once")
        subset[name] = sentences[name]
    if not subset:
        raise InputError(f"{path}: no ids; list one per line")
    return list(subset.values())


Numbers = dict[str, int | dict[str, int]]


def corpus_stats(folder: Path) -> dict[str, Numbers]:
    """The numbers of each split (`*.jsonl` of the folder): sentences, words, and by task a dict of counts.

    A task's dict has `sentences` (annotated ones) and its items: tags; entities; arcs; constituents (all
    nodes above the tags except the root TOP); frames and arguments; labels of whole sentences. Raises
    `InputError` for a folder without `*.jsonl`.
    """
    paths = {path.stem: path for path in split_files(folder)}
    order = [*(split for split in SPLITS if split in paths), *(name for name in paths if name not in SPLITS)]
    return {name: sentence_stats(read_sentences(paths[name], "jsonl")) for name in order}


def sentence_stats(sentences: Sequence[Sentence]) -> Numbers:
    """The numbers of one split; `sentences` of a task are those annotated for it.

    `documents` are counted if the sentences say which they are from.
    Tasks other than the five on words are left out if no sentence is annotated for them.
    """
    numbers: Numbers = {"sentences": len(sentences), "words": sum(map(len, sentences))}
    if documents := {sentence.document for sentence in sentences} - {""}:
        numbers["documents"] = len(documents)
    for name, kind in (TASKS | named_in(sentences)).items():
        if not kind.layers:
            continue  # it reads only words
        task = kind()
        annotated = [sentence for sentence in sentences if task.annotated(sentence)]
        if not annotated and kind not in STRUCTURED:
            continue
        items = Counter(dict.fromkeys(task.items(Sentence(())), 0))
        for sentence in annotated:
            items.update(task.items(sentence))
        numbers[f"layer {name}" if name in numbers else name] = {"sentences": len(annotated), **items}
    return numbers


def stats_table(stats: dict[str, Numbers], title: str) -> Table:
    """The numbers as a table, with a row per split, task and item."""
    table = Table("split", "task", title=title)
    for column in ("sentences", "items"):
        table.add_column(column, justify="right")
    table.add_column("of")
    for split, numbers in stats.items():
        table.add_section()
        table.add_row(split, "", f"{numbers['sentences']:,}", f"{numbers['words']:,}", "words")
        if "documents" in numbers:
            table.add_row("", "", "", f"{numbers['documents']:,}", "documents")
        for task, counts in numbers.items():
            if isinstance(counts, dict):
                for item in (item for item in counts if item != "sentences"):
                    table.add_row("", task, f"{counts['sentences']:,}", f"{counts[item]:,}", item)
    return table
