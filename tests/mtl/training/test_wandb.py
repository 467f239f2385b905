"""W&B without a network: what a run's local log holds, no connection to anywhere else, and W&B that fails."""

from __future__ import annotations

import base64
import hashlib
import itertools
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
from mtl.runs.folder.wandb_view import WandbView, new_identity
from mtl.tasks.catalogue import TASKS
from tests.mtl.wandb_log import Log, logs, read, whole

LOCAL = ("127.0.0.1", "::1", "localhost")


def words(few: Path, encoder: Path, runs: Path, *more: str) -> list[str]:
    return [
        "train", f"--corpus.path={few}", f"--encoder.name={encoder}", f"--runs={runs}", "--name=run",
        "--trainer.accelerator=cpu", *more,
    ]  # fmt: skip


@pytest.fixture
def staging(tmp_path: Path, monkeypatch) -> Path:
    """Where artifacts wait to be sent."""
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    return tmp_path / "staged"


@pytest.fixture(scope="module")
def masked(few, tiny_encoder, tmp_path_factory) -> tuple[Path, list[object]]:
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
            "--tasks=pos,dep", "--max_epochs=2", "--batch.sentences=8", "--pruning=dynamic",
            "--gates.scope=per_task",
            "--wandb.mode=offline", "--wandb.group=study all dynamic", "--wandb.job_type=train",
            "--log_every=2", "--wandb.log_model=true", "--wandb.notes=a note", "--wandb.id=an-id",
            '--wandb.tags=["study","setup:all","masks:dynamic"]',
        ]  # fmt: skip
        assert main(words(few, tiny_encoder, root, *options)) == 0
    return root / "run", reached


@pytest.fixture(scope="module")
def log(masked) -> Log:
    (only,) = logs(masked[0])
    return only


def test_offline_connects_to_nothing(masked):
    assert masked[1] == []


def test_a_run_is_grouped_tagged_and_configured(log: Log, masked):
    run = Run(masked[0])
    assert (log.run.run_id, log.run.display_name, log.run.notes) == ("an-id", "run", "a note")
    assert run.status()["wandb_id"] == "an-id"
    assert (log.run.project, log.run.run_group, log.run.job_type) == ("mtl", "study all dynamic", "train")
    assert set(log.run.tags) == {"study", "setup:all", "masks:dynamic"}
    config = {item.key: json.loads(item.value_json) for item in log.run.config.update}
    for key, value in run.config().items():
        assert config[key] == value
    assert log.exit_code == 0


def test_figures_are_logged_by_update_and_scores_at_the_end(log: Log, masked):
    history = pl.read_csv(masked[0] / "history.csv")
    last = history["update"].max()
    steps = sorted({*history["update"].to_list(), *range(2, last + 1, 2)})
    assert [row["trainer/global_step"] for row in log.rows] == steps
    assert [row["_step"] for row in log.rows] == steps
    require_history(log, masked[0])
    highest = {f"dev/{key}": history[f"dev/{key}"].max() for key in ("mean", "pos/accuracy", "dep/las")}
    assert {key: log.summary[key]["max"] for key in highest} == pytest.approx(highest)


OF_LAST_ROW = ("final/", "masks_animation", "heads")
"""Keys of the kept model and of the end, which are in the last row besides its evaluation."""


def lines_of(path: Path) -> list[str]:
    """The lines of a file; none if it is not there."""
    return path.read_text().splitlines() if path.exists() else []


