"""A run in a hostile environment trains as it does without, or is refused in one line before it writes."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.accelerators import CUDAAccelerator
from safetensors.torch import load_file

from mtl.commands.main import main
from mtl.config.schema import TrainerConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.runs.folder.run import Run
from mtl.training import ranks
from mtl.training.assembly import trainer_for
from mtl.workers.launch import is_launcher_variable
from tests.mtl.forked import ended, forked, printed

SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_NTASKS": "1", "SLURM_JOB_NAME": "train", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_STEP_NUM_TASKS": "1",
}  # fmt: skip
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517",
}  # fmt: skip
OF_PL = {"PL_TRAINER_MAX_STEPS": "1", "PL_TRAINER_FAST_DEV_RUN": "1", "PL_GLOBAL_SEED": "x"}
OF_SHELL = {
    "COLUMNS": "x", "FORCE_COLOR": "1", "LINES": "-1", "MPLBACKEND": "x",
    "HTTPS_PROXY": "http://127.0.0.1:9", "http_proxy": "x",
}  # fmt: skip
POD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
TRAINS = [
    POD | {"LOCAL_RANK": "1", "NODE_RANK": "1", "GROUP_RANK": "1", "SLURM_PROCID": "3"},
    {"RANK": "x", "LOCAL_RANK": "", "WORLD_SIZE": "", "SLURM_PROCID": "x", "SLURM_STEP_NUM_TASKS": "x"}
    | OF_PL,
    {"JSM_NAMESPACE_RANK": "x", "JSM_NAMESPACE_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "4", "PBS_NODEFILE": "/x"}
    | {"COLUMNS": "0", "TERM": "nonsense", "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""},
    SLURM | {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"},
    SLURM | OF_SHELL,
]
"""Variables of launchers, and beside them those of Lightning and of the shell, which they do not touch."""
REFUSED = [
    (
        {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"},
        "torchrun started 2",
    ),
    ({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "x"}, "WORLD_SIZE is 'x'"),
    ({"TORCHELASTIC_RUN_ID": "none"}, "WORLD_SIZE is missing"),
]
REFUSED_WITH_TWO = [
    (SLURM | {"SLURM_STEP_NUM_TASKS": "4"}, "srun started 4 processes"),
    (SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "2"}, "SLURM_LOCALID is '2'"),
    (SLURM | {"SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS is 'x'"),
    ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun started 2 processes"),
    (TORCHRUN | {"MASTER_ADDR": ""}, "MASTER_ADDR is missing, which torchrun"),
    (
        {"MTL_STARTED_BY": str(os.getppid()), "LOCAL_RANK": "1", "NODE_RANK": "0"},
        f"MTL_STARTED_BY says that process {os.getppid()} started this one",
    ),
    (TORCHRUN | {"MASTER_PORT": "x"}, "MASTER_PORT is 'x', and torchrun"),
    ({"GLOO_SOCKET_IFNAME": "lo,nope0"}, "GLOO_SOCKET_IFNAME is 'nope0'"),
]


@pytest.fixture(scope="module")
def words(tiny_encoder, tmp_path_factory) -> list[str]:
    """A command whose run takes part of a second."""
    corpus = tmp_path_factory.mktemp("corpus")
    write_toy(corpus, 16, 4, 4, seed=1, overwrite=True)
    return [
        "train", f"--encoder.name={tiny_encoder}", f"--corpus.path={corpus}", "--tasks=[pos]",
        "--max_epochs=1", "--trainer.accelerator=cpu", "--trainer.precision=32-true",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(words, tmp_path_factory) -> Path:
    """The folder of a run without any of that."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert main([*words, f"--runs={folder}", "--name=run"]) == 0
    return folder / "run"


