"""`mtl study`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console

from mtl.commands.help import split_options
from mtl.config.parse import joined_options
from mtl.errors import InputError, as_input_error, plain_name
from mtl.files import check_folder_place
from mtl.probes.appearance import Appearance
from mtl.study.jobs import StudyFolder, StudyView
from mtl.tasks.task import Range, Share
from mtl.workers.watch import Jobs, run_locally, watching


@dataclass(frozen=True)
class StudyOptions:
    """Options of the command; the study itself is in its file."""

    jobs: Jobs = 0
    """Runs side by side; 0: one per GPU, or one on a CPU; `auto`: as many on each GPU as make all together
    faster. With Ray: the maximum; 0: as many as fit."""
    engine: Literal["local", "ray"] = "local"
    """Processes of this machine, or a Ray cluster."""
    ray_address: str | None = None
    """HOST:PORT of the cluster; `null`: the one at RAY_ADDRESS, or of this machine, or a new one."""
    cpus: Annotated[float, Range(0, math.inf, open_low=True)] = 1.0
    """With Ray: cores and threads of a run."""
    gpus: Share | None = None
    """With Ray: a run's share of a GPU (0.25: four runs on each); `null`: 1 if the cluster has any."""
    status: bool = False
    """Show the state of every run; on a terminal, as a live table while any process works on the study."""
    dry_run: bool = False
    """Print the runs and what would be repeated, and end."""
    again: list[str] | None = None
    """Repeat these runs (names or patterns) and those that start from them, though nothing has changed;
    without names: all runs."""


def study(words: Sequence[str]) -> int:
    """Carry out a study: its runs, probes, overlaps, competition and report."""
    options, rest = split_options("mtl study", StudyOptions, words)
    console = Console(markup=False, emoji=False, highlight=False)
    if options.status:
        for name, default in vars(StudyOptions(status=True)).items():
            if getattr(options, name) != default:
                raise InputError(f"--{name} has no effect with --status: leave it out")
        return _status(study_folder_of(rest), console)
    for name in ("ray_address", "cpus", "gpus"):
        if options.engine != "ray" and getattr(options, name) != getattr(StudyOptions(), name):
            raise InputError(f"--{name} has no effect without --engine=ray: leave it out")
    if options.engine == "ray" and options.jobs == "auto":
        raise InputError("--jobs=auto has no effect with --engine=ray, which has --gpus: leave it out")
    return _carry_out(rest, options, console)


def _carry_out(words: Sequence[str], options: StudyOptions, console: Console) -> int:
    from mtl.config.parse import configured
    from mtl.models.inputs import InputCache
    from mtl.study.config import StudyConfig
    from mtl.study.plan import carrying_out, make_plan

    config = configured("mtl study", StudyConfig, words, options=StudyOptions)
    workers = None if options.jobs in (0, "auto") else int(options.jobs)
    _check_appearance(config.appearance)
    folder = _folder(config.studies, config.name, words)
    if not options.dry_run:
        check_folder_place(folder.path)
    inputs = None if options.dry_run else InputCache(keep=True)
    plan = make_plan(config, folder, inputs, _repeated(options.again))
    if options.dry_run:
        for change in plan.changes:
            console.print(str(change), soft_wrap=True)
        view = StudyView(folder, plan.jobs, workers)
        view.show(view.snapshot(), console)
        return 0
    from mtl.runs.report.write import write_report

    with carrying_out(plan) as plan:
        for change in plan.changes:
            console.print(str(change), soft_wrap=True)
        view = StudyView(folder, plan.jobs, workers)
        console.print(view.totals(view.snapshot()))
        if options.engine == "ray":
            from mtl.study.run_ray import run_on_ray

            cluster = options.ray_address, options.cpus, options.gpus
            run_on_ray(folder, plan.jobs, workers or 0, console, *cluster)
        else:
            run_locally(view, "mtl.study.perform:work_on_study", options.jobs, console)
        ended = view.snapshot()
        view.show_end(ended, console)
        page = write_report(folder.path, console, at_end=True)
    return view.conclude(ended, page, console)


def _repeated(again: list[str] | None) -> list[str]:
    """The names and patterns of the runs that are to be made again; raises `InputError` for a file's name."""
    for name in again or ():
        if Path(name).is_file():
            raise InputError(f"--again={name}: this is a file; the study's file comes before --again")
    return ["*"] if again == [] else again or []


def _check_appearance(chosen: Appearance) -> None:
    """Raise `InputError` for an impossible appearance; matplotlib is loaded only if one is chosen."""
    if chosen != Appearance():
        from mtl.probes.figures.style import check_appearance

        with as_input_error("appearance"):
            check_appearance(chosen)


def _status(folder: StudyFolder, console: Console) -> int:
    view = StudyView(folder)
    if not view.snapshot().jobs:
        raise InputError(f"{folder.path} holds no study; start one with 'mtl study STUDY.yaml'")
    if console.is_terminal:
        with suppress(KeyboardInterrupt), watching(view, console) as look:  # Ctrl-C does not end the study
            while folder.commands():
                look()
                time.sleep(1)
    view.show(view.snapshot(), console)
    return 0


def study_folder_of(words: Sequence[str]) -> StudyFolder:
    """The folder of a study that is given by its file or by the folder itself."""
    from mtl.config.parse import configured
    from mtl.study.config import StudyConfig

    files = _files(words)
    if not files:
        raise InputError("mtl study --status needs the study's file or folder: mtl study STUDY.yaml --status")
    if not Path(files[0]).is_dir():
        config = configured("mtl study", StudyConfig, words, options=StudyOptions)
        return _folder(config.studies, config.name, words)
    options = [
        word for word in joined_options(words) if word.startswith("-") and not word.startswith("--config=")
    ]
    if options:
        name, _, _ = options[0].partition("=")
        raise InputError(f"{name} has no effect with --status of a folder: leave it out")
    return StudyFolder(Path(files[0]))


def _folder(studies: str, name: str | None, words: Sequence[str]) -> StudyFolder:
    """The study's folder; a study without a name has that of its file."""
    files = _files(words)
    if name is None and not files:
        raise InputError("mtl study needs a file, or --name=NAME: mtl study toy")
    return StudyFolder(Path(studies) / plain_name(Path(files[-1]).stem if name is None else name, "name"))


def _files(words: Sequence[str]) -> list[str]:
    """The files among the words, with or without `--config`."""
    return [
        word.removeprefix("--config=")
        for word in joined_options(words)
        if word.startswith("--config=") or not word.startswith("-")
    ]
