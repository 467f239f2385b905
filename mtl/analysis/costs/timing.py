"""Time models against each other: in one process, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mtl.heads.tap import eager_attention
from mtl.models.parallel import ParallelSubwords
from mtl.models.subwords import Subwords
from mtl.models.tapped import TappedModel
from mtl.tasks.in_words import counted

K = TypeVar("K")
Parts = Subwords | ParallelSubwords
"""A batch as a model reads it."""


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


def device_name(model: nn.Module) -> str:
    """The name of the model's device; for a CPU, with the number of threads."""
    device = next(model.parameters()).device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {counted(torch.get_num_threads(), 'thread')}"
