"""One training run, from its configuration to its folder."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.corpora.checks import Look, notes_on
from mtl.corpora.formats.parallel import describe_empty, is_empty
from mtl.corpora.load import corpus_fingerprint, refuse_shared, require_layers
from mtl.errors import InputError, counted
from mtl.heads.gate_file import masks_fingerprint
from mtl.models.allocator import keep_large_blocks, release_free_blocks
from mtl.models.batches import annotated, examples
from mtl.models.device import device_of
from mtl.models.evaluate import Scores, batches, evaluate, signatures_of
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.limits import describe_long, require_limit, within_limit
from mtl.models.mask_file import check_masks
from mtl.runs.run import Run, git_revision, versions
from mtl.training.assembly import TrainingParts, assemble
from mtl.training.check import check_settings
from mtl.training.check_gates import check_target, unused_gates
from mtl.training.checkpoint import check_checkpoint
from mtl.training.initial_model import with_settings_of_source
from mtl.training.observer import Observer
from mtl.training.ranks import check_processes, is_first_process
from mtl.training.trainer import device_name, quiet_lightning, trainer_for
from mtl.workers.lease import holder_of, lease
from tasks.sentence import Sentence
from tasks.task import Task
from tasks.translate import Translate


def train(
    config: TrainConfig,
    *,
    console: Console | None = None,
    inputs: InputCache | None = None,
    observers: Sequence[Observer] = (),
) -> Run:
    """Train, or resume training, and return the run.

    On Ctrl-C or SIGTERM the state is saved and `KeyboardInterrupt` raised; the same call then resumes. Raises
    `InputError` for what the user can mend.

    Args:
        config: All settings.
        console: Where progress is printed; default: standard output, from the first process only.
        inputs: Corpora and encoders that several runs of one process share.
        observers: Watch the run; see `Observer`.
    """
    first = is_first_process()
    console = console or Console(quiet=not first)
    run = Run(Path(config.runs) / config.run_name())
    check_settings(config)
    check_processes(config.trainer)
    device_of(config.trainer.accelerator, "trainer.accelerator")
    check_target(config)
    if message := unused_gates(config):
        console.print(message, highlight=False, soft_wrap=True)
    keep_large_blocks()
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)
    with _lease(run) if first else nullcontext():
        _train(config, run, console, inputs or InputCache(), observers if first else ())
    gc.collect()  # trainer and callbacks hold each other, and the model with them
    release_free_blocks()
    return run


@contextmanager
def _lease(run: Run) -> Iterator[None]:
    """Keep other processes off the run's folder during the block."""
    with lease(run.lease) as mine:
        if not mine:
            holder = holder_of(run.lease) or "another process"
            raise InputError(f"{run.folder}: {holder} trains in it; wait for its end, or give another --name")
        run.recover()
        yield


