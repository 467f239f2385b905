"""Build what a run trains with, in memory: model, batches, balancer, gates, evaluation and trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytorch_lightning as pl
from rich.console import Console

from mtl.config.schema import LEARNING, GatesConfig, OptimizerConfig, PruningRegime, TrainConfig
from mtl.errors import InputError
from mtl.models.batches import Example, examples
from mtl.models.evaluate import batches
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.subwords import SubwordTokenizer
from mtl.models.unknown_words import count_unknown
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted
from mtl.tasks.task import Task
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
from mtl.training.ranks import rank_and_ranks
from mtl.training.run_log import PLAIN
from mtl.training.splits import Splits
from mtl.training.step import JointTraining
from mtl.training.train_sentences import Tally
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
    splits: Splits,
    console: Console,
    inputs: InputCache,
    observers: Sequence[Observer],
    start: Start,
) -> TrainingParts:
    """Build model, batches and trainer; raises `InputError` before anything is written.

    The random generators must be in the state in which loading `start` left them.
    """
    tasks = config.chosen()
    model = build_model(start, tasks, splits.train, config.seq2seq, config.encoder.attention)
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
    made = (part.meter(config, model.encoder, tuple(model.tasks)) for part in meters())
    used = [meter for meter in made if meter is not None]
    rates, gate_lr = config.rates(), gate_rate(config.gates, updates)
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
        balancer_lr=config.balancer.lr,
        meters=used,
        seed=config.seed,
    )
    evaluation = Evaluation(
        run=run,
        batches=lambda: batches(scored["dev"], model, *rank_and_ranks()),
        every=config.evaluate_every,
        patience=config.patience,
        keep_best=config.keep == "best" or (config.keep == "auto" and config.pruning not in LEARNING),
        console=console,
        observers=observers,
    )
    records = [meter.record(run) for meter in used]
    resumption = Resumption(run.resume_checkpoint, config.trainer.checkpoint_minutes, config.seed)
    callbacks = [*records, evaluation, *observers, resumption]
    trainer = trainer_for(config.trainer, run, config.max_epochs, config.optimizer.accumulate, callbacks)
    return TrainingParts(trainer, module, TrainingData(train, model, epochs, trainer), evaluation)


def warmup_share(config: OptimizerConfig, updates: int) -> float:
    """The share of a run's updates in which the learning rates rise."""
    if config.warmup_updates is None:
        return config.warmup
    return min(1.0, config.warmup_updates / updates)


def _gate_loss(
    regime: PruningRegime, config: GatesConfig, model: JointModel, rate: float, updates: int, console: Console
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
    if warning := reach_warning(gates, rate, updates):
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