def require_history(log: Log, folder: Path) -> None:
    """Each key means one thing: what history.csv has in the row's evaluation, or the kept model's score."""
    history = {row["update"]: row for row in pl.read_csv(folder / "history.csv").rows(named=True)}
    updates = {row["update"]: row for row in map(json.loads, lines_of(folder / "updates.jsonl"))}
    for row in log.rows:
        evaluation = history.get(row["trainer/global_step"], {}).items()
        said = {key: value for key, value in evaluation if key != "seconds" and value is not None}
        others = ("_", "trainer/", "masks", "heads/", "final/")
        given = {key: row[key] for key in row if not key.startswith(others)}
        assert given == pytest.approx(updates.get(row["trainer/global_step"], {}) | said)
    assert {row["trainer/global_step"] for row in log.rows} == history.keys() | updates.keys()
    *before, last = log.rows
    assert not [key for row in before for key in row if key.startswith(OF_LAST_ROW)]
    metrics = Run(folder).metrics()
    final = {
        f"final/{split}/{task}/{name}": value
        for split, scores in metrics.items()
        for task, figures in scores.items()
        for name, value in figures.items()
    }
    config = Run(folder).config()
    main = [final[f"final/dev/{task}/{TASKS[task].score}"] for task in config["tasks"]]
    final["final/dev/mean"] = sum(main) / len(main)
    assert {key: row for key, row in last.items() if key.startswith("final/")} == pytest.approx(final)
    for key, value in {**said, **final}.items():  # the summary has what the last row has
        shown = log.summary[key]
        assert (shown["last"] if isinstance(shown, dict) else shown) == pytest.approx(value)


def test_the_last_row_is_the_last_evaluation_though_an_earlier_model_is_kept(
    few, tiny_encoder, tmp_path, monkeypatch, staging
):
    from mtl.training import evaluation

    real, evaluations = evaluation.evaluate_model, itertools.count()

    def worse(*given: object) -> dict[str, dict[str, float]]:
        factor = 0.1 ** next(evaluations)
        scores = real(*given).items()
        return {name: {key: factor * value for key, value in of.items()} for name, of in scores}

    monkeypatch.setattr(evaluation, "evaluate_model", worse)
    options = ["--tasks=pos", "--max_epochs=3", "--wandb.mode=offline"]
    assert main(words(few, tiny_encoder, tmp_path, *options)) == 0
    (log,) = logs(tmp_path / "run")
    dev = pl.read_csv(tmp_path / "run" / "history.csv")["dev/mean"]
    assert dev[0] > dev[1] > dev[2]
    require_history(log, tmp_path / "run")
    assert log.rows[-1]["final/dev/mean"] == pytest.approx(dev[0], abs=1e-3)
    assert log.rows[-1]["dev/mean"] == dev[2]


def test_masks_are_logged_as_pictures_over_time_and_an_animation(log: Log, masked):
    folder = masked[0]
    files = next(folder.glob("wandb/offline-run-*")) / "files"
    pictures = [files / row["masks/path"] for row in log.rows if "dev/mean" in row]
    assert len({picture.read_bytes() for picture in pictures}) == 2
    assert pictures[-1].read_bytes() == (folder / "masks.png").read_bytes()
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    animation = files / log.rows[-1]["masks_animation/path"]
    assert animation.read_bytes() == (folder / "masks.gif").read_bytes()
    assert animation.read_bytes().startswith(b"GIF89a")


def test_the_kept_model_is_an_artifact(log: Log, masked):
    (model,) = log.artifacts["model"]
    assert (model.name, set(model.aliases)) == (f"model-{log.run.run_id}", {"latest", "last"})
    assert json.loads(model.metadata)["final/dev/mean"] == pytest.approx(log.summary["final/dev/mean"])
    kept = {entry.path: base64.b64decode(entry.digest) for entry in model.manifest.contents}
    files = [path for path in (masked[0] / "model").rglob("*") if path.is_file()]
    assert kept == {
        path.relative_to(masked[0]).as_posix(): hashlib.md5(path.read_bytes()).digest() for path in files
    }


def test_the_heads_are_a_table(log: Log, masked):
    (kept,) = log.artifacts["run_table"]
    (entry,) = kept.manifest.contents
    written = json.loads(Path(entry.local_path).read_text())
    table = pl.DataFrame(written["data"], schema=written["columns"], orient="row", infer_schema_length=None)
    gates = pl.read_parquet(masked[0] / "gates.parquet")
    last = gates.filter(pl.col("step") == pl.col("step").max())
    assert (
        table.select("task", "layer", "head", "open").rows()
        == last.select("task", "layer", "head", "open").rows()
    )
    assert table["gate"].to_list() == pytest.approx(last["gate"].to_list())


