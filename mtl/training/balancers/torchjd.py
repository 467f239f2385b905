"""Weightings of the library TorchJD, which the extra `torchjd` installs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mtl.training.balancers.balancer import Balancer, Gram, PerTask, Present

Weighting = Literal["AlignedMTL", "CAGrad", "DualProj", "FairGrad", "IMTLG", "MGDA", "NashMTL", "UPGrad"]
_SETTINGS: Mapping[Weighting, Mapping[str, float]] = {"CAGrad": {"c": 0.5}, "FairGrad": {"alpha": 1.0}}
"""Settings for which the library has no defaults: LibMTL's defaults."""


class TorchJD(Balancer):
    """A weighting of TorchJD (Quinton and Rey 2024) by its name, from the Gram matrix of the encoder.

    The present tasks get the library's weights in its scale: most weightings sum to about 1, while `Uniform`
    gives 1 to each task. The gradients of the decoders get the same weights. A task that is alone in its run
    has weight 1. Nash-MTL starts each update from the weights of the last one, which are the only state.
    Raises `ImportError` if what the weighting needs is not installed.
    """

    gradients = "encoder"
    last: Tensor

    def __init__(self, tasks: int, weighting: Weighting = "UPGrad") -> None:
        super().__init__()
        self.name = weighting
        self.register_buffer("last", torch.ones(tasks, dtype=torch.float64))
        self._of: dict[int, Callable[[Tensor], Tensor]] = {}
        self._weights_of(tasks)  # raises for what is not installed before anything is trained

    @torch.no_grad()
    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        if gram is None:
            raise ValueError("TorchJD needs the Gram matrix of the tasks' gradients over the encoder")
        weights = torch.zeros_like(losses)
        among = gram[present][:, present]
        if not among.isfinite().all():
            return torch.where(present, torch.nan, weights)
        if len(present) == 1 or not among.any():  # nothing to weigh, or no gradient
            return present.to(losses.dtype)
        found = self._nash(among, present) if self.name == "NashMTL" else self._weights_of(len(among))(among)
        weights[present] = found.to(weights.dtype)
        return weights

    def _weights_of(self, tasks: int) -> Any:
        """The library's weighting for a number of tasks."""
        from torchjd import aggregation

        if tasks not in self._of:
            if self.name == "NashMTL":
                self._of[tasks] = aggregation.NashMTL(n_tasks=tasks).weighting
            else:
                self._of[tasks] = getattr(aggregation, f"{self.name}Weighting")(
                    **_SETTINGS.get(self.name, {})
                )
        return self._of[tasks]

    def _nash(
        self, gram: Float[Tensor, "present present"], present: Bool[Tensor, " task"]
    ) -> Float[Tensor, " present"]:
        """Nash-MTL's weights; the library takes gradients, but any with these inner products will do."""
        values, vectors = torch.linalg.eigh(gram)
        weighting = self._weights_of(len(gram))
        weighting.prvs_alpha = self.last[present].cpu().numpy()
        with warnings.catch_warnings():
            # cvxpy compiles the problem anew in each update; the user can do nothing about it.
            warnings.filterwarnings("ignore", message=".*not DPP")
            weights: Tensor = weighting(vectors * values.clamp(min=0).sqrt())
        self.last[present] = torch.from_numpy(np.asarray(weighting.prvs_alpha)).to(self.last)
        return weights
