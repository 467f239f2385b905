"""Checks of what was read: an error for what cannot be intended, a line with its count for what may be."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from mtl.corpora.formats.conll2003 import OtherColumn
from mtl.corpora.readers import MASKS
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.spans import CHAIN
from mtl.tasks.task import Labels, Task

Splits = Mapping[str, Sequence[Sentence]]

_SHOWN = 5


@dataclass
class SeenLayer:
    """What one pass over sentences finds for a task."""

    annotated: int = 0
    first: str = ""
    """The place of the first annotated sentence."""
    labelled: bool = False
    """Whether any of them has something in the layer; only known for tasks whose layer can be empty."""
    other_column: str = ""
    """The first note that another column may be the right one, with its file."""
    odd: int = 0
    """Sentences that the task finds odd (`Task.is_odd`)."""
    first_odd: str = ""
    """The place of the first of them."""


@dataclass
class Seen:
    """What the checks need to know about a split, from one pass over its sentences."""

    sentences: int = 0
    words: int = 0
    masked: Counter[str] = field(default_factory=Counter)
    """How often each mask stands for a word."""
    notes: Counter[str] = field(default_factory=Counter)
    """What the readers noted, in the order of the sentences."""
    noted: dict[str, str] = field(default_factory=dict)
    """The place of the first sentence with each note."""
    layers: dict[str, SeenLayer] = field(default_factory=dict)
    """By task."""
    labels: dict[str, Counter[str]] = field(default_factory=dict)
    """How often each label occurs, by task, in the order of the sentences."""
    texts: array[int] = field(default_factory=lambda: array("q"))
    """A hash of each sentence's words, valid only in this process."""


def seen_in(sentences: Iterable[Sentence], tasks: Mapping[str, Task]) -> Seen:
    """Look at every sentence once."""
    seen = Seen(layers={name: SeenLayer() for name in tasks}, labels={name: Counter() for name in tasks})
    for sentence in sentences:
        seen.sentences += 1
        seen.words += len(sentence)
        seen.texts.append(_text(sentence))
        seen.masked.update(word for word in sentence.words if word in MASKS)
        seen.notes.update(sentence.notes)
        for note in sentence.notes:
            seen.noted.setdefault(note, getattr(note, "place", "") or _place(sentence))
        for name, task in tasks.items():
            seen.labels[name].update(task.labels_in(sentence))
            if task.annotated(sentence):
                layer = seen.layers[name]
                layer.first = layer.first if layer.annotated else _place(sentence)
                layer.annotated += 1
                if task.is_odd(sentence):
                    layer.first_odd = layer.first_odd if layer.odd else _place(sentence)
                    layer.odd += 1
                if _can_be_empty(task):
                    layer.labelled = layer.labelled or task.is_labelled(sentence)
                    layer.other_column = layer.other_column or _other_column(sentence)
    return seen


def _other_column(sentence: Sentence) -> str:
    """The first note that another column may be the right one, with the file; empty without one."""
    notes = [note for note in sentence.notes if isinstance(note, OtherColumn)]
    place = getattr(notes[0], "place", sentence.place) if notes else ""
    return f"{place.rpartition(':')[0]}: {notes[0]}" if notes else ""


@dataclass(frozen=True)
class CorpusCheck:
    """What is checked: splits, the tasks on them, and the labels that are known.

    `known` are a model's labels by task; if it is `None`, the labels of train are known. `trained` says
    whether a model will learn from train; if not, as in a conversion, a layer may be empty. `before` is what
    was seen of other splits, which come first.
    """

    splits: Splits
    tasks: Mapping[str, Task]
    known: Mapping[str, Labels] | None = None
    trained: bool = True
    before: Mapping[str, Seen] = field(default_factory=dict)

    @cached_property
    def seen(self) -> Mapping[str, Seen]:
        """What the checks need, by split."""
        found = {split: seen_in(sentences, self.tasks) for split, sentences in self.splits.items()}
        return {**self.before, **found}


