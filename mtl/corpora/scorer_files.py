"""Gold and prediction in the formats that the official scorers read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mtl.corpora.formats.brackets import to_brackets
from mtl.corpora.formats.columns import cell, lines
from mtl.corpora.formats.conll2005 import to_props
from mtl.corpora.formats.conllu import to_conllu
from mtl.corpora.formats.enhanced import DEPS
from mtl.corpora.formats.iob import to_bio
from mtl.corpora.formats.treebank import IN_BRACKETS
from mtl.corpora.scorer_limits import EVALB_WORD, LIMITS
from mtl.errors import InputError
from mtl.files import write_text
from mtl.tasks.catalogue import SENTENCE_TASKS
from mtl.tasks.frames import without_verb
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import FEATS, LEMMAS, NO_FEATURES, Arcs, Frame, Sentence
from mtl.tasks.spans import without_overlaps
from mtl.tasks.task import Task
from mtl.tasks.translate import Translate
from mtl.tasks.tree import Tree

UNIVERSAL = "ud"
"""What the names of the two files for the evaluator of Universal Dependencies begin with; where a task has
this name, `ud_`."""
_COLUMNS = ("upos", "tags", FEATS, LEMMAS, "arcs", DEPS)
"""The layers of these files."""


@dataclass(frozen=True)
class Exported:
    """The files that were written, and what of gold or prediction their formats could not hold."""

    paths: tuple[Path, ...]
    left_out: Mapping[str, int]
    """Items left out of the files, by a name such as `overlapping entities in gold`, and sentences that an
    official program cannot score, by the program and its limits."""


def export(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], folder: Path, tasks: Collection[Task]
) -> Exported:
    """Write the scorers' files of `tasks` into `folder`.

    All that CoNLL-U has columns for is in two files besides (`UNIVERSAL`), for the evaluator of Universal
    Dependencies. A task's files hold only the sentences whose gold has its layer; a task without any has no
    files. Of overlapping entities or arguments and of several frames at one predicate only those are written
    that training uses as well; the others are counted, and so are sentences that a scorer has no room for:
    they are left out of gold and prediction (`scorer_limits`). Raises `InputError` where the two do not pair.
    """
    if len(gold) != len(predicted):
        raise InputError(
            f"export: {counted(len(gold), 'gold sentence')} but {len(predicted)} predicted ones; "
            f"pass the same"
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
        paths += _written(folder, task.name, texts)
    universal = UNIVERSAL
    while universal in layers:  # a task's own files have its name
        universal += "_"
    paths += _written(folder, universal, _universal(gold, predicted, tasks, left_out))
    return Exported(tuple(paths), dict(left_out))


def _placed(sentence: Sentence, task: Task, layer: str) -> Sentence:
    """The sentence with a task's layer where the writers of files look for it."""
    return sentence if task.layer == layer else sentence.with_layers({layer: sentence.layer(task.layer)})


def _written(folder: Path, stem: str, texts: Mapping[str, Sequence[str]]) -> list[Path]:
    """Write the texts by suffix; a file without any is deleted, since it would be scored for this export."""
    paths = []
    for suffix, of_file in texts.items():
        path = folder / f"{stem}.{suffix}"
        if of_file:
            write_text(path, "".join(of_file))
            paths.append(path)
        else:
            path.unlink(missing_ok=True)
    return paths


def _universal(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], tasks: Collection[Task], left_out: Counter[str]
) -> dict[str, list[str]]:
    """Gold and prediction in CoNLL-U, with the predicted layers that have a column there.

    Sentences whose gold lacks one of these layers are left out, and counted. Without a task for arcs, heads
    are placeholders, no two of them alike with their relations, since the evaluator reads trees only.
    """
    texts: dict[str, list[str]] = {"gold.conllu": [], "pred.conllu": []}
    layers: dict[str, Task] = {}
    for task in tasks:
        column = _column_of(task)
        if column is not None and any(map(task.annotated, gold)):
            layers.setdefault(column, task)
    if layers.keys() == {DEPS}:
        layers = {}  # a graph alone has files of its own
    for true, guess in zip(gold, predicted, strict=True) if layers else ():
        if not all(task.annotated(true) for task in layers.values()):
            _count(left_out, f"sentences of {UNIVERSAL}.*, not annotated for all of {', '.join(layers)}", 1)
            continue
        pair = [
            Sentence(
                true.words, {layer: side.layer(task.layer) for layer, task in layers.items()}, id=true.id
            )
            for side in (true, guess)
        ]
        if "arcs" not in layers:
            first, last = (_star(len(true), at) for at in (1, len(true)))
            others = Arcs(last.heads, (NO_FEATURES,) * len(true))
            pair = [pair[0].with_layers({"arcs": first}), pair[1].with_layers({"arcs": others})]
        if LIMITS["arcs"].exceeded((pair[0], pair[1]), ()):
            continue  # counted with the files of the arcs
        for of_file, side in zip(texts.values(), pair, strict=True):
            of_file.append(_dependencies(side))
    return texts


def _column_of(task: Task) -> str | None:
    """The layer with a column in CoNLL-U that a task predicts, lemmas and arcs also under other names."""
    if task.layer in _COLUMNS:
        return task.layer
    return task.standard if task.standard in (LEMMAS, "arcs") else None


