"""One training run, from its configuration to its folder."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from rich.console import Console

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.corpora.load import corpus_fingerprint, require_layers
from mtl.models.allocator import keep_large_blocks
from mtl.models.batches import Example, examples
from mtl.models.device import device_of
from mtl.models.evaluate import Scores, batches, evaluate
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.limits import describe_long, require_limit, within_limit
from mtl.runs.run import Run, git_revision, versions
from mtl.training.balancing import balancer_for
from mtl.training.check import check
from mtl.training.checkpoint import Resumption
from mtl.training.data_module import TrainingData
from mtl.training.evaluation import Evaluation, Watch, Watched
from mtl.training.gate_loss import GateLoss, add_gates, freeze_for, gate_loss, gate_rate, reach_warning
from mtl.training.gradient_conflict import ConflictRecord, GradientConflict
from mtl.training.initial_model import build_model
from mtl.training.mask_pictures import MaskPictures
from mtl.training.plans import planner
from mtl.training.progress import ProgressLine
from mtl.training.ranks import check_processes, distributed, is_first_process, rank_and_ranks
from mtl.training.step import JointTraining
from mtl.training.wandb_logger import RunLogger, finish, wandb_logger
from tasks.sentence import Sentence
from tasks.task import Labels, Task


class Interrupted(Exception):
    """The run was asked to stop; its state is saved."""


def train(
    config: TrainConfig,
    console: Console | None = None,
    material: InputCache | None = None,
    watch: Watch | None = None,
) -> Run:
    """Train, or go on training, and return the run; raises `InputError` for what the user can mend.

    `material` is what several runs of one process share; `watch` sees every evaluation and may end the run.
    """
    console = console or Console(quiet=not is_first_process())
    material = material or InputCache()
    run = Run(Path(config.runs) / config.run_name())
    tasks = config.chosen()
    check(config)
    check_processes(config.trainer)
    keep_large_blocks()
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    if config.overwrite and is_first_process() and run.folder.exists():
        shutil.rmtree(run.folder)
    whole = plain(dataclasses.asdict(config))
    splits = {split: material.split(config.corpus, tuple(tasks), split) for split in ("train", "dev", "test")}
    longest = config.batch.max_words
    for split in ("dev", "test"):
        require_limit(splits[split], longest, split)
    message = describe_long(splits["train"], longest)
    if message is not None:
        console.print(f"train: {message}: left out", highlight=False, soft_wrap=True)
    splits["train"] = within_limit(splits["train"], longest)
    for split in ("train", "dev"):
        require_layers(splits[split], tasks, split)
    if is_first_process():
        going_on = run.start(whole)
    else:  # the first may not have put away yet what is to be overwritten
        going_on = not config.overwrite and run.resume_checkpoint.exists()
    if run.status()["state"] == "finished" and (is_first_process() or not config.overwrite):
        console.print(f"{run.folder} is finished already; --overwrite=true starts anew")
        return run
    _status(run, {"state": "running", "seed": config.seed, "started": _now(), "pid": os.getpid()})
    _status(run, {"versions": versions(), "git": git_revision()})
    _status(run, {"corpus_fingerprint": corpus_fingerprint(config.corpus, tuple(tasks))})
    try:
        _train(config, run, tasks, splits, going_on, console, material, watch)
    except Interrupted:
        _status(run, {"state": "interrupted"})
        raise
    except BaseException as error:
        _status(run, {"state": "failed", "error": f"{type(error).__name__}: {error}"})
        raise
    return run


def _train(
    config: TrainConfig,
    run: Run,
    tasks: Mapping[str, Task],
    splits: Mapping[str, Sequence[Sentence]],
    going_on: bool,
    console: Console,
    material: InputCache,
    watch: Watch | None,
) -> None:
    pl.seed_everything(config.seed, verbose=False)
    model = build_model(config, tasks, splits["train"], material)
    tokenizer = model.encoder.tokenizer
    corpora = {
        split: examples(
            sentences, tokenizer, model.tasks, model.labels, material.pieces(tokenizer, sentences)
        )
        for split, sentences in splits.items()
    }
    _report(console, corpora, model.tasks, model.labels)
    plan = planner(config.batch, config.seed, corpora["train"], tuple(tasks))
    updates = sum(
        math.ceil(len(plan(epoch)) / config.optimizer.accumulate) for epoch in range(config.max_epochs)
    )
    conflict = _gradient_conflict(config, model)
    module = JointTraining(
        model,
        balancer_for(config.balancer, tuple(tasks), config.batch.mode),
        config.optimizer,
        updates,
        gate_loss=_gate_loss(config, model, updates, console),
        conflict=conflict,
        gate_lr=gate_rate(config.gates, updates),
        balancer_lr=config.balancer.lr,
    )
    resumption = Resumption(run.resume_checkpoint, config.trainer.checkpoint_minutes)
    evaluation = Evaluation(
        run,
        lambda: batches(corpora["dev"], model, *rank_and_ranks()),
        config.evaluate_every,
        config.patience,
        config.keep == "best" or (config.keep == "auto" and config.pruning == "none"),
        console,
    )
    logger = wandb_logger(config, run) if config.wandb.mode != "disabled" and is_first_process() else None
    callbacks: list[pl.Callback] = [
        evaluation,
        MaskPictures(run, evaluation),
        resumption,
        ProgressLine(console),
    ]
    if conflict is not None:
        callbacks.insert(0, ConflictRecord(run, conflict))
    if watch is not None:
        callbacks.insert(callbacks.index(evaluation) + 1, Watched(evaluation, watch))
    with distributed(config.trainer):
        trainer = _trainer(config, logger, callbacks)
    _status(run, {"device": _device_name(trainer), "first_step": round(time.time(), 2)})
    console.print(
        f"{run.folder}: {'going on with' if going_on else 'training'} {', '.join(tasks)} on "
        f"{len(corpora['train'])} sentences, {config.max_epochs} epochs, {updates} updates, "
        f"{_device_name(trainer)}, {trainer.precision}",
        highlight=False,
        soft_wrap=True,
    )
    data = TrainingData(corpora["train"], model, plan, trainer)
    checkpoint = str(run.resume_checkpoint) if going_on else None
    try:
        with _quiet_lightning():
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=False)
    except SystemExit as error:  # how Lightning ends after KeyboardInterrupt
        raise Interrupted from error
    if trainer.world_size > 1:
        torch.distributed.destroy_process_group()  # one process does the rest
    if not trainer.is_global_zero:
        return
    best = JointModel.from_pretrained(run.model).to(module.device)
    metrics: dict[str, Scores] = {
        split: evaluate(best, batches(corpora[split], best))
        for split in ("dev", "test")
        if any(name in example.targets for example in corpora[split] for name in tasks)
    }
    run.write_metrics(metrics)
    _status(run, {"state": "finished", "finished": _now(), "training_seconds": round(evaluation.seconds, 1)})
    if logger is not None:
        finish(logger, metrics)


def _gradient_conflict(config: TrainConfig, model: JointModel) -> GradientConflict | None:
    """What measures the tasks' gradients on heads, if that is asked for."""
    every = config.gradient_conflict_every
    return GradientConflict(model.encoder.tap, tuple(model.tasks), every) if every else None


