"""Cost of probing a configuration's tasks against one plain eager forward pass, in one run and one thread.

python -m benchmarks.probing [--config FILE] [--corpus DIR] [--split SPLIT] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console

from mtl.analysis.probing.observe import ObservedCorpus
from mtl.analysis.probing.probe import index_corpus, probe
from mtl.analysis.probing.run import target_of
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.models.encoder import Encoder
from mtl.models.head_scales import Mask
from mtl.models.subwords import Subwords
from mtl.probes.measures.items import BY_KIND, ProbeTarget
from mtl.probes.tables.best_heads import best_heads
from mtl.tasks.sentence import Sentence


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default="joint", help="configuration whose tasks are probed")
    parser.add_argument("--corpus", type=Path, default=Path("data/ewt5"))
    parser.add_argument("--split", default="test")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sentences = read_jsonl(arguments.corpus / f"{arguments.split}.jsonl")
    tasks = configured("mtl train", TrainConfig, [arguments.config]).chosen()
    targets = {name: target_of(task) for name, task in tasks.items() if task.kind in BY_KIND}
    encoder = Encoder.from_pretrained(arguments.encoder, attention="eager").eval()
    tokens = encoder.tokenizer.encode_all([sentence.words for sentence in sentences])
    batches = [
        encoder.tokenizer.collate([tokens[number] for number in batch])
        for batch in ObservedCorpus(encoder, sentences).batches
    ]
    jobs: dict[str, Callable[[], object]] = {
        "eager forward pass, seconds": lambda: forward(encoder, batches),
        "probing all tasks, seconds": lambda: probed(encoder, sentences, targets),
    }
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(arguments.rounds + 1):
        for name, job in jobs.items():  # in turn, so that what else the machine does hits both alike
            # The processor's time, since what else the machine does is not in it.
            start = time.process_time()
            job()
            if turn:  # the first round warms up
                times[name].append(time.process_time() - start)
    ratios = [after / before for before, after in zip(*times.values(), strict=True)]
    console = Console(highlight=False)
    words = sum(map(len, sentences))
    console.print(f"{arguments.encoder}, {len(sentences):,} sentences, {words:,} words, {', '.join(targets)}")
    for name, values in (times | {"ratio": ratios}).items():
        console.print(f"{name}: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")


@torch.inference_mode()
def forward(encoder: Encoder, batches: Sequence[Subwords]) -> None:
    """Word vectors of the same sentences in the same batches, which have been collated before."""
    for batch in batches:
        encoder(batch)


def probed(encoder: Encoder, sentences: list[Sentence], targets: Mapping[str, ProbeTarget]) -> None:
    """Everything that `mtl probe` does between reading the corpus and writing the table."""
    corpus = index_corpus(sentences, targets=targets)
    best_heads(probe(encoder, corpus, Mask("", tuple(targets), None)))


if __name__ == "__main__":
    main()
