"""What masks cost in training, and what cutting heads saves, in one process with one thread.

python -m benchmarks.masks [--rounds N] [--cut_rounds N]
"""

from __future__ import annotations

import argparse
import copy
import statistics

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from mtl.analysis.costs import alternate
from mtl.heads.families import family_of
from mtl.heads.gates import HeadGates
from mtl.heads.prune import prune_heads
from mtl.heads.tap import HeadTap
from mtl.models.encoder import Encoder


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cut_rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    minilm = Encoder.from_pretrained("minilm").transformer
    base = BertModel(BertConfig(), add_pooling_layer=False)
    console = Console(width=110)
    console.print(gate_cost({"MiniLM": (minilm, 16), "BERT-base, random": (base, 4)}, arguments.rounds))
    console.print(cut_times(minilm, arguments.cut_rounds))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread")


def gate_cost(models: dict[str, tuple[nn.Module, int]], rounds: int) -> Table:
    """Forward, backward and update with and without gates, in turns on the same batch."""
    table = Table(title="Training with gates (SDPA attention, 24 subwords a sentence)")
    for column in ("encoder", "sentences", "without, s", "shared mask", "a mask per row"):
        table.add_column(column, justify="left" if column == "encoder" else "right")
    for name, (model, rows) in models.items():
        model.train()
        tap = HeadTap(model, family_of(model))
        ids = torch.randint(1000, 5000, (rows, 24))
        gates = HeadGates(len(tap.sites), tap.heads)
        # Not a plain sum: after a layer norm, its gradient is only rounding, in slow denormal numbers.
        direction = torch.randn(model.config.hidden_size)
        optimizer = torch.optim.AdamW([*model.parameters(), *gates.parameters()], lr=0.0, fused=True)

        def step(
            kind: str,
            model: nn.Module = model,
            tap: HeadTap = tap,
            ids: Tensor = ids,
            gates: HeadGates = gates,
            direction: Tensor = direction,
            optimizer: torch.optim.Optimizer = optimizer,
        ) -> None:
            if kind == "without":
                loss = (model(ids).last_hidden_state @ direction).sum()
            else:
                scale = gates()[0]
                with tap.scale(scale if kind == "shared" else scale.expand(len(ids), -1, -1)):
                    loss = (model(ids).last_hidden_state @ direction).sum()
                loss = loss + 0.01 * gates.penalty().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        times = alternate({kind: (lambda k=kind: step(k)) for kind in ("without", "shared", "rows")}, rounds)
        bare = statistics.median(times["without"])
        ratios = [
            statistics.median(a / b for a, b in zip(times[kind], times["without"], strict=True))
            for kind in ("shared", "rows")
        ]
        table.add_row(name, str(rows), f"{bare:.3f}", *(f"{100 * (ratio - 1):+.1f} %" for ratio in ratios))
    return table


def cut_times(model: nn.Module, rounds: int) -> Table:
    """The forward time by share of heads kept, beside the prediction from floating-point operations."""
    heads = model.config.num_attention_heads
    shares = (1.0, 0.75, 0.5, 0.25, 0.0)
    cut = {}
    for share in shares:
        cut[share] = copy.deepcopy(model).eval()
        gone = range(round(heads * share), heads)
        if gone:
            prune_heads(cut[share], dict.fromkeys(range(model.config.num_hidden_layers), gone))
    table = Table(
        title="Forward time of MiniLM with heads cut out, over the whole model's (in brackets: operations)"
    )
    table.add_column("batch x subwords")
    for share in shares[1:]:
        table.add_column(f"{share:.0%} kept", justify="right")
    table.add_column("largest deviation", justify="right")
    for batch in (1, 16, 64):
        for words in (32, 128):
            ids = torch.randint(1000, 5000, (batch, words))
            repeats = max(1, 1024 // (batch * words))
            with torch.inference_mode():
                jobs = {
                    share: (lambda m=cut[share], x=ids, r=repeats: [m(x) for _ in range(r)])
                    for share in shares
                }
                times = alternate(jobs, rounds)
                operations = {share: count(cut[share], ids) for share in shares}
            cells, deviations = [], []
            for share in shares[1:]:
                measured = statistics.median(a / b for a, b in zip(times[share], times[1.0], strict=True))
                predicted = operations[share] / operations[1.0]
                deviations.append(measured / predicted - 1)
                cells.append(f"{measured:.3f} ({predicted:.3f})")
            table.add_row(f"{batch} x {words}", *cells, f"{100 * max(deviations, key=abs):+.1f} %")
    return table


def count(model: nn.Module, ids: Tensor) -> int:
    """The number of floating-point operations of a forward pass."""
    with FlopCounterMode(display=False) as counter:
        model(ids)
    return counter.get_total_flops()


if __name__ == "__main__":
    main()
