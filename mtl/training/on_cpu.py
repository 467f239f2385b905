"""What a training step does faster on a CPU: AdamW for the rows of a word embedding, and dropout.

A batch reads a few hundred rows. The masks of dropout cost next to nothing compared with the multiplication.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, no_type_check

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mtl.tasks.recursions import compiled


class EmbeddingRows:
    """Makes the updates of a row when the row is read next: the same updates as AdamW, up to rounding.

    In an update, most rows of a vocabulary have no gradient. AdamW reads and writes them all the same, since
    weight decay and the decay of the moments change them, too. Here an update changes only the rows of its
    batch. The pending updates of a row are made one after the other when a forward pass reads it; those of
    all rows are made by `catch_up` and before a state_dict is built. Until then, `embedding.weight` is out of
    date in rows with pending updates.

    The moments are in the optimizer's state, as AdamW's own are, so checkpoints are interchangeable.

    Args:
        embedding: Trained, in float32, on a CPU. Its gradients are sparse until `close`.
        optimizer: AdamW with the embedding's weight in a group. It does not see the gradient
            (`take_gradient`).
    """

    def __init__(self, embedding: nn.Embedding, optimizer: torch.optim.Optimizer) -> None:
        self.weight, self._embedding, self._optimizer = embedding.weight, embedding, optimizer
        group = next(
            group for group in optimizer.param_groups if any(p is self.weight for p in group["params"])
        )
        self._group: dict[str, Any] = group
        self._made = np.zeros(len(self.weight), np.int64)
        """Per row, how many of the updates in `_waiting` have been made."""
        self._waiting: list[tuple[float, float, float]] = []
        """Each update since the last `catch_up`: factor of weight decay, rate over the first moment's
        correction, and square root of the second moment's correction."""
        self._gradient: Tensor | None = None
        self._lock = threading.RLock()  # other threads may read the model
        embedding.sparse = True
        self._hooks: list[RemovableHandle] = [
            embedding.register_forward_pre_hook(lambda _, inputs: self._read(inputs[0])),
            embedding.register_state_dict_pre_hook(lambda *_: self.catch_up()),
            optimizer.register_state_dict_pre_hook(lambda _: self.catch_up()),
            optimizer.register_step_post_hook(lambda *_: self._step()),
        ]

    def take_gradient(self) -> Tensor | None:
        """The gradients [row hidden] of the rows that have one in this update; `None` if none has.

        The update uses this tensor, so it may be changed in place.
        """
        gradient, self.weight.grad = self.weight.grad, None
        self._gradient = None if gradient is None else gradient.coalesce()
        return None if self._gradient is None else self._gradient.values()

    def catch_up(self) -> None:
        """Make the pending updates of all rows."""
        with self._lock:
            self._make(np.arange(len(self._made)))
            self._made[:] = 0
            self._waiting.clear()

    def close(self) -> None:
        """Make the pending updates, and make the embedding an ordinary one again."""
        self.catch_up()
        self._embedding.sparse = False
        for hook in self._hooks:
            hook.remove()

    def _read(self, ids: Tensor) -> None:
        with self._lock:
            self._make(torch.unique(ids).numpy())

    def _make(self, rows: NDArray[np.int64]) -> None:
        """Make the pending updates of these rows."""
        if not self._waiting:
            return
        _catch_up(
            *self._arrays(), rows, self._made, np.array(self._waiting, np.float32), self._constants(),
        )  # fmt: skip

    def _step(self) -> None:
        """Update the embedding after the optimizer's step, unless that was skipped or had no gradient."""
        gradient, self._gradient = self._gradient, None
        if gradient is not None and not getattr(self._optimizer, "found_inf", None):
            with self._lock:
                self._update(gradient)

    def _update(self, gradient: Tensor) -> None:
        """Make an update of the rows that have a gradient; for the others it is pending."""
        state, group = self._state(), self._group
        state["step"] += 1
        step, rate = float(state["step"]), float(group["lr"])
        beta1, beta2 = group["betas"]
        decay, rate_now = 1 - rate * group["weight_decay"], rate / (1 - beta1**step)
        self._waiting.append((decay, rate_now, math.sqrt(1 - beta2**step)))
        scale = getattr(self._optimizer, "grad_scale", None)
        values = gradient.values() if scale is None else gradient.values() / scale
        _update(
            *self._arrays(), gradient.indices()[0].numpy(), self._made,
            np.array(self._waiting[-1], np.float32), self._constants(), values.numpy(), len(self._waiting),
        )  # fmt: skip

    def _state(self) -> dict[str, Tensor]:
        """The optimizer's state for the embedding, with AdamW's names."""
        state: dict[str, Tensor] = self._optimizer.state[self.weight]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(self.weight) for _ in range(2))
        return state

    def _arrays(self) -> Iterator[NDArray[np.float32]]:
        """Weight, mean and mean square of the gradients, as views."""
        state = self._state()
        return (part.detach().numpy() for part in (self.weight, state["exp_avg"], state["exp_avg_sq"]))

    def _constants(self) -> NDArray[np.float32]:
        beta1, beta2 = self._group["betas"]
        return np.array([1 - beta1, beta2, 1 - beta2, self._group["eps"]], np.float32)


