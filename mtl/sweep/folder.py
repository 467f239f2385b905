"""A sweep's folder: Optuna's storage, the progress of trials, what one process does of them, and what users
see: the preview and the trials as a table."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import optuna
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from mtl.config.effective import different_keys, is_place
from mtl.config.keys import shown_key
from mtl.errors import InputError
from mtl.files import full_disk, write_json
from mtl.sweep.file import Sweep, sweep_from
from mtl.sweep.trial_config import trial_name
from mtl.tasks.in_words import as_text, counted
from mtl.workers import queue
from mtl.workers.lease import exclusive, lease
from mtl.workers.queue import FullDisk, JobFolder, Snapshot, State, Taken, no_room, restored
from mtl.workers.watch import QueueView

BUSY_SECONDS = 60
"""Seconds that SQLite waits for another process's lock."""
MOST_POINTS = 1000
"""Maximum number of points of a grid that are printed."""
_WAY_OUT = "put it back from a copy, or start a new sweep with another --name"
_COMPARED = ("method", "metric", "parameters", "early_terminate")
"""Keys of a sweep file that must not change once the sweep was started."""


@dataclass(frozen=True)
class TrialProgress(queue.Progress):
    """The progress of a trial, in addition to Optuna's records, which decide its state once it has ended."""

    stopped: int = 0
    """The number of the evaluation after which the trial was stopped; 0: it was not."""
    value: float | None = None
    """The metric, once the trial has ended."""


@dataclass(frozen=True)
class SweepFolder(JobFolder):
    """Where a sweep's files are, and what they say."""

    @property
    def storage(self) -> Path:
        """Optuna's storage of the trials (SQLite)."""
        return self.path / "sweep.db"

    @property
    def sweep_file(self) -> Path:
        """The sweep as it was started (JSON)."""
        return self.path / "sweep.json"

    def locked(self) -> AbstractContextManager[None]:
        """The lock under which trials change their state."""
        return exclusive(self.path / "leases" / "sweep.lease")

    def read_sweep(self) -> tuple[Sweep, dict[str, Any], dict[str, str]]:
        """The sweep, the settings that its trials share, and what else they are made of: corpora and version.

        Raises `InputError` if the file is missing or damaged.
        """
        try:
            started = json.loads(self.sweep_file.read_bytes())
            made_of = {part: started["made_of"][part] for part in ("corpus", "version")}
            return sweep_from(started["sweep"]), dict(started["base"]), made_of
        except FileNotFoundError as error:
            self.check_no_trials()
            raise InputError(
                f"{self.path} holds no sweep; start one with 'mtl sweep SWEEP.yaml --local'"
            ) from error
        except InputError as error:
            raise InputError(f"{self.sweep_file}: {error}") from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(
                f"{self.sweep_file} is damaged ({' '.join(str(error).split())}): {_WAY_OUT}"
            ) from error

    def study(self, sweep: Sweep) -> optuna.Study:
        """Optuna's study; raises `InputError` if its storage is missing, damaged or another version's."""
        if not self.storage.is_file():
            raise InputError(f"{self.storage} is missing, with the sweep's trials: {_WAY_OUT}")
        if not self.storage.stat().st_size:
            raise InputError(f"{self.storage} is empty, without the sweep's trials: {_WAY_OUT}")
        with usable(self.storage):
            try:
                return optuna.load_study(storage=_opened(self.storage), study_name=sweep.name)
            except KeyError as error:
                raise InputError(
                    f"{self.storage} holds no trials of a sweep {sweep.name!r}: {_WAY_OUT}"
                ) from error

    def start(self, sweep: Sweep, base: Mapping[str, Any], made_of: Mapping[str, str]) -> list[str]:
        """Start the sweep, or continue it; returns notes for the user.

        Raises `InputError` if the folder holds another sweep.
        """
        notes = []
        if sweep.only_on_the_server():
            useless = ", ".join(sweep.only_on_the_server())
            notes.append(f"these keys have no effect without W&B's server: {useless}")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path} cannot be made: {error.strerror}") from error
        with self.locked():
            if not self.sweep_file.exists():
                self._make_storage(sweep)
                started = {"sweep": sweep.given, "base": dict(base), "made_of": dict(made_of)}
                write_json(self.sweep_file, started)
                return notes
            old, _, old_made_of = self.read_sweep()
            self.check_same(sweep, base, made_of["corpus"])
            # Other keys, such as the project, may change. The order of parameters numbers the trials.
            given = {**sweep.given, **{key: old.given[key] for key in _COMPARED if key in old.given}}
            write_json(self.sweep_file, {"sweep": given, "base": dict(base), "made_of": old_made_of})
            if old_made_of["version"] != made_of["version"]:
                notes.append("the sweep was started by another version of mtl: trials may not be comparable")
        return notes

    def check_same(self, sweep: Sweep, base: Mapping[str, Any], corpus: str | None = None) -> None:
        """Raise `InputError` if the folder holds another sweep, or one over another corpus."""
        old, old_base, old_made_of = self.read_sweep()
        changed = [
            key for part in _COMPARED for key in _changed(part, old.given.get(part), sweep.given.get(part))
        ]
        # Paths do not count, but what is there; a dry run has not read it.
        changed += [shown_key(key) for key in different_keys(old_base, base) if not is_place(key)]
        if corpus not in (None, old_made_of["corpus"]):
            changed.append("the corpus")
        if changed:
            raise InputError(
                f"{self.path} holds a sweep with other {', '.join(changed[:5])}"
                f"{', …' if len(changed) > 5 else ''}: put that back, or give this one another --name"
            )

    def check_no_trials(self) -> None:
        """Raise `InputError` if the storage holds trials, although sweep.json is missing."""
        if not self.storage.exists():
            return
        with usable(self.storage):
            summaries = optuna.get_all_study_summaries(_opened(self.storage))
        if any(summary.n_trials for summary in summaries):
            raise InputError(f"{self.sweep_file} is missing, and {self.storage} holds trials: {_WAY_OUT}")

    def _make_storage(self, sweep: Sweep) -> None:
        """Create the storage; one without trials, which a killed process left, is replaced."""
        self.check_no_trials()
        self.storage.unlink(missing_ok=True)
        with usable(self.storage):
            storage = _opened(self.storage)
            optuna.create_study(storage=storage, study_name=sweep.name, direction=sweep.metric.goal)

    def try_again(self, study: optuna.Study) -> int:
        """Make failed trials wait for another try; returns their number.

        Tries of interrupted trials are counted from 0 again, since the user gave the command again.
        """
        failed = 0
        with self.locked():
            for trial in trials_of(study):
                state = self.state(trial)
                failed += state == "failed"
                if state in ("failed", "interrupted"):
                    write_progress(study, trial, replace(trial_progress(trial), tries=0, error=""))
        return failed

    def progress(self, trial: FrozenTrial) -> TrialProgress:
        """The progress of a trial; `running` only while its process lives."""
        return self.living(trial_name(trial.number), trial_progress(trial))

    def state(self, trial: FrozenTrial) -> State:
        """The state of a trial."""
        return self.progress(trial).state


