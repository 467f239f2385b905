"""What a study costs besides its runs, and what is gained by two runs at the same time.

python -m benchmarks.study [STUDY.yaml] [--key=value …]

The study, by default `toy`, is carried out with --jobs 1 and with --jobs 2, each in an empty folder. The
machine should do nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mtl.study.jobs import JobProgress, StudyFolder


def carried_out(words: list[str], jobs: int, place: Path) -> tuple[float, list[JobProgress]]:
    """The seconds of a study on the clock, and the progress of every job."""
    options = [f"--jobs={jobs}", f"--studies={place}", "--name=s"]
    command = [sys.executable, "-m", "mtl", "study", *words, *options]
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begun
    folder = StudyFolder(place / "s")
    return seconds, [folder.last_progress(job.name) for job in folder.jobs()]


def main(words: list[str]) -> None:
    """Measure and print."""
    clocks = {}
    for jobs in (1, 2):
        with tempfile.TemporaryDirectory() as place:
            clocks[jobs], progress = carried_out(words, jobs, Path(place))
        work = sum(job.seconds for job in progress)
        prepared = sum(job.prepared_seconds for job in progress)
        outside = clocks[jobs] - work / jobs
        overhead = prepared / jobs + outside
        count = len(progress)
        print(
            f"jobs {jobs}: {clocks[jobs]:.0f} s for {count} jobs of {work / count:.1f} s; "
            f"before first steps {prepared:.1f} s ({prepared / count:.2f} a job); "
            f"outside of jobs {outside:.1f} s; together {100 * overhead * jobs / work:.1f} % of their time, "
            f"{100 * overhead * jobs / count / 60:.1f} % at 60 s a job",
            flush=True,
        )
    print(f"jobs 2 is {clocks[1] / clocks[2]:.2f} times as fast as jobs 1")


if __name__ == "__main__":
    main(sys.argv[1:] or ["configs/study/toy.yaml"])
