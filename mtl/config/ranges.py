"""The numbers that each key may have.

A row per key, or per pattern of keys where tasks have their own: what a task adds is covered by its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from mtl.tasks.catalogue import TASKS


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; the ends belong to it unless they are `open`."""

    low: int | float
    high: int | float
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: int | float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        low = f"above {self.low:,}" if self.open_low else f"from {self.low:,}"
        return f"{low} {'to below' if self.open_high else 'to'} {self.high:,}"


_SHARE = Range(0, 1)
_DROPOUT = Range(0, 1, open_high=True)
_RATE = Range(0, 1)
_SIZE = Range(1, 65_536)
_COUNT = Range(1, 1_000_000)

RANGES = {
    "seed": Range(0, 2**32 - 1),
    "max_epochs": _COUNT,
    "patience": _COUNT,
    "evaluate_every": _COUNT,
    "importance_every": Range(0, 1_000_000),
    "importance_sentences": _COUNT,
    "*dropout": _DROPOUT,
    "*dim": _SIZE,
    "*.threshold": Range(0, 1, open_low=True, open_high=True),
    "*.reach": Range(0, 65_536),
    "batch.tokens": Range(1, 100_000_000),
    "batch.sentences": _COUNT,
    "batch.max_words": _COUNT,
    "batch.temperature": Range(0, 1_000, open_low=True),
    "optimizer.*_lr": _RATE,
    "optimizer.weight_decay": _SHARE,
    "optimizer.warmup": _SHARE,
    "optimizer.warmup_updates": _COUNT,
    "optimizer.beta2": Range(0, 1, open_high=True),
    "seq2seq.*layers": Range(1, 1_000),
    "seq2seq.heads": _SIZE,
    "seq2seq.width": _SIZE,
    "seq2seq.feed_forward": _SIZE,
    "seq2seq.components": _SIZE,
    "seq2seq.vocabulary": Range(300, 1_000_000),
    "translate.label_smoothing": _DROPOUT,
    "translate.beam": Range(1, 1_000),
    "translate.length_penalty": Range(-100, 100),
    "optimizer.clip": Range(0, 1_000_000),
    "optimizer.accumulate": _COUNT,
    "balancer.window": _COUNT,
    "balancer.alpha": Range(0, 1_000),
    "balancer.lr": Range(0, 1, open_low=True),
    "gates.penalty_warmup": _SHARE,
    "gates.penalty*": Range(0, 1_000_000),
    "gates.overlap_penalty": Range(-1_000_000, 1_000_000),
    "gates.target_open*": Range(0, 1_000_000, open_low=True),
    "gates.at_most": _COUNT,
    "gates.lr": Range(0, 100, open_low=True),
    "gates.temperature": Range(0, 1_000, open_low=True),
    "gates.init_mean": Range(-20, 20),
    "gates.init_std": Range(0, 20),
    "trainer.devices": Range(1, 65_536),
    "trainer.num_nodes": Range(1, 65_536),
    "trainer.threads": Range(1, 65_536),
    "trainer.checkpoint_minutes": Range(0, 1_000_000),
}
"""Dotted keys, or patterns of them, and what they may be. The first row that fits counts; a number without a
row has to be finite."""


def out_of_range(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """What is wrong with the numbers of a configuration, a line each."""
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from out_of_range(value, f"{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            allowed = next(
                (row for pattern, row in ranges_of_keys().items() if fnmatchcase(key, pattern)), None
            )
            if allowed is not None and value not in allowed:
                yield f"{key}={_short(value)}: give a number {allowed}"
            elif not math.isfinite(value):
                yield f"{key}={value}: give a finite number"


@cache
def ranges_of_keys() -> dict[str, Range]:
    """The rows of `RANGES`, and those of tasks and of parts that packages add."""
    from mtl.config.part import parts  # which has ranges, too

    of_tasks = {
        f"{name}.{key}": Range(*ends) for name, task in TASKS.items() for key, ends in task.ranges.items()
    }
    return RANGES | of_tasks | {key: row for part in parts() for key, row in part.ranges.items()}


def _short(value: int | float) -> str:
    """A number in at most 20 characters."""
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}… ({len(text)} digits)"
