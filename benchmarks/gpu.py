"""What to run first on a machine with a GPU: speed and memory, waits, and curves and masks beside the CPU's.

python -m benchmarks.gpu [--corpus DIR] [--seeds N] [--epochs N] [--rounds N] [--out FOLDER]
                         [--parts speed waits curves]

It times training, evaluation, ablation and importance against the bare encoder (on the clock, when the GPU
has finished), and counts where the program waits for the GPU. Then it trains five tasks with masks on the CPU
and on the GPU, in float32 and bfloat16, and compares the differences in losses, scores and masks between
devices with those between seeds. It writes FOLDER/gpu.json and the page FOLDER/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytorch_lightning as pl
import torch
import transformers

from benchmarks.throughput import load, training_seconds
from mtl.analysis.ablation import BATCH_TOKENS, Ablator, ablations
from mtl.analysis.importance import task_importance
from mtl.config.schema import BatchConfig, TrainConfig
from mtl.models.batches import Batch, BatchIndices, BatchLoader, Example, aligned_batches, examples
from mtl.models.encoder import Encoder
from mtl.models.evaluate import batches, evaluate_model
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run
from mtl.training.data import EpochBatches

SETUPS = {
    "CPU, float32": ("cpu", "32-true"),
    "GPU, float32": ("gpu", "32-true"),
    "GPU, bfloat16": ("gpu", "bf16-mixed"),
}
PARTS = ("speed", "waits", "curves")
PEAK = {"32-true": 67e12, "bf16-mixed": 989e12}
"""Floating-point operations per second of an H100 (SXM) without sparsity, from NVIDIA's data sheet."""


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path("data/small"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=640, help="sentences that are timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu tries the program out")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU here; --device=cpu tries the program out")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(arguments.device)
    found: dict[str, Any] = {
        "command": "python -m benchmarks.gpu " + " ".join(sys.argv[1:]),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    parts: dict[str, Callable[[], Any]] = {
        "speed": lambda: speed(arguments.corpus, arguments.sentences, arguments.rounds, device),
        "waits": lambda: waits(arguments.corpus, device),
        "curves": lambda: curves(arguments, device),
    }
    for name in arguments.parts:
        start = time.perf_counter()
        found[name] = parts[name]()
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        (arguments.out / "gpu.json").write_text(json.dumps(found, indent=1))
    (arguments.out / "gpu.md").write_text(page(found))
    print(page(found))


# Curves, scores and masks


def curves(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train all seeds in all setups at the same time: losses and seconds by epoch, scores, open heads."""
    setups = SETUPS if device.type == "cuda" else {"CPU, float32": SETUPS["CPU, float32"]}
    started = {}
    for seed in range(1, arguments.seeds + 1):
        for name, (accelerator, precision) in setups.items():
            run = f"{accelerator}-{precision}-{seed}"
            words = [
                "train", "configs/joint.yaml", f"--corpus.path={arguments.corpus}", f"--name={run}",
                f"--runs={arguments.out / 'runs'}", f"--seed={seed}", f"--max_epochs={arguments.epochs}",
                "--pruning=dynamic", "--gates.scope=per_task", "--gates.target_open=14", "--keep=last",
                f"--trainer.accelerator={accelerator}", f"--trainer.precision={precision}",
                f"--trainer.threads={2 if accelerator == 'cpu' else 1}", "--overwrite=true",
            ]  # fmt: skip
            with (arguments.out / f"{run}.log").open("w") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "mtl", *words],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            started[name, seed] = process, Run(arguments.out / "runs" / run)
    found: dict[str, Any] = {name: {} for name in setups}
    for (name, seed), (process, run) in started.items():
        if process.wait() != 0:
            found[name][seed] = None
            print(f"{run.folder.name}: exit code {process.returncode}, see its .log")
            continue
        history = polars.read_csv(run.folder / "history.csv")
        found[name][seed] = {
            "losses": history.select("^loss/.*$").to_dict(as_series=False),
            "scores": json.loads((run.folder / "metrics.json").read_text()),
            "seconds": history["seconds"].to_list(),
            "masks": masks_of(run.folder),
        }
    return found


def masks_of(folder: Path) -> dict[str, list[list[int]]]:
    """The open heads of each task of a run, as pairs of layer and head."""
    gates = polars.read_parquet(folder / "gates.parquet")
    last = gates.filter(step=gates["step"].max())
    return {
        str(task): sorted(rows.filter("open").select("layer", "head").rows())
        for (task,), rows in last.group_by("task")
    }


# Waits


@contextmanager
def waiting(counted: Counter[str], device: torch.device) -> Iterator[None]:
    """Count where the host waits for the GPU, by line of this program or of a library."""
    if device.type != "cuda":
        yield
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for one in caught:
        if "called a synchronizing" in str(one.message):
            counted[f"{'/'.join(Path(one.filename).parts[-3:])}:{one.lineno}"] += 1


def waits(corpus: Path, device: torch.device) -> dict[str, dict[str, float]]:
    """The waits per batch in training (without Lightning), evaluation, ablation and importance, by line."""
    model, annotated, steps = model_of(load(corpus, 160), "minilm", device)
    loader = BatchLoader(annotated, model.encoder.tokenizer, model.tasks, steps)
    trained = [batch.to(device) for batch in loader]
    decoded = [batch.to(device) for batch in batches(annotated, model)]
    small = aligned_batches(annotated, tuple(model.tasks), BATCH_TOKENS[device.type], None, None)
    rows = [one.to(device) for one in BatchLoader(annotated, model.encoder.tokenizer, model.tasks, small)]
    ablate = Ablator(model, ablations("head", model.encoder.tap.remaining))
    jobs: dict[str, tuple[int, Callable[[], object]]] = {
        "forward and backward, five tasks": (len(trained), lambda: forward_backward(model, trained)),
        "evaluation, five tasks": (len(decoded), lambda: evaluate_model(model, decoded)),
        "ablation of 72 heads, five tasks": (len(rows), lambda: [ablate(batch) for batch in rows]),
        "importance, five tasks": (len(trained), lambda: task_importance(model, trained)),
    }
    found = {}
    for name, (number, job) in jobs.items():
        job()
        counted: Counter[str] = Counter()
        with waiting(counted, device):
            job()
        found[name] = {place: count / number for place, count in counted.most_common()}
    return found


# Speed


def model_of(
    sentences: Sequence[Any], encoder: str, device: torch.device, batch: int = 16, names: Sequence[str] = ()
) -> tuple[JointModel, list[Example], list[BatchIndices]]:
    """A model of the tasks (default: five) on the device, its examples, and the batches of an epoch."""
    pl.seed_everything(1, verbose=False)
    every = TrainConfig().chosen()
    tasks = {name: every[name] for name in names or every}
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    made = Encoder.from_pretrained("minilm") if encoder == "minilm" else base_encoder()
    model = JointModel(made, tasks, labels).to(device)
    annotated = examples(sentences, model.encoder.tokenizer, model.tasks, labels)
    plan = BatchConfig(mode="aligned", sentences=batch)
    return model, annotated, list(EpochBatches(plan, 1, annotated, tuple(tasks))(0))


def base_encoder() -> Encoder:
    """A random BERT with 12 layers of 12 heads of width 64 (85 million parameters in its layers)."""
    encoder = Encoder.from_pretrained("minilm")
    config = transformers.BertConfig(vocab_size=encoder.transformer.config.vocab_size)
    return Encoder(transformers.BertModel(config, add_pooling_layer=False), encoder.tokenizer.tokenizer)


def forward_backward(model: JointModel, trained: Sequence[Batch]) -> None:
    """Forward and backward as in training, without an update."""
    model.train()
    for batch in trained:
        torch.stack(list(model.losses(batch, model(batch)).values())).sum().backward()
        model.zero_grad()


def now(device: torch.device) -> float:
    """The time on the clock when the device has done everything that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def trained_seconds(
    model: JointModel,
    annotated: list[Example],
    steps: list[BatchIndices],
    precision: Any,
    device: torch.device,
) -> float:
    """The seconds on the clock of an epoch as in `mtl train`, after three more steps."""
    accelerator = "gpu" if device.type == "cuda" else "cpu"
    seconds = training_seconds(
        model, annotated, steps, precision, first=3, now=lambda: now(device), accelerator=accelerator
    )
    model.to(device)  # the trainer leaves it on the CPU
    return seconds


def encoder_seconds(encoder: Encoder, bare: list[Batch], precision: str, device: torch.device) -> float:
    """The seconds of forward, backward and AdamW of the encoder alone over batches on the device."""
    encoder.train()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-4, fused=True)
    direction = torch.randn(encoder.hidden, device=device)
    mixed = torch.autocast(device.type, torch.bfloat16) if precision == "bf16-mixed" else nullcontext()

    def epoch(part: Sequence[Batch]) -> None:
        for batch in part:
            with mixed:
                loss = (encoder(batch.subwords).float() @ direction).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    epoch(bare[:3])
    return clocked(lambda: epoch(bare), device)


def clocked(job: Callable[[], object], device: torch.device) -> float:
    """The seconds on the clock of a call, with everything that the device does for it."""
    start = now(device)
    job()
    return now(device) - start


def speed(corpus: Path, number: int, rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """Training, evaluation, ablation and importance beside the bare encoder."""
    sentences = load(corpus, number)
    sizes = [("minilm", 16), ("minilm", 64), ("base", 16), ("base", 64)]
    found = []
    for encoder, batch in sizes if device.type == "cuda" else sizes[:1]:
        for precision in PEAK:
            rows = timed(sentences, encoder, batch, precision, rounds, device)
            print("\n".join(map(speed_line, rows)), flush=True)  # all that is left if time runs out
            found += rows
    return found


def timed(
    sentences: Sequence[Any], encoder: str, batch: int, precision: str, rounds: int, device: torch.device
) -> list[dict[str, Any]]:
    """A row for each job with this encoder, batch size and precision; the jobs take turns."""
    model, annotated, steps = model_of(sentences, encoder, device, batch)
    alone, own, own_steps = model_of(sentences, encoder, device, batch, ("dep",))
    untasked = [BatchIndices(step.indices, ()) for step in steps]
    bare = [one.to(device) for one in BatchLoader(annotated, model.encoder.tokenizer, {}, untasked)]
    jobs: dict[str, Callable[[], float]] = {
        "bare encoder, forward, backward, AdamW": lambda: encoder_seconds(
            model.encoder, bare, precision, device
        ),
        "training, five tasks": lambda: trained_seconds(model, annotated, steps, precision, device),
        "training, DEP alone": lambda: trained_seconds(alone, own, own_steps, precision, device),
    }
    if precision == "32-true" and batch == 16:
        jobs |= measures(model, annotated, steps, bare, device)
    memory = {name: peak(job, device) for name, job in jobs.items()}  # and warms up
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            times[name].append(job())
    weights = sum(one.numel() for name, one in model.encoder.named_parameters() if "embeddings" not in name)
    work = 2 * weights * sum(example.length for example in annotated)
    found = []
    for name, seconds in times.items():
        trains = name.startswith("training") or "backward" in name
        reference = "bare encoder, forward, backward, AdamW" if trains else "bare encoder, forward"
        median = statistics.median(seconds)
        found.append(
            {
                "encoder": encoder, "batch": batch, "precision": precision, "job": name, "seconds": median,
                "spread": [min(seconds), max(seconds)], "sentences/s": len(annotated) / median,
                "ratio": median / statistics.median(times[reference]),
                "share of peak": (3 if trains else 1) * work / median / PEAK[precision],
                "gigabytes": memory[name],
            }
        )  # fmt: skip
    return found


def peak(job: Callable[[], object], device: torch.device) -> float | None:
    """The most GPU memory, in gigabytes, that tensors take during a call; `None` without a GPU."""
    if device.type != "cuda":
        job()
        return None
    torch.cuda.reset_peak_memory_stats()
    job()
    return torch.cuda.max_memory_allocated() / 1e9


def measures(
    model: JointModel,
    annotated: list[Example],
    steps: list[BatchIndices],
    bare: list[Batch],
    device: torch.device,
) -> dict[str, Callable[[], float]]:
    """Jobs: the bare forward pass, and evaluation, importance and ablation of a model."""
    small = aligned_batches(annotated, tuple(model.tasks), BATCH_TOKENS[device.type], None, None)
    rows = [one.to(device) for one in BatchLoader(annotated, model.encoder.tokenizer, model.tasks, small)]
    trained = [one.to(device) for one in BatchLoader(annotated, model.encoder.tokenizer, model.tasks, steps)]
    ablate = Ablator(model, ablations("head", model.encoder.tap.remaining))

    @torch.inference_mode()
    def forward() -> None:
        model.eval()
        for batch in bare:
            model.encoder(batch.subwords)

    return {
        "bare encoder, forward": lambda: clocked(forward, device),
        "evaluation, five tasks": lambda: clocked(
            lambda: evaluate_model(model, batches(annotated, model)), device
        ),
        "importance, five tasks": lambda: clocked(lambda: task_importance(model, trained), device),
        "ablation of all heads, five tasks": lambda: clocked(lambda: [ablate(one) for one in rows], device),
    }


# The page


def page(found: dict[str, Any]) -> str:
    """All results as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [f"`{found['command']}` on {found['device']}, {versions}."]
    if "speed" in found:
        lines += speed_lines(found["speed"])
    if "waits" in found:
        lines += ["", "## Waits per batch", "", "| job | waits | where |", "|---|---|---|"]
        for name, places in found["waits"].items():
            where = ", ".join(f"`{place}` {count:.2f}" for place, count in places.items())
            lines.append(f"| {name} | {sum(places.values()):.2f} | {where} |")
    if "curves" in found:
        lines += ["", "## Curves", "", *curve_lines(found["curves"])]
    return "\n".join(lines) + "\n"


def speed_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The table of times."""
    lines = [
        "",
        "## Speed",
        "",
        "| encoder | sentences in a batch | precision | job | seconds (least, most) | sentences/s | "
        "ratio to the bare encoder | share of peak | GB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [speed_line(row) for row in rows]


def speed_line(row: dict[str, Any]) -> str:
    """A row of that table."""
    least, most = row["spread"]
    memory = "" if row["gigabytes"] is None else f"{row['gigabytes']:.2f}"
    return (
        f"| {row['encoder']} | {row['batch']} | {row['precision']} | {row['job']} | {row['seconds']:.3f} "
        f"({least:.3f}, {most:.3f}) | {row['sentences/s']:,.0f} | {row['ratio']:.2f} | "
        f"{100 * row['share of peak']:.1f} % | {memory} |"
    )


def curve_lines(found: dict[str, dict[int, Any]]) -> list[str]:
    """Losses and scores of the setups as means and deviations over seeds, and how far masks agree."""
    made = {name: [run for run in runs.values() if run] for name, runs in found.items()}
    made = {name: runs for name, runs in made.items() if runs}
    tasks = sorted({task for runs in made.values() for run in runs for task in run["losses"]})
    lines = ["| mean loss in an epoch | " + " | ".join(made) + " |"]
    lines.append("|---" * (len(made) + 1) + "|")
    for task in tasks:
        epochs = min(len(run["losses"][task]) for runs in made.values() for run in runs)
        for epoch in range(epochs):
            cells = [spread([run["losses"][task][epoch] for run in runs], 4) for runs in made.values()]
            lines.append(f"| {task.removeprefix('loss/')}, epoch {epoch + 1} | " + " | ".join(cells) + " |")
    lines += ["", "| final score | " + " | ".join(made) + " |", "|---" * (len(made) + 1) + "|"]
    first = next(iter(made.values()))[0]["scores"]
    for split, scores in first.items():
        for task, values in scores.items():
            for key in values:
                if not all(key in run["scores"][split][task] for runs in made.values() for run in runs):
                    continue  # a kind of entity that one run never predicts
                cells = [
                    spread([run["scores"][split][task][key] for run in runs], 2) for runs in made.values()
                ]
                lines.append(f"| {split} {task} {key} | " + " | ".join(cells) + " |")
    lines += ["", "| agreement of masks (Jaccard) | mean | pairs |", "|---|---|---|"]
    seeds = {name: {seed: run["masks"] for seed, run in runs.items() if run} for name, runs in found.items()}
    for name, of_seed in seeds.items():
        pairs = [agreement(of_seed[a], of_seed[b]) for a, b in combinations(of_seed, 2)]
        lines += agreement_line(f"{name}: two seeds", pairs)
    for one, other in combinations(seeds, 2):
        same = [
            agreement(seeds[one][seed], seeds[other][seed]) for seed in seeds[one] if seed in seeds[other]
        ]
        lines += agreement_line(f"{one} and {other}: the same seed", same)
    return lines


def agreement(one: dict[str, list], other: dict[str, list]) -> float:
    """The mean over tasks of the Jaccard index of two runs' masks."""
    return float(np.mean([
        len(set(map(tuple, one[task])) & set(map(tuple, other[task])))
        / max(1, len(set(map(tuple, one[task])) | set(map(tuple, other[task]))))
        for task in one
    ]))  # fmt: skip


def agreement_line(name: str, pairs: Sequence[float]) -> list[str]:
    """A row of the table of agreements; none if there is no pair."""
    return [f"| {name} | {np.mean(pairs):.3f} | {len(pairs)} |"] if pairs else []


def spread(values: Sequence[float], digits: int) -> str:
    """The mean and, if there are several values, the standard deviation."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"


if __name__ == "__main__":
    main()
