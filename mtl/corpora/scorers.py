"""Gold and prediction in the formats of the official scorers, and the limits of these programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mtl.corpora.formats.columns import cell, rows_as_text
from mtl.corpora.formats.dependencies import SDP_HEADER, SENSES, in_sdp, to_conllu, to_sdp
from mtl.corpora.formats.own_layers import ARCS_MADE_UP, DEPS
from mtl.corpora.formats.phrase_structure import IN_BRACKETS, to_brackets, to_props
from mtl.errors import InputError
from mtl.files import write_text
from mtl.tasks.catalogue import SENTENCE_TASKS, TEXTS
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import FEATS, LEMMAS, NO_FEATURES, Arcs, Frame, Sentence
from mtl.tasks.spans import tags_of, without_overlaps, without_verb
from mtl.tasks.task import Task
from mtl.tasks.tree import Tree

UNIVERSAL = "ud"
"""The stem of the two files for the evaluator of Universal Dependencies; if a task has this name, `ud_`."""
_COLUMNS = ("upos", "tags", FEATS, LEMMAS, "arcs", DEPS)
"""The layers that these files can hold."""


@dataclass(frozen=True)
class Exported:
    """The files that were written, and what they could not hold of gold or prediction."""

    paths: tuple[Path, ...]
    left_out: Mapping[str, int]
    """Numbers of items left out of the files, by a name such as `overlapping entities in gold`, and of
    sentences that an official program cannot score, by the program and its limits."""


def export_for_scorers(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], folder: Path, tasks: Collection[Task]
) -> Exported:
    """Write the scorers' files of `tasks` into `folder`.

    Two further files (`UNIVERSAL`), for the evaluator of Universal Dependencies, hold all layers with a
    column in CoNLL-U. A task's files hold only the sentences whose gold has its layer; a task without such
    sentences has no files. Overlapping entities or arguments and second frames of a predicate are left out,
    as in training, and counted. Sentences beyond the limits of a scorer (`scorer_limits`) are left out of
    gold and prediction, and counted. Raises `InputError` if gold and prediction do not correspond.
    """
    if len(gold) != len(predicted):
        raise InputError(
            f"export: {counted(len(gold), 'gold sentence')} but {len(predicted)} predicted ones; pass as many"
        )
    layers = {task.name: task.standard or task.layer for task in tasks}
    for task in tasks:
        if not _files_of(layers[task.name]):
            raise InputError(
                f"export: no official scorer reads {task.layer} ({task.name}); there are formats for "
                f"{', '.join(_FORMATS)}"
            )
    paths: list[Path] = []
    left_out: Counter[str] = Counter()
    for task in tasks:
        layer = layers[task.name]
        annotated = (pair for pair in zip(gold, predicted, strict=True) if task.annotated(pair[0]))
        pairs = [(_placed(true, task, layer), _placed(guess, task, layer)) for true, guess in annotated]
        for pair in pairs:
            _check(*pair, layer)
        files = _files_of(layer)
        texts: dict[str, list[str]] = {suffix: [] for suffix in files}
        beyond: list[str] = []
        for true, guess in pairs:
            pair = (
                _writable(true, layer, "gold", left_out),
                _writable(guess, layer, "prediction", left_out),
            )
            written = [write(*pair) for write in files.values()]
            if layer in LIMITS and LIMITS[layer].exceeded(pair, written):
                beyond.append(true.id)
                continue
            for of_file, text in zip(texts.values(), written, strict=True):
                of_file.append(text)
        if beyond:
            left_out[f"{LIMITS[layer].name}; the first is '{beyond[0]}'"] = len(beyond)
        if layer == DEPS:
            texts |= _semantic(pairs, task.name, left_out)
        paths += _written(folder, task.name, texts)
    universal = UNIVERSAL
    while universal in layers:  # a task's own files have its name
        universal += "_"
    paths += _written(folder, universal, _universal(gold, predicted, tasks, universal, left_out))
    return Exported(tuple(paths), dict(left_out))


def _placed(sentence: Sentence, task: Task, layer: str) -> Sentence:
    """The sentence with a task's layer under the name by which the writers find it."""
    return sentence if task.layer == layer else sentence.with_layers({layer: sentence.layer(task.layer)})


def _written(folder: Path, stem: str, texts: Mapping[str, Sequence[str]]) -> list[Path]:
    """Write the texts by suffix; a file without text is deleted, since it is of an earlier export."""
    paths = []
    for suffix, of_file in texts.items():
        path = folder / f"{stem}.{suffix}"
        if of_file:
            write_text(path, "".join(of_file))
            paths.append(path)
        else:
            path.unlink(missing_ok=True)
    return paths


