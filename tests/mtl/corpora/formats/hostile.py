"""Random sentences of words that look like syntax, and writers that share no code with readers.

`python -m tests.mtl.corpora.formats.hostile SENTENCES SEED` reads that many sentences of every format.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mtl.corpora.readers import FORMATS, read_sentences
from mtl.errors import InputError
from mtl.tasks.catalogue import SENTENCE_TASKS
from mtl.tasks.sentence import Arc, Arcs, Frame, Graph, Sentence, Span

PLAIN = ["Ann", "left", "Ulm", ".", "the", "dog", "O", "1", "größe", "张"]
HOSTILE = [
    '#', '#a=b', '#team=red', '# x = y', '# sent_id = s9', '# id 7', '##', '-DOCSTART-', '-DOCSTART-x',
    '#begin document', '#end', '10\xa0000', '\xa0', '\u3000', 'a\u3000b', '\u2009x', '(', ')', '()',
    'f(x)', '[b]', '{', 'a\rb', '\r', '\ufeffBob', 'a\ufeffb', '\ufeff', '\u200b', 'a\u200bb',
    'a\u200d', '\u2060', '_', '*', '*)', '(A0*', '-', '--', '"', "''", '``', '\u201e', '\u2028',
    'a\u2028b', '\u2029', '\x0b', 'a\x0bb', '\x0c', 'a\x1cb', '\x85', 'a\x85', '\x00', '\x1b[31m',
    'a b', ' a', 'a ', '', '[WORD]', 'B-PER', 'I-PER', '1-2', '1.1', 'e\u0301', '\u0627\u0644', '|',
    'a|b', '=', 'NER=B-X', '\\', '-NONE-', '\\n', 'TOP', '0', '\U0001f469\u200d\U0001f680', 'V',
    '&amp;', '<s>', '%', "'", '-X-',
]  # fmt: skip
LABELS = ["PER", "B-X", "C.2"]
MULTIPLE = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"
)  # control characters that are not white space


class Case(NamedTuple):
    """A file's text, and its sentences as words and layers, by the fields of `Sentence`."""

    text: str
    expected: list[dict[str, Any]]
    beside: str = ""
    """For CoNLL-2005, the file of words beside it."""


def words_of(rng: random.Random, allowed: Callable[[str], bool]) -> list[str]:
    hostile = rng.random()  # most files have a few, some have many
    pool = [word for word in HOSTILE if allowed(word)]
    drawn = [rng.choice(pool) if rng.random() < 0.4 * hostile else rng.choice(PLAIN) for _ in range(9)]
    return drawn[: rng.randint(1, 9)]


def spans_of(rng: random.Random, length: int) -> tuple[Span, ...]:
    spans, start = [], rng.randrange(3)
    while start < length:
        end = min(length, start + rng.randint(1, 3))
        spans.append(Span(start, end, rng.choice(LABELS)))
        start = end + rng.randrange(4)
    return tuple(spans)


def tags_of(spans: tuple[Span, ...], length: int, scheme: str) -> list[str]:
    tags = ["O"] * length
    for start, end, label in spans:
        touching = any(other.end == start and other.label == label for other in spans)
        for word in range(start, end):
            first, last = word == start, word == end - 1
            if scheme == "IOBES":
                position = "S" if first and last else "B" if first else "E" if last else "I"
            elif scheme == "IOB2":
                position = "B" if first else "I"
            else:
                position = "B" if first and touching else "I"
            tags[word] = f"{position}-{label}"
    return tags


def arcs_of(rng: random.Random, length: int) -> Arcs:
    """A tree in which, in a random order, every word but the first depends on an earlier one."""
    order = rng.sample(range(length), length)
    heads = [0] * length
    for place, word in enumerate(order[1:], start=1):
        heads[word] = order[rng.randrange(place)] + 1
    return Arcs(tuple(heads), tuple(rng.choice(["nsubj", "obl:at", "dep"]) for _ in range(length)))


def frames_of(rng: random.Random, length: int) -> tuple[Frame, ...]:
    frames = []
    for predicate in sorted(rng.sample(range(length), min(length, rng.randrange(3)))):
        spans = [span for span in spans_of(rng, length) if not span.start <= predicate < span.end]
        frames.append(Frame(predicate, "go.01", tuple(Span(s, e, "A0") for s, e, _ in spans)))
    return tuple(frames)


