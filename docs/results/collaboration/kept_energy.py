"""How many components the heads that a task keeps need together, and as many heads drawn by chance.

python docs/results/collaboration/kept_energy.py RUN …    # runs of one task with learned masks, not cut

Prints, for each run, the components for 90 % of the variance of W_Q W_K^T, mean over the layers with an open
head: of the open heads; of 200 draws of as many heads of each layer, their mean and the range of the middle
95 %; and of all heads.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mtl import JointModel
from mtl.collaborative.attention import QueryKey, query_key
from mtl.collaborative.energy import captured_variance
from mtl.heads.attentions import attentions
from mtl.heads.families import family_of

DRAWS, SHARE = 200, 0.9


@torch.no_grad()
def components(factors: QueryKey, heads: Sequence[int]) -> int:
    """Leading components that hold `SHARE` of the sum of the heads' products."""
    joined = [matrix[list(heads)].transpose(0, 1).flatten(1) for matrix in factors]
    # A B^T has the singular values of R_A R_B^T, the product of the triangular factors.
    queries, keys = (torch.linalg.qr(matrix).R for matrix in joined)
    return int((captured_variance(torch.linalg.svdvals(queries @ keys.T)) < SHARE).sum()) + 1


def main(*runs: str) -> None:
    """Print a line per run."""
    draw = np.random.default_rng(0)
    for run in runs:
        model = JointModel.from_pretrained(Path(run, "model"))
        assert model.gates is not None
        transformer = model.encoder.transformer
        family = family_of(transformer)
        layers = [query_key(family, attention) for attention in attentions(transformer, family)]
        kept = [np.flatnonzero(layer).tolist() for layer in model.gates.open()[0].numpy()]
        used = [(layer, heads) for layer, heads in zip(layers, kept, strict=True) if heads]
        every = range(model.encoder.heads)
        chance = [
            np.mean([components(layer, draw.permutation(every)[: len(heads)]) for layer, heads in used])
            for _ in range(DRAWS)
        ]
        low, high = np.quantile(chance, (0.025, 0.975))
        needed = np.mean([components(*one) for one in used])
        whole = np.mean([components(layer, every) for layer, _ in used])
        print(
            f"{run}: heads by layer {[len(heads) for heads in kept]}; open {needed:.1f}; "
            f"by chance {np.mean(chance):.1f} ({low:.1f} to {high:.1f}); all {whole:.1f}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
