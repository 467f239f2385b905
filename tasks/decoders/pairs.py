"""Biaffine scores of arcs between all pairs of words, which trees and graphs are decoded from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mtl.tasks.biaffine import Biaffine, Mlp
from mtl.tasks.decoders.decoder import Decoder
from mtl.tasks.precision import at_least_float32
from mtl.tasks.task import Labels


class PairScores(NamedTuple):
    """Scores of an arc to every word from every candidate (0 is the root), and what labels are scored from.

    Impossible arcs, such as those from a word to itself, have -inf.
    """

    arcs: Float[Tensor, "batch word candidate"]
    dependents: Float[Tensor, "batch word label_dim"]
    heads: Float[Tensor, "batch candidate label_dim"]


class PairDecoder(Decoder):
    """Deep biaffine attention (Dozat and Manning 2017) over the words and a learned root vector before them.

    One hidden layer makes four vectors of each word: as a dependent and as a head, for arcs and for labels.
    """

    narrow = True

    def __init__(
        self, hidden: int, labels: Labels, arc_dim: int, label_dim: int, dropout: float, *, bias_right: bool
    ) -> None:
        super().__init__()
        self.labels = labels
        self.widths = [arc_dim, arc_dim, label_dim, label_dim]
        self.root = nn.Parameter(torch.randn(hidden) / hidden**0.5)
        self.mlp = Mlp(hidden, sum(self.widths), dropout)
        self.arc = Biaffine(arc_dim, 1, bias_right=bias_right)

    def pair_scores(
        self, words: Float[Tensor, "batch word hidden"], possible: Bool[Tensor, "batch _ candidate"]
    ) -> PairScores:
        """The scores of all pairs; `possible` says which arcs may exist, and no word is its own head."""
        batch, width, _ = words.shape
        root = self.root.to(words.dtype).expand(batch, 1, -1)
        dependent, head, label_dependent, label_head = self.mlp(torch.cat([root, words], 1)).split(
            self.widths, 2
        )
        arcs = at_least_float32(self.arc(dependent[:, 1:], head).squeeze(3))
        itself = torch.eye(width, width + 1, dtype=torch.bool, device=words.device).roll(1, 1)
        return PairScores(
            arcs.masked_fill(~possible | itself, -torch.inf), label_dependent[:, 1:], label_head
        )