def column_of(frame: Frame, length: int) -> list[str]:
    return cells_of((*frame.arguments, Span(frame.predicate, frame.predicate + 1, "V")), length)


def cells_of(spans: tuple[Span, ...], length: int) -> list[str]:
    cells = ["*"] * length
    for start, end, label in spans:
        cells[start] = f"({label}{cells[start]}"
        cells[end - 1] += ")"
    return cells


def unescaped(word: str) -> str:
    """A treebank's word, by the table of the guide."""
    return word.replace("-LRB-", "(").replace("-RRB-", ")")


def escaped(word: str) -> str:
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def rows(columns: list[list[str]], separator: str) -> str:
    return "".join(separator.join(row) + "\n" for row in zip(*columns, strict=True))


def no_blank(word: str) -> bool:
    return bool(word) and " " not in word


def jsonl(rng: random.Random) -> Case:
    text, expected = "", []
    for _ in range(rng.randint(1, 3)):
        words = words_of(rng, lambda word: True)
        spans = spans_of(rng, len(words))
        text += json.dumps({"words": words, "entities": spans}, ensure_ascii=rng.random() < 0.5) + "\n"
        expected.append({"words": tuple(words), "entities": spans})
    return Case(text, expected)


def conllu(rng: random.Random) -> Case:
    plus = rng.random() < 0.3
    text, expected = "# global.columns = ID FORM UPOS HEAD DEPREL MISC P:MWE\n" if plus else "", []
    for number in range(rng.randint(1, 3)):
        words = words_of(rng, lambda word: True)
        length = len(words)
        spans, arcs = spans_of(rng, length), arcs_of(rng, length)
        named = rng.random() < 0.7
        if named:
            text += f"# sent_id = s{number}\n# text = {' '.join(words)}".replace("\r", "") + "\n"
        ner = [f"SpaceAfter=No|NER={tag}" for tag in tags_of(spans, length, "IOB2")]
        heads = [str(head) for head in arcs.heads]
        upos = [rng.choice(["NOUN", "X"]) for _ in words]
        ids = [str(place) for place in range(1, length + 1)]
        empty = ["_"] * length
        text += rows(
            [ids, words, upos, heads, [*arcs.relations], ner, empty]
            if plus
            else [ids, words, empty, upos, upos, empty, heads, [*arcs.relations], empty, ner],
            "\t",
        )
        text += "\n" * rng.randint(1, 2)
        words = [word.strip(" ") for word in words]  # padding
        layers = {"words": tuple(words), "upos": tuple(upos), "entities": spans, "arcs": arcs}
        expected.append({**layers, "id": f"s{number}"} if named else layers)
    return Case(text, expected)


def conll2003(scheme: str, uner: bool = False) -> Callable[[random.Random], Case]:
    def write(rng: random.Random) -> Case:
        tabs = uner or rng.random() < 0.5
        used = rng.choice(["IOB1", "IOB2", "IOBES"]) if scheme == "any" else scheme
        further = 0 if uner else rng.randrange(3)
        text, expected = "", []
        for number in range(rng.randint(1, 4)):
            words = words_of(rng, (lambda word: True) if tabs else no_blank)
            length, spans = len(words), spans_of(rng, len(words))
            named = rng.random() < 0.4
            if rng.random() < 0.2:
                text += "-DOCSTART- -X- O\n" + "\n" * rng.randrange(2)
            if named:
                text += f"# sent_id = s{number}\n"
            tags = tags_of(spans, length, used)
            others = [["-"] * length] * further
            if uner:
                columns = [
                    [str(place) for place in range(1, length + 1)],
                    words,
                    tags,
                    ["-"] * length,
                    ["me"] * length,
                ]
            else:
                columns = [words, *others, tags]
            text += rows(columns, rng.choice(["\t", " \t"]) if tabs else rng.choice([" ", "  "])) + "\n"
            words = [word.strip(" ") for word in words]  # padding
            layers: dict[str, Any] = {"id": f"s{number}"} if named else {}
            parts = [(0, length)]
            if not uner and "-DOCSTART-" in words:  # the marker is no word, and ends the sentence before it
                marks = [-1, *(place for place, word in enumerate(words) if word == "-DOCSTART-"), length]
                parts = [(a + 1, b) for a, b in pairwise(marks) if b > a + 1]
                layers = {}
            for start, end in parts:
                inside = tuple(
                    Span(s - start, e - start, label) for s, e, label in spans if start <= s and e <= end
                )
                expected.append({"words": tuple(words[start:end]), "entities": inside, **layers})
        if not uner:  # a byte order mark at the start of a line is no part of it
            expected = [
                {**layers, "words": tuple(w.lstrip("\ufeff") for w in layers["words"])} for layers in expected
            ]
        return Case(text, expected)

    return write


