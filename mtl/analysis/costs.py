"""The operations and time of models."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from mtl.heads.tap import eager_attention
from mtl.models.tapped import TappedModel

K = TypeVar("K")
Parts = Any
"""A batch as a model reads it (`Tokenizer.collate`)."""


def alternate(jobs: Mapping[K, Callable[[], object]], rounds: int) -> dict[K, list[float]]:
    """Seconds of each job in each round, after a round to warm up.

    The jobs take turns, so that other load on the machine affects all of them alike.
    """
    times: dict[K, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - start)
    return times


@torch.inference_mode()
def encode(encoder: TappedModel, parts: Sequence[Parts]) -> None:
    """Run forward passes over batches; returns when they are finished, also on a GPU."""
    for subwords in parts:
        encoder(subwords)
    if next(encoder.parameters()).device.type == "cuda":
        torch.cuda.synchronize()


@torch.inference_mode()
def multiply_adds(encoder: TappedModel, parts: Sequence[Parts]) -> float:
    """Multiply-adds of matrix products in forward passes over batches: half of the floating-point operations.

    They are counted under eager attention, since the counter does not know all fused kernels.
    """
    with eager_attention(encoder.transformer), FlopCounterMode(display=False) as counter:
        for subwords in parts:
            encoder(subwords)
    return counter.get_total_flops() / 2