def _star(words: int, root: int) -> Arcs:
    """A tree in which all words depend on one of them."""
    heads = [0 if word == root else root for word in range(1, words + 1)]
    return Arcs(tuple(heads), tuple("dep" if head else "root" for head in heads))


def _check(gold: Sentence, predicted: Sentence, layer: str) -> None:
    where = f"export: sentence '{gold.id}' ({' '.join(gold.words[:5])} …)"
    if not gold.words and layer != Translate.name:
        raise InputError(f"{where} has no words, which no scorer can read; leave it out")
    if gold.words != predicted.words:
        raise InputError(f"{where}: gold and prediction have different words; predict on the gold words")
    if predicted.layer(layer) is None:
        raise InputError(f"{where}: the prediction has no {layer}; predict this task or leave it out")


def _writable(sentence: Sentence, layer: str, side: str, left_out: Counter[str]) -> Sentence:
    """The sentence with what the format of `layer` can hold; the rest is added to `left_out`."""
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


def _tags(gold: Sentence, predicted: Sentence) -> str:
    return _tag_columns(gold.words, gold.tags, predicted.tags)


def _upos(gold: Sentence, predicted: Sentence) -> str:
    return _tag_columns(gold.words, gold.upos, predicted.upos)


def _lemmas(gold: Sentence, predicted: Sentence) -> str:
    return _tag_columns(gold.words, gold.layer(LEMMAS), predicted.layer(LEMMAS))


def _tag_columns(
    words: tuple[str, ...], gold: tuple[str, ...] | None, predicted: tuple[str, ...] | None
) -> str:
    assert gold is not None
    assert predicted is not None
    columns = zip(words, gold, predicted, strict=True)
    return lines("\t".join(map(cell, row)) for row in columns)


def _entities(gold: Sentence, predicted: Sentence) -> str:
    # conlleval takes the word -X- for a sentence boundary.
    words = ("-X-_" if word == "-X-" else word for word in gold.words)
    tags = (to_bio(sentence.entities or (), len(gold)) for sentence in (gold, predicted))
    return lines(" ".join(map(cell, row)) for row in zip(words, *tags, strict=True))


def _dependencies(sentence: Sentence) -> str:
    words = tuple(map(cell, sentence.words))  # without blanks, at which some programs split
    others = dict.fromkeys(layer for layer in sentence.layers if layer not in _COLUMNS)
    return to_conllu(replace(sentence, words=words, text="").with_layers(others), empty_nodes=False)


def _graphs(sentence: Sentence) -> str:
    """The graph in DEPS; its evaluation also asks for a tree, here one that says nothing."""
    words = tuple(map(cell, sentence.words))
    others = len(words) - 1
    tree = Arcs((0, *[1] * others), ("root", *["dep"] * others))
    made = Sentence(words, {"arcs": tree, DEPS: sentence.layer(DEPS)}, id=sentence.id)
    return to_conllu(made, empty_nodes=False)


def _brackets(gold: Sentence, sentence: Sentence) -> str:
    """One tree on a line, with the gold's words and preterminals, by which EVALB deletes punctuation."""
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
    """The gold with the predicates that only the prediction has, as predicates without arguments.

    srl-eval.pl drops such predicates; so their arguments count as excess, as a score over (predicate, start,
    end, role) demands.
    """
    frames = gold.frames or ()
    known = {frame.predicate for frame in frames}
    others = [Frame(frame.predicate, None, ()) for frame in predicted.frames or ()]
    return gold.with_layers(
        {"frames": (*frames, *[frame for frame in others if frame.predicate not in known])}
    )


def _labels(layer: str, gold: Sentence, predicted: Sentence) -> str:
    return "\t".join((cell(gold.id), str(gold.layer(layer)), str(predicted.layer(layer)))) + "\n"


def _one_line(text: object) -> str:
    return " ".join(str(text).split("\n")) + "\n"


_Writer = Callable[[Sentence, Sentence], str]
_FORMATS: dict[str, dict[str, _Writer]] = {
    "tags": {"tsv": _tags},
    "upos": {"tsv": _upos},
    LEMMAS: {"tsv": _lemmas},
    "entities": {"conll": _entities},
    "arcs": {
        "gold.conllu": lambda gold, _: _dependencies(gold),
        "pred.conllu": lambda _, predicted: _dependencies(predicted),
    },
    DEPS: {
        "gold.conllu": lambda gold, _: _graphs(gold),
        "pred.conllu": lambda _, predicted: _graphs(predicted),
    },
    "tree": {
        "gold.mrg": lambda gold, _: _brackets(gold, gold),
        "pred.mrg": _brackets,
    },
    "frames": {
        "gold.props": lambda gold, predicted: to_props(_with_predicates(gold, predicted)),
        "pred.props": lambda _, predicted: to_props(predicted),
    },
}
"""Per layer the files by what follows the task's name in their names."""


def _files_of(layer: str) -> Mapping[str, _Writer]:
    """The files of a layer; labels of sentences are lines of id, gold and prediction.

    Translations are lines of text, as sacreBLEU's command reads them.
    """
    if layer == Translate.name:
        return {
            "gold.txt": lambda gold, _: _one_line(gold.layer(layer)),
            "pred.txt": lambda _, predicted: _one_line(predicted.layer(layer)),
        }
    return {"tsv": partial(_labels, layer)} if layer in SENTENCE_TASKS else _FORMATS.get(layer, {})
