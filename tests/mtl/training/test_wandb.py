"""W&B without a network: what a run's local log holds, no connection to anywhere else, and W&B that fails."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import polars as pl
import pytest
import wandb

from mtl.commands.main import main
from mtl.config.schema import WandbConfig
from mtl.runs.folder.run import Run
from mtl.runs.folder.wandb_view import View, new_identity
from tests.mtl.wandb_log import Log, logs, read, whole

LOCAL = ("127.0.0.1", "::1", "localhost")


def words(toy: Path, encoder: Path, runs: Path, *more: str) -> list[str]:
    return [
        "train", f"--corpus.path={toy}", f"--encoder.name={encoder}", f"--runs={runs}", "--name=run",
        "--trainer.accelerator=cpu", *more,
    ]  # fmt: skip


@pytest.fixture
def staging(tmp_path: Path, monkeypatch) -> Path:
    """Where artifacts wait to be sent."""
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    return tmp_path / "staged"


@pytest.fixture(scope="module")
def masked(toy, tiny_encoder, tmp_path_factory) -> tuple[Path, list[object]]:
    """The folder of a run with masks and an offline log, and whatever it connected to."""
    root = tmp_path_factory.mktemp("masked")
    reached: list[object] = []
    connect = socket.socket.connect

    def watched(self: socket.socket, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in LOCAL:
            reached.append(address)
        return connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", watched)
        # Whatever wandb's own process would ask for, it must not find a server to ask.
        patch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        patch.setenv("WANDB_DATA_DIR", str(root / "staged"))
        options = [
            "--tasks=pos,dep", "--max_epochs=2", "--pruning=dynamic", "--gates.scope=per_task",
            "--wandb.mode=offline", "--wandb.group=study all dynamic", "--wandb.job_type=train",
            '--wandb.tags=["study","setup:all","masks:dynamic"]',
        ]  # fmt: skip
        assert main(words(toy, tiny_encoder, root, *options)) == 0
    return root / "run", reached


@pytest.fixture(scope="module")
def log(masked) -> Log:
    (only,) = logs(masked[0])
    return only


def test_offline_connects_to_nothing(masked):
    assert masked[1] == []


def test_a_run_is_grouped_tagged_and_configured(log: Log, masked):
    run = Run(masked[0])
    assert (log.run.run_id, log.run.display_name) == (run.status()["wandb_id"], "run")
    assert (log.run.project, log.run.run_group, log.run.job_type) == ("mtl", "study all dynamic", "train")
    assert set(log.run.tags) == {"study", "setup:all", "masks:dynamic"}
    config = {item.key: json.loads(item.value_json) for item in log.run.config.update}
    for key, value in run.config().items():
        assert config[key] == value
    assert log.exit_code == 0


def test_figures_are_logged_by_update_and_scores_at_the_end(log: Log, masked):
    history = pl.read_csv(masked[0] / "history.csv")
    assert [row["trainer/global_step"] for row in log.rows] == history["update"].to_list()
    assert [row["_step"] for row in log.rows] == history["update"].to_list()
    for row, said in zip(log.rows, history.iter_rows(named=True), strict=True):
        assert row["loss/dep"] == said["loss/dep"]
        assert row["gates/dep/open"] == said["gates/dep/open"]
    for split, scores in Run(masked[0]).metrics().items():
        for task, figures in scores.items():
            for name, value in figures.items():
                assert log.summary[f"{split}/{task}/{name}"] == pytest.approx(value)


def test_masks_are_logged_as_pictures_over_time_and_an_animation(log: Log, masked):
    folder = masked[0]
    files = next(folder.glob("wandb/offline-run-*")) / "files"
    pictures = [files / row["masks/path"] for row in log.rows]
    assert len({picture.read_bytes() for picture in pictures}) == 2
    assert pictures[-1].read_bytes() == (folder / "masks.png").read_bytes()
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    animation = files / log.rows[-1]["masks_animation/path"]
    assert animation.read_bytes() == (folder / "masks.gif").read_bytes()
    assert animation.read_bytes().startswith(b"GIF89a")


def test_the_history_of_the_masks_is_an_artifact(log: Log, masked):
    (gates,) = log.artifacts["gates"]
    (entry,) = gates.manifest.contents
    assert gates.name == f"gates-{log.run.run_id}"
    assert entry.path == "gates.parquet"
    content = (masked[0] / "gates.parquet").read_bytes()
    assert base64.b64decode(entry.digest) == hashlib.md5(content).digest()
    assert Path(entry.local_path).is_relative_to(masked[0].parent / "staged")
    assert Path(entry.local_path).read_bytes() == content


class Broken:
    """A W&B run of which one function raises."""

    def __init__(self, place: str) -> None:
        self.place, self.step, self.summary, self.finished = place, 0, {}, []

    def call(self, place: str) -> None:
        if place == self.place:
            raise ConnectionError(f"no {place} today\nand more")

    def define_metric(self, *words: object, **more: object) -> None:
        self.call("define_metric")

    def log(self, values: object, step: int | None) -> None:
        self.call("log")

    def log_artifact(self, artifact: object) -> None:
        self.call("log_artifact")

    def finish(self, exit_code: int) -> None:
        self.finished.append(exit_code)
        self.call("finish")


def broken(monkeypatch, place: str) -> Broken:
    """Take W&B's place."""
    run = Broken(place)

    def init(**settings: object) -> Broken:
        run.call("init")
        return run

    fake = types.ModuleType("wandb")
    for name, value in {"init": init, "setup": dict, "Settings": dict, "Image": str, "Video": str}.items():
        monkeypatch.setattr(fake, name, value, raising=False)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return run


