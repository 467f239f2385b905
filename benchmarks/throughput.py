"""Speed of training, evaluation and decoding against the bare encoder, in one run and one thread.

python -m benchmarks.throughput [--corpus DIR] [--config FILE] [--run DIR] [--sentences N] [--rounds N]

The tasks are those of a configuration (such as configs/joint10.yaml on EWT-10), by default the five on words.
With --run nothing is trained: a run's model is evaluated, and annotates sentences one by one and in batches.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.precision.precision import _PRECISION_INPUT
from rich.console import Console
from rich.table import Table

from mtl.config.parse import configured
from mtl.config.schema import BatchConfig, TrainConfig
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.toy.corpus import toy_corpus
from mtl.models.allocator import keep_large_blocks
from mtl.models.batches import Batch, BatchIndices, BatchLoader, Example, examples
from mtl.models.device import Precision, has_fast_bfloat16, prepare
from mtl.models.encoder import Encoder
from mtl.models.evaluate import batches, evaluate
from mtl.models.joint import JointModel
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task
from mtl.training.balancers import Uniform
from mtl.training.epoch_batches import EpochBatches
from mtl.training.step import JointTraining


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
    torch.set_num_threads(1)
    keep_large_blocks()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    pl.seed_everything(1, verbose=False)
    sentences = load(arguments.corpus, arguments.sentences)
    if arguments.run is not None:
        trained_model(arguments.run, sentences, arguments.rounds)
        return
    files = [] if arguments.config is None else [str(arguments.config)]
    every = configured("mtl train", TrainConfig, files).chosen()
    plans = {"joint, aligned": (every, "aligned")}
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
    steps = EpochBatches(plan_config(arguments.batch, "aligned"), 1, corpus, tuple(every))(0)
    untasked = [BatchIndices(step.indices, ()) for step in steps]
    bare = list(BatchLoader(corpus, model.encoder.tokenizer, {}, untasked))
    alone, optimizer = bare_encoder()
    jobs["bare encoder, training"] = lambda: processor_seconds(lambda: encoder_step(alone, bare, optimizer))
    jobs["bare encoder, forward"] = lambda: processor_seconds(lambda: encoder_pass(alone, bare_evaluation))
    bare_evaluation = list(batches(corpus, model))
    for name, (tasks, mode) in plans.items():
        trained, annotated = model_of(tasks)
        own_steps = EpochBatches(plan_config(arguments.batch, mode), 1, annotated, tuple(tasks))(0)
        jobs[f"training {name}"] = lambda m=trained, c=annotated, s=own_steps: training_seconds(m, c, s)
        counts[f"training {name}"] = sum(len(step.indices) * len(step.tasks) for step in own_steps)
    jobs["evaluation, all tasks"] = lambda: processor_seconds(lambda: evaluate(model, batches(corpus, model)))
    counts["evaluation, all tasks"] = len(corpus) * len(every)
    for name in every:
        single, annotated = model_of({name: every[name]})
        jobs[f"evaluation {name}"] = lambda m=single, c=annotated: processor_seconds(
            lambda: evaluate(m, batches(c, m))
        )

    for job in jobs.values():
        job()  # compile, warm up
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(arguments.rounds):  # in turn, so that other work on the machine disturbs all alike
        for name, job in jobs.items():
            times[name].append(job())
    show(times, counts, len(corpus), sum(example.length for example in corpus))


def bare_encoder() -> tuple[Encoder, torch.optim.Optimizer]:
    """The encoder with torch's fused AdamW over all of its parameters, as decoders would train it."""
    encoder = Encoder.from_pretrained("minilm")
    return encoder, torch.optim.AdamW(encoder.parameters(), lr=5e-5, fused=True)


