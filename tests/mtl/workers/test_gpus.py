"""How many runs share a GPU: by memory, and by the speed of all on a made-up one; the service they need."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mtl.workers.pool import MOST_WITH_MPS, Sharing, multi_process_service, places_on


@pytest.mark.parametrize(
    ("total", "peak", "expected"),
    [(80.0, None, 1), (80.0, 8.0, 7), (80.0, 70.0, 1), (80.0, 0.5, 8), (24.0, 10.0, 1), (24.0, 4.0, 4)],
)
def test_as_many_runs_to_a_gpu_as_fit(total, peak, expected):
    assert places_on("0", peak, total) == expected


def test_the_speed_of_more_runs_may_be_measured():
    assert places_on("0", 0.5, 80.0, MOST_WITH_MPS) == 48
    assert places_on("0", 2.5, 80.0, MOST_WITH_MPS) == 21


class Card:
    """Runs of 50 epochs on GPUs whose speed, of all runs together, depends on the number of runs.

    A run that is stopped goes on later. The runs have different sizes, and first lose 20 seconds.
    """

    def __init__(self, speed: Callable[[int], float], gpus: int = 1) -> None:
        self.speed, self.gpus = speed, gpus
        self.sharing, self.now, self.first = Sharing(gpus), 0.0, 0
        self.work, self.begun, self.tried = {}, {}, [1]

    def run(self, seconds: int, fits: Callable[[float], int]) -> int:
        for _ in range(seconds):
            self.now += 1
            places = self.sharing.places * self.gpus
            while self.work.get(self.first, 0.0) >= 50 * self.size(self.first):
                self.first += 1
            near = range(self.first, self.first + 2 * places + 32)
            running = [n for n in near if self.work.get(n, 0.0) < 50 * self.size(n)][:places]
            for number in running:
                begun = self.begun.setdefault(number, self.now)
                if self.now - begun > 20:
                    share = self.speed(self.sharing.places) / self.sharing.places
                    self.work[number] = self.work.get(number, 0.0) + share
            ended = {str(n): w // self.size(n) * self.size(n) for n, w in self.work.items()}
            places = self.sharing.see(self.now, ended, fits(self.now))
            if places != self.tried[-1]:
                self.tried.append(places)
        return self.sharing.places

    @staticmethod
    def size(number: int) -> float:
        return 4.0 + number % 3


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize(
    ("speed", "tried"),
    [
        (lambda runs: 1.0, [1, 2, 1]),  # each alone fills the card
        (lambda runs: min(runs, 4.0), [1, 2, 4, 8, 4]),
        (lambda runs: min(runs, 6.0), [1, 2, 4, 8, 16, 8]),
        (lambda runs: min(runs, 4.0) / max(1.0, runs / 4), [1, 2, 4, 8, 4]),  # beyond four it is slower
        (lambda runs: runs, [1, 2, 4, 8, 16]),
    ],
)
def test_runs_are_doubled_while_that_makes_all_faster(
    speed: Callable[[int], float], tried: list[int], gpus: int
):
    card = Card(speed, gpus)
    assert card.run(3000, lambda now: 23) == tried[-1]
    assert card.tried == tried
    assert card.sharing.settled


def test_one_run_is_alone_until_it_is_known_what_fits():
    card = Card(lambda runs: runs)
    assert card.run(2000, lambda now: 1) == 1
    assert card.run(4000, lambda now: 5) == 4
    assert card.tried == [1, 2, 4]


PROGRAM = """#!/bin/sh
echo "$1 $(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {notes}
test -d "$CUDA_MPS_PIPE_DIRECTORY" && exit {code}
"""


@pytest.fixture
def service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], Callable[[], list[list[str]]]]:
    """Puts a service on the PATH that ends with a code; returns what reads its calls."""
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)

    def make(code: int) -> Callable[[], list[list[str]]]:
        notes, program = tmp_path / "notes", tmp_path / "nvidia-cuda-mps-control"
        program.write_text(PROGRAM.format(notes=notes, code=code))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return lambda: [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []

    return make


def test_the_service_is_started_and_stopped(service):
    calls = service(0)
    seen = {}

    def interrupted() -> None:
        with multi_process_service() as environment:
            seen.update(environment)
            assert len(calls()) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    folder = seen["CUDA_MPS_PIPE_DIRECTORY"]
    assert seen["CUDA_MPS_LOG_DIRECTORY"] == folder
    assert calls() == [["-d", folder], ["quit", folder]]
    assert not Path(folder).exists()


def test_runs_take_turns_where_there_is_no_service_and_where_it_may_not_be_started(service, monkeypatch):
    calls = service(1)
    with multi_process_service() as environment:
        assert environment == {}
    assert len(calls()) == 1
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/of/another")
    with multi_process_service() as environment:
        assert environment == {}
    assert len(calls()) == 1
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY")
    monkeypatch.setenv("PATH", "/nowhere")
    with multi_process_service() as environment:
        assert environment == {}
