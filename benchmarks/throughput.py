"""The speed of training and evaluation against the bare encoder, in one process with one thread.

python -m benchmarks.throughput [--corpus DIR] [--config FILE] [--run DIR] [--sentences N] [--rounds N]

The tasks are those of a configuration (such as configs/joint10.yaml on EWT-10), by default the five on words.
With --run, nothing is trained: a run's model is evaluated, and annotates sentences one by one and in batches.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pytorch_lightning as pl
import torch
from rich.console import Console
from rich.table import Table

from mtl.config.parse import configured
from mtl.config.schema import BatchConfig, TrainConfig
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.toy.corpus import toy_corpus
from mtl.models.batches import Batch, BatchIndices, BatchLoader, Example, examples
from mtl.models.encoder import Encoder
from mtl.models.evaluate import batches, evaluate_model
from mtl.models.joint import JointModel
from mtl.models.opened import Precision, has_fast_bfloat16, prepare
from mtl.models.pass_graphs import PassGraphs
from mtl.models.passes import keep_large_blocks
from mtl.tasks.recursions import RecursionGraphs
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task
from mtl.training.assembly import RoundedProducts
from mtl.training.balancers import Uniform
from mtl.training.data import EpochBatches
from mtl.training.step import JointTraining

K = TypeVar("K")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("data/ewt5"))
    parser.add_argument("--config", type=Path, help="configuration whose tasks are timed")
    parser.add_argument("--run", type=Path, help="folder of a run whose evaluation is timed")
    parser.add_argument("--sentences", type=int, default=160)
    parser.add_argument("--batch", type=int, default=16, help="sentences in a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--separate", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    one_quiet_thread()
    sentences = load(arguments.corpus, arguments.sentences)
    if arguments.run is not None:
        trained_model(arguments.run, sentences, arguments.rounds)
        return
    files = [] if arguments.config is None else [str(arguments.config)]
    every = configured("mtl train", TrainConfig, files).chosen()
    plans: dict[str, tuple[dict[str, Task], Literal["aligned", "separate"]]] = {
        "joint, aligned": (every, "aligned")
    }
    if arguments.separate:
        plans["joint, separate"] = (every, "separate")
    plans |= {f"{name} alone": ({name: task}, "aligned") for name, task in every.items()}

    def model_of(tasks: dict[str, Task]) -> tuple[JointModel, list[Example]]:
        labels = {name: task.labels(sentences) for name, task in tasks.items()}
        model = JointModel(Encoder.from_pretrained("minilm"), tasks, labels)
        return model, examples(sentences, model.encoder.tokenizer, model.tasks, labels)

    jobs: dict[str, Callable[[], float]] = {}
    counts: dict[str, int] = {}
    model, corpus = model_of(every)
    plan = BatchConfig(mode="aligned", sentences=arguments.batch)
    steps = EpochBatches(plan, 1, corpus, tuple(every))(0)
    untasked = [BatchIndices(step.indices, ()) for step in steps]
    bare = list(BatchLoader(corpus, model.encoder.tokenizer, {}, untasked))
    alone, optimizer = bare_encoder()
    jobs["bare encoder, training"] = lambda: processor_seconds(lambda: encoder_step(alone, bare, optimizer))
    jobs["bare encoder, forward"] = lambda: processor_seconds(lambda: encoder_pass(alone, bare_evaluation))
    bare_evaluation = list(batches(corpus, model))
    for name, (tasks, mode) in plans.items():
        trained, annotated = model_of(tasks)
        plan = BatchConfig(mode=mode, sentences=arguments.batch)
        own_steps = EpochBatches(plan, 1, annotated, tuple(tasks))(0)
        jobs[f"training {name}"] = lambda m=trained, c=annotated, s=own_steps: training_seconds(m, c, s)
        counts[f"training {name}"] = sum(len(step.indices) * len(step.tasks) for step in own_steps)
    jobs["evaluation, all tasks"] = lambda: processor_seconds(
        lambda: evaluate_model(model, batches(corpus, model))
    )
    counts["evaluation, all tasks"] = len(corpus) * len(every)
    for name in every:
        single, annotated = model_of({name: every[name]})
        jobs[f"evaluation {name}"] = lambda m=single, c=annotated: processor_seconds(
            lambda: evaluate_model(m, batches(c, m))
        )

    times = in_turn(jobs, arguments.rounds)
    show(times, counts, len(corpus), sum(example.length for example in corpus))


def one_quiet_thread() -> None:
    """Compute with one thread and a fixed seed, keep large blocks of memory, and silence the libraries."""
    torch.set_num_threads(1)
    keep_large_blocks()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    pl.seed_everything(1, verbose=False)


def bare_encoder() -> tuple[Encoder, torch.optim.Optimizer]:
    """The encoder, and torch's fused AdamW for all of its parameters, as decoders would train it."""
    encoder = Encoder.from_pretrained("minilm")
    return encoder, torch.optim.AdamW(encoder.parameters(), lr=5e-5, fused=True)


def trained_model(run: Path, sentences: list[Sentence], rounds: int) -> None:
    """Print the time of evaluation over the forward pass, and of single sentences over a batch of them."""
    precisions: list[Precision] = ["32-true", "bf16-true"] if has_fast_bfloat16() else ["32-true"]
    for precision in precisions:
        model = prepare(JointModel.from_pretrained(run), "cpu", precision)
        corpus = examples(sentences, model.encoder.tokenizer, model.tasks, model.labels)
        bare = list(batches(corpus, model))
        print_ratio(
            f"evaluation of {len(model.tasks)} tasks over the forward pass, {precision}",
            lambda m=model, c=corpus: evaluate_model(m, batches(c, m)),
            lambda m=model, b=bare: encoder_pass(m.encoder, b),
            rounds,
        )
    model = JointModel.from_pretrained(run)
    words = [word for sentence in sentences for word in sentence.words]
    for length in (10, 20, 40, 80, 160):
        texts = [words[start : start + length] for start in range(0, min(len(words), 320), length)]
        print_ratio(
            f"annotate, {length} words, one by one over a batch of {len(texts)}",
            lambda given=texts: [model.annotate([text]) for text in given],
            lambda given=texts: model.annotate(given, batch_tokens=2**20),
            rounds,
        )


