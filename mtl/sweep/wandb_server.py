"""A sweep that W&B's server conducts: made, joined, and carried out by W&B's own agent.

The agent runs the file's `command`, that is `mtl train`, in a process per trial; `mtl train` knows by its
environment that an agent has called it (`mtl.sweep.agent`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from mtl.errors import InputError
from mtl.sweep.file import Sweep


@contextmanager
def _reached() -> Iterator[None]:
    """Have what W&B's server, or the way to it, refuses said in one line."""
    import requests
    import wandb

    try:
        yield
    except (wandb.errors.Error, requests.RequestException) as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"W&B: {said}; add --local to carry a sweep out without a server") from error


def require_key(environment: Mapping[str, str]) -> None:
    """Raise `InputError` where W&B has no key or is told to make no connection."""
    mode = environment.get("WANDB_MODE", "")
    if mode in ("offline", "disabled", "dryrun") or environment.get("WANDB_DISABLED"):
        raise InputError(
            f"W&B is {mode or 'disabled'} here; add --local to carry the sweep out without a server"
        )
    import wandb

    with _reached():
        known = wandb.login(prompt=False)
    if not known:
        raise InputError(
            "no W&B key: 'wandb login' stores one; or add --local to carry the sweep out without a server"
        )


def create(sweep: Sweep, console: Console) -> str:
    """Make the sweep on the server; returns ENTITY/PROJECT/ID and says how others may join."""
    import wandb

    entity, project = sweep.entity, sweep.project
    with _reached():
        identity = wandb.sweep(sweep.given, entity=entity, project=project)
        if entity is None or project is None:
            api = wandb.Api()
            entity = entity or api.default_entity
            project = project or api.settings.get("project") or "uncategorized"
    path = f"{entity}/{project}/{identity}"
    console.print(f"sweep {path}", highlight=False, markup=False, soft_wrap=True)
    console.print("more agents, on any machine with the same files:", highlight=False)
    console.print(f"  mtl sweep --join {path}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"  wandb agent {path}", highlight=False, markup=False, soft_wrap=True)
    return path


def join(path: str, count: int | None) -> None:
    """Carry out trials of a sweep, as many as it has or `count`, until it ends."""
    import wandb

    parts = path.split("/")
    if len(parts) != 3 or not all(parts):
        raise InputError(f"--join={path}: give ENTITY/PROJECT/ID, as 'mtl sweep' has printed it")
    # The agent calls `mtl`, which must be this one.
    here = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PATH")])])
    with _reached():
        wandb.agent(parts[2], entity=parts[0], project=parts[1], count=count, forward_signals=True)
