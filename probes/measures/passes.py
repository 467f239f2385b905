"""The passes over the records of a corpus that probes need, with a bound on what is kept between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mtl.probes.measures.probe import FittedProbe, Probe
from mtl.probes.measures.record import HeadRecords

KEPT = 2**30
"""Default bound, in bytes, on the records that are kept from the first pass for the second one."""


def measure(
    batches: int,
    observe: Callable[[int], HeadRecords],
    probes: Sequence[Probe],
    fitted_elsewhere: Iterable[HeadRecords] | None = None,
    kept: int = KEPT,
) -> None:
    """Update every probe with every batch of a corpus; fitted probes are fitted first.

    `observe` returns the records of a batch by its number. Probes are fitted to `fitted_elsewhere`, or to the
    same batches in a first pass. Records of the first pass are kept for the second one as long as they take
    at most `kept` bytes together; the other batches are observed again. Values do not depend on this bound.
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
    """Fit every probe to a batch."""
    for probe in probes:
        probe.fit(records)


def update(probes: Sequence[Probe], records: HeadRecords) -> None:
    """Update every probe with a batch."""
    for probe in probes:
        probe.update(records)
