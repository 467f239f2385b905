"""A sweep's report: its trials as a table and as parallel coordinates, and figures of their runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from optuna.trial import FrozenTrial
from rich.console import Console

from mtl.config.schema import TrainConfig
from mtl.config.typed import configuration_from
from mtl.probes.figures.parallel_coordinates import Axis
from mtl.probes.report.sweep import SweepEvidence, TrialRow
from mtl.runs.figures.drawn import FigureWithTables
from mtl.runs.figures.table import draw
from mtl.runs.folder.run import Run
from mtl.runs.report.gather import gather
from mtl.runs.report.write import archive_report, only_reporter, run_report
from mtl.study.sweep.folder import SweepFolder, trials_of
from mtl.study.sweep.parameter import Parameter
from mtl.study.sweep.status import best_of, heads_of, value_text, values_of
from mtl.study.sweep.trial_config import trial_name
from mtl.workers.collector import without_collector


def collect(folder: SweepFolder, console: Console) -> Path | None:
    """Write tables, figures and the report; returns the report's page, or `None` if no trial is finished."""
    page = folder.path / "report.html"
    with only_reporter(folder.path) as mine, without_collector():
        if not mine:
            console.print("another process is already writing the report")
            return page
        sweep, base, _ = folder.read_sweep()
        trials = trials_of(folder.study(sweep))
        finished = []
        for trial in trials:
            run = folder.run(trial_name(trial.number))
            if folder.state(trial) != "finished":
                continue
            if (run / "config.yaml").exists():
                finished.append(run)
            else:
                console.print(f"note: {run} is gone: figures are drawn without it", soft_wrap=True)
        if not finished:
            archive_report(folder.path, console)
            return None
        config = configuration_from(TrainConfig, base, str(folder.sweep_file))
        data = gather(folder.path, "dev", config.main_scores(), sweep_evidence(folder.path))
        figures = {}
        if data.sweep is not None and (picture := data.sweep.picture()) is not None:
            figures["parallel-coordinates"] = partial(FigureWithTables, picture)
        if any(Run(run).config()["pruning"] != "none" for run in finished):
            figures["heads-kept"] = partial(draw, "heads-kept", finished, (), "dev")
        run_report(folder.path, data, figures, console)
        return page


def sweep_evidence(path: Path) -> SweepEvidence | None:
    """The trials of a folder's sweep; `None` if there is no sweep, or no trial was started."""
    folder = SweepFolder(path)
    if not folder.sweep_file.is_file():
        folder.check_no_trials()
        return None
    sweep, _, _ = folder.read_sweep()
    trials = [trial for trial in trials_of(folder.study(sweep)) if values_of(trial)]
    if not trials:
        return None
    best, heads_by_trial = best_of(sweep, trials), [heads_of(trial) for trial in trials]
    heads = (
        Axis(name, "linear", tuple(heads.get(name) for heads in heads_by_trial))
        for name in dict.fromkeys(name for heads in heads_by_trial for name in heads)
    )
    return SweepEvidence(
        method=sweep.file.method,
        metric=sweep.metric.name,
        goal=sweep.metric.goal,
        trials=tuple(_row(folder, trial) for trial in trials),
        axes=(*(_axis(parameter, trials) for parameter in sweep.parameters if parameter.varies), *heads),
        best=None if best is None else trial_name(best.number),
    )


def _row(folder: SweepFolder, trial: FrozenTrial) -> TrialRow:
    progress = folder.progress(trial)
    scored = next((value for value in trial.values or () if math.isfinite(value)), None)
    return TrialRow(trial_name(trial.number), progress.state, scored, progress.seconds)


def _axis(parameter: Parameter, trials: Sequence[FrozenTrial]) -> Axis:
    values = [values_of(trial)[parameter.key] for trial in trials]
    if parameter.scale != "categories":
        return Axis(parameter.key, parameter.scale, tuple(float(value) for value in values))
    listed = parameter.examples or tuple(values)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in listed):
        listed = tuple(sorted(listed))
    order = tuple(dict.fromkeys(map(value_text, listed)))
    return Axis(parameter.key, "categories", tuple(map(value_text, values)), order)
