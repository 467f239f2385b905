from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.errors import InputError
from mtl.tasks.sentence import Arcs, Frame, Sentence, Span
from mtl.tasks.tree import Tree

WORD = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6).filter(
    lambda word: not word.isspace()
) | st.sampled_from(["(", ")", ":)", "(-:", "-LRB-", "a b", "\u2028x", " x", '"', "\\", "10\u00a0000"])
LABEL = st.sampled_from(["NP", "VP", "-LRB-", "PRP$", "NP-SBJ", "``"])


@st.composite
def sentences(draw: st.DrawFn) -> Callable[[], Sentence]:
    """Makers of sentences (the types' own checks draw random numbers, which a strategy must not do)."""
    words = tuple(draw(st.lists(WORD, min_size=1, max_size=5)))
    n = len(words)
    column = st.lists(LABEL, min_size=n, max_size=n).map(tuple)
    span = st.tuples(st.integers(0, n - 1), st.integers(1, n), LABEL).filter(lambda span: span[0] < span[1])
    spans = st.lists(span, max_size=3)
    tags, upos, relations, leaf_tags = (draw(column) for _ in range(4))
    # Heads are to the left, so that there is no cycle and one root.
    heads = (0, *(draw(st.integers(1, word)) for word in range(1, n)))
    entities, frames = draw(spans), draw(st.lists(st.tuples(st.integers(0, n - 1), spans), max_size=2))
    cut, label, sense = draw(st.integers(1, n)), draw(LABEL), draw(st.sampled_from([None, "go.02"]))
    kept = draw(st.lists(st.booleans(), min_size=6, max_size=6))
    text = draw(st.sampled_from(["", "".join(words), "  ".join(words)]))

    def make() -> Sentence:
        leaves = tuple(Tree(tag, word) for tag, word in zip(leaf_tags, words, strict=True))
        layers = {
            "tags": tags,
            "upos": upos,
            "entities": tuple(Span(*entity) for entity in entities),
            "arcs": Arcs(heads, relations),
            "tree": Tree("TOP", (Tree(label, leaves[:cut]), *leaves[cut:])),
            "frames": tuple(Frame(p, sense, tuple(Span(*role) for role in roles)) for p, roles in frames),
        }
        chosen = {name: layers[name] for name, keep in zip(layers, kept, strict=True) if keep}
        return Sentence(words, **chosen, text=text)

    return make


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(sentences(), max_size=3))
def test_what_is_written_is_read(tmp_path, makers):
    path, corpus = tmp_path / "a.jsonl", [make() for make in makers]
    write_jsonl(path, corpus)
    assert read_jsonl(path) == corpus
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_the_line_is_as_specified(tmp_path):
    sentence = Sentence(
        words=("We", "ate", "(", "it", ")"),
        upos=("PRON", "VERB", "PUNCT", "PRON", "PUNCT"),
        entities=(Span(0, 1, "PER"),),
        arcs=Arcs((2, 0, 4, 2, 4), ("nsubj", "root", "punct", "obj", "punct")),
        tree=Tree.parse("(TOP (S (NP (PRP We)) (VP (VBD ate) (-LRB- -LRB-) (NP (PRP it)) (-RRB- -RRB-))))"),
        frames=(Frame(1, "eat.01", (Span(0, 1, "ARG0"), Span(3, 4, "C-ARG1"))),),
        id="s-1",
    )
    write_jsonl(tmp_path / "a.jsonl", [sentence])
    assert json.loads((tmp_path / "a.jsonl").read_text()) == {
        "id": "s-1",
        "words": ["We", "ate", "(", "it", ")"],
        "upos": ["PRON", "VERB", "PUNCT", "PRON", "PUNCT"],
        "tags": None,
        "entities": [[0, 1, "PER"]],
        "arcs": {"heads": [2, 0, 4, 2, 4], "relations": ["nsubj", "root", "punct", "obj", "punct"]},
        "tree": "(TOP (S (NP (PRP We)) (VP (VBD ate) (-LRB- -LRB-) (NP (PRP it)) (-RRB- -RRB-))))",
        "frames": [{"predicate": 1, "sense": "eat.01", "arguments": [[0, 1, "ARG0"], [3, 4, "C-ARG1"]]}],
    }


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        ('{"words": []}', "missing or empty"),
        ('{"words": ["a"], "tag": ["X"]}', "unknown key 'tag'"),
        ('{"words": ["a"], "tags": ["X", "Y"]}', "'tags' has 2 entries for 1 word"),
        ('{"words": ["a"], "tags": "X"}', "list of strings"),
        ('{"words": ["a"], "text": 3}', "'text' must be a string"),
        ('{"words": ["a", "."], "text": "a b."}', "that 'words' spell"),
        ('{"words": ["a"], "id": 3}', "'id' must be a string"),
        ('{"words": ["a"], "entities": [[0, 2, "PER"]]}', "0 <= start < end <= 1"),
        ('{"words": ["a"], "entities": [[0, 0, "PER"]]}', "0 <= start < end <= 1"),
        ('{"words": ["a"], "entities": [[0, true, "PER"]]}', "0 <= start < end <= 1"),
        ('{"words": ["a"], "entities": [[0, 1]]}', "a span is"),
        ('{"words": ["a"], "arcs": {"heads": [1], "relations": ["x"]}}', "cycle through word 1"),
        ('{"words": ["a", "b"], "arcs": {"heads": [0, 0], "relations": ["x", "x"]}}', "2 roots"),
        ('{"words": ["a", ""]}', "word 2 is empty"),
        ('{"words": ["a\\tb"]}', "control character"),
        ('{"words": ["\\u0000"]}', "control character"),
        ('{"words": ["\\ud800"]}', "control character"),
        ('{"words": ["a"], "tags": [""]}', "an empty label"),
        ('{"words": ["a"], "entities": [[0, 1, "\\udfff"]]}', "control character"),
        ('{"words": ["a"], "words": ["b"]}', "the key 'words' occurs twice"),
        (
            '{"words": ["a"], "arcs": {"heads": [0], "heads": [0], "relations": ["x"]}}',
            "'heads' occurs twice",
        ),
        ('{"words": ["a"], "labels": "x"}', "'labels' must be an object"),
        ('{"words": ["a"], "labels": {}}', "'labels' must be an object"),
        ('{"words": ["a"], "labels": {"tags": "1"}}', "'labels' has 'tags', which is a key of its own"),
        ('{"words": ["a"], "layers": {"tags": ["x"]}}', "'layers' has 'tags', which is a key of its own"),
        ('{"words": ["a"], "layers": {"own": ["x", "y"]}}', "'own' has 2 entries for 1 word"),
        ('{"words": ["a"], "layers": {"own": [[0, 2, "x"]]}}', "0 <= start < end <= 1"),
        ('{"words": ["a"], "layers": {"own": 3}}', "'own' must be a list of [start, end, label]"),
        ('{"words": ["a"], "layers": {"": ["x"]}}', "'layers' has a value without a name"),
        ('{"words": ["a"], "labels": {"": "x"}}', "'labels' has a value without a name"),
        ('{"words": ["a"], "layers": {"own": {}}}', "'own' must be an object with 'heads'"),
        ('{"words": ["a"], "layers": {"own": [{"predicate": 0}]}}', "each of 'own' must be an object"),
        ('{"words": ["a"], "layers": {"own": "(X b)"}}', "'own' has the word 'b'"),
        ('{"words": ["a"], "labels": {"own": "x"}, "layers": {"own": []}}', "which 'labels' also has"),
        ('{"words": ["a"], "labels": {"own": null}}', "the label of own: null is no number"),
        ('{"words": ["a"], "layers": [1]}', "'layers' must be an object"),
        ('{"words": ["a"], "labels": {"cola": "3"}}', "the label of cola: '3' is none of 0, 1"),
        ('{"words": ["a"], "labels": {"cola": 1}}', "1 is no name of a class; write it in quotes"),
        ('{"words": ["a"], "labels": {"classify": ""}}', "the label of classify: an empty label"),
        ('{"words": ["a"], "labels": {"stsb": "1"}}', "'1' is no number"),
        ('{"words": ["a"], "labels": {"stsb": NaN}}', "NaN is no number"),
        ('{"words": ["a"], "labels": {"stsb": 1' + 400 * "0" + "}}", "is no number"),
        ('{"words": ["a"], "second": 1}', "'second' is for pairs of sentences, and here is one word"),
        ('{"words": ["a", "b"], "second": true}', "'second' is true"),
        (
            '{"words": ["a", "b"], "tags": ["X", "Y"], "second": 1}',
            "a pair of sentences has only labels: take",
        ),
        ('{"words": ["a"], "entities": 3}', "'entities' must be a list"),
        ('{"words": ["a"], "frames": "x"}', "'frames' must be a list"),
        ("[" * 100_000, "nested too deeply"),
        ('{"words": ["a"], "second": ' + "9" * 5000 + "}", "a number of more than 4,300 digits"),
        (
            '{"words": ["a"], "tree": "' + "(X " * 20_000 + "a" + ")" * 20_000 + '"}',
            "20,000 levels of brackets",
        ),
        ('{"words": ["a"], "tree": "(TOP\\udc00 (X a))"}', "a control character, '\\udc00', at column 5"),
        ('{"words": ["a"], "tree": "(TOP ( (X a)))"}', "a constituent without a label at column 6"),
        ('{"words": ["a"], "arcs": {"heads": [2], "relations": ["x"]}}', "not 0"),
        (
            '{"words": ["a"], "arcs": {"heads": [0, 0], "relations": ["x"]}}',
            "for each word: 1 of both",
        ),
        ('{"words": ["a"], "tree": "(TOP (X a)"}', "'tree': 1 bracket left open"),
        ('{"words": ["a"], "tree": "(TOP (X b))"}', "the word 'b' where the sentence has 'a'"),
        ('{"words": ["a"], "tree": "(TOP (X a) (X b))"}', "2 words, the sentence 1"),
        ('{"words": ["a", "b"], "tree": "(TOP (X a))"}', "1 word, the sentence 2"),
        ('{"words": ["a"], "frames": [{"predicate": 1, "sense": null, "arguments": []}]}', "predicate 1"),
        ('{"words": ["a"], "frames": [{"predicate": 0}]}', "'arguments'"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, line, what):
    path = tmp_path / "a.jsonl"
    path.write_text('{"words": ["fine"]}\n\n' + line + "\n")
    with pytest.raises(InputError) as error:
        read_jsonl(path)
    assert str(error.value).startswith(f"{path}:3: ")
    assert what in str(error.value)
    assert "\n" not in str(error.value)