@contextmanager
def usable(storage: Path) -> Iterator[None]:
    """Turn errors of a storage into an `InputError` of one line."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        origins = (getattr(source, "orig", None) for source in (error, error.__cause__))
        message = " ".join(str(next(filter(None, origins), error)).split())
        if full_disk(error, storage.parent) is not None:
            raise InputError(no_room(storage.parent)) from error
        raise InputError(f"{storage} cannot be used ({message}): {_WAY_OUT}") from error


_ENDED: dict[TrialState, State] = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "stopped",
    TrialState.FAIL: "failed",
    TrialState.WAITING: "waiting",
}


def trials_of(study: optuna.Study) -> list[FrozenTrial]:
    """All trials, by number."""
    return study.get_trials(deepcopy=False)


def is_scored(trial: FrozenTrial) -> bool:
    """Whether a trial has finished with a score that can be compared with others."""
    return trial.state == TrialState.COMPLETE and math.isfinite(trial.values[0])


def trial_progress(trial: FrozenTrial) -> TrialProgress:
    """The progress of a trial as last written, with the state that Optuna has recorded."""
    try:
        progress = restored(TrialProgress, trial.user_attrs.get("progress", {}))
    except TypeError as error:
        raise InputError(
            f"trial {trial.number} is of another version of mtl ({error}): start a new sweep with another "
            "--name"
        ) from error
    at_work: State = "failed" if progress.error else "running"
    return replace(progress, state=_ENDED.get(trial.state, at_work))


def write_progress(study: optuna.Study, trial: FrozenTrial, progress: TrialProgress) -> None:
    """Write the progress of a trial; only the holder of its lease, or of the lock, may."""
    study._storage.set_trial_user_attr(trial._trial_id, "progress", asdict(progress))


@dataclass(frozen=True)
class Outcome:
    """The result of a trial."""

    value: float
    """The sweep's metric at the epoch whose model is kept."""
    open_heads: Mapping[str, float] = field(default_factory=dict)
    """By mask; empty without masks."""


