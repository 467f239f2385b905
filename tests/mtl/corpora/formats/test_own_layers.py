"""Graphs in the column DEPS: reading, writing, and the scores of UD's evaluator."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtl.corpora.annotated_text import sentence_picture
from mtl.corpora.formats.dependencies import read_conllu, to_conllu
from mtl.corpora.formats.jsonl import read_jsonl, to_line
from mtl.corpora.formats.own_layers import EMPTY, NO_WAY, NodeArc, collapsed, without_way
from mtl.corpora.scorers import Exported, export_for_scorers
from mtl.errors import InputError
from mtl.tasks.sentence import Arc, Arcs, Graph, Sentence
from mtl.tasks.structured import Graphs
from mtl.tasks.task import instance

ROWS = """\
1\tAnn\t_\t_\t_\t_\t2\tnsubj\t2:nsubj\t_
2\treads\t_\t_\t_\t_\t0\troot\t0:root\t_
3\tpapers\t_\t_\t_\t_\t2\tobj\t2:obj\t_
4\tand\t_\t_\t_\t_\t5\tcc\t5.1:cc\t_
5\tBob\t_\t_\t_\t_\t2\tconj\t2:conj:and|5.1:nsubj\t_
5.1\t_\t_\t_\t_\t_\t_\t_\t2:conj:and\t_
6\tbooks\t_\t_\t_\t_\t5\torphan\t5.1:obj\t_

