"""Scores, sizes and times of a run in torch, and exported to ONNX in float32 and with 8-bit weights.

python -m benchmarks.exported --run RUN [--corpus DIR] [--split NAME] [--rounds N]

All annotate the same sentences with one thread, one by one and in batches, and take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import get_args

import torch
from rich.console import Console
from rich.table import Table

from mtl.config.schema import CorpusConfig
from mtl.corpora.load import load_split
from mtl.models.annotator import Annotator
from mtl.models.batches import examples
from mtl.models.evaluate import batches, evaluate_model
from mtl.models.joint import JointModel
from mtl.serving.onnx import Weights, export_onnx, load_exported
from mtl.tasks.sentence import Sentence


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--corpus", default="data/ewt5")
    parser.add_argument("--split", default="test")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = JointModel.from_pretrained(arguments.run)
    gold = load_split(CorpusConfig(arguments.corpus), run.tasks, arguments.split)
    models: dict[str, Annotator] = {"torch": run}
    sizes = {"torch": sum(value.nbytes for value in run.state_dict().values())}
    with tempfile.TemporaryDirectory() as folder:
        for weights in get_args(Weights):
            out = Path(folder) / weights
            export_onnx(run, out, weights=weights)
            models[f"ONNX {weights}"] = load_exported(out)
            sizes[f"ONNX {weights}"] = sum(path.stat().st_size for path in out.iterdir())
        report(models, sizes, gold, arguments.rounds)


def report(models: dict[str, Annotator], sizes: dict[str, int], gold: list[Sentence], rounds: int) -> None:
    """Print a row for each model."""
    words = [list(sentence.words) for sentence in gold]
    tasks = models["torch"].tasks
    found, scores = {}, {}
    for name, model in models.items():
        corpus = examples(gold, model.tokenizer, model.tasks, model.labels)
        scores[name] = evaluate_model(model, batches(corpus, model))
        found[name] = model.annotate(words)
    alone: dict[str, list[float]] = {name: [] for name in models}
    together: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            start = time.process_time()
            for sentence in words:
                model.annotate([sentence])
            alone[name].append(time.process_time() - start)
            start = time.process_time()
            model.annotate(words)
            together[name].append(time.process_time() - start)
    main_scores = [f"{name} {task.score}" for name, task in tasks.items()]
    table = Table(
        "model", "MB", *main_scores, "same", "one by one", "batches", title=f"{len(words)} sentences"
    )
    for name in models:
        same = sum(map(Sentence.__eq__, found[name], found["torch"]))
        times = [_ratios(each[name], each["torch"]) for each in (alone, together)]
        values = [f"{scores[name][task][tasks[task].score]:.2f}" for task in tasks]
        table.add_row(name, f"{sizes[name] / 1e6:.0f}", *values, str(same), *times)
    Console(width=160).print(table)


def _ratios(turns: list[float], base: list[float]) -> str:
    """Medians of processor seconds and of their ratios to torch in the same turn, with least and most."""
    ratios = [one / other for one, other in zip(turns, base, strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return f"{statistics.median(turns):.2f} s, {statistics.median(ratios):.2f} ({spread})"


if __name__ == "__main__":
    main()
