"""`mtl sweep`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from mtl.commands.arguments import split_options
from mtl.errors import InputError

if TYPE_CHECKING:
    from mtl.sweep.file import Sweep
    from mtl.sweep.folder import SweepFolder


@dataclass(frozen=True)
class Options:
    """How a sweep is carried out; what it is stands in its file, in W&B's format."""

    local: bool = False
    """Carry it out here with Optuna, without a server."""
    jobs: int = 0
    """With `local`: trials side by side; 0: one per GPU, or one on a CPU."""
    trials: int | None = None
    """Trials at most, over all processes; `null`: as `run_cap` says. Online: of this agent."""
    status: bool = False
    """With `local`: show the trials, and end."""
    dry_run: bool = False
    """Say what would be tried, and end."""
    join: str | None = None
    """Join a sweep on W&B's server: ENTITY/PROJECT/ID."""
    wandb: Literal["offline", "disabled"] = "offline"
    """With `local`: keep W&B's log of every trial to be pushed later, or none."""
    name: str | None = None
    """Name of the sweep; `null`: as the file says, or the file's own."""
    sweeps: str = "sweeps"
    """With `local`: folder that holds sweeps."""


def sweep(words: Sequence[str]) -> int:
    """Search for good configurations: a sweep file of W&B's, on W&B's server or without one."""
    options, rest = split_options("mtl sweep", Options, words)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 200
    _check_options(options)
    if options.join is not None:
        if rest:
            raise InputError(
                f"{rest[0]} has no effect with --join, whose sweep is the server's: leave it out"
            )
        from mtl.sweep.wandb_server import join, require_key

        require_key(os.environ)
        join(options.join, options.trials)
        return 0
    places = [word for word in rest if not word.startswith("-")]
    if not places:
        raise InputError("mtl sweep needs a file: mtl sweep configs/sweep/penalty.yaml --local")
    words = [word for word in rest if word != places[0]]
    if options.status:
        if words:
            raise InputError(f"{words[0]} has no effect with --status: leave it out")
        return _status(_folder_of(places[0], options), console)
    from mtl.sweep.file import read_sweep

    definition = read_sweep(Path(places[0]), options.name, words)
    if options.dry_run:
        return _dry_run(definition, options, console)
    if not options.local:
        return _online(definition, options, console)
    from mtl.sweep.folder import SweepFolder, usable

    folder = SweepFolder(Path(options.sweeps) / definition.name)
    with usable(folder.storage):
        return _local(definition, folder, options, console)


def _check_options(options: Options) -> None:
    """Raise `InputError` for numbers out of range, and for options that would have no effect."""
    if options.trials is not None and options.trials < 1:
        raise InputError(f"--trials={options.trials}: give a number above 0")
    if options.jobs < 0:
        raise InputError(
            f"--jobs={options.jobs}: give a number of trials side by side, or 0 to leave it open"
        )
    given = {each.name for each in fields(Options) if getattr(options, each.name) != each.default}
    for mode, fitting in _FITTING.items():
        if mode in given or mode == "":
            odd = sorted(given - {mode, *fitting})
            if odd:
                said = f"with --{mode}" if mode else "without --local"
                raise InputError(f"--{odd[0]} has no effect {said}: leave it out".replace("_", "-"))
            return


_FITTING: dict[str, tuple[str, ...]] = {
    "join": ("trials",),
    "status": ("local", "name", "sweeps"),
    "dry_run": ("local", "name", "sweeps", "trials"),
    "local": ("jobs", "trials", "wandb", "name", "sweeps"),
    "": ("trials", "name"),
}
"""Ways of using the command, the first that is given counts, and the options that have an effect there."""


def _dry_run(definition: Sweep, options: Options, console: Console) -> int:
    from mtl.sweep.check import check_sweep
    from mtl.sweep.folder import SweepFolder
    from mtl.sweep.status import preview
    from mtl.sweep.trial_config import base_of

    base = base_of(definition, Options)
    check_sweep(definition, base)
    if options.local:
        definition.check_local()
    folder = SweepFolder(Path(options.sweeps) / definition.name)
    for line in preview(definition, folder, options.trials or definition.file.run_cap):
        console.print(line, soft_wrap=True)
    if folder.plan.exists():
        folder.check_same(definition, base)
    return 0


