"""Launchers' variables count only if they describe exactly the processes of the run."""

from __future__ import annotations

import itertools
import os

import pytest

from mtl.errors import InputError
from mtl.workers.launch import ProcessPlace, alone, clean_environment, is_launcher_variable, process_place

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1",
    "MASTER_ADDR": "first", "MASTER_PORT": "29500",
}  # fmt: skip
SRUN = {
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4", "SLURM_JOB_ID": "4711",
}  # fmt: skip
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_ID": "4711"}
LEFT_OVER = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_LOCALID", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in filter(is_launcher_variable, list(os.environ)):
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("program", "environment"), [("torchrun", TORCHRUN), ("srun", SRUN)])
def test_other_numbers_of_processes_than_the_run_is_for_are_refused(program, environment):
    for devices, nodes in ((2, 1), (4, 2), (3, 1)):
        with pytest.raises(InputError, match=rf"^{program} started 4 processes, .* makes {devices * nodes}:"):
            process_place(devices, nodes, environment)
    assert process_place(2, 2, environment) == ProcessPlace(program, local_rank=1, machine=1)


def test_torchrun_numbers_the_processes_of_a_run_of_one_as_well():
    with pytest.raises(InputError, match=r"^torchrun started 4 processes, .* makes 1:"):
        process_place(1, 1, TORCHRUN)


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN])
@pytest.mark.parametrize("value", ["", "x", "-1", "4", "1.0", "٣"])
def test_numbers_that_do_not_add_up_are_refused(environment, value):
    for name in ("LOCAL_RANK", "GROUP_RANK", "RANK", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_PROCID"):
        if name in environment:
            with pytest.raises(InputError, match=rf"^{name} is '{value}', and "):
                process_place(2, 2, environment | {name: value})
            with pytest.raises(InputError, match=rf"^{name} is missing, and "):
                process_place(2, 2, {key: old for key, old in environment.items() if key != name})


@pytest.mark.parametrize("devices", [1, 2])
def test_what_another_launcher_left_does_not_count(devices):
    for name, value in itertools.product(LEFT_OVER, ("1", "", "x", "-1")):
        assert process_place(devices, 1, {name: value}) == ProcessPlace()
    left = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    assert process_place(devices, 1, left) == ProcessPlace()
    assert process_place(devices, 1, BATCH) == ProcessPlace()


def test_each_agent_below_srun_trains_runs_of_one_process():
    for task in range(4):
        assert (
            process_place(1, 1, SRUN | {"SLURM_PROCID": str(task), "WANDB_SWEEP_ID": "x"}) == ProcessPlace()
        )


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE"])
def test_launchers_that_are_not_supported_are_named(name):
    assert process_place(1, 1, {name: "2"}) == ProcessPlace()
    with pytest.raises(InputError, match=r"started 2 processes, which mtl cannot use"):
        process_place(2, 1, {name: "2"})


def test_several_machines_need_something_that_starts_them():
    by_hand = {"NODE_RANK": "1", "MASTER_ADDR": "first", "MASTER_PORT": "29500"}
    assert process_place(2, 2, by_hand) == ProcessPlace("hand", machine=1)
    for missing in by_hand:
        with pytest.raises(InputError, match=r"no launcher started this run on 2 machines"):
            process_place(2, 2, {name: value for name, value in by_hand.items() if name != missing})
    with pytest.raises(InputError, match=r"^NODE_RANK is '2'"):
        process_place(2, 2, by_hand | {"NODE_RANK": "2"})


@pytest.mark.parametrize(("devices", "nodes"), [(0, 1), (-1, 1), (1, 0)])
def test_numbers_of_devices_and_machines_start_at_one(devices, nodes):
    with pytest.raises(InputError, match=rf"devices={devices}, .*num_nodes={nodes}: both must be at least 1"):
        process_place(devices, nodes, {})


def test_the_environment_is_as_before_afterwards(monkeypatch):
    for name, value in (SRUN | {"RANK": "x", "PL_TRAINER_MAX_STEPS": "1"}).items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    for devices, machines in ((1, 1), (2, 2)):
        with clean_environment(devices, machines) as place:
            assert not {"RANK", "PL_TRAINER_MAX_STEPS", "SLURM_NTASKS"} & os.environ.keys()
            with clean_environment(devices, machines) as again:
                assert again == place
            os.environ["LOCAL_RANK"] = "1"
        assert dict(os.environ) == before
    with alone():
        assert not any(map(is_launcher_variable, os.environ))
    assert dict(os.environ) == before


def test_only_a_child_of_the_process_that_names_itself_is_one_of_several(monkeypatch):
    started = {"MTL_STARTED_BY": str(os.getppid()), "LOCAL_RANK": "1", "NODE_RANK": "0"}
    assert process_place(2, 1, started) == ProcessPlace("mtl", local_rank=1)
    assert process_place(2, 1, started | {"MTL_STARTED_BY": "1x"}) == ProcessPlace()
    assert process_place(1, 1, started) == ProcessPlace()
    assert process_place(2, 1, started | {"LOCAL_RANK": "0"}) == ProcessPlace()