def _train(
    config: TrainConfig, run: Run, console: Console, inputs: InputCache, observers: Sequence[Observer]
) -> None:
    config = with_settings_of_source(config)
    tasks = config.chosen()
    settings = plain(dataclasses.asdict(config))
    corpus = corpus_fingerprint(config.corpus, tuple(tasks))
    masks = _masks_fingerprint(config, tuple(tasks))
    # All processes of a run must decide alike. The first one may already have replaced the folder: the new
    # folder has no checkpoint to resume from.
    resumes = run.holds(settings, corpus, config.overwrite, masks)
    if resumes and run.status()["state"] == "finished":
        console.print(f"{run.folder} is finished already; give another --name to train again", soft_wrap=True)
        _remove_leftovers(run)
        return
    trained = resumes and run.status().get("trained", False)
    if trained and not is_first_process():
        return
    refuse_shared(config.corpus, tuple(tasks))
    splits = {split: inputs.split(config.corpus, tuple(tasks), split) for split in ("train", "dev", "test")}
    longest = config.batch.max_words
    for split in ("dev", "test"):
        require_limit(splits[split], longest, split)
    message = describe_long(splits["train"], longest)
    if message is not None:
        console.print(f"train: {message}: left out", highlight=False, soft_wrap=True)
    splits["train"] = within_limit(splits["train"], longest)
    if Translate.name in tasks:
        for split, sentences in splits.items():
            if message := describe_empty(sentences):
                what = "left out" if split == "train" else "scored as they are"
                console.print(f"{split}: {message}: {what}", highlight=False, soft_wrap=True)
        splits["train"] = [sentence for sentence in splits["train"] if not is_empty(sentence)]
    for split in ("train", "dev"):
        require_layers(splits[split], tasks, split)
    for line in notes_on(Look(splits, tasks)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    training = None if trained else assemble(config, run, splits, console, inputs, observers)
    if training is not None and resumes and run.resume_checkpoint.exists():
        check_checkpoint(run.resume_checkpoint, training.module)
    trainer = trainer_for(config, []) if training is None else training.trainer
    device = trainer.strategy.root_device  # read now: after training Lightning moves the model to the CPU
    if is_first_process() and not resumes:
        aside = run.put_aside()
        if aside is not None:
            console.print(
                f"{run.folder}: the run that was there is in {aside} until this one has finished",
                highlight=False,
                soft_wrap=True,
            )
        run.create(settings)
    with _outcome_noted(run, observers):
        if is_first_process():
            run.add_start({"device": device_name(device), **_provenance(config, corpus, masks)})
        for observer in observers:
            observer.on_run_start(config, run)
        if training is not None:
            _fit(training, run, console, resumes)
        if is_first_process():
            _score(run, tasks, splits, device, observers)


def _masks_fingerprint(config: TrainConfig, tasks: Sequence[str]) -> str | None:
    """The fingerprint of the masks that the run is given; `None` if it is given none."""
    if config.pruning != "fixed":
        return None
    return masks_fingerprint(check_masks(Path(str(config.gates.masks)), config.gates.scope, tasks))


def _fit(training: TrainingParts, run: Run, console: Console, resumes: bool) -> None:
    """Train to the end, with `resumes` from the run's checkpoint if it has one."""
    trainer, module = training.trainer, training.module
    # Not the checkpoint of a run that another process is about to replace.
    resumes = resumes and run.resume_checkpoint.exists()
    console.print(
        f"{run.folder}: {'resuming' if resumes else 'training'} {', '.join(module.names)} on "
        f"{counted(len(training.data.corpus), 'sentence')}, {counted(trainer.max_epochs or 0, 'epoch')}, "
        f"{counted(module.updates, 'update')}, "
        f"{device_name(trainer.strategy.root_device)}, {trainer.precision}",
        highlight=False,
        soft_wrap=True,
    )
    if is_first_process():
        run.update_status({"first_step": round(time.time(), 2)})
    checkpoint = str(run.resume_checkpoint) if resumes else None
    try:
        with quiet_lightning():
            # Tensors, numbers and text only: a checkpoint from elsewhere runs no code.
            trainer.fit(module, datamodule=training.data, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as error:  # how Lightning ends after KeyboardInterrupt
        raise KeyboardInterrupt from error
    if trainer.world_size > 1:
        torch.distributed.destroy_process_group()  # one process does the rest
    if is_first_process():
        run.update_status({"trained": True, "training_seconds": round(training.evaluation.seconds, 1)})


def _score(
    run: Run,
    tasks: Mapping[str, Task],
    splits: Mapping[str, Sequence[Sentence]],
    device: torch.device,
    observers: Sequence[Observer],
) -> None:
    """Score the kept model on dev and test, in float32, and finish the run."""
    if not (run.folder / "metrics.json").exists():
        model = JointModel.from_pretrained(run.model).to(device)
        metrics: dict[str, Scores] = {}
        for split in ("dev", "test"):
            if any(annotated(sentence, tasks) for sentence in splits[split]):
                corpus = examples(splits[split], model.encoder.tokenizer, model.tasks, model.labels)
                metrics[split] = evaluate(model, batches(corpus, model))
        run.write_metrics(metrics | signatures_of(model.tasks))
    run.update_status({"state": "finished", "finished": _now()})
    _remove_leftovers(run)
    for observer in observers:
        observer.on_final_scores(run.metrics())


def _remove_leftovers(run: Run) -> None:
    """Remove what a finished run does not need: its checkpoint and the runs that it replaces.

    A checkpoint is three times as large as the model.
    """
    if is_first_process():
        shutil.rmtree(run.resume_checkpoint.parent, ignore_errors=True)
        run.remove_replaced()


@contextmanager
def _outcome_noted(run: Run, observers: Sequence[Observer]) -> Iterator[None]:
    """Note in the run's status if the block fails or is interrupted, and tell the observers."""
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if is_first_process():
            message = f"{type(error).__name__}: {error}"
            run.update_status(
                {"state": "interrupted"} if interrupted else {"state": "failed", "error": message}
            )
        for observer in observers:
            observer.on_run_failure()
        raise


def _provenance(config: TrainConfig, corpus: str, masks: str | None) -> dict[str, Any]:
    """What a result depends on besides the configuration, and the process that made it."""
    return {
        "seed": config.seed,
        "started": _now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "versions": versions(),
        "git": git_revision(),
        "corpus_fingerprint": corpus,
    } | ({} if masks is None else {"masks_fingerprint": masks})


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