def sole_embedding(model: nn.Module, embedding: nn.Module) -> nn.Embedding | None:
    """The embedding if its gradients may be sparse, else `None`.

    They may be if it is a plain `nn.Embedding`, trained, in float32, on a CPU, and shares its weight with no
    other module.
    """
    if type(embedding) is not nn.Embedding or embedding.max_norm is not None or embedding.scale_grad_by_freq:
        return None
    weight = embedding.weight
    owners = sum(other is weight for _, other in model.named_parameters(remove_duplicate=False))
    plain = weight.requires_grad and weight.dtype == torch.float32 and weight.device.type == "cpu"
    return embedding if plain and owners == 1 else None


@compiled
@no_type_check
def _catch_up(weight, mean, square, rows, made, waiting, constants):
    """Make the pending updates of `rows`, in which they have no gradient; `waiting` is [update 3]."""
    zero = np.float32(0)
    for row in rows:
        moves = mean[row].any() or square[row].any()
        for update in range(made[row], len(waiting)):
            decay, rate, correction = waiting[update]
            if moves:
                for place in range(weight.shape[1]):
                    _adamw(weight, mean, square, row, place, zero, decay, rate, correction, constants)
            else:
                for place in range(weight.shape[1]):
                    weight[row, place] *= decay
        made[row] = len(waiting)


@compiled
@no_type_check
def _update(weight, mean, square, rows, made, latest, constants, gradients, updates):
    """Make the latest of `updates` updates in `rows`, with their `gradients`; the earlier ones are made."""
    decay, rate, correction = latest
    for number, row in enumerate(rows):
        made[row] = updates
        for place in range(weight.shape[1]):
            gradient = gradients[number, place]
            _adamw(weight, mean, square, row, place, gradient, decay, rate, correction, constants)


@compiled(inline="always")
@no_type_check
def _adamw(weight, mean, square, row, place, gradient, decay, rate, correction, constants):
    """One update of one number (Loshchilov and Hutter 2019, algorithm 2)."""
    kept = weight[row, place] * decay
    mean[row, place] += (gradient - mean[row, place]) * constants[0]
    square[row, place] = square[row, place] * constants[1] + gradient * gradient * constants[2]
    weight[row, place] = kept - rate * mean[row, place] / (
        np.sqrt(square[row, place]) / correction + constants[3]
    )


_RANGE = 2**32
_DTYPES = (torch.float32, torch.bfloat16)


