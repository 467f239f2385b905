"""The interface of probes."""

from __future__ import annotations

from abc import ABC, abstractmethod

import polars as pl

from mtl.probes.measures.record import HeadRecords


class Probe(ABC):
    """A measurement without parameters, summed over batches of records in any order."""

    @abstractmethod
    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""

    @abstractmethod
    def compute(self) -> pl.DataFrame:
        """The rows of the tidy table, from the counts so far."""


class FittedProbe(Probe):
    """A probe that must see all records to which it is fitted before it can count any."""

    @abstractmethod
    def fit(self, records: HeadRecords) -> None:
        """Add a batch to what the probe is fitted to."""
