"""The linear model of the contest for one task; see `mtl.probes.stem_cell.statistics.contest`."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from mtl.probes.stem_cell.statistics.contest_cells import ContestCells, TaskWorth
from mtl.probes.stem_cell.statistics.worth_units import Unit


class TaskBlock:
    """Worth and claims of one task's own heads (those that it claims) beside each of its partners.

    The effects of heads, and of partners by site, are taken out.
    """

    def __init__(self, cells: ContestCells, of: TaskWorth, values: Float[np.ndarray, "partner cell"]) -> None:
        self.own: Int[np.ndarray, " own"] = np.flatnonzero(cells.claims[of.task])
        self.partners = of.partners
        strata = cells.strata[self.own]
        alike = (strata[:, None] == strata).astype(np.float64)
        self.within = np.eye(len(self.own)) - alike / np.maximum(alike.sum(1), 1)
        self.claim: Float[np.ndarray, "partner own"] = np.array(
            [cells.claims[partner][self.own] for partner in of.partners], dtype=np.float64
        )
        self.residual = self.centred(values[:, self.own])
        # One over the part of a cell's variance that the effects leave; 0 if they leave nothing.
        left = np.diag(self.within) * (1 - 1 / len(of.partners))
        self.over = np.where(left > 0, 1 / np.maximum(left, 1e-12), 0.0)

    def centred(
        self, values: Float[np.ndarray, "*draw partner own"]
    ) -> Float[np.ndarray, "*draw partner own"]:
        """Values less the means of heads, and of partners by site: residuals of a complete two-way table."""
        return (values - values.mean(-2, keepdims=True)) @ self.within

    def with_worth(
        self, claim: Float[np.ndarray, "partner own"], values: Float[np.ndarray, "seed partner cell"]
    ) -> Float[np.ndarray, " seed"]:
        """The inner products of claims with the worth of each seed, without the effects."""
        return np.asarray((claim * self.centred(values[..., self.own])).sum((-2, -1)))

    def with_claims(self, claims: Float[np.ndarray, "mask partner own"]) -> Float[np.ndarray, "mask mask"]:
        """The inner products of all pairs of sets of claims without the effects."""
        return np.einsum("auh,buh->ab", claims, self.centred(claims))

    def sums(
        self,
        claims: Float[np.ndarray, "*draw mask partner own"],
        others: Float[np.ndarray, "mask partner own"],
    ) -> Float[np.ndarray, "*draw part"]:
        """What the statistic at any beta is made of, for any claims.

        `others` are the masks for which the claims are instruments; with one mask, its own claims. At beta, a
        cell's score is first + beta * second: the products of claims with worth, and with `others`, summed
        over masks, without the effects. The five parts are sums over cells: of first; of second; and, each
        divided by the part of the cell's variance that the effects leave, of first squared, of first times
        second, and of second squared.
        """
        centred = self.centred(claims)
        first = centred.sum(-3) * self.residual
        second = np.einsum("...suh,suh->...uh", centred, self.centred(others))
        parts = (first, second, first**2 * self.over, first * second * self.over, second**2 * self.over)
        return np.stack([part.sum((-2, -1)) for part in parts], axis=-1)

    def compared(self) -> Int[np.ndarray, " compared"]:
        """The cells of the heads that some partner claims and another does not."""
        return self.own[self.claim.any(0) & ~self.claim.all(0)]


def in_unit(of: TaskWorth, unit: Unit) -> Float[np.ndarray, "seed partner cell"]:
    """What heads are worth to a task, in a unit; raises `ValueError` for worth that the unit cannot hold."""
    try:
        return unit.scaled(of.worth)
    except ValueError as error:
        raise ValueError(f"{of.task} beside {', '.join(of.partners)}: {error}") from error
