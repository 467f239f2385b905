"""Whether a folder already holds the run that is about to be trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtl.config.effective import different_keys, is_place
from mtl.errors import InputError
from mtl.runs.folder.run import Run


def holds(
    run: Run,
    config: Mapping[str, Any],
    corpus: str,
    overwrite: bool = False,
    masks: str | None = None,
    encoder: str | None = None,
) -> bool:
    """Whether the folder holds a run with this configuration and these fingerprints.

    `corpus`, `masks` and `encoder` (a local one) are fingerprints: these count by content, wherever they are
    and however their paths are spelt. The run that training starts from counts by its place, which may be
    spelt in any way.

    Raises `InputError` if it holds another run, unless `overwrite` allows replacing that.
    """
    if not (run.folder / "config.yaml").exists():
        if overwrite and run.folder.exists() and any(run.folder.iterdir()):
            raise InputError(
                f"{run.folder} is not a run folder (no config.yaml): overwrite=true deletes runs only; "
                "give another --name"
            )
        return False
    old, status = run.config(), run.status()
    compared = {
        "corpus": "corpus_fingerprint" in status,
        "gates": "masks_fingerprint" in status,
        "encoder": encoder is not None and "encoder_fingerprint" in status,
    }  # by the content of what is at their places
    differing = [
        key
        for key in different_keys(old, config)
        if not (is_place(key) or key == "encoder.name")
        or not (compared.get(key.split(".")[0]) or _one_place(key, old, config))
    ]
    if differing and all(map(is_place, differing)):
        raise InputError(
            f"{run.folder} holds a run with {', '.join(differing)} at another place: put what was there "
            "back, or give another --name"
        )
    if differing:
        problem = (
            f"with another configuration ({', '.join(differing[:5])}{', …' if len(differing) > 5 else ''})"
        )
    elif status.get("encoder_fingerprint", encoder) != encoder:
        problem = "of another encoder: its files were changed since it started"
    elif status.get("corpus_fingerprint", corpus) != corpus:
        problem = "on other sentences: the corpus was changed since it started"
    elif status.get("masks_fingerprint", masks) != masks:
        problem = "under other masks: gates.masks was changed since it started"
    else:
        return True
    if not overwrite:
        raise InputError(
            f"{run.folder} holds a run {problem}: give another --name; "
            "--overwrite=true would replace that run"
        )
    return False


def _one_place(key: str, *configs: Mapping[str, Any]) -> bool:
    """Whether a key names the same file or folder in two configurations, if spelt in two ways."""
    places: list[Path] = []
    for config in configs:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if not isinstance(value, str) or not Path(value).exists():
            return False
        places.append(Path(value).resolve())
    return places[0] == places[1]
