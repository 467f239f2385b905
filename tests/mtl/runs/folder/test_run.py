"""Files of a run that are read several times: parsed once, and again when they change."""

from __future__ import annotations

import dataclasses
import json
import os
import time

import pytest

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.runs.folder import run as module
from mtl.runs.folder.run import Run


def test_a_file_is_parsed_once_until_it_changes_and_nobody_shares_what_is_read(tmp_path, monkeypatch) -> None:
    parsed = []
    monkeypatch.setattr(module.json, "loads", lambda text, of=json.loads: parsed.append(text) or of(text))
    status, run = tmp_path / "status.json", Run(tmp_path)
    status.write_text('{"state": "a", "choices": {"pos": 1}}')
    assert [run.status()["state"] for _ in range(2)] == ["a", "a"]
    assert len(parsed) == 2  # written a moment ago: its time of change may be that of the next change
    monkeypatch.setattr(module, "_SETTLED", -1.0)
    run.status()["choices"]["pos"] = 2
    assert run.status() == {"state": "a", "choices": {"pos": 1}}
    assert len(parsed) == 3
    status.write_text('{"state": "b", "choices": {"pos": 1}}')
    os.utime(status, (time.time() + 5, time.time() + 5))
    assert run.status()["state"] == "b"


@pytest.mark.parametrize("tasks", [None, "pos", {"pos": 1}])
def test_a_configuration_whose_tasks_are_no_list_is_refused(tasks, tmp_path) -> None:
    run = Run(tmp_path)
    run.create({**dataclasses.asdict(TrainConfig()), "tasks": tasks})
    with pytest.raises(InputError, match=r"config\.yaml has no list of tasks: put back an undamaged copy"):
        run.config()