class CounterDropout(nn.Dropout):
    """Dropout whose mask is a hash of each element's place and a seed, as on a GPU.

    The seed of a call is drawn from torch's generator, so runs can be repeated and resumed as with any
    dropout. On a CPU torch draws the numbers of a mask one after the other, which takes about 6 ns per
    element; a hash takes 0.15 ns. An element is dropped with probability `p`, rounded to a multiple of 2^-32.
    On other devices, in place, and for types other than float32 and bfloat16, torch's dropout is used.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Any shape; the input itself in evaluation."""
        drawn = self.training and 0.0 < self.p < 1.0 and not self.inplace
        if not drawn or input.device.type != "cpu" or input.dtype not in _DTYPES:
            return super().forward(input)
        return input * scaled_mask(input, self.p)


def draw_by_counter(model: nn.Module) -> None:
    """Make each plain `nn.Dropout` of a model a `CounterDropout`; its subclasses stay as they are.

    Modules that hold a `CounterDropout` draw the masks of transformers' `sdpa` attention in the same way.
    Other modules, and other models of the process, keep transformers' function.
    """
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = CounterDropout
    present = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if getattr(present, "func", None) is not _attend:
        ALL_ATTENTION_FUNCTIONS.register("sdpa", partial(_attend, present))


def _attend(
    otherwise: Callable[..., tuple[Tensor, Tensor | None]],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention [batch head word size] with dropout, in float32, as torch computes it on a CPU.

    Anything but an encoder's plain attention with a `CounterDropout` is left to `otherwise`.
    """
    causal = options.get("is_causal")
    counted = (
        0.0 < dropout < 1.0
        and query.device.type == "cpu"
        and query.dtype in _DTYPES
        and key.shape[:2] == query.shape[:2]
        and not (getattr(module, "is_causal", True) if causal is None else causal)
        and options.get("position_bias") is None
        and options.get("cache") is None
        and any(isinstance(part, CounterDropout) for part in module.children())
    )
    if not counted:
        return otherwise(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    with torch.autocast("cpu", enabled=False):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = (query.float() * scale) @ key.float().transpose(2, 3)
        if attention_mask is not None:
            scores = scores + _added(attention_mask)
        weights = scores.softmax(3)
        output = (weights * scaled_mask(weights, dropout)) @ value.float()
    return output.to(query.dtype).transpose(1, 2).contiguous(), None


def _added(mask: Tensor) -> Tensor:
    """What is added to scores: a mask of numbers as it is; for a boolean one the lowest number if false."""
    if mask.dtype != torch.bool:
        return mask
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(mask.shape).masked_fill_(mask.logical_not(), lowest)


def scaled_mask(like: Tensor, p: float) -> Tensor:
    """A mask of the shape and type of `like`: 0 with probability `p`, else 1 / (1 - p)."""
    mask = torch.empty(like.shape, dtype=like.dtype)
    kept = torch.tensor(1 / (1 - p), dtype=like.dtype)
    bits = torch.int32 if like.dtype == torch.float32 else torch.int16
    seed = int(torch.empty((), dtype=torch.int64).random_())
    _fill(
        mask.view(bits).numpy().reshape(-1), np.uint32(seed % _RANGE), np.uint32(seed // _RANGE),
        np.uint32(min(round(p * _RANGE), _RANGE - 1)), kept.view(bits).numpy()[()],
    )  # fmt: skip
    return mask


@compiled
@no_type_check
def _fill(mask, seed, stream, dropped, kept):
    """Write `kept` where the hash of a place is at least `dropped`, else 0.

    The hash is a bijection of 32 bits with good avalanche. It has only multiplications and shifts, so that it
    is vectorised. `stream` comes in between, so that two seeds do not give shifted copies of one sequence.
    """
    for place in range(mask.size):
        value = numba.uint32(numba.uint32(place) * numba.uint32(0x9E3779B1) + seed)
        value = numba.uint32(value ^ (value >> numba.uint32(16)))
        value = numba.uint32((value ^ stream) * numba.uint32(0x21F0AAAD))
        value = numba.uint32(value ^ (value >> numba.uint32(15)))
        value = numba.uint32(value * numba.uint32(0x735A2D97))
        value = numba.uint32(value ^ (value >> numba.uint32(15)))
        mask[place] = kept if value >= dropped else mask.dtype.type(0)
