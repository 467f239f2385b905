"""Load on a service over HTTP: how many sentences a second, and how long each request takes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, cast

import aiohttp
import psutil

from tests.mtl.forked import ended, forked, printed

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Rate(NamedTuple):
    """Sentences per second, and per second of processor time."""

    wall: float
    processor: float


class Service(NamedTuple):
    """A running service."""

    address: str
    process: psutil.Process


@contextmanager
def ahead_of_other_programs(*processes: psutil.Process) -> Iterator[None]:
    """All threads of these processes go before other programs, if this user may say so."""
    threads = [thread.id for process in processes for thread in process.threads()]
    before = [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads]
    _set_priorities(threads, [-20] * len(threads))
    try:
        yield
    finally:
        _set_priorities(threads, before)


def _set_priorities(threads: Sequence[int], priorities: Sequence[int]) -> None:
    for thread, priority in zip(threads, priorities, strict=True):
        with suppress(ProcessLookupError, PermissionError):
            os.setpriority(os.PRIO_PROCESS, thread, priority)


@contextmanager
def serving(model: Path, *options: str, core: int | None = None) -> Iterator[Service]:
    """`mtl serve` in a process of its own, on one core if one is given; it must end well."""
    words = ["serve", str(model), "--port=0", "--threads=1", *options]
    with tempfile.TemporaryDirectory() as folder, forked("mtl", words, Path(folder) / "said") as process:
        pid = cast("int", process.pid)
        if core is not None:
            os.sched_setaffinity(pid, {core})
        while "\n" not in (line := printed(Path(folder) / "said", "out")):
            assert process.is_alive(), printed(Path(folder) / "said")
            time.sleep(0.05)
        address = next(word for word in line.split() if word.startswith("http")).rstrip(":")
        yield Service(address, psutil.Process(pid))
        process.terminate()
        assert ended(process, 30) == 0


def annotated_in_batches(model: Path, sentences: Sequence[Sequence[str]], core: int) -> Rate:
    """What one process does that calls `annotate` in batches as large as the service's."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "said"
        with forked(__name__, [str(model), json.dumps(sentences), str(core)], output) as process:
            assert ended(process, 280) == 0, printed(output)
        return Rate(*map(float, printed(output, "out").split()))


def _annotate(model: str, given: str, core: str) -> None:
    from mtl import JointModel
    from mtl.serving.batcher import AT_ONCE

    os.sched_setaffinity(0, {int(core)})
    annotator, sentences = JointModel.from_pretrained(model), json.loads(given)
    annotator.annotate(sentences[:100])
    start, used = time.perf_counter(), time.process_time()
    for begin in range(0, len(sentences), AT_ONCE):
        annotator.annotate(sentences[begin : begin + AT_ONCE])
    print(len(sentences) / (time.perf_counter() - start), len(sentences) / (time.process_time() - used))


async def closed_loop(service: Service, sentences: Sequence[Sequence[str]], clients: int) -> Rate:
    """Each client sends a sentence as soon as its last one is answered."""
    waiting = iter(sentences)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def client() -> None:
            for sentence in waiting:
                await posted(session, service, sentence)

        start, used = time.perf_counter(), processor(service)
        await asyncio.gather(*(client() for _ in range(clients)))
        return Rate(
            len(sentences) / (time.perf_counter() - start), len(sentences) / (processor(service) - used)
        )


async def open_loop(service: Service, sentences: Sequence[Sequence[str]], rate: float) -> list[float]:
    """Sentences come at random at a rate per second; returns the seconds that each took, sorted."""
    rng = random.Random(1)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(sentence: Sequence[str]) -> float:
            start = time.perf_counter()
            await posted(session, service, sentence)
            return time.perf_counter() - start

        tasks, due = [], time.perf_counter()
        for sentence in sentences:
            due += rng.expovariate(rate)
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            tasks.append(asyncio.create_task(one(sentence)))
        return sorted(await asyncio.gather(*tasks))


async def posted(session: aiohttp.ClientSession, service: Service, sentence: Sequence[str]) -> None:
    async with session.post(f"{service.address}/annotate", json={"sentences": [sentence]}) as answer:
        record = await answer.json()
        assert answer.status == 200, record
        assert record["sentences"][0]["words"] == [*sentence]


def processor(service: Service) -> float:
    """The seconds of processor time that the service has used."""
    used = service.process.cpu_times()
    return float(used.user + used.system)


if __name__ == "__main__":
    _annotate(*sys.argv[1:])
