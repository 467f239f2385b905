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
from mtl.config.schema import TrainConfig
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
    """What a result depends on besides the configuration, and the process that made it."""
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
        **({} if (draw := _draw(config)) is None else {"draw": draw}),
        **({} if (heads := _heads_kept(config)) is None else {"heads_kept": heads}),
        **({} if masks is None else {"masks_fingerprint": masks}),
        **({} if encoder is None else {"encoder_fingerprint": encoder}),
    }


def first_recorded(run: Run) -> dict[str, Any]:
    """What other runs had made when this one started first, which may be gone when it is resumed."""
    return {key: value for key, value in run.status().items() if key in ("origins", "draw", "heads_kept")}


def masks_of(config: TrainConfig, tasks: Sequence[str]) -> str | None:
    """The fingerprint of the masks that the run is given; `None` if it is given none."""
    if config.pruning != "fixed":
        return None
    return masks_fingerprint(check_masks(Path(str(config.gates.masks)), config.gates.scope, tasks))


def encoder_of(config: TrainConfig) -> str | None:
    """The fingerprint of a local encoder's files; `None` for others, whose name says what they are."""
    paths = encoder_files(config.encoder.name)
    return fingerprint(paths) if paths else None


def now() -> str:
    """The time in UTC, as records have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _draw(config: TrainConfig) -> dict[str, Any] | None:
    """How the masks that the run is given were drawn; `None` if they were not."""
    return draw_of(Path(str(config.gates.masks))) if config.pruning == "fixed" else None


def _heads_kept(config: TrainConfig) -> int | None:
    """How many heads the run has that this one starts from, if that one was cut."""
    folder = None if config.init_from is None else Path(config.init_from)
    if folder is None or not (folder / "status.json").is_file():
        return None
    return Run.open(folder).status().get("heads_kept")
