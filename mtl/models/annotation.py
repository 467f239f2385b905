"""Sentences annotated in batches with what the decoders of a joint model find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mtl.models.batches import Batch, examples, unlabelled
from mtl.models.buckets import buckets
from mtl.tasks.decoders.alternatives import Item
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task


class Decoded(NamedTuple):
    """A task's predictions for the sentences annotated in it, and those given a part of the gold."""

    predicted: list[Any]
    given: list[Any] | None = None
    items: list[tuple[Item, ...]] | None = None


class Probable(NamedTuple):
    """An annotated sentence, and by task what its decoder found most probable."""

    sentence: Sentence
    items: Mapping[str, tuple[Item, ...]]


def annotated(
    sentences: Sequence[Sentence],
    tokenizer: Any,
    tasks: Mapping[str, Task],
    labels: Mapping[str, Labels],
    decode: Callable[[Batch], Mapping[str, Decoded]],
    tokens: int,
    k: int | None,
) -> list[Probable]:
    """Annotate sentences with what `decode` predicts, in batches of at most `tokens` padded subwords.

    With `k`, each prediction comes with its `k` most probable values.
    """
    corpus = examples(sentences, tokenizer, {}, {})
    found = list(sentences)
    items: list[dict[str, tuple[Item, ...]]] = [{} for _ in sentences]
    for indices in buckets([example.length for example in corpus], tokens, None, None):
        batch = unlabelled([corpus[index] for index in indices], tokenizer, tasks)
        decoded = decode(batch) if batch.rows else {}
        for name, task in _in_order_of_need(tasks):
            if name not in decoded:
                continue
            rows = [indices[row] for row in batch.places[name]]
            for index, annotation in zip(rows, decoded[name].predicted, strict=True):
                found[index] = task.annotate(found[index], annotation)
            for index, of_sentence in zip(rows, decoded[name].items or (), strict=False):
                items[index][name] = task.offered(sentences[index], of_sentence, k or 0, labels[name])
    return [Probable(*pair) for pair in zip(found, items, strict=True)]


def _in_order_of_need(tasks: Mapping[str, Task]) -> list[tuple[str, Task]]:
    """The tasks; one whose annotation takes in another's layer comes after it (CON: tags)."""
    made = {task.layer for task in tasks.values()}

    def waits(item: tuple[str, Task]) -> bool:
        return any(layer in made for layer in item[1].layers[1:] if layer != item[1].layer)

    return sorted(tasks.items(), key=waits)
