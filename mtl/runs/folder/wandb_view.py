"""A W&B run that shows the files of a folder; its failures do not harm what it shows."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl
import polars.selectors as cs

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig, WandbConfig
from mtl.files import may_be_written
from mtl.runs.folder.content import git_revision
from mtl.runs.folder.run import Run

STEP = "trainer/global_step"
"""The key of W&B's x axis: the number of updates."""
INIT_SECONDS, FINISH_SECONDS = 60.0, 300.0
"""Timeouts in seconds for starting a W&B run (including the prompt for an API key) and for finishing it."""


def new_identity(name: str) -> str:
    """A new id for a W&B run of this name, with only characters that W&B allows."""
    return f"{re.sub(r'[^A-Za-z0-9_.+-]+', '-', name)[:100]}-{os.urandom(4).hex()}"


class WandbView:
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
        best: Sequence[str] = (),
        resume: str | None = None,
    ) -> None:
        """`folder` holds what is shown, and the local log is written there; `axis` is the x axis's key.

        Of the keys in `best`, the summary has the highest value, too. `resume` is as for `wandb.init`.
        """
        self.folder, self.wandb, self.identity, self.name = folder, wandb, identity, name
        self.config, self.axis, self.best, self.resume = config, axis, tuple(best), resume
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

    def log_row(self, values: Mapping[str, Any], step: int) -> None:
        """Log a row by its number, as `log` does, unless the server has it from an earlier process.

        W&B writes in its own time, so that the log of a killed process may lack its last rows.
        """

        def action(run: Any) -> None:
            if step >= run.step:
                run.log({key: _shown(value) for key, value in values.items()}, step=step)

        self._attempt(action)

    def summarise(self, numbers: Mapping[str, Any]) -> None:
        """Set numbers of the run as a whole."""
        self._attempt(lambda run: run.summary.update(dict(numbers)))

    def keep(
        self,
        name: str,
        kind: str,
        files: Sequence[Path],
        aliases: Sequence[str] = ("latest",),
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Log files as an artifact, in which they have their paths relative to the view's folder."""

        def action(run: Any) -> None:
            from wandb import Artifact

            allowed = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:128]
            artifact = Artifact(allowed, kind, metadata=dict(about or {}))
            for file in files:
                artifact.add_file(str(file), name=file.relative_to(self.folder).as_posix())
            run.log_artifact(artifact, aliases=list(aliases))

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

        _give_places(self.folder.absolute() / "wandb")
        # On a terminal W&B prompts for a missing key, by default without a timeout.
        known = wandb.setup(wandb.Settings(**_not_in_environment(login_timeout=INIT_SECONDS))).settings
        run = wandb.init(
            id=self.identity,
            reinit="create_new",  # a failed run may be open in this process
            mode=self.wandb.mode,
            project=self.wandb.project or known.project or "mtl",
            entity=self.wandb.entity,
            group=self.wandb.group,
            job_type=self.wandb.job_type,
            tags=list(self.wandb.tags) or None,
            notes=self.wandb.notes,
            name=self.name,
            config=dict(self.config),
            settings=wandb.Settings(
                **_not_in_environment(init_timeout=INIT_SECONDS, finish_timeout=FINISH_SECONDS),
                finish_timeout_raises=True,
            ),
            **_not_in_environment(dir=str(self.folder)),
            **({"resume": self.resume} if self.resume else _not_in_environment(resume="allow")),
        )
        if self.axis is not None:
            run.define_metric(self.axis)
            run.define_metric("*", step_metric=self.axis, step_sync=True)
        for key in self.best:
            run.define_metric(key, step_metric=self.axis, summary="last,max")
        return run

    def _abandon(self) -> None:
        """Finish the failed W&B run, so that its service ends with this process."""
        run, self._run = self._run, None
        if run is not None:
            try:
                run.finish(exit_code=1)
            except Exception:  # the failure was reported before
                return


_MODES: Mapping[str, Literal["offline", "disabled"]] = {
    "offline": "offline", "dryrun": "offline", "disabled": "disabled",
}  # fmt: skip
"""What `WANDB_MODE` may say besides `online`."""


