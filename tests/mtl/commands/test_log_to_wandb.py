"""`--log`: what commands add to the W&B run of the run that it is of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from matplotlib.figure import Figure

from mtl.commands.main import main
from mtl.errors import InputError
from mtl.runs.folder import wandb_view
from mtl.runs.folder.run import Run
from tests.mtl.wandb_log import logs

COMPARED = ("comparison/first-second", "figures/comparison/first-second")


def slow(*values: object) -> object:
    """A case for the slow tests."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def trained(few, tiny_encoder, tmp_path_factory) -> Path:
    """The folder of a run with masks of two tasks, whose W&B run was never written."""
    root = tmp_path_factory.mktemp("logged")
    words = [
        f"--corpus.path={few}", f"--encoder.name={tiny_encoder}", f"--runs={root}", "--name=run",
        "--tasks=pos,dep", "--max_epochs=1", "--pruning=dynamic", "--gates.scope=per_task",
        "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert main(["train", *words]) == 0
    run = Run(root / "run")
    config = run.config()
    run.replace_config(config | {"wandb": config["wandb"] | {"mode": "offline"}})
    run.update_status({"wandb_id": "an-id"})
    return run.folder


@pytest.fixture
def added(monkeypatch) -> list[tuple[Path, str, Any]]:
    """The folder, key and value of everything that is added to a W&B run, in whose place it is collected."""
    found: list[tuple[Path, str, Any]] = []

    def add(config: object, run: Run, values: dict[str, Any], numbers: object) -> str:
        found.extend((run.folder, key, value) for key, value in values.items())
        return "logged"

    monkeypatch.setattr(wandb_view, "_add", add)
    return found


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        ("figure grey RUN --out=OUT/g.pdf", {"figures/g": Figure, "tables/g": pl.DataFrame}),
        ("compare RUN --against=OTHER", dict(zip(COMPARED, (pl.DataFrame, Figure), strict=True))),
        slow("figure animation RUN --out=OUT/g.gif", {"figures/g": type(Path())}),
        slow("importance RUN --sentences=4 --split=dev", {"heads/importance": pl.DataFrame}),
        slow("ablate RUN --heads=L0H0,L1 --sentences=4", {"ablation": pl.DataFrame}),
        slow(
            "curve RUN --by=[random] --task=pos --steps=2 --draws=1 --sentences=4",
            {"curve": pl.DataFrame, "figures/curve": Figure},
        ),
        slow("probe RUN", {"probes/best_heads": pl.DataFrame, "probes/weighted_means": pl.DataFrame}),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_commands_add_tables_and_figures(trained, added, tmp_path, capsys, command, kinds) -> None:
    folders = [tmp_path / "run", tmp_path / "other"]
    for folder in folders:
        shutil.copytree(trained, folder)
    for name, place in {"RUN": folders[0], "OTHER": folders[1], "OUT": tmp_path}.items():
        command = command.replace(name, str(place))
    assert main([*command.split(), "--log"]) == 0
    of_run, of_other = (
        {key: type(value) for where, key, value in added if where == folder} for folder in folders
    )
    assert of_run == kinds
    assert of_other == (kinds if "--against" in command else {})
    assert not [key for _, key, value in added if isinstance(value, pl.DataFrame) and value.is_empty()]
    assert "logged" in capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_additions_stand_below_the_rows_of_training(trained, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    table, figure = pl.DataFrame({"head": ["L0H0"], "value": [0.5]}), Figure((2, 1))
    figure.subplots().plot([1, 2])
    [run] = wandb_view.runs_in_wandb([folder])
    for number in (1, 2):
        [line] = wandb_view.add_to_wandb([run], {"tables/t": table, "figures/t": figure})
        assert line == "logged to W&B run an-id: tables/t, figures/t"
        assert run.status()["wandb_additions"]["rows"] == number
    first, second = logs(folder)
    assert first.run.run_id == second.run.run_id == "an-id"
    last = pl.read_csv(folder / "history.csv")["update"].max()
    assert [row["_step"] for row in first.rows + second.rows] == [last + 1, last + 2]
    assert {row["trainer/global_step"] for row in first.rows + second.rows} == {last}
    picture = next(folder.glob("wandb/*")) / "files" / first.rows[0]["figures/t/path"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    [entry] = first.artifacts["run_table"][0].manifest.contents
    assert json.loads(Path(entry.local_path).read_text())["data"] == [["L0H0", 0.5]]
    for log in (first, second):  # as `wandb sync` keeps the summary of the last log
        assert log.summary["final/dev/mean"] == pytest.approx(log.summary["dev/mean"]["last"], abs=1e-3)


@pytest.mark.slow
def test_a_report_has_a_wandb_run_of_its_own(trained, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    shutil.copytree(trained, tmp_path / "runs" / "run")
    assert main(["report", str(tmp_path / "runs"), "--log"]) == 0
    [log] = logs(tmp_path / "runs")
    assert (log.run.display_name, log.run.job_type) == ("runs report", "report")
    pictures = {path.stem for path in (tmp_path / "runs" / "figures").glob("*.png")}
    [row] = log.rows
    assert pictures
    assert {key.split("/")[1] for key in row if key.startswith("figures/")} == pictures
    assert "report/path" in row


def test_a_run_without_wandb_run_is_refused_first(trained, tmp_path, capsys) -> None:
    shutil.copytree(trained, tmp_path / "run")
    Run(tmp_path / "run").update_status({"wandb_id": None})
    status = Run(tmp_path / "run").status()
    (tmp_path / "run" / "status.json").write_text(
        json.dumps({key: value for key, value in status.items() if key != "wandb_id"})
    )
    with pytest.raises(InputError, match="has no W&B run"):
        wandb_view.runs_in_wandb([tmp_path / "run"])
    for command in ("importance RUN", "figure grey RUN --out=RUN.pdf", "probe RUN", "report ROOT"):
        words = command.replace("RUN", str(tmp_path / "run")).replace("ROOT", str(tmp_path)).split()
        assert main([*words, "--log"]) == 2
        assert "W&B run" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--out=page.html", "--log"]) == 2
    assert not (tmp_path / "run.pdf").exists()
