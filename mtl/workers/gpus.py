"""The GPUs of one machine, and how many runs share each."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MOST_ON_A_GPU = 8
"""Maximum number of runs on one GPU whose speed is not measured."""
MOST_WITH_MPS = 48
"""Maximum number of processes that NVIDIA's Multi-Process Service lets share a GPU."""
CONTEXT = 0.6
"""Gigabytes that a process takes on a GPU in addition to its tensors (CUDA's context)."""


def devices() -> list[str]:
    """The GPUs that torch sees, as `CUDA_VISIBLE_DEVICES` names them; it may also name absent ones."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "":
        return []
    import torch

    count = torch.cuda.device_count()
    names = map(str, range(count)) if visible is None else map(str.strip, visible.split(","))
    return [name for name in names if name][:count]


def places_on(gpu: str, peak: float | None, total: float | None = None, most: int = MOST_ON_A_GPU) -> int:
    """The number of runs that fit on a GPU, at most `most`: one until the peak of a finished run is known.

    `peak` and `total`, the GPU's memory, are in gigabytes; `None` for `total`: it is looked up.
    """
    if peak is None:
        return 1
    if total is None:
        import torch

        index = int(gpu) if gpu.isdigit() and int(gpu) < torch.cuda.device_count() else 0
        total = torch.cuda.get_device_properties(index).total_memory / 1e9
    return max(1, min(most, int(0.9 * total / (1.1 * peak + CONTEXT))))


EPOCHS = 4
"""Epochs of each run over which a number of runs is measured."""
GAIN = 1.1
"""How much faster twice as many runs must be, all together, to be kept."""


@dataclass
class Sharing:
    """Chooses how many runs share each GPU: twice as many, as long as all together become faster.

    A number of runs is measured from the moment when as many runs have ended an epoch under it. If it is
    hardly faster than half of it, that half is kept to the end.
    """

    gpus: int
    places: int = 1
    """Runs on each GPU."""
    settled: bool = False
    _speed: float = 0.0
    _seen: Mapping[str, float] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _start: tuple[float, float] | None = None
    _epochs: int = 0

    def see(self, now: float, done: Mapping[str, float], fits: int) -> int:
        """The runs that each GPU is to have now.

        Args:
            now: The time in seconds.
            done: The work of each run so far, in a unit that all share; it grows with each epoch.
            fits: How many runs fit on a GPU.
        """
        moved = [name for name, work in done.items() if work > self._seen.get(name, 0.0)]
        self._seen = dict(done)
        if self.settled or not moved:
            return self.places
        self._begun.update(moved)
        if self._start is not None:
            self._epochs += len(moved)
        elif len(self._begun) >= self.places * self.gpus:
            self._start = now, sum(done.values())
        if self._start is None or self._epochs < EPOCHS * self.places * self.gpus:
            return self.places
        since, before = self._start
        speed = (sum(done.values()) - before) / (now - since)
        if speed < GAIN * self._speed:
            self.places, self.settled = self.places // 2, True
        elif fits >= 2 * self.places:
            self.places, self._speed = 2 * self.places, speed
            self._begun, self._start, self._epochs = set(), None, 0
        else:
            self.settled = self.places > 1  # one run is also what fits as long as no peak is known
        return self.places


@contextmanager
def multi_process_service() -> Iterator[dict[str, str]]:
    """Have processes compute on a GPU at the same time; yields the variables that they need.

    Starts NVIDIA's Multi-Process Service and stops it at the end. It yields nothing where one is named by the
    environment or runs already, and where there is none or it may not be started: processes then take turns.
    """
    program = shutil.which("nvidia-cuda-mps-control")
    runs = "CUDA_MPS_PIPE_DIRECTORY" in os.environ or Path("/tmp/nvidia-mps/control").exists()
    if program is None or runs:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mtl-mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}

        def control(*words: str, said: str = "") -> bool:
            try:
                ended = subprocess.run(
                    [program, *words], env={**os.environ, **own}, input=said, text=True, timeout=30,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired):
                return False
            return ended.returncode == 0

        started = control("-d")
        try:
            yield own if started else {}
        finally:
            if started:
                control(said="quit\n")
