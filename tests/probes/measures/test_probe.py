""""""

from __future__ import annotations

import pytest

from mtl.probes.measures import corpus, probe
from mtl.probes.measures.attention import AttentionProbe
from mtl.probes.measures.clustering import ClusteringProbe
from mtl.probes.measures.probe import HeadRecords
from tests.probes import planted

MATRICES = planted.random_matrices(planted.CORPUS, 1, 1, 0)
OUTPUTS = planted.random_outputs(planted.CORPUS, 1, 1, 2, 0)
TAGS = corpus.index(planted.CORPUS, corpus.tags)


def of(number: int) -> HeadRecords:
    return planted.records_of(MATRICES, OUTPUTS, [number])


@pytest.mark.parametrize(
    ("kept", "observed"),
    [
        (0, [0, 1, 2, 3, 0, 1, 2, 3]),
        (of(0).nbytes + of(1).nbytes, [0, 1, 2, 3, 2, 3]),
        (2**30, [0, 1, 2, 3]),
    ],
)
def test_what_is_kept_is_bounded_and_the_rest_observed_again(kept: int, observed: list[int]) -> None:
    calls: list[int] = []

    def observe(batch: int) -> HeadRecords:
        calls.append(batch)
        return of(batch)

    probe.run_probes(4, observe, [ClusteringProbe("pos", TAGS, TAGS, 1, 1, 2)], kept=kept)
    assert calls == observed


def test_without_anything_to_fit_one_pass_does() -> None:
    calls: list[int] = []

    def observe(batch: int) -> HeadRecords:
        calls.append(batch)
        return of(batch)

    arcs = corpus.index(planted.CORPUS, corpus.arcs)
    probe.run_probes(4, observe, [AttentionProbe("dep", arcs, 1, 1, root=True, final=False)], kept=0)
    probe.run_probes(4, observe, [ClusteringProbe("pos", TAGS, TAGS, 1, 1, 2)], [of(0), of(2)], kept=0)
    assert calls == [0, 1, 2, 3] * 2