Look = Callable[[int, float], bool]
"""Takes the number of an evaluation, from 1, and its metric; returns whether the trial must stop."""
Perform = Callable[[int, Mapping[str, Any], Look], Outcome]
"""Runs the trial of this number with these values, or resumes it if it was started."""


@dataclass(frozen=True)
class Engine:
    """A sweep in its folder, and the function that performs a trial."""

    folder: SweepFolder
    sweep: Sweep
    perform: Perform
    limit: int
    """Maximum number of trials, over all processes and all calls of the command."""

    def work(self) -> None:
        """Run trials until none is left to start or resume.

        Raises `KeyboardInterrupt` if a trial was interrupted (its state is saved) and `FullDisk`.
        """
        try:
            queue.work(self.folder, self.take)
        except Exception as error:
            if full_disk(error, self.folder.path) is not None:  # the storage may notice it first
                raise FullDisk from error
            raise

    @cached_property
    def study(self) -> optuna.Study:
        """Optuna's study."""
        study = self.folder.study(self.sweep)
        study.pruner = pruner_for(self.sweep)
        return study

    def take(self, leases: ExitStack) -> Taken[TrialProgress] | None:
        """A trial that was started before, or else a new one."""
        with self.folder.locked():
            trial = self._started_before(leases) or self._new(leases)
        if trial is None:
            return None
        values = {parameter.key: parameter.draw(trial) for parameter in self.sweep.parameters}
        trial.set_user_attr("values", values)
        name, before = trial_name(trial.number), trial_progress(self._frozen(trial))
        return Taken(name, before, partial(self._perform, trial, values), partial(self._write, trial))

    def _write(self, trial: Trial, progress: TrialProgress) -> None:
        with self.folder.locked():
            write_progress(self.study, self._frozen(trial), progress)
            if progress.state == "finished":
                self.study.tell(trial.number, progress.value)
            elif progress.state == "stopped":
                self.study.tell(trial.number, state=TrialState.PRUNED)

    def _frozen(self, trial: Trial) -> FrozenTrial:
        return self.study._storage.get_trial(trial._trial_id)

    def _started_before(self, leases: ExitStack) -> Trial | None:
        """A trial that was started and that no process works on, under a lease."""
        for frozen in trials_of(self.study):
            at_work = frozen.state == TrialState.RUNNING and not trial_progress(frozen).error
            if at_work and leases.enter_context(lease(self.folder.lease_file(trial_name(frozen.number)))):
                self.study.sampler = sampler_for(self.sweep, frozen.number)
                return Trial(self.study, frozen._trial_id)
        return None

    def _new(self, leases: ExitStack) -> Trial | None:
        """A new trial, under a lease, unless there are enough or one is good enough."""
        trials = trials_of(self.study)
        started = [trial for trial in trials if trial.state != TrialState.WAITING]
        good_enough = any(
            is_scored(trial) and self.sweep.metric.reached(trial.values[0]) for trial in started
        )
        if len(started) >= self.limit or good_enough:
            return None
        if self.sweep.file.method == "grid" and len(started) == len(trials):
            # Trials are enqueued one at a time, so that trial n has point n of the grid.
            self.study.enqueue_trial(drawn_at(self.sweep, len(trials)))
        self.study.sampler = sampler_for(self.sweep, len(started))
        trial = self.study.ask()
        leases.enter_context(lease(self.folder.lease_file(trial_name(trial.number))))
        return trial

    def _perform(
        self,
        trial: Trial,
        values: Mapping[str, Any],
        progress: TrialProgress,
        record: Callable[[TrialProgress], None],
    ) -> TrialProgress:
        """Do a trial; stop it early if others were better."""
        stopping, reported = self.sweep.file.early_terminate, self._frozen(trial).intermediate_values

        def look(evaluation: int, value: float) -> bool:
            """Report an evaluation to Optuna, unless an earlier try did; returns whether the trial stops."""
            nonlocal progress
            self._require_finite(value)
            if evaluation not in reported:
                trial.report(value, evaluation)
            compared = stopping is not None and evaluation <= stopping.last
            if compared and not progress.stopped and trial.should_prune():
                progress = replace(progress, stopped=evaluation)
                record(progress)
            return bool(progress.stopped)

        outcome = self.perform(trial.number, values, look)
        self._require_finite(outcome.value)
        trial.set_user_attr("open_heads", dict(outcome.open_heads))
        return replace(progress, state="stopped" if progress.stopped else "finished", value=outcome.value)

    def _require_finite(self, value: float) -> None:
        """Raise `InputError`, so that the trial fails, for a score that cannot be compared with others."""
        if not math.isfinite(value):
            raise InputError(f"{self.sweep.metric.name} is {value}, not a finite number")


