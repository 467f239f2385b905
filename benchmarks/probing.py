"""The cost of probing a configuration's tasks against one eager forward pass, in one process with one thread.

python -m benchmarks.probing [--config FILE] [--corpus DIR] [--split SPLIT] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.throughput import in_turn, processor_seconds
from mtl.analysis.probe import ObservedCorpus, index_corpus, probe_heads, target_of
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.heads.gates import Mask
from mtl.models.encoder import Encoder
from mtl.models.subwords import Subwords
from mtl.probes.measures.corpus import BY_KIND, ProbeTarget
from mtl.probes.tables.heads_table import best_heads
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
    targets = {
        name: target_of(task, BY_KIND[task.kind]) for name, task in tasks.items() if task.kind in BY_KIND
    }
    encoder = Encoder.from_pretrained(arguments.encoder, attention="eager").eval()
    tokens = encoder.tokenizer.encode_all([sentence.words for sentence in sentences])
    batches = [
        encoder.tokenizer.collate([tokens[number] for number in batch])
        for batch in ObservedCorpus(encoder, sentences).batches
    ]
    jobs = {
        "eager forward pass, seconds": lambda: processor_seconds(lambda: forward(encoder, batches)),
        "probing all tasks, seconds": lambda: processor_seconds(lambda: probed(encoder, sentences, targets)),
    }
    times = in_turn(jobs, arguments.rounds)
    ratios = [after / before for before, after in zip(*times.values(), strict=True)]
    console = Console(highlight=False)
    words = sum(map(len, sentences))
    console.print(f"{arguments.encoder}, {len(sentences):,} sentences, {words:,} words, {', '.join(targets)}")
    for name, values in (times | {"ratio": ratios}).items():
        console.print(f"{name}: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")


@torch.inference_mode()
def forward(encoder: Encoder, batches: Sequence[Subwords]) -> None:
    """Compute the word vectors of batches that have been collated before."""
    for batch in batches:
        encoder(batch)


def probed(encoder: Encoder, sentences: list[Sentence], targets: Mapping[str, ProbeTarget]) -> None:
    """Do everything that `mtl probe` does between reading the corpus and writing the table."""
    corpus = index_corpus(sentences, targets=targets)
    best_heads(probe_heads(encoder, corpus, Mask("", tuple(targets), None)))


if __name__ == "__main__":
    main()
