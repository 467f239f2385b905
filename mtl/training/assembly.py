"""Build what a run trains with, in memory: model, batches, balancer, gates, evaluation and trainer."""

from __future__ import annotations

import logging
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.plugins import MixedPrecision, Precision
from rich.console import Console
from torch import Tensor

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
from mtl.models.evaluate import batches
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.opened import device_of, training_precision
from mtl.models.pass_graphs import PassGraphs
from mtl.models.subwords import SubwordTokenizer
from mtl.runs.folder.run import Run
from mtl.tasks.captured import RecursionGraphs
from mtl.tasks.in_words import counted, first_line
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
)
from mtl.training.initial_model import RunStart, build_model
from mtl.training.ranks import Processes, Ranks, rank_and_ranks
from mtl.training.run_log import PLAIN
from mtl.training.step import JointTraining
from mtl.training.store import Tally
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
