"""Studies and local sweeps of which all processes are killed at many places complete all their outputs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml
from optuna.trial import FrozenTrial, TrialState

from mtl.corpora.toy.corpus import write_toy
from mtl.features import features
from tests.mtl import tiny
from tests.mtl.forked import ended, forked, printed
from tests.mtl.study import small

if "sweep" in features():
    from mtl.sweep.folder import SweepFolder, trials_of

STUDY = {
    "studies": "studies", "seeds": [1], "probes": {"measures": ["probes", "importance"], "sentences": 4},
    "grid": [{"setups": ["pretrained", "pos"]}, {"setups": ["pos"], "masks": ["static"]}],
    "train": {
        "tasks": ["pos", "dep"], "corpus": {"path": "toy"}, "encoder": {"name": "enc"}, **small.SETTINGS,
    },
}  # fmt: skip
SWEEP = {
    "method": "grid", "metric": {"name": "dev/mean", "goal": "maximize"},
    "parameters": {"seed": {"values": [1, 2]}},
    "early_terminate": {"type": "hyperband", "min_iter": 1, "eta": 2},
    "command": [
        "mtl", "train", "--corpus.path=toy", "--encoder.name=enc", "--tasks=[pos]", "--pruning=dynamic",
        "--trainer.accelerator=cpu", "--max_epochs=2", "${args}",
    ],
}  # fmt: skip
PLACES_OF_STUDY = (
    "search/plan.lease", "jobs/pos-seed1.job.json", "search/study.yaml", "commands/command.lease",
    "pretrained/heads.parquet", "jobs/pretrained.progress.json finished", "pos-seed1/model",
    "checkpoints/last.ckpt",
    "pos-seed1/metrics.json", "jobs/pos-seed1.progress.json running ['probes']",
    "pos-static-seed1/gates.parquet", "jobs/pos-static-seed1.progress.json finished",
    "figures/heads-kept.png", "search/report.html",
)  # fmt: skip
PLACES_OF_SWEEP = (
    "sweep.db create_new_study", "search/sweep.json", "sweep.db create_new_trial",
    "sweep.db set_trial_user_attr 1 values", "leases/trial-0000.lease",
    "sweep.db set_trial_intermediate_value 1", "checkpoints/last.ckpt",
    "sweep.db set_trial_user_attr 1 progress finished", "sweep.db set_trial_state_values 1 COMPLETE",
    "trial-0001/metrics.json", "sweep.db set_trial_user_attr 2 progress stopped", "tables/trials.csv",
)  # fmt: skip
"""How places begin; the first place that begins so counts."""
COMMANDS = {
    "study": ("study search.yaml --jobs=1", STUDY, PLACES_OF_STUDY),
    "sweep": ("sweep search.yaml --local --jobs=1 --wandb=disabled", SWEEP, PLACES_OF_SWEEP),
}
IN_TEXT = re.compile(
    rb"\d{4}-\d\d-\d\d.{0,40}?\d\d:\d\d:\d\dZ(?:</td>\s*<td[^>]*>| & )[\d.,]+"
    rb"|trial-\d{4}</td><td>(?:finished|stopped)</td>.*?</tr>",
    re.S,
)
"""In pages and tables: when a run ended and how long it took; a trial's row, which ends with that."""
TIMES = (
    "seconds", "started", "ended", "finished", "prepared_seconds", "training_seconds", "first_step", "pid",
    "starts", "tries", "worker", "time", "history.csv",
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and an encoder."""
    folder = tmp_path_factory.mktemp("world")
    write_toy(folder / "toy", 24, 8, 8, seed=1)
    tiny.encoder("bert", dtype=torch.float32).save(folder / "enc")
    (folder / "enc" / "encoder.json").unlink()
    return folder


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: without_times(part) for key, part in value.items() if key not in TIMES}
        return {key: list(part) if key == "measured" else part for key, part in kept.items()}
    return value


def content(folder: Path) -> dict[str, Any]:
    """What is in all files that a study or sweep has written, without what depends on time."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        left_out = {".replaced", "logs"} & {*parts} or path.name in ("log.txt", "sweep.db", "trials.tex")
        # A dead process's lease stays until another one takes it.
        if path.is_file() and not left_out and path.suffix not in (".lock", ".lease"):
            found["/".join(parts)] = of_file(path, str(folder.parents[1]))
    return found


def of_file(path: Path, place: str) -> Any:
    """What is in a file, without its times and the `place` of all files."""
    match path.suffix:
        case ".json":
            return without_times(json.loads(path.read_text()))
        case ".parquet":
            rows = pl.read_parquet(path).drop(TIMES, strict=False).rows()
        case ".csv":
            rows = pl.read_csv(path).drop(TIMES, strict=False).rows()
        case _:
            text = re.sub(IN_TEXT, b"", path.read_bytes())
            return text.replace(place.encode(), b"").replace(place.replace("_", "\\_").encode(), b"")
    return repr(rows).replace(place, "")


def trials_in(folder: Path) -> list[FrozenTrial]:
    """The trials of a sweep that was started."""
    if not (folder / "sweep.json").exists():
        return []
    sweep = SweepFolder(folder)
    return trials_of(sweep.study(sweep.read_sweep()[0]))


def outcome(trial: FrozenTrial) -> Any:
    """What came of a trial, without its times."""
    return without_times(
        {**vars(trial), "_datetime_start": None, "datetime_complete": None}
        | {"_user_attrs": trial.user_attrs}
    )


def done(folder: Path) -> dict[str, Any]:
    """What is recorded as done: jobs and trials that have ended, with the files of their runs."""
    names: dict[str, Any] = {}
    for file in folder.glob("jobs/*.progress.json"):
        progress = json.loads(file.read_text())
        if progress["state"] == "finished":
            names[file.name.removesuffix(".progress.json")] = progress
    for trial in trials_in(folder):
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            names[f"trial-{trial.number:04}"] = trial
    return {
        name: (record, {path: path.stat().st_mtime_ns for path in folder.glob(f"runs/{name}/**/*")})
        for name, record in names.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in COMMANDS if name in features()])