def refuse_unintended(look: CorpusCheck) -> None:
    """Raise `InputError` for what cannot be intended."""
    for check in CHECKS:
        if check.refuses:
            for what in check.look(look):
                raise InputError(what)


def notes_on(look: CorpusCheck) -> list[str]:
    """A line with its count for each oddity that may be intended; raises `InputError` for what cannot be."""
    refuse_unintended(look)
    lines = [line for check in CHECKS if not check.refuses for line in check.look(look)]
    return list(dict.fromkeys(lines))  # halves of a task have the same


def refuse_shared_files(splits: Mapping[str, Iterable[tuple[str, Sequence[Path]]]]) -> None:
    """Raise `InputError` if a folder or pattern of one split holds a file of another split.

    `splits` has, for each split, paths with the files that they stand for. A file that is itself named for
    two splits is allowed: the user has said so.
    """
    seen: dict[Path, tuple[str, str, bool]] = {}
    for split, sources in splits.items():
        found: dict[Path, tuple[str, str, bool]] = {}
        for path, of_path in sources:
            for file in of_path:
                other = seen.get(file.resolve())
                if other is not None and not (_is_named(path, of_path) and other[2]):
                    folder = other[1] if _is_named(path, of_path) else path
                    raise InputError(
                        f"{folder}: {file} would be read for both {other[0]} and {split}: name the files of "
                        "each split (a folder is read whole, at any depth)"
                    )
                found[file.resolve()] = (split, path, _is_named(path, of_path))
        seen.update(found)


def _is_named(path: str, of_path: Sequence[Path]) -> bool:
    """Whether a path names its files (one, or two as SOURCE:TARGET), rather than a folder or a pattern."""
    return Path(path).is_file() or all(str(file) in path for file in of_path)


def _no_label(look: CorpusCheck) -> Iterator[str]:
    """A layer without any label in train: the task has nothing to learn, or the wrong column was read."""
    for split, name, layer in _empty_layers(look):
        if layer.other_column:
            yield layer.other_column
        if look.trained and split == "train":
            yield (
                f"{name}: no {look.tasks[name].item} in "
                f"{counted(layer.annotated, 'annotated sentence')} of train, "
                f"from {layer.first} on: check files, format and columns, or leave {name} out"
            )


def _empty_layer(look: CorpusCheck) -> Iterator[str]:
    for split, name, layer in _empty_layers(look):
        number = counted(layer.annotated, "annotated sentence")
        yield f"{split}: {name}: no {look.tasks[name].item} in {number}"


def _empty_layers(look: CorpusCheck) -> Iterator[tuple[str, str, SeenLayer]]:
    """The splits and tasks whose annotated sentences all have an empty layer for the task."""
    for split, seen in look.seen.items():
        for name, layer in seen.layers.items():
            if _can_be_empty(look.tasks[name]) and layer.annotated and not layer.labelled:
                yield split, name, layer


def _reader_notes(look: CorpusCheck) -> Iterator[str]:
    """What the readers changed or found odd."""
    for split, seen in look.seen.items():
        for note, number in seen.notes.items():
            yield f"{split}: {note}: {number:,} (the first, {seen.noted[note]})"


def _masked_words(look: CorpusCheck) -> Iterator[str]:
    for split, seen in look.seen.items():
        for word, number in seen.masked.items():
            words = counted(seen.words, "word")
            yield f"{split}: {number:,} of {words} are '{word}', as in files whose text was removed"


def _odd_annotations(look: CorpusCheck) -> Iterator[str]:
    for split, seen in look.seen.items():
        for name, layer in seen.layers.items():
            if layer.odd:
                what = look.tasks[name].odd_in_words(layer.odd, seen.sentences)
                yield f"{split}: {what} (the first, {layer.first_odd})"


def _labels_left_blank(look: CorpusCheck) -> Iterator[str]:
    """Words with a label that means 'no label' in most formats."""
    for split, seen in look.seen.items():
        for name, labels in seen.labels.items():
            no_label = look.tasks[name].no_label
            if no_label is not None and labels[no_label]:
                blank, number = labels[no_label], counted(labels.total(), "label")
                what = f"{blank:,} of {number} are '{no_label}', taken for a label of that name"
                yield f"{split}: {name}: {what}"


