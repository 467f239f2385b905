"""Choose heads for several masks so that no head is in more than a given number of masks."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.optimize import linprog
from scipy.sparse import eye_array, kron
from torch import Tensor

from mtl.errors import InputError
from mtl.tasks.in_words import counted


def choose_heads(
    log_alpha: Float[Tensor, "mask head"], wanted: int, at_most: int
) -> Bool[Tensor, "mask head"]:
    """The masks with the largest sum of log alphas: `wanted` heads each, no head in more than `at_most`.

    This is a transport problem: each mask supplies `wanted`, each head takes up to `at_most`, and at most 1
    goes from a mask to a head. Its linear programme has integral vertices, and the simplex method ends at
    one. If `at_most` is the number of masks, each mask gets its own `wanted` best heads. Raises `InputError`
    if no such choice exists.
    """
    masks, heads = log_alpha.shape
    check_at_most(masks, wanted, at_most, heads)
    result = linprog(
        -log_alpha.detach().double().cpu().numpy().ravel(),
        A_eq=kron(eye_array(masks), np.ones((1, heads))),
        b_eq=np.full(masks, wanted),
        A_ub=kron(np.ones((1, masks)), eye_array(heads)),
        b_ub=np.full(heads, at_most),
        bounds=(0, 1),
        method="highs-ds",
    )
    chosen = torch.from_numpy(result.x > 0.5).view(masks, heads)
    return chosen.to(log_alpha.device)


def check_at_most(masks: int, wanted: int, at_most: int, heads: int) -> None:
    """Raise `InputError` unless every mask can have `wanted` heads, no head in more than `at_most` masks."""
    if at_most < 1:
        raise InputError(f"gates.at_most={at_most}: use 1 or more; it is how many masks may keep one head")
    needed, room = masks * wanted, min(at_most, masks) * heads
    if needed > room:
        fewer, more = room // masks, -(-needed // heads)
        raise InputError(
            f"gates.at_most={at_most}: {counted(masks, 'mask')} of {counted(wanted, 'head')} need "
            f"{counted(needed, 'place')}, and {counted(heads, 'head')} can give {room}: use "
            f"gates.target_open={fewer} or less, or gates.at_most={more}"
        )
