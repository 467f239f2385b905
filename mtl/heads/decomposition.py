"""Query and key matrices of several heads as one set of shared components, weighted by each head.

The stack of products W_Q[h] W_K[h]^T is a tensor of heads x inputs x inputs. Its canonical polyadic (CP)
decomposition of rank D writes it as the sum over D components of a query vector, a key vector and a weight
for each head (Cordonnier et al. 2020). The tensor itself is never formed: everything that alternating least
squares needs follows from the heads' own matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK = "block"
"""The start whose components belong to one head each."""
_TRIAL_STEPS = 40
"""Steps after which two starts are compared; only the better one continues."""
_PENALTY = 0.03
"""The penalty on the factors' squares, as a share of the squared error."""
_LEAST_PENALTY = 1e-12
"""Added to the penalty, as a share of the Gram matrix's mean diagonal: it makes the solution unique."""
_FIRST_PUSH, _LEAST_PUSH, _LARGEST_PUSH = 0.5, 0.3, 1.0
"""How far factors are extrapolated before a step, as a share of the last step: first, least and most."""


class Factors(NamedTuple):
    """A CP decomposition: component r has a query vector, a key vector and a weight for each head."""

    queries: Float[Tensor, "input component"]
    keys: Float[Tensor, "input component"]
    mixing: Float[Tensor, "head component"]


@dataclass(frozen=True)
class Decomposition:
    """Shared components of the heads of one attention, and how well they reproduce the heads' products."""

    factors: Factors
    error: float
    """Relative error: the Frobenius norm of the residual over that of the tensor."""
    truncated: float
    """The error of the block start, the best decomposition whose components belong to one head each."""
    history: tuple[float, ...]
    """The error of the best start, and the error after each of its steps."""
    start: str
    """Which start was the best one: `block`, `noise 1`, `random 1`, `noise 2`, ..."""


def decompose(
    queries: Float[Tensor, "head input size"],
    keys: Float[Tensor, "head input size"],
    components: int,
    *,
    starts: int = 3,
    steps: int = 200,
    seed: int = 0,
) -> Decomposition:
    """The CP decomposition of the stack of `queries[h] keys[h]^T`, by alternating least squares.

    The first start (`block`) takes the largest singular values of all heads' products, each a component of
    its head alone. That is exact for heads x size components. The others are, by turns, this start with
    noise, and random numbers; after 40 steps only the best one continues. Steps are extrapolated (Mitchell et
    al. 2020); one that would raise the error is repeated without extrapolation. No step raises the error.

    A small penalty on the squares of all factors, which shrinks with the error, keeps components from growing
    in opposite directions that cancel each other without lowering the error.

    Args:
        queries: W_Q of each head.
        keys: W_K of each head.
        components: their number, from 1 to heads x size.
        starts: how many starts are compared; 1: only the first.
        steps: steps of the best start; 0 gives the best of the starts as they are.
        seed: seed of the noise and the random numbers.
    """
    with torch.no_grad():
        problem = _Problem(queries.detach().double(), keys.detach().double())
        heads, _, size = queries.shape
        block = problem.block_start(components)
        generator = torch.Generator(device=queries.device).manual_seed(seed)
        best = _Descent(problem, block, BLOCK)
        [truncated] = best.history
        if components == heads * size or problem.square == 0:  # nothing is missing
            return best.result(truncated)
        for number in range(1, starts):
            kind = ("noise", "random")[(number - 1) % 2]
            name = f"{kind} {(number + 1) // 2}"
            candidate = _Descent(problem, _drawn(block, kind, generator), name)
            best.run(min(_TRIAL_STEPS, steps))
            candidate.run(min(_TRIAL_STEPS, steps))
            best = min(best, candidate, key=lambda descent: descent.history[-1])
        best.run(steps)
        return best.result(truncated)


