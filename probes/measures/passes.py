"""The passes over a corpus's records that probes need, with a bound on what is kept between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from probes.measures.probe import FittedProbe, Probe
from probes.measures.record import HeadRecords

KEPT = 2**30
"""Default bound on the records kept from the first pass for the second one, in bytes."""


def measure(
    batches: int,
    observe: Callable[[int], HeadRecords],
    probes: Sequence[Probe],
    fitted_elsewhere: Iterable[HeadRecords] | None = None,
    kept: int = KEPT,
) -> None:
    """Let every probe see every batch of a corpus; probes that are fitted see it after that.

    `observe` gives a batch's records by its number. Probes are fitted on `fitted_elsewhere`, or on the same
    batches in a first pass, from which records are kept for the second as long as they take less than `kept`
    bytes; the other batches are observed once more. The values do not depend on the bound.
    """
    fitting = [probe for probe in probes if isinstance(probe, FittedProbe)]
    ready = [probe for probe in probes if probe not in fitting]
    if fitted_elsewhere is not None:
        for records in fitted_elsewhere:
            fit(fitting, records)
        ready, fitting = list(probes), []
    store: dict[int, HeadRecords] = {}
    taken = 0
    for batch in range(batches):
        records = observe(batch)
        update(ready, records)
        fit(fitting, records)
        if fitting and taken + records.nbytes <= kept:
            store[batch] = records
            taken += records.nbytes
    if fitting:
        for batch in range(batches):
            update(fitting, store.pop(batch) if batch in store else observe(batch))


def fit(probes: Sequence[FittedProbe], records: HeadRecords) -> None:
    """Let every probe take in a batch to fit."""
    for probe in probes:
        probe.fit(records)


def update(probes: Sequence[Probe], records: HeadRecords) -> None:
    """Let every probe count in a batch."""
    for probe in probes:
        probe.update(records)
