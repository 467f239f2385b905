"""The list of tasks, and the order in which everything lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pkgutil import resolve_name
from typing import Any

from mtl.features import added
from mtl.tasks.lemmas import Lemmas
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_tasks import Classify, Cola, Mnli, Mrpc, Qnli, Regress, Rte, SentenceTask, Sst2, Stsb
from mtl.tasks.structured import Con, Dep, Drawn, Graphs, Ner, OwnTags, Pos, Srl
from mtl.tasks.task import Task, instance, misfit

STRUCTURED: tuple[type[Task], ...] = (Pos, Ner, Dep, Con, Srl)
"""The tasks on words, trained where a configuration names none, in the order in which layers are predicted
(CON takes its tags from POS)."""
OF_SENTENCES: tuple[type[SentenceTask], ...] = (
    Cola, Sst2, Mrpc, Rte, Qnli, Mnli, Stsb, Classify, Regress,
)  # fmt: skip
"""The tasks on sentences and pairs of sentences."""
_OF_FEATURES: Mapping[str, type[Task]] = {
    name: resolve_name(path) for name, path in added(lambda feature: feature.tasks).items()
}
_KINDS: tuple[type[Task], ...] = (OwnTags, Lemmas, Ner, Dep, Graphs, Con, Srl, Drawn, Classify, Regress)
KINDS: Mapping[str, type[Task]] = {kind.kind: kind for kind in (*_KINDS, *_OF_FEATURES.values())}
"""The kinds that tasks with names of a user's own can have (`mtl.tasks.task`)."""
_ALL: tuple[type[Task], ...] = (*STRUCTURED, *OF_SENTENCES, *_OF_FEATURES.values())
TASKS: dict[str, type[Task]] = {task.name: task for task in _ALL}
"""Every task that comes with the program, by name, in the order in which everything lists tasks."""
_PLACES: Mapping[str, int] = {name: place for place, name in enumerate(TASKS)}
SENTENCE_TASKS: Mapping[str, type[SentenceTask]] = {task.name: task for task in OF_SENTENCES}
"""The tasks on sentences by name, which is also the name of their layer."""


def named_in(sentences: Iterable[Sentence]) -> dict[str, type[Task]]:
    """A task for each layer of the sentences that no task of the program reads, by the name of the layer."""
    found: dict[str, Any] = {}
    for sentence in sentences:
        for name in sentence.layers:
            if name not in LAYERS:
                found[name] = found.get(name) or sentence.layer(name)
    return {name: instance(name, _kind_of(name, found[name]), name) for name in sorted(found)}


def _kind_of(layer: str, value: Any) -> type[Task]:
    """The kind of tasks that learn such a layer; of several, the one whose usual layer has this name."""
    alike = [kind for kind in KINDS.values() if misfit(value, kind) is None]
    return next((kind for kind in alike if kind.layers[0] == layer), alike[0])


LAYERS = tuple(dict.fromkeys(layer for task in TASKS.values() for layer in task.layers))
"""All layers of a sentence that some task reads."""
TEXTS: Mapping[str, type[Task]] = {
    task.layers[0]: task for task in TASKS.values() if task.loss_unit == "piece"
}
"""The tasks whose annotation is a text, by layer; programs score it as a line."""


_DRAW = " draw "
_OF_ALL = ("", "shared")
"""Names that stand for all tasks, and come first."""


def of_draw(task: str, draw: int) -> str:
    """The name of a mask of a task with random labels where there are masks of several draws."""
    return f"{task}{_DRAW}{draw}"


def in_order_of_catalogue(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once, in the order in which everything lists tasks; names of a user's own come last.

    A half of a task (`dep~a`) stands where the task does, a mask that tasks share (`pos+dep`) where the first
    of them does. Draws of random labels (`of_draw`) are ordered by their number.
    """
    return tuple(sorted(set(names), key=catalogue_place))


def catalogue_place(name: str) -> tuple[int, str, int, str]:
    """The key by which names are sorted in that order."""
    base, _, draw = name.partition(_DRAW)
    whole = (task.partition("~")[0] for task in base.split("+"))
    known = [_PLACES[task] for task in whole if task in _PLACES]
    place = min(known, default=-1 if base in _OF_ALL else len(_PLACES))
    return place, base, int(draw) if draw.isdecimal() else 0, name
