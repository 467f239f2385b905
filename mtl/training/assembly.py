"""Build what a run trains with, in memory: model, batches, balancer, gates, evaluation and trainer.

The model is new, or one that the run starts from.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.plugins import MixedPrecision, Precision
from rich.console import Console
from torch import Tensor

from mtl.config.effective import plain
from mtl.config.instances import own_model_of, tasks_saved
from mtl.config.schema import (
    GatesConfig,
    OptimizerConfig,
    PruningRegime,
    TrainConfig,
    TrainerConfig,
)
from mtl.errors import InputError
from mtl.features import added
from mtl.models.batches import Example, count_unknown, example_corpus, examples
from mtl.models.encoder import Encoder, layers_read
from mtl.models.evaluate import batches
from mtl.models.hub import refuse_exported
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.model_files import RANDOM, origin_of
from mtl.models.opened import device_of, training_precision
from mtl.models.pass_graphs import PassGraphs
from mtl.models.pretrained import AttentionKind
from mtl.models.subwords import SubwordTokenizer
from mtl.models.tapped import SharedEncoder
from mtl.runs.folder.run import Run, mapping_in_file
from mtl.tasks.in_words import as_text, counted, first_line
from mtl.tasks.recursions import RecursionGraphs
from mtl.tasks.task import Task
from mtl.training.balancers import LossScale, balancer_for
from mtl.training.checkpoint import DirectCheckpointIO, Resumption
from mtl.training.data import EpochBatches, Splits, TrainingData
from mtl.training.evaluation import Evaluation, Observer
from mtl.training.gate_loss import (
    GateLoss,
    fixed_gates_of,
    freeze_encoder,
    freeze_for,
    gate_loss,
    gate_rate,
    new_gates_of,
    reach_warning,
    refuse_frozen,
)
from mtl.training.ranks import Processes, Ranks, rank_and_ranks
from mtl.training.run_log import PLAIN
from mtl.training.step import JointTraining
from mtl.training.store import Tally, TrainSentences
from mtl.workers.launch import process_place


@dataclass(frozen=True)
class TrainingParts:
    """All that training needs, in memory."""

    trainer: pl.Trainer
    module: JointTraining
    data: TrainingData
    evaluation: Evaluation


def assemble(
    config: TrainConfig,
    run: Run,
    splits: Splits,
    console: Console,
    inputs: InputCache,
    observers: Sequence[Observer],
    start: RunStart,
) -> TrainingParts:
    """Build model, batches and trainer; raises `InputError` before anything is written.

    The random generators must be in the state in which loading `start` left them.
    """
    tasks = config.chosen()
    model = build_model(start, tasks, splits.train, config)
    if config.pruning != "gates_only" and config.own_model() is None:
        freeze_encoder(config.encoder.freeze, model.encoder)
    tokenizer = model.encoder.tokenizer
    if model.encoder.note is not None:
        console.print(model.encoder.note, **PLAIN)
    train, tally = splits.train.examples(tokenizer, model.tasks, model.labels)
    scored = {
        split: examples(sentences, tokenizer, model.tasks, model.labels, inputs.pieces(tokenizer, sentences))
        for split, sentences in {"dev": splits.dev, "test": splits.test}.items()
    }
    for name, task in model.tasks.items():
        if task.half is not None and not tally.annotated[name]:
            raise InputError(
                f"{name} has no training sentences: its half (by a hash of their ids) is empty; use more "
                "sentences, or all of them"
            )
    _report(console, {"train": train, **scored}, tally, model.tasks)
    if isinstance(tokenizer, SubwordTokenizer):
        unknown = {split: count_unknown(corpus, tokenizer.unknown) for split, corpus in scored.items()}
        for split, found in {"train": tally.unknown, **unknown}.items():
            if message := found.described():
                console.print(f"{split}: {message}", **PLAIN)
    epochs = EpochBatches(config.batch, config.seed, train, tuple(tasks))
    updates = epochs.updates(config.max_epochs, config.optimizer.accumulate)
    meters = [keys.meter for keys in added(lambda feature: feature.keys).values() if keys.meter]
    made = [resolve_name(meter)(config, model.encoder, tuple(model.tasks)) for meter in meters]
    used = [meter for meter in made if meter is not None]
    say = partial(console.print, **PLAIN)
    rates, gate_lr = config.rates(), gate_rate(config.gates, updates, tuple(tasks))
    module = JointTraining(
        model,
        balancer_for(config.balancer, tuple(tasks)),
        updates=updates,
        encoder_lr=rates["encoder_lr"],
        decoder_lr=rates["decoder_lr"],
        weight_decay=config.optimizer.weight_decay,
        warmup=warmup_share(config.optimizer, updates),
        schedule=config.optimizer.schedule,
        beta2=config.optimizer.beta2,
        clip=config.optimizer.clip,
        gate_loss=_gate_loss(config.pruning, config.gates, model, gate_lr, updates, console),
        gate_lr=gate_lr,
        gate_warmup=config.gates.warmup,
        balancer_lr=config.balancer.lr,
        meters=used,
        rounded=config.trainer.precision == "bf16-master",
        loss_scale=LossScale() if config.trainer.precision == "16-mixed" else None,
        graphs=[RecursionGraphs(), PassGraphs(say=say)] if config.trainer.cuda_graphs else (),
        seed=config.seed,
    )
    seen = some_of(train, tuple(tasks), config.evaluate_train)
    evaluation = Evaluation(
        run=run,
        batches=lambda: batches(scored["dev"], model, *rank_and_ranks()),
        every=config.evaluate_every,
        patience=config.patience,
        keep_best=config.keeps_best(),
        snapshots=config.snapshots,
        snapshot_updates=config.snapshot_updates,
        console=console,
        observers=observers,
        train_batches=(lambda: batches(seen, model, *rank_and_ranks())) if seen else None,
    )
    records = [meter.record(run) for meter in used]
    resumption = Resumption(run.resume_checkpoint, config.trainer.checkpoint_minutes, config.seed)
    callbacks = [*records, evaluation, *observers, resumption]
    trainer = trainer_for(config.trainer, run, config.max_epochs, config.optimizer.accumulate, callbacks)
    data = TrainingData(train, model, epochs, trainer, rounded=config.trainer.cuda_graphs)
    return TrainingParts(trainer, module, data, evaluation)


def some_of(train: Sequence[Example], tasks: Sequence[str], number: int) -> list[Example]:
    """This many of the training sentences that are annotated, spread evenly over the corpus."""
    annotated, _ = example_corpus(train).annotated_lengths(tasks)
    count = min(number, len(annotated))
    return [train[int(annotated[place * len(annotated) // count])] for place in range(count)]


def warmup_share(config: OptimizerConfig, updates: int) -> float:
    """The share of a run's updates in which the learning rates rise."""
    if config.warmup_updates is None:
        return config.warmup
    return min(1.0, config.warmup_updates / updates)


