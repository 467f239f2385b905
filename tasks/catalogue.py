"""The list of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mtl.tasks.classify import Classify
from mtl.tasks.con import Con
from mtl.tasks.dep import Dep
from mtl.tasks.drawn import Drawn
from mtl.tasks.glue import Cola, Mnli, Mrpc, Qnli, Rte, Sst2, Stsb
from mtl.tasks.graph import Graphs
from mtl.tasks.instance import instance, misfit
from mtl.tasks.lemmas import Lemmas
from mtl.tasks.ner import Ner
from mtl.tasks.pos import Pos
from mtl.tasks.regress import Regress
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_task import SentenceTask
from mtl.tasks.srl import Srl
from mtl.tasks.tags import Tags
from mtl.tasks.task import Task
from mtl.tasks.translate import Translate

STRUCTURED: tuple[type[Task], ...] = (Pos, Ner, Dep, Con, Srl)
"""The tasks on words, trained where a configuration names none, in the order in which layers are predicted
(CON takes its tags from POS)."""
OF_SENTENCES: tuple[type[SentenceTask], ...] = (
    Cola, Sst2, Mrpc, Rte, Qnli, Mnli, Stsb, Classify, Regress,
)  # fmt: skip
"""The tasks on sentences and pairs of sentences."""
KINDS: Mapping[str, type[Task]] = {
    kind.kind: kind
    for kind in (Tags, Lemmas, Ner, Dep, Graphs, Con, Srl, Drawn, Classify, Regress, Translate)
}
"""The kinds that tasks with names of a user's own can have (`mtl.tasks.instance`)."""
_ALL: tuple[type[Task], ...] = (*STRUCTURED, *OF_SENTENCES, Translate)
TASKS: dict[str, type[Task]] = {task.name: task for task in _ALL}
"""Every task that comes with the program, by name."""
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
