"""The model that a run starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from tasks.sentence import Sentence
from tasks.task import Task


def build_model(
    config: TrainConfig, tasks: Mapping[str, Task], sentences: Sequence[Sentence], material: InputCache
) -> JointModel:
    """A model with labels from the training sentences, on a pretrained encoder or on another run's.

    From another run come the encoder, its gates (held as they are, unless new ones are trained) and the
    decoders of the tasks that it was trained on; other tasks get fresh decoders.
    """
    if config.init_from is None:
        labels = {name: task.labels(sentences) for name, task in tasks.items()}
        return JointModel(material.encoder(config.encoder), tasks, labels).train()
    source = JointModel.from_pretrained(config.init_from)
    new = [name for name in tasks if name not in source.tasks]
    if new and config.pruning in ("static", "gates_only"):
        raise InputError(
            f"pruning={config.pruning} freezes the decoders, but {config.init_from} was not trained on "
            f"{new[0]}: its tasks are {', '.join(source.tasks)}"
        )
    labels = {name: source.labels.get(name) or task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(
        source.encoder,
        {name: source.tasks.get(name, task) for name, task in tasks.items()},
        labels,
        source.gates,
    )
    for name in tasks:
        if name in source.tasks:
            model.decoders[name] = source.decoders[name]
    model.train()
    if model.gates is not None:
        model.gates.requires_grad_(False).eval()
    return model
