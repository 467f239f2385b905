"""The cost of importance and ablation of all heads, beside training steps and plain evaluations.

python -m benchmarks.worth [--corpus DIR] [--sentences N] [--rounds N]

Measures use the batches that `mtl importance` and `mtl ablate` make of a corpus.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.throughput import load, one_quiet_thread, processor_seconds, table_of
from mtl.analysis.ablation import BATCH_TOKENS, Ablator, ablations
from mtl.analysis.importance import task_importance
from mtl.analysis.probe import BATCH_TOKENS as OBSERVED_TOKENS
from mtl.config.schema import BatchConfig, TrainConfig
from mtl.models.batches import Batch, BatchLoader, aligned_batches, examples
from mtl.models.encoder import Encoder
from mtl.models.evaluate import batches, evaluate_model
from mtl.models.joint import JointModel
from mtl.training.data import EpochBatches


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("data/ewt5"))
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    one_quiet_thread()
    sentences = load(arguments.corpus, arguments.sentences)
    every = TrainConfig().chosen()
    jobs: dict[str, Callable[[], float]] = {}
    for title, tasks in {"POS": {"pos": every["pos"]}, "five tasks": every}.items():
        labels = {name: task.labels(sentences) for name, task in tasks.items()}
        model = JointModel(Encoder.from_pretrained("minilm"), tasks, labels)
        corpus = examples(sentences, model.encoder.tokenizer, tasks, labels)
        plans = (
            EpochBatches(BatchConfig(mode="aligned", sentences=16), 1, corpus, tuple(tasks))(0),
            aligned_batches(corpus, tuple(tasks), OBSERVED_TOKENS, None, None),
            aligned_batches(corpus, tuple(tasks), BATCH_TOKENS["cpu"], None, None),
        )
        trained, measured, decoded = (
            list(BatchLoader(corpus, model.encoder.tokenizer, tasks, plan)) for plan in plans
        )
        ablate = Ablator(model, ablations("head", model.encoder.tap.remaining))
        jobs |= {
            f"training steps without update, {title}": _timed(lambda m=model, b=trained: _steps(m, b)),
            f"importance, {title}": _timed(lambda m=model, b=measured: task_importance(m, b)),
            f"plain evaluation, {title}": _timed(lambda m=model, c=corpus: evaluate_model(m, batches(c, m))),
            f"ablation of 72 heads, {title}": _timed(lambda a=ablate, b=decoded: [a(batch) for batch in b]),
        }
    operations = {}
    for name, job in jobs.items():
        with FlopCounterMode(display=False) as counter:
            job()  # warm up
        operations[name] = counter.get_total_flops()
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(arguments.rounds):  # in turn, so that other work on the machine disturbs all alike
        for name, job in jobs.items():
            times[name].append(job())
    medians = {name: statistics.median(values) for name, values in times.items()}
    _show(medians, operations, arguments.sentences)


def _timed(job: Callable[[], object]) -> Callable[[], float]:
    return lambda: processor_seconds(job)


def _steps(model: JointModel, loader: list[Batch]) -> None:
    """Forward and backward as in training: gradients of parameters, with dropout."""
    model.train()
    for batch in loader:
        torch.stack(list(model.losses(batch, model(batch)).values())).sum().backward()
        model.zero_grad()


def _show(seconds: Mapping[str, float], operations: Mapping[str, float], sentences: int) -> None:
    """Print medians, and ratios of times and of the operations of matrix products (without attention's)."""
    title = f"{sentences} sentences, one thread, processor time, median of rounds"
    table = table_of(title, "job", "seconds", "ratio", "ratio of operations")
    for name, value in seconds.items():
        job, _, title = name.partition(", ")
        ratios = ["", ""]
        if job == "importance":
            steps = f"training steps without update, {title}"
            ratios = [f"{of[name] / of[steps]:.2f} of the steps" for of in (seconds, operations)]
        elif job == "ablation of 72 heads":
            all_heads = f"plain evaluation, {title}"
            shares = [100 * of[name] / (72 * of[all_heads]) for of in (seconds, operations)]
            ratios = [f"{share:.0f} % of 72 evaluations" for share in shares]
        table.add_row(name, f"{value:.2f}", *ratios)
    Console(width=120).print(table)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread")


if __name__ == "__main__":
    main()