def _local(definition: Sweep, folder: SweepFolder, options: Options, console: Console) -> int:
    from mtl.config.parse import configuration_from
    from mtl.config.schema import TrainConfig
    from mtl.sweep.trial_config import base_of, trial_name

    definition.check_local()
    base = base_of(definition, Options)  # a mistyped key is reported before torch is loaded
    from mtl.corpora.load import corpus_fingerprint
    from mtl.corpora.readers import reader_modules
    from mtl.models.inputs import InputCache
    from mtl.runs.code_fingerprint import TRAINING, code_fingerprint
    from mtl.sweep.check import check_sweep
    from mtl.sweep.folder import trials_of
    from mtl.sweep.report import collect
    from mtl.sweep.status import best_of, heads_text, overview, score_text, totals, values_text
    from mtl.sweep.workers import run_locally

    check_sweep(definition, base, InputCache(keep=True))
    limit = _limit(definition, options.trials)
    config = configuration_from(TrainConfig, base, "base")
    made_of = {
        "corpus": corpus_fingerprint(config.corpus, tuple(config.chosen())),
        "code": code_fingerprint(TRAINING, *reader_modules(base["corpus"])),
    }
    notes = [folder.start(definition, base, made_of)]
    if definition.only_on_the_server():
        notes.append(
            f"without effect on trials without W&B's server: {', '.join(definition.only_on_the_server())}"
        )
    for note in filter(None, notes):
        console.print(f"note: {note}", soft_wrap=True)
    study = folder.study(definition)
    again = folder.try_again(study)
    console.print(totals(folder, study, limit) + (f"; {again} tried again" if again else ""))
    run_locally(folder, definition, options.jobs, limit, options.wandb, console)
    trials = trials_of(study)
    console.print(overview(folder, definition, study))
    console.print(totals(folder, study, limit))
    page = collect(folder, console)
    best = best_of(definition, trials)
    if best is not None:
        console.print(
            f"best: {trial_name(best.number)}, {definition.metric.name} {score_text(best)}"
            f"{heads_text(best)}, with {values_text(definition, best)} ({folder.run(best.number)})",
            soft_wrap=True,
        )
    if options.wandb == "offline":
        console.print(f"to W&B: wandb sync {folder.runs}/*/wandb/offline-run-*", soft_wrap=True)
    if page is not None:
        console.print(f"report: {page}", soft_wrap=True)
    failed = [each for each in trials if folder.state(each) == "failed"]
    if failed:
        console.print(f"{len(failed)} trials have failed; the same command tries them again")
    return 1 if failed else 0


def _online(definition: Sweep, options: Options, console: Console) -> int:
    from mtl.sweep.check import check_sweep
    from mtl.sweep.trial_config import base_of
    from mtl.sweep.wandb_server import create, join, require_key

    check_sweep(definition, base_of(definition, Options))
    require_key(os.environ)
    join(create(definition, console), options.trials)
    return 0


def _status(folder: SweepFolder, console: Console) -> int:
    from mtl.sweep.folder import usable
    from mtl.sweep.status import overview, totals

    definition, _, _ = folder.kept()
    with usable(folder.storage):
        study = folder.study(definition)
        console.print(overview(folder, definition, study))
        console.print(totals(folder, study, definition.points() or definition.file.run_cap or 0))
    return 0


def _folder_of(place: str, options: Options) -> SweepFolder:
    """The folder of a sweep given by its file or by the folder itself."""
    from mtl.sweep.file import read_sweep
    from mtl.sweep.folder import SweepFolder

    if Path(place).is_dir():
        return SweepFolder(Path(place))
    return SweepFolder(Path(options.sweeps) / read_sweep(Path(place), options.name).name)


def _limit(definition: Sweep, trials: int | None) -> int:
    """How many trials there may be."""
    points, cap = definition.points(), trials or definition.file.run_cap
    if points is None and cap is None:
        raise InputError(
            f"method {definition.file.method} never ends: give run_cap in the file, or --trials=20"
        )
    return min(points or sys.maxsize, cap or sys.maxsize)