def _gate_loss(
    regime: PruningRegime,
    config: GatesConfig,
    model: JointModel,
    rate: float | Sequence[float],
    updates: int,
    console: Console,
) -> GateLoss | None:
    """Give the model its gates and freeze what the pruning regime does not train; returns the gates' cost.

    `None` if no gate is learned: without masks the model stays as it is, and fixed masks come from their
    file.
    """
    if regime == "none":
        return None
    encoder, tasks = model.encoder, tuple(model.tasks)
    if regime == "fixed":
        model.gates = fixed_gates_of(config, encoder, tasks)
        return None
    model.gates = gates = new_gates_of(config, encoder, tasks)
    freeze_for(regime, model)
    if warning := reach_warning(gates, rate, updates, config.warmup):
        console.print(warning, **PLAIN)
    return gate_loss(gates, config, updates, encoder.tap.sites)


def _report(
    console: Console, splits: Mapping[str, Sequence[Example]], tally: Tally, tasks: Mapping[str, Task]
) -> None:
    """Print how many sentences each task has, and how many annotations of train it cannot represent."""
    for split, corpus in splits.items():
        found = tally.annotated
        if split != "train":  # whose examples may be on disk: they have been counted once
            found = Counter(name for example in corpus for name in example.targets)
        counts = "  ".join(f"{name} {found[name]}" for name in tasks)
        console.print(f"{split}: {counted(len(corpus), 'sentence')}, annotated: {counts}", **PLAIN)
    for name in tasks:
        if tally.dropped[name]:
            console.print(
                f"{name}: left out of the loss: {counted(tally.dropped[name], 'item')} of train that cannot "
                "be represented",
                **PLAIN,
            )


def has_tf32(on_gpu: bool) -> bool:
    """Whether the run's device multiplies matrices in TF32."""
    return on_gpu and torch.cuda.is_tf32_supported()


def has_float16(on_gpu: bool) -> bool:
    """Whether the run's device multiplies float16 in hardware."""
    return on_gpu or bool(torch.cpu.get_capabilities().get("avx512_fp16"))