def test_what_is_killed_at_many_places_has_all_outputs_of_what_is_not(world, tmp_path, name):
    command, file, starts = COMMANDS[name]
    notes = {where: tmp_path / f"{where}-note" for where in ("undisturbed", "killed")}

    def tried(where: str) -> int:
        folder = tmp_path / where
        if not folder.exists():
            shutil.copytree(world, folder)
            (folder / "search.yaml").write_text(yaml.safe_dump(file))
            notes[where].write_text("")
        words = [str(notes[where]), str(tmp_path / f"{where}-places"), *command.split()]
        environment = {**os.environ, "MTL_CACHE": str(tmp_path / "cache")}
        output = tmp_path / f"{where}-said"
        module = "tests.mtl.study.killed"
        with forked(module, words, output, folder=folder, environment=environment) as process:
            return ended(process, 300)

    def told(where: str) -> str:
        return printed(tmp_path / f"{where}-said")

    assert tried("undisturbed") == 0, told("undisturbed")
    known = notes["undisturbed"].read_text().splitlines()
    places = [next(place for place in known if place.startswith(start)) for start in starts]
    (tmp_path / "killed-places").write_text("".join(f"{place}\n" for place in places))
    folders = {
        where: tmp_path / where / ("studies" if name == "study" else "sweeps") / "search" for where in notes
    }
    code, ended_before = -signal.SIGKILL, dict[str, Any]()
    while code == -signal.SIGKILL:
        code = tried("killed")
        now = done(folders["killed"])
        assert {one: now.get(one) for one in ended_before} == ended_before
        ended_before = now
    assert code == 0, told("killed")
    assert sorted(notes["killed"].read_text().splitlines()) == sorted(places)
    whole_trials, trials = (list(map(outcome, trials_in(folders[where]))) for where in notes)
    assert trials == whole_trials
    whole, killed = (content(folders[where]) for where in notes)
    assert killed.keys() == whole.keys()
    assert [path for path in whole if killed[path] != whole[path]] == []
    assert list(folders["killed"].glob("commands/*")) == []
