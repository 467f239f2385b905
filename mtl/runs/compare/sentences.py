"""The sentences that each task of a run is trained and scored on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mtl.config.effective import reference
from mtl.config.instances import kind_of
from mtl.config.schema import Files
from mtl.runs.folder.content import Content

_SPLITS = ("train", "dev", "test")


def sentences_of(
    config: Mapping[str, Any], tasks: Sequence[str], status: Mapping[str, Any]
) -> dict[str, Any]:
    """The sentences of each task, by key.

    Older runs have one fingerprint over the files of all their tasks. If all tasks read the same files, it is
    the fingerprint of each. Otherwise it only says whether two runs of the same tasks had the same files.
    """
    instances = config.get("instances")
    read = [name for name in tasks if kind_of(name, instances).layers] or list(tasks)
    sources = {name: _source_of(config, name) for name in read}
    digests, whole = status.get("corpus_fingerprints"), status.get("corpus_fingerprint")
    together = len({place for place, _, _ in sources.values()}) == 1
    values: dict[str, Any] = {}
    for name, (place, options, exact) in sources.items():
        digest = (digests or {}).get(name) or (whole if together and exact else None)
        values[f"corpus.{name}"] = Content(place, digest and f"{digest}{options}")
    if whole and any(content.digest is None for content in values.values()):
        places = ", ".join(dict.fromkeys(place for place, _, _ in sources.values()))
        values[f"corpus.{'+'.join(tasks)}"] = Content(places, whole)
    return values


def _source_of(config: Mapping[str, Any], task: str) -> tuple[str, str, bool]:
    """Where a task's sentences come from, how they are read, and whether that is certain.

    It is not if both `corpus.files` and a folder are given: then the format decides, which is not known here.
    """
    corpus = config.get("corpus") or {}
    own = corpus.get(task) or (corpus.get("instances") or {}).get(task)
    files = own or corpus.get("files")
    folder = corpus.get("path", reference().corpus.path)
    if not isinstance(files, Mapping):
        return str(files or folder), "", True
    plain = dataclasses.asdict(Files())
    options = {key: value for key, value in files.items() if value != plain.get(key) and key not in _SPLITS}
    named = {split: files[split] for split in _SPLITS if files.get(split) is not None}
    place = ", ".join(f"{key}={value}" for key, value in (named | options).items())
    exact = bool(own) or folder is None
    return place if exact else f"{place} or {folder}", repr(sorted(options.items())) if options else "", exact
