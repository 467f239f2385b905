"""What to run first on a machine with a GPU: its tests, speed and memory, waits, curves and masks.

python -m benchmarks.gpu [--minutes N] [--corpus DIR] [--seeds N] [--epochs N] [--sentences N] [--rounds N]
                         [--out FOLDER] [--parts tests speed waits curves]

The parts follow each other, each in a process of its own and within its share of the minutes; what a part has
measured is written at once, and if one fails or takes too long, the others are not touched. `tests` runs
tests/mtl/test_gpu.py. `speed` times training in each precision beside the bare encoder, and evaluation,
ablation and importance (on the clock, when the GPU has finished). `waits` counts where the program waits for
the GPU. `curves` trains five tasks with masks on the CPU, and on the GPU in each precision, all at the same
time, and compares the differences in losses, scores and masks between them with those between seeds. It
writes FOLDER/PART.json and the page FOLDER/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
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
from mtl.models.pass_graphs import PassGraphs
from mtl.models.passes import rounded_weights
from mtl.runs.folder.run import Run
from mtl.tasks.recursions import RecursionGraphs
from mtl.training.assembly import RoundedProducts
from mtl.training.data import EpochBatches

SETUPS = {
    "CPU, float32": ("cpu", "32-true"),
    "GPU, float32": ("gpu", "32-true"),
    "GPU, TF32": ("gpu", "tf32"),
    "GPU, bfloat16": ("gpu", "bf16-mixed"),
    "GPU, bfloat16 copies": ("gpu", "bf16-master"),
}
PARTS = {"tests": 0.2, "speed": 0.4, "waits": 0.1, "curves": 0.3}
"""The share of the minutes of each part, which also has what the parts before it have left."""
PEAK = {"32-true": 67e12, "tf32": 495e12, "bf16-mixed": 989e12, "bf16-master": 989e12}
"""Floating-point operations per second of an H100 (SXM) without sparsity, from NVIDIA's data sheet."""
Keep = Callable[[Any], None]
"""Writes what a part has measured so far."""


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--corpus", type=Path, default=Path("data/small"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=300, help="sentences that are timed")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu tries the program out")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU here; --device=cpu tries the program out")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if len(arguments.parts) == 1:
        measure(arguments.parts[0], arguments)
        return
    start, ended = time.monotonic(), {}
    for number, name in enumerate(arguments.parts):
        later = sum(PARTS[other] for other in arguments.parts[number + 1 :])
        left = 60 * arguments.minutes * (1 - later) - (time.monotonic() - start)
        ended[name] = in_process([*sys.argv[1:], f"--parts={name}"], left)
        print(f"{name}: {ended[name]}", flush=True)
        (arguments.out / "gpu.md").write_text(page(arguments, ended))
    print(page(arguments, ended))
    sys.exit(int(any("," in how for how in ended.values())))


def in_process(words: Sequence[str], seconds: float) -> str:
    """Measure a part in a process of its own, and end it after so many seconds.

    Returns how long it took, and after a comma what went wrong.
    """
    start = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu", *words]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            how = "" if process.wait(max(1.0, seconds)) == 0 else f", exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            how = ", stopped there"
        finally:
            with suppress(ProcessLookupError):  # what the part has started, too
                os.killpg(process.pid, signal.SIGKILL)
    return f"{time.monotonic() - start:.0f} s{how}"


