"""Ablation of heads in any `transformers` model of the families table, called from Python.

A score may do anything with the model. What is computed below a closed head is reused only if a score runs
the model once, with inputs that are the same for every ablation; both are checked. Otherwise the score is
computed as a whole under each ablation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mtl.analysis.ablation.joint import KINDS, Ablation, Kind, ablations
from mtl.analysis.batch_rows import Inputs, Model, copies_of, given_again, has_no_rows, require_passes, vector
from mtl.errors import InputError
from mtl.heads.arguments import batches_of, function_of, one_of, seed_of, whole_number
from mtl.heads.family_table import Family
from mtl.heads.given_models import device_of
from mtl.heads.replay import LayerReplay, OtherPassError
from mtl.heads.tap import HeadTap, tapped
from mtl.models.modes import in_evaluation_mode
from mtl.probes.statistics.paired_scores import DRAWS, score_losses


def ablate_heads(
    model: Model,
    batches: Iterable[Inputs],
    score: Callable[[Model, Inputs], Float[Tensor, " row"]],
    *,
    kind: Kind = "head",
    copies: int = 1,
    draws: int = DRAWS,
    seed: int = 0,
    family: Family | str | None = None,
) -> pl.DataFrame:
    """How much the mean score of a `transformers` model loses without a head.

    Any family in the table of families works. The score may run the model in any way: once, several times,
    row by row, or in a search. If it runs the model once, layers below the closed head are not computed
    again.

    Args:
        model: The model, with or without a head on top, or a module around it (compiled, with adapters); it
            is not changed.
        batches: What `score` takes, for instance a `DataLoader`; read once.
        score: Returns the score of each row of a batch, computed by `model`: 1 if it is right, or minus a
            loss. Equal calls must return equal scores (checked once per batch).
        kind: Close one head (`head`), all heads of a layer except one (`all_but_one`), or all (`layer`).
        copies: The number of ablations in one pass through the model. More than one saves time for small
            batches on an accelerator. `score` is then called with several copies of the rows; if that changes
            its values, it is called with one copy at a time.
        draws: Resamples for intervals and p (`score_losses`).
        seed: Random seed for the resamples.
        family: The model's row, if the table has none (`Family`), or the name of a row that fits.

    Returns:
        One row per ablation: attention, layer, head (null for layers), loss, low, high, p, q; the loss and
        its interval (low, high) are in units of the score.

    Raises:
        InputError: the kind does not exist, the score is not a vector with a finite entry per row or differs
            between equal calls, there are no batches, the model is not in the table or has no weights, or
            another argument is wrong.
    """
    transformer, row, tap = tapped(model, "ablate_heads", family)
    function_of(score, "score")
    chosen = ablations(one_of(kind, "kind", KINDS), tap.remaining)
    draws, seed = whole_number(draws, "draws", 1), seed_of(seed)
    scores = _Scores(model, tap, LayerReplay(transformer, row), score)
    copies = whole_number(copies, "copies", 1)
    with torch.no_grad(), in_evaluation_mode(model):
        parts = [
            scores.of_batch(batch, chosen, copies) for batch in batches_of(batches) if not has_no_rows(batch)
        ]
    if not parts:
        raise InputError("ablation needs at least one batch with rows")
    by_variant = np.concatenate(parts, 1)
    counts = np.stack([by_variant, np.ones_like(by_variant)], -1)
    sites = [site for ablation in chosen for site in ablation.sites]
    lost = score_losses(counts[0], counts[1:], _mean, draws=draws, seed=seed)
    return pl.DataFrame(
        {
            "attention": [tap.sites[site].attention for site in sites],
            "layer": [tap.sites[site].layer for site in sites],
            "head": [ablation.head for ablation in chosen],
            "loss": lost.loss, "low": lost.low, "high": lost.high, "p": lost.p, "q": lost.q,
        }
    )  # fmt: skip


class _Scores:
    """The scores of batches under ablations; they are replayed where that is exact."""

    def __init__(
        self, model: nn.Module, tap: HeadTap, replay: LayerReplay, score: Callable[[Any, Any], Any]
    ) -> None:
        self.model, self.tap, self.replay, self.score = model, tap, replay, score
        self.device = device_of(tap.model)

    def of_batch(
        self, batch: Any, chosen: Sequence[Ablation], copies: int
    ) -> Float[np.ndarray, "variant row"]:
        """The scores of the rows without ablation, then under each ablation."""
        with self.replay.record():
            unchanged = self._vector(batch)
        require_passes(self.replay.ran, "score")
        self._replaying = self.replay.repeatable and self._is_replayed(batch, unchanged)
        if not self._replaying:
            self._require_repeatable(batch, unchanged)
        self._copying: bool | None = None if copies > 1 else False
        variants, kind = [unchanged], ""
        for [site], group in groupby(chosen, key=lambda ablation: ablation.sites):
            together = list(group)
            if self._copying and self.tap.sites[site].attention != kind:
                # Copies that are independent in one kind may meet in another: an image meets all captions.
                self._copying = None
            kind = self.tap.sites[site].attention
            for share in np.array_split(np.arange(len(together)), -(-len(together) // copies)):
                variants += self._share(batch, [together[index] for index in share], unchanged)
        return torch.stack(variants).numpy()

    def _vector(self, batch: Any) -> Float[Tensor, " row"]:
        value = vector(self.score(self.model, given_again(batch)), batch, "score")
        return value.detach().double().cpu()

    def _require_repeatable(self, batch: Any, unchanged: Float[Tensor, " row"]) -> None:
        """Raise `InputError` if a second call gives another score, or computes less."""
        calls = self.replay.calls
        with self.replay.record():
            again = self._vector(batch)
        if self.replay.calls != calls:
            raise InputError(
                f"two calls of the score with one batch call {calls} and {self.replay.calls} times the heads "
                "of a layer: a score must compute all that it needs in every call, and keep nothing"
            )
        if _equal([again], [unchanged]):
            return
        means = " and ".join(f"{score.mean().item():g}" for score in (unchanged, again))
        raise InputError(
            f"two calls of the score with one batch give {means} on average: a score must neither draw at "
            "random nor depend on earlier calls"
        )

    def _is_replayed(self, batch: Any, unchanged: Float[Tensor, " row"]) -> bool:
        """Whether a pass that computes as little as possible gives the score that was recorded."""
        try:
            with self.replay.start_at(self.replay.last):
                return _equal([self._vector(batch)], [unchanged])
        except Exception:  # whatever the caller's function does with what a replay lacks
            return False

    def _share(
        self, batch: Any, share: Sequence[Ablation], unchanged: Float[Tensor, " row"]
    ) -> list[Float[Tensor, " row"]]:
        """The scores under ablations of one site."""
        if len(share) > 1 and self._replaying and self._copying is not False:
            several = self._side_by_side(batch, share, len(unchanged))
            if self._copying and several:
                return several
            # Copies may influence each other's values, or their rows may be in another order.
            alone = [self._one(batch, ablation) for ablation in share]
            same = _equal(several, alone)
            # Where the ablations change nothing, equal values say nothing about how the score treats copies.
            self._copying = None if same and _equal(alone, [unchanged] * len(share)) else same
            return alone
        return [self._one(batch, ablation) for ablation in share]

    def _side_by_side(self, batch: Any, share: Sequence[Ablation], rows: int) -> list[Float[Tensor, " row"]]:
        """The scores of copies of the batch, one for each ablation; empty if copies cannot be scored."""
        copies = copies_of(batch, rows, len(share))
        if copies is None:
            return []
        [site] = share[0].sites
        scales = torch.stack([self._scale(ablation) for ablation in share])
        of_row = scales.repeat_interleave(self.replay.rows, 0)
        try:
            with self.replay.start_at(site, len(share)), self.tap.scale(of_row):
                return list(self._vector(copies).split(rows))
        except Exception:  # the caller's function may refuse copies of rows
            return []

    def _one(self, batch: Any, ablation: Ablation) -> Float[Tensor, " row"]:
        scale = self._scale(ablation)
        if self._replaying:
            [site] = ablation.sites
            try:
                with self.replay.start_at(site), self.tap.scale(scale):
                    return self._vector(batch)
            except OtherPassError:
                self._replaying = False
        with self.tap.scale(scale):
            return self._vector(batch)

    def _scale(self, ablation: Ablation) -> Float[Tensor, "site head"]:
        return ablation.scale(len(self.tap.sites), self.tap.heads).to(self.device)


def _mean(counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
    return counts[:, 0] / counts[:, 1]


def _equal(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether scores are the same except for rounding."""
    shapes = [score.shape for score in found] == [score.shape for score in expected]
    return shapes and all(map(partial(torch.allclose, rtol=1e-5, atol=1e-7), found, expected))
