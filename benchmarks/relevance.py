"""The time of relevance beside that of training steps on the same batches.

python -m benchmarks.relevance --run RUN --corpus DIR [--sentences N] [--rounds N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.models.batches import BatchIndices, BatchLoader, examples
from mtl.models.joint import JointModel
from mtl.relevance.propagation import Explainer, RelevanceItem
from mtl.tasks.sentence import Sentence


def seconds(action: Callable[[], None], rounds: int) -> float:
    """The processor seconds of the fastest round, after a round that does not count."""
    taken = []
    for _ in range(rounds + 1):
        start = time.process_time()
        action()
        taken.append(time.process_time() - start)
    return min(taken[1:])


def relevance(explainer: Explainer) -> None:
    """Compute the relevance of all batches once."""
    for batch in range(len(explainer.batches)):
        explainer.relevance(batch)


def training(
    model: JointModel, sentences: Sequence[Sentence], tasks: Sequence[str], explainer: Explainer
) -> None:
    """Make a training step on each batch, at a learning rate that changes nothing."""
    chosen = {name: model.tasks[name] for name in tasks}
    corpus = examples(sentences, model.encoder.tokenizer, chosen, model.labels)
    plan = [BatchIndices(batch, tuple(tasks)) for batch in explainer.batches]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-12)
    model.train()
    for batch in BatchLoader(corpus, model.encoder.tokenizer, chosen, plan):
        torch.stack(list(model.losses(batch, model(batch)).values())).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = JointModel.from_pretrained(arguments.run)
    dev = read_jsonl(arguments.corpus / "dev.jsonl")
    chosen = [dev[turn * len(dev) // arguments.sentences] for turn in range(arguments.sentences)]
    for tasks in ((next(iter(model.tasks)),), tuple(model.tasks)):
        items = [RelevanceItem(name, "") for name in tasks]
        paper, attnlrp = (Explainer(model, chosen, items, rules=rules) for rules in ("paper", "attnlrp"))
        step = seconds(partial(training, model, chosen, tasks, paper), arguments.rounds)
        for explainer in (paper, attnlrp):
            taken = seconds(partial(relevance, explainer), arguments.rounds)
            print(f"{', '.join(tasks)}, {explainer.rules}: {taken:.2f} s, {taken / step:.2f} training steps")


if __name__ == "__main__":
    main()
