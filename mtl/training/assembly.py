"""Build what a run trains with, in memory: model, batches, balancer, gates, evaluation and trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytorch_lightning as pl
from rich.console import Console

from mtl.config.schema import OptimizerConfig, TrainConfig
from mtl.errors import InputError
from mtl.models.batches import Example, examples
from mtl.models.evaluate import batches
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.subwords import SubwordTokenizer
from mtl.models.unknown_words import describe_unknown
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task
from mtl.training.balancing import balancer_for
from mtl.training.checkpoint import Resumption
from mtl.training.data_module import TrainingData
from mtl.training.epoch_batches import EpochBatches
from mtl.training.evaluation import Evaluation
from mtl.training.gate_loss import (
    GateLoss,
    fixed_gates_of,
    freeze_for,
    gate_loss,
    gate_rate,
    new_gates_of,
    reach_warning,
)
from mtl.training.initial_model import Start, build_model
from mtl.training.observer import Observer
from mtl.training.parts import meters
from mtl.training.ranks import distributed, rank_and_ranks
from mtl.training.step import JointTraining
from mtl.training.trainer import trainer_for


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
    splits: Mapping[str, Sequence[Sentence]],
    console: Console,
    inputs: InputCache,
    observers: Sequence[Observer],
    start: Start,
) -> TrainingParts:
    """Build model, batches and trainer; raises `InputError` before anything is written.

    The generators of random numbers are as they were when `start` was loaded.
    """
    tasks = config.chosen()
    model = build_model(config, tasks, start, splits["train"])
    tokenizer = model.encoder.tokenizer
    if model.encoder.note is not None:
        console.print(model.encoder.note, highlight=False, soft_wrap=True)
    corpora = {
        split: examples(
            sentences, tokenizer, model.tasks, model.labels, inputs.pieces(tokenizer, sentences),
            training=split == "train",
        )
        for split, sentences in splits.items()
    }  # fmt: skip
    for name, task in model.tasks.items():
        if task.half is not None and not any(name in example.targets for example in corpora["train"]):
            raise InputError(
                f"{name} has no training sentences: its half (by a hash of their ids) is empty; use more "
                "sentences, or all of them"
            )
    _report(console, corpora, model.tasks, model.labels)
    if isinstance(tokenizer, SubwordTokenizer):
        for split, corpus in corpora.items():
            if message := describe_unknown(corpus, tokenizer.unknown):
                console.print(f"{split}: {message}", highlight=False, markup=False, soft_wrap=True)
    epochs = EpochBatches(config.batch, config.seed, corpora["train"], tuple(tasks))
    updates = epochs.updates(config.max_epochs, config.optimizer.accumulate)
    watching = [part.meter(config, model.encoder, tuple(model.tasks)) for part in meters()]
    used, rates = [meter for meter in watching if meter is not None], config.rates()
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
        gate_loss=_gate_loss(config, model, updates, console),
        gate_lr=gate_rate(config.gates, updates),
        balancer_lr=config.balancer.lr,
        meters=used,
        seed=config.seed,
    )
    evaluation = Evaluation(
        run=run,
        batches=lambda: batches(corpora["dev"], model, *rank_and_ranks()),
        every=config.evaluate_every,
        patience=config.patience,
        keep_best=config.keep == "best" or (config.keep == "auto" and config.pruning in ("none", "fixed")),
        console=console,
        observers=observers,
    )
    callbacks = [meter.record(run) for meter in used]
    resumption = Resumption(run.resume_checkpoint, config.trainer.checkpoint_minutes, config.seed)
    with distributed(config.trainer):
        trainer = trainer_for(config, [*callbacks, evaluation, *observers, resumption])
    return TrainingParts(trainer, module, TrainingData(corpora["train"], model, epochs, trainer), evaluation)


def warmup_share(config: OptimizerConfig, updates: int) -> float:
    """The share of a run's updates in which the learning rates rise."""
    if config.warmup_updates is None:
        return config.warmup
    return min(1.0, config.warmup_updates / updates)


def _gate_loss(config: TrainConfig, model: JointModel, updates: int, console: Console) -> GateLoss | None:
    """Give the model its gates and freeze what the pruning regime does not train; returns the gates' cost.

    `None` if no gate is learned: without masks the model stays as it is, fixed masks come from their file.
    """
    if config.pruning == "none":
        return None
    encoder = model.encoder
    if config.pruning == "fixed":
        model.gates = fixed_gates_of(config.gates, encoder, tuple(model.tasks))
        return None
    gates = new_gates_of(config.gates, encoder, tuple(model.tasks))
    model.gates = gates
    freeze_for(config.pruning, model)
    warning = reach_warning(gates, gate_rate(config.gates, updates), updates)
    if warning:
        console.print(warning, highlight=False)
    return gate_loss(gates, config.gates, updates, encoder.tap.sites)


def _report(
    console: Console,
    corpora: Mapping[str, Sequence[Example]],
    tasks: Mapping[str, Task],
    labels: Mapping[str, Labels],
) -> None:
    """Print how many sentences each task has, and how many annotations it cannot represent."""
    for split, corpus in corpora.items():
        annotated = Counter(name for example in corpus for name in example.targets)
        counts = "  ".join(f"{name} {annotated[name]}" for name in tasks)
        console.print(f"{split}: {counted(len(corpus), 'sentence')}, annotated: {counts}", highlight=False)
    train = [example.sentence for example in corpora["train"]]
    for name, task in tasks.items():
        dropped = sum(task.dropped(sentence, labels[name]) for sentence in train)
        if dropped:
            console.print(
                f"{name}: left out of the loss: {counted(dropped, 'item')} of train that cannot be "
                "represented"
            )
