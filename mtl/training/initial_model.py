"""The model that a run starts from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from tasks.catalogue import TASKS
from tasks.sentence import Sentence
from tasks.task import Task
from tasks.twins import task_of


def with_settings_of_source(config: TrainConfig) -> TrainConfig:
    """The configuration with the settings that come with the run that training starts from.

    These are the encoder's, but for its attention implementation, and those of the tasks that the run was
    trained on. Raises `InputError` where other values than those and than the defaults are given; for other
    values that are the defaults see `refuse_given`.
    """
    if config.init_from is None:
        return config
    default = TrainConfig()
    inherited: dict[str, Any] = {}
    for name, settings in _inherited_sections(config).items():
        section = plain(dataclasses.asdict(getattr(config, name)))
        defaults = plain(dataclasses.asdict(getattr(default, name)))
        _refuse_others(
            config, name, {key: section[key] for key in settings if section[key] != defaults[key]}, settings
        )
        values = dict(settings)
        if name == "encoder" and _same_encoder(config.encoder.name, values.get("name")):
            values["name"] = config.encoder.name
        inherited[name] = (
            dataclasses.replace(config.encoder, **values) if name == "encoder" else TASKS[name](**values)
        )
    return dataclasses.replace(config, **inherited)


def refuse_given(config: TrainConfig, given: Mapping[str, Any]) -> None:
    """Raise `InputError` if settings that come with the run to start from are given with other values.

    `given` holds the nested values of files and flags: in a configuration, a given value that equals the
    default cannot be told from the default. Without this check `--from=RUN --encoder.pooling=mean` would
    silently keep another pooling.
    """
    if config.init_from is None:
        return
    for name, settings in _inherited_sections(config).items():
        section, keys = plain(dataclasses.asdict(getattr(config, name))), given.get(name) or {}
        _refuse_others(config, name, {key: section[key] for key in settings if key in keys}, settings)


def _inherited_sections(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """The settings that come with the run to start from, per section of the configuration."""
    assert config.init_from is not None
    encoder, tasks = _settings_of(Path(config.init_from))
    return {"encoder": encoder} | {task_of(name): tasks[name] for name in tasks if name in config.tasks}


def _settings_of(source: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The settings of a run's encoder and tasks, as its model has them."""
    model = source / "model" if (source / "model" / "model.json").exists() else source
    if not (model / "model.json").exists() or not (model / "encoder.json").exists():
        raise InputError(f"{source} holds no trained model (no model.json): give a run's folder")
    saved = json.loads((model / "encoder.json").read_text())
    encoder = {
        "pooling": saved["pooling"],
        "layers": "last" if saved["mix"] is None else "mix",
        "word_dropout": saved["word_dropout"],
    }
    written = model.parent / "config.yaml"
    if written.exists():
        encoder["name"] = yaml.safe_load(written.read_text())["encoder"]["name"]
    tasks: dict[str, dict[str, Any]] = json.loads((model / "model.json").read_text())["tasks"]
    return encoder, tasks


def _refuse_others(
    config: TrainConfig, section: str, wanted: Mapping[str, Any], source: Mapping[str, Any]
) -> None:
    """Raise `InputError` if a wanted value of a section is not the source's."""
    for key, value in wanted.items():
        if value == source[key]:
            continue
        if section == "encoder" and key == "name" and _same_encoder(value, source[key]):
            continue
        raise InputError(
            f"{section}.{key}={value}, but {config.init_from} was trained with {source[key]}, and its "
            f"encoder and decoders are taken over: leave {section}.{key} out"
        )


def _same_encoder(given: str, recorded: str | None) -> bool:
    """Whether two names are of one local encoder, whose folder may have been moved."""
    return recorded is not None and Path(given).is_dir() and Path(given).name == Path(recorded).name


def build_model(
    config: TrainConfig, tasks: Mapping[str, Task], sentences: Sequence[Sentence], inputs: InputCache
) -> JointModel:
    """A model with labels from the training sentences, on a pretrained encoder or on another run's.

    From another run come the encoder, its gates (held as they are, unless new ones are trained) and the
    decoders of the tasks that it was trained on; other tasks get fresh decoders.
    """
    if config.init_from is None:
        labels = {name: task.labels(sentences) for name, task in tasks.items()}
        return JointModel(inputs.encoder(config.encoder), tasks, labels).train()
    source = JointModel.from_pretrained(config.init_from, attention=config.encoder.attention)
    new = [name for name in tasks if name not in source.tasks]
    if new and config.pruning in ("static", "gates_only"):
        raise InputError(
            f"pruning={config.pruning} freezes the decoders, but {config.init_from} was not trained on "
            f"{new[0]}: its tasks are {', '.join(source.tasks)}"
        )
    # Not `or`: an inventory without labels belongs to its decoder, too.
    labels = {
        name: source.labels[name] if name in source.labels else task.labels(sentences)
        for name, task in tasks.items()
    }
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