def point(sweep: Sweep, number: int) -> dict[str, int]:
    """The position of each parameter's value in the grid's trial of this number; the last changes fastest."""
    positions = {}
    for parameter in reversed(sweep.parameters):
        number, positions[parameter.key] = divmod(number, parameter.size or 1)
    return {parameter.key: positions[parameter.key] for parameter in sweep.parameters}


def drawn_at(sweep: Sweep, number: int) -> dict[str, int]:
    """What Optuna draws for the grid's trial of this number: positions or integers (`Parameter.draw`)."""
    positions = point(sweep, number)
    return {
        parameter.key: positions[parameter.key]
        if parameter.scale == "categories"
        else parameter.at(positions[parameter.key])
        for parameter in sweep.parameters
    }


def sampler_for(sweep: Sweep, number: int) -> optuna.samplers.BaseSampler:
    """The sampler for the trial of this number, which is its seed: no two processes draw the same."""
    seed = zlib.crc32(f"{sweep.name}/{number}".encode())
    if sweep.file.method == "bayes":
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def pruner_for(sweep: Sweep) -> optuna.pruners.BasePruner:
    """The pruner that stops trials early.

    Optuna's `HyperbandPruner` would spread the trials over brackets with ever later first comparisons. W&B's
    hyperband puts all trials into the first bracket.
    """
    stopping = sweep.file.early_terminate
    if stopping is None:
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=stopping.first, reduction_factor=stopping.eta)


Trials = Snapshot[FrozenTrial, TrialProgress]


@dataclass(frozen=True)
class SweepView(QueueView[Trials]):
    """What users see of a sweep: the trials whose values are drawn."""

    folder: SweepFolder
    sweep: Sweep
    study: optuna.Study
    limit: int
    """The final number of trials; 0: unknown."""
    kind: ClassVar[str] = "trial"

    def snapshot(self) -> Trials:
        """The trials and their progress now."""
        trials = {trial_name(trial.number): trial for trial in trials_of(self.study) if trial_values(trial)}
        return Snapshot(trials, {name: self.folder.progress(trial) for name, trial in trials.items()})

    def texts(self, snapshot: Trials, name: str) -> dict[str, str]:
        """The metric, the parameters in which trials differ, and the open heads of every mask."""
        trial = snapshot.jobs[name]
        return {self.sweep.metric.name: score_text(trial)} | self._varied(trial) | _heads_text(trial)

    def remark(self, snapshot: Trials, name: str) -> str:
        """Whether the trial is the best one, or when it was stopped."""
        best = best_of(self.sweep, list(snapshot.jobs.values()))
        if best is not None and name == trial_name(best.number):
            return "best"
        stopped = snapshot.state(name) == "stopped"
        evaluation = snapshot.progress[name].stopped
        return f"after evaluation {evaluation}" if stopped else super().remark(snapshot, name)

    def ending(self, snapshot: Trials, name: str) -> str:
        """The trial's values, and its score if it has ended."""
        trial = snapshot.jobs[name]
        described = ", ".join(f"{key}={text}" for key, text in self._varied(trial).items())
        ended = snapshot.state(name) in ("finished", "stopped")
        results = {self.sweep.metric.name: score_text(trial)} | _heads_text(trial) if ended else {}
        score = ", ".join(f"{key} {text}" for key, text in results.items())
        return f"{': ' if ended else ''}{score} with {described or 'nothing different'}"

    def _varied(self, trial: FrozenTrial) -> dict[str, str]:
        values = trial_values(trial)
        varied = [parameter.key for parameter in self.sweep.parameters if parameter.varies]
        return {key: setting_text(values[key]) for key in varied if key in values}


