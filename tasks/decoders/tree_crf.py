"""Trees whose arcs depend on each other: a CRF over trees, and variational inference.

supar has the dynamic programming over projective trees. Its sum over all trees (`MatrixTree`) overflows where
scores are far apart, and its variational inference cannot be exported to ONNX, so these are here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from mtl.tasks.decoders.decoder import (
    MEAN_FIELD_STEPS,
    PairScores,
    WordMask,
    WordVectors,
    of_other_words,
    scores_at,
)
from mtl.tasks.decoders.dep import ArcBatch, DepDecoder, SiblingScores, TreeScores, siblings_of
from mtl.tasks.task import UNKNOWN

_FORBIDDEN = -1e30
"""The score of an arc that cannot be: finite, since the gradient of a sum without finite terms is NaN."""


class TreeCrf(DepDecoder):
    """A distribution over all trees with one root, by the sum of their arcs' scores.

    With `sibling_dim`, the sum also has a score for each word with its head and the next word towards the
    head that has the same head (McDonald and Pereira 2006; Zhang et al. 2020); trees are then projective. The
    loss is that of all trees together that agree with the known heads. The tree with the greatest expected
    number of right heads is decoded (minimum Bayes risk).
    """

    def loss(self, scores: TreeScores, targets: ArcBatch, mask: WordMask) -> Float[Tensor, " batch"]:
        known, lengths, of_siblings = targets.heads != UNKNOWN, mask.sum(1), siblings_of(scores)
        gold = self._of_arcs(scores, targets.heads).sum(1)
        partial = (known.sum(1) < lengths).nonzero()[:, 0]
        if len(partial):
            heads = torch.arange(scores.arcs.shape[2], device=mask.device)
            ruled_out = known[:, :, None] & (targets.heads[:, :, None] != heads)
            arcs = scores.arcs.masked_fill(ruled_out, -torch.inf)[partial]
            siblings = None if of_siblings is None else of_siblings[partial]
            gold = gold.index_copy(0, partial, self.log_partition(arcs, siblings, lengths[partial]))
        relations = self._relation_losses(scores, targets).sum(1)
        return self.log_partition(scores.arcs, of_siblings, lengths) - gold + relations

    def log_partition(
        self,
        arcs: Float[Tensor, "batch word candidate"],
        siblings: Float[Tensor, "batch candidate candidate candidate"] | None,
        lengths: Int[Tensor, " batch"],
    ) -> Float[Tensor, " batch"]:
        """The logarithm of the sum over trees."""
        arcs = arcs.clamp_min(_FORBIDDEN)
        if not self.projective:
            return log_sum_over_trees(arcs, lengths)
        # Takes seconds: nltk, scikit-learn and supar's own parsers.
        from supar.structs import Dependency2oCRF, DependencyCRF

        # supar asks for gradients of the very tensors that it is given, which must not be inference tensors.
        with torch.inference_mode(False):
            square, lengths = functional.pad(arcs, (0, 0, 1, 0)), lengths.clone()
            trees = (
                DependencyCRF(square, lengths)
                if siblings is None
                else Dependency2oCRF((square, siblings.clone()), lengths)
            )
            partition: Tensor = trees.log_partition
            return partition

    def head_probabilities(self, scores: TreeScores, mask: WordMask) -> Float[Tensor, "batch word candidate"]:
        """The marginals of arcs: gradients of the sum over trees."""
        with torch.inference_mode(False), torch.enable_grad():
            arcs = scores.arcs.detach().clone().requires_grad_()
            siblings = siblings_of(scores)
            siblings = None if siblings is None else siblings.detach().clone()
            return torch.autograd.grad(self.log_partition(arcs, siblings, mask.sum(1)).sum(), arcs)[0]

    def _for_trees(self, scores: TreeScores, mask: WordMask) -> Float[Tensor, "batch word candidate"]:
        return self.head_probabilities(scores, mask).masked_fill(scores.arcs.isneginf(), -torch.inf)

    def _of_arcs(self, scores: TreeScores, heads: Int[Tensor, "batch word"]) -> Float[Tensor, "batch word"]:
        of_arcs = super()._of_arcs(scores, heads)
        siblings = siblings_of(scores)
        if siblings is None:
            return of_arcs
        width = siblings.shape[3]
        of_head = heads.clamp_min(0)[:, :, None, None].expand(-1, -1, 1, width)
        of_siblings = siblings[:, 1:].gather(2, of_head).squeeze(2)
        return of_arcs + scores_at(of_siblings, next_siblings(heads))


def next_siblings(heads: Int[Tensor, "batch word"]) -> Int[Tensor, "batch word"]:
    """For each word the number of the next word towards its head that has the same head, or `UNKNOWN`."""
    numbers = torch.arange(1, heads.shape[1] + 1, device=heads.device)
    head, word = heads[:, :, None], numbers[:, None]
    between = (torch.minimum(head, word) < numbers) & (numbers < torch.maximum(head, word))
    away = (word - numbers).abs().masked_fill(~between | (heads[:, None] != head), len(numbers))
    nearest, index = away.min(2)
    return torch.where((nearest < len(numbers)) & (heads > 0), index + 1, UNKNOWN)


def log_sum_over_trees(
    scores: Float[Tensor, "batch word candidate"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """The logarithm of the sum over all trees with one root, of exp of the sum of their arcs' scores.

    It is the determinant of the matrix-tree theorem (Koo et al. 2007), in logarithms in float64. Words are
    eliminated one by one without any subtraction (Grassmann, Taksar and Heyman 1985): the arcs through the
    eliminated word become arcs between the others. So it is exact also where some scores are far above
    others. Arcs from the root get a penalty so high that trees with one of them have all of the sum.
    """
    words = scores.shape[1]
    numbers = torch.arange(words, device=scores.device)
    padding = numbers >= lengths[:, None]
    possible = scores.detach() > _FORBIDDEN / 2
    highest = scores.detach().masked_fill(~possible, -torch.inf).amax((1, 2)).double()
    lowest = scores.detach().masked_fill(~possible, torch.inf).amin((1, 2)).double()
    penalty = ((highest - lowest).clamp(0, 1e9) + 1) * lengths + 40
    own = numbers[:, None] == numbers
    # A word of padding hangs from the root, with weight 1, and nothing hangs from it.
    apart = padding[:, :, None] | padding[:, None] | own
    arcs = scores[:, :, 1:].double().masked_fill(apart, _FORBIDDEN)
    roots = (scores[:, :, 0].double() - penalty[:, None]).masked_fill(padding, 0.0)
    total = penalty
    for last in range(words - 1, -1, -1):
        leaving = torch.cat([arcs[:, last, :last], roots[:, last, None]], 1).logsumexp(1)
        total = total + leaving
        entering = arcs[:, :last, last] - leaving[:, None]
        through = entering[:, :, None] + arcs[:, last, None, :last]
        roots = torch.logaddexp(roots[:, :last], entering + roots[:, last, None])
        arcs = torch.logaddexp(arcs[:, :last, :last], through).masked_fill(own[:last, :last], _FORBIDDEN)
    return total.to(scores.dtype)


class VariationalTrees(DepDecoder):
    """Heads by mean field inference over all pairs of words with one head (Wang and Tu 2020).

    The scores of arcs are those after the last step, whose softmax is the distribution of a word's head. Loss
    and decoding are those of `DepDecoder`.
    """

    def forward(self, words: WordVectors, mask: WordMask) -> PairScores:
        scores = super().forward(words, mask)
        assert isinstance(scores, SiblingScores)
        siblings = of_other_words(scores.siblings, mask)
        arcs = scores.arcs
        for _ in range(MEAN_FIELD_STEPS):
            arcs = scores.arcs + (arcs.softmax(2).mT[:, None] * siblings).sum(3)
        return PairScores(arcs, scores.dependents, scores.heads)