@pytest.mark.parametrize("place", ["init", "log", "finish"])
def test_a_run_is_whole_though_wandb_fails(toy, tiny_encoder, tmp_path, monkeypatch, capsys, place):
    fake = broken(monkeypatch, place)
    options = ["--tasks=pos", "--max_epochs=2", "--evaluate_every=1", "--wandb.mode=online"]
    assert main(words(toy, tiny_encoder, tmp_path, *options)) == 0
    run = Run(tmp_path / "run")
    assert run.status()["state"] == "finished"
    assert run.metrics()["test"]["pos"]["accuracy"] >= 0
    assert pl.read_csv(run.folder / "history.csv").height == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "W&B" in line]
    assert len(said) == 1
    assert f"ConnectionError: no {place} today);" in said[0]
    assert str(run.folder) in said[0]
    # What has begun is closed, so that nothing of it is in the way of the process's next run.
    assert len(fake.finished) == {"init": 0, "log": 1, "finish": 2}[place]


def test_a_terminal_is_not_waited_for_without_end(tmp_path, monkeypatch):
    """Without a key W&B asks a terminal for one."""
    broken(monkeypatch, "init")
    given: list[dict[str, object]] = []
    monkeypatch.setattr(sys.modules["wandb"], "setup", given.append)
    View(tmp_path, WandbConfig(mode="online"), "id", "name", {}).begin()
    assert given == [{"login_timeout": 60.0}]


def test_a_run_that_fails_ends_its_log_and_leaves_the_next_alone(
    toy, tiny_encoder, tmp_path, monkeypatch, staging
):
    from mtl.training import evaluation as callbacks

    def failing(*words: object) -> None:
        raise RuntimeError("what went wrong")

    options = ["--tasks=pos", "--max_epochs=1", "--wandb.mode=offline"]
    with monkeypatch.context() as patch:
        patch.setattr(callbacks, "evaluate", failing)
        with pytest.raises(RuntimeError, match="what went wrong"):
            main(words(toy, tiny_encoder, tmp_path / "a", *options))
    assert main(words(toy, tiny_encoder, tmp_path / "b", *options)) == 0
    (failed,), (next_one,) = logs(tmp_path / "a" / "run"), logs(tmp_path / "b" / "run")
    assert (failed.exit_code, next_one.exit_code) == (1, 0)
    assert failed.run.run_id != next_one.run.run_id
    assert failed.rows == []
    assert len(next_one.rows) == 1


