"""`mtl study`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console

from mtl.commands.common import refuse_unused
from mtl.config.parse import Words
from mtl.errors import InputError, as_input_error, plain_name
from mtl.files import check_folder_place
from mtl.probes.appearance import Appearance
from mtl.study.config import StudyConfig
from mtl.study.jobs import StudyFolder, StudyView
from mtl.tasks.task import Range, Share
from mtl.workers.watch import Jobs, run_locally, watching


def study(
    words: Words[StudyConfig],
    *,
    jobs: Jobs = 0,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    cpus: Annotated[float, Range(0, math.inf, open_low=True)] = 1.0,
    gpus: Share | None = None,
    status: bool = False,
    dry_run: bool = False,
    again: list[str] | None = None,
) -> int:
    """Carry out a study: its runs, probes, overlaps, competition and report.

    Args:
        words: The study's file or folder, and keys of the file.
        jobs: Runs side by side; 0: one per GPU, or one on a CPU; `auto`: as many on each GPU as make all
            together faster. With Ray: the maximum; 0: as many as fit.
        engine: Processes of this machine, or a Ray cluster.
        ray_address: HOST:PORT of the cluster; `null`: the one at RAY_ADDRESS, or of this machine, or a new
            one.
        cpus: With Ray: cores and threads of a run.
        gpus: With Ray: a run's share of a GPU (0.25: four runs on each); `null`: 1 if the cluster has any.
        status: Show the state of every run; on a terminal, as a live table while any process works on the
            study.
        dry_run: Print the runs and what would be repeated, and end.
        again: Repeat these runs (names or patterns) and those that start from them, though nothing has
            changed; without names: all runs.
    """
    console = Console(markup=False, emoji=False, highlight=False)
    of_ray = {"ray_address": ray_address, "cpus": cpus, "gpus": gpus}
    if status:
        others = {"jobs": jobs, "engine": engine, **of_ray, "dry_run": dry_run, "again": again}
        refuse_unused(study, "has no effect with --status: leave it out", **others)
        return _status(study_folder_of(words), console)
    if engine != "ray":
        refuse_unused(study, "has no effect without --engine=ray: leave it out", **of_ray)
    elif jobs == "auto":
        raise InputError("--jobs=auto has no effect with --engine=ray, which has --gpus: leave it out")
    from mtl.models.inputs import InputCache
    from mtl.study.plan import carrying_out, make_plan

    config = words.configured()
    workers = None if jobs in (0, "auto") else int(jobs)
    _check_appearance(config.appearance)
    folder = _folder(config, words.files)
    if not dry_run:
        check_folder_place(folder.path)
    inputs = None if dry_run else InputCache(keep=True)
    plan = make_plan(config, folder, inputs, _repeated(again))
    with nullcontext(plan) if dry_run else carrying_out(plan) as plan:
        for change in plan.changes:
            console.print(str(change), soft_wrap=True)
        view = StudyView(folder, plan.jobs, workers)
        if dry_run:
            view.show(view.snapshot(), console)
            return 0
        from mtl.runs.report.write import write_report

        console.print(view.totals(view.snapshot()))
        if engine == "ray":
            from mtl.study.run_ray import run_on_ray

            run_on_ray(folder, plan.jobs, workers or 0, console, ray_address, cpus, gpus)
        else:
            run_locally(view, "mtl.study.perform:work_on_study", jobs, console)
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


def study_folder_of(words: Words[StudyConfig]) -> StudyFolder:
    """The folder of a study that is given by its file or by the folder itself."""
    files = words.files
    if not files:
        raise InputError("mtl study --status needs the study's file or folder: mtl study STUDY.yaml --status")
    if not Path(files[0]).is_dir():
        return _folder(words.configured(), files)
    for word in words.words:
        if word.startswith("-") and not word.startswith("--config="):
            name, _, _ = word.partition("=")
            raise InputError(f"{name} has no effect with --status of a folder: leave it out")
    return StudyFolder(Path(files[0]))


def _folder(config: StudyConfig, files: Sequence[str]) -> StudyFolder:
    """The study's folder; a study without a name has that of its file."""
    if config.name is None and not files:
        raise InputError("mtl study needs a file, or --name=NAME: mtl study toy")
    name = Path(files[-1]).stem if config.name is None else config.name
    return StudyFolder(Path(config.studies) / plain_name(name, "name"))
