"""The model that a run starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from rich.console import Console

from mtl.config.effective import plain
from mtl.config.instances import own_model_of, tasks_saved
from mtl.config.schema import PruningRegime, TrainConfig
from mtl.errors import InputError
from mtl.features import added
from mtl.models.encoder import Encoder, layers_read
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.model_files import RANDOM, origin_of
from mtl.models.pretrained import AttentionKind
from mtl.models.tapped import SharedEncoder
from mtl.runs.folder.run import Run, mapping_in_file
from mtl.tasks.in_words import as_text
from mtl.tasks.task import Task
from mtl.training.gate_loss import fixed_gates_of, gate_loss, new_gates_of, refuse_frozen
from mtl.training.run_log import PLAIN
from mtl.training.store import TrainSentences

_GROUPS = ("encoder", *added(lambda feature: feature.own_models))
"""Sections of a configuration that come with a run to start from, besides those of its tasks."""


def with_settings_of_source(config: TrainConfig) -> TrainConfig:
    """The configuration with the settings that come with the run that training starts from.

    These are the settings of its encoder (except for the attention implementation) or of the model in its
    place, and of the tasks that it was trained on. Raises `InputError` for a value that is neither the run's
    nor the default; whether a default was given is for `refuse_given` to check.
    """
    if config.init_from is None:
        return config
    default = TrainConfig()
    inherited: dict[str, Any] = {"instances": dict(config.instances)}
    for name, settings in _settings_of(Path(config.init_from), config.tasks).items():
        section = _section(config, name)
        if name in _GROUPS:
            defaults = _section(default, name)
        else:
            defaults = plain(dataclasses.asdict(type(config.task(name))()))
        changed = [key for key in settings if section[key] != defaults[key]]
        _refuse_others(config, name, {key: section[key] for key in changed}, settings)
        values = dict(settings)
        if name == "encoder" and _same_encoder(config.encoder.name, values.get("name")):
            values["name"] = config.encoder.name
        if name in config.instances:
            inherited["instances"][name] = dataclasses.replace(config.instances[name], **values)
        else:
            inherited[name] = dataclasses.replace(getattr(config, name), **values)
    return dataclasses.replace(config, **inherited)


def refuse_given(config: TrainConfig, given: Mapping[str, Any]) -> None:
    """Raise `InputError` if settings that come with the run to start from are given with other values.

    `given` holds the nested values of files and flags, since a configuration cannot tell a default that was
    given from one that was not. Without this check `--from=RUN --encoder.pooling=mean` would silently keep
    the run's pooling.
    """
    if config.init_from is None:
        return
    for name, settings in _settings_of(Path(config.init_from), config.tasks).items():
        keys = (given.get("instances") or {}).get(name) if name in config.instances else given.get(name)
        section = _section(config, name)
        wanted = {key: section[key] for key in settings if key in (keys or {})}
        _refuse_others(config, name, wanted, settings)


def _section(config: TrainConfig, name: str) -> dict[str, Any]:
    """The settings of a section, or of a task, as plain values."""
    section = getattr(config, name) if name in _GROUPS else config.task(name)
    values: dict[str, Any] = plain(dataclasses.asdict(section))
    return values


def _settings_of(source: Path, tasks: Collection[str]) -> dict[str, dict[str, Any]]:
    """The settings that come with a run to start from: per section of the configuration, and for these tasks.

    Raises `InputError` if there is no model, and for files that are damaged or lack settings.
    """
    model = source / "model" if (source / "model" / "model.json").exists() else source
    own = _own_model_in(model)
    if not (model / "model.json").exists() or not (own or (model / Encoder.settings_file).exists()):
        why = "no model.json" if source.exists() else "there is no such folder"
        raise InputError(f"{source} holds no trained model ({why}): use a run's folder")
    try:
        found = _encoder_settings(model, own)
        saved = tasks_saved(mapping_in_file(model / "model.json"))
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{source}: model.json, encoder.json or config.yaml lacks settings ({reason}): put back "
            "undamaged copies, or start from another run"
        ) from error
    return found | {name: plain(dataclasses.asdict(saved[name])) for name in saved if name in tasks}


def _own_model_in(folder: Path) -> str | None:
    """The kind of model that a folder holds in place of an encoder, if any."""
    kinds = {name: _class_of(name) for name in added(lambda feature: feature.own_models)}
    return next((name for name, kind in kinds.items() if (folder / kind.settings_file).is_file()), None)


def _encoder_settings(model: Path, own: str | None) -> dict[str, dict[str, Any]]:
    """The settings of a saved encoder, or of the model in its place, under the name of their section."""
    run = Run.of_model(model)
    config = None if run is None else Run.open(run.folder).config()
    if own is not None:
        return {} if config is None else {own: config[own]}
    saved = mapping_in_file(model / "encoder.json")
    encoder = {
        "pooling": saved["pooling"],
        "layers": layers_read(saved["mix"]),
        "word_dropout": saved["word_dropout"],
    }
    name = origin_of(model).encoder if config is None else config["encoder"]["name"]
    weights = "random" if name.endswith(RANDOM) else "pretrained"
    if config is not None:
        weights = config["encoder"].get("weights", "pretrained")
    name = name.removesuffix(RANDOM)
    return {"encoder": encoder | {"weights": weights} | ({"name": name} if name else {})}


def _refuse_others(
    config: TrainConfig, section: str, wanted: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Raise `InputError` if a value in `wanted` differs from the `settings` of the run to start from."""
    for key, value in wanted.items():
        if value == settings[key]:
            continue
        if section == "encoder" and key == "name" and _same_encoder(value, settings[key]):
            continue
        dotted = f"tasks.{section}.{key}" if section in config.instances else f"{section}.{key}"
        trained = as_text(settings[key], most=10_000)
        raise InputError(
            f"{dotted}={as_text(value)}, but {config.init_from} was trained with {trained}, and its encoder "
            f"and decoders are taken over: leave {dotted} out (of files, too), or use --{dotted}={trained}"
        )


