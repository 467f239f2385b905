"""Text files, read line by line; errors that name the line of a fault; conditions for sound sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from mtl.errors import InputError
from mtl.tasks.catalogue import SENTENCE_TASKS, TEXTS
from mtl.tasks.in_words import as_json, counted
from mtl.tasks.sentence import CONTROL, Arcs, Frame, Graph, Sentence, Span, is_label, is_per_word
from mtl.tasks.sentence_tasks import Regress

_LONGEST = 240
_UTF32 = "UTF-32: convert it, for instance with iconv -f UTF-32 -t UTF-8"
_UTF16 = "UTF-16: convert it, for instance with iconv -f UTF-16 -t UTF-8"
_BEGINNINGS = {
    rb"\x1f\x8b": "compressed by gzip: unpack it",
    rb"BZh[1-9]1AY": "compressed by bzip2: unpack it",
    rb"\xfd7zXZ": "compressed by xz: unpack it",
    rb"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it",
    rb"PK\x03\x04": "a zip file: unpack it (of a workbook, save a sheet as text)",
    rb"PAR1[\0-\x1f]": "a Parquet file: write its rows as text",
    rb"%PDF-[0-9]": "a PDF file: use the text itself",
    rb"\xff\xfe\0\0|\0\0\xfe\xff": _UTF32,
    rb"\xff\xfe|\xfe\xff": _UTF16,
}
"""What files with these beginnings are, and what to do: they are not text in UTF-8."""
_LOOKED_AT = 4096
"""Bytes at the beginning of a file that are looked at."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
CONTROLS = "text with a control character, which is left out"
BLANKS = " \t"
"""The white space that separates columns; a line with nothing else is blank. Words may contain all other."""
CARRIAGE_RETURN = "a carriage return within the line; write line feeds as line ends, and take others out"
"""The fault of a line that other programs take for two."""
NO_HEAD = "word without a head in a tree: the others are trained on and scored"
BYTE_ORDER_MARKS = re.compile("^\ufeff+", re.MULTILINE)
"""Byte order marks at the start of a line, which concatenated files have: they are no part of the text."""
_MARKS_ALONE = re.compile("^\ufeff+[ \t]+[^ \t\r\n]", re.MULTILINE)


def malformed(path: Path, line: int, what: str) -> InputError:
    """The error for a fault in a line of a file, counted from 1."""
    return InputError(f"{path}:{line}: {shortened(what)}")


def shortened(what: str) -> str:
    """What is wrong with an input, without the middle of a long text and with unprintables escaped."""
    what = _UNPRINTABLE.sub(lambda match: ascii(match.group())[1:-1], what)
    return what if len(what) <= _LONGEST else f"{what[: _LONGEST // 2]} … {what[-_LONGEST // 2 :]}"


def name_of(path: Path, *, suffix: bool = False) -> str:
    """A file's name, with which ids of its sentences begin; characters that ids may not hold become `_`."""
    return _UNPRINTABLE.sub("_", path.name if suffix else path.stem)


def documents_of(path: Path) -> Callable[[int], str]:
    """Names of a file's documents, by their number, for a file that gives them none.

    They contain a checksum of the file, so that documents of files with the same name stay apart.
    """
    checksum = cache(lambda: crc32(path.read_bytes()))
    return lambda number: f"{name_of(path)}-{checksum():08x}-document-{number:04d}"


def controls_in(*texts: str) -> tuple[str, ...]:
    """A note if one of the texts holds a control character that is left out (`CONTROL`)."""
    return (CONTROLS,) if any(map(CONTROL.search, texts)) else ()


def no_text(beginning: bytes) -> str | None:
    """What a file or stream with this beginning is, and what to do; `None`: it may be text in UTF-8."""
    for start, what in _BEGINNINGS.items():
        if re.match(start, beginning):
            return what
    beginning = beginning[:_LOOKED_AT]
    # In UTF-16, every second byte of ASCII text is zero.
    return _UTF16 if 3 * beginning.count(b"\0") > len(beginning) else None


def read_lines(path: Path, *, rows: bool = False) -> list[str]:
    """The lines of a UTF-8 file, as `lines_of` gives them."""
    with _readable(path):
        data = path.read_bytes()
    return lines_of(path, data, rows=rows)


def iterate_lines(path: Path) -> Iterator[str]:
    """The lines of `read_lines`, each read and decoded only when it is asked for."""
    with _readable(path):
        file = path.open("rb")
    with file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                _refuse_no_text(path, line)
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, error) from error
            yield _line(path, number, text.removesuffix("\n"))


