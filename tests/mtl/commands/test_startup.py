"""Help, mistyped keys and dry runs answer quickly: they import nothing heavy."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mtl.commands.command_table import COMMANDS
from tests.kit.absent import needs
from tests.mtl.studies import Study

HEAVY = ("torch", "transformers", "torchmetrics", "pytorch_lightning", "numba", "polars", "matplotlib")
PROGRAM = f"""
import sys
from mtl.commands.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as stopped:
    code = stopped.code
print("loaded:", *(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""
ROOT = Path(__file__).resolve().parents[3]
of_studies = needs("study")
of_sweeps = needs("sweep")


def run(*words: str, code: int = 0) -> tuple[str, float]:
    """The heavy packages that a command loads, and its seconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False, cwd=ROOT,
        env=environment,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == code, done.stdout + done.stderr
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stderr.splitlines()[-1].removeprefix("loaded:").strip(), seconds


@of_studies
def test_a_study_is_planned_without_anything_heavy(toy):
    assert run("study", "configs/study/toy.yaml", "--seeed=1", code=2)[0] == ""
    words = ("study", "configs/study/toy.yaml", "--dry-run", f"--train.corpus.path={toy}")
    assert run(*words)[0] == ""


def test_mistyped_keys_and_printed_configurations_load_nothing_heavy():
    assert run("train", "configs/dep.yaml", "--sede=1", code=2)[0] == ""
    assert run("train", "configs/dep.yaml", "--print_config")[0] == ""


@of_sweeps
def test_a_sweep_is_planned_without_torch():
    assert run("sweep", "configs/sweep/penalty.yaml", "--local", "--dry-run")[0] == ""
    assert run("sweep", "configs/sweep/penalty.yaml", "--local", "--trails=1", code=2)[0] == ""


def test_a_program_that_ends_searches_for_no_cycles():
    ends = (
        "import gc, sys\nfrom mtl.commands.main import main\n"
        "sys.argv = ['mtl', 'no-command']\nprint(main(), gc.get_freeze_count() > 0)"
    )
    done = subprocess.run([sys.executable, "-c", ends], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "2 True\n"


def test_a_report_loads_no_torch(tmp_path):
    study = Study(tmp_path)
    for seed in (1, 2):
        study.run(["pos"], seed)
    assert run("report", str(tmp_path))[0] == "polars matplotlib"


@of_studies
def test_what_writes_a_study_s_report_loads_no_torch():
    """A study's first process plans and reports; its workers train."""
    program = f"import sys, mtl.study.report; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "polars matplotlib\n"


def test_help_has_its_texts_where_docstrings_are_to_be_left_out():
    def helped(*options: str, **variables: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, *options, "-m", "mtl", "figure", "--help"], capture_output=True, text=True,
            check=False, env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    plain = helped()
    assert plain[0] == 0
    assert helped(PYTHONOPTIMIZE="2") == plain
    code, printed, errors = helped("-OO", PYTHONOPTIMIZE="2")
    assert (code, printed) == (2, "")
    assert errors.startswith("mtl: Python leaves out docstrings (-OO)")
    assert errors.count("\n") == 1


def seconds(*words: str, code: int = 0) -> float:
    """The least processor time of three runs, since other processes on a busy machine add to it."""
    return min(run(*words, code=code)[1] for _ in range(3))


def test_help_loads_nothing_heavy():
    script = PROGRAM.replace("code = main(sys.argv[1:])", "code = [helped(name) for name in COMMANDS] and 0")
    script = f"""
from mtl.commands.command_table import COMMANDS
from mtl.commands.help import help_of
def helped(name):
    print(help_of(name))
{script}"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == "loaded:"


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_help_takes_at_most_two_seconds_of_processor_time(name):
    assert seconds(*name.split(), "--help") < 2


@pytest.mark.slow
def test_mistyped_keys_and_dry_runs_take_at_most_two_seconds_of_processor_time(toy):
    assert seconds("train", "configs/dep.yaml", "--sede=1", code=2) < 2


@pytest.mark.slow
@of_studies
def test_studies_are_planned_in_at_most_two_seconds_of_processor_time(toy):
    assert seconds("study", "configs/study/toy.yaml", "--seeed=1", code=2) < 2
    words = ("study", "configs/study/toy.yaml", "--dry-run", f"--train.corpus.path={toy}")
    assert seconds(*words) < 2


@pytest.mark.slow
@of_sweeps
def test_sweeps_are_planned_in_at_most_two_seconds_of_processor_time():
    assert seconds("sweep", "configs/sweep/penalty.yaml", "--local", "--dry-run") < 2