def label_columns(rng: random.Random) -> Case:
    tabs = rng.random() < 0.5
    text, expected = "", []
    for number in range(rng.randint(1, 4)):
        words = words_of(rng, (lambda word: True) if tabs else no_blank)
        labels = [rng.choice(["NN", "#", "_", "B-X", "O", "1"]) for _ in words]
        named = rng.random() < 0.4
        if rng.random() < 0.2:
            text += "-DOCSTART- -X-\n" + "\n" * rng.randrange(2)
        if named:
            text += f"# sent_id = s{number}\n"
        text += rows([words, labels], rng.choice(["\t", " \t"]) if tabs else rng.choice([" ", "  "])) + "\n"
        words = [word.strip(" ") for word in words]
        marks = [-1, *(place for place, word in enumerate(words) if word == "-DOCSTART-"), len(words)]
        for start, end in [(a + 1, b) for a, b in pairwise(marks) if b > a + 1]:
            layers = {"id": f"s{number}"} if named and len(marks) == 2 else {}
            inside = tuple(word.lstrip("\ufeff") for word in words[start:end])
            expected.append({"words": inside, "tags": tuple(labels[start:end]), **layers})
    return Case(text, expected)


def conll2012(rng: random.Random) -> Case:
    propbank = rng.random() < 0.5
    text, expected = "" if propbank else "#begin document (d); part 000\n", []
    for _ in range(rng.randint(1, 3)):
        words = words_of(rng, no_blank)
        length, frames, spans = len(words), frames_of(rng, len(words)), spans_of(rng, len(words))
        tags = [rng.choice(["NN", "-LRB-", "."]) for _ in words]
        bits = ["*"] * length
        bits[0], bits[-1] = "(TOP(S" + bits[0], bits[-1]
        bits[-1] += "))"
        senses = ["-"] * length
        for frame in frames:
            senses[frame.predicate] = "go.01"
        lemmas = ["-" if sense == "-" else "go" for sense in senses]
        columns = [
            ["d"] * length,
            ["0"] * length,
            [str(n) for n in range(length)],
            [*map(escaped, words)],
            tags,
            bits,
        ]
        columns += [lemmas, senses if propbank else [sense[3:] or "-" for sense in senses]]
        if not propbank:
            columns += [["-"] * length, ["-"] * length, cells_of(spans, length)]
        columns += [column_of(frame, length) for frame in frames]
        columns += [] if propbank else [["-"] * length]
        text += rows(columns, rng.choice([" ", "   ", "\t"])) + "\n" * rng.randint(1, 2)
        expected.append(
            {
                "words": tuple(map(unescaped, words)),
                "tags": tuple(tags),
                "frames": frames,
                "entities": None if propbank else spans,
            }
        )
    return Case(text + ("" if propbank else "#end document\n"), expected)


def tree_of(rng: random.Random, leaves: list[str]) -> str:
    if len(leaves) == 1 or rng.random() < 0.3:
        return f"({rng.choice(['NP', 'VP'])} {' '.join(leaves)})"
    cut = rng.randrange(1, len(leaves))
    return f"(S {tree_of(rng, leaves[:cut])}{rng.choice([' ', chr(10), '  '])}{tree_of(rng, leaves[cut:])})"


def brackets(rng: random.Random) -> Case:
    text, expected = "", []
    for _ in range(rng.randint(1, 3)):
        words = words_of(rng, no_blank)
        tags = [rng.choice(["NN", "."]) for _ in words]
        leaves = [f"({tag} {escaped(word)})" for tag, word in zip(tags, words, strict=True)]
        text += f"(TOP {tree_of(rng, leaves)})" + rng.choice(["\n", " ", "\n\n"])
        expected.append({"words": tuple(map(unescaped, words)), "tags": tuple(tags)})
    return Case(text, expected)