ODD = (
    None, True, False, [None], [True], [[0, 1, None]], [[None, True, "X"]], {"heads": [None]}, [{"a": None}],
)  # fmt: skip
KEYS = ("words", "tags", "entities", "arcs", "tree", "frames", "labels", "second", "id")


@pytest.mark.parametrize("key", KEYS)
def test_messages_have_values_as_the_file_has_them(tmp_path, key):
    path = tmp_path / "a.jsonl"
    frame = {"predicate": None, "sense": True, "arguments": [[None, True, "X"]]}
    for value in (*ODD, [frame], [frame | {"predicate": 0}], {"own": None}, {"cola": True}, {"stsb": [None]}):
        path.write_text(json.dumps({"words": ["a", "b"], key: value}) + "\n")
        message = ""
        try:
            read_jsonl(path)
        except InputError as error:
            message = str(error)
        assert not re.search(r"\b(None|True|False)\b", message), value


@pytest.mark.parametrize(("name", "hint"), [("a.jsonl", ""), ("a.conllu", "if the file has another format")])
def test_a_file_of_another_format_needs_its_name(tmp_path, name, hint):
    """JSON Lines is the format of files whose format a configuration does not name."""
    (tmp_path / name).write_text("1\tAnn\n")
    with pytest.raises(InputError, match=f"not JSON .*; {hint}.*write one object per line$"):
        read_jsonl(tmp_path / name)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [Sentence(("old",))])
    with pytest.raises(UnicodeEncodeError):
        write_jsonl(path, [Sentence(("\ud800",))])
    assert read_jsonl(path) == [Sentence(("old",))]
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]
