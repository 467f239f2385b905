"""A run that is killed at every place where it writes, one after the other, completes each of its outputs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mtl.corpora.toy.corpus import write_toy
from mtl.runs.folder.run import Run
from tests.mtl.forked import ended, forked, printed
from tests.mtl.wandb_log import Log, read

OPTIONS = (
    "--tasks=pos,dep", "--max_epochs=2", "--pruning=dynamic", "--gates.scope=per_task",
    "--gates.target_open=0.5", "--wandb.mode=offline", "--trainer.accelerator=cpu",
)  # fmt: skip


def content(folder: Path) -> dict[str, Any]:
    """What a run has written, without what depends on time and on W&B."""
    files = [path for path in folder.rglob("*") if path.is_file() and "wandb" not in path.parts]
    files = [path for path in files if path.suffix != ".lock"]  # the next change of the file removes it
    found: dict[str, Any] = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    del found["log.txt"], found["config.yaml"]
    found["history.csv"] = pl.read_csv(folder / "history.csv").drop("seconds").rows(named=True)
    status = Run(folder).status()
    kept = ("state", "trained", "kept_epoch", "kept_dev_mean", "choices", "sentences", "corpus_fingerprint")
    found["status.json"] = {key: status[key] for key in kept}
    return found


def local_logs(folder: Path) -> list[Log]:
    """The local logs, in order of time, also those that a kill ended."""
    found = [read(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]
    return [log for log in found if log is not None]


def shown(logs: list[Log]) -> dict[str, Any]:
    """What W&B has of a run after all its logs, of which later ones replace what earlier ones have.

    Only the last picture of the masks is logged again after a kill.
    """
    rows: dict[int, dict[str, Any]] = {}
    for log in logs:
        for row in log.rows:
            rows.setdefault(row["_step"], {}).update(row)
    last = logs[-1]
    pictures = {key: value for key, value in rows[max(rows)].items() if key.endswith("sha256")}
    return {
        "rows": {step: numbers(row) for step, row in rows.items()},
        "summary": numbers(last.summary),
        "pictures": pictures,
        "gates": [entry.digest for each in last.artifacts["gates"] for entry in each.manifest.contents],
        "exit code": last.exit_code,
    }


def numbers(values: dict[str, Any]) -> dict[str, Any]:
    """The values that are neither pictures nor W&B's own times and addresses, which it draws at random."""
    return {
        key: value
        for key, value in values.items()
        if not key.startswith(("_", "masks")) and not key.endswith("artifact_path")
    }


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_run_killed_at_every_place_has_all_outputs_of_an_undisturbed_one(tmp_path, tiny_encoder):
    toy, note = tmp_path / "toy", tmp_path / "note"
    write_toy(toy, 30, 6, 6, seed=1)
    environment = {**os.environ, "WANDB_DATA_DIR": str(tmp_path / "staged")}

    def tried(name: str) -> int:
        words = ["train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", "--name=run", *OPTIONS]
        given = [str(note), *words, f"--runs={tmp_path / name}"]
        output = tmp_path / name
        module = "tests.mtl.training.killed"
        if name == "undisturbed":
            module, given = "mtl", given[1:]
        with forked(module, given, output, environment=environment) as process:
            code = ended(process, 300)
        assert code in (0, -signal.SIGKILL), printed(output)
        return code

    assert tried("undisturbed") == 0
    note.write_text("")
    while tried("killed"):
        pass
    places = note.read_text().splitlines()
    # Those at which something may be left undone: the last ones above all.
    assert {
        "RunLoggers.on_final_scores",
        "WandbView.end",
        "WandbView.keep",
        "masks.gif",
        "metrics.json",
    } <= {*places}
    assert len(places) > 25
    whole, killed = (tmp_path / name / "run" for name in ("undisturbed", "killed"))
    assert content(killed) == content(whole)
    assert not [
        path
        for path in killed.parent.rglob(".*")
        if path.is_file() and path.suffix not in (".lock", ".lease")
    ]
    assert shown(local_logs(killed)) == shown(local_logs(whole))
    assert len(shown(local_logs(whole))["pictures"]) == 3  # the masks, their animation, the table of heads
