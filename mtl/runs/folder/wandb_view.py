"""A W&B run that shows the files of a folder; its failures do not harm what it shows."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig, WandbConfig
from mtl.runs.folder.provenance import git_revision
from mtl.runs.folder.run import Run

STEP = "trainer/global_step"
"""The key of W&B's x axis: the number of updates."""
INIT_SECONDS, FINISH_SECONDS = 60.0, 300.0
"""Timeouts in seconds for starting a W&B run (including the prompt for an API key) and for finishing it."""


def new_identity(name: str) -> str:
    """A new id for a W&B run of this name, with only characters that W&B allows."""
    return f"{re.sub(r'[^A-Za-z0-9_.+-]+', '-', name)[:100]}-{os.urandom(4).hex()}"


class View:
    """A W&B run that is started or resumed at its first use, which also imports W&B.

    If W&B fails, one line is printed on standard error, and nothing is logged from then on.
    """

    def __init__(
        self,
        folder: Path,
        wandb: WandbConfig,
        identity: str,
        name: str,
        config: Mapping[str, Any],
        axis: str | None = None,
    ) -> None:
        """`folder` holds what is shown, and the local log is written there; `axis` is the x axis's key."""
        self.folder, self.wandb, self.identity, self.name = folder, wandb, identity, name
        self.config, self.axis = config, axis
        self.failed = False
        self._run: Any = None

    def begin(self) -> None:
        """Start or resume the W&B run, so that it is visible before anything is logged."""
        self._attempt(lambda run: None)

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Log numbers, tables, and files as they are now: pictures (.png), animations (.gif), pages (.html).

        `step` is the number of the row in W&B's history; `None`: the last one. If rows are numbered, they
        stay in order when `wandb sync` joins several local logs of one run.
        """

        def action(run: Any) -> None:
            row = {key: _shown(value) for key, value in values.items()}
            run.log(row, step=None if step is None else max(step, run.step))

        self._attempt(action)

    def summarise(self, numbers: Mapping[str, Any]) -> None:
        """Set numbers of the run as a whole."""
        self._attempt(lambda run: run.summary.update(dict(numbers)))

    def keep(self, name: str, kind: str, files: Sequence[Path]) -> None:
        """Log files as an artifact, in which they have their paths relative to the view's folder."""

        def action(run: Any) -> None:
            from wandb import Artifact

            artifact = Artifact(re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:128], kind)
            for file in files:
                artifact.add_file(str(file), name=file.relative_to(self.folder).as_posix())
            run.log_artifact(artifact)

        self._attempt(action)

    def end(self, failed: bool = False) -> None:
        """End the W&B run if it was started; what the server has not received stays in the local log."""
        if self._run is not None:
            self._attempt(lambda run: run.finish(exit_code=int(failed)))
            self._run = None

    def _attempt(self, action: Callable[[Any], object]) -> None:
        if self.failed:
            return
        try:
            if self._run is None:
                self._run = self._started()
            action(self._run)
        except Exception as error:  # W&B's own, those of its process, of the network, of the disk
            self.failed = True
            reason = (str(error).strip() or "no reason given").splitlines()[0]
            print(
                f"mtl: logging {self.name} to W&B failed ({type(error).__name__}: {reason}); "
                f"the W&B run is incomplete, the files in {self.folder} are complete",
                file=sys.stderr,
                flush=True,
            )
            self._abandon()

    def _started(self) -> Any:
        if "wandb" not in sys.modules:
            # The variable names the service of the process that started this one. That service considers a
            # run to be in use after its process was killed, so that it cannot be resumed. Without the
            # variable, W&B starts a service for this process.
            os.environ.pop("WANDB_SERVICE", None)
        import wandb

        # On a terminal W&B prompts for a missing key, by default without a timeout.
        wandb.setup(wandb.Settings(login_timeout=INIT_SECONDS))
        run = wandb.init(
            dir=str(self.folder),
            id=self.identity,
            resume="allow",
            reinit="create_new",  # a failed run may be open in this process
            mode=self.wandb.mode,
            project=self.wandb.project,
            entity=self.wandb.entity,
            group=self.wandb.group,
            job_type=self.wandb.job_type,
            tags=list(self.wandb.tags),
            name=self.name,
            config=dict(self.config),
            settings=wandb.Settings(
                init_timeout=INIT_SECONDS,
                finish_timeout=FINISH_SECONDS,
                finish_timeout_raises=True,
            ),
        )
        if self.axis is not None:
            run.define_metric(self.axis)
            run.define_metric("*", step_metric=self.axis, step_sync=True)
        return run

    def _abandon(self) -> None:
        """Finish the failed W&B run, so that its service ends with this process."""
        run, self._run = self._run, None
        if run is not None:
            try:
                run.finish(exit_code=1)
            except Exception:  # the failure was reported before
                return


def view_of(config: TrainConfig, run: Run) -> View:
    """The run's view; a resumed run keeps its W&B run."""
    identity = run.status().get("wandb_id") or new_identity(config.run_name())
    run.update_status({"wandb_id": identity})
    settings = {**plain(dataclasses.asdict(config)), "git": git_revision()}
    return View(run.folder, config.wandb, identity, config.run_name(), settings, axis=STEP)


def flat_scores(scores: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Scores by split and task, under keys `split/task/name`."""
    return {
        f"{split}/{name}/{key}": value
        for split, tasks in scores.items()
        for name, of_task in tasks.items()
        for key, value in of_task.items()
    }


def _shown(value: Any) -> Any:
    """A value as W&B shows it; NaN is null in tables."""
    import wandb

    if isinstance(value, pl.DataFrame):
        rows = value.with_columns(cs.float().fill_nan(None)).iter_rows()
        return wandb.Table(columns=value.columns, data=[list(row) for row in rows])
    if not isinstance(value, Path):
        return value
    if value.suffix == ".png":
        return wandb.Image(str(value))
    if value.suffix == ".gif":
        return wandb.Video(str(value), format="gif")
    return wandb.Html(str(value), inject=False)
