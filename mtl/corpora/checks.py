"""What was read is looked at: an error where it cannot be meant, a counted line where it may be."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from mtl.corpora.formats.conll2003 import OtherColumn, are_numbers
from mtl.corpora.formats.parallel import source_words
from mtl.corpora.merge import MASKS
from mtl.errors import InputError
from mtl.tasks.binarise import CHAIN
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task
from mtl.tasks.translate import translation_in

Splits = Mapping[str, Sequence[Sentence]]

_SHOWN = 5
_INDEXED = re.compile(r"[0-9]+=.")
"""A word behind its number, as discontinuous trees have it."""


class Look(NamedTuple):
    """What is looked at: splits, the tasks on them, and what labels are known.

    `known` are a model's labels by task; without them known is what train has. `trained`: train is learned
    from; without, as in a conversion, a layer may be empty.
    """

    splits: Splits
    tasks: Mapping[str, Task]
    known: Mapping[str, Labels] | None = None
    trained: bool = True


def refuse(look: Look) -> None:
    """Raise `InputError` for what cannot be meant."""
    for check in CHECKS:
        if check.refuses:
            for what in check.look(look):
                raise InputError(what)


def notes_on(look: Look) -> list[str]:
    """A line for each thing that may be meant, with its number; raises `InputError` for what cannot be."""
    refuse(look)
    lines = [line for check in CHECKS if not check.refuses for line in check.look(look)]
    return list(dict.fromkeys(lines))  # halves of a task have the same


def refuse_source(path: str | Path, sentences: Sequence[Sentence]) -> None:
    """Raise `InputError` where the words of files, a folder or a pattern are no words.

    They are numbers of words, come with something before them, are masked, or are the tags.
    """
    if are_numbers([sentence.words for sentence in sentences]):
        raise InputError(
            f"{path}: the words of most sentences are numbers one after the other, such as "
            f"{' '.join(max(sentences, key=len).words[:3])}: is the first column the words' number?"
        )
    prefix = _same_prefix(sentences)
    if prefix:
        raise InputError(
            f"{path}: every word begins with '{prefix}', which names a language in WikiAnn: take it off"
        )
    masked, words = _masked(sentences)
    if 2 * masked.total() > words:
        raise InputError(
            f"{path}: {masked.total():,} of {counted(words, 'word')} are '{masked.most_common(1)[0][0]}': "
            "the text was taken out of these files, for its licence; put it back with their publisher's tool"
        )
    longer = [sentence for sentence in sentences if len(sentence) > 1]
    if len(longer) < 2:
        return
    example = longer[0].words[0]
    if all(_INDEXED.match(word) for sentence in longer for word in sentence.words):
        raise InputError(f"{path}: every word begins with a number, as '{example}': take the numbers off")
    if all(len(set(sentence.words)) == 1 for sentence in longer):
        what = f"every sentence repeats one word, such as '{example}'"
    elif all(sentence.words in (sentence.tags, sentence.upos) for sentence in longer):
        what = f"every word is its own tag, such as '{example}'"
    else:
        return
    raise InputError(
        f"{path}: {what}: was the text taken out of these files, or another column read than that of words?"
    )


def _same_prefix(sentences: Sequence[Sentence]) -> str:
    """What comes before the first colon of every word, with it; empty if that is not the same for all."""
    prefixes = {word[: word.find(":") + 1] for sentence in sentences for word in sentence.words}
    return (
        prefixes.pop() if len(prefixes) == 1 and len({sentence.words for sentence in sentences}) > 1 else ""
    )


def _masked(sentences: Sequence[Sentence]) -> tuple[Counter[str], int]:
    """How often each mask stands for a word, and the number of words."""
    masked = Counter(word for sentence in sentences for word in sentence.words if word in MASKS)
    return masked, sum(map(len, sentences))


def refuse_shared_files(splits: Mapping[str, Iterable[tuple[str, Sequence[Path]]]]) -> None:
    """Raise `InputError` where a folder or pattern of one split holds a file of another split.

    `splits` has paths with the files that they stand for. A file that is itself named for two splits is the
    user's word.
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


def _no_label(look: Look) -> Iterator[str]:
    """A layer without a label in train: a task has nothing to learn, or the wrong column was read."""
    for split, sentences in look.splits.items():
        for name, task in look.tasks.items():
            annotated = _annotated(task, sentences)
            if not annotated or any(task.is_labelled(sentence) for sentence in annotated):
                continue
            for sentence in annotated:
                for note in sentence.notes:
                    if isinstance(note, OtherColumn):
                        yield f"{sentence.place.rpartition(':')[0]}: {note}"
            if look.trained and split == "train":
                yield (
                    f"{name}: no {task.item} in "
                    f"{counted(len(annotated), 'annotated sentence')} of train, "
                    f"from {_place(annotated[0])} on: check files, format and columns, or leave {name} out"
                )


def _empty_layer(look: Look) -> Iterator[str]:
    for split, sentences in look.splits.items():
        for name, task in look.tasks.items():
            annotated = _annotated(task, sentences)
            if annotated and not any(task.is_labelled(sentence) for sentence in annotated):
                number = counted(len(annotated), "annotated sentence")
                yield f"{split}: {name}: no {task.item} in {number}"


