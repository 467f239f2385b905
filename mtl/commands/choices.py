"""Choices that several commands have; the modules behind them, which load torch, have the same."""

from __future__ import annotations

from typing import Literal

Accelerator = Literal["auto", "cpu", "gpu"]
Precision = Literal["32-true", "bf16-true"]
Split = Literal["train", "dev", "test"]