def in_turn(jobs: Mapping[K, Callable[[], float]], rounds: int) -> dict[K, list[float]]:
    """What each job returns in each round, after a round that compiles and warms up.

    The jobs take turns, so that other work on the machine disturbs all of them alike.
    """
    turns = [{name: job() for name, job in jobs.items()} for _ in range(rounds + 1)]
    return {name: [turn[name] for turn in turns[1:]] for name in jobs}


def print_ratio(title: str, job: Callable[[], object], beside: Callable[[], object], rounds: int) -> None:
    """Print the processor time of a job, and its ratio to that of another job."""
    jobs = {name: lambda made=made: processor_seconds(made) for name, made in ((0, job), (1, beside))}
    times = in_turn(jobs, rounds)
    ratios = [one / other for one, other in zip(*times.values(), strict=True)]
    seconds = statistics.median(times[0])
    print(
        f"{title}: {seconds:.3f} s, ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


def load(folder: Path, number: int) -> list[Sentence]:
    """The first sentences in dev.jsonl that have all five layers; without such a file, generated ones."""
    path = folder / "dev.jsonl"
    sentences = read_jsonl(path) if path.exists() else toy_corpus(number, 1)
    print(f"corpus: {path if path.exists() else 'generated'}")
    return [
        sentence
        for sentence in sentences
        if sentence.frames is not None and sentence.entities is not None and sentence.tree is not None
    ][:number]


def processor_seconds(job: Callable[[], object]) -> float:
    """The processor time of a call, which other processes influence less than the time on the clock."""
    start = time.process_time()
    job()
    return time.process_time() - start


def encoder_step(encoder: Encoder, loader: Sequence[Batch], optimizer: torch.optim.Optimizer) -> None:
    """Forward, backward and the optimizer's step for the encoder alone.

    The loss is not a plain sum: after the last layer norm, the gradient of a sum is only rounding, and its
    denormal numbers would make the encoder look twice as slow as it is.
    """
    encoder.train()
    direction = torch.randn(encoder.hidden)
    for batch in loader:
        (encoder(batch.subwords) @ direction).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.inference_mode()
def encoder_pass(encoder: Encoder, loader: Sequence[Batch]) -> None:
    """Forward passes through the encoder alone."""
    encoder.eval()
    for batch in loader:
        encoder(batch.subwords)


class Clock(pl.Callback):
    """Times an epoch from the end of its first steps, in which the optimizer makes its state."""

    def __init__(self, first: int, now: Callable[[], float]) -> None:
        self.first, self.now = first, now
        self.seconds = self._start = 0.0

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: object, batch: object, index: int
    ) -> None:
        if index == self.first - 1:
            self._start = self.now()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seconds = self.now() - self._start


def training_seconds(
    model: JointModel,
    corpus: Sequence[Example],
    steps: list[BatchIndices],
    precision: Any = "32-true",
    *,
    first: int = 1,
    now: Callable[[], float] = time.process_time,
    accelerator: str = "cpu",
    graphs: Sequence[RecursionGraphs | PassGraphs] = (),
) -> float:
    """The seconds, by `now`, of an epoch as in `mtl train`: batches, forward, backward, clipping, update.

    `precision` is a value of `trainer.precision`; `graphs` are those of `trainer.cuda_graphs`. The `first`
    steps are made twice, and timed once.
    """
    warming = steps[:first]
    clock = Clock(len(warming), now)
    model.train()
    own = [RoundedProducts(precision, accelerator == "gpu")] if precision in ("tf32", "bf16-master") else None
    trainer = pl.Trainer(
        accelerator=accelerator, devices=1, max_epochs=1, logger=False, callbacks=[clock],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        precision=None if own else precision, plugins=own,
    )  # fmt: skip
    plan = [*warming, *steps]
    loader = BatchLoader(corpus, model.encoder.tokenizer, model.tasks, plan, rounded=bool(graphs))
    rounded = precision == "bf16-master"
    trainer.fit(JointTraining(model, Uniform(), updates=1000, rounded=rounded, graphs=graphs), loader)
    return clock.seconds


def table_of(title: str, names: str, *numbers: str) -> Table:
    """A table with a column of names, and columns of numbers."""
    table = Table(names, title=title)
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def show(times: dict[str, list[float]], counts: dict[str, int], sentences: int, subwords: int) -> None:
    """Print medians, rates and ratios."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    table = table_of(
        f"{sentences} sentences, one thread, median of {len(next(iter(times.values())))}", "job", "seconds",
        "sentences/s", "subwords/s", "task-sentences/s", "ratio to bare encoder",
    )  # fmt: skip
    for name, value in medians.items():
        reference = "bare encoder, forward" if "evaluation" in name else "bare encoder, training"
        passes = 1.0 if "separate" not in name else counts[name] / sentences
        table.add_row(
            name, f"{value:.2f}", f"{sentences / value:.0f}", f"{subwords / value:.0f}",
            f"{counts[name] / value:.0f}" if name in counts else "",
            f"{value / medians[reference]:.2f}" + (f" ({passes:.0f} passes)" if passes > 1 else ""),
        )  # fmt: skip
    Console(width=120).print(table)
    print(f"numpy {np.__version__}, torch {torch.__version__}, {torch.get_num_threads()} thread")


if __name__ == "__main__":
    main()
