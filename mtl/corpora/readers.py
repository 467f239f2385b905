"""Reading the sentences of files, folders and globs in their format; joining those of several sources.

`FORMATS` are the formats by name, to which features add theirs.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

from mtl.corpora.formats.columns import OF_SENTENCE, ROLE_OF_SENTENCE, read_label_columns
from mtl.corpora.formats.columns import ROLES as LABEL_ROLES
from mtl.corpora.formats.conll2003 import ROLES, OtherColumn, are_numbers, read_conll2003
from mtl.corpora.formats.dependencies import SENSES, read_conllu, read_sdp
from mtl.corpora.formats.glue import read_glue, unnamed_task
from mtl.corpora.formats.json_entities import read_json_entities
from mtl.corpora.formats.jsonl import iterate_jsonl
from mtl.corpora.formats.own_layers import DEPS, is_spelled
from mtl.corpora.formats.phrase_structure import (
    plain_word,
    read_brackets,
    read_conll2005,
    read_conll2012,
    with_words,
)
from mtl.errors import InputError, did_you_mean
from mtl.features import FormatRow, added
from mtl.tasks.catalogue import LAYERS, SENTENCE_TASKS
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import FEATS, LEMMAS, MadeUpId, Sentence
from mtl.tasks.tree import Tree
from mtl.workers.collector import without_collector


def read_sentences(path: str | Path, format: str) -> list[Sentence]:
    """The sentences of a file, a folder or a glob; a folder is searched at any depth.

    Raises `InputError` for what the format does not allow, if there is no sentence, and if the words are not
    words (`with_real_words`).
    """
    with without_collector():
        return list(stream(path, format))


def iterate(path: str | Path, format: str) -> Iterator[Sentence]:
    """The sentences of `read_sentences`, one by one, without its checks; JSON lines are parsed on demand."""
    read, patterns, *_ = format_of(format)
    if not patterns:
        yield from read(*files(path, format))
        return
    for file in files(path, format):
        yield from read(file)


def stream(path: str | Path, format: str) -> Iterator[Sentence]:
    """The sentences of `read_sentences`, one by one; errors about all of them are raised at the end."""
    count = 0
    for sentence in with_real_words(path, iterate(path, format)):
        count += 1
        yield sentence
    if not count:
        raise no_sentence(path, format)


def no_sentence(path: str | Path, format: str) -> InputError:
    """The error for files without a sentence."""
    return InputError(f"{path}: no sentence in it; use files with {format} sentences")


def files(path: str | Path, format: str) -> list[Path]:
    """The files that `read_sentences` reads, in order; each once, however many links lead to it.

    Hidden files are left out unless they are named: editors keep copies in them (`.ipynb_checkpoints`).
    """
    if not str(path):  # for pathlib, it is the current folder
        raise InputError(f"an empty path, where files of format {format} are named: write their path")
    path, form = Path(path), format_of(format)
    if form.paths is not None:
        return [*form.paths(path)]
    patterns = form.patterns
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


def matching(pattern: Path) -> list[Path]:
    """The files and folders that match a pattern (`*`, `?`, `[…]`, `**`), in order.

    A part of the path is a pattern only if nothing has exactly that name. As in a shell, hidden names match
    only a part that begins with a dot.
    """
    found = [Path(pattern.anchor)]
    for part in pattern.relative_to(pattern.anchor).parts:
        try:
            found = [
                match
                for place in found
                for match in _matches(place, part)
                if part.startswith(".") or not is_hidden(match, place)
            ]
        except ValueError:  # pathlib refuses `a**` before Python 3.13: it matches nothing
            return []
    return sorted(set(found))


def _matches(place: Path, part: str) -> Iterable[Path]:
    if (place / part).exists():
        return [place / part]
    if part == "**":
        return folders_below(place) if place.is_dir() else []
    return place.glob(part)


def folders_below(folder: Path) -> Iterator[Path]:
    """A folder and all folders below it except hidden ones; links are followed, which pathlib does not do.

    Each folder is given once, however many links lead to it. Raises `OSError` for one that cannot be listed.
    """
    seen: set[str] = set()
    for place, inside, _ in os.walk(folder, onerror=_raise, followlinks=True):
        real = os.path.realpath(place)
        inside[:] = [] if real in seen else sorted(name for name in inside if not name.startswith("."))
        if real not in seen:
            seen.add(real)
            yield Path(place)


def _raise(error: OSError) -> None:
    raise error


def is_hidden(path: Path, folder: Path) -> bool:
    """Whether any part of a path below a folder begins with a dot."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


