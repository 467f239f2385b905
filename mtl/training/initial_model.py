"""The model that a run starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mtl.config.effective import plain
from mtl.config.presets import tasks_saved
from mtl.config.schema import PruningRegime, Seq2SeqConfig, TrainConfig
from mtl.errors import InputError
from mtl.models.card import origin_of
from mtl.models.head_scales import Reassign
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.pretrained import AttentionKind
from mtl.models.routes import Owners
from mtl.models.seq2seq import Seq2Seq
from mtl.models.tapped import SharedEncoder
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_files import mapping_of
from mtl.tasks.task import Task
from mtl.tasks.translate import translation_in
from mtl.training.gate_loss import fixed_gates_of, gate_loss, new_gates_of
from mtl.training.initial_seq2seq import seq2seq_from_scratch
from mtl.training.parts import Started, used_starts
from mtl.training.run_log import PLAIN
from mtl.training.train_sentences import TrainSentences

_GROUPS = ("encoder", "seq2seq")
"""Sections of a configuration that come with a run to start from, besides those of its tasks."""


def with_settings_of_source(config: TrainConfig) -> TrainConfig:
    """The configuration with the settings that come with the run that training starts from.

    These are the settings of its encoder (except for the attention implementation) or its translation model,
    and of the tasks that it was trained on. Raises `InputError` for a value that is neither the run's nor the
    default; whether a default was given is for `refuse_given` to check.
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
        _refuse_others(config.init_from, name, {key: section[key] for key in changed}, settings)
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
        _refuse_others(config.init_from, name, wanted, settings)


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
    translates = Seq2Seq.is_in(model)
    if not (model / "model.json").exists() or not (translates or (model / "encoder.json").exists()):
        why = "no model.json" if source.exists() else "there is no such folder"
        raise InputError(f"{source} holds no trained model ({why}): use a run's folder")
    try:
        found = _encoder_settings(model, translates)
        saved = tasks_saved(mapping_of(model / "model.json"))
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{source}: model.json, encoder.json or config.yaml lacks settings ({reason}): put back "
            "undamaged copies, or start from another run"
        ) from error
    return found | {name: plain(dataclasses.asdict(saved[name])) for name in saved if name in tasks}


def _encoder_settings(model: Path, translates: bool) -> dict[str, dict[str, Any]]:
    """The settings of a saved encoder or translation model, under the name of their section."""
    run = Run.of_model(model)
    config = None if run is None else Run.open(run.folder).config()
    if translates:
        # A run that is older than a key has the key's default.
        defaults = plain(dataclasses.asdict(Seq2SeqConfig()))
        return {} if config is None else {"seq2seq": {**defaults, **config["seq2seq"]}}
    saved = mapping_of(model / "encoder.json")
    encoder = {
        "pooling": saved["pooling"],
        "layers": "last" if saved["mix"] is None else "mix",
        "word_dropout": saved["word_dropout"],
    }
    name = origin_of(model).encoder if config is None else config["encoder"]["name"]
    return {"encoder": encoder | ({"name": name} if name else {})}


def _refuse_others(run: str, section: str, wanted: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise `InputError` if a value in `wanted` differs from the run's `settings`."""
    for key, value in wanted.items():
        if value == settings[key]:
            continue
        if section == "encoder" and key == "name" and _same_encoder(value, settings[key]):
            continue
        raise InputError(
            f"{section}.{key}={value}, but {run} was trained with {settings[key]}, and its encoder and "
            f"decoders are taken over: leave {section}.{key} out (of files, too), or use "
            f"--{section}.{key}={settings[key]}"
        )


def _same_encoder(given: str, recorded: str | None) -> bool:
    """Whether `given` is a local folder with the recorded folder's name, as after a move."""
    return recorded is not None and Path(given).is_dir() and Path(given).name == Path(recorded).name


@dataclass(frozen=True)
class Start:
    """The part of what a run starts from that needs no sentences."""

    encoder: SharedEncoder | None
    """`None`: a translation model from scratch, whose vocabulary is learned from the training sentences."""
    owners: Owners | None = None
    """Per head that not all tasks have, the tasks that have it."""
    reassign: Reassign | None = None
    """What each pass of the training does to `JointModel.routes`."""
    source: JointModel | None = None
    """The model of the run to start from, with the same encoder."""


def load_start(config: TrainConfig, tasks: Mapping[str, Task], inputs: InputCache, console: Console) -> Start:
    """Load the encoder or the run to start from, changed as configured.

    This is done before any corpus is read. Raises `InputError` for a model that does not fit the tasks or the
    settings of starts and gates.
    """
    source: JointModel | None = None
    encoder: SharedEncoder
    if config.init_from is not None:
        source = _source(config.init_from, config.encoder.attention, config.pruning, tasks)
        encoder = source.encoder
    elif (translation := translation_in(tasks)) is None:
        encoder = inputs.encoder(config.encoder)
    elif config.seq2seq.architecture is None:
        languages = translation.source, translation.target
        encoder = Seq2Seq.from_pretrained(config.encoder.name, *languages, attention=config.encoder.attention)
    else:
        return Start(None)
    started, names = Started(), tuple(tasks)
    if encoder.translator is None:  # a translation is trained alone, and starts are for several tasks
        for start in used_starts(config):  # at most one (`check_settings`)
            started = start.apply(config, encoder, names, source)
    if started.said:
        console.print(started.said, **PLAIN)
    with torch.random.fork_rng([]):  # gates are made for their errors; the run's own are drawn later
        if config.pruning == "fixed":
            fixed_gates_of(config.gates, encoder, names)
        elif config.pruning != "none":
            gate_loss(new_gates_of(config.gates, encoder, names), config.gates, 1, encoder.tap.sites)
    owners = source.owners if started.owners is None and source is not None else started.owners
    return Start(encoder, owners, started.reassign, source)


def build_model(
    start: Start,
    tasks: Mapping[str, Task],
    sentences: TrainSentences,
    size: Seq2SeqConfig,
    attention: AttentionKind,
) -> JointModel:
    """The model to train, with labels from the training sentences.

    From another run come the encoder, its gates (held as they are, unless new ones are trained) and the
    labels and decoders of the tasks that it was trained on; other tasks get fresh ones. `size` and
    `attention` are those of a translation model from scratch.
    """
    source, encoder = start.source, start.encoder
    if encoder is None:
        translation = translation_in(tasks)
        assert translation is not None
        encoder = seq2seq_from_scratch(size, attention, translation, sentences)
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
        start.owners,
    )
    for name in tasks:
        if source is not None and name in known:
            model.decoders[name] = source.decoders[name]
    model.reassign = start.reassign
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
    if (source.encoder.translator is None) != (translation_in(tasks) is None):
        raise InputError(
            f"{run} was trained for {trained}, and its model cannot be trained for {', '.join(tasks)}: a "
            "translation model cannot become a labelling model, nor the reverse"
        )
    new = [name for name in tasks if name not in source.tasks]
    if new and regime in ("static", "gates_only"):
        raise InputError(
            f"pruning={regime} freezes the decoders, but {run} was not trained on {new[0]}: its tasks are "
            f"{trained}"
        )
    if source.owners is not None and new:
        raise InputError(
            f"{run} has heads for its own tasks only ({trained}), and {new[0]} is none of them: start from "
            "another run"
        )
    return source
