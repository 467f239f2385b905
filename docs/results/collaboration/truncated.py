"""A run's score when W_Q W_K^T of each head is cut to its leading components, without mtl.heads.

python docs/results/collaboration/truncated.py RUN RANK …    # a run with BERT's layers and one task

The content bias b_Q W_K^T is fitted by least squares in the components that are left. Prints a line per rank.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from mtl.analysis.trained import open_trained
from mtl.models.evaluate import batches, evaluate_model


def truncated(query: Tensor, key: Tensor, bias: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query and key rows and query bias of one head, of which `rank` components are not zero."""
    left, values, right = torch.linalg.svd(query.T @ key)
    root = values[:rank].sqrt()
    parts = [torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(bias)]
    parts[0][:rank], parts[1][:rank] = (left[:, :rank] * root).T, (right[:rank].T * root).T
    parts[2][:rank] = torch.linalg.lstsq(parts[1][:rank].T, (bias @ key)[:, None]).solution[:, 0]
    return parts[0], parts[1], parts[2]


@torch.no_grad()
def main(run: str, *ranks: str) -> None:
    """Print the scores on test."""
    for rank in map(int, ranks):
        trained = open_trained(Path(run), None, "test")
        model = trained.model
        for layer in model.encoder.transformer.encoder.layer:
            attention = layer.attention.self
            attention.key.bias.zero_()  # softmax does not see it
            for rows in torch.arange(attention.all_head_size).split(attention.attention_head_size):
                head = (attention.query.weight[rows], attention.key.weight[rows], attention.query.bias[rows])
                new = truncated(*head, rank)
                attention.query.weight[rows], attention.key.weight[rows], attention.query.bias[rows] = new
        print(rank, evaluate_model(model, batches(trained.corpus, model)))


if __name__ == "__main__":
    main(*sys.argv[1:])