def _reader_notes(look: Look) -> Iterator[str]:
    """What the readers changed or found odd."""
    for split, sentences in look.splits.items():
        noted = [sentence for sentence in sentences if sentence.notes]
        first: dict[str, Sentence] = {}
        for sentence in noted:
            for note in sentence.notes:
                first.setdefault(note, sentence)
        for note, number in Counter(note for sentence in noted for note in sentence.notes).items():
            yield f"{split}: {note}: {number:,} (the first, {_place(first[note])})"


def _masked_words(look: Look) -> Iterator[str]:
    for split, sentences in look.splits.items():
        masked, words = _masked(sentences)
        for word, number in masked.items():
            yield f"{split}: {number:,} of {counted(words, 'word')} are '{word}', as where text was taken out"


def _copied_translations(look: Look) -> Iterator[str]:
    task = translation_in(look.tasks)
    if task is not None:
        for split, sentences in look.splits.items():
            texts = [(each, str(each.layer(task.layer) or "")) for each in sentences]
            copies = [each for each, text in texts if each.words and each.words == source_words(text)]
            if copies:
                of = f"{len(copies):,} of {counted(len(sentences), 'translation')}"
                yield f"{split}: {of} are their source (the first, {_place(copies[0])})"


def _labels_left_blank(look: Look) -> Iterator[str]:
    """Words whose label says in most formats that there is none."""
    for split, sentences in look.splits.items():
        for name, task in look.tasks.items():
            labels = Counter(label for sentence in sentences for label in task.labels_in(sentence))
            if task.no_label is not None and labels[task.no_label]:
                blank, number = labels[task.no_label], counted(labels.total(), "label")
                what = f"{blank:,} of {number} are '{task.no_label}', taken for a label of that name"
                yield f"{split}: {name}: {what}"


def _one_label(look: Look) -> Iterator[str]:
    """A layer of classes with one class: a task that has nothing to tell apart."""
    for name, task in look.tasks.items():
        if task.finds or not look.trained:
            continue
        train = look.splits.get("train", ())
        labels = Counter(label for sentence in train for label in task.labels_in(sentence))
        if len(labels) == 1 < labels.total():
            number = counted(labels.total(), "label")
            yield f"train: {name}: all {number} are '{min(labels)}': none to tell apart"


def _split_in_split(look: Look) -> Iterator[str]:
    yield from shared_sentences(look.splits)


def shared_sentences(splits: Splits) -> Iterator[str]:
    """A line for every two splits that share sentences, with their number."""
    for (first, larger), (second, smaller) in combinations(splits.items(), 2):
        keys = {(sentence.words, sentence.second) for sentence in smaller}
        shared = keys & {(sentence.words, sentence.second) for sentence in larger}
        inside = [sentence for sentence in smaller if (sentence.words, sentence.second) in shared]
        if inside:
            yield (
                f"{second}: {len(inside):,} of {counted(len(smaller), 'sentence')} in {first}, too "
                f"(the first, {_place(inside[0])})"
            )


def _unseen_labels(look: Look) -> Iterator[str]:
    """Labels of dev and test that training never saw, which no model can predict."""
    for name, task in look.tasks.items():
        if look.known is not None:
            known = {part for label in look.known[name].names for part in label.split(CHAIN)}
        elif "train" in look.splits:
            known = {label for sentence in look.splits["train"] for label in task.labels_in(sentence)}
        else:
            continue
        for split, sentences in look.splits.items():
            gold = Counter(label for sentence in sentences for label in task.labels_in(sentence))
            unseen = Counter({label: number for label, number in gold.items() if label not in known})
            if unseen and (look.known is not None or split != "train"):
                shown = ", ".join(f"{label} {number:,}" for label, number in unseen.most_common(_SHOWN))
                more = f" and {len(unseen) - _SHOWN} more" if len(unseen) > _SHOWN else ""
                who = "the model does not have" if look.known is not None else "training never saw"
                yield (
                    f"{split}: {name}: {unseen.total():,} of {counted(gold.total(), 'label')} are ones that "
                    f"{who} ({shown}{more}): counted as missed"
                )


def _not_represented(look: Look) -> Iterator[str]:
    """Items that a task can hold for no labels at all: the score of a perfect model is below 100."""
    for name, task in look.tasks.items():
        for split, sentences in look.splits.items():
            if split == "train" and look.known is None:
                continue  # the code that makes training targets reports what it leaves out
            annotated = _annotated(task, sentences)
            labels = task.labels(annotated)
            dropped = sum(task.dropped(sentence, labels) for sentence in annotated)
            if dropped:
                yield f"{split}: {name}: {counted(dropped, 'item')} cannot be represented: counted as missed"


class Check(NamedTuple):
    """One thing to look for; `refuses`: it cannot be meant, and the first line found is an error."""

    look: Callable[[Look], Iterator[str]]
    refuses: bool = False


CHECKS = (
    Check(_no_label, refuses=True),
    Check(_reader_notes),
    Check(_empty_layer),
    Check(_masked_words),
    Check(_copied_translations),
    Check(_labels_left_blank),
    Check(_one_label),
    Check(_split_in_split),
    Check(_unseen_labels),
    Check(_not_represented),
)


def _annotated(task: Task, sentences: Sequence[Sentence]) -> list[Sentence]:
    """The sentences that the task's layer is looked at in: only layers on words can be empty."""
    if not task.item or not task.layers:
        return []
    return [sentence for sentence in sentences if task.annotated(sentence)]


def _place(sentence: Sentence) -> str:
    return sentence.place or sentence.id
