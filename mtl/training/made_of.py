"""What a run is made of: what its result depends on besides its configuration, and its process."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtl.config.effective import plain
from mtl.config.schema import GatesConfig, TrainConfig
from mtl.corpora.sources import corpus_fingerprints
from mtl.files import fingerprint
from mtl.heads.gate_file import masks_fingerprint
from mtl.models.known_encoders import encoder_files
from mtl.models.mask_file import check_masks
from mtl.runs.compare.settings import recorded_origins
from mtl.runs.folder.content import draw_of
from mtl.runs.folder.provenance import git_revision, versions
from mtl.runs.folder.run import Run


def made_of(config: TrainConfig, corpus: str, masks: str | None, encoder: str | None) -> dict[str, Any]:
    """What a result depends on besides the configuration, and the process that made it.

    `corpus`, `masks` and `encoder` are fingerprints; the last two are `None` where the run has no such files.
    """
    where_known = {
        "draw": draw_of(Path(str(config.gates.masks))) if config.pruning == "fixed" else None,
        "heads_kept": None if config.init_from is None else _heads_kept(Path(config.init_from)),
        "masks_fingerprint": masks,
        "encoder_fingerprint": encoder,
    }
    return {
        "seed": config.seed,
        "started": now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "versions": versions(),
        "git": git_revision(),
        "corpus_fingerprint": corpus,
        "corpus_fingerprints": corpus_fingerprints(config.corpus, config.chosen()),
        "origins": recorded_origins(plain(dataclasses.asdict(config))),
    } | {key: value for key, value in where_known.items() if value is not None}


def first_recorded(run: Run) -> dict[str, Any]:
    """What the run recorded of other runs when it first started; they may be gone when it is resumed."""
    return {key: value for key, value in run.status().items() if key in ("origins", "draw", "heads_kept")}


def masks_of(gates: GatesConfig, tasks: Sequence[str]) -> str:
    """The fingerprint of the masks that a run with fixed masks is given."""
    return masks_fingerprint(check_masks(Path(str(gates.masks)), gates.scope, tasks))


def encoder_of(name: str) -> str | None:
    """The fingerprint of a local encoder's files; `None` for others, whose name says what they are."""
    paths = encoder_files(name)
    return fingerprint(paths) if paths else None


def now() -> str:
    """The time in UTC, as records have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _heads_kept(source: Path) -> int | None:
    """How many heads the run to start from has, if it was cut."""
    run = Run.of_model(source) or Run(source)
    return run.status().get("heads_kept") if (run.folder / "status.json").is_file() else None
