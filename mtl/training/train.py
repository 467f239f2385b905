"""One training run, from its configuration to its folder; what its result depends on."""

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

import pytorch_lightning as pl
import torch
from rich.console import Console

from mtl.config.effective import plain, unused_keys
from mtl.config.parse import configuration_from
from mtl.config.schema import SPLITS, GatesConfig, TrainConfig
from mtl.corpora.load import corpus_fingerprint, corpus_fingerprints
from mtl.errors import InputError, RunError
from mtl.files import check_folder_place, fingerprint
from mtl.heads.gate_file import masks_fingerprint
from mtl.models.batches import annotated_tasks, examples
from mtl.models.evaluate import Scores, evaluate_sentences, signatures_of
from mtl.models.found import encoder_files
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.mask_file import check_masks
from mtl.models.opened import device_name, device_of
from mtl.models.passes import keep_large_blocks, release_free_blocks
from mtl.runs.compare.settings import recorded_origins
from mtl.runs.folder import run_tables
from mtl.runs.folder.run import Run, git_revision, holds, versions
from mtl.tasks.in_words import counted
from mtl.tasks.task import Task
from mtl.training.assembly import (
    TrainingParts,
    assemble,
    check_machine,
    load_start,
    quiet_lightning,
    with_settings_of_source,
)
from mtl.training.check import check_settings, check_target, said_of_unused
from mtl.training.checkpoint import check_checkpoint
from mtl.training.data import Splits, read_splits
from mtl.training.evaluation import Observer, keep_average
from mtl.training.ranks import failures, is_first_process, note_failure, own_rank
from mtl.training.run_log import PLAIN, RunLog, run_log
from mtl.workers.launch import PARENT, ProcessPlace, clean_environment
from mtl.workers.lease import holder_of, lease


def train(
    config: TrainConfig,
    *,
    console: Console | None = None,
    inputs: InputCache | None = None,
    observers: Sequence[Observer] = (),
) -> Run:
    """Train, or resume training, and return the run.

    On Ctrl-C or SIGTERM the state is saved and `KeyboardInterrupt` raised; the same call then resumes. Raises
    `InputError` for errors that the user can fix.

    Args:
        config: All settings.
        console: Where progress is printed; default: standard output, from the first process only.
        inputs: Corpora and encoders that several runs of one process share; default: nothing is shared.
        observers: Watch the run from its first process; see `Observer`.
    """
    if not isinstance(config, TrainConfig):
        raise InputError(f"config is a {type(config).__name__}: use mtl.TrainConfig(...)")
    config = configuration_from(TrainConfig, plain(dataclasses.asdict(config)))  # which checks every value
    with clean_environment(config.trainer.devices, config.trainer.num_nodes) as place:
        console = console or Console(quiet=not place.is_first)
        with run_log(console) as log:
            config = config.with_rates()
            run = Run(Path(config.runs) / config.run_name())
            check_settings(config)
            device = check_machine(config.trainer)
            captures = config.trainer.cuda_graphs and "trainer.cuda_graphs" not in unused_keys(config)
            if captures and device.type != "cuda":
                raise InputError(
                    "trainer.cuda_graphs=true, and the run trains on the CPU: use false, or a GPU"
                )
            check_target(config)
            source = None if config.init_from is None else Path(config.init_from).resolve()
            if source in (run.folder.resolve(), run.model.resolve()):
                raise InputError(f"{run.folder} cannot start from itself (--from): use another --name")
            for line in said_of_unused(config):
                console.print(line, **PLAIN)
            config = config.without_other_tasks()
            check_folder_place(run.folder)
            _require_parent(place, run)
            keep_large_blocks()
            with _threads(config.trainer.threads), _lease(run) if place.is_first else nullcontext():
                watching = observers if place.is_first else ()
                _train(config, run, console, log, inputs or InputCache(), watching)
    gc.collect()  # trainer and callbacks hold each other, and the model with them
    release_free_blocks()
    return run


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Have torch use this many threads during the block; `None` leaves their number as it is."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _lease(run: Run) -> Iterator[None]:
    """Hold the lease on the run's folder during the block; raises `InputError` if another process has it."""
    with lease(run.lease) as mine:
        if not mine:
            holder = holder_of(run.lease) or "another process"
            raise InputError(
                f"{run.folder}: {holder} is training in it; wait until it has ended, or use another --name"
            )
        run.recover()
        yield


