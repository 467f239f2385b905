"""Mutations of every line of a valid file: it is read, or an error names file and line; there is no crash."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from mtl.corpora.formats.dependencies import to_conllu
from mtl.corpora.formats.jsonl import read_jsonl, to_line, write_jsonl
from mtl.corpora.formats.phrase_structure import to_brackets, to_props
from mtl.corpora.readers import read_sentences
from mtl.corpora.scorers import export_for_scorers
from mtl.corpora.toy.corpus import toy_corpus
from mtl.errors import InputError
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence import Sentence
from mtl.tasks.spans import tags_of

CORPUS = toy_corpus(6, seed=3)
PIECES = [
    *(
        "(",
        ")",
        "()",
        "((",
        "(X",
        "(A0*",
        "*)",
        "*",
        "-",
        "_",
        "\\",
        '"',
        "{",
        "[[[[",
        ": ",
        ",",
        "#",
        "V",
        "C-V",
    ),
    *("null", "true", "NaN", "1e400", "9" * 5000, "-1", "0", "1-2", "1.1", "O", "I-", "B-X", "E-X", "-NONE-"),
    *(
        "\t",
        " ",
        "\x00",
        "\x1b[31m",
        "\u2028",
        "\u00a0",
        "\ufeff",
        "ß",
        "\\ud800",
        "-DOCSTART-",
        "# sent_id = x",
    ),
]
NAMES = {
    "jsonl": "a.jsonl",
    "conllu": "a.conllu",
    "conll2003": "a.conll",
    "brackets": "a.mrg",
    "conll2005": "a.props",
    "conll2012": "a.gold_skel",
    "glue-cola": "a.tsv",
}


def columns(sentence: Sentence) -> str:
    tags = tags_of(sentence.entities or (), len(sentence))
    return "".join(f"{word} X {tag}\n" for word, tag in zip(sentence.words, tags, strict=True)) + "\n"


def props(sentence: Sentence) -> str:
    rows = to_props(sentence).splitlines()
    return "".join(f"{word} {row}\n" for word, row in zip(sentence.words, rows, strict=False)) + "\n"


def skeleton(sentence: Sentence) -> str:
    """PropBank's layout of CoNLL-2012: flat trees, one column per predicate."""
    cells = [row.split() for row in to_props(sentence).splitlines() if row]
    last = len(sentence) - 1
    lines = []
    for number, (word, tag, row) in enumerate(zip(sentence.words, sentence.tags or (), cells, strict=True)):
        bit = ("(TOP(S" if number == 0 else "") + "*" + ("))" if number == last else "")
        sense = "-" if row[0] == "-" else f"{row[0]}.01"
        lines.append(" ".join(["d", "0", str(number), word, tag, bit, row[0], sense, *row[1:]]))
    return "\n".join(lines) + "\n\n"


WRITERS = {
    "jsonl": lambda sentence: to_line(sentence.with_layers({"cola": "1", "stsb": 2.5})) + "\n",
    "conllu": to_conllu,
    "conll2003": columns,
    "brackets": lambda sentence: to_brackets(sentence.tree) + "\n",
    "conll2005": props,
    "conll2012": skeleton,
    "glue-cola": lambda sentence: f"x\t{len(sentence) % 2}\t\t{' '.join(sentence.words)}\n",
}


def mutated(rng: random.Random, line: str) -> str:
    """One change: a piece is inserted, a stretch or cell removed, doubled or exchanged, or the line cut."""
    start, end = sorted((rng.randrange(len(line) + 1), rng.randrange(len(line) + 1)))
    cells = re.split(r"([\t ,()]+)", line)
    cell = rng.randrange(len(cells))
    return rng.choice(
        [
            line[:start] + rng.choice(PIECES) + line[start:],
            line[:start] + line[end:],
            line[:start] + line[start:end] * 2 + line[end:],
            line[:start],
            "".join([*cells[:cell], rng.choice(PIECES), *cells[cell + 1 :]]),
            "".join([*cells[:cell], *cells[cell + 1 :]]),
            "".join([*cells[:cell], *rng.sample(cells[cell:], len(cells) - cell)]),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_mutated_line_is_read_or_named(name: str, tmp_path: Path) -> None:
    """Sentences that were read can be written, read again and exported."""
    good = "".join(map(WRITERS[name], CORPUS))
    path = tmp_path / NAMES[name]
    path.write_text(good, encoding="utf-8")
    assert [sentence.words for sentence in read_sentences(path, name)] == [
        sentence.words for sentence in CORPUS
    ]
    rng = random.Random(name)
    lines = good.split("\n")
    refused = 0
    for trial in range(300):
        changed = list(lines)
        index = rng.choice([index for index, line in enumerate(lines) if line])
        changed[index] = mutated(rng, lines[index])
        path.write_text("\n".join(changed), encoding="utf-8")
        try:
            sentences = read_sentences(path, name)
        except InputError as error:
            refused += 1
            message = str(error)
            assert re.match(rf"{re.escape(str(path))}:\d+: ", message), message
            assert "\n" not in message
            assert len(message) < 250 + len(str(path)), message[:500]
            continue
        write_jsonl(tmp_path / "again.json", sentences)
        again = read_jsonl(tmp_path / "again.json")
        assert again == sentences, trial
        for task in (task_type() for name, task_type in TASKS.items() if name != "control"):
            annotated = [sentence for sentence in sentences if task.annotated(sentence)]
            export_for_scorers(annotated, annotated, tmp_path / "export", [task])
    assert refused > 30