def _one_label(look: CorpusCheck) -> Iterator[str]:
    """A layer with only one class: a task with nothing to tell apart."""
    for name, task in look.tasks.items():
        if task.finds or not look.trained or "train" not in look.seen:
            continue
        labels = look.seen["train"].labels[name]
        if len(labels) == 1 < labels.total():
            number = counted(labels.total(), "label")
            yield f"train: {name}: all {number} are '{min(labels)}': nothing to tell apart"


def _split_in_split(look: CorpusCheck) -> Iterator[str]:
    for first, second in combinations(look.seen, 2):
        yield from shared_sentences(first, look.seen[first].texts, second, look.splits[second])


def texts_of(sentences: Iterable[Sentence]) -> array[int]:
    """A hash of each sentence's words, valid only in this process."""
    return array("q", map(_text, sentences))


def shared_sentences(
    first: str, texts: array[int], second: str, smaller: Sequence[Sentence]
) -> Iterator[str]:
    """A line with the number of sentences that two splits share, if any; the first is given by `texts_of`."""
    shared = set(map(_text, smaller)).intersection(texts)
    inside = [sentence for sentence in smaller if _text(sentence) in shared]
    if inside:
        yield (
            f"{second}: {len(inside):,} of {counted(len(smaller), 'sentence')} in {first}, too "
            f"(the first, {_place(inside[0])})"
        )


def _text(sentence: Sentence) -> int:
    return hash((sentence.words, sentence.second))


def _unseen_labels(look: CorpusCheck) -> Iterator[str]:
    """Labels in dev and test that training never saw, so that no model can predict them."""
    for name in look.tasks:
        if look.known is not None:
            known = {part for label in look.known[name].names for part in label.split(CHAIN)}
        elif "train" in look.seen:
            known = set(look.seen["train"].labels[name])
        else:
            continue
        for split, seen in look.seen.items():
            gold = seen.labels[name]
            unseen = Counter({label: number for label, number in gold.items() if label not in known})
            if unseen and (look.known is not None or split != "train"):
                shown = ", ".join(f"{label} {number:,}" for label, number in unseen.most_common(_SHOWN))
                more = f" and {len(unseen) - _SHOWN} more" if len(unseen) > _SHOWN else ""
                who = "the model does not have" if look.known is not None else "training never saw"
                yield (
                    f"{split}: {name}: {unseen.total():,} of {counted(gold.total(), 'label')} are ones that "
                    f"{who} ({shown}{more}): counted as missed"
                )


def _not_represented(look: CorpusCheck) -> Iterator[str]:
    """Items that the task cannot represent with any labels, so that a perfect model scores below 100."""
    for name, task in look.tasks.items():
        for split, sentences in look.splits.items():
            if split == "train" and look.known is None:
                continue  # the code that makes training targets reports what it leaves out
            if not _can_be_empty(task):
                continue
            annotated = [sentence for sentence in sentences if task.annotated(sentence)]
            labels = task.labels(annotated)
            dropped = sum(task.dropped(sentence, labels) for sentence in annotated)
            if dropped:
                yield f"{split}: {name}: {counted(dropped, 'item')} cannot be represented: counted as missed"


class Check(NamedTuple):
    """One kind of oddity; `refuses`: it cannot be intended, and the first line found is an error."""

    look: Callable[[CorpusCheck], Iterator[str]]
    refuses: bool = False


CHECKS = (
    Check(_no_label, refuses=True),
    Check(_reader_notes),
    Check(_empty_layer),
    Check(_masked_words),
    Check(_odd_annotations),
    Check(_labels_left_blank),
    Check(_one_label),
    Check(_split_in_split),
    Check(_unseen_labels),
    Check(_not_represented),
)


def _can_be_empty(task: Task) -> bool:
    """Whether a sentence can be annotated with nothing in the task's layer; only layers on words can."""
    return bool(task.item and task.layers)


def _place(sentence: Sentence) -> str:
    return sentence.place or sentence.id
