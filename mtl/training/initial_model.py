"""The model that a run starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mtl.config.effective import plain
from mtl.config.presets import tasks_saved
from mtl.config.schema import Seq2SeqConfig, TrainConfig
from mtl.errors import InputError
from mtl.models.card import origin_of
from mtl.models.head_scales import Reassign
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.routes import Owners
from mtl.models.seq2seq import Seq2Seq
from mtl.models.tapped import SharedEncoder
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_files import mapping_of
from mtl.tasks.task import Task
from mtl.tasks.translate import translation_in
from mtl.training.gate_loss import fixed_gates_of, gate_loss, new_gates_of
from mtl.training.initial_seq2seq import seq2seq_checkpoint, seq2seq_from_scratch
from mtl.training.parts import Started, used_starts
from mtl.training.train_sentences import TrainSentences


def with_settings_of_source(config: TrainConfig) -> TrainConfig:
    """The configuration with the settings that come with the run that training starts from.

    These are those of its encoder (but for the attention implementation) or its translation model, and of the
    tasks that it was trained on. Raises `InputError` for a value that is neither the run's nor the default; a
    default that was given is left to `refuse_given`.
    """
    if config.init_from is None:
        return config
    default = TrainConfig()
    inherited: dict[str, Any] = {"instances": dict(config.instances)}
    for name, settings in _inherited_sections(config).items():
        section = _section(config, name)
        if name in _GROUPS:
            defaults = _section(default, name)
        else:
            defaults = plain(dataclasses.asdict(type(config.task(name))()))
        _refuse_others(
            config, name, {key: section[key] for key in settings if section[key] != defaults[key]}, settings
        )
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

    `given` holds the nested values of files and flags: a configuration does not tell a default that was given
    from one that was not. Without this check `--from=RUN --encoder.pooling=mean` would
    silently keep another pooling.
    """
    if config.init_from is None:
        return
    for name, settings in _inherited_sections(config).items():
        keys = (given.get("instances") or {}).get(name) if name in config.instances else given.get(name)
        section, keys = _section(config, name), keys or {}
        _refuse_others(config, name, {key: section[key] for key in settings if key in keys}, settings)


_GROUPS = ("encoder", "seq2seq")
"""Sections of a configuration that come with a run to start from, beside those of its tasks."""


def _section(config: TrainConfig, name: str) -> dict[str, Any]:
    """The settings of a section, or of a task, as plain values."""
    section = getattr(config, name) if name in _GROUPS else config.task(name)
    values: dict[str, Any] = plain(dataclasses.asdict(section))
    return values