class _Problem:
    """The tensor, represented by the matrices of its heads."""

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        self.per_head = (queries, keys)
        self.heads, _, self.size = queries.shape
        self.queries, self.keys = (matrix.transpose(0, 1).flatten(1) for matrix in (queries, keys))
        grams = (matrix.transpose(1, 2) @ matrix for matrix in (queries, keys))
        self.square = (next(grams) * next(grams)).sum()

    def block_start(self, components: int) -> Factors:
        """The largest singular values of the heads' products, each a component of its head alone."""
        (left, narrow_left), (right, narrow_right) = map(torch.linalg.qr, self.per_head)
        u, values, vh = torch.linalg.svd(narrow_left @ narrow_right.transpose(1, 2))
        largest = values.flatten().topk(components).indices.sort().values
        head, place = largest // values.shape[1], largest % values.shape[1]
        root = values[head, place].sqrt()
        mixing = values.new_zeros(self.heads, components)
        mixing[head, torch.arange(components, device=head.device)] = 1
        return Factors(
            (left @ u)[head, :, place].T * root, (right @ vh.transpose(1, 2))[head, :, place].T * root, mixing
        )

    def step(self, factors: Factors, penalty: float) -> tuple[Factors, float]:
        """One round of least squares in queries, keys and mixing; returns the factors and their error.

        `penalty` is the weight of the sum of squares of all factors.
        """
        queries, keys, mixing = factors
        weights = mixing.repeat_interleave(self.size, 0)
        weighed = mixing.T @ mixing
        right = self.queries @ ((self.keys.T @ keys) * weights)
        queries = _solved((keys.T @ keys) * weighed, right, penalty)
        of_queries = self.queries.T @ queries
        right = self.keys @ (of_queries * weights)
        keys = _solved((queries.T @ queries) * weighed, right, penalty)
        gram = (queries.T @ queries) * (keys.T @ keys)
        right = (of_queries * (self.keys.T @ keys)).unflatten(0, (self.heads, self.size)).sum(1)
        mixing = _solved(gram, right, penalty)
        return _even(Factors(queries, keys, mixing)), self._error(gram, right, mixing)

    def error(self, factors: Factors) -> float:
        """The relative error of a decomposition."""
        queries, keys, mixing = factors
        both = (self.queries.T @ queries) * (self.keys.T @ keys)
        right = both.unflatten(0, (self.heads, self.size)).sum(1)
        return self._error((queries.T @ queries) * (keys.T @ keys), right, mixing)

    def _error(self, gram: Tensor, right: Tensor, mixing: Tensor) -> float:
        missing = self.square - 2 * (right * mixing).sum() + (gram * (mixing.T @ mixing)).sum()
        return 0.0 if self.square == 0 else float((missing / self.square).clamp(min=0).sqrt())


class _Descent:
    """Alternating least squares from one start."""

    def __init__(self, problem: _Problem, start: Factors, name: str) -> None:
        self.problem, self.factors, self.name = problem, _even(start), name
        self.history = [problem.error(start)]
        self.before: Factors | None = None
        self.push, self.share = _FIRST_PUSH, _PENALTY

    def run(self, steps: int) -> None:
        """Step until `steps` have been made in all."""
        while len(self.history) <= steps:
            self._step()

    def _step(self) -> None:
        last = self.history[-1]
        squares = sum(float(factor.square().sum()) for factor in self.factors)
        penalty = self.share * last**2 * float(self.problem.square) / squares
        pushed = self._pushed()
        reached, error = self.problem.step(pushed or self.factors, penalty)
        if pushed is not None and error > last:
            self.push = max(self.push / 2, _LEAST_PUSH)
            reached, error = self.problem.step(self.factors, penalty)
        else:
            self.push = min(self.push * 1.1, _LARGEST_PUSH)
        if error > last:  # because of the penalty or of rounding
            self.share /= 2
            self.before = None
            self.history.append(last)
            return
        self.before, self.factors = self.factors, reached
        self.history.append(error)

    def _pushed(self) -> Factors | None:
        """The factors, extrapolated in the direction of the last step; `None` if there was none."""
        if self.before is None:
            return None
        both = zip(self.factors, self.before, strict=True)
        return Factors(*(now + self.push * (now - old) for now, old in both))

    def result(self, truncated: float) -> Decomposition:
        """The decomposition, with each component's largest weight 1 and its vectors equally long."""
        queries, keys, mixing = self.factors
        largest = mixing.gather(0, mixing.abs().argmax(0, keepdim=True))[0]
        scale = torch.where(largest == 0, 1.0, largest)
        factors = Factors(queries * scale, keys, mixing / scale)
        lengths = [vectors.norm(dim=0).clamp(min=torch.finfo(keys.dtype).tiny) for vectors in factors[:2]]
        ratio = (lengths[0] / lengths[1]).sqrt()
        usable = (factors.queries.norm(dim=0) > 0) & (factors.keys.norm(dim=0) > 0)
        ratio = torch.where(usable, ratio, 1.0)
        balanced = Factors(factors.queries / ratio, factors.keys * ratio, factors.mixing)
        return Decomposition(balanced, self.history[-1], truncated, tuple(self.history), self.name)


def _solved(gram: Tensor, right: Tensor, penalty: float) -> Tensor:
    """The rows x that solve x (gram + weight I) = right."""
    weight = penalty + _LEAST_PENALTY * gram.diagonal().mean()
    damped = gram + weight * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(damped, right.T).T


def _even(factors: Factors) -> Factors:
    """The same decomposition with the three vectors of a component equally long."""
    tiny = torch.finfo(factors.queries.dtype).tiny
    lengths = [factor.norm(dim=0).clamp(min=tiny) for factor in factors]
    mean = (lengths[0] * lengths[1] * lengths[2]) ** (1 / 3)
    return Factors(*(factor * (mean / length) for factor, length in zip(factors, lengths, strict=True)))


def _drawn(block: Factors, kind: str, generator: torch.Generator) -> Factors:
    """A start with random numbers, or the block start with noise of a tenth of its size."""
    drawn = []
    for factor in block:
        noise = torch.randn(factor.shape, generator=generator, dtype=factor.dtype, device=factor.device)
        size = factor.square().mean().sqrt()
        drawn.append(factor + 0.1 * size * noise if kind == "noise" else size * noise)
    return Factors(*drawn)