def conll2005(rng: random.Random) -> Case:
    text, beside, expected = "", "", []
    alone = rng.random() < 0.3
    for _ in range(rng.randint(1, 3)):
        words = words_of(rng, no_blank)
        frames = frames_of(rng, len(words))
        targets = ["-"] * len(words)
        for frame in frames:
            targets[frame.predicate] = "go"
        numbers = ["-" if target == "-" else "01" for target in targets]
        columns = [
            [*map(escaped, words)],
            numbers,
            targets,
            *(column_of(frame, len(words)) for frame in frames),
        ]
        if alone:
            beside += rows(columns[:1], "") + "\n"
            columns = columns[2:]
        text += rows(columns, rng.choice([" ", "\t", "  "])) + "\n"
        stripped = [word.lstrip("\ufeff") for word in words]
        frames = tuple(replace(frame, sense=None) for frame in frames) if alone else frames
        expected.append({"words": tuple(map(unescaped, stripped)), "frames": frames})
    return Case(text, expected, beside)


def sdp(rng: random.Random) -> Case:
    framed = rng.random() < 0.5
    text, expected = "#SDP 2015\n" if framed else "", []
    for number in range(rng.randint(1, 3)):
        words = words_of(rng, lambda word: True)
        length = len(words)
        places = range(1, length + 1)
        pairs = [(place, head) for place in places for head in (0, *places) if place != head]
        arcs = rng.sample(pairs, rng.randint(0, min(4, len(pairs))))
        heads = sorted({head for _, head in arcs if head})
        labels = {arc: "root" if arc[1] == 0 else rng.choice(LABELS) for arc in arcs}
        columns = [[str(place) for place in places], words, ["_"] * length, ["NN"] * length]
        columns += [["+" if (place, 0) in labels else "-" for place in places]]
        columns += [["+" if place in heads else "-" for place in places]]
        columns += [["n:x"] * length] if framed else []
        columns += [[labels.get((place, head), "_") for place in places] for head in heads]
        text += f"#s{number}\n" + rows(columns, "\t") + "\n"
        graph = Graph(tuple(Arc(*arc, label) for arc, label in labels.items()))
        layers = {"words": tuple(word.strip(" ") for word in words), "id": f"s{number}", "deps": graph}
        expected.append({**layers, "senses": ("n:x",) * length if framed else None})
    return Case(text, expected)


def json_entities(rng: random.Random) -> Case:
    text, expected = "", []
    for _ in range(rng.randint(1, 3)):
        words = words_of(rng, lambda word: True)
        spans = spans_of(rng, len(words))
        text += json.dumps({"tokens": words, "entities": spans}, ensure_ascii=rng.random() < 0.5) + "\n"
        expected.append({"words": tuple(words), "entities": spans})
    return Case(text, expected)


def text_words(text: str) -> list[str]:
    """The words of running text, separated by white space, without control characters."""
    return MULTIPLE.sub("", text).split()


def glue(task: str) -> Callable[[random.Random], Case]:
    kind = SENTENCE_TASKS[task]
    values = getattr(kind, "inventory", ()) or ("1.5", "2.0")

    def write(rng: random.Random) -> Case:
        pair = 2 in kind.sentences
        text, expected = "sentence1\tsentence2\tlabel\n" if pair else "sentence\tlabel\n", []
        for _ in range(rng.randint(1, 4)):
            parts = [" ".join(words_of(rng, lambda word: True)) for _ in range(2 if pair else 1)]
            parts[0] = parts[0].lstrip("\ufeff") if rng.random() < 0.5 else parts[0]
            value = rng.choice(values)
            text += "\t".join([*parts, value]) + "\n"
            words = [text_words(part) for part in (parts[0].lstrip("\ufeff"), *parts[1:])]
            known = float(value) if task in ("stsb", "regress") else value
            layers = {"words": tuple(word for part in words for word in part), task: known}
            expected.append({**layers, "second": len(words[0]) if pair else None})
        return Case(text, expected)

    return write


def parallel(rng: random.Random) -> Case:
    """Source and target, which the caller writes into two files."""
    pairs = [[" ".join(words_of(rng, lambda word: True)) for _ in range(2)] for _ in range(rng.randint(1, 4))]
    expected = []
    for source, target in pairs:
        source = source.lstrip("\ufeff")
        target = MULTIPLE.sub("", target.lstrip("\ufeff")).strip()
        expected.append({"words": tuple(text_words(source)), "translate": target})
    return Case("".join(f"{source}\t\t\t{target}\n" for source, target in pairs), expected)