def _same_encoder(given: str, recorded: str | None) -> bool:
    """Whether `given` is a local folder with the recorded folder's name, as after a move."""
    return recorded is not None and Path(given).is_dir() and Path(given).name == Path(recorded).name


@dataclass(frozen=True)
class RunStart:
    """The part of what a run starts from that needs no sentences."""

    encoder: SharedEncoder | None
    """`None`: a model from scratch, whose vocabulary is learned from the training sentences."""
    source: JointModel | None = None
    """The model of the run to start from, with the same encoder."""


def load_start(
    config: TrainConfig, tasks: Mapping[str, Task], inputs: InputCache, console: Console
) -> RunStart:
    """Load the encoder or the run to start from, changed as configured.

    This is done before any corpus is read. Raises `InputError` for a model that does not fit the tasks or the
    settings of gates.
    """
    source: JointModel | None = None
    encoder: SharedEncoder
    if config.init_from is not None:
        source = _source(config.init_from, config.encoder.attention, config.pruning, tasks)
        encoder = source.encoder
    elif (own := own_model_of(tasks)) is None:
        encoder = inputs.encoder(config.encoder, config.seed)
        if config.encoder.weights == "random":
            drawn = f"{config.encoder.name}: random weights, drawn with seed {config.seed}"
            console.print(drawn, **PLAIN)
    elif config.architecture() is None:
        encoder = _class_of(own).from_checkpoint(config, tasks)
    else:
        return RunStart(None)
    for keys in added(lambda feature: feature.keys).values():
        if keys.start is not None:
            resolve_name(keys.start)(config, encoder, console)
    if config.own_model() is None and config.pruning != "gates_only":
        refuse_frozen(config.balancer.name, config.encoder.freeze, encoder)
    names = tuple(tasks)
    with torch.random.fork_rng([]):  # gates are made for their errors; the run's own are drawn later
        if config.pruning == "fixed":
            fixed_gates_of(config.gates, encoder, names)
        elif config.pruning != "none":
            gate_loss(new_gates_of(config.gates, encoder, names), config.gates, 1, encoder.tap.sites)
    return RunStart(encoder, source)


def _class_of(own: str | None) -> Any:
    """The class of a kind of model that takes the place of an encoder (`ModelKind`)."""
    assert own is not None
    return resolve_name(added(lambda feature: feature.own_models)[own].encoder)


def build_model(
    start: RunStart,
    tasks: Mapping[str, Task],
    sentences: TrainSentences,
    config: TrainConfig,
) -> JointModel:
    """The model to train, with labels from the training sentences.

    From another run come the encoder, its gates (held as they are, unless new ones are trained) and the
    labels and decoders of the tasks that it was trained on; other tasks get fresh ones.
    """
    source, encoder = start.source, start.encoder
    if encoder is None:
        encoder = _class_of(own_model_of(tasks)).from_scratch(config, tasks, sentences)
    known = {} if source is None else source.tasks
    labels = {
        name: source.labels[name] if source is not None and name in known else sentences.labels(name, task)
        for name, task in tasks.items()
    }
    model = JointModel(
        encoder,
        {name: known.get(name, task) for name, task in tasks.items()},
        labels,
        None if source is None else source.gates,
    )
    for name in tasks:
        if source is not None and name in known:
            model.decoders[name] = source.decoders[name]
    model.train()
    if model.gates is not None:
        model.gates.requires_grad_(False).eval()
    return model


def _source(
    run: str, attention: AttentionKind, regime: PruningRegime, tasks: Mapping[str, Task]
) -> JointModel:
    """The model of the run to start from; raises `InputError` for a run that does not fit."""
    source = JointModel.from_pretrained(run, attention=attention)
    trained = ", ".join(source.tasks)
    if source.encoder.kind != (own_model_of(tasks) or ""):
        [kind, *_] = [task.kind for task in (*source.tasks.values(), *tasks.values()) if task.own_model]
        raise InputError(
            f"{run} was trained for {trained}, and its model cannot be trained for {', '.join(tasks)}: a "
            f"{kind} model cannot become a labelling model, nor the reverse"
        )
    new = [name for name in tasks if name not in source.tasks]
    if new and regime in ("static", "gates_only"):
        raise InputError(
            f"pruning={regime} freezes the decoders, but {run} was not trained on {new[0]}: its tasks are "
            f"{trained}"
        )
    return source
