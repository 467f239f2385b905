"""Files at hand: their splits, their format, and the tasks that can learn from them."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from mtl.config.instances import can_be_named
from mtl.config.schema import SPLITS
from mtl.corpora.formats.columns import OF_SENTENCE
from mtl.corpora.formats.lines import iterate_lines
from mtl.corpora.readers import FORMATS, files, folders_below, format_of, is_hidden, read_sentences
from mtl.errors import InputError
from mtl.tasks.catalogue import KINDS, SENTENCE_TASKS, STRUCTURED, TASKS, TEXTS, named_in
from mtl.tasks.sentence import Sentence
from mtl.tasks.structured import Tags
from mtl.tasks.task import Task, instance

_SPLITS = {"train": "train", "dev": "dev", "val": "dev", "testa": "dev", "test": "test", "testb": "test"}
_SPLIT = re.compile(
    r"(?<![a-z])(train|dev|val|testa|testb|test)(ing|elopment|id|idation)?(?![a-z])", re.IGNORECASE
)
_BY_NAME = {
    "jsonl": ("jsonl", "json-entities"),
    "json-entities": ("json-entities",),
    "sdp": ("sdp",),
    "conllu": ("conllu", "conllu:roots=attach"),
    "conll2012": ("conll2012",),
    "brackets": ("brackets",),
    "conll2005": ("conll2005",),
}
"""Formats that are known by the names of files, with the variants to try."""
_OF_COLUMNS = ("conllu", "conll2003", "conll2003-lenient")
_MILDER = {"conllu": "conllu:roots=attach", "conll2003": "conll2003-lenient"}
"""The more lenient variant of a format, for files that the format itself refuses."""
_NUMBERED = ("conllu", "uner", "conll2003:word=2,entity=3")
"""The formats of files whose first column numbers the words."""
_ANY = ("glue-regress", "glue-classify", "columns")
"""The formats whose labels may be of any task."""
_IN_FOLDERS = sorted(
    {*FORMATS["columns"].patterns, "*.tsv", *(each for name in _BY_NAME for each in FORMATS[name].patterns)}
)
"""The names of files that are taken from folders."""
_COMMENT = re.compile(r"#[ \t]*([A-Za-z][\w.-]*)[ \t]*[=:][ \t]*(\S+)\s*")
"""A comment with a single word: `# KEY = WORD` or `# KEY: WORD`."""
_LAYERS = {kind().layer: kind.name for kind in STRUCTURED}
"""The name of the program's own task for each layer."""


class CorpusFiles(NamedTuple):
    """The files of one corpus: their format with its options, paths and sentences by split, and notes."""

    name: str
    format: str
    paths: dict[str, str]
    sentences: dict[str, list[Sentence]]
    notes: list[str]

    @property
    def is_folder(self) -> bool:
        """Whether `corpus.path` reads the files: train.jsonl, dev.jsonl and test.jsonl of a folder."""
        folder = Path(self.paths["train"]).parent
        return self.format == "jsonl" and all(
            Path(path) == folder / f"{split}.jsonl" for split, path in self.paths.items()
        )


class Learner(NamedTuple):
    """A task that can learn a layer; `kind`: that of a task with a name of its own, `None` for the others."""

    name: str
    kind: str | None
    layer: str
    task: Task