def _inherited_sections(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """The settings that come with the run to start from, per section of the configuration."""
    assert config.init_from is not None
    sections, tasks = _settings_of(Path(config.init_from))
    return sections | {name: tasks[name] for name in tasks if name in config.tasks}


def _settings_of(source: Path) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The settings in a run's saved model: by section, and by task.

    Raises `InputError` without a model, and for files that are damaged or lack settings.
    """
    model = source / "model" if (source / "model" / "model.json").exists() else source
    translates = Seq2Seq.is_in(model)
    if not (model / "model.json").exists() or not (translates or (model / "encoder.json").exists()):
        why = "no model.json" if source.exists() else "there is no such folder"
        raise InputError(f"{source} holds no trained model ({why}): use a run's folder")
    try:
        return _settings_in(model, translates)
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{source}: model.json, encoder.json or config.yaml lacks settings ({reason}): put back "
            "undamaged copies, or start from another run"
        ) from error


def _settings_in(
    model: Path, translates: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    saved_tasks = tasks_saved(mapping_of(model / "model.json"))
    tasks = {name: plain(dataclasses.asdict(task)) for name, task in saved_tasks.items()}
    run = Run.of_model(model)
    config = None if run is None else Run.open(run.folder).config()
    if translates:
        # A run that is older than a key has the key's default.
        defaults = plain(dataclasses.asdict(Seq2SeqConfig()))
        return ({} if config is None else {"seq2seq": {**defaults, **config["seq2seq"]}}), tasks
    saved = mapping_of(model / "encoder.json")
    encoder = {
        "pooling": saved["pooling"],
        "layers": "last" if saved["mix"] is None else "mix",
        "word_dropout": saved["word_dropout"],
    }
    name = origin_of(model).encoder if config is None else config["encoder"]["name"]
    if name:
        encoder["name"] = name
    return {"encoder": encoder}, tasks


def _refuse_others(
    config: TrainConfig, section: str, wanted: Mapping[str, Any], source: Mapping[str, Any]
) -> None:
    """Raise `InputError` if a value in `wanted` differs from the source's."""
    for key, value in wanted.items():
        if value == source[key]:
            continue
        if section == "encoder" and key == "name" and _same_encoder(value, source[key]):
            continue
        raise InputError(
            f"{section}.{key}={value}, but {config.init_from} was trained with {source[key]}, and its "
            f"encoder and decoders are taken over: leave {section}.{key} out (of files, too), or use "
            f"--{section}.{key}={source[key]}"
        )


def _same_encoder(given: str, recorded: str | None) -> bool:
    """Whether `given` is a local folder with the recorded folder's name, as after a move."""
    return recorded is not None and Path(given).is_dir() and Path(given).name == Path(recorded).name


@dataclass(frozen=True)
class Start:
    """The part of what a run starts from that needs no sentences."""

    encoder: SharedEncoder | None
    """`None`: a translation model from scratch, whose vocabulary is of the training sentences."""
    owners: Owners | None = None
    """The tasks that have each of the heads that not all have."""
    reassign: Reassign | None = None
    """What each pass of the training does to `JointModel.routes`."""
    source: JointModel | None = None
    """The model of the run to start from, with the same encoder."""


def load_start(config: TrainConfig, tasks: Mapping[str, Task], inputs: InputCache, console: Console) -> Start:
    """Load the encoder or the run to start from, changed as configured.

    Before any corpus is read, it raises `InputError` for a model that does not fit the tasks or the settings
    of starts and gates.
    """
    if config.init_from is not None:
        start = _from_run(config, tasks, console)
    elif (translation := translation_in(tasks)) is not None:
        start = Start(seq2seq_checkpoint(config, translation))
    else:
        encoder = inputs.encoder(config.encoder)
        started = _started(config, encoder, tasks, console, None)
        start = Start(encoder, started.owners, started.reassign)
    if start.encoder is not None:
        with torch.random.fork_rng([]):  # made for their errors: the run's own are drawn later
            if config.pruning == "fixed":
                fixed_gates_of(config.gates, start.encoder, tuple(tasks))
            elif config.pruning != "none":
                gates = new_gates_of(config.gates, start.encoder, tuple(tasks))
                gate_loss(gates, config.gates, 1, start.encoder.tap.sites)
    return start


def build_model(
    config: TrainConfig, tasks: Mapping[str, Task], start: Start, sentences: TrainSentences
) -> JointModel:
    """The model to train, with labels from the training sentences.

    From another run come the encoder, its gates (held as they are, unless new ones are trained) and the
    labels and decoders of the tasks that it was trained on; other tasks get fresh ones.
    """
    source = start.source
    if source is None:
        labels = {name: sentences.labels(name, task) for name, task in tasks.items()}
        encoder = start.encoder
        if encoder is None:
            translation = translation_in(tasks)
            assert translation is not None
            encoder = seq2seq_from_scratch(config, translation, sentences)
        model = JointModel(encoder, tasks, labels, owners=start.owners)
    else:
        # Not `or`: an empty inventory is false, and its decoder is kept.
        labels = {
            name: source.labels[name] if name in source.labels else sentences.labels(name, task)
            for name, task in tasks.items()
        }
        model = JointModel(
            source.encoder,
            {name: source.tasks.get(name, task) for name, task in tasks.items()},
            labels,
            source.gates,
            start.owners,
        )
        for name in tasks:
            if name in source.tasks:
                model.decoders[name] = source.decoders[name]
    model.reassign = start.reassign
    model.train()
    if model.gates is not None:
        model.gates.requires_grad_(False).eval()
    return model


def _from_run(config: TrainConfig, tasks: Mapping[str, Task], console: Console) -> Start:
    """The model of the run to start from; raises `InputError` for a run that does not fit."""
    source = JointModel.from_pretrained(str(config.init_from), attention=config.encoder.attention)
    if (source.encoder.translator is not None) != config.translates():
        raise InputError(
            f"{config.init_from} was trained for {', '.join(source.tasks)}, and its model cannot be trained "
            f"for {', '.join(tasks)}: a translation model cannot become a labelling model, nor the reverse"
        )
    new = [name for name in tasks if name not in source.tasks]
    if new and config.pruning in ("static", "gates_only"):
        raise InputError(
            f"pruning={config.pruning} freezes the decoders, but {config.init_from} was not trained on "
            f"{new[0]}: its tasks are {', '.join(source.tasks)}"
        )
    owners = source.owners
    if owners is not None and new:
        raise InputError(
            f"{config.init_from} has heads for its own tasks only ({', '.join(source.tasks)}), and {new[0]} "
            "is none of them: start from another run"
        )
    started = _started(config, source.encoder, tasks, console, source)
    return Start(
        source.encoder, owners if started.owners is None else started.owners, started.reassign, source
    )


def _started(
    config: TrainConfig,
    encoder: SharedEncoder,
    tasks: Mapping[str, Task],
    console: Console,
    source: JointModel | None,
) -> Started:
    """Change the encoder by the start that the run uses, if it uses one."""
    if encoder.translator is not None:
        return Started()  # a translation is trained alone, and starts are for several tasks
    started = Started()
    for start in used_starts(config):  # at most one (`check_settings`)
        started = start.apply(config, encoder, tuple(tasks), source)
    if started.said:
        console.print(started.said, highlight=False, soft_wrap=True)
    return started
