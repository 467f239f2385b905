"""The sentences of a run's corpus: read from each source, reduced to what its tasks read, and joined."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mtl.config.schema import CorpusConfig
from mtl.corpora.checks import Seen
from mtl.corpora.merge import merge
from mtl.corpora.readers import iterate, no_sentence, read, stream
from mtl.corpora.sources import Source, Tasks, sources
from mtl.errors import InputError
from mtl.tasks.instance import misfit
from mtl.tasks.sentence import Sentence, bundles_of
from mtl.tasks.task import Task


def load_split(
    config: CorpusConfig,
    tasks: Tasks,
    split: str,
    reader: Callable[[Path, str], list[Sentence]] = read,
) -> list[Sentence]:
    """The sentences of one split, with the layers that the chosen tasks read.

    `reader` returns the sentences at a path in a format. Raises `InputError` for files that cannot be read.
    """
    parts = [
        [chosen(source, sentence) for sentence in reader(source.path(split), source.format)]
        for source in sources(config, tasks)
    ]
    return merge(parts)


def stream_split(config: CorpusConfig, tasks: Tasks, split: str) -> Iterator[Sentence]:
    """The sentences of `load_split`, one by one; sentences of several sources are first joined in memory."""
    first, *others = sources(config, tasks)
    if others:
        yield from load_split(config, tasks, split)
        return
    for sentence in stream(first.path(split), first.format):
        yield chosen(first, sentence)


def chosen(source: Source, sentence: Sentence) -> Sentence:
    """The sentence with only the layers that the source's tasks read, under the names that they use.

    Raises `InputError` for a layer that holds what the kind of a named task does not learn, and for a
    sentence without words whose tasks need some.
    """
    place = sentence.place or sentence.id
    owner, layer = source.owner, source.own_layer
    if owner is not None and layer is not None:
        first, *others = owner.layers
        layers = {first: sentence.layer(layer)} | {name: sentence.layer(name) for name in others}
        sentence = replace(sentence, layers=layers)
    for name, kind in source.kinds.items():
        named = kind.layers and (kind.standard or layer is not None)
        value = sentence.layer(kind.layers[0]) if named else None
        if value is not None and (wrong := misfit(value, kind)) is not None:
            raise InputError(f"{place}: {name}: its layer {wrong}")
    sentence = only(sentence, source.kinds)
    if not sentence.words and sentence.layers and not any(kind.alone for kind in source.kinds.values()):
        raise InputError(f"{place}: a sentence without words; take it out")
    return sentence


def only(sentence: Sentence, kinds: Mapping[str, type[Task]]) -> Sentence:
    """The sentence with only the layers that tasks of these classes read."""
    read = {layer for kind in kinds.values() for layer in kind.layers}
    read |= {bundles_of(layer) for layer in read}
    return sentence.with_layers({layer: None for layer in sentence.layers if layer not in read})


def require_layers(sentences: Sequence[Sentence], tasks: Mapping[str, Task], split: str) -> None:
    """Raise `InputError` if no sentence of the split is annotated for one of the tasks."""
    for name, task in tasks.items():
        if not any(map(task.annotated, sentences)):
            raise _not_annotated(name, task, split, len(sentences), task.layer)


def require_seen(seen: Seen, tasks: Mapping[str, Task], split: str) -> None:
    """The same as `require_layers`, for sentences that `seen_in` has looked at."""
    for name, task in tasks.items():
        if not seen.layers[name].annotated:
            raise _not_annotated(name, task, split, seen.sentences, task.layer)


def require_first_sentence(
    config: CorpusConfig, name: str, task: Task, split: str, annotated: bool = True
) -> None:
    """Raise `InputError` if a split has no sentence for a task; with `annotated`, no annotated one.

    JSON lines are read only up to that sentence, so faults after it are not found.
    """
    [source] = sources(config, {name: task})
    path, count, there = source.path(split), 0, dict[str, None]()
    for sentence in iterate(path, source.format):
        if not annotated or task.annotated(chosen(source, sentence)):
            return
        count += 1
        there.update(dict.fromkeys(sentence.layers))
    if not count:
        raise no_sentence(path, source.format)
    raise _not_annotated(name, task, split, count, source.files.layer or task.layer, there)


def _not_annotated(
    name: str, task: Task, split: str, sentences: int, layer: str, there: Collection[str] = ()
) -> InputError:
    fault = f"no {split} sentence of {sentences} is annotated for {name}"
    if task.standard:
        has = f"; the files have {', '.join(there)}" if there else ""
        return InputError(f"{fault} (by {layer}{has}): set tasks.{name}.layer or tasks.{name}.files")
    return InputError(f"{fault}: leave {name} out of tasks, or give it files of its own (corpus.{name})")
