"""How time and memory grow with sentences, words, labels, tasks, heads, ranks and runs.

python -m benchmarks.scale [SERIES …] [--largest]

Each size is measured in a process of its own with one thread. Times are processor times, so that other work
on the machine matters little. An exponent is the slope of log time over log size between the last two sizes;
1 is in proportion to the size. Memory is the most that the process held at one time. `--largest` adds a
million sentences on disk.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from mtl.corpora.formats.jsonl import from_json, read_jsonl, to_line, write_jsonl
from mtl.corpora.toy.corpus import toy_corpus, write_toy
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task

Times = dict[str, float]
WORD_TASKS = ("pos", "ner", "dep", "con", "srl")
HIDDEN = 384
PART = 10_000
"""The number of sentences that are made up at once."""
LABELLED = 24
"""The number of words of a sentence in the series of labels."""


class Series(NamedTuple):
    """The sizes of what is made larger, and what is timed."""

    sizes: Sequence[int]
    measure: Callable[[int, Path], Times]
    unit: str


def main() -> None:
    """Measure the series, and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("series", nargs="*", default=[], help=f"of {', '.join(SERIES)}; all by default")
    parser.add_argument("--largest", action="store_true", help="a million sentences on disk, too")
    parser.add_argument("--size", type=int, help="only this size of the first series, printed as JSON")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.series).difference(SERIES)):
        parser.error(f"no series {', '.join(unknown)}: choose from {', '.join(SERIES)}")
    if arguments.size is not None:
        print(json.dumps(point(SERIES[arguments.series[0]], arguments.size)))
        return
    console = Console(width=120)
    for name in arguments.series or SERIES:
        sizes = [*SERIES[name].sizes, *([1_000_000] if name == "sentences" and arguments.largest else [])]
        console.print(table_of(name, {size: measured(name, size) for size in sizes}))
    print(f"one thread; Python {sys.version.split()[0]}, torch {torch.__version__}")