def best_of(sweep: Sweep, trials: list[FrozenTrial]) -> FrozenTrial | None:
    """The finished trial with the best score; the first of equals."""
    best = max if sweep.metric.goal == "maximize" else min
    scored = [trial for trial in trials if is_scored(trial)]
    return best(scored, key=lambda trial: trial.values[0], default=None)


def trial_values(trial: FrozenTrial) -> dict[str, Any]:
    """The configuration's values of a trial."""
    values: dict[str, Any] = trial.user_attrs.get("values", {})
    return values


def trial_open_heads(trial: FrozenTrial) -> dict[str, float]:
    """The number of open heads of each of a trial's masks, by its name in tables."""
    heads: dict[str, float] = trial.user_attrs.get("open_heads", {})
    names = {mask: "open heads" if mask == "shared" else f"open heads {mask}" for mask in heads}
    return {names[mask]: count for mask, count in heads.items()}


def setting_text(value: Any) -> str:
    """A short form of a value, with numbers rounded to four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "+".join(map(setting_text, value))
    if isinstance(value, Mapping):
        return " ".join(f"{key}={setting_text(item)}" for key, item in value.items())
    return "null" if value is None else str(value)


def score_text(trial: FrozenTrial) -> str:
    """A trial's score; before it has ended, that of its last evaluation."""
    if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and trial.values:
        return f"{trial.values[0]:.4g}"
    last = trial.last_step
    return "" if last is None else f"{trial.intermediate_values[last]:.4g}"


def preview(sweep: Sweep, folder: SweepFolder, limit: int | None) -> Iterator[str]:
    """The lines of a dry run: the shared arguments, a grid's points or the distributions, the folder.

    `limit` is the maximum number of trials; `None`: all of a grid.
    """
    target = "" if sweep.metric.target is None else f", until {sweep.metric.target:g}"
    yield f"sweep {sweep.name}: {sweep.file.method}, to {sweep.metric.goal} {sweep.metric.name}{target}"
    yield f"all trials share: mtl train {' '.join(sweep.base)}".rstrip()
    yield f"early termination: {sweep.file.early_terminate or 'none'}"
    points = sweep.points()
    if points is None:
        yield f"trials: {limit or 'no limit; with --local, give run_cap or --trials=N'}"
        for parameter in sweep.parameters:
            yield f"  {parameter}"
    else:
        count = min(points, limit or points)
        yield f"trials: {count}" + (f" of the grid's {counted(points, 'point')}" if count < points else "")
        for number in itertools.islice(range(count), MOST_POINTS):
            positions = point(sweep, number)
            values = {each.key: each.at(positions[each.key]) for each in sweep.parameters}
            shown = ", ".join(f"{key}={as_text(value)}" for key, value in values.items())
            yield f"  {trial_name(number)}: {shown}"
        if count > MOST_POINTS:
            yield f"  … and {count - MOST_POINTS} more"
    yield f"with --local in {folder.path}: {_so_far(folder, min(filter(None, (points, limit)), default=0))}"


def _so_far(folder: SweepFolder, limit: int) -> str:
    if not folder.sweep_file.exists():
        folder.check_no_trials()
        return "not started"
    sweep, _, _ = folder.read_sweep()
    with usable(folder.storage):
        view = SweepView(folder, sweep, folder.study(sweep), limit)
        return view.totals(view.snapshot())


def _changed(key: str, old: Any, new: Any) -> list[str]:
    """The key, if its values differ; of two mappings, the keys inside that differ."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return [key] if old != new else []
    return [f"{key}.{name}" for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]


def _opened(storage: Path) -> optuna.storages.RDBStorage:
    """Optuna's storage in a file; raises `InputError` if another version of Optuna wrote it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = storage.absolute()  # not in the URL, where `?` and `{` have a meaning
    settings = {"creator": lambda: sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)}
    try:
        return optuna.storages.RDBStorage(f"sqlite:///{path.name}", engine_kwargs=settings)
    except RuntimeError as error:
        raise InputError(f"{storage}: {' '.join(str(error).split())}") from error


def _heads_text(trial: FrozenTrial) -> dict[str, str]:
    return {name: f"{count:.0f}" for name, count in trial_open_heads(trial).items()}