def _require_parent(place: ProcessPlace, run: Run) -> None:
    """Raise `InputError` if the environment names a process that started this one but does not train the run.

    This is checked on the first machine only: the first process of another one holds no lease.
    """
    if place.started_by == "mtl" and place.machine == 0:
        holder = holder_of(run.lease)
        if holder is None or holder.pid != os.getppid():
            raise InputError(
                f"{PARENT} says that process {os.getppid()} started this one as one of several, and that "
                f"process does not train {run.folder}: unset {PARENT}, which only mtl sets"
            )


def _train(
    config: TrainConfig,
    run: Run,
    console: Console,
    log: RunLog,
    inputs: InputCache,
    observers: Sequence[Observer],
) -> None:
    config = with_settings_of_source(config)
    tasks = config.chosen()
    settings = plain(dataclasses.asdict(config))
    corpus = corpus_fingerprint(config.corpus, tasks)
    masks = _masks_fingerprint(config.gates, tuple(tasks)) if config.pruning == "fixed" else None
    encoder = _encoder_fingerprint(config.encoder.name)
    # All processes of a run must decide alike. The first one may already have replaced the folder: the new
    # folder has no checkpoint to resume from.
    resumes = holds(run, settings, corpus, config.overwrite, masks, encoder)
    if resumes and run.status()["state"] == "finished":
        console.print(f"{run.folder} is finished already; use another --name to train again", **PLAIN)
        _remove_leftovers(run)
        return
    trained = resumes and run.status().get("trained", False)
    if trained and not is_first_process():
        return
    start, training, checkpoint = None, None, None
    if not trained:  # before any corpus is read, so that a model that does not fit is refused at once
        pl.seed_everything(config.seed, verbose=False)
        start = load_start(config, tasks, inputs, console)
    splits = read_splits(config, tasks, corpus, inputs, console)
    device = device_of(config.trainer.accelerator)
    if start is not None:
        training = assemble(config, run, splits, console, inputs, observers, start)
        device = training.trainer.strategy.root_device  # after training Lightning moves the model to the CPU
        if resumes and run.resume_checkpoint.exists():
            checkpoint = run.resume_checkpoint
            check_checkpoint(checkpoint, training.module)
    if is_first_process():
        if not resumes:
            aside = run.put_aside()
            if aside is not None:
                console.print(
                    f"{run.folder}: the run that was there is in {aside} until this one has finished", **PLAIN
                )
            run.create(settings)
        log.keep_in(run.folder)
    with _outcome_noted(run, observers):
        if is_first_process():
            depends_on = run_dependencies(config, corpus, masks, encoder) | first_recorded(run)
            run.add_start({"device": device_name(device), **depends_on})
        for observer in observers:
            observer.on_run_start(config, run)
        if training is not None:
            _fit(training, run, console, checkpoint, config.keep == "average")
        if is_first_process():
            _score(run, tasks, splits, device, observers)


def _fit(training: TrainingParts, run: Run, console: Console, checkpoint: Path | None, average: bool) -> None:
    """Train to the end, from the run's checkpoint if there is one; with `average`, average models."""
    trainer, module = training.trainer, training.module
    console.print(
        f"{run.folder}: {'training' if checkpoint is None else 'resuming'} {', '.join(module.names)} on "
        f"{counted(len(training.data.corpus), 'sentence')}, {counted(trainer.max_epochs or 0, 'epoch')}, "
        f"{counted(module.updates, 'update')}, "
        f"{device_name(trainer.strategy.root_device)}, {trainer.precision}",
        **PLAIN,
    )
    if is_first_process():
        run.update_status({"first_step": round(time.time(), 2)})
    try:
        with quiet_lightning():
            # Tensors, numbers and text only: a checkpoint from elsewhere runs no code.
            trainer.fit(module, datamodule=training.data, ckpt_path=checkpoint, weights_only=True)
        for graphs in module.graphs:
            console.print(graphs.described(), **PLAIN)
    except SystemExit as error:  # how Lightning ends after KeyboardInterrupt
        _leave_group()
        raise KeyboardInterrupt from error
    except RunError as error:
        if not is_first_process():
            raise SystemExit(1) from error  # the first process says why
        raise RunError(f"{run.folder}: {error}; {_kept(run)}") from error
    _leave_group()  # one process does the rest
    if is_first_process():
        if average:
            keep_average(run)
        run.update_status({"trained": True, "training_seconds": round(training.evaluation.seconds, 1)})


