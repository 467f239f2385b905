"""What ablation and gates cost in translation, and what cutting heads saves, in one process with one thread.

python -m benchmarks.translation [ablation|gates|cut …] [--data DIR] [--run RUN] [--rounds N]

The model is that of configs/translation.yaml, with random weights or those of a run. DIR is a folder with
Multi30k; without it, the vocabulary is trained on generated text. Jobs take turns, and times are processor
times, so that other work on the machine disturbs all jobs alike.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.throughput import in_turn, one_quiet_thread, processor_seconds, table_of
from mtl.analysis.ablation import BATCH_TOKENS, Ablator, ablations
from mtl.config.parse import read_configuration
from mtl.config.schema import GatesConfig, TrainConfig
from mtl.corpora.readers import read_sentences
from mtl.models.batches import Batch, BatchLoader, Example, aligned_batches, collate, examples
from mtl.models.joint import JointModel
from mtl.models.opened import has_fast_bfloat16
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels
from mtl.training.gate_loss import gate_loss, new_gates_of
from mtl.translation.pieces import ParallelSubwords
from mtl.translation.seq2seq import Seq2Seq

CONFIG = Path(__file__).parents[1] / "configs" / "translation.yaml"
PIECES = 16
"""The number of pieces of every translation of a cut model, so that only the speed of models differs."""
PARTS = ("ablation", "gates", "cut")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--data", type=Path, help="folder with Multi30k")
    parser.add_argument("--run", type=Path, help="folder of a run whose model is measured")
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=40, help="training steps with and without gates")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts).difference(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    parts = arguments.parts or PARTS
    one_quiet_thread()
    config = read_configuration(TrainConfig, CONFIG)
    train, test = texts(arguments.data, "train"), texts(arguments.data, "test_2016_flickr")
    model = model_of(config, train, arguments.run)
    console = Console(width=110)
    if "ablation" in parts:
        corpus = of(model, test[: arguments.sentences])
        console.print(ablation_cost(model, corpus, arguments.rounds))
    if "gates" in parts:
        console.print(gate_cost(model, of(model, train[:5000]), config, arguments.pairs))
    if "cut" in parts:
        corpus = of(model, test[:16])
        console.print(cut_times(model, corpus, config, arguments.rounds))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread")


def texts(data: Path | None, split: str) -> list[Sentence]:
    """A split of Multi30k, or generated pairs of sentences of about the same length."""
    if data is not None:
        return read_sentences(f"{data}/{split}.en.gz:{data}/{split}.de.gz", "parallel")
    draw = random.Random(split)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(3000)]

    def line() -> str:
        return " ".join(draw.choices(words, k=draw.randint(7, 19)))

    return [Sentence(tuple(line().split()), translate=line()) for _ in range(5000)]


def model_of(config: TrainConfig, train: Sequence[Sentence], run: Path | None) -> JointModel:
    """A run's model, or a random model of the configuration's size."""
    if run is not None:
        return JointModel.from_pretrained(run / "model", attention=config.encoder.attention)
    tasks = config.chosen()
    encoder = Seq2Seq.from_scratch(config, config.chosen(), train)
    return JointModel(encoder, tasks, {name: Labels(()) for name in tasks})


def of(model: JointModel, sentences: Sequence[Sentence]) -> list[Example]:
    """Sentences as the model reads them."""
    return examples(sentences, model.encoder.tokenizer, model.tasks, model.labels)


def ablation_cost(model: JointModel, corpus: Sequence[Example], rounds: int) -> Table:
    """Ablation of each head against as many plain searches."""
    tokenizer = model.encoder.tokenizer
    plan = aligned_batches(corpus, tuple(model.tasks), BATCH_TOKENS["cpu"], None, None)
    parts = list(BatchLoader(corpus, tokenizer, model.tasks, plan))
    wide = aligned_batches(corpus, tuple(model.tasks), model.evaluation_tokens(), None, None)
    evaluated = list(BatchLoader(corpus, tokenizer, model.tasks, wide))
    model.eval()
    chosen = ablations("head", model.encoder.tap.remaining)
    ablate = Ablator(model, chosen)

    def search(batches: Sequence[Batch]) -> None:
        with torch.inference_mode():
            for batch in batches:
                model.decoded(batch)

    times = seconds_of(
        {
            "a plain search, batches of ablation": lambda: search(parts),
            "a plain search, batches of evaluation": lambda: search(evaluated),
            f"ablation of {len(chosen)} heads": lambda: [ablate(batch) for batch in parts],
        },
        rounds,
    )
    title = f"{len(corpus)} sentences, beam {model.tasks['translate'].beam}, {rounds} rounds"
    table = table_of(title, "job", "seconds", f"ablation / {len(chosen)} of these")
    *searches, ablation = times
    for name, values in times.items():
        shares = [whole / (len(chosen) * one) for whole, one in zip(times[ablation], values, strict=True)]
        share = f"{100 * statistics.median(shares):.0f} %" if name in searches else ""
        table.add_row(name, f"{statistics.median(values):.2f}", share)
    return table


def gate_cost(model: JointModel, corpus: Sequence[Example], config: TrainConfig, pairs: int) -> Table:
    """Training steps with gates on all kinds of attention and without, in turns on the same batches."""
    model = copy.deepcopy(model).train()
    encoder, tasks = model.encoder, tuple(model.tasks)
    plan = aligned_batches(corpus, tasks, config.batch.tokens, config.batch.sentences, None)
    loader = list(BatchLoader(corpus, encoder.tokenizer, model.tasks, plan))
    gates = new_gates_of(GatesConfig(), encoder, tasks)
    cost = gate_loss(gates, GatesConfig(), 5000, encoder.tap.sites)
    parameters = [*model.parameters()]
    optimizer = torch.optim.AdamW([*parameters, *gates.parameters()], lr=0.0, weight_decay=0.0, fused=True)

    def step(batch: Batch, gated: bool) -> None:
        model.gates = gates if gated else None
        with torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bfloat16()):
            losses = torch.stack([*model.losses(batch, model(batch)).values()])
            total = losses.sum()
            if gated:
                total = total + cost(100, losses.detach())
        total.backward()
        nn.utils.clip_grad_norm_(parameters, config.optimizer.clip)
        optimizer.step()
        optimizer.zero_grad()
        if gated:
            cost.after_update(101)

    seconds: list[tuple[float, float]] = []
    for turn in range(pairs + 1):
        batch = loader[turn % len(loader)]
        order = (False, True) if turn % 2 else (True, False)
        taken = {gated: processor_seconds(lambda g=gated, b=batch: step(b, g)) for gated in order}
        if turn:  # the first turn warms up
            seconds.append((taken[False], taken[True]))
    precision = "bf16-mixed" if has_fast_bfloat16() else "32-true"
    table = Table(title=f"Training steps of {config.batch.tokens:,} subwords, {precision}, {pairs} pairs")
    for column in ("without gates, s", "with gates on all kinds, s", "median of ratios", "quartiles"):
        table.add_column(column, justify="right")
    bare, gated = (statistics.median(column) for column in zip(*seconds, strict=True))
    ratios = [100 * (second / first - 1) for first, second in seconds]
    low, middle, high = statistics.quantiles(ratios, n=4)
    table.add_row(f"{bare:.3f}", f"{gated:.3f}", f"{middle:+.1f} %", f"{low:+.1f} to {high:+.1f} %")
    return table


def cut_times(model: JointModel, corpus: Sequence[Example], config: TrainConfig, rounds: int) -> Table:
    """The time of a beam search with a cache, for models with heads cut out and for the whole model."""
    encoder = model.encoder.eval()
    assert isinstance(encoder, Seq2Seq)
    sites = encoder.tap.sites
    places = [(site, head) for site in range(len(sites)) for head in range(encoder.heads)]
    by_chance = random.Random(1).sample(places, len(places) // 2)
    half = range(encoder.heads // 2)
    cuts = {
        "whole": {},
        "half of all heads, by chance": {
            site: [head for place, head in by_chance if place == site] for site in range(len(sites))
        },
        "half of the heads of each layer and kind": dict.fromkeys(range(len(sites)), half),
        "all heads of every second layer of each kind": {
            number: range(encoder.heads) for number, site in enumerate(sites) if site.layer % 2
        },
        **{
            f"all {kind} heads": {
                number: range(encoder.heads) for number, site in enumerate(sites) if site.attention == kind
            }
            for kind in dict.fromkeys(site.attention for site in sites)
        },
    }
    cut: dict[str, Seq2Seq] = {}
    for name, heads in cuts.items():
        cut[name] = copy.deepcopy(encoder)
        cut[name].prune({site: gone for site, gone in heads.items() if gone})
    title = f"Beam search of {PIECES} pieces, beam {config.translate.beam}, {rounds} rounds"
    table = table_of(title, "model", "heads", "batch 1: ms a sentence", "of whole", "batch 16", "of whole")
    cells = {name: [str(sum(map(len, one.tap.remaining)))] for name, one in cut.items()}
    for size in (1, 16):
        parts = [
            collate(corpus[first : first + size], encoder.tokenizer, model.tasks).subwords
            for first in range(0, len(corpus) if size > 1 else 4, size)
        ]
        jobs = {
            name: (lambda one=one, p=parts: [generate(one, subwords, config) for subwords in p])
            for name, one in cut.items()
        }
        times = seconds_of(jobs, rounds)
        for name, values in times.items():
            ratios = [ours / theirs for ours, theirs in zip(values, times["whole"], strict=True)]
            milliseconds = 1e3 * statistics.median(values) / (len(parts) * size)
            cells[name] += [f"{milliseconds:.1f}", f"{statistics.median(ratios):.2f}"]
    for name, row in cells.items():
        table.add_row(name, *row)
    return table


@torch.inference_mode()
def generate(encoder: Seq2Seq, subwords: ParallelSubwords, config: TrainConfig) -> None:
    """Translations of a fixed number of pieces."""
    encoder.transformer.generate(
        input_ids=subwords.input_ids, attention_mask=subwords.attention_mask,
        num_beams=config.translate.beam, do_sample=False, use_cache=True,
        max_new_tokens=PIECES, min_new_tokens=PIECES,
    )  # fmt: skip


def seconds_of(jobs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The processor seconds of each job in each round."""
    return in_turn({name: lambda job=job: processor_seconds(job) for name, job in jobs.items()}, rounds)


if __name__ == "__main__":
    main()