def check_machine(config: TrainerConfig) -> torch.device:
    """The device of a run, which is known before anything is read.

    Raises `InputError` for a GPU that is not there, a precision that the device does not have, and an
    environment in which torch cannot train.
    """
    device = device_of(config.accelerator, "trainer.accelerator")
    on_gpu = device.type == "cuda"
    if config.precision == "tf32" and not has_tf32(on_gpu):
        raise InputError("trainer.precision=tf32, and the run's device has no TF32: use 32-true")
    if config.precision == "16-mixed" and not has_float16(on_gpu):
        raise InputError(
            "trainer.precision=16-mixed, and the run's device does not multiply float16: use bf16-mixed or "
            "32-true"
        )
    several = config.devices * config.num_nodes > 1
    if several and not on_gpu and torch.distributed.get_debug_level() == torch.distributed.DebugLevel.DETAIL:
        raise InputError(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL: with it torch ends in a segmentation fault where several "
            "processes train on the CPU: use INFO, or unset it"
        )
    return device


def trainer_for(
    config: TrainerConfig, run: Run, epochs: int, accumulate: int, callbacks: list[pl.Callback]
) -> pl.Trainer:
    """The Lightning trainer of a run; `accumulate` is the number of batches per update.

    Raises `InputError` for what `check_machine` refuses, processes that do not fit the run, and settings that
    Lightning cannot train with.
    """
    devices, machines = config.devices, config.num_nodes
    on_gpu = check_machine(config).type == "cuda"
    precision = training_precision(on_gpu) if config.precision == "auto" else config.precision
    plugins: list[Any] = [DirectCheckpointIO(), Processes(process_place(devices, machines, os.environ))]
    known: Any = precision
    if precision in ("tf32", "bf16-master"):
        known = None
        plugins.append(RoundedProducts(precision, has_tf32(on_gpu)))
    elif precision == "16-mixed":  # Lightning has it on GPUs only; losses are scaled by `JointTraining`
        known, device = None, "cuda" if on_gpu else "cpu"
        plugins.append(MixedPrecision(precision, device, torch.amp.GradScaler(device, enabled=False)))
    several = devices * machines > 1
    try:
        with quiet_lightning():
            return pl.Trainer(
                accelerator="gpu" if on_gpu else "cpu",
                devices=devices,
                num_nodes=machines,
                strategy=Ranks(run) if several else "auto",
                precision=known,
                max_epochs=epochs,
                accumulate_grad_batches=accumulate,
                limit_val_batches=0,
                log_every_n_steps=1,  # it logs nothing here, but warns of epochs shorter than its interval
                reload_dataloaders_every_n_epochs=1,
                use_distributed_sampler=False,
                logger=False,
                callbacks=callbacks,
                plugins=plugins,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
    except InputError:
        raise
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"trainer.devices={devices}, trainer.num_nodes={machines}: {first_line(error)}"
        ) from error


class RoundedProducts(Precision):
    """Training steps in which a GPU may round the factors of float32 products to TF32 (11 bits, not 24).

    Only steps: what is measured and scored between them has the digits that its documentation promises.

    Args:
        name: The precision, as logs name it.
        tf32: Whether the device can; if not, products are as they were.
    """

    def __init__(self, name: str, tf32: bool) -> None:
        self.precision: Any = name  # Lightning lists the names of its own
        self.tf32 = tf32

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """A training step up to its loss."""
        before = torch.get_float32_matmul_precision()
        if self.tf32:
            torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def backward(self, tensor: Tensor, *of_lightning: Any, **named: Any) -> None:
        """The backward pass of a training step."""
        with self.forward_context():
            super().backward(tensor, *of_lightning, **named)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence those of Lightning's messages that the user can do nothing about, unless INFO is logged."""
    logger = logging.getLogger("pytorch_lightning")
    level = logger.level
    if not logging.getLogger().isEnabledFor(logging.INFO):
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # A loader over tokenised sentences needs no workers; frozen decoders are in evaluation mode on
            # purpose; LeafSpec is in Lightning's own code.
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated.*")
            # `TrainingData` skips the batches that are done; Lightning does not know that.
            warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
            # A run is on the CPU of a machine with a GPU only if the user asked for that.
            warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
            # Lightning passes it on to torch, which has renamed it in 2.13.
            warnings.filterwarnings("ignore", message=".*broadcast_buffers. is deprecated.*")
            # Observers have states of their own, and a run may be resumed with others.
            warnings.filterwarnings("ignore", message=".*callbacks used to create the checkpoint.*")
            # A run of one process in a SLURM job is what the user asked for.
            warnings.filterwarnings("ignore", message=".*`srun` command is available.*")
            yield
    finally:
        logger.setLevel(level)


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
        refuse_exported(source)
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
