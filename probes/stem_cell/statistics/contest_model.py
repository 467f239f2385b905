"""The linear model of the contest for one task; see `mtl.probes.stem_cell.statistics.contest`."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from mtl.probes.stem_cell.statistics.contest_cells import ContestCells, TaskWorth
from mtl.probes.stem_cell.statistics.worth_units import Unit


class TaskBlock:
    """Worth and claims of one task's own heads (those that it claims) beside each of its partners.

    The effects of head and of partner by site are taken out.
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
        self.claims: Float[np.ndarray, "claim_seed partner own"] = (
            np.stack([cells.of_seeds[partner][:, self.own] for partner in of.partners], axis=1).astype(
                np.float64
            )
            if cells.of_seeds
            else np.zeros((0, *self.claim.shape))
        )
        self.residual = self.centred(values[:, self.own])

    def centred(
        self, values: Float[np.ndarray, "*draw partner own"]
    ) -> Float[np.ndarray, "*draw partner own"]:
        """Values less the means of head and of partner by site: the residuals of a complete two-way table."""
        return (values - values.mean(-2, keepdims=True)) @ self.within

    def with_worth(self, claim: Float[np.ndarray, "*draw partner own"]) -> Float[np.ndarray, "*draw"]:
        """The inner product of any claims with worth, both without the effects."""
        return np.asarray(np.einsum("...uh,uh->...", claim, self.residual))

    def square(self, claim: Float[np.ndarray, "*draw partner own"]) -> Float[np.ndarray, "*draw"]:
        """The squared length of any claims without the effects."""
        return np.asarray(np.einsum("...uh,...uh->...", claim, self.centred(claim)))

    def with_claims(
        self, claim: Float[np.ndarray, "*draw partner own"], others: Float[np.ndarray, "partner own"]
    ) -> Float[np.ndarray, "*draw"]:
        """The inner product of any claims with others, both without the effects."""
        return np.asarray(np.einsum("...uh,uh->...", claim, self.centred(others)))

    def compared(self) -> Int[np.ndarray, " compared"]:
        """The cells of the heads that some partner claims and another does not."""
        return self.own[self.claim.any(0) & ~self.claim.all(0)]


def in_unit(of: TaskWorth, unit: Unit) -> Float[np.ndarray, "seed partner cell"]:
    """What heads are worth to a task in a unit; raises `ValueError` for worth that the unit cannot hold."""
    try:
        return unit.scaled(of.worth)
    except ValueError as error:
        raise ValueError(f"{of.task} beside {', '.join(of.partners)}: {error}") from error