def _gate_loss(config: TrainConfig, model: JointModel, updates: int, console: Console) -> GateLoss | None:
    """Gates as the regime wants them, with what they cost; `None` without masks."""
    if config.pruning == "none":
        return None
    gates = add_gates(model, config.gates)
    freeze_for(config.pruning, model)
    warning = reach_warning(gates, gate_rate(config.gates, updates), updates)
    if warning:
        console.print(warning, highlight=False)
    return gate_loss(gates, config.gates, updates)


def _trainer(config: TrainConfig, logger: RunLogger | None, callbacks: list[pl.Callback]) -> pl.Trainer:
    precision = config.trainer.precision
    on_gpu = device_of(config.trainer.accelerator, "trainer.accelerator").type == "cuda"
    if precision == "auto":
        precision = "bf16-mixed" if on_gpu and torch.cuda.is_bf16_supported() else "32-true"
    several = config.trainer.devices * config.trainer.num_nodes > 1
    with _quiet_lightning():
        return pl.Trainer(
            accelerator="gpu" if on_gpu else "cpu",
            devices=config.trainer.devices,
            num_nodes=config.trainer.num_nodes,
            # A batch may lack a task, whose decoder then has no gradient.
            strategy="ddp_find_unused_parameters_true" if several else "auto",
            precision=precision,
            max_epochs=config.max_epochs,
            accumulate_grad_batches=config.optimizer.accumulate,
            limit_val_batches=0,
            log_every_n_steps=1,  # Lightning logs nothing here, but warns of epochs shorter than its interval
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
            logger=logger or False,
            callbacks=callbacks,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Keep Lightning to what the user can act on."""
    logger = logging.getLogger("pytorch_lightning")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # A loader over tokenised sentences needs no workers; frozen decoders are in evaluation mode; the
            # last is about Lightning's own code.
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated.*")
            yield
    finally:
        logger.setLevel(level)


def _report(
    console: Console,
    corpora: Mapping[str, Sequence[Example]],
    tasks: Mapping[str, Task],
    labels: Mapping[str, Labels],
) -> None:
    """Say how much each task has to learn from, and what of it cannot be learned."""
    for split, corpus in corpora.items():
        annotated = Counter(name for example in corpus for name in example.targets)
        counts = "  ".join(f"{name} {annotated[name]}" for name in tasks)
        console.print(f"{split}: {len(corpus)} sentences, annotated: {counts}", highlight=False)
    train = [example.sentence for example in corpora["train"]]
    for name, task in tasks.items():
        dropped = sum(task.dropped(sentence, labels[name]) for sentence in train)
        if dropped:
            console.print(
                f"{name}: {dropped} items in train cannot be represented and are left out of the loss"
            )


def _status(run: Run, values: Mapping[str, Any]) -> None:
    if is_first_process():
        run.update_status(values)


def _device_name(trainer: pl.Trainer) -> str:
    if trainer.strategy.root_device.type == "cuda":
        return torch.cuda.get_device_name(trainer.strategy.root_device)
    return f"CPU, {torch.get_num_threads()} threads"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
