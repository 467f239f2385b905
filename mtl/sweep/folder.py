"""A sweep's folder on disk: what it is, Optuna's storage, the trials' runs, and who works on which."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from mtl.errors import InputError
from mtl.files import write_json
from mtl.run import different_keys
from mtl.study.claim import claimed, owner_of
from mtl.sweep.file import Sweep, sweep_from
from mtl.sweep.trial_config import trial_name

State = Literal["waiting", "running", "finished", "stopped", "failed", "interrupted"]
BUSY_SECONDS = 60
"""How long SQLite waits for another process."""
PAUSE = 0.02
"""Seconds between attempts at the lock."""
_COMPARED = ("method", "metric", "parameters", "early_terminate")
"""What of a sweep file must stay as it is while its trials are made."""


@dataclass(frozen=True)
class Progress:
    """How far a trial is, beside what Optuna knows of it."""

    tries: int = 0
    started: float = 0.0
    seconds: float = 0.0
    """Work on it, over all tries that came to an end."""
    worker: str = ""
    error: str = ""
    """Why it has failed. Optuna still counts it as running, so that the same trial can be tried again."""
    stopped: int = 0
    """The evaluation after which it was told to stop; 0: it was not."""
    epoch: int = 0
    """The epoch whose model is kept and whose score counts."""


@dataclass(frozen=True)
class SweepFolder:
    """Where the parts of a sweep are."""

    path: Path

    @property
    def runs(self) -> Path:
        """Holds the trials' run folders."""
        return self.path / "runs"

    @property
    def plan(self) -> Path:
        """The sweep as it was begun."""
        return self.path / "sweep.json"

    def run(self, number: int) -> Path:
        """The run of a trial."""
        return self.runs / trial_name(number)

    def log(self, number: int) -> Path:
        """What a trial printed."""
        return self.path / "logs" / f"{trial_name(number)}.log"

    def claim(self, number: int) -> Path:
        """The claim of the process that works on a trial."""
        return self.path / "claims" / f"{trial_name(number)}.claim"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Trials change their state one at a time: waits for the others; a dead one does not hold it."""
        while True:
            with claimed(self.path / "claims" / "sweep.claim") as mine:
                if mine:
                    yield
                    return
            time.sleep(PAUSE)

    def kept(self) -> tuple[Sweep, dict[str, Any], dict[str, str]]:
        """The sweep, what its trials have in common, and what they are made of."""
        try:
            kept = json.loads(self.plan.read_bytes())
        except FileNotFoundError as error:
            raise InputError(
                f"{self.path} holds no sweep; begin one with 'mtl sweep SWEEP.yaml --local'"
            ) from error
        return sweep_from(kept["sweep"]), kept["base"], kept["made_of"]

    def study(self, sweep: Sweep) -> optuna.Study:
        """Optuna's study, made where there is none."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{self.path / 'sweep.db'}", engine_kwargs={"connect_args": {"timeout": BUSY_SECONDS}}
        )
        return optuna.create_study(
            storage=storage, study_name=sweep.name, direction=sweep.metric.goal, load_if_exists=True
        )

    def start(self, sweep: Sweep, base: Mapping[str, Any], made_of: Mapping[str, str]) -> str:
        """Begin the sweep or go on with the same; returns a note, or an empty text.

        Raises `InputError` where the folder holds another one.
        """
        note = ""
        with self.locked():
            if self.plan.exists():
                old, old_base, old_made_of = self.kept()
                changed = [
                    key for key in different_keys(old.given, sweep.given) if key.split(".")[0] in _COMPARED
                ]
                changed += different_keys(old_base, base)
                if old_made_of["corpus"] != made_of["corpus"]:
                    changed.append("the corpus")
                if changed:
                    raise InputError(
                        f"{self.path} holds a sweep with other {', '.join(changed[:5])}"
                        f"{', …' if len(changed) > 5 else ''}: put that back, or give this one another --name"
                    )
                if old_made_of["code"] != made_of["code"]:
                    note = "the code has changed since this sweep was begun: trials may not compare"
            else:
                self.study(sweep)
                write_json(self.plan, {"sweep": sweep.given, "base": dict(base), "made_of": dict(made_of)})
        return note

    def try_again(self, study: optuna.Study) -> int:
        """Have failed trials wait to be taken up again; returns their number.

        How often interrupted ones were begun is forgotten: whoever gives the command again means it.
        """
        with self.locked():
            states = {each.number: self.state(each) for each in trials_of(study)}
            for trial in trials_of(study):
                if states[trial.number] in ("failed", "interrupted"):
                    before = progress_of(trial)
                    write_progress(study, trial, replace(before, tries=0, error=""))
        return list(states.values()).count("failed")

    def state(self, trial: FrozenTrial) -> State:
        """How far a trial is; `running` only as long as its process lives."""
        if trial.state == TrialState.RUNNING:
            if progress_of(trial).error:
                return "failed"
            return "interrupted" if owner_of(self.claim(trial.number)) is None else "running"
        return _ENDED[trial.state]


_ENDED: dict[TrialState, State] = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "stopped",
    TrialState.FAIL: "failed",
    TrialState.WAITING: "waiting",
}


def trials_of(study: optuna.Study) -> list[FrozenTrial]:
    """All trials, by number."""
    return study.get_trials(deepcopy=False)


def progress_of(trial: FrozenTrial) -> Progress:
    """How far a trial is, beside what Optuna knows of it."""
    return Progress(**trial.user_attrs.get("progress", {}))


def write_progress(study: optuna.Study, trial: FrozenTrial, progress: Progress) -> None:
    """Keep how far a trial is; only the holder of its claim, or of the lock, may."""
    optuna.trial.Trial(study, trial._trial_id).set_user_attr("progress", asdict(progress))