def lines_of(path: Path, data: bytes, *, rows: bool = False) -> list[str]:
    """The lines of UTF-8 text, which is the content of the file.

    A line ends only at a line feed, with any carriage returns before it: words may contain U+2028 and similar
    characters. Byte order marks at the start of any line are left out, since concatenated files have them.
    Raises `InputError` for a carriage return within a line, which only some programs take for a line's end.
    With `rows`, lines are rows of columns. A mark that is the whole first column is then an error, too:
    without it, the next column would take its place.
    """
    _refuse_no_text(path, data[:_LOOKED_AT])
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, data.count(b"\n", 0, error.start) + 1, error) from error
    if "\ufeff" in text:
        if rows and (found := _MARKS_ALONE.search(text)):
            what = "a byte order mark where the row's first column should be; write that column"
            raise malformed(path, text.count("\n", 0, found.start()) + 1, what)
        text = BYTE_ORDER_MARKS.sub("", text)
    if "\r" not in text:
        return text.split("\n")
    return [_line(path, number, line) for number, line in enumerate(text.split("\n"), start=1)]


def is_blank(line: str) -> bool:
    """Whether a line consists only of blanks and tabs."""
    return not line.strip(BLANKS)


def _line(path: Path, number: int, text: str) -> str:
    text = text.lstrip("\ufeff").rstrip("\r")
    if "\r" in text:
        raise malformed(path, number, CARRIAGE_RETURN)
    return text


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; use the path of a readable file") from error


def _refuse_no_text(path: Path, beginning: bytes) -> None:
    if what := no_text(beginning):
        raise InputError(f"{path}: {what}")


def _not_utf8(path: Path, line: int, error: UnicodeDecodeError) -> InputError:
    return malformed(path, line, f"not UTF-8 ({error.reason}); convert the file to UTF-8")


_TAGS = ("tags", "upos")
"""The layers with a label per word that may not hold white space."""
_NOT_PRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_BLANK_OR_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Fault(NamedTuple):
    """What is wrong with a sentence, and at which word (from 0; `None`: not at a single word)."""

    word: int | None
    what: str


def fault(sentence: Sentence) -> Fault | None:
    """The first fault of a sentence that formats or tasks cannot hold, or `None`.

    Words are not empty, and hold no control character and no half of a surrogate pair. Spaces are allowed
    within a word, within a label per word other than a tag (lemmas may have those of words), and within a
    label of the whole sentence under a name of its own (it may be a translation). Other labels hold no white
    space. A label of a whole sentence is one that its task allows; a pair has only such labels. Arcs form a
    tree with one root, or can become one where heads are not known. In a graph, an arc from a word to itself
    is a path over empty nodes, with a `>` in its label. Names of layers hold no control character.
    Overlapping entities, overlapping arguments, several frames at one predicate and several arcs between two
    words are not faults: tasks leave out what they cannot represent, and count it.
    """
    if not all(sentence.words) or any(map(str.isspace, sentence.words)):
        number = next(number for number, word in enumerate(sentence.words) if not word.strip())
        word = sentence.words[number]
        what = f"is empty, {word!a}" if word else "is empty"
        return Fault(number, f"word {number + 1} {what}; give it a form, or take it out")
    if _NOT_PRINTED.search("".join(sentence.words)):
        number, word = next(
            (number, word) for number, word in enumerate(sentence.words) if _NOT_PRINTED.search(word)
        )
        return Fault(number, f"word {number + 1}, {word!a}, holds a control character; take it out")
    if _NOT_PRINTED.search(sentence.id):
        return Fault(None, f"the id {sentence.id!a} holds a control character; take it out")
    if message := second_fault(sentence.second, len(sentence)):
        return Fault(None, message)
    # The quick way first: a corpus has a million labels, and nearly all of them are sound.
    if any(map(_label_fault, (label for _, _, label in _span_labels(sentence)))) or any(
        any(map(fault_of, labels)) for _, labels, fault_of in _word_labels(sentence)
    ):
        in_order = [
            *(
                (layer, word, fault_of(label))
                for layer, labels, fault_of in _word_labels(sentence)
                for word, label in enumerate(labels)
            ),
            *((layer, word, _label_fault(label)) for layer, word, label in _span_labels(sentence)),
        ]
        for layer, number, message in in_order:
            if message is not None:
                return Fault(number, f"'{layer}' at word {number + 1}: {message}")
    return next(filter(None, (_layer_fault(*layer, sentence) for layer in sentence.layers.items())), None)


