"""What a run was given that other runs had made: models, masks and the files of parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtl.config.part import starts
from mtl.errors import InputError
from mtl.runs.compare.keys import AFTER_TRAINING, MEASURING, SOURCE_OF_MASKS, within
from mtl.runs.folder.content import Content, digest_of, draw_of, drawn_content, place_now
from mtl.runs.folder.run import Run

if TYPE_CHECKING:
    from mtl.runs.compare.settings import Settings

GONE = "a run that is gone"
_CHAIN: ContextVar[frozenset[Path]] = ContextVar("chain", default=frozenset())
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged run raises; `InputError` is a `ValueError`."""


class CircularError(InputError):
    """A run started from one that was later replaced by a run that started from it: its source is gone."""


@contextlib.contextmanager
def following(run: Run) -> Iterator[None]:
    """Read in the block what a run was made from; raises `CircularError` if this is going on already."""
    chain, place = _CHAIN.get(), run.folder.resolve()
    if place in chain:
        raise CircularError(f"{run.folder} and the run that it started from start from each other")
    token = _CHAIN.set(chain | {place})
    try:
        yield
    finally:
        _CHAIN.reset(token)


def origins_of(
    config: Mapping[str, Any],
    values: Mapping[str, Any],
    status: Mapping[str, Any],
    folder: Path | None,
    read: Callable[[Run], Settings],
) -> dict[str, Any]:
    """By key, what other runs made, as far as it can be found now; `read` gives the settings of such a run.

    `values` are the run's own values by dotted key.
    """
    found: dict[str, Any] = {}
    source = config.get("init_from")
    path = None if source is None else place_now(source, config, folder)
    if config.get("pruning", "none") in AFTER_TRAINING:
        found[SOURCE_OF_MASKS] = path and _run(path, read)
        # Apart from its masks, it starts from what that run started from; unknown if that run is gone.
        with contextlib.suppress(*UNREADABLE):
            found["init_from"] = None if path is None else read(Run.open(path)).values["init_from"]
    else:
        found["init_from"] = path and _run(path, read)
    if isinstance(masks := values.get("gates.masks"), str):
        found["gates.masks"] = _masks(place_now(masks, config, folder), status, read)
    for start in starts():
        for key in start.files:
            if isinstance(file := values.get(key), str):
                found[key] = Content(file, start.content(place_now(file, config, folder)))
    return found


def _masks(path: Path, status: Mapping[str, Any], read: Callable[[Run], Settings]) -> Content:
    """The masks that a run was given: those of another run, drawn ones, or those of a file."""
    if (path.parent / "config.yaml").exists():
        return _run(path.parent, read)
    record = status.get("draw") or draw_of(path)
    return Content(str(path), status.get("masks_fingerprint")) if record is None else drawn_content(record)


def _run(folder: Path, read: Callable[[Run], Settings]) -> Content:
    """What the run in a folder is, whatever its name and seed; if the run is gone, only its place."""
    try:
        source = read(Run.open(folder))
    except UNREADABLE:
        return Content(f"{folder}, {GONE}")
    made = [(key, source.values[key]) for key in sorted(source.set_keys) if not within(key, MEASURING)]
    words = [f"{key}={_text(value)}" for key, value in made if not within(key, ("corpus", "encoder"))]
    digest = digest_of((source.tasks, [(key, repr(value)) for key, value in made]))
    return Content(" ".join(["+".join(source.tasks), *words]), digest)


def _text(value: Any) -> str:
    return value.place if isinstance(value, Content) else str(value)
