"""Choices that several commands share, apart from the modules behind the commands, which load torch."""

from __future__ import annotations

from typing import Literal

Accelerator = Literal["auto", "cpu", "gpu"]
Precision = Literal["32-true", "bf16-true"]
Split = Literal["train", "dev", "test"]
