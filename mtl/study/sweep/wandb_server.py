"""A sweep on W&B's server, whose trials W&B's own agent runs.

For each trial, the agent runs the file's `command`, `mtl train`, in its own process, which recognises
the agent by its environment (`under_agent`).
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mtl.config.schema import TrainConfig
from mtl.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from mtl.study.sweep.file import Sweep


def under_agent(config: TrainConfig, environment: Mapping[str, str]) -> TrainConfig:
    """The configuration; if an agent started this process, with a folder of its own and W&B switched on.

    The agent's commands differ only in the sweep's parameters, so that all runs would have the same folder.
    Therefore the folder's name contains the id of the run, which the agent puts into the environment.
    """
    sweep, run = environment.get("WANDB_SWEEP_ID"), environment.get("WANDB_RUN_ID")
    if not sweep or not run:
        return config
    mode = "online" if config.wandb.mode == "disabled" else config.wandb.mode
    runs, name = Path(config.runs), config.run_name()
    return dataclasses.replace(
        config,
        # A resumed trial gets what it logged, with the folder and name that it was given here.
        runs=config.runs if runs.name == f"sweep-{sweep}" else str(runs / f"sweep-{sweep}"),
        name=name if name.endswith(f"-{run}") else f"{name}-{run}",
        wandb=dataclasses.replace(config.wandb, mode=mode),
    )


def words_of_agent(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The arguments; if an agent started this process, without those that W&B adds.

    For a trial that is resumed, the agent passes all that the run logged as its configuration: the keys of
    `mtl train`, W&B's own `_wandb`, and `git`.
    """
    if not environment.get("WANDB_SWEEP_ID") or not environment.get("WANDB_RUN_ID"):
        return list(words)
    return [word for word in words if not word.startswith(("--_wandb=", "--git="))]


@contextmanager
def _reached() -> Iterator[None]:
    """Turn errors of W&B's server, or of the network, into one line."""
    import requests
    import wandb

    try:
        yield
    except (wandb.errors.Error, requests.RequestException) as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"W&B: {message}; add --local to run a sweep without a server") from error


def require_key(environment: Mapping[str, str]) -> None:
    """Raise `InputError` if W&B has no API key, or if the environment disables it or sets it offline."""
    mode = environment.get("WANDB_MODE", "")
    if mode in ("offline", "disabled", "dryrun") or environment.get("WANDB_DISABLED"):
        raise InputError(f"W&B is {mode or 'disabled'} here; add --local to run the sweep without a server")
    import wandb

    with _reached():
        has_key = wandb.login(prompt=False)
    if not has_key:
        raise InputError(
            "no W&B key: 'wandb login' stores one; or add --local to run the sweep without a server"
        )


def create(sweep: Sweep, console: Console) -> str:
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


def join(path: str, count: int | None) -> None:
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