def _semantic(
    pairs: Sequence[tuple[Sentence, Sentence]], stem: str, left_out: Counter[str]
) -> dict[str, list[str]]:
    """Gold and prediction for SemEval's scorer, without the sentences whose graphs the format cannot hold.

    The scorer looks at tags, which are the gold's in both files. Only the gold has senses.
    """
    whole = [pair for pair in pairs if all(in_sdp(side.layer(DEPS)) for side in pair)]
    without = "two labels for two words, an arc from a word to itself, or the label _"
    _count(left_out, f"sentences of {stem}.*.sdp, with {without}", len(pairs) - len(whole))
    given = [(true, true.with_layers({SENSES: None, DEPS: guess.layer(DEPS)})) for true, guess in whole]
    texts = {
        f"{name}.sdp": [to_sdp(pair[side]) for pair in given] for side, name in enumerate(("gold", "pred"))
    }
    return {suffix: [f"{SDP_HEADER}\n", *of_file] if of_file else [] for suffix, of_file in texts.items()}


def _universal(
    gold: Sequence[Sentence],
    predicted: Sequence[Sentence],
    tasks: Collection[Task],
    stem: str,
    left_out: Counter[str],
) -> dict[str, list[str]]:
    """Gold and prediction in CoNLL-U, with the predicted layers that have a column there.

    Sentences whose gold lacks one of these layers are left out and counted. Without a task for arcs, the
    trees that the evaluator needs are placeholders, which have no relation in common.
    """
    texts: dict[str, list[str]] = {"gold.conllu": [], "pred.conllu": []}
    layers: dict[str, Task] = {}
    for task in tasks:
        column = _column_of(task)
        if column is not None and any(map(task.annotated, gold)):
            layers.setdefault(column, task)
    if layers.keys() == {DEPS}:
        layers = {}  # the graph has files of its own
    for true, guess in zip(gold, predicted, strict=True) if layers else ():
        if not all(task.annotated(true) for task in layers.values()):
            _count(left_out, f"sentences of {stem}.*, not annotated for all of {', '.join(layers)}", 1)
            continue
        pair = [
            Sentence(
                true.words, {layer: side.layer(task.layer) for layer, task in layers.items()}, id=true.id
            )
            for side in (true, guess)
        ]
        made_up = "" if "arcs" in layers else f"{ARCS_MADE_UP}\n"
        if "arcs" not in layers:
            first, last = (_star(len(true), at) for at in (1, len(true)))
            others = Arcs(last.heads, (NO_FEATURES,) * len(true))
            pair = [pair[0].with_layers({"arcs": first}), pair[1].with_layers({"arcs": others})]
        if LIMITS["arcs"].exceeded((pair[0], pair[1]), ()):
            continue  # counted with the files of the arcs
        for of_file, side in zip(texts.values(), pair, strict=True):
            of_file.append(made_up + _dependencies(side))
    return texts


def _column_of(task: Task) -> str | None:
    """The layer with a column in CoNLL-U that a task predicts; lemmas and arcs may have other names."""
    if task.layer in _COLUMNS:
        return task.layer
    return task.standard if task.standard in (LEMMAS, "arcs") else None


def _star(words: int, root: int) -> Arcs:
    """A tree in which all words depend on one of them."""
    heads = [0 if word == root else root for word in range(1, words + 1)]
    return Arcs(tuple(heads), tuple("dep" if head else "root" for head in heads))


def _check(gold: Sentence, predicted: Sentence, layer: str) -> None:
    where = f"export: sentence '{gold.id}' ({' '.join(gold.words[:5])} …)"
    if not gold.words and layer not in TEXTS:
        raise InputError(f"{where} has no words, which no scorer can read; leave it out")
    if gold.words != predicted.words:
        raise InputError(f"{where}: gold and prediction have different words; predict on the gold words")
    if predicted.layer(layer) is None:
        raise InputError(f"{where}: the prediction has no {layer}; predict this task or leave it out")