def _layer_fault(name: str, value: Any, sentence: Sentence) -> Fault | None:
    if _NOT_PRINTED.search(name):
        return Fault(None, f"the name {name!a} holds a control character; take it out")
    if is_label(value):
        message = label_fault(name, value)
        return None if message is None else Fault(None, f"the label of {name}: {message}")
    if sentence.second is not None:
        return Fault(None, f"a pair of sentences has only labels: take '{name}' or 'second' out")
    if isinstance(value, Graph):
        return _graph_fault(name, value)
    return _arcs_fault(value.heads) if isinstance(value, Arcs) else None


def second_fault(value: Any, words: int) -> str | None:
    """What is wrong with a value as the start of a pair's second sentence, or `None`."""
    if value is not None and words < 2:
        return "'second' is for pairs of sentences, and here is one word; leave it out"
    if value is not None and (type(value) is not int or not 0 < value < words):
        return f"'second' is {as_json(value)}; the second sentence of a pair begins at word 1 to {words - 1}"
    return None


def label_fault(name: str, value: Any) -> str | None:
    """What is wrong with a value as the label of a whole sentence under a name, or `None`."""
    if name in SENTENCE_TASKS:
        return (_label_fault(value) if isinstance(value, str) else None) or SENTENCE_TASKS[name].fault(value)
    if isinstance(value, str):
        control = CONTROL.search(value)
        return f"it holds a control character, {control.group()!a}; take it out" if control else None
    return f"{as_json(value)} is not a text; write it in quotes" if name in TEXTS else Regress.fault(value)


def _word_labels(sentence: Sentence) -> Iterator[tuple[str, tuple[str, ...], Callable[[str], str | None]]]:
    """Each layer with a label per word: its key in JSON, its labels, and what finds the fault of a label."""
    for name, value in sentence.layers.items():
        if isinstance(value, Arcs):
            yield "relations" if name == "arcs" else name, value.relations, _label_fault
        elif is_per_word(value):
            yield name, value, _label_fault if name in _TAGS else _text_fault


def _span_labels(sentence: Sentence) -> Iterator[tuple[str, int, str]]:
    """Every label of spans, frames and graphs, with its key in JSON and its first word."""
    for name, value in sentence.layers.items():
        if isinstance(value, Graph):
            for dependent, _, label in value.arcs:
                yield name, dependent - 1, label
        for item in value if isinstance(value, tuple) else ():
            if isinstance(item, Span):
                yield name, item.start, item.label
            elif isinstance(item, Frame):
                if item.sense is not None:
                    yield "sense", item.predicate, item.sense
                for start, _, label in item.arguments:
                    yield "arguments", start, label


@lru_cache(maxsize=100_000)
def _label_fault(label: str) -> str | None:
    if not label:
        return "an empty label; name it, or leave the layer out of this sentence"
    if _BLANK_OR_UNPRINTABLE.search(label):
        return f"the label {label!a} holds white space or a control character; write it as one word"
    return None


@lru_cache(maxsize=100_000)
def _text_fault(label: str) -> str | None:
    if not label or label.isspace():
        return f"an empty label, {label!a}; name it, or leave the layer out of this sentence"
    if _NOT_PRINTED.search(label):
        return f"the label {label!a} holds a control character; take it out"
    return None


def _arcs_fault(heads: Sequence[int | None]) -> Fault | None:
    if not any(head is not None for head in heads):
        return Fault(None, f"a dependency tree without {'heads' if heads else 'words'}; leave its layer out")
    on_cycle = cycle(heads)
    if on_cycle is not None:
        return Fault(on_cycle, f"the heads form a cycle through word {on_cycle + 1}; make them a tree")
    roots = [number for number, head in enumerate(heads) if head == 0]
    if len(roots) > 1:
        first, second = roots[0] + 1, roots[1] + 1
        return Fault(
            roots[1],
            f"{counted(len(roots), 'root')}, the first at words {first} and {second}; "
            "a dependency tree has one: give the others a head",
        )
    return None


def _graph_fault(name: str, graph: Graph) -> Fault | None:
    for arc in graph.arcs:
        if arc.dependent == arc.head and ">" not in arc.label:
            what = f"'{name}' has the arc {list(arc)}; give word {arc.dependent} another head"
            return Fault(arc.dependent - 1, what)
    return None


def cycle(heads: Sequence[int | None]) -> int | None:
    """A word (from 0) on a cycle of heads (from 1, 0 the root, `None` not known), or `None` without one."""
    seen = [0] * (len(heads) + 1)
    for start in range(1, len(heads) + 1):
        word = start
        while word and not seen[word]:
            seen[word] = start
            word = heads[word - 1] or 0
        if word and seen[word] == start:
            return word - 1
    return None
