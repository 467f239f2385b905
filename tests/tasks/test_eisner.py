"""Single-root projective trees against enumeration and supar."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from mtl.tasks.decoders.dep import maximum_trees, projective_trees


def _is_projective_tree(heads: tuple[int, ...]) -> bool:
    """By the definition: one root, no cycle, and all words between head and dependent below the head."""
    above = []
    for word in range(1, len(heads) + 1):
        path = [word]
        while path[-1]:
            path.append(heads[path[-1] - 1])
            if len(path) > len(heads) + 1:
                return False
        above.append(path)
    return heads.count(0) == 1 and all(
        head in above[between - 1]
        for word, head in enumerate(heads, 1)
        if head
        for between in range(min(word, head), max(word, head) + 1)
    )


TREES = {
    n: np.array([heads for heads in itertools.product(range(n + 1), repeat=n) if _is_projective_tree(heads)])
    for n in range(1, 6)
}


def test_enumeration_finds_as_many_trees_as_there_are() -> None:
    assert [len(trees) for trees in TREES.values()] == [1, 2, 7, 30, 143]  # OEIS A006013


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("root_bonus", [0.0, 5.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_best_tree_of_all(scale: float, root_bonus: float, dtype: type) -> None:
    generator = np.random.default_rng(0)
    lengths = np.tile(np.arange(1, 6), 60)
    scores = generator.normal(size=(len(lengths), 5, 6)) * scale
    scores[:, :, 0] += root_bonus * scale
    scores = scores.astype(dtype)
    differ = 0
    for row, (heads, any_tree) in enumerate(
        zip(projective_trees(scores, lengths), maximum_trees(scores, lengths), strict=True)
    ):
        n = lengths[row]
        best = TREES[n][scores[row, np.arange(n), TREES[n]].sum(1).argmax()]
        np.testing.assert_array_equal(heads[:n], best)
        assert not heads[n:].any()
        differ += not np.array_equal(heads, any_tree)
    assert differ  # some of the best trees cross


def test_forbidden_arcs_and_nonsense_scores() -> None:
    scores = np.zeros((3, 3, 4))
    scores[0, :, 0] = -np.inf
    scores[0, 1, 0] = -5.0  # the only root allowed
    scores[1] = np.nan
    scores[2] = -np.inf
    heads = projective_trees(scores, np.array([3, 3, 3]))
    assert heads[0, 1] == 0
    assert all(_is_projective_tree(tuple(row.tolist())) for row in heads)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # supar's padding
def test_equals_supar_on_long_sentences() -> None:
    from supar import DependencyCRF

    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([30, 17, 1, 2])
    scores = torch.randn(4, 31, 31, generator=generator)
    theirs = DependencyCRF(scores.clone(), lengths, multiroot=False).argmax
    ours = projective_trees(scores[:, 1:].numpy(), lengths.numpy())
    for row, n in enumerate(lengths.tolist()):
        assert _is_projective_tree(tuple(ours[row, :n].tolist()))
        np.testing.assert_array_equal(ours[row, :n], theirs[row, 1 : n + 1].numpy())