def _writable(sentence: Sentence, layer: str, side: str, left_out: Counter[str]) -> Sentence:
    """The sentence with what the format of `layer` can hold; the rest is counted in `left_out`."""
    if layer == "entities" and sentence.entities is not None:
        entities = without_overlaps(sentence.entities)
        _count(left_out, f"overlapping entities in {side}", len(sentence.entities) - len(entities))
        return sentence.with_layers({layer: tuple(entities)})
    if layer == "frames" and sentence.frames is not None:
        frames: dict[int, Frame] = {}
        for frame in sentence.frames:
            arguments = without_verb(frame.arguments)
            frames.setdefault(frame.predicate, replace(frame, arguments=arguments))
        _count(left_out, f"second frames of a predicate in {side}", len(sentence.frames) - len(frames))
        disjoint = [
            replace(frame, arguments=tuple(without_overlaps(frame.arguments))) for frame in frames.values()
        ]
        overlapping = sum(
            len(frame.arguments) - len(other.arguments)
            for frame, other in zip(frames.values(), disjoint, strict=True)
        )
        _count(left_out, f"overlapping arguments in {side}", overlapping)
        return sentence.with_layers({layer: tuple(disjoint)})
    return sentence


def _count(left_out: Counter[str], name: str, items: int) -> None:
    if items:
        left_out[name] += items


def _per_word(layer: str, gold: Sentence, predicted: Sentence) -> str:
    columns = zip(gold.words, gold.layer(layer), predicted.layer(layer), strict=True)
    return rows_as_text("\t".join(map(cell, row)) for row in columns)


def _entities(gold: Sentence, predicted: Sentence) -> str:
    # For conlleval, the word -X- is a sentence boundary.
    words = ("-X-_" if word == "-X-" else word for word in gold.words)
    tags = (tags_of(sentence.entities or (), len(gold)) for sentence in (gold, predicted))
    return rows_as_text(" ".join(map(cell, row)) for row in zip(words, *tags, strict=True))


def _dependencies(sentence: Sentence) -> str:
    words = tuple(map(cell, sentence.words))  # some programs split at blanks
    others = dict.fromkeys(layer for layer in sentence.layers if layer not in _COLUMNS)
    return to_conllu(replace(sentence, words=words, text="").with_layers(others), empty_nodes=False)


def _graphs(sentence: Sentence) -> str:
    """The graph in DEPS; its evaluation also needs a tree, which is a placeholder here."""
    layers = {"arcs": _star(len(sentence), 1), DEPS: sentence.layer(DEPS)}
    return f"{ARCS_MADE_UP}\n" + _dependencies(Sentence(sentence.words, layers, id=sentence.id))


def _brackets(gold: Sentence, sentence: Sentence) -> str:
    """The tree on one line, with gold words and preterminals, by which EVALB deletes punctuation."""
    assert gold.tree is not None
    assert sentence.tree is not None
    tagged = zip(gold.tree.leaves(), gold.words, strict=True)
    leaves = iter([Tree(leaf.label, _evalb_word(word)) for leaf, word in tagged])

    def with_leaf(node: Tree, children: list[Tree]) -> Tree:
        if not isinstance(node.children, str):
            return Tree(node.label, tuple(children))
        leaf = next(leaves, None)
        if leaf is None:
            raise InputError(
                f"export: sentence '{gold.id}': the predicted tree has more words, from '{node.children}'"
            )
        return leaf

    tree = sentence.tree.fold(with_leaf)
    if next(leaves, None) is not None:
        raise InputError(f"export: sentence '{gold.id}': the predicted tree does not span all words")
    return f"{to_brackets(tree)}\n"


def _evalb_word(word: str) -> str:
    escaped = cell(word).translate(IN_BRACKETS)
    return escaped.encode()[:EVALB_WORD].decode(errors="ignore")


def _with_predicates(gold: Sentence, predicted: Sentence) -> Sentence:
    """The gold, with the predicates that only the prediction has as predicates without arguments.

    srl-eval.pl would ignore their arguments; so they count as wrong, as a score over (predicate, start, end,
    role) demands.
    """
    frames = gold.frames or ()
    known = {frame.predicate for frame in frames}
    others = [Frame(frame.predicate, None, ()) for frame in predicted.frames or ()]
    return gold.with_layers(
        {"frames": (*frames, *[frame for frame in others if frame.predicate not in known])}
    )


def _labels(layer: str, gold: Sentence, predicted: Sentence) -> str:
    return "\t".join((cell(gold.id), str(gold.layer(layer)), str(predicted.layer(layer)))) + "\n"


_Writer = Callable[[Sentence, Sentence], str]


