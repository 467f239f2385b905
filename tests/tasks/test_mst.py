"""Single-root maximum spanning trees against enumeration and supar."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from mtl.tasks.decoders.dep import maximum_trees


def _is_single_root_tree(heads: np.ndarray) -> bool:
    for word in range(1, len(heads) + 1):
        seen = set()
        while word:
            if word in seen:
                return False
            seen.add(word)
            word = int(heads[word - 1])
    return int((heads == 0).sum()) == 1


def _total(scores: np.ndarray, heads: np.ndarray) -> float:
    return float(scores[np.arange(len(heads)), heads].sum())


TREES = {
    n: np.array(
        [
            heads
            for heads in itertools.product(range(n + 1), repeat=n)
            if _is_single_root_tree(np.array(heads))
        ]
    )
    for n in range(1, 6)
}


def test_enumeration_finds_as_many_trees_as_there_are() -> None:
    assert [len(trees) for trees in TREES.values()] == [n ** (n - 1) for n in TREES]  # Cayley


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("root_bonus", [0.0, 5.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_best_tree_of_all(scale: float, root_bonus: float, dtype: type) -> None:
    generator = np.random.default_rng(0)
    lengths = np.tile(np.arange(1, 6), 60)
    scores = generator.normal(size=(len(lengths), 5, 6)) * scale
    scores[:, :, 0] += root_bonus * scale  # makes the greedy choice take several roots
    scores = scores.astype(dtype)
    for row, heads in enumerate(maximum_trees(scores, lengths)):
        n = lengths[row]
        best = TREES[n][scores[row, np.arange(n), TREES[n]].sum(1).argmax()]
        np.testing.assert_array_equal(heads[:n], best)
        assert not heads[n:].any()


def test_cycles_within_cycles() -> None:
    # drawn towards 1 <-> 2, that towards 3, all of it towards 4: three contractions, one in the other
    scores = np.full((1, 5, 6), -10.0)
    for dependent, head, score in [
        (1, 2, 9),
        (2, 1, 9),
        (1, 3, 7),
        (3, 2, 8),
        (3, 4, 6),
        (4, 3, 7),
        (5, 4, 3),
    ]:
        scores[0, dependent - 1, head] = score
    heads = maximum_trees(scores, np.array([5]))[0]
    best = TREES[5][scores[0, np.arange(5), TREES[5]].sum(1).argmax()]
    np.testing.assert_array_equal(heads, best)


def test_forbidden_arcs_and_nonsense_scores() -> None:
    scores = np.zeros((3, 3, 4))
    scores[0, :, 0] = -np.inf
    scores[0, 1, 0] = -5.0  # the only root allowed
    scores[1] = np.nan
    scores[2] = -np.inf
    heads = maximum_trees(scores, np.array([3, 3, 3]))
    assert heads[0, 1] == 0
    assert all(_is_single_root_tree(row) for row in heads)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # supar's padding
def test_equals_supar_on_long_sentences() -> None:
    from supar import MatrixTree

    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([30, 17, 1, 2])
    scores = torch.randn(4, 31, 31, generator=generator)
    theirs = MatrixTree(scores.clone(), lengths, multiroot=False).argmax
    ours = maximum_trees(scores[:, 1:].numpy(), lengths.numpy())
    for row, n in enumerate(lengths.tolist()):
        matrix = scores[row, 1 : n + 1].numpy()
        assert _is_single_root_tree(ours[row, :n])
        assert _total(matrix, ours[row, :n]) == pytest.approx(
            _total(matrix, theirs[row, 1 : n + 1].numpy()), abs=1e-4
        )
