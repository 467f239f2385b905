"""Single-root trees with the greatest sum, all and projective ones, against enumeration and supar."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from mtl.tasks.decoders.dep import maximum_trees, projective_trees


def _is_tree(heads: tuple[int, ...]) -> bool:
    """Whether there is one root and no cycle."""
    return heads.count(0) == 1 and all(_path(word, heads)[-1] == 0 for word in range(1, len(heads) + 1))


def _is_projective(heads: tuple[int, ...]) -> bool:
    """By the definition: all words between head and dependent of a tree are below the head."""
    return all(
        head in _path(between, heads)
        for word, head in enumerate(heads, 1)
        if head
        for between in range(min(word, head), max(word, head) + 1)
    )


def _path(word: int, heads: tuple[int, ...]) -> list[int]:
    """A word and what is above it, cut where there is a cycle."""
    path = [word]
    while path[-1] and len(path) <= len(heads) + 1:
        path.append(heads[path[-1] - 1])
    return path


def _is_projective_tree(heads: tuple[int, ...]) -> bool:
    return _is_tree(heads) and _is_projective(heads)


def _enumerated(of_kind: Callable[[tuple[int, ...]], bool]) -> dict[int, np.ndarray]:
    return {
        n: np.array([heads for heads in itertools.product(range(n + 1), repeat=n) if of_kind(heads)])
        for n in range(1, 6)
    }


TREES, PROJECTIVE = _enumerated(_is_tree), _enumerated(_is_projective_tree)
of_both = pytest.mark.parametrize(
    ("solve", "trees", "of_kind"),
    [
        pytest.param(maximum_trees, TREES, _is_tree, id="all"),
        pytest.param(projective_trees, PROJECTIVE, _is_projective_tree, id="projective"),
    ],
)


def test_enumeration_finds_as_many_trees_as_there_are() -> None:
    assert [len(trees) for trees in TREES.values()] == [n ** (n - 1) for n in TREES]  # Cayley
    assert [len(trees) for trees in PROJECTIVE.values()] == [1, 2, 7, 30, 143]  # OEIS A006013


@of_both
@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("root_bonus", [0.0, 5.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_best_tree_of_all(solve, trees, of_kind, scale: float, root_bonus: float, dtype: type) -> None:
    generator = np.random.default_rng(0)
    lengths = np.tile(np.arange(1, 6), 60)
    scores = generator.normal(size=(len(lengths), 5, 6)) * scale
    scores[:, :, 0] += root_bonus * scale  # makes the greedy choice take several roots
    scores = scores.astype(dtype)
    for row, heads in enumerate(solve(scores, lengths)):
        n = lengths[row]
        best = trees[n][scores[row, np.arange(n), trees[n]].sum(1).argmax()]
        np.testing.assert_array_equal(heads[:n], best)
        assert not heads[n:].any()
    assert (maximum_trees(scores, lengths) != projective_trees(scores, lengths)).any()  # some cross


def test_cycles_within_cycles() -> None:
    # drawn towards 1 <-> 2, that towards 3, all of it towards 4: three contractions, one in the other
    scores = np.full((1, 5, 6), -10.0)
    for dependent, head, score in [
        (1, 2, 9), (2, 1, 9), (1, 3, 7), (3, 2, 8), (3, 4, 6), (4, 3, 7), (5, 4, 3),
    ]:  # fmt: skip
        scores[0, dependent - 1, head] = score
    heads = maximum_trees(scores, np.array([5]))[0]
    best = TREES[5][scores[0, np.arange(5), TREES[5]].sum(1).argmax()]
    np.testing.assert_array_equal(heads, best)


@of_both
def test_forbidden_arcs_and_nonsense_scores(solve, trees, of_kind) -> None:
    scores = np.zeros((3, 3, 4))
    scores[0, :, 0] = -np.inf
    scores[0, 1, 0] = -5.0  # the only root allowed
    scores[1] = np.nan
    scores[2] = -np.inf
    heads = solve(scores, np.array([3, 3, 3]))
    assert heads[0, 1] == 0
    assert all(of_kind(tuple(row.tolist())) for row in heads)


@of_both
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # supar's padding
def test_equals_supar_on_long_sentences(solve, trees, of_kind) -> None:
    from supar import DependencyCRF, MatrixTree

    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([30, 17, 1, 2])
    scores = torch.randn(4, 31, 31, generator=generator)
    model = MatrixTree if solve is maximum_trees else DependencyCRF
    theirs = model(scores.clone(), lengths, multiroot=False).argmax
    ours = solve(scores[:, 1:].numpy(), lengths.numpy())
    for row, n in enumerate(lengths.tolist()):
        assert of_kind(tuple(ours[row, :n].tolist()))
        of_words = scores[row, 1 : n + 1].numpy()
        totals = [of_words[np.arange(n), heads].sum() for heads in (ours[row, :n], theirs[row, 1 : n + 1])]
        assert totals[0] == pytest.approx(totals[1], abs=1e-4)
        if solve is projective_trees:
            np.testing.assert_array_equal(ours[row, :n], theirs[row, 1 : n + 1].numpy())
