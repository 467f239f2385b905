"""`mtl sweep`: with Optuna in a folder, or on W&B's server, whose trials W&B's own agent runs.

For each trial, the agent runs the file's `command`, `mtl train`, in its own process, which recognises the
agent by its environment (`mtl.commands.train.under_agent`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from mtl.commands.common import refuse_unused
from mtl.config.parse import Words
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.tasks.task import Count, CountOrNone

if TYPE_CHECKING:
    from mtl.sweep.file import Sweep
    from mtl.sweep.folder import SweepFolder


_FITTING: dict[str, tuple[str, ...]] = {
    "join": ("trials",),
    "status": ("local", "name", "sweeps"),
    "dry_run": ("local", "name", "sweeps", "trials"),
    "local": ("jobs", "trials", "wandb", "name", "sweeps"),
}
"""Ways to use the command, of which the first one given counts, with the options that it uses."""
_WITHOUT = "'mtl sweep SWEEP.yaml --local' runs a sweep without a server"
"""The other way to run a sweep; `--local` is of no use to those who join one of the server's."""


def sweep(
    words: Words[TrainConfig],
    *,
    local: bool = False,
    jobs: CountOrNone = 0,
    trials: Count | None = None,
    status: bool = False,
    dry_run: bool = False,
    join: str | None = None,
    wandb: Literal["offline", "disabled"] = "offline",
    name: str | None = None,
    sweeps: str = "sweeps",
) -> int:
    """Search for good configurations: a sweep file in W&B's format, on W&B's server or without one.

    Args:
        words: The sweep's file, and keys that all trials have.
        local: Run the trials on this machine with Optuna, without a server.
        jobs: With `local`: trials side by side; 0: one per GPU, or one on a CPU.
        trials: Maximum number of trials of all processes; `null`: the file's `run_cap`. With W&B's server: of
            this agent.
        status: Show the trials of a local sweep, and end.
        dry_run: Print the trials that would be run, and end.
        join: Join a sweep on W&B's server: ENTITY/PROJECT/ID.
        wandb: With `local`: write a W&B log of every trial, which can be sent later, or none.
        name: Name of the sweep; `null`: `name` in the file, else the file's name.
        sweeps: With `local`: folder that holds sweeps.
    """
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 200
    given = {
        "join": join, "status": status, "dry_run": dry_run, "local": local, "jobs": jobs, "name": name,
        "sweeps": sweeps, "trials": trials, "wandb": wandb,
    }  # fmt: skip
    mode = next((mode for mode in _FITTING if given[mode] not in (None, False)), "")
    where = f"with --{mode}".replace("_", "-") if mode else "without --local"
    fitting = (mode, *_FITTING.get(mode, ("trials", "name")))
    others = {key.replace("_", "-"): given[key] for key in sorted(given) if key not in fitting}
    refuse_unused(sweep, f"has no effect {where}: leave it out", **others)
    file = next((word for word in words.words if not word.startswith("-")), None)
    rest = [word for word in words.words if word != file]
    if join is not None:
        _refuse(words.words, "--join, whose sweep is the server's")
        _require_key(os.environ)
        _join_sweep(join, trials)
        return 0
    if file is None:
        raise InputError("mtl sweep needs a file: mtl sweep penalty --local")
    if status:
        _refuse(rest, "--status")
        return _status(Path(file), name, sweeps, console)
    from mtl.sweep.file import read_sweep
    from mtl.sweep.trial_config import base_of, check_sweep

    definition = read_sweep(Path(file), name, rest)
    if local:
        definition.check_local()
    base = base_of(definition, words.options)  # reports a mistyped key before torch is loaded
    if not local and not dry_run:
        check_sweep(definition, base)
        _require_key(os.environ)
        _join_sweep(_create_on_server(definition, console), trials)
        return 0
    from mtl.sweep.folder import SweepFolder, usable

    folder = SweepFolder(Path(sweeps) / definition.name)
    with usable(folder.storage):
        if not dry_run:
            return _local(definition, base, folder, jobs, trials, wandb, console)
        check_sweep(definition, base)
        if local:
            definition.limit(trials)  # refuses what the command itself would
        _preview(definition, base, folder, trials, console)
        return 0


def _refuse(words: Sequence[str], mode: str) -> None:
    if words:
        raise InputError(f"{words[0]} has no effect with {mode}: leave it out")


def _preview(
    definition: Sweep, base: Mapping[str, Any], folder: SweepFolder, trials: int | None, console: Console
) -> None:
    from mtl.sweep.folder import preview

    for line in preview(definition, folder, trials or definition.file.run_cap):
        console.print(line, soft_wrap=True)
    if folder.sweep_file.exists():
        folder.check_same(definition, base)