def _leave_group() -> None:
    """Leave the process group of the run, if the run has several processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _kept(run: Run) -> str:
    """What is left of the work of a run that failed, in words."""
    if not run.resume_checkpoint.exists():
        return "no state was saved before"
    progress = torch.load(run.resume_checkpoint, map_location="cpu", mmap=True, weights_only=True)
    return f"the last good state, of update {progress['global_step']:,}, is in {run.resume_checkpoint}"


def _score(
    run: Run,
    tasks: Mapping[str, Task],
    splits: Splits,
    device: torch.device,
    observers: Sequence[Observer],
) -> None:
    """Score the kept model on dev and test, in float32, and finish the run."""
    if not (run.folder / "metrics.json").exists():
        model = JointModel.from_pretrained(run.model).to(device)
        metrics: dict[str, Scores] = {}
        for split, sentences in {"dev": splits.dev, "test": splits.test}.items():
            if any(annotated_tasks(sentence, tasks) for sentence in sentences):
                corpus = examples(sentences, model.encoder.tokenizer, model.tasks, model.labels)
                metrics[split], counts = evaluate_sentences(model, corpus)
                run_tables.write_counts(run, split, counts)
        run.write_metrics(metrics | signatures_of(model.tasks))
    for observer in observers:  # before the run is finished: a finished run is not taken up again
        observer.on_final_scores(run.metrics())
    sizes = {split: len(getattr(splits, split)) for split in SPLITS}
    run.finish({"state": "finished", "finished": now(), "sentences": sizes})
    _remove_leftovers(run)


def _remove_leftovers(run: Run) -> None:
    """Remove what a finished run does not need: its checkpoint, notes on failures, and the runs it replaced.

    A checkpoint is three times as large as the model.
    """
    if is_first_process():
        shutil.rmtree(run.resume_checkpoint.parent, ignore_errors=True)
        for note in failures(run):
            note.unlink(missing_ok=True)
        run.remove_replaced()


@contextmanager
def _outcome_noted(run: Run, observers: Sequence[Observer]) -> Iterator[None]:
    """If the block fails or is interrupted, note it in the run's status and tell the observers."""
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if is_first_process():
            message = f"{type(error).__name__}: {error}"
            run.update_status(
                {"state": "interrupted"} if interrupted else {"state": "failed", "error": message}
            )
        elif not interrupted and isinstance(error, Exception) and not failures(run):
            note_failure(run, own_rank(), error)
        for observer in observers:
            observer.on_run_failure()
        raise


def run_dependencies(
    config: TrainConfig, corpus: str, masks: str | None, encoder: str | None
) -> dict[str, Any]:
    """What a result depends on besides the configuration, and the process that made it.

    `corpus`, `masks` and `encoder` are fingerprints; the last two are `None` where the run has no such files.
    """
    where_known = {
        "heads_kept": None if config.init_from is None else _heads_kept(Path(config.init_from)),
        "masks_fingerprint": masks,
        "encoder_fingerprint": encoder,
    }
    return {
        "seed": config.seed,
        "started": now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "versions": versions(),
        "git": git_revision(),
        "corpus_fingerprint": corpus,
        "corpus_fingerprints": corpus_fingerprints(config.corpus, config.chosen()),
        "origins": recorded_origins(plain(dataclasses.asdict(config))),
    } | {key: value for key, value in where_known.items() if value is not None}


def first_recorded(run: Run) -> dict[str, Any]:
    """What the run recorded of other runs when it first started; they may be gone when it is resumed."""
    return {key: value for key, value in run.status().items() if key in ("origins", "heads_kept")}


def _masks_fingerprint(gates: GatesConfig, tasks: Sequence[str]) -> str:
    """The fingerprint of the masks that a run with fixed masks is given."""
    return masks_fingerprint(check_masks(Path(str(gates.masks)), gates.scope, tasks))


def _encoder_fingerprint(name: str) -> str | None:
    """The fingerprint of a local encoder's files; `None` for others, whose name says what they are."""
    paths = encoder_files(name)
    return fingerprint(paths) if paths else None


def now() -> str:
    """The time in UTC, as records have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _heads_kept(source: Path) -> int | None:
    """How many heads the run to start from has, if it was cut."""
    run = Run.of_model(source) or Run(source)
    return run.status().get("heads_kept") if (run.folder / "status.json").is_file() else None