def mode_of_environment(environment: Mapping[str, str]) -> Literal["online", "offline", "disabled"]:
    """What W&B's variables say of its mode."""
    given = environment.get("WANDB_MODE") or ("disabled" if environment.get("WANDB_DISABLED") else "")
    return _MODES.get(given, "online")


def wandb_mode(config: TrainConfig) -> Literal["online", "offline", "disabled"]:
    """The mode of W&B in a run: `wandb.mode`, or what `loggers` and the environment say."""
    if config.wandb.mode is not None:
        return config.wandb.mode
    return mode_of_environment(os.environ) if "wandb" in config.loggers else "disabled"


def view_of(config: TrainConfig, run: Run) -> WandbView:
    """The run's view; a resumed run keeps its W&B run."""
    name = config.name or os.environ.get("WANDB_NAME") or config.run_name()
    recorded = run.status().get("wandb_id")
    identity = config.wandb.id or recorded or os.environ.get("WANDB_RUN_ID") or new_identity(name)
    run.update_status({"wandb_id": identity})
    settings = {**plain(dataclasses.asdict(config)), "git": git_revision()}
    wandb = dataclasses.replace(config.wandb, mode=wandb_mode(config))
    resume = "allow" if identity == recorded else wandb.resume
    return WandbView(run.folder, wandb, identity, name, settings, STEP, best_scores(config), resume)


def best_scores(config: TrainConfig) -> tuple[str, ...]:
    """The keys of the history whose highest value is worth a column: the main scores on dev, their mean."""
    return ("dev/mean", *(f"dev/{name}/{task.score}" for name, task in config.chosen().items()))


def summary_of(config: TrainConfig, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The history's last row as W&B's summary has it, with the highest values of `best_scores`."""
    best = best_scores(config)
    return {
        key: {"last": value, "max": max(row[key] for row in history if row[key] is not None)}
        if key in best
        else value
        for key, value in history[-1].items()
        if key != "seconds" and value is not None
    }


def forget_single_run() -> None:
    """Remove W&B's variables that are about a single run from the environment of a process that does several.

    Otherwise all runs would log into one W&B run.
    """
    for name in ("WANDB_RUN_ID", "WANDB_NAME", "WANDB_RESUME"):
        os.environ.pop(name, None)


def final_scores(
    config: TrainConfig, scores: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> dict[str, float]:
    """The scores of the kept model under `final/SPLIT/TASK/SCORE`, and the mean on dev as `final/dev/mean`.

    The keys without `final/` are those of the history, whose rows are of other models.
    """
    flat = {
        f"final/{split}/{name}/{key}": value
        for split, tasks in scores.items()
        for name, of_task in tasks.items()
        for key, value in of_task.items()
    }
    main = [flat.get(f"final/dev/{name}/{task.score}") for name, task in config.chosen().items()]
    known = [value for value in main if value is not None]
    return flat | ({"final/dev/mean": sum(known) / len(known)} if len(known) == len(main) else {})


def _give_places(folder: Path) -> None:
    """Let W&B keep artifacts until they are sent, and its cache, in a folder if it cannot in the home."""
    from wandb import env

    for name, place in ((env.DATA_DIR, env.get_data_dir()), (env.CACHE_DIR, env.get_cache_dir())):
        if name not in os.environ and not may_be_written(Path(place)):
            os.environ[name] = str(folder)


def _not_in_environment(**defaults: Any) -> dict[str, Any]:
    """The defaults of W&B's settings but those that the user's environment sets, which W&B reads itself."""
    return {key: value for key, value in defaults.items() if f"WANDB_{key.upper()}" not in os.environ}


def _shown(value: Any) -> Any:
    """A value as W&B shows it; NaN is null in tables."""
    import wandb
    from matplotlib.figure import Figure
    from PIL import Image

    from mtl.probes.figures.style import render

    if isinstance(value, pl.DataFrame):
        rows = value.with_columns(cs.float().fill_nan(None)).iter_rows()
        return wandb.Table(columns=value.columns, data=[list(row) for row in rows])
    if isinstance(value, Figure):
        return wandb.Image(Image.open(io.BytesIO(render(value, "png"))))
    if not isinstance(value, Path):
        return value
    if value.suffix == ".png":
        return wandb.Image(str(value))
    if value.suffix == ".gif":
        return wandb.Video(str(value), format="gif")
    return wandb.Html(str(value), inject=False)