"""
READ = Graph(
    (
        Arc(1, 2, "nsubj"),
        Arc(2, 0, "root"),
        Arc(3, 2, "obj"),
        Arc(4, 2, "conj:and>cc"),
        Arc(5, 2, "conj:and"),
        Arc(5, 2, "conj:and>nsubj"),
        Arc(6, 2, "conj:and>obj"),
    )
)


def _read(folder: Path, text: str) -> list[Sentence]:
    path = folder / "a.conllu"
    path.write_text(text, encoding="utf-8")
    return read_conllu(path)


def test_empty_nodes_are_steps_of_labels(tmp_path: Path) -> None:
    (sentence,) = _read(tmp_path, ROWS)
    assert sentence.layer("deps") == READ
    assert sentence.notes == (EMPTY,)
    (again,) = _read(tmp_path, to_conllu(sentence))
    assert again.layer("deps") == READ
    assert again.notes == (EMPTY,)
    (joined,) = _read(tmp_path, to_conllu(sentence, empty_nodes=False))
    assert (joined.layer("deps"), joined.notes) == (READ, ())


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("2:obj", "obj", 3, "DEPS 'obj'; write HEAD:LABEL"),
        ("2:obj", "2:obj|", 3, "DEPS ''; write HEAD:LABEL"),
        ("2:obj", "-2:obj", 3, "DEPS '-2:obj'; write HEAD:LABEL"),
        ("2:obj", "9:obj", 3, "DEPS '9:obj': the sentence has no node 9"),
        ("5.1:obj", "5.2:obj", 7, "DEPS '5.2:obj': the sentence has no node 5.2"),
        ("2:obj", "2:obj|2:obj", 1, "the arc [3, 2, 'obj'] occurs twice"),
        ("2:obj", "3:obj", 3, "'deps' has the arc [3, 3, 'obj']; give word 3 another head"),
        ("2:obj", "2:", 3, "'deps' at word 3: an empty label"),
        ("6\tbooks", "5.1\t_" + "\t_" * 8 + "\n6\tbooks", 7, "the empty node '5.1' comes after '5.1'"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path: Path, old: str, new: str, line: int, what: str) -> None:
    assert old in ROWS
    with pytest.raises(InputError) as error:
        _read(tmp_path, ROWS.replace(old, new, 1))
    assert str(error.value).startswith(f"{tmp_path}/a.conllu:{line}: ")
    assert what in str(error.value)


def test_more_paths_than_can_be_meant_are_refused() -> None:
    nodes = [f"1.{number}" for number in range(1, 20)]
    arcs = [NodeArc(one, other, "x") for one in nodes for other in nodes if one != other]
    with pytest.raises(ValueError, match="more than 10,000 paths"):
        collapsed([NodeArc("1", "1.1", "x"), *arcs])


def test_arcs_from_an_empty_node_without_a_head_are_counted(tmp_path: Path) -> None:
    """As in Finnish TDT, whose empty nodes had no DEPS."""
    rows = ["0.1\tgo", "1\taway", "2\tAnn"]
    deps = ["_", "0.1:advmod", "0.1:nsubj|0:root"]
    text = "".join(row + "\t_" * 6 + f"\t{arcs}\t_\n" for row, arcs in zip(rows, deps, strict=True))
    (sentence,) = _read(tmp_path, text)
    assert sentence.layer("deps") == Graph((Arc(2, 0, "root"),))
    assert sentence.notes == (EMPTY, NO_WAY, NO_WAY)


@pytest.mark.parametrize("seed", range(20))
def test_collapsing_is_all_simple_paths(seed: int) -> None:
    """Compared with the definition: every sequence of distinct empty nodes between two words."""
    rng = random.Random(seed)
    nodes = ["1", "2", "1.1", "1.2", "2.1"]
    arcs = {NodeArc(rng.choice(nodes), rng.choice(["0", *nodes]), rng.choice("ab")) for _ in range(12)}

    def paths(node: str, passed: tuple[str, ...], labels: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for dependent, head, label in arcs:
            if dependent == node and "." not in head:
                yield head, ">".join((label, *labels))
            elif dependent == node and head not in passed:
                yield from paths(head, (*passed, head), (label, *labels))

    expected = {Arc(int(word), int(head), label) for word in "12" for head, label in paths(word, (), ())}
    assert collapsed(arcs) == Graph(tuple(expected))
    lost = [
        arc for arc in arcs if "." not in arc.dependent and "." in arc.head and not [*paths(arc.head, (), ())]
    ]
    assert without_way([*arcs]) == len(lost)


@pytest.mark.parametrize(
    ("value", "comment"),
    [
        (Graph(()), True),
        (Graph((Arc(1, 0, "A|B"),)), True),
        (("a", "b"), True),
        (Graph((Arc(1, 0, "_"), Arc(1, 2, "x:y>z"))), False),
    ],
)
def test_what_the_column_cannot_hold_is_in_a_comment(tmp_path: Path, value: object, comment: bool) -> None:
    sentence = Sentence(("x", "y"), deps=value, dm=Graph((Arc(2, 1, "A"),)), id="1")
    text = to_conllu(sentence)
    assert ("# layer deps = " in text) is comment
    assert _read(tmp_path, text * 2) == [sentence] * 2


def test_a_layer_twice_is_an_error(tmp_path: Path) -> None:
    comment = '# layer deps = {"arcs": []}\n'
    with pytest.raises(InputError, match=r"a\.conllu:1: .*already has a layer 'deps'"):
        _read(tmp_path, comment + ROWS)


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    sentence = Sentence(("x", "y"), dm=Graph((Arc(2, 1, "A"),)), sdp=Graph(()))
    line = to_line(sentence)
    assert '"layers": {"dm": {"arcs": [[2, 1, "A"]]}, "sdp": {"arcs": []}}' in line
    path.write_text(line)
    assert read_jsonl(path) == [sentence]


@pytest.mark.parametrize(
    ("graph", "what"),
    [
        ('{"arcs": 3}', "must be a list of [dependent, head, label]"),
        ('{"arcs": [[1, 0]]}', "'g' holds [1, 0]; an arc is [dependent, head, label]"),
        ('{"arcs": [[true, 0, "x"]]}', "an arc is [dependent, head, label]"),
        ('{"arcs": [[0, 1, "x"]]}', "words are 1 to 2, and the root is 0"),
        ('{"arcs": [[1, 3, "x"]]}', "words are 1 to 2, and the root is 0"),
        ('{"arcs": [[1, 1, "x"]]}', "give word 1 another head"),
        ('{"arcs": [[1, 2, "a b"]]}', "holds white space"),
        ('{"arcs": [[1, 2, "x"], [1, 2, "x"]]}', "the arc [1, 2, 'x'] occurs twice"),
        ('{"arcs": [], "heads": []}', "must be an object with 'heads' and 'relations'"),
    ],
)
def test_faults_of_json_are_named_with_their_line(tmp_path: Path, graph: str, what: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"words": ["x", "y"], "layers": {"g": ' + graph + "}}\n")
    with pytest.raises(InputError) as error:
        read_jsonl(path)
    assert str(error.value).startswith(f"{path}:1: ")
    assert what in str(error.value)


def test_picture_of_a_graph() -> None:
    graphs = {"deps": Graph((Arc(1, 2, "a"), Arc(1, 0, "root"))), "dm": Graph(())}
    assert (
        sentence_picture(Sentence(("x", "y"), graphs))
        == "x y\ndeps: \n  x (1): root (0), a y (2)\ndm: none\n"
    )


def of_ud(exported: Exported) -> list[Path]:
    """The files for UD's evaluator; SemEval's lie beside them."""
    return [path for path in exported.paths if path.suffix == ".conllu"]


def _elas(gold: Path, predicted: Path) -> tuple[float, float, float]:
    evaluator = pytest.importorskip("udtools.udeval")
    files = []
    for path in (gold, predicted):
        with path.open(encoding="utf-8") as file:
            files.append(evaluator.load_conllu(file, str(path), {"no_empty_nodes": True}))
    score = evaluator.evaluate(*files)["ELAS"]
    return 100 * score.precision, 100 * score.recall, 100 * score.f1


def test_scores_are_those_of_the_evaluator(tmp_path: Path) -> None:
    """Also with two arcs between two words, sentences without arcs, and long labels."""
    rng = random.Random(0)

    def graph(words: int) -> Graph:
        pairs = [(d, h) for d in range(1, words + 1) for h in range(words + 1) if h != d]
        arcs = {Arc(*rng.choice(pairs), rng.choice(("a", "a:b", "a>b:c"))) for _ in range(rng.randint(0, 6))}
        return Graph(tuple(arcs))

    task = instance("edeps", Graphs, "edeps")()
    words = [tuple("abc"[: rng.randint(1, 3)]) for _ in range(60)]
    gold, predicted = (
        [Sentence(each, edeps=graph(len(each)), id=str(n)) for n, each in enumerate(words)] for _ in range(2)
    )
    exported = export_for_scorers(gold, predicted, tmp_path, [task])
    assert [path.name for path in of_ud(exported)] == ["edeps.gold.conllu", "edeps.pred.conllu"]
    metric = task.metric()
    metric.update([sentence.layer("edeps") for sentence in predicted], gold)
    scores = metric.compute()
    expected = scores["precision"], scores["recall"], scores["f1"]
    assert _elas(*of_ud(exported)) == pytest.approx(expected)
    assert 0 < scores["f1"] < 100


def test_labels_that_the_column_cannot_hold_are_counted(tmp_path: Path) -> None:
    sentence = Sentence(("a",), deps=Graph((Arc(1, 0, "A|B"),)), id="1")
    exported = export_for_scorers([sentence], [sentence], tmp_path, [instance("deps", Graphs, "deps")()])
    assert of_ud(exported) == []
    assert list(exported.left_out.values()) == [1]


@pytest.mark.slow
def test_ewt_is_read_written_and_scored(upstream: Path, tmp_path: Path) -> None:
    dev = read_conllu(upstream / "UD_English-EWT" / "en_ewt-ud-dev.conllu")
    sentences = [sentence for sentence in dev if sentence.layer("deps") is not None]
    assert len(sentences) == 2001
    # The file has 26,390 arcs; four of them lead to empty nodes, each of which has one head.
    assert sum(len(sentence.layer("deps").arcs) for sentence in sentences) == 26_386
    again = _read(tmp_path, "".join(map(to_conllu, sentences)))
    assert [sentence.layer("deps") for sentence in again] == [each.layer("deps") for each in sentences]
    exported = export_for_scorers(sentences, sentences, tmp_path, [instance("deps", Graphs, "deps")()])
    assert _elas(*of_ud(exported)) == (100.0, 100.0, 100.0)
    assert [what for what in exported.left_out if "deps.*.sdp" not in what] == []


def _hostile(seed: int) -> Sentence:
    """A graph that reaches each word from the root, with labels of up to four steps from other words."""
    chance = random.Random(seed)
    size = chance.randint(1, 9)
    steps = ("nsubj", "conj:and", "obj", "obl:of", "nmod", "orphan")
    arcs = {Arc(1, 0, "root")} | {
        Arc(word, chance.randint(1, word - 1), "obj") for word in range(2, size + 1)
    }
    for _ in range(chance.randint(0, 12)):
        dependent, head = chance.randint(1, size), chance.randint(0, size)
        parts = chance.choices(steps, k=chance.randint(2, 4))
        parts = ["root", *parts] if head == 0 else parts
        if dependent != head:
            arcs.add(Arc(dependent, head, ">".join(parts)))
    return Sentence(("w",) * size, upos=("X",) * size, deps=Graph(tuple(arcs)))


def test_written_empty_nodes_are_read_as_the_same_graph_and_valid(tmp_path: Path) -> None:
    """UD's validator checks ids, heads, the order of DEPS, and which words are reached from the root."""
    sentences = []
    for number in range(60):
        sentence = _hostile(number)
        others = len(sentence) - 1
        tree = Arcs((0, *[1] * others), ("root", *["obj"] * others))
        sentences.append(dataclasses.replace(sentence, id=f"s{number}", arcs=tree))
    text = "".join(map(to_conllu, sentences))
    assert all(f"\n{node}\t" in text for node in ("0.1", "0.9", "3.2"))
    read = _read(tmp_path, text)
    assert [set(one.layer("deps").arcs) for one in read] == [set(one.layer("deps").arcs) for one in sentences]
    validator = pytest.importorskip("udtools").Validator
    state = validator(level=2, output=None).validate_files([str(tmp_path / "a.conllu")])
    assert state.passed(), str(state)
