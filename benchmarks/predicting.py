"""The speed of `mtl predict`, on a file beside an older version of the program, and line by line in a pipe.

python -m benchmarks.predicting [--against TREE] [--sentences N] [--lines N] [--rounds N]

Both run the program as a user does, in processes of one thread on one core, with the embedded MiniLM and five
tasks that were trained for one epoch on a few generated sentences. How good the model is does not matter for
its speed, apart from the number of predicates. TREE is a checkout of the older version, which trains the run,
since newer versions can read it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mtl.corpora.toy.corpus import toy_corpus

HERE = Path(__file__).parents[1]
WARMING = 20
"""The number of lines before those that are timed, which include loading and what is done only once."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--against", type=Path, help="checkout of an older version")
    parser.add_argument("--sentences", type=int, default=5000, help="sentences of the file")
    parser.add_argument("--lines", type=int, default=500, help="lines of the pipe")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each version on the file")
    arguments = parser.parse_args()
    count = max(arguments.sentences, WARMING + arguments.lines)
    lines = [" ".join(sentence.words) for sentence in toy_corpus(count, seed=1)]
    trees = {"this tree": HERE} | ({"older": arguments.against.resolve()} if arguments.against else {})
    with tempfile.TemporaryDirectory() as folder:
        programs = {name: Program(tree, Path(folder)) for name, tree in trees.items()}
        programs["older" if arguments.against else "this tree"].train()
        console = Console(width=110)
        console.print(of_a_file(programs, lines[: arguments.sentences], arguments.rounds))
        console.print(of_lines(programs["this tree"], lines[: WARMING + arguments.lines]))
    print(f"one thread on one core; Python {sys.version.split()[0]}")


class Program:
    """A version of the program in a folder with a run that all versions read."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        variables = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.environment = os.environ | variables
        self.core = max(os.sched_getaffinity(0))

    def train(self) -> None:
        """Train the run."""
        for words in (
            "data toy --out=toy --train=40 --dev=10 --test=10",
            "train --name=run --corpus.path=toy --encoder.name=minilm --max_epochs=1",
        ):
            subprocess.run(
                [sys.executable, "-m", "mtl", *words.split()],
                cwd=self.folder,
                env=self.environment,
                check=True,
                stdout=subprocess.DEVNULL,
            )

    def predicting(self) -> subprocess.Popen[bytes]:
        """`mtl predict` from tokens to JSON lines, from a pipe to a pipe, on one core."""
        return subprocess.Popen(
            [sys.executable, "-m", "mtl", "predict", "runs/run", "--input=tokens", "--output=json"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, {self.core}),
        )


def of_a_file(programs: dict[str, Program], lines: Sequence[str], rounds: int) -> Table:
    """The seconds for a file, including the start of the program; the versions take turns."""
    text = "".join(f"{line}\n" for line in lines).encode()
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            start = time.perf_counter()
            written, _ = program.predicting().communicate(text)
            seconds[name].append(time.perf_counter() - start)
            answers = written.count(b"\n")
            assert answers == len(lines), f"{name}: {answers} answers to {len(lines)} lines"
    table = Table(
        "version",
        "seconds, median",
        "seconds of each turn",
        "this tree takes, times",
        title=f"{len(lines):,} sentences",
    )
    medians = {name: statistics.median(turns) for name, turns in seconds.items()}
    for name, turns in seconds.items():
        median = medians[name]
        ratio = f"{medians['this tree'] / median:.2f}"
        table.add_row(name, f"{median:.1f}", ", ".join(f"{turn:.1f}" for turn in turns), ratio)
    return table


def of_lines(program: Program, lines: Sequence[str]) -> Table:
    """The milliseconds from writing a line to reading its answer, for one line after the other."""
    process = program.predicting()
    assert process.stdin is not None
    assert process.stdout is not None
    waited = []
    for line in lines:
        start = time.perf_counter()
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()
        answer = process.stdout.readline()
        waited.append(1000 * (time.perf_counter() - start))
        assert answer.startswith(b"{"), answer
    process.stdin.close()
    assert process.wait() == 0
    timed = sorted(waited[WARMING:])
    figures = (statistics.median(timed), timed[int(0.95 * (len(timed) - 1))], timed[-1])
    table = Table("lines", "median, ms", "95 %, ms", "longest, ms", title="a line at a time in a pipe")
    table.add_row(str(len(timed)), *(f"{milliseconds:.1f}" for milliseconds in figures))
    return table


if __name__ == "__main__":
    main()
