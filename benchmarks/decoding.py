"""The speed of decoding spanning trees and charts against supar, in one process with one thread.

python -m benchmarks.decoding [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import warnings

import torch

from mtl.analysis.costs import alternate
from mtl.tasks.decoders.con import best_brackets
from mtl.tasks.decoders.dep import maximum_trees


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")
    from supar.structs import ConstituencyCRF, MatrixTree

    torch.set_num_threads(1)
    torch.manual_seed(1)
    batch, words = 32, 40
    arcs = torch.randn(batch, words, words + 1)
    lengths = torch.full((batch,), words)
    square = torch.cat([torch.zeros(batch, 1, words + 1), arcs], 1)
    spans = torch.randn(batch, words + 1, words + 1)
    jobs = {
        "MST, supar": lambda: MatrixTree(square.clone(), lengths).argmax,
        "MST, mtl": lambda: maximum_trees(arcs.numpy(), lengths.numpy()),
        "CKY, supar": lambda: ConstituencyCRF(spans.clone(), lengths).argmax,
        "CKY, mtl": lambda: best_brackets(spans.numpy(), lengths.numpy()),
    }
    medians = {name: statistics.median(times) for name, times in alternate(jobs, rounds).items()}
    for kind in ("MST", "CKY"):
        theirs, ours = medians[f"{kind}, supar"], medians[f"{kind}, mtl"]
        times = f"supar {1e3 * theirs:.1f} ms, mtl {1e3 * ours:.2f} ms: {theirs / ours:.0f} x"
        print(f"{kind}, {batch} x {words} words: {times}")


if __name__ == "__main__":
    main()