def measure(part: str, arguments: argparse.Namespace) -> None:
    """Measure a part and write its file."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    device = torch.device(arguments.device)
    file = arguments.out / f"{part}.json"
    file.unlink(missing_ok=True)

    def keep(found: Any) -> None:
        file.write_text(json.dumps(found, indent=1))

    if part == "tests":
        tests(keep)
    elif part == "speed":
        speed(arguments.corpus, arguments.sentences, arguments.rounds, device, keep)
    elif part == "waits":
        waits(arguments.corpus, device, keep)
    else:
        curves(arguments, device, keep)


def tests(keep: Keep) -> None:
    """Run the tests on a GPU; keeps the lines that say which have failed, and the last one."""
    words = ["-m", "pytest", "-n", "0", "--tb=short", "-rf", "tests/mtl/test_gpu.py"]
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        said = []
        for line in process.stdout or ():
            print(line, end="", flush=True)
            said.append(line.rstrip())
            keep([line for line in said if line.startswith("FAILED")] + said[-1:])
    sys.exit(process.returncode)


# Curves, scores and masks


def curves(arguments: argparse.Namespace, device: torch.device, keep: Keep) -> None:
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
            print(f"{run.folder.name}: exit code {process.returncode}, see its .log")
            continue
        history = polars.read_csv(run.folder / "history.csv")
        found[name][seed] = {
            "losses": history.select("^loss/.*$").to_dict(as_series=False),
            "scores": json.loads((run.folder / "metrics.json").read_text()),
            "seconds": history["seconds"].to_list(),
            "masks": masks_of(run.folder),
        }
        keep(found)


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


def waits(corpus: Path, device: torch.device, keep: Keep) -> None:
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
        keep(found)


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
    graphs: Sequence[RecursionGraphs | PassGraphs] = (),
) -> float:
    """The seconds on the clock of an epoch as in `mtl train`, after three more steps."""
    accelerator = "gpu" if device.type == "cuda" else "cpu"
    seconds = training_seconds(
        model,
        annotated,
        steps,
        precision,
        first=3,
        now=lambda: now(device),
        accelerator=accelerator,
        graphs=graphs,
    )
    model.to(device)  # the trainer leaves it on the CPU
    return seconds


def encoder_seconds(encoder: Encoder, bare: list[Batch], precision: str, device: torch.device) -> float:
    """The seconds of forward, backward and AdamW of the encoder alone over batches on the device."""
    encoder.train()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-4, fused=True)
    direction = torch.randn(encoder.hidden, device=device)

    def epoch(part: Sequence[Batch]) -> None:
        for batch in part:
            with computing(encoder, precision, device):
                loss = (encoder(batch.subwords).float() @ direction).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    epoch(bare[:3])
    rounds_products = device.type == "cuda" and precision in ("tf32", "bf16-master")
    with RoundedProducts(precision, rounds_products).forward_context():
        return clocked(lambda: epoch(bare), device)


def computing(encoder: Encoder, precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The types of a forward pass of the encoder alone."""
    if precision == "bf16-mixed":
        return torch.autocast(device.type, torch.bfloat16)
    return rounded_weights([encoder.transformer]) if precision == "bf16-master" else nullcontext()


def clocked(job: Callable[[], object], device: torch.device) -> float:
    """The seconds on the clock of a call, with everything that the device does for it."""
    start = now(device)
    job()
    return now(device) - start


def speed(corpus: Path, number: int, rounds: int, device: torch.device, keep: Keep) -> None:
    """Training, evaluation, ablation and importance beside the bare encoder; what fails is told."""
    sentences = load(corpus, number)
    sizes = [("minilm", 16), ("base", 64), ("minilm", 64), ("base", 16)]
    found: list[dict[str, Any]] = []
    for encoder, batch in sizes if device.type == "cuda" else sizes[:1]:
        for precision in PEAK if device.type == "cuda" else ["32-true"]:
            try:
                rows = timed(sentences, encoder, batch, precision, rounds, device)
            except Exception as error:  # the rest may go well
                rows = [
                    {
                        "encoder": encoder, "batch": batch, "precision": precision,
                        "failed": f"{type(error).__name__}: {error}".splitlines()[0],
                    }
                ]  # fmt: skip
            print("\n".join(map(speed_line, rows)), flush=True)
            found += rows
            keep(found)


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
    if device.type == "cuda":
        graphs: list[RecursionGraphs | PassGraphs] = [RecursionGraphs(), PassGraphs()]
        # The encoder's are made again in each round, since training leaves the weights elsewhere.
        jobs["training, five tasks, CUDA graphs"] = lambda: trained_seconds(
            model, annotated, steps, precision, device, graphs
        )
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


def page(arguments: argparse.Namespace, ended: dict[str, str]) -> str:
    """All results as Markdown, and how long the parts took."""
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    lines = [
        f"`python -m benchmarks.gpu {' '.join(sys.argv[1:])}` on {device}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}: "
        + "; ".join(f"{name} {how}" for name, how in ended.items())
    ]
    found = {}
    for part in ended:
        if (file := arguments.out / f"{part}.json").exists():
            found[part] = json.loads(file.read_text())
    if "tests" in found:
        lines += ["", "## Tests", "", *(f"    {line}" for line in found["tests"])]
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
    if "failed" in row:
        return (
            f"| {row['encoder']} | {row['batch']} | {row['precision']} | failed: {row['failed']} | | | | | |"
        )
    least, most = row["spread"]
    memory = "" if row["gigabytes"] is None else f"{row['gigabytes']:.2f}"
    return (
        f"| {row['encoder']} | {row['batch']} | {row['precision']} | {row['job']} | {row['seconds']:.3f} "
        f"({least:.3f}, {most:.3f}) | {row['sentences/s']:,.0f} | {row['ratio']:.2f} | "
        f"{100 * row['share of peak']:.1f} % | {memory} |"
    )


def curve_lines(found: dict[str, dict[str, Any]]) -> list[str]:
    """Losses and scores of the setups as means and deviations over seeds, and how far masks agree."""
    made = {name: list(runs.values()) for name, runs in found.items() if runs}
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
    seeds = {name: {seed: run["masks"] for seed, run in runs.items()} for name, runs in found.items()}
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