def test_disabled_imports_nothing_of_wandb(toy, tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # from now on importing it is an error
    assert main(words(toy, tiny_encoder, tmp_path, "--tasks=pos", "--max_epochs=1")) == 0
    assert "wandb_id" not in Run(tmp_path / "run").status()


@pytest.mark.slow
def test_training_and_studies_import_wandb_only_when_used():
    modules = "mtl.training.train, mtl.analysis.probing.run, mtl.study.perform, mtl.study.report"
    script = f"import sys, {modules}; sys.exit('wandb' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_view_goes_on_below_the_rows_of_its_first_log(tmp_path, staging):
    table = pl.DataFrame(
        {"text": ["a", None], "value": [float("nan"), 0.5], "count": [1, None], "yes": [True, None]}
    )
    offline = WandbConfig(mode="offline", group="g", job_type="j", tags=("t",))
    identity = new_identity("all tasks/pos+dep")
    for step, values in ((5, {"loss": 2.0}), (6, {"tables/one": table})):
        view = View(tmp_path, offline, identity, "name", {"a": {"b": [1, 2]}})
        view.log(values, step)
        view.summarise({"mean": 0.25})
        view.end()
        assert not view.failed
    first, second = logs(tmp_path)
    assert first.run.run_id == second.run.run_id == identity
    assert [row["_step"] for row in first.rows + second.rows] == [5, 6]
    assert second.summary["mean"] == 0.25
    (kept,) = second.artifacts["run_table"]
    (entry,) = kept.manifest.contents
    assert entry.path == "tables/one.table.json"
    written = json.loads(Path(entry.local_path).read_text())
    assert written["columns"] == table.columns
    assert written["data"] == [["a", None, 1, True], [None, 0.5, None, None]]


def test_identities_differ_and_have_no_sign_that_wandb_refuses():
    first, second = new_identity("a/b c:d" + "x" * 200), new_identity("a/b c:d" + "x" * 200)
    assert first != second
    assert len(first) < 128
    assert not set(first) & set(":;,#?/' ")


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_wandb_run(toy, tiny_encoder, tmp_path):
    """SIGKILL leaves a log without an end; the next try begins another of the same id.

    A process that uses W&B itself may start both, as a script or another test does: its service outlives the
    first and would refuse the second.
    """
    wandb.setup()
    assert os.environ["WANDB_SERVICE"]
    options = ["--tasks=pos", "--max_epochs=80", "--wandb.mode=offline"]
    command = [sys.executable, "-m", "mtl", *words(toy, tiny_encoder, tmp_path, *options)]
    folder = tmp_path / "run"
    environment = {**os.environ, "WANDB_DATA_DIR": str(tmp_path / "staged"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    end = time.monotonic() + 120
    # W&B's process writes its log in its own time. A row is logged before its epoch's checkpoint is written.
    while not any(
        (log := read(path)) and len(log.rows) > 2 for path in folder.glob("wandb/offline-run-*/*.wandb")
    ):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.05)
    process.kill()
    process.wait()
    identity = Run(folder).status()["wandb_id"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, timeout=240)
    one, other = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    first, second = read(one), whole(other)
    assert (first.run.run_id, second.run.run_id) == (identity, identity)
    assert (first.exit_code, second.exit_code) == (None, 0)
    updates = pl.read_csv(folder / "history.csv")["update"].to_list()
    steps = [row["_step"] for row in second.rows]
    # The second log has every evaluation from where training went on.
    assert steps == updates[-len(steps) :]
    assert len(steps) < len(updates)
    assert [row["_step"] for row in first.rows] == updates[: len(first.rows)]
    assert len(first.rows) > 0