_INDEXED = re.compile(r"[0-9]+=.")
"""A word after its number, as files of discontinuous trees have it."""


def with_real_words(path: str | Path, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """The sentences that were read from a file, a folder or a pattern.

    Raises `InputError` after the last one if their words are the numbers of words, all have the same prefix
    or a number before them, are masked, repeat one word, or equal the tags.
    """
    prefixes: set[str] = set()
    masked: Counter[str] = Counter()
    words = longer = numbers = 0
    first: Sentence | None = None
    example = longest = Sentence(())
    alike = indexed = repeated = tagged = True
    for sentence in sentences:
        first = first or sentence
        alike = alike and sentence.words == first.words
        words += len(sentence)
        masked.update(word for word in sentence.words if word in MASKS)
        if len(prefixes) < 2:
            prefixes.update(word[: word.find(":") + 1] for word in sentence.words)
        longest = max(longest, sentence, key=len)
        if len(sentence) > 1:
            example = example if longer else sentence
            longer += 1
            numbers += are_numbers([sentence.words])
            indexed = indexed and all(map(_INDEXED.match, sentence.words))
            repeated = repeated and len(set(sentence.words)) == 1
            tagged = tagged and sentence.words in (sentence.tags, sentence.upos)
        yield sentence
    if 2 * numbers > longer:
        raise InputError(
            f"{path}: the words of most sentences are numbers one after the other, such as "
            f"{' '.join(longest.words[:3])}: does the first column number the words?"
        )
    if len(prefixes) == 1 and not alike and (prefix := prefixes.pop()):
        raise InputError(
            f"{path}: every word begins with '{prefix}', which names a language in WikiAnn: take it off"
        )
    if 2 * masked.total() > words:
        raise InputError(
            f"{path}: {masked.total():,} of {counted(words, 'word')} are '{masked.most_common(1)[0][0]}': "
            "the text was removed from these files, for its licence; restore it with their publisher's tool"
        )
    if longer < 2:
        return
    if indexed:
        raise InputError(
            f"{path}: every word begins with a number, as '{example.words[0]}': take the numbers off"
        )
    if repeated:
        what = f"every sentence repeats one word, such as '{example.words[0]}'"
    elif tagged:
        what = f"every word is its own tag, such as '{example.words[0]}'"
    else:
        return
    raise InputError(
        f"{path}: {what}: was the text removed from these files, or was a column without words read?"
    )


MASKS = frozenset({"_", "[WORD]", "[MASK]", "[UNK]", "<mask>", "<unk>"})
"""What replaces the words in files whose text was removed."""
BY_ORDER = "sentence joined by its order among those with the same words, whose number differs by source"
MASKED = "sentence not joined with others, because some of its words are masked"
_Text = tuple[tuple[str, ...], int | None]


class _Partner(NamedTuple):
    """The index of a sentence that another one is joined with, and notes on how it was found."""

    place: int
    notes: tuple[str, ...] = ()


def merge(parts: Sequence[Sequence[Sentence]]) -> list[Sentence]:
    """The sentences and pairs of several sources; those with the same words become one with all layers.

    Words are the same if they differ at most in Unicode's normal form and a treebank's escapes. The words of
    the first source are kept, the first text that these words spell, and the first id and document that a
    file gives. If several sentences have the same words, those with the same id are joined first and the rest
    in order; the latter have a note if the sources have different numbers of them. Ids that were made up
    (`MadeUpId`) are not compared. Masked sentences are not joined.
    """
    if len(parts) == 1:
        return list(parts[0])
    merged: list[Sentence] = []
    places: dict[_Text, list[int]] = defaultdict(list)
    for part in parts:
        partners = _partners(part, places, merged)
        for number, sentence in enumerate(part):
            partner = partners.get(number)
            if partner is not None:
                merged[partner.place] = _union(merged[partner.place], sentence, partner.notes)
            elif _is_masked(sentence):
                merged.append(replace(sentence, notes=(*sentence.notes, MASKED)))
            else:
                places[_text(sentence)].append(len(merged))
                merged.append(sentence)
    return merged


def _partners(
    part: Sequence[Sentence], places: Mapping[_Text, Sequence[int]], merged: Sequence[Sentence]
) -> dict[int, _Partner]:
    """For sentences of a part, by index, the one among `merged` to join with."""
    same: dict[_Text, list[int]] = defaultdict(list)
    for number, sentence in enumerate(part):
        if (text := _text(sentence)) in places and not _is_masked(sentence):
            same[text].append(number)
    partners: dict[int, _Partner] = {}
    for text, numbers in same.items():
        by_id, of_part = _by_id(merged, places[text]), _by_id(part, numbers)
        for name in by_id.keys() & of_part.keys():
            partners |= _in_order(of_part[name], by_id[name])
        taken = {partners[number].place for number in numbers if number in partners}
        rest = [number for number in numbers if number not in partners]
        partners |= _in_order(rest, [place for place in places[text] if place not in taken])
    return partners


def _in_order(numbers: Sequence[int], places: Sequence[int]) -> dict[int, _Partner]:
    """Sentences of a part, by index, each with the one at the same position among `places`."""
    notes = () if len(numbers) == len(places) else (BY_ORDER,)
    return {number: _Partner(place, notes) for number, place in zip(numbers, places, strict=False)}


def _by_id(sentences: Sequence[Sentence], numbers: Iterable[int]) -> dict[str, list[int]]:
    """The numbers of the sentences with each id that a file gave; ids that were made up are left out."""
    found: dict[str, list[int]] = defaultdict(list)
    for number in numbers:
        if _is_named(sentences[number]):
            found[sentences[number].id].append(number)
    return found


def _is_named(sentence: Sentence) -> bool:
    """Whether a file gave the sentence its id."""
    return bool(sentence.id) and not isinstance(sentence.id, MadeUpId)


def _text(sentence: Sentence) -> _Text:
    """A sentence's words in the same spelling for all formats, and where the second of a pair begins."""
    return tuple([normalize("NFC", plain_word(word)) for word in sentence.words]), sentence.second


def _is_masked(sentence: Sentence) -> bool:
    """Whether words are masked; an underscore may be a word, but half of a sentence cannot be underscores."""
    masked = [word for word in sentence.words if word in MASKS]
    return any(word != "_" for word in masked) or 2 * len(masked) >= max(1, len(sentence))


def _union(first: Sentence, second: Sentence, notes: tuple[str, ...]) -> Sentence:
    others = dict(second.layers)
    if first.words != second.words:
        trees = {name: value for name, value in others.items() if isinstance(value, Tree)}
        others |= {name: with_words(tree, first.words) for name, tree in trees.items()}
    layers = {name: value for name, value in others.items() if first.layer(name) is None}
    read_there = (_placed(note, second.place) for note in second.notes)
    notes = (*first.notes, *read_there, *notes, *_lost(first, others))
    text = first.text or (second.text if is_spelled(second.text, first.words) else "")
    name = first.id if _is_named(first) or not _is_named(second) else second.id
    document = first.document or second.document
    return replace(first.with_layers(layers), id=name, text=text, notes=notes, document=document)


class _Placed(str):
    """A note, with its own place: its sentence has become part of one that was read elsewhere."""

    place: str


def _placed(note: str, place: str) -> str:
    if getattr(note, "place", "") or not place:
        return note
    placed: Any = (OtherColumn if isinstance(note, OtherColumn) else _Placed)(note)
    placed.place = place
    return placed


def _lost(first: Sentence, others: Mapping[str, Any]) -> Iterator[str]:
    """A note on each layer that differs between two sources; that of the first is kept."""
    for layer, value in others.items():
        if first.layer(layer) not in (None, value):
            yield f"sentence whose '{layer}' of a later source is left out: an earlier one has another"


class Format(NamedTuple):
    """A reader, patterns for the files that it takes from a folder, and the layers that it can provide.

    A reader without patterns takes several files, whose paths are written as one; `paths` finds them.
    `roles` are what columns can be named for; `options` are the other options with their possible values
    (empty: any); `sometimes` are layers that only few files of the format have.
    """

    read: Callable[..., Iterable[Sentence]]
    patterns: tuple[str, ...]
    layers: tuple[str, ...]
    roles: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    sometimes: tuple[str, ...] = ()
    paths: Callable[[str | Path], Sequence[Path]] | None = None


_COLUMNS = ("*.conll", "*.txt", "*.iob", "*.iob2", "*.bio")
_UNIVERSAL = ("tags", "upos", LEMMAS, FEATS, "arcs")
_BRACKETS = ("*.mrg", "*.ptb", "*.brackets")
_GLUE = ("*.tsv", "*.txt")

_PLUS = ("*.conllu", "*.conllup", "*.cupt")
_OF_CONLLU = MappingProxyType({"roots": ("refuse", "attach"), "entities": (), "comment": ()})
_OF_COLUMNS = MappingProxyType({"comment": ()})
_OF_TREES = MappingProxyType({"arcs": ("collins",)})
_OF_JSON = MappingProxyType({"language": (), "ends": ("exclusive", "inclusive")})


def _conllu(column: Literal["xpos", "upos"]) -> Format:
    read = partial(read_conllu, column=column)
    return Format(read, _PLUS, _UNIVERSAL, options=_OF_CONLLU, sometimes=("entities", DEPS, OF_SENTENCE))


def _conll2003(**settings: Any) -> Format:
    read = partial(read_conll2003, **settings)
    return Format(read, _COLUMNS, ("entities",), ROLES, _OF_COLUMNS, (OF_SENTENCE,))


def _brackets(**settings: Any) -> Format:
    read = partial(read_brackets, **settings)
    return Format(read, _BRACKETS, ("tags", "tree"), options=_OF_TREES, sometimes=("arcs",))


def _of_feature(files: FormatRow) -> Format:
    """A feature's format; its code is imported when it is used."""

    def read(*paths: Path) -> Iterable[Sentence]:
        sentences: Iterable[Sentence] = resolve_name(files.read)(*paths)
        return sentences

    def paths_of(path: str | Path) -> Sequence[Path]:
        found: Sequence[Path] = resolve_name(files.paths)(path)
        return found

    return Format(read, (), files.layers, paths=paths_of)


FORMATS = {
    "jsonl": Format(iterate_jsonl, ("*.jsonl",), LAYERS),
    "conllu": _conllu("xpos"),
    "conllu-upos": _conllu("upos"),
    "conll2012": Format(
        read_conll2012,
        ("*gold_conll", "*gold_skel"),
        ("tags", "tree", "entities", "frames"),
        options=_OF_TREES,
        sometimes=("arcs",),
    ),
    "conll2003": _conll2003(),
    "conll2003-iob1": _conll2003(scheme="IOB1"),
    "conll2003-iob2": _conll2003(scheme="IOB2"),
    "conll2003-iobes": _conll2003(scheme="IOBES"),
    "conll2003-lenient": _conll2003(lenient=True),
    "uner": Format(
        partial(read_conll2003, scheme="IOB2", columns={"word": 2, "entity": 3}, numbered=True),
        ("*.iob2",),
        ("entities",),
    ),
    "columns": Format(
        read_label_columns,
        _COLUMNS,
        ("tags",),
        (*LABEL_ROLES, ROLE_OF_SENTENCE),
        _OF_COLUMNS,
        (OF_SENTENCE,),
    ),
    "brackets": _brackets(),
    "brackets-verbatim": _brackets(clean=False),
    "conll2005": Format(read_conll2005, ("*.props",), ("frames",)),
    "sdp": Format(read_sdp, ("*.sdp",), ("tags", LEMMAS, DEPS), sometimes=(SENSES,)),
    "json-entities": Format(
        read_json_entities, ("*.json", "*.jsonl", "*.jsonlines"), ("entities",), options=_OF_JSON
    ),
    **{name: _of_feature(files) for name, files in added(lambda feature: feature.formats).items()},
    "glue": Format(unnamed_task, _GLUE, ()),
    **{f"glue-{name}": Format(partial(read_glue, task=name), _GLUE, (name,)) for name in SENTENCE_TASKS},
}
"""`columns`: a label of any sort per word; `-upos`: universal tags as tags; `-iob1`, `-iob2`, `-iobes`: this
scheme, not the detected one; `-lenient`: tags that break the scheme are repaired; `-verbatim`: with traces
and function tags; `glue-TASK`: labels of that task (`glue` under `corpus.TASK`)."""


def format_of(name: str) -> Format:
    """The format of a name, which may have columns and options after a colon: `conll2003:word=2,entity=3`.

    Raises `InputError` for an unknown name, with the nearest one, and for options that the format lacks.
    """
    plain, colon, text = name.partition(":")
    if plain not in FORMATS:
        raise InputError(f"unknown format '{plain}'{did_you_mean(plain, FORMATS, '')} ({', '.join(FORMATS)})")
    form = FORMATS[plain]
    if not colon:
        return form
    columns: dict[str, int] = {}
    options: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key in form.roles:
            columns[key] = _column(name, key, value)
        elif key in form.options and value and value in (form.options[key] or (value,)):
            options[key] = value
        else:
            known = [f"{role}=COLUMN" for role in form.roles]
            known += [f"{option}={'|'.join(values) or 'NAME'}" for option, values in form.options.items()]
            have = f"has {', '.join(known)}" if known else "has no columns or options to choose"
            raise InputError(f"{name}: '{part}': the format {plain} {have}")
    if len(columns) + len(options) < len(text.split(",")):
        raise InputError(f"{name}: name each column and option once")
    if len({*columns.values()}) < len(columns):
        shared = [role for role, column in columns.items() if [*columns.values()].count(column) > 1]
        raise InputError(f"{name}: one column cannot be {' and '.join(shared)}")
    given: dict[str, Any] = {"columns": columns} if columns else {}
    with_layers = {*options, *([OF_SENTENCE] if "comment" in options or ROLE_OF_SENTENCE in columns else [])}
    return form._replace(
        read=partial(form.read, **given, **options),
        layers=(*form.layers, *(layer for layer in form.sometimes if layer in with_layers)),
    )


def _column(name: str, role: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and 0 < int(value[:9]) <= 10_000):
        raise InputError(f"{name}: {role}={value}: columns are whole numbers, counted from 1")
    return int(value)


def format_text(
    name: str, columns: Mapping[str, int], roots: str = "refuse", entities: str | None = None
) -> str:
    """A format's name with its columns and options, as `format_of` reads it."""
    parts = [f"{role}={column}" for role, column in columns.items()]
    parts += ["roots=attach"] if roots == "attach" else []
    parts += [f"entities={entities}"] if entities is not None else []
    return f"{name}{',' if ':' in name else ':'}{','.join(parts)}" if parts else name