def measured(name: str, size: int) -> Times:
    """The times of one size and its memory in MB, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", name, f"--size={size}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: Times = json.loads(done.stdout.splitlines()[-1])
    return found


def point(series: Series, size: int) -> Times:
    """The times of one size in this process, and its memory."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        times = series.measure(size, Path(folder))
    return times | {"memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}


def table_of(name: str, points: Mapping[int, Times]) -> Table:
    """A table of the times of all sizes, with the exponents between the last two."""
    table = Table(title=f"{name}: {SERIES[name].unit}")
    table.add_column("processor seconds")
    for size in points:
        table.add_column(f"{size:,}", justify="right")
    table.add_column("exponent", justify="right")
    (smaller, first), (larger, last) = list(points.items())[-2:]
    for what in last:
        values = [f"{times[what]:.0f}" if "MB" in what else f"{times[what]:.3g}" for times in points.values()]
        slope = math.log(last[what] / max(first[what], 1e-9)) / math.log(larger / smaller)
        table.add_row(what, *values, f"{slope:.2f}")
    return table


@contextmanager
def timed(times: Times, what: str) -> Iterator[None]:
    """Add the processor time of a block, including processes that it started and that have ended."""
    begun = processor_time()
    yield
    times[what] = times.get(what, 0.0) + processor_time() - begun


def processor_time() -> float:
    """The processor seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def of_sentences(size: int, folder: Path) -> Times:
    """What happens up to the first update of five tasks on a corpus on disk, without a store and with it."""
    from mtl.config.schema import BatchConfig, CorpusConfig, TrainConfig
    from mtl.corpora.load import corpus_fingerprint
    from mtl.models.batches import BatchLoader
    from mtl.models.encoder import Encoder
    from mtl.models.inputs import InputCache
    from mtl.models.joint import JointModel
    from mtl.training.data import EpochBatches, read_splits

    os.environ["MTL_CACHE"] = str(folder / "cache")
    write_toy(folder / "corpus", 1, 100, 100, seed=1)
    with (folder / "corpus" / "train.jsonl").open("w") as file:
        for first in range(0, size, PART):
            part = toy_corpus(min(PART, size - first), seed=first)
            file.writelines(f"{to_line(sentence)}\n" for sentence in part)
    times: Times = {"file, MB": (folder / "corpus" / "train.jsonl").stat().st_size / 1e6}
    config = TrainConfig(tasks=WORD_TASKS, corpus=CorpusConfig(str(folder / "corpus"), store="disk"))
    tasks = config.chosen()
    for state in ("", ", cached"):
        begun = time.perf_counter()
        with timed(times, f"hash of files{state}"):
            fingerprint = corpus_fingerprint(config.corpus, tasks)
        with timed(times, f"sentences, labels, checks{state}"):
            splits = read_splits(config, tasks, fingerprint, InputCache(), Console(quiet=True))
        labels = {name: splits.train.labels(name, task) for name, task in tasks.items()}
        model = JointModel(Encoder.from_pretrained("minilm"), tasks, labels)
        tokenizer = model.encoder.tokenizer
        with timed(times, f"pieces and targets{state}"):
            corpus, _ = splits.train.examples(tokenizer, tasks, labels)
        with timed(times, f"order an epoch{state}"):
            steps = EpochBatches(BatchConfig(), 1, corpus, tuple(tasks))(0)
        with timed(times, f"first update{state}"):
            train_step(model, next(iter(BatchLoader(corpus, tokenizer, tasks, steps[:1]))))
        times[f"until then, on the clock{state}"] = time.perf_counter() - begun
    with timed(times, "1,000 sentences as batches"):
        for _ in BatchLoader(corpus, tokenizer, tasks, steps[: -(-1_000 // 16)]):
            pass
    times["store, MB"] = sum(path.stat().st_size for path in (folder / "cache").rglob("*")) / 1e6
    times["memory of a helper, MB"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
    return times


def of_sentences_in_memory(size: int, folder: Path) -> Times:
    """What happens up to the first update of five tasks on a corpus in memory."""
    from mtl.config.schema import BatchConfig, TrainConfig
    from mtl.models.batches import BatchLoader, examples
    from mtl.models.encoder import Encoder
    from mtl.models.joint import JointModel
    from mtl.training.data import EpochBatches

    write_jsonl(folder / "train.jsonl", toy_corpus(size, seed=1))
    times: Times = {}
    with timed(times, "read"):
        sentences = read_jsonl(folder / "train.jsonl")
    tasks = TrainConfig(tasks=WORD_TASKS).chosen()
    with timed(times, "collect labels"):
        labels = {name: task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(Encoder.from_pretrained("minilm"), tasks, labels)
    with timed(times, "make pieces and targets"):
        corpus = examples(sentences, model.encoder.tokenizer, tasks, labels)
    with timed(times, "order an epoch"):
        steps = EpochBatches(BatchConfig(), 1, corpus, tuple(tasks))(0)
    with timed(times, "first update"):
        train_step(model, next(iter(BatchLoader(corpus, model.encoder.tokenizer, tasks, steps[:1]))))
    return times


def of_words(size: int, folder: Path) -> Times:
    """Each decoder on eight sentences of this length: loss with gradients, and decoding."""
    random = Random(1)
    sentences = [made_up(size, 20, random) for _ in range(8)]
    return of_decoders(sentences)


def of_labels(size: int, folder: Path) -> Times:
    """Each decoder with this number of labels, on sentences that have all of them."""
    random = Random(1)
    sentences = [made_up(LABELLED, size, random) for _ in range(size)]
    return of_decoders(sentences, first=8)


def of_decoders(sentences: list[Sentence], first: int | None = None) -> Times:
    """Loss with gradients, and decoding, of the `first` sentences (`None`: all) by five decoders alone."""
    from mtl.config.schema import TrainConfig

    times: Times = {}
    for name, task in TrainConfig(tasks=WORD_TASKS).chosen().items():
        labels = task.labels(sentences)
        few = sentences[:first]
        decoder = task.new_decoder(HIDDEN, labels)
        mask = torch.ones(len(few), len(few[0].words), dtype=torch.bool)
        words = torch.randn(*mask.shape, HIDDEN)
        turns: list[Times] = []
        for _ in range(4):
            turns.append({})
            targets = task.collate([task.targets(sentence, labels) for sentence in few], mask.shape[1])
            with timed(turns[-1], f"{name}: loss"):
                scores = decoder(words, mask)
                decoder.loss(scores, targets, mask).sum().backward()
            with timed(turns[-1], f"{name}: decode"), torch.inference_mode():
                decoder.decode(decoder(words, mask), mask)
        # The first turn compiles.
        times |= {what: min(turn[what] for turn in turns[1:]) for what in turns[0]}
    return times


def made_up(words: int, labels: int, random: Random) -> Sentence:
    """A sentence with random labels in five layers: a chain of arcs, a flat tree of pairs, one frame."""
    pairs = [(start, start + 2) for start in range(0, words - 1, 2)]
    relations = [f"r{random.randrange(labels)}" for _ in range(words - 1)]
    arguments = [[*pair, f"A{random.randrange(labels)}"] for pair in pairs[1:10]]
    inside = " ".join(f"(P{random.randrange(labels)} (T dog) (T dog))" for _ in pairs) + (
        " (T dog)" if words % 2 else ""
    )
    return from_json({
        "id": "s", "words": ["dog"] * words, "upos": ["X"] * words,
        "tags": [f"t{random.randrange(labels)}" for _ in range(words)],
        "entities": [[start, start + 1, f"E{random.randrange(labels)}"] for start, _ in pairs],
        "arcs": {"heads": list(range(words)), "relations": ["root", *relations]},
        "tree": f"(S {inside})",
        "frames": [{"predicate": 0, "sense": None, "arguments": arguments}],
    })  # fmt: skip


def of_tasks(size: int, folder: Path) -> Times:
    """An update and an evaluation of this number of tagging tasks on one encoder."""
    from mtl.models.encoder import Encoder
    from mtl.models.evaluate import batches, evaluate_model
    from mtl.tasks.catalogue import KINDS
    from mtl.tasks.task import instance

    tasks: dict[str, Task] = {
        f"t{number}": instance(f"t{number}", KINDS["tags"], "upos")() for number in range(size)
    }
    model, corpus = joint(Encoder.from_pretrained("minilm"), tasks, toy_corpus(64, seed=1))
    times: Times = {}
    batch = batch_of(model, corpus[:16])
    train_step(model, batch)
    with timed(times, "update"):
        train_step(model, batch)
    with timed(times, "evaluation"):
        evaluate_model(model, batches(corpus, model))
    return times


SHAPES = {72: (6, 12), 192: (12, 16), 384: (24, 16), 768: (24, 32), 1536: (48, 32)}


def of_heads(size: int, folder: Path) -> Times:
    """Heads of width 8: an update of two tasks, importance, and an update with a mask per task."""
    from transformers import BertConfig, BertModel

    from mtl.analysis.importance import task_importance
    from mtl.config.schema import TrainConfig
    from mtl.heads.gates import HeadGates
    from mtl.models.encoder import Encoder
    from mtl.models.evaluate import batches

    layers, heads = SHAPES[size]
    config = BertConfig(
        hidden_size=8 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=16 * heads,
    )
    minilm = Encoder.from_pretrained("minilm")
    encoder = Encoder(BertModel(config, add_pooling_layer=False), minilm.tokenizer.tokenizer)
    tasks = TrainConfig(tasks=("pos", "dep")).chosen()
    model, corpus = joint(encoder, tasks, toy_corpus(32, seed=1))
    batch = batch_of(model, corpus[:16])
    times: Times = {}
    train_step(model, batch)
    with timed(times, "update"):
        train_step(model, batch)
    with timed(times, "importance"):
        task_importance(model, batches(corpus[:16], model))
    model.gates = HeadGates(layers, heads, masks=tuple(tasks))
    train_step(model, batch)
    with timed(times, "update with a mask per task"):
        train_step(model, batch)
    return times


def of_ranks(size: int, folder: Path) -> Times:
    """One epoch of POS on 512 sentences by this number of processes, and the time of all of them."""
    write_toy(folder / "toy", 512, 8, 8, seed=1)
    words = [
        "train", "--tasks=[pos]", f"--corpus.path={folder / 'toy'}", "--encoder.name=minilm",
        "--max_epochs=1",
        "--name=r", f"--runs={folder}", f"--trainer.devices={size}", "--trainer.accelerator=cpu",
    ]  # fmt: skip
    before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "mtl", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"all processes": seconds, "on the clock": time.perf_counter() - clock}


def of_runs(size: int, folder: Path) -> Times:
    """The plan, the state and the report of a study with this number of made-up runs."""
    import io

    from mtl.config.schema import TrainConfig
    from mtl.runs.report.write import write_report
    from mtl.study.config import GridBlock, StudyConfig
    from mtl.study.grid import planned
    from tests.mtl.study.made_up import carry_out

    tasks = ("pos", "dep", "srl")
    block = GridBlock(("STL", "MTL"), ("none", "dynamic"))
    study = StudyConfig(
        grid=(block,), train=TrainConfig(tasks=tasks), seeds=tuple(range(1, 1 + -(-size // 8)))
    )
    times: Times = {}
    with timed(times, "grid"):
        planned(study, folder)
    made = carry_out(folder / "s", study)
    with timed(times, "state"):
        made.snapshot()
    with timed(times, "report"):
        write_report(made.path, Console(file=io.StringIO()), at_end=True)
    return times | {"page, MB": (made.path / "report.html").stat().st_size / 1e6}


def joint(encoder: Any, tasks: Mapping[str, Task], sentences: Sequence[Sentence]) -> tuple[Any, Any]:
    """A model of the tasks, and the sentences as examples for it."""
    from mtl.models.batches import examples
    from mtl.models.joint import JointModel

    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(encoder, tasks, labels)
    return model, examples(sentences, encoder.tokenizer, model.tasks, labels)


def batch_of(model: Any, corpus: Any) -> Any:
    """All of these examples as one batch."""
    from mtl.models.batches import BatchIndices, BatchLoader

    every = BatchIndices(tuple(range(len(corpus))), tuple(model.tasks))
    return next(iter(BatchLoader(corpus, model.encoder.tokenizer, model.tasks, [every])))


def train_step(model: Any, batch: Any) -> None:
    """Forward, backward and AdamW with a new state."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    torch.stack([*model.losses(batch, model(batch)).values()]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


SERIES = {
    "sentences": Series((1_000, 10_000, 100_000), of_sentences, "sentences on disk, five tasks"),
    "sentences_in_memory": Series(
        (1_000, 10_000, 100_000), of_sentences_in_memory, "sentences in memory, five tasks"
    ),
    "words": Series((10, 30, 100, 300, 500), of_words, "words in each of 8 sentences"),
    "labels": Series((10, 100, 1_000, 2_000), of_labels, f"labels, 8 sentences of {LABELLED} words"),
    "tasks": Series((1, 2, 5, 10, 20), of_tasks, "tagging tasks on MiniLM"),
    "heads": Series(tuple(SHAPES), of_heads, "heads of width 8 in random encoders, 16 sentences"),
    "ranks": Series((1, 2, 4), of_ranks, "processes that train together"),
    "runs": Series((10, 100, 1_000), of_runs, "runs of a study"),
}


if __name__ == "__main__":
    main()