WRITERS: dict[str, tuple[str, Callable[[random.Random], Case]]] = {
    "jsonl": ("a.jsonl", jsonl),
    "conllu": ("a.conllu", conllu),
    "conllu-upos": ("a.conllu", conllu),
    "conll2012": ("a.gold_conll", conll2012),
    "conll2003": ("a.conll", conll2003("any")),
    "conll2003-iob1": ("a.conll", conll2003("IOB1")),
    "conll2003-iob2": ("a.conll", conll2003("IOB2")),
    "conll2003-iobes": ("a.conll", conll2003("IOBES")),
    "conll2003-lenient": ("a.conll", conll2003("any")),
    "columns": ("a.conll", label_columns),
    "uner": ("a.iob2", conll2003("IOB2", uner=True)),
    "brackets": ("a.mrg", brackets),
    "brackets-verbatim": ("a.mrg", brackets),
    "conll2005": ("a.props", conll2005),
    "sdp": ("a.sdp", sdp),
    "json-entities": ("a.json", json_entities),
    "parallel": ("a.en", parallel),
    **{f"glue-{name}": ("a.tsv", glue(name)) for name in SENTENCE_TASKS},
}
UNREADABLE = ["glue"]
"""Formats that have no reader of their own."""


def outcome(name: str, rng: random.Random, folder: Path) -> tuple[int, bool]:
    """Write one file of a format and read it; returns how many sentences it has, and whether they came back.

    Raises `AssertionError` where sentences come back otherwise, or an error does not name file and line.
    """
    file, write = WRITERS[name]
    case = write(rng)
    path, text = folder / file, case.text
    if rng.random() < 0.2:
        text = text.replace("\n", "\r\n")
    if name == "parallel":
        lines = text.removesuffix("\n").split("\n")
        for suffix, part in (("en", 0), ("de", 1)):
            sides = [line.rstrip("\r").split("\t\t\t")[part] + "\n" for line in lines]
            (folder / f"a.{suffix}").write_bytes("".join(sides).encode())
    else:
        path.write_bytes(text.encode())
        if case.beside:
            path.with_suffix(".words").write_bytes(case.beside.encode())
    place: str | Path = f"{folder}/a.en:{folder}/a.de" if name == "parallel" else path
    try:
        sentences = read_sentences(place, name)
    except InputError as error:
        message = str(error)
        named = re.match(rf"{re.escape(str(folder))}/a\.\w+:\d+: ", message)
        masked = re.match(rf"{re.escape(str(place))}: [\d,]+ of [\d,]+ words? are '", message)
        numbers = re.match(rf"{re.escape(str(place))}: (the words of most|every) sentences? ", message)
        empty = not case.expected and "no sentence in it" in message  # of nothing but markers
        zeros = ": UTF-16: convert it" in message and "\0" in text  # a third of a file's bytes or more
        assert named or masked or numbers or empty or zeros, (message, case.expected)
        assert "\n" not in message
        return len(case.expected), False
    assert len(sentences) == len(case.expected), (text, sentences)
    for sentence, wanted in zip(sentences, case.expected, strict=True):
        for key, value in wanted.items():
            assert layer_of(sentence, key) == value, (text, key, layer_of(sentence, key), value)
    return len(sentences), True


def layer_of(sentence: Sentence, key: str) -> Any:
    return getattr(sentence, key) if key in ("words", "id", "second") else sentence.layer(key)


def run(name: str, sentences: int, seed: str, folder: Path) -> tuple[int, int]:
    """Read that many sentences of a format; returns those that came back, and those in files refused."""
    rng = random.Random(f"{seed} {name}")
    back = refused = 0
    while back + refused < sentences:
        number, read_well = outcome(name, rng, folder)
        back, refused = (back + number, refused) if read_well else (back, refused + number)
    return back, refused


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for format_name in WRITERS:
            print(format_name, *run(format_name, int(sys.argv[1]), sys.argv[2], Path(temporary)), flush=True)
    assert set(WRITERS) | set(UNREADABLE) == set(FORMATS)