def trained_model(run: Path, sentences: list[Sentence], rounds: int) -> None:
    """Print what evaluation costs beside the forward pass, and single sentences beside a batch of them."""
    precisions: list[Precision] = ["32-true", "bf16-true"] if has_fast_bfloat16() else ["32-true"]
    for precision in precisions:
        model = prepare(JointModel.from_pretrained(run), "cpu", precision)
        corpus = examples(sentences, model.encoder.tokenizer, model.tasks, model.labels)
        bare = list(batches(corpus, model))
        in_turn(
            f"evaluation of {len(model.tasks)} tasks over the forward pass, {precision}",
            lambda m=model, c=corpus: evaluate(m, batches(c, m)),
            lambda m=model, b=bare: encoder_pass(m.encoder, b),
            rounds,
        )
    model = JointModel.from_pretrained(run)
    words = [word for sentence in sentences for word in sentence.words]
    for length in (10, 20, 40, 80, 160):
        texts = [words[start : start + length] for start in range(0, min(len(words), 320), length)]
        in_turn(
            f"annotate, {length} words, one by one over a batch of {len(texts)}",
            lambda given=texts: [model.annotate([text]) for text in given],
            lambda given=texts: model.annotate(given, batch_tokens=2**20),
            rounds,
        )


def in_turn(title: str, job: Callable[[], object], beside: Callable[[], object], rounds: int) -> None:
    """Print a job's time over that of another, in turns after one that is not timed."""
    pairs = [(processor_seconds(job), processor_seconds(beside)) for _ in range(rounds + 1)][1:]
    ratios = [one / other for one, other in pairs]
    seconds = statistics.median(one for one, _ in pairs)
    print(
        f"{title}: {seconds:.3f} s, ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


def load(folder: Path, number: int) -> list[Sentence]:
    """The first sentences annotated in all five layers, of EWT-5 where it is, else generated ones."""
    path = folder / "dev.jsonl"
    sentences = read_jsonl(path) if path.exists() else toy_corpus(number, 1)
    print(f"corpus: {path if path.exists() else 'generated'}")
    return [
        sentence
        for sentence in sentences
        if sentence.frames is not None and sentence.entities is not None and sentence.tree is not None
    ][:number]


def plan_config(sentences: int, mode: str) -> BatchConfig:
    """Batches of at most this number of sentences."""
    return BatchConfig(mode="aligned" if mode == "aligned" else "separate", sentences=sentences)


def processor_seconds(job: Callable[[], object]) -> float:
    """The processor time of one call, on which other processes have less influence than on the clock."""
    start = time.process_time()
    job()
    return time.process_time() - start


def encoder_step(encoder: Encoder, loader: Sequence[Batch], optimizer: torch.optim.Optimizer) -> None:
    """Forward, backward and the optimizer's step for the encoder alone.

    The gradient of a plain sum would be zero but for rounding after the last layer norm, and its denormal
    numbers would make the encoder look twice as slow as it is.
    """
    encoder.train()
    direction = torch.randn(encoder.hidden)
    for batch in loader:
        (encoder(batch.subwords) @ direction).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.inference_mode()
def encoder_pass(encoder: Encoder, loader: Sequence[Batch]) -> None:
    """Forward through the encoder alone."""
    encoder.eval()
    for batch in loader:
        encoder(batch.subwords)


class Clock(pl.Callback):
    """Times an epoch from the end of its first step, in which the optimizer makes its state."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: object, batch: object, index: int
    ) -> None:
        if index == 0:
            self._start = time.process_time()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seconds = time.process_time() - self._start


def training_seconds(
    model: JointModel,
    corpus: Sequence[Example],
    steps: list[BatchIndices],
    precision: _PRECISION_INPUT = "32-true",
) -> float:
    """An epoch as `mtl train` does it: batching, forward, backward, clipping, update.

    The first step is made twice, and timed once.
    """
    clock = Clock()
    model.train()
    module = JointTraining(model, Uniform(), updates=1000)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, callbacks=[clock], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, precision=precision,
    )  # fmt: skip
    trainer.fit(module, BatchLoader(corpus, model.encoder.tokenizer, model.tasks, [steps[0], *steps]))
    return clock.seconds


def show(times: dict[str, list[float]], counts: dict[str, int], sentences: int, subwords: int) -> None:
    """Print medians, rates and ratios."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    table = Table(title=f"{sentences} sentences, one thread, median of {len(next(iter(times.values())))}")
    for column in (
        "job",
        "seconds",
        "sentences/s",
        "subwords/s",
        "task-sentences/s",
        "ratio to bare encoder",
    ):
        table.add_column(column, justify="left" if column == "job" else "right")
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
