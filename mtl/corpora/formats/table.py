"""The formats of corpora, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from mtl.corpora.formats.columns import OF_SENTENCE, ROLE_OF_SENTENCE, read_label_columns
from mtl.corpora.formats.columns import ROLES as LABEL_ROLES
from mtl.corpora.formats.conll2003 import ROLES, read_conll2003
from mtl.corpora.formats.conllu import read_conllu
from mtl.corpora.formats.glue import read_glue, unnamed_task
from mtl.corpora.formats.json_entities import read_json_entities
from mtl.corpora.formats.jsonl import iterate_jsonl
from mtl.corpora.formats.own_layers import DEPS
from mtl.corpora.formats.sdp import SENSES, read_sdp
from mtl.corpora.formats.treebanks import read_brackets, read_conll2005, read_conll2012
from mtl.errors import InputError, did_you_mean
from mtl.features import FormatRow, added
from mtl.tasks.catalogue import LAYERS, SENTENCE_TASKS
from mtl.tasks.sentence import FEATS, LEMMAS, Sentence


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
    if len(columns) + len(options) < len(text.split(",")) or len({*columns.values()}) < len(columns):
        raise InputError(f"{name}: name each column and option once")
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
