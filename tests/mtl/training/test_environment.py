"""A run in a hostile environment trains as it does without, or is refused in one line before it writes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.accelerators import CUDAAccelerator
from safetensors.torch import load_file

from mtl.commands.main import main
from mtl.config.schema import TrainConfig, TrainerConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.runs.folder.run import Run
from mtl.training.trainer import trainer_for
from mtl.workers.launch import is_launcher_variable

SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_NTASKS": "1", "SLURM_JOB_NAME": "train", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_STEP_NUM_TASKS": "1",
}  # fmt: skip
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517",
}  # fmt: skip
POD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
TRAINS = [
    POD | {"LOCAL_RANK": "1", "NODE_RANK": "1", "GROUP_RANK": "1", "SLURM_PROCID": "3"},
    {"RANK": "x", "LOCAL_RANK": "", "WORLD_SIZE": "", "SLURM_PROCID": "x", "SLURM_STEP_NUM_TASKS": "x"},
    {"JSM_NAMESPACE_RANK": "x", "JSM_NAMESPACE_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "4", "PBS_NODEFILE": "/x"},
    SLURM,
    SLURM | {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"},
    {"PL_TRAINER_MAX_STEPS": "1", "PL_TRAINER_FAST_DEV_RUN": "1", "PL_GLOBAL_SEED": "x"},
    {"COLUMNS": "0", "TERM": "nonsense", "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""},
    {
        "COLUMNS": "x",
        "FORCE_COLOR": "1",
        "LINES": "-1",
        "MPLBACKEND": "x",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "http_proxy": "x",
    },
]
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
    (TORCHRUN | {"MASTER_ADDR": ""}, "MASTER_ADDR is missing, and torchrun"),
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


def test_who_asks_for_the_cpu_is_not_told_of_the_gpu(monkeypatch):
    monkeypatch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: True))
    config = TrainConfig(trainer=TrainerConfig(accelerator="cpu"))
    with pytest.warns(UserWarning, match="GPU available but not used"):
        Trainer(accelerator="cpu", logger=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer_for(config, [])


def test_what_torch_crashes_with_is_refused_before_anything_is_written(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.distributed, "get_debug_level", lambda: torch.distributed.DebugLevel.DETAIL)
    assert main([*words, f"--runs={tmp_path / 'runs'}", "--name=run", "--trainer.devices=2"]) == 2
    assert capsys.readouterr().err.startswith("mtl: TORCH_DISTRIBUTED_DEBUG=DETAIL: with it torch ends in")
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


def signalled(process: subprocess.Popen[str], number: signal.Signals) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if "epoch   2" in line:
            break
    process.send_signal(number)


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
    TRAINS[0] | TRAINS[5] | {
        "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "x", "MTL_STARTED_BY": "1",
        "PYTHONWARNINGS": "error", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "x", "SLURM_NODELIST": "no[1-",
        "GLOO_SOCKET_IFNAME": "lo",
    },
    HOSTILE_AT_START[0] | HOSTILE_AT_START[1] | TRAINS[7] | {
        "CUDA_VISIBLE_DEVICES": "7", "MKL_THREADING_LAYER": "x", "KMP_AFFINITY": "x", "HF_ENDPOINT": "x",
        "TOKENIZERS_PARALLELISM": "x", "TRANSFORMERS_VERBOSITY": "x", "WANDB_MODE": "x", "TZ": "x",
        "PATH": "",
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed_two(words, tmp_path_factory) -> Path:
    """The folder of a run of two processes without any of that."""
    folder = tmp_path_factory.mktemp("two")
    process = started([*words, f"--runs={folder}", "--name=run", "--trainer.devices=2"], {}, folder)
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
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
    process = started(long, SLURM, tmp_path)
    signalled(process, signal.SIGUSR1)
    _, errors = process.communicate(timeout=250)
    assert process.returncode == 130, errors
    assert "interrupted; run the command again to resume" in errors
    run = Run.open(tmp_path / "runs" / "run")
    assert run.status()["state"] == "interrupted"
    assert run.resume_checkpoint.is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_batch_script_s_run_on_two_devices_starts_its_processes_and_ends_them_all(words, tmp_path, number):
    environment = SLURM | {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "LOCAL_RANK": "1"}
    del environment["SLURM_STEP_NUM_TASKS"]
    long = [*words, "--runs=runs", "--name=run", "--max_epochs=1000", "--trainer.devices=2"]
    process = started(long, environment, tmp_path)
    signalled(process, number)
    _, errors = process.communicate(timeout=250)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "Warning" not in errors.replace("Warning: find_unused_parameters", "")  # torch's own, in C++
    assert Run.open(tmp_path / "runs" / "run").status()["state"] == "interrupted"


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
def test_a_process_that_does_not_come_is_not_waited_for_long(environment, words, tmp_path):
    """The second of a launcher's two processes is missing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        environment = environment | {"MASTER_PORT": str(free.getsockname()[1])}
    assert "mtl: process 0 waited 3 seconds at 127.0.0.1:" in refused_on_two(words, environment, tmp_path)


@pytest.mark.slow
def test_why_processes_cannot_meet_is_said(words, tmp_path):
    """The port is taken, or the two have no device to meet over."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environment = TORCHRUN | {"MASTER_PORT": str(taken.getsockname()[1])}
        errors = refused_on_two(words, environment, tmp_path)
    assert f"cannot meet the 2 processes of this run at 127.0.0.1:{environment['MASTER_PORT']}: " in errors
    assert "already in use" in errors
    two = [*words, "--runs=runs", "--name=two", "--trainer.devices=2"]
    process = started(two, {"GLOO_DEVICE_TRANSPORT": "x"}, tmp_path)
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 2, errors
    assert "unsupported gloo device (see MASTER_ADDR" in errors
    assert "Traceback" not in errors


def refused_on_two(words: list[str], environment: dict[str, str], folder: Path) -> str:
    """What a run on two devices prints that is refused, with less patience."""
    code = (
        "import sys, datetime, mtl.training.ranks as ranks; ranks.PATIENCE = datetime.timedelta(seconds=3)\n"
        "from mtl.commands.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--runs=runs", "--name=run", "--trainer.devices=2"],
        env=clean_environment() | {"PYTHONPATH": str(Path(__file__).parents[3])} | environment,
        cwd=folder, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    return done.stderr
