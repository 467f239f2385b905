"""A sweep on W&B's server, whose trials W&B's own agent runs.

For each trial, the agent runs the file's `command`, `mtl train`, in its own process, which recognises
the agent by its environment (`mtl.commands.train.under_agent`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mtl.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from mtl.sweep.file import Sweep


_WITHOUT = "'mtl sweep SWEEP.yaml --local' runs a sweep without a server"
"""The other way to run a sweep; `--local` is of no use to those who join one of the server's."""


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


def require_key(environment: Mapping[str, str]) -> None:
    """Raise `InputError` if W&B has no API key, or if the environment disables it or sets it offline."""
    mode = environment.get("WANDB_MODE", "")
    if mode in ("offline", "disabled", "dryrun") or environment.get("WANDB_DISABLED"):
        raise InputError(f"W&B is {mode or 'disabled'} here; {_WITHOUT}")
    import wandb

    with _reached():
        has_key = wandb.login(prompt=False)
    if not has_key:
        raise InputError(f"no W&B key: 'wandb login' stores one; {_WITHOUT}")


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


def join_sweep(path: str, count: int | None) -> None:
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
