"""Tasks under names of a user's own: what a kind does, on a layer of any name.

`instance("slots", Spans, "slots")` is a class like those of the tasks that come with the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar

from mtl.tasks.halves import Half
from mtl.tasks.sentence import ON_WORDS, Sentence, annotation_of
from mtl.tasks.task import Labels, Task


class _OnNamedLayer(Task):
    """A task whose kind looks for annotations in a field of the sentence, and finds its own layer there."""

    standard: ClassVar[str]
    of_kind: ClassVar[type[Task]]

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        return self.of_kind.items(self, self.seen(sentence))

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return self.of_kind.labels(self, map(self.seen, sentences))

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        return self.of_kind.targets(self, self.seen(sentence), labels)

    def dropped(self, sentence: Sentence, labels: Labels) -> int:
        return self.of_kind.dropped(self, self.seen(sentence), labels)

    def annotate(self, sentence: Sentence, annotation: Any) -> Sentence:
        made = self.of_kind.annotate(self, self.seen(sentence), annotation).layer(self.standard)
        return sentence.with_layers({self.layer: made})


def instance(name: str, kind: type[Task], layer: str, half: Half | None = None) -> type[Task]:
    """The class of a kind's tasks under a name, on a layer of a name; the same for the same arguments.

    A kind that reads the words alone has no other layer.
    """
    return _class_of(name, kind, layer, half)


@cache
def _class_of(name: str, kind: type[Task], layer: str, half: Half | None) -> type[Task]:
    standard, *others = kind.layers or (kind.layer,)
    made: dict[str, Any] = {"name": name, "standard": standard, "of_kind": kind, "half": half}
    if kind.layers:
        made |= {"layer": layer, "layers": (layer, *others)}
    reads_field = standard in ON_WORDS and not kind.on_any_layer

    def reduced(task: Any) -> tuple[Callable[..., Task], tuple[Any, ...]]:
        settings = {each.name: getattr(task, each.name) for each in fields(task)}
        return _made, (name, kind, layer, half, settings)

    bases = (_OnNamedLayer, kind) if reads_field else (kind,)
    return type(f"{kind.__name__}_{name}", bases, made | {"__doc__": kind.__doc__, "__reduce__": reduced})


def misfit(value: Any, kind: type[Task]) -> str | None:
    """What is wrong with a layer as that of a task of a kind; `None`: it is what such a task learns."""
    found = annotation_of(value)
    if found == kind.annotation or (value == () and kind.finds):
        return None
    return f"holds {found}, and a task of kind {kind.kind} learns {kind.annotation}"


def _made(name: str, kind: type[Task], layer: str, half: Half | None, settings: Mapping[str, Any]) -> Task:
    return _class_of(name, kind, layer, half)(**settings)
