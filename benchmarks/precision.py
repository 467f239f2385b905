"""How much faster bfloat16 is than float32 on this processor, in training and evaluation, with one thread.

python -m benchmarks.precision [--corpus DIR] [--sentences N] [--rounds N]

The precisions take turns, and times are processor times, so that other work on the machine disturbs both
alike.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.throughput import (
    bare_encoder,
    encoder_step,
    in_turn,
    load,
    one_quiet_thread,
    processor_seconds,
    table_of,
    training_seconds,
)
from mtl.config.schema import BatchConfig, TrainConfig
from mtl.models.batches import BatchIndices, BatchLoader, examples
from mtl.models.encoder import Encoder
from mtl.models.evaluate import batches, evaluate_model
from mtl.models.joint import JointModel
from mtl.models.opened import has_fast_bfloat16, prepare
from mtl.training.data import EpochBatches


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("data/ewt5"))
    parser.add_argument("--sentences", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if not has_fast_bfloat16():
        print("bfloat16: skipped, this processor has neither AMX nor AVX512-BF16")
        return
    one_quiet_thread()
    sentences = load(arguments.corpus, arguments.sentences)
    tasks = TrainConfig().chosen()
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(Encoder.from_pretrained("minilm"), tasks, labels)
    rounded = JointModel(Encoder.from_pretrained("minilm"), tasks, labels)
    prepare(rounded, "cpu", "bf16-true")
    corpus = examples(sentences, model.encoder.tokenizer, model.tasks, labels)
    steps = EpochBatches(BatchConfig(), 1, corpus, tuple(tasks))(0)
    untasked = [BatchIndices(step.indices, ()) for step in steps]
    bare = list(BatchLoader(corpus, model.encoder.tokenizer, {}, untasked))

    encoder, optimizer = bare_encoder()

    def encoder_training(mixed: bool) -> None:
        with torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext():
            encoder_step(encoder, bare, optimizer)

    jobs: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "joint training (32-true, bf16-mixed)": (
            lambda: training_seconds(model, corpus, steps),
            lambda: training_seconds(model, corpus, steps, "bf16-mixed"),
        ),
        "bare encoder, training (32-true, bf16-mixed)": (
            lambda: processor_seconds(lambda: encoder_training(False)),
            lambda: processor_seconds(lambda: encoder_training(True)),
        ),
        "evaluation (32-true, bf16-true)": (
            lambda: processor_seconds(lambda: evaluate_model(model, batches(corpus, model))),
            lambda: processor_seconds(lambda: evaluate_model(rounded, batches(corpus, rounded))),
        ),
    }
    in_both = {(name, place): job for name, pair in jobs.items() for place, job in enumerate(pair)}
    times = in_turn(in_both, arguments.rounds)
    title = f"{len(corpus)} sentences, one thread, medians of {arguments.rounds} rounds"
    table = table_of(title, "job", "float32 s", "bfloat16 s", "times as fast")
    for name in jobs:
        exact, fast = times[name, 0], times[name, 1]
        ratio = statistics.median(one / other for one, other in zip(exact, fast, strict=True))
        table.add_row(
            name, f"{statistics.median(exact):.2f}", f"{statistics.median(fast):.2f}", f"{ratio:.2f}"
        )
    Console(width=120).print(table)
    joint, alone, *_ = jobs
    for place, precision in enumerate(("float32", "bfloat16")):
        pairs = zip(times[joint, place], times[alone, place], strict=True)
        ratios = sorted(ours / theirs for ours, theirs in pairs)
        print(
            f"joint training in {precision}: {statistics.median(ratios):.2f} times the bare encoder "
            f"(forward, backward, AdamW; {ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