def _gold_and_pred(suffix: str, write: Callable[[Sentence], str]) -> dict[str, _Writer]:
    """A file for the gold and one for the prediction, written in the same way."""
    return {
        f"gold.{suffix}": lambda gold, _: write(gold),
        f"pred.{suffix}": lambda _, predicted: write(predicted),
    }


_FORMATS: dict[str, dict[str, _Writer]] = {
    **{layer: {"tsv": partial(_per_word, layer)} for layer in ("tags", "upos", LEMMAS)},
    "entities": {"conll": _entities},
    "arcs": _gold_and_pred("conllu", _dependencies),
    DEPS: _gold_and_pred("conllu", _graphs),
    "tree": {"gold.mrg": lambda gold, _: _brackets(gold, gold), "pred.mrg": _brackets},
    "frames": {
        "gold.props": lambda gold, predicted: to_props(_with_predicates(gold, predicted)),
        "pred.props": lambda _, predicted: to_props(predicted),
    },
}
"""For each layer, the writers of its files by the end of their names."""


def _files_of(layer: str) -> Mapping[str, _Writer]:
    """The writers of a layer's files; labels of sentences are lines of id, gold and prediction, and texts
    are lines of text."""
    if layer in TEXTS:
        return _gold_and_pred("txt", lambda sentence: " ".join(str(sentence.layer(layer)).split("\n")) + "\n")
    return {"tsv": partial(_labels, layer)} if layer in SENTENCE_TASKS else _FORMATS.get(layer, {})


EVALB_WORD = 90
"""Maximum bytes of a word for EVALB, whose buffers hold 100; it only compares words."""
_EVALB_WORDS = _EVALB_BRACKETS = 200
_EVALB_LINE = 4_999
"""Maximum bytes of a line with its line feed (`fgets` of 5,000)."""
_EVALB_LABEL = 29
_NODE = re.compile(r"\(([^ ()]*) (?=(\(?))")
_CONLL2018_DEPTH = 900
"""Maximum number of arcs from a word to the root, which the program follows by recursion (Python: 1,000)."""


class Limit(NamedTuple):
    """Which sentences a program cannot score."""

    name: str
    exceeded: Callable[[tuple[Sentence, Sentence], Sequence[str]], bool]
    """Whether gold and prediction, or their texts in the program's format, are beyond its limits."""


def _beyond_evalb(_: tuple[Sentence, Sentence], texts: Sequence[str]) -> bool:
    for text in texts:
        nodes = _NODE.findall(text)
        brackets = sum(bool(inner) for _, inner in nodes)
        if (
            len(text.encode()) > _EVALB_LINE
            or brackets > _EVALB_BRACKETS
            or len(nodes) - brackets > _EVALB_WORDS
            or max(len(label.encode()) for label, _ in nodes) > _EVALB_LABEL
        ):
            return True
    return False


def _beyond_conll2018(pair: tuple[Sentence, Sentence], _: Sequence[str]) -> bool:
    trees = [sentence.arcs.heads for sentence in pair if sentence.arcs is not None]
    return any(None in heads or _depth(heads) > _CONLL2018_DEPTH for heads in trees)


def _beyond_deps(pair: tuple[Sentence, Sentence], _: Sequence[str]) -> bool:
    return any("|" in arc.label for sentence in pair for arc in sentence.layer(DEPS).arcs)


def _depth(heads: Sequence[int | None]) -> int:
    """The maximum number of arcs between a word and the root of a tree."""
    depths = [0] * (len(heads) + 1)
    for start in range(1, len(depths)):
        path, word = [], start
        while word and not depths[word]:
            path.append(word)
            word = heads[word - 1] or 0
        for level, node in enumerate(reversed(path), start=depths[word] + 1):
            depths[node] = level
    return max(depths)


LIMITS = {
    "tree": Limit(
        f"sentences that EVALB cannot score (more than {_EVALB_WORDS} words, {_EVALB_BRACKETS} brackets, "
        f"{_EVALB_LINE - 1:,} bytes, or {_EVALB_LABEL} bytes of a label)",
        _beyond_evalb,
    ),
    DEPS: Limit("sentences with '|' in a label, which the column DEPS cannot hold", _beyond_deps),
    "arcs": Limit(
        f"sentences that the CoNLL 2018 scorer cannot score (a word without head, or more than "
        f"{_CONLL2018_DEPTH} arcs from a word to the root)",
        _beyond_conll2018,
    ),
}
"""The limits, by the layer that a program scores; data do not reach those of srl-eval.pl and conlleval."""