def test_the_history_of_the_masks_is_an_artifact(log: Log, masked):
    (gates,) = log.artifacts["gates"]
    assert set(gates.aliases) == {"latest", "last"}
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
    known = types.SimpleNamespace(settings=types.SimpleNamespace(project=None))
    setup = {"init": init, "setup": lambda settings: known, "Settings": dict, "Image": str, "Video": str}
    for name, value in setup.items():
        monkeypatch.setattr(fake, name, value, raising=False)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return run


@pytest.mark.parametrize("place", ["init", "log", "finish"])
def test_a_run_is_whole_though_wandb_fails(few, tiny_encoder, tmp_path, monkeypatch, capsys, place):
    fake = broken(monkeypatch, place)
    options = ["--tasks=pos", "--max_epochs=2", "--evaluate_every=1", "--wandb.mode=online"]
    assert main(words(few, tiny_encoder, tmp_path, *options)) == 0
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
    WandbView(tmp_path, WandbConfig(mode="online"), "id", "name", {}).begin()
    assert given == [{"login_timeout": 60.0}]


def test_a_run_that_fails_ends_its_log_and_leaves_the_next_alone(
    few, tiny_encoder, tmp_path, monkeypatch, staging
):
    from mtl.training import evaluation as callbacks

    def failing(*words: object) -> None:
        raise RuntimeError("what went wrong")

    options = ["--tasks=pos", "--max_epochs=1", "--wandb.mode=offline"]
    with monkeypatch.context() as patch:
        patch.setattr(callbacks, "evaluate_model", failing)
        with pytest.raises(RuntimeError, match="what went wrong"):
            main(words(few, tiny_encoder, tmp_path / "a", *options))
    assert main(words(few, tiny_encoder, tmp_path / "b", *options)) == 0
    (failed,), (next_one,) = logs(tmp_path / "a" / "run"), logs(tmp_path / "b" / "run")
    assert (failed.exit_code, next_one.exit_code) == (1, 0)
    assert failed.run.run_id != next_one.run.run_id
    assert failed.rows == []
    assert len(next_one.rows) == 1


