"""A W&B run that shows the files of a folder, and what it gets after training; its failures do no harm there.

After training, measures, figures and comparisons go into the runs that they are of, and reports into one of
their own.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl
import polars.selectors as cs

from mtl.config.effective import plain
from mtl.config.parse import read_configuration
from mtl.config.schema import TrainConfig, WandbConfig
from mtl.errors import InputError
from mtl.files import may_be_written, write_json
from mtl.probes.tables.heads_table import best_heads, weighted_means
from mtl.probes.tables.table_files import read_csv
from mtl.runs.folder.run import Run, git_revision

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


KNOWN = "wandb.json"
"""The file in a folder of runs with the id of the W&B run of its report."""


def runs_in_wandb(folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders; raises `InputError` for one that has no W&B run, or W&B switched off."""
    runs = [Run.open(folder) for folder in folders]
    for run in runs:
        if "wandb_id" not in run.status() or not (run.folder / "history.csv").is_file():
            raise InputError(
                f"--log: {run.folder} has no W&B run: train with --wandb.mode=online, or leave out --log"
            )
        if wandb_mode(config_of(run)) == "disabled":
            raise InputError(f"--log: W&B is switched off (WANDB_MODE), and {run.folder} has a W&B run")
    return runs


def add_to_wandb(runs: Sequence[Run], values: Mapping[str, Any]) -> list[str]:
    """Log tables, figures and files to the W&B run of each run (`runs_in_wandb`); returns lines on it."""
    return [_add(config_of(run), run, values, {}) for run in runs]


def log_probes(config: TrainConfig, run: Run, heads: pl.DataFrame) -> str:
    """Add the best head for every label, and the weighted means, to the run's W&B run; returns a line on it.

    As in reports, only the run's own tasks count. Nothing happens if W&B is off.
    """
    if wandb_mode(config) == "disabled":
        return ""
    best = best_heads(heads.filter(pl.col("task").is_in(config.tasks)))
    means = weighted_means(best)
    numbers = {
        f"probes/{row['task']}/{row['measure']}{end}": row[column]
        for row in means.iter_rows(named=True)
        for end, column in (("", "value"), ("/chance", "chance"))
    }
    return _add(config, run, {"probes/best_heads": best, "probes/weighted_means": means}, numbers)


def _add(config: TrainConfig, run: Run, values: Mapping[str, Any], numbers: Mapping[str, float]) -> str:
    """Log values in a row of their own, after those of training, and numbers of the run as a whole.

    If a run has several local logs, `wandb sync` keeps the summary of the last one. So each has all of it.
    """
    history = read_csv(run.folder / "history.csv").rows(named=True)
    last, added = history[-1]["update"], run.status().get("wandb_additions", {"rows": 0, "numbers": {}})
    numbers = {**added["numbers"], **numbers}
    view = view_of(config, run)
    run.update_status({"wandb_additions": {"rows": added["rows"] + 1, "numbers": numbers}})
    view.log({**values, STEP: last}, step=last + 1 + added["rows"])
    view.summarise(summary_of(config, history) | final_scores(config, run.metrics()) | numbers)
    view.end()
    return f"{'not ' if view.failed else ''}logged to W&B run {view.identity}: {', '.join(values)}"


def report_config(folder: Path) -> TrainConfig:
    """The configuration with W&B's settings for the report of the runs in a folder: that of the first in W&B.

    Raises `InputError` if none is.
    """
    folders = sorted({*folder.glob("*/status.json"), *folder.glob("runs/*/status.json")})
    runs = [Run(path.parent) for path in folders if (path.parent / "config.yaml").is_file()]
    found = next((run for run in runs if "wandb_id" in run.status()), None)
    if found is None:
        raise InputError(f"--log: no run in {folder} has a W&B run: leave it out")
    return config_of(found)


def log_report(
    folder: Path,
    train: TrainConfig,
    settings: Mapping[str, Any],
    tables: Mapping[str, pl.DataFrame],
    page: Path,
) -> str:
    """Log a report, its tables and figures to a W&B run of its own, the same one each time.

    Returns a line on it, which is empty if W&B is off.

    The keys of `tables` are the stems of files in `tables/`, which become an artifact together with the page.
    """
    mode = wandb_mode(train)
    if mode == "disabled":
        return ""
    name = folder.resolve().name
    wandb = dataclasses.replace(
        train.wandb, mode=mode, group=name, job_type="report", tags=(name, "report"), notes=None
    )
    logged = _logged(folder) or {"id": new_identity(f"{name}-report"), "times": 0}
    write_json(folder / KNOWN, {**logged, "times": logged["times"] + 1})
    view = WandbView(folder, wandb, logged["id"], f"{name} report", settings)
    pictures = {f"figures/{path.stem}": path for path in sorted((folder / "figures").glob("*.png"))}
    shown = {f"tables/{key}": table for key, table in tables.items()}
    view.log({**shown, **pictures, "report": page}, step=logged["times"])
    files = [path for key in tables for path in sorted((folder / "tables").glob("*")) if path.stem == key]
    view.keep(f"report-{name}", "report", [page, *files])
    view.end()
    return f"{'not ' if view.failed else ''}logged to W&B run {view.identity}"


def config_of(run: Run) -> TrainConfig:
    """The configuration that a run recorded."""
    return read_configuration(TrainConfig, run.folder / "config.yaml")


def _logged(folder: Path) -> dict[str, Any] | None:
    """The id of the report's W&B run and the number of reports in it; `None` for no or a damaged record."""
    try:
        values = json.loads((folder / KNOWN).read_bytes())
        return {"id": str(values["id"]), "times": int(values["times"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