def same(first: Path, second: Path) -> bool:
    one, two = (load_file(run / "model" / "decoders.safetensors") for run in (first, second))
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("environment", TRAINS, ids=lambda environment: " ".join(environment))
def test_it_trains_as_without(environment, words, undisturbed, tmp_path, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hpc_ckpt_1.ckpt").write_bytes(b"another run's state")
    assert main([*words, "--runs=runs", "--name=run"]) == 0
    assert same(undisturbed, tmp_path / "runs" / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hpc_ckpt_1.ckpt", "runs"]


@pytest.mark.parametrize(
    ("environment", "message", "devices"),
    [(*case, 1) for case in REFUSED] + [(*case, 2) for case in (*REFUSED[1:], *REFUSED_WITH_TWO)],
)
def test_or_it_is_refused_before_anything_is_written(
    environment, message, devices, words, tmp_path, monkeypatch, capsys
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main([*words, f"--runs={tmp_path / 'runs'}", "--name=run", f"--trainer.devices={devices}"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"mtl: {message}")
    assert errors.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_who_asks_for_the_cpu_is_not_told_of_the_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: True))
    config = TrainerConfig(accelerator="cpu")
    with pytest.warns(UserWarning, match="GPU available but not used"):
        Trainer(accelerator="cpu", logger=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer_for(config, Run(tmp_path), 1, 1, [])


def test_what_torch_crashes_with_is_refused_before_anything_is_written(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.distributed, "get_debug_level", lambda: torch.distributed.DebugLevel.DETAIL)
    assert main([*words, f"--runs={tmp_path / 'runs'}", "--name=run", "--trainer.devices=2"]) == 2
    assert capsys.readouterr().err.startswith("mtl: TORCH_DISTRIBUTED_DEBUG=DETAIL: with it torch ends in")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setting", "says"),
    [("precision=tf32", "trainer.precision=tf32, and the run's device has no TF32"),
     ("precision=16-mixed", "trainer.precision=16-mixed, and the run's device does not multiply float16"),
     ("cuda_graphs=true", "trainer.cuda_graphs=true, and the run trains on the CPU"),
     ("accelerator=gpu", "trainer.accelerator=gpu, but torch sees no GPU here")],
)  # fmt: skip
def test_what_the_machine_lacks_is_said_before_anything_is_read(
    setting, says, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    given = [*words, f"--runs={tmp_path / 'runs'}", f"--trainer.{setting}", "--corpus.path=nowhere"]
    assert main(given) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def clean_environment() -> dict[str, str]:
    left = {name: value for name, value in os.environ.items() if not is_launcher_variable(name)}
    return left | {"OMP_NUM_THREADS": "1"}


def started(words: list[str], environment: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mtl", *words, "--trainer.threads=1"],
        env=clean_environment() | {"PYTHONPATH": str(Path(__file__).parents[3])} | environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def forked_in(
    folder: Path, words: list[str], environment: dict[str, str]
) -> contextlib.AbstractContextManager[ForkServerProcess]:
    """As `started`, where nothing matters that a process reads at its start."""
    environment = clean_environment() | {"PYTHONPATH": str(Path(__file__).parents[3])} | environment
    given = [*words, "--trainer.threads=1"]
    return forked("mtl", given, folder, environment=environment, folder=folder)


def interrupted(folder: Path, process: ForkServerProcess, number: signal.Signals) -> str:
    """The errors of a run that was sent a signal in its second epoch and ended with its state saved."""
    while "epoch   2" not in printed(folder, "out") and process.is_alive():
        time.sleep(0.05)
    assert process.pid is not None
    assert process.is_alive(), printed(folder)
    os.kill(process.pid, number)
    assert ended(process, 250) == 130, printed(folder)
    assert Run.open(folder / "runs" / "run").status()["state"] == "interrupted"
    return printed(folder, "err")


HOSTILE_AT_START = [
    {
        "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii",
        "PYTHONOPTIMIZE": "2",
    },
    {
        "OMP_NUM_THREADS": "x", "NUMBA_NUM_THREADS": "x", "POLARS_MAX_THREADS": "0", "RAYON_NUM_THREADS": "x",
        "HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none", "HF_HOME": "/proc/none", "TMPDIR": "/proc/none",
        "MPLCONFIGDIR": "/proc/none", "NUMBA_CACHE_DIR": "/proc/none", "PYTHONHASHSEED": "7", "RANK": "x",
    },
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("environment", HOSTILE_AT_START, ids=["locale", "threads and homes"])
def test_what_a_process_reads_at_its_start_changes_nothing(environment, words, undisturbed, tmp_path):
    process = started([*words, f"--runs={tmp_path / 'Läufe'}", "--name=fünf"], environment, tmp_path)
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    assert same(undisturbed, tmp_path / "Läufe" / "fünf")


HOSTILE_ON_TWO = [
    TRAINS[0] | OF_PL | {
        "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "x", "MTL_STARTED_BY": "1",
        "PYTHONWARNINGS": "error", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "x", "SLURM_NODELIST": "no[1-",
        "GLOO_SOCKET_IFNAME": "lo",
    },
    HOSTILE_AT_START[0] | HOSTILE_AT_START[1] | OF_SHELL | {
        "CUDA_VISIBLE_DEVICES": "7", "MKL_THREADING_LAYER": "x", "KMP_AFFINITY": "x", "HF_ENDPOINT": "x",
        "TOKENIZERS_PARALLELISM": "x", "TRANSFORMERS_VERBOSITY": "x", "WANDB_MODE": "x", "TZ": "x",
        "PATH": "",
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed_two(words, tmp_path_factory) -> Path:
    """The folder of a run of two processes without any of that."""
    folder = tmp_path_factory.mktemp("two")
    two = [*words, f"--runs={folder}", "--name=run", "--trainer.devices=2"]
    with forked_in(folder, two, {}) as process:
        assert ended(process, 280) == 0, printed(folder)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("environment", HOSTILE_ON_TWO, ids=["launchers", "threads and homes"])
def test_two_processes_train_as_without(environment, words, undisturbed_two, tmp_path):
    two = [*words, f"--runs={tmp_path}", "--name=run", "--trainer.devices=2"]
    process = started(two, environment, tmp_path)
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    assert same(undisturbed_two, tmp_path / "run")


@pytest.mark.slow
def test_preemption_saves_the_state_in_the_run_s_folder(words, tmp_path):
    long = [*words, "--runs=runs", "--name=run", "--max_epochs=1000", "--seed=3"]
    with forked_in(tmp_path, long, SLURM) as process:
        errors = interrupted(tmp_path, process, signal.SIGUSR1)
    assert "interrupted; run the command again to resume" in errors
    run = Run.open(tmp_path / "runs" / "run")
    assert run.resume_checkpoint.is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_batch_script_s_run_on_two_devices_starts_its_processes_and_ends_them_all(words, tmp_path, number):
    environment = SLURM | {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "LOCAL_RANK": "1"}
    del environment["SLURM_STEP_NUM_TASKS"]
    long = [*words, "--runs=runs", "--name=run", "--max_epochs=1000", "--trainer.devices=2"]
    with forked_in(tmp_path, long, environment) as process:
        errors = interrupted(tmp_path, process, number)
    assert "Traceback" not in errors
    assert "Warning" not in errors.replace("Warning: find_unused_parameters", "")  # torch's own, in C++


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1"},
        TORCHRUN,
        TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"},  # its agent is gone
    ],
    ids=["srun", "torchrun", "torchrun's agent"],
)
def test_a_process_that_does_not_come_is_not_waited_for_long(
    environment, words, tmp_path, monkeypatch, capsys
):
    """The second of a launcher's two processes is missing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        environment = environment | {"MASTER_PORT": str(free.getsockname()[1])}
    prepare(environment, tmp_path, monkeypatch)
    assert main([*words, "--runs=runs", "--name=run", "--trainer.devices=2"]) == 2
    assert "mtl: process 0 waited 3 seconds at 127.0.0.1:" in capsys.readouterr().err


@pytest.mark.slow
def test_that_the_port_is_taken_is_said(words, tmp_path, monkeypatch, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environment = TORCHRUN | {"MASTER_PORT": str(taken.getsockname()[1])}
        prepare(environment, tmp_path, monkeypatch)
        assert main([*words, "--runs=runs", "--name=run", "--trainer.devices=2"]) == 2
    errors = capsys.readouterr().err
    assert f"cannot meet the 2 processes of this run at 127.0.0.1:{environment['MASTER_PORT']}: " in errors
    assert "already in use" in errors


@pytest.mark.slow
def test_that_two_processes_have_no_device_to_meet_over_is_said(words, tmp_path):
    two = [*words, "--runs=runs", "--name=two", "--trainer.devices=2"]
    with forked_in(tmp_path, two, {"GLOO_DEVICE_TRANSPORT": "x"}) as process:
        assert ended(process, 280) == 2, printed(tmp_path)
    errors = printed(tmp_path, "err")
    assert "unsupported gloo device (see MASTER_ADDR" in errors
    assert "Traceback" not in errors


def prepare(environment: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process run in a folder and an environment, with less patience."""
    for name in filter(is_launcher_variable, list(os.environ)):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(ranks, "PATIENCE", datetime.timedelta(seconds=3))