def _local(
    definition: Sweep, base: Mapping[str, Any], folder: SweepFolder, jobs: int, trials: int | None,
    wandb: str, console: Console,
) -> int:  # fmt: skip
    from mtl.files import check_folder_place
    from mtl.models.inputs import InputCache
    from mtl.runs.report.write import write_report
    from mtl.sweep.folder import SweepView, best_of
    from mtl.sweep.trial_config import check_sweep, trial_name
    from mtl.workers.watch import run_locally

    check_folder_place(folder.path)
    check_sweep(definition, base, InputCache(keep=True))
    limit = definition.limit(trials)
    for note in folder.start(definition, base, trial_dependencies(definition, base)):
        console.print(f"note: {note}", soft_wrap=True)
    study = folder.study(definition)
    again = folder.try_again(study)
    view = SweepView(folder, definition, study, limit)
    console.print(view.totals(view.snapshot()) + (f"; {again} tried again" if again else ""))
    run_locally(view, "mtl.sweep.trial:work_on_sweep", jobs, console, (str(limit), wandb))
    ended = view.snapshot()
    view.show_end(ended, console)
    page = write_report(folder.path, console, at_end=True)
    best = best_of(definition, list(ended.jobs.values()))
    if best is not None:
        name = trial_name(best.number)
        console.print(f"best: {view.line(ended, name)} ({folder.run(name)})", soft_wrap=True)
    if wandb == "offline":
        console.print(f"to W&B: wandb sync {quote(str(folder.runs))}/*/wandb/offline-run-*", soft_wrap=True)
    return view.conclude(ended, page, console)


def trial_dependencies(definition: Sweep, base: Mapping[str, Any]) -> dict[str, str]:
    """What trials depend on besides their settings: fingerprints of their corpora, and the version of mtl."""
    from mtl.corpora.load import corpus_fingerprint
    from mtl.runs.folder.run import version
    from mtl.sweep.trial_config import example_configs

    configs = example_configs(definition, base)
    corpora = {corpus_fingerprint(config.corpus, config.chosen()) for config in configs}
    return {"corpus": "+".join(sorted(corpora)), "version": version()}


def _status(path: Path, name: str | None, sweeps: str, console: Console) -> int:
    """Print the trials of a sweep that is given by its file or by its folder."""
    from mtl.sweep.file import read_sweep
    from mtl.sweep.folder import SweepFolder, SweepView, usable

    if path.is_dir():
        refuse_unused(
            sweep, "has no effect with --status of a folder: leave it out", name=name, sweeps=sweeps
        )
    else:
        path = Path(sweeps) / read_sweep(path, name).name
    folder = SweepFolder(path)
    definition, _, _ = folder.read_sweep()
    with usable(folder.storage):
        limit = definition.points() or definition.file.run_cap or 0
        view = SweepView(folder, definition, folder.study(definition), limit)
        view.show(view.snapshot(), console)
    return 0


def _require_key(environment: Mapping[str, str]) -> None:
    """Raise `InputError` if W&B has no API key, or if the environment disables it or sets it offline."""
    mode = environment.get("WANDB_MODE", "")
    if mode in ("offline", "disabled", "dryrun") or environment.get("WANDB_DISABLED"):
        raise InputError(f"W&B is {mode or 'disabled'} here; {_WITHOUT}")
    import wandb

    with _reached():
        has_key = wandb.login(prompt=False)
    if not has_key:
        raise InputError(f"no W&B key: 'wandb login' stores one; {_WITHOUT}")


def _create_on_server(sweep: Sweep, console: Console) -> str:
    """Create the sweep on the server, and print how to start more agents; returns ENTITY/PROJECT/ID."""
    import wandb

    entity, project = sweep.file.entity, sweep.file.project
    with _reached():
        identity = wandb.sweep(sweep.given, entity=entity, project=project)
        if entity is None or project is None:
            api = wandb.Api()
            entity = entity or api.default_entity
            project = project or api.settings.get("project") or "uncategorized"
    path = f"{entity}/{project}/{identity}"
    console.print(f"sweep {path}", soft_wrap=True)
    console.print("more agents, on any machine with the same files:")
    console.print(f"  mtl sweep --join {path}", soft_wrap=True)
    console.print(f"  wandb agent {path}", soft_wrap=True)
    return path


def _join_sweep(path: str, count: int | None) -> None:
    """Run trials of the sweep ENTITY/PROJECT/ID until it ends, at most `count`."""
    import wandb

    parts = path.split("/")
    if len(parts) != 3 or not all(parts):
        raise InputError(f"--join={path}: use ENTITY/PROJECT/ID, as 'mtl sweep' printed it")
    # The agent finds `mtl` on PATH, and must find that of this environment.
    here = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PATH")])])
    with _reached():
        wandb.agent(parts[2], entity=parts[0], project=parts[1], count=count, forward_signals=True)


@contextmanager
def _reached() -> Iterator[None]:
    """Turn errors of W&B's server, or of the network, into one line."""
    import requests
    import wandb

    try:
        yield
    except (wandb.errors.Error, requests.RequestException) as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"W&B: {message}; {_WITHOUT}") from error