def groups_at(paths: Sequence[Path]) -> list[CorpusFiles]:
    """The corpora among files and folders, told apart by their names; raises `InputError` if there is none.

    The name of a file, or of a folder above it, contains `train`, `dev` (`val`, `testa`) or `test` (`testb`).
    Files whose paths are otherwise the same are the splits of one corpus. Without a test file, dev is used as
    test, too.
    """
    found: dict[tuple[str, str], dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    beside = []
    for path, base in _files(paths):
        place = _place(path, base)
        if place is None:
            beside.append(path)
        else:
            split, key = place
            found[key, path.suffix if key.endswith("{}") else ""][split].append(path)
    usable = {key: splits for key, splits in found.items() if {"train", "dev"} <= {*splits}}
    if not usable:
        names = ", ".join(map(str, paths))
        looked_for = f" among {', '.join(_IN_FOLDERS)}" if any(map(Path.is_dir, paths)) else ""
        raise InputError(
            f"{names}: no files whose names say train and dev{looked_for}: rename them (to train.conllu and "
            f"dev.conllu, say), or name each file{_of_own_configurations()}"
        )
    beside += [path for key in found.keys() - usable for each in found[key].values() for path in each]
    left = [f"{path}: left out: a corpus needs files with train and dev in their names" for path in beside]
    made = [_group(key, splits) for (key, _), splits in sorted(usable.items())]
    made[0].notes[:0] = sorted(left)
    return made


def _of_own_configurations() -> str:
    """Which configuration to change for tasks that are trained alone, in brackets; empty without such."""
    alone = [kind for kind in KINDS.values() if kind.own_model]
    return "".join(f" (for {kind.kind}s change configs/{kind.kind}.yaml)" for kind in alone)


def in_several(groups: Sequence[CorpusFiles]) -> set[str]:
    """The layers that several groups have: two schemes of entities, say. Labels of any task do not count."""
    known = [group for group in groups if group.format not in _ANY]
    layers = (layer for group in known for layer in _layers_in(group.sentences["train"]))
    return {layer for layer, number in Counter(layers).items() if number > 1}


def _layers_in(sentences: Sequence[Sentence]) -> dict[str, None]:
    return dict.fromkeys(layer for sentence in sentences for layer in sentence.layers)


def learners(
    group: CorpusFiles, taken: Collection[str], several: Collection[str] = ()
) -> Iterator[Learner | str]:
    """The tasks that can learn from a group, under free names; for each other layer, why it is left out.

    A task is named after its layer, or after its files if the layer is one of `several` groups.
    """
    train, dev = group.sentences["train"], group.sentences["dev"]
    layers = _layers_in(train)
    kinds: dict[str, Any] = {name: TASKS[task] for name, task in _LAYERS.items()}
    kinds |= {"upos": Tags, **TEXTS}
    kinds |= {**SENTENCE_TASKS, **{name: KINDS[kind.kind] for name, kind in named_in(train).items()}}
    given = set(taken)
    for layer in layers:
        if kinds[layer].own_model:
            kind = kinds[layer].kind
            yield f"{layer}: left out: a {kind} is trained alone, as configs/{kind}.yaml does"
            continue
        name, kind = _LAYERS.get(layer, layer), kinds[layer]
        if layer == OF_SENTENCE and "comment=" in group.format:
            name = group.format.partition("comment=")[2]
        by_files = layer in several and not group.is_folder and group.name != name
        comes = name in TASKS and group.format not in _ANY and name not in given and not by_files
        if not comes:
            name = _free(group.name if name in TASKS else name, given)
        task = kind() if comes else instance(name, KINDS[kind.kind], layer)()
        if not any(task.annotated(each) and task.is_labelled(each) for each in train):
            yield f"{layer}: left out: no label in train"
        elif not any(map(task.annotated, dev)):
            yield f"{layer}: left out: no dev sentence is annotated for it"
        else:
            given.add(name)
            yield Learner(name, None if comes else kind.kind, layer, task)


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Files, each with the folder below which its path may name its split."""
    for path in paths:
        if path.is_dir():
            for file in sorted(file for folder in folders_below(path) for file in folder.iterdir()):
                named = any(fnmatch(file.name, pattern) for pattern in _IN_FOLDERS)
                if named and file.is_file() and not is_hidden(file, path):
                    yield file, path.parent
        elif path.is_file():
            yield path, path.parent.parent
        else:
            raise InputError(f"{path}: no such file or folder; check the path")


def _place(path: Path, base: Path) -> tuple[str, str] | None:
    """The split that a path names, and the path without that name; the last part that names one decides."""
    parts = path.relative_to(base).parts
    for depth in reversed(range(len(parts))):
        part = parts[depth]
        if matches := list(_SPLIT.finditer(part)):
            name = f"{part[: matches[-1].start()]}{{}}{part[matches[-1].end() :]}"
            return _SPLITS[matches[-1][1].lower()], str(Path(base, *parts[:depth], name))
    return None


def _group(key: str, splits: dict[str, list[Path]]) -> CorpusFiles:
    """The corpus of these files, in the strictest variant of the first's format that reads all of them."""
    names = [re.sub(r"\.[^.]*$", "", part).replace("{}", "") for part in Path(key).parts[-2:]]
    name = next((each for part in reversed(names) if (each := _slug(part))), "labels")
    try:
        strict = _format(splits["train"][0])
    except InputError as error:
        return _words_with_class(splits, name, error)
    without_test, errors = [], []
    for format in [strict, *([_MILDER[strict]] if strict in _MILDER else [])]:
        try:
            group = _group_in(format, name, splits)
        except InputError as error:
            errors.append(error)
            continue
        if "comment" in format_of(format).options and (comment := _comment_with_class(splits, group)):
            group = _group_in(f"{format}{',' if ':' in format else ':'}comment={comment}", name, splits)
        if "test" in group.sentences or "test" not in splits:
            return group
        without_test.append(group)
    if not without_test:
        raise errors[-1]
    return without_test[0]


def _words_with_class(splits: dict[str, list[Path]], name: str, error: InputError) -> CorpusFiles:
    """The corpus of files of words alone with a class in a comment; raises `error` if it is none."""
    for key in _comments(splits):
        with suppress(InputError):
            group = _group_in(f"columns:comment={key}", name, splits)
            if group.sentences["train"][0].tags is None and _comment_with_class(splits, group) == key:
                return group
    raise error


def _group_in(format: str, name: str, splits: dict[str, list[Path]]) -> CorpusFiles:
    paths = {split: _one_path(each, format) for split, each in splits.items()}
    sentences = {split: read_sentences(path, format) for split, path in paths.items() if split != "test"}
    notes = []
    try:
        sentences["test"] = read_sentences(paths["test"], format)
    except (InputError, KeyError) as error:
        why = error if isinstance(error, InputError) else "there is no such file"
        notes.append(f"test: dev stands in for it: {why}")
        paths["test"] = paths["dev"]
    parts = {split: sentences[split] for split in SPLITS if split in sentences}
    return CorpusFiles(name, format, {split: paths[split] for split in SPLITS}, parts, notes)


def _comment_with_class(splits: Mapping[str, list[Path]], group: CorpusFiles) -> str | None:
    """The key of the comment that has one word before each sentence, of at most half as many as sentences."""
    number = sum(map(len, group.sentences.values()))
    values = _comments(splits).items()
    return next((key for key, found in values if len(found) == number >= 2 * len({*found}) >= 4), None)


def _comments(splits: Mapping[str, list[Path]]) -> dict[str, list[str]]:
    """The values of comments that have one word, by key."""
    values: dict[str, list[str]] = defaultdict(list)
    for path in itertools.chain.from_iterable(splits.values()):
        for match in filter(None, map(_COMMENT.fullmatch, iterate_lines(path))):
            values[match[1]].append(match[2])
    return values


def _one_path(paths: list[Path], format: str) -> str:
    """The path that a configuration gives for the files of a split: the file, or a folder of all files."""
    if len(paths) == 1:
        return str(paths[0])
    folder = paths[0].parent
    while not all(path.is_relative_to(folder) for path in paths):
        folder = folder.parent
    if {*files(folder, format)} != {*paths}:
        raise InputError(
            f"{folder}: files of several splits or corpora: put those of each split into its own folder"
        )
    return str(folder)


def _format(path: Path) -> str:
    """The first format in which a file can be read; without any, raises the `InputError` of the likeliest."""
    for name, variants in _BY_NAME.items():
        if any(fnmatch(path.name, pattern) for pattern in FORMATS[name].patterns):
            return _readable(path, variants, variants[0])
    line = next((line for line in iterate_lines(path) if line.strip() and not line.startswith("#")), "")
    glue = f"glue-{path.parent.name.lower().replace('-', '')}"
    first = _NUMBERED if line.split()[:1] and line.split()[0].isdecimal() else _OF_COLUMNS
    if line.startswith("("):  # a tree, or tagged words of which a bracket is the first
        return _readable(path, ("brackets", *first), "brackets")
    is_table = "\t" in line and any(len(field.split()) > 1 for field in line.split("\t"))
    likeliest = "glue-classify" if is_table else "columns"
    return _readable(path, (*first, *([glue] if glue in FORMATS else []), *_ANY), likeliest)


def _readable(path: Path, formats: Sequence[str], likeliest: str) -> str:
    errors: dict[str, InputError] = {}
    for format in formats:
        try:
            sentences = read_sentences(path, format)
        except InputError as error:
            errors[format] = error
            continue
        if format == "columns" and "glue-classify" in errors and _are_texts(sentences):
            likeliest = "glue-classify"
            break
        whole = format == "glue-regress" and all(
            float(value).is_integer() for each in sentences for value in each.layers.values()
        )
        if not whole:  # classes that are numbers
            return format
    raise errors[likeliest]


def _are_texts(sentences: Sequence[Sentence]) -> bool:
    """Whether most words consist of several words: they are sentences, in a table without a header."""
    words = [word for sentence in sentences for word in sentence.words]
    return 2 * sum(len(word.split()) > 1 for word in words) > len(words)


def layers_of(format: str) -> tuple[str, ...]:
    """The layers that `corpus.files` can provide in a format; none if each task needs files of its own."""
    form = format_of(format)
    return () if format in _ANY or format.startswith(("glue", "jsonl")) else (*form.layers, *form.sometimes)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").lower().lstrip("0123456789_")


def _free(name: str, taken: Collection[str]) -> str:
    """A name that a task can have and that is not taken, as close to `name` as possible."""
    if not can_be_named(name):
        name = _slug(name) or "task"
    found, number = name, 2
    while found in taken or not can_be_named(found):
        found, number = f"{name}_{number}", number + 1
    return found