def test_disabled_imports_nothing_of_wandb(few, tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # from now on importing it is an error
    assert main(words(few, tiny_encoder, tmp_path, "--tasks=pos", "--max_epochs=1")) == 0
    assert "wandb_id" not in Run(tmp_path / "run").status()


@pytest.mark.slow
def test_training_and_studies_import_wandb_only_when_used():
    modules = "mtl.training.train, mtl.analysis.probe, mtl.study.perform, mtl.study.report"
    script = f"import sys, {modules}; sys.exit('wandb' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_view_goes_on_below_the_rows_of_its_first_log(tmp_path, staging):
    table = pl.DataFrame(
        {"text": ["a", None], "value": [float("nan"), 0.5], "count": [1, None], "yes": [True, None]}
    )
    offline = WandbConfig(mode="offline", group="g", job_type="j", tags=("t",))
    identity = new_identity("all tasks/pos+dep")
    for step, values in ((5, {"loss": 2.0}), (6, {"tables/one": table})):
        view = WandbView(tmp_path, offline, identity, "name", {"a": {"b": [1, 2]}})
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
    # The first log may lack the last rows before the kill; the second has all, each once.
    assert steps == sorted({*updates, *range(50, updates[-1] + 1, 50)})
    require_history(second, folder)
    assert [row["_step"] for row in first.rows] == steps[: len(first.rows)]
    assert len(first.rows) > 0


OF_ENVIRONMENT = {
    "WANDB_PROJECT": "theirs", "WANDB_ENTITY": "team", "WANDB_NAME": "a name", "WANDB_NOTES": "a note",
    "WANDB_TAGS": "one,two", "WANDB_RUN_GROUP": "a group", "WANDB_JOB_TYPE": "a job", "WANDB_RUN_ID": "id-1",
}  # fmt: skip
RECORDED = {
    "WANDB_PROJECT": "project", "WANDB_ENTITY": "entity", "WANDB_NAME": "display_name",
    "WANDB_NOTES": "notes", "WANDB_TAGS": "tags", "WANDB_RUN_GROUP": "run_group",
    "WANDB_JOB_TYPE": "job_type", "WANDB_RUN_ID": "run_id",
}  # fmt: skip
"""The field of the log's record of the run that a variable sets."""
VIEWED = """
import sys
from pathlib import Path
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.runs.folder.run import Run
from mtl.runs.folder.wandb_view import forget_single_run, view_of
if sys.argv[1] == "one of several":
    forget_single_run()
config = configured("mtl train", TrainConfig, sys.argv[2:])
view = view_of(config, Run(Path("run")))
view.log({"x": 1}, 1)
known = view._run.settings
print(known.init_timeout, known.resume, known.mode)
view.end()
"""


def viewed(
    folder: Path, variables: dict[str, str], *words: str, several: bool = False
) -> tuple[Log, list[str]]:
    """The log of a view in a process with these variables, and what W&B's settings were in it."""
    (folder / "run").mkdir(parents=True, exist_ok=True)
    (folder / "run" / "status.json").write_text("{}")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    kept |= {
        "WANDB_DATA_DIR": str(folder / "staged"),
        "WANDB_SILENT": "true",
        "WANDB_CONFIG_DIR": str(folder),
    }
    command = [sys.executable, "-c", VIEWED, "one of several" if several else "one", *words]
    done = subprocess.run(
        command, env=kept | variables, cwd=folder, check=True, timeout=120, capture_output=True, text=True
    )
    where = Path(variables.get("WANDB_DIR", folder / "run"))
    (log,) = logs(where)
    return log, done.stdout.split()


def recorded(log: Log) -> dict[str, str]:
    """The value of each variable that the log's record shows."""
    values = {name: getattr(log.run, field) for name, field in RECORDED.items()}
    return values | {"WANDB_TAGS": ",".join(sorted(values["WANDB_TAGS"]))}


@pytest.mark.slow
def test_variables_of_wandb_hold_unless_a_key_is_given(tmp_path):
    """A default of this program, or of its defaults for W&B, is not what the user has chosen."""
    bare, settings = viewed(tmp_path / "bare", {}, "--wandb.mode=offline", "--tasks=pos", "--seed=7")
    assert (bare.run.project, bare.run.display_name, list(bare.run.tags)) == ("mtl", "pos-seed7", [])
    assert settings == ["60.0", "allow", "offline"]
    elsewhere = tmp_path / "logs"
    elsewhere.mkdir()
    more = {
        "WANDB_DIR": str(elsewhere),
        "WANDB_INIT_TIMEOUT": "33",
        "WANDB_RESUME": "must",
        "WANDB_MODE": "online",
    }
    log, settings = viewed(tmp_path / "set", OF_ENVIRONMENT | more, "--wandb.mode=offline")
    assert recorded(log) == OF_ENVIRONMENT
    assert settings == ["33.0", "must", "offline"]
    assert Run(tmp_path / "set" / "run").status()["wandb_id"] == "id-1"
    given = {
        "WANDB_PROJECT": "project", "WANDB_ENTITY": "entity", "WANDB_RUN_GROUP": "group",
        "WANDB_JOB_TYPE": "job_type", "WANDB_TAGS": "tags",
    }  # fmt: skip
    words = [f"--wandb.{key}=mine" for key in given.values()]
    log, _ = viewed(tmp_path / "given", OF_ENVIRONMENT, "--wandb.mode=offline", "--name=mine", *words)
    assert recorded(log) == OF_ENVIRONMENT | dict.fromkeys([*given, "WANDB_NAME"], "mine")
    # Runs of a study share the environment: no two of them are one W&B run.
    log, settings = viewed(
        tmp_path / "several", OF_ENVIRONMENT, "--wandb.mode=offline", "--name=a", several=True
    )
    own = {name: value for name, value in recorded(log).items() if OF_ENVIRONMENT[name] != value}
    assert own == {"WANDB_NAME": "a", "WANDB_RUN_ID": Run(tmp_path / "several" / "run").status()["wandb_id"]}


@pytest.mark.slow
def test_the_project_of_wandb_s_own_settings_file_holds(tmp_path):
    place = tmp_path / "run" / "wandb"
    place.mkdir(parents=True)
    (place / "settings").write_text("[default]\nproject = of the file\nentity = team\n")
    log, _ = viewed(tmp_path / "run", {}, "--wandb.mode=offline")
    assert (log.run.project, log.run.entity) == ("of the file", "team")
