"""What every probe offers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import polars as pl

from mtl.probes.measures.record import HeadRecords


class Probe(ABC):
    """A measurement without parameters, summed over batches of records in any order."""

    @abstractmethod
    def update(self, records: HeadRecords) -> None:
        """Count in a batch."""

    @abstractmethod
    def compute(self) -> pl.DataFrame:
        """The rows of the tidy table, from what was counted so far."""


class FittedProbe(Probe):
    """A probe that must see all records that it is fitted to before it can count any."""

    @abstractmethod
    def fit(self, records: HeadRecords) -> None:
        """Take in a batch of the records to fit."""
