"""Help, mistyped keys and dry runs answer quickly: they import nothing heavy, and do little.

How much they do is counted in function calls, which other programs on the machine do not change: a million
take about a second of processor time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kit.absent import needs
from tests.mtl.studies import Study

HEAVY = ("torch", "transformers", "torchmetrics", "pytorch_lightning", "numba", "polars", "matplotlib")
COUNTED = f"""
import cProfile
profile = cProfile.Profile()
profile.enable()
import sys
from mtl.commands.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as stopped:
    code = stopped.code
profile.disable()
print(sum(entry.callcount for entry in profile.getstats()), file=sys.stderr)
print("loaded:", *(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""
LOADED = COUNTED.replace("profile.enable()", "").replace("profile.disable()", "")  # in half the time
ROOT = Path(__file__).resolve().parents[3]
of_studies = needs("study")
of_sweeps = needs("sweep")


def run(*words: str, code: int = 0, program: str = LOADED) -> tuple[str, int]:
    """The heavy packages that a command loads, and its function calls if they are counted, with imports."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False, cwd=ROOT,
        env=environment,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    *_, calls, loaded = done.stderr.splitlines()
    return loaded.removeprefix("loaded:").strip(), int(calls)


def quick(*words: str, code: int = 0) -> bool:
    """Whether a command loads nothing heavy, and calls functions at most one and a half million times."""
    loaded, calls = run(*words, code=code, program=COUNTED)
    return loaded == "" and calls < 1_500_000


@of_studies
def test_a_study_is_planned_without_anything_heavy(toy):
    assert quick("study", "configs/study/toy.yaml", "--seeed=1", code=2)
    words = ("study", "configs/study/toy.yaml", "--dry-run", f"--train.corpus.path={toy}")
    assert quick(*words)


def test_mistyped_keys_and_printed_configurations_load_nothing_heavy():
    assert quick("train", "configs/dep.yaml", "--sede=1", code=2)
    assert quick("train", "configs/dep.yaml", "--print_config")


@of_sweeps
def test_a_sweep_is_planned_without_torch():
    assert quick("sweep", "configs/sweep/penalty.yaml", "--local", "--dry-run")
    assert quick("sweep", "configs/sweep/penalty.yaml", "--local", "--trails=1", code=2)


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


def test_help_loads_nothing_heavy_and_does_little():
    """One process says the help of all commands, and so does more than any that says one."""
    script = COUNTED.replace("commands.main import main", "commands.help import COMMANDS, help_of")
    script = script.replace("code = main(sys.argv[1:])", "code = print(*map(help_of, COMMANDS))")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    *_, calls, loaded = done.stderr.splitlines()
    assert loaded == "loaded:"
    assert int(calls) < 1_500_000
