"""The encoder that runs started from."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtl.errors import InputError
from mtl.runs.compare.origins import CircularError, following
from mtl.runs.folder.content import Content
from mtl.runs.folder.run import Run


def encoder_of(run: Run) -> Content:
    """The encoder from which a run started, directly or through other runs."""
    with following(run):
        config = run.config()
        source = config.get("init_from")
        if source and (Path(source) / "config.yaml").exists():
            with contextlib.suppress(CircularError):
                return encoder_of(Run.open(source))
        return Content(encoder_in(config), run.status().get("encoder_fingerprint"))


def encoder_in(config: Mapping[str, Any]) -> str:
    """The encoder that a configuration names; for a model from scratch, its architecture."""
    architecture = config.get("seq2seq", {}).get("architecture")
    return f"{architecture} from scratch" if architecture else str(config["encoder"]["name"])


def check_encoders(encoders: Mapping[str, Content]) -> None:
    """Raise `InputError` if the runs (the keys) have more than one encoder (the values)."""
    first = next(iter(encoders.items()), None)
    for run, encoder in encoders.items():
        if first is not None and encoder.another_encoder(first[1]):
            places = [f"{name} of {of.place}" for name, of in (first, (run, encoder))]
            files = ", whose files differ" if encoder.place == first[1].place else ""
            raise InputError(
                f"runs of different encoders: {', '.join(places)}{files}; choose runs of one encoder"
            )
