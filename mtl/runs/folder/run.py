"""The folder of a training run on disk: its files, and whether it holds the run that is to be trained.

What a run was given is identified by content and not by place, with the versions it was made with.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib.metadata
import io
import itertools
import json
import os
import pickle
import platform
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from mtl.config.effective import different_keys, is_place, lasting_settings
from mtl.config.keys import shown_key
from mtl.config.parse import dump
from mtl.errors import InputError
from mtl.files import (
    checksum,
    fingerprint,
    left_beside,
    recover_folder,
    remove,
    remove_temporary_files,
    write_json,
    write_text,
)
from mtl.workers.lease import changing

T = TypeVar("T")

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C is about ten times as fast."""
_SETTLED = 2.0
"""Seconds after which any later change of a file also changes its time, even if clocks are coarse."""
FIX = "put back an undamaged copy, or train again under another name"
START, END = "---\n", "...\n"


def while_unchanged(make: Callable[[Path], T]) -> Callable[[Path], T]:
    """A function of a file that is computed again only after the file has changed.

    A report reads every configuration a dozen times.
    """
    known = lru_cache(maxsize=4096)(lambda path, _: make(path))

    def of_file(path: Path) -> T:
        with contextlib.suppress(OSError):
            now = path.stat()
            if time.time() - max(now.st_mtime, now.st_ctime) > _SETTLED:
                return known(path, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns))
        return make(path)

    return of_file


def mapping_in_file(path: Path) -> dict[str, Any]:
    """The mapping in a file of a run; raises `InputError` with the file's name if it is damaged."""
    found: dict[str, Any] = pickle.loads(_packed(path))  # a copy, which the caller may change
    return found


@while_unchanged
def _packed(path: Path) -> bytes:
    text, language = whole_text(path), path.suffix[1:].upper()
    try:
        values = json.loads(text) if language == "JSON" else yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is no {language} ({' '.join(str(error).split())}): {FIX}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no keys: {FIX}")
    return pickle.dumps(values)


def whole_text(path: Path) -> str:
    """The text of a run's file; raises `InputError` if it cannot be read or lacks its end.

    YAML that was cut off between two lines is still YAML. So a whole configuration ends with the mark that
    `Run.create` puts there.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text (byte {error.start}): {FIX}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): {FIX}") from error
    if not text.strip():
        raise InputError(f"{path} is empty: {FIX}")
    if path.name != "config.yaml":
        return text
    if text.startswith(START) and not text.endswith(END):
        lines = text.count("\n") + 1
        raise InputError(f"{path} was cut off (it ends in line {lines}, without the mark '...'): {FIX}")
    return text


SIGNATURES = "signatures"
"""The key of metrics.json beside the splits: by task and score, how it was counted."""

_LASTING = (
    "config.yaml", "metrics.json", "history.csv", "gates.parquet", "importance.parquet", "model/model.json",
)  # fmt: skip
"""Files that no longer change after a run has ended."""
_MARK = "of_model"


@dataclass(frozen=True)
class Run:
    """The files of one run, from which everything about it is read."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """An existing run.

        Raises `InputError` if there is none, if its configuration is truncated, and if a file of a finished
        run has been replaced since.
        """
        folder = Path(folder)
        if not (folder / "config.yaml").exists():
            if (folder / "status.json").is_file() or (folder.is_dir() and not any(folder.iterdir())):
                raise InputError(
                    f"{folder}: its training ended before it wrote a configuration: run its command again"
                )
            why = "no config.yaml" if folder.is_dir() else "there is no such folder"
            raise InputError(f"{folder} is not a run folder ({why}): give a folder that 'mtl train' made")
        whole_text(folder / "config.yaml")
        run = cls(folder)
        run._require_own_files()
        return run

    def _repr_html_(self) -> str:
        """The run as notebooks show it: its tasks, encoder and corpus, and the scores of its model."""
        config, metrics = self.config(), self.metrics() if (self.folder / "metrics.json").exists() else {}
        facts = {
            "run": str(self.folder),
            "state": str(self.status().get("state", "")),
            "tasks": ", ".join(config.get("tasks", ())),
            "encoder": str(config.get("encoder", {}).get("name", "")),
            "corpus": str(config.get("corpus", {}).get("path") or ""),
            "masks": str(config.get("pruning", "")),
        }
        rows = [f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in facts.items() if value]
        rows += [
            f"<tr><th>{escape(f'{split}, {task}')}</th><td>"
            + escape(", ".join(f"{name} {value:.2f}" for name, value in scores.items()))
            + "</td></tr>"
            for split, tasks in metrics.items()
            for task, scores in tasks.items()
        ]
        return f"<table>{''.join(rows)}</table>"

    @classmethod
    def of_model(cls, model: Path) -> Run | None:
        """The run that keeps the model in this folder; `None` for a model that was saved elsewhere."""
        run = cls(model.parent)
        return run if run.model == model and (run.folder / "config.yaml").exists() else None

    @property
    def model(self) -> Path:
        """The folder of the model that the run keeps: the best on dev, or the last (`TrainConfig.keep`)."""
        return self.folder / "model"

    def snapshot(self, number: int, unit: Literal["epoch", "update"] = "epoch") -> Path:
        """The folder of the model after an epoch or update (`TrainConfig.snapshots`)."""
        return self.folder / "snapshots" / f"{unit}-{number}"

    def snapshots(self) -> list[Path]:
        """The folders of the models that are kept besides, in the order of their epochs or updates."""
        found = (self.folder / "snapshots").glob("[eu]*-*")
        return sorted(found, key=lambda path: int(path.name.partition("-")[2]))

    @property
    def resume_checkpoint(self) -> Path:
        """Lightning's checkpoint from which training resumes."""
        return self.folder / "checkpoints" / "last.ckpt"

    def config(self) -> dict[str, Any]:
        """The whole configuration, parsed; raises `InputError` if the file is damaged."""
        path = self.folder / "config.yaml"
        config = mapping_in_file(path)
        if not isinstance(config.get("tasks", []), list):
            raise InputError(f"{path} has no list of tasks: {FIX}")
        return config

    def status(self) -> dict[str, Any]:
        """State, seed, versions, device, git revision and corpus fingerprint.

        Raises `InputError` if the file is damaged.
        """
        path = self.folder / "status.json"
        return mapping_in_file(path) if path.exists() else {"state": "new"}

    def derivation(self) -> str:
        """How this run was made from another: `cut` (mtl prune), or in the words of another command.

        Such a run has a model and scores, but no history and no masks. A run that was trained has ''.
        """
        return derivation_in(self.status())

    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """By split and task, the scores of the kept model; raises `InputError` if the file is damaged."""
        path = self.folder / "metrics.json"
        metrics = {split: scores for split, scores in mapping_in_file(path).items() if split != SIGNATURES}
        try:
            values = [value for tasks in metrics.values() for of in tasks.values() for value in of.values()]
        except AttributeError:
            values = [None]
        if not all(isinstance(value, int | float) for value in values):
            raise InputError(f"{path} holds no scores by split and task: {FIX}")
        return metrics

    @property
    def lease(self) -> Path:
        """The lease of the process that trains here; it is beside the folder, which may be replaced."""
        return self.folder.with_name(f".{self.folder.name}.lease")

    def recover(self) -> None:
        """Clean up after a process that was killed here; only the holder of the lease may call it."""
        recover_folder(self.model)
        remove_temporary_files(self.folder)
        for leftover in (self.folder / "snapshots").glob(".*"):
            remove(leftover)
        if self.resume_checkpoint.parent.is_dir():
            for leftover in left_beside(self.resume_checkpoint):
                leftover.unlink(missing_ok=True)

    def create(self, config: Mapping[str, Any]) -> None:
        """Make the folder with the configuration; there must be no run in it (see `put_aside`).

        The file begins and ends with YAML's own marks (`---`, `...`), so that a truncated file is recognised.
        """
        write_text(self.folder / "config.yaml", f"{START}{dump(dict(config))}{END}")

    def replace_config(self, config: Mapping[str, Any]) -> None:
        """Write another configuration; the record of a finished run's files follows it.

        The record forgets the file first, so that a process killed in between leaves a run that opens.
        """
        files = self.status().get("files")
        if files is not None:
            self.update_status({"files": {name: files[name] for name in files if name != "config.yaml"}})
        self.create(config)
        if files is not None:
            self.update_status({"files": {**files, "config.yaml": _content(self.folder / "config.yaml")}})

    @property
    def replaced(self) -> Path:
        """Where replaced runs are kept until the new run has finished."""
        return self.folder.parent / ".replaced" / self.folder.name

    def put_aside(self) -> Path | None:
        """Move the folder's run out of the way; returns its new place, or `None` if there is no run.

        It is kept until the new run has finished, since that may fail, such as for lack of memory.
        """
        if not (self.folder / "config.yaml").exists():
            return None
        stem = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        paths = (self.replaced / f"{stem}-{number}" for number in itertools.count(1))
        aside = next(path for path in paths if not path.exists())
        aside.parent.mkdir(parents=True, exist_ok=True)
        self.folder.rename(aside)
        return aside

    def remove_replaced(self) -> None:
        """Delete the runs that were put aside for this one."""
        shutil.rmtree(self.replaced, ignore_errors=True)
        with contextlib.suppress(OSError):  # it holds replaced runs of other names
            self.replaced.parent.rmdir()

    def update_status(self, values: Mapping[str, Any]) -> None:
        """Change some entries of the status."""
        with changing(self.folder / "status.json"):
            write_json(self.folder / "status.json", {**self.status(), **values})

    def finish(self, values: Mapping[str, Any]) -> None:
        """Change some entries of the status, and record the content of files that no longer change."""
        files = {name: _content(path) for name in _LASTING if (path := self.folder / name).is_file()}
        self.update_status({**values, "files": files})

    def _require_own_files(self) -> None:
        try:
            recorded = self.status().get("files", {})
        except InputError:
            return  # a reader of the status says what is wrong
        for name, content in recorded.items():
            path = self.folder / name
            if path.is_file() and _content(path) != content:
                raise InputError(
                    f"{path} is not what it was when the run ended, or the status.json beside it is of "
                    f"another run: {FIX}"
                )
        mark = mark_of(self.folder).get(_MARK)
        for path in [*self.folder.glob("*.parquet"), *self.folder.glob("sentence_counts/*.parquet")]:
            if mark is not None and _metadata(path).get(_MARK, mark) != mark:
                raise InputError(
                    f"{path} was made with the model of another run: put its own back, or delete it"
                )

    def add_start(self, values: Mapping[str, Any]) -> None:
        """Record a process that starts or resumes the run: time, machine, versions and code.

        The status holds these values for the last process and, in `starts`, for each process.
        """
        with changing(self.folder / "status.json"):
            status = self.status()
            for ended in ("error", "files"):
                status.pop(ended, None)
            starts = [*status.get("starts", []), dict(values)]
            write_json(
                self.folder / "status.json", {**status, "state": "running", **values, "starts": starts}
            )

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write the scores of the kept model, per split and task."""
        write_json(self.folder / "metrics.json", metrics)

    def write_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write one row per evaluation."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.folder / "history.csv", text.getvalue())


def mark_of(folder: Path) -> dict[str, str]:
    """Metadata of tables about a trained run's model, by which a table of another run is recognised.

    Empty for a folder without such a model.
    """
    described = folder / "model" / "model.json"
    try:
        trained = Run(folder).status().get("trained") and described.is_file()
    except InputError:
        return {}
    return {_MARK: checksum(described)} if trained else {}


@while_unchanged
def _metadata(path: Path) -> dict[str, str]:
    """The texts in a parquet file's metadata; none if it cannot be read, which its readers say."""
    import polars as pl

    from mtl.probes.tables.table_files import read_metadata

    try:
        return read_metadata(path)
    except (OSError, pl.exceptions.PolarsError):
        return {}


@while_unchanged
def _content(path: Path) -> str:
    """A checksum of a run's file; of a configuration, only settings that change the result count.

    Raises `InputError` for a configuration that cannot be read.
    """
    if path.name != "config.yaml":
        return checksum(path)
    counting = sorted(lasting_settings(mapping_in_file(path)).items())
    return f"{zlib.crc32(json.dumps(counting, default=str).encode()):08x}"


def derivation_in(status: Mapping[str, Any]) -> str:
    """How the run with this status was made from another; empty for a run that was trained."""
    steps = ["cut"] if "cut_from" in status else []
    return ", ".join([*steps, *filter(None, [status.get("derivation")])])


def is_probed_encoder(folder: Path) -> bool:
    """Whether a folder holds no run, but the measures of `mtl probe` on an encoder before training."""
    return (folder / "heads.parquet").is_file() and not (folder / "config.yaml").exists()


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
            f"{run.folder} holds a run with {', '.join(map(shown_key, differing))} at another "
            "place: put what was there back, or give another --name"
        )
    if differing:
        problem = (
            f"with another configuration ({', '.join(map(shown_key, differing[:5]))}"
            f"{', …' if len(differing) > 5 else ''})"
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


MODEL_FILE = "model.json"
"""The file that a joint model's folder is known by."""
ENCODER_FILES = (".json", ".safetensors", ".bin", ".txt", ".model")
"""Endings of the files from which a transformer and its tokenizer are loaded."""


@dataclass(frozen=True)
class Content:
    """Files, or another run, from which a run was made."""

    place: str
    """Where it was, or a description of it."""
    digest: str | None = None
    """A hash of what it held; `None` if it was not recorded, so that only the place is known."""

    def __repr__(self) -> str:
        return repr(self.digest or self.place)

    def differs(self, other: Content) -> bool:
        """Whether the contents differ or, if one of them is unknown, the places."""
        if self.digest and other.digest:
            return self.digest != other.digest
        return self.place != other.place

    def another_encoder(self, other: Content) -> bool:
        """Whether two encoders differ; of one that was not recorded, the folder counts as it is now."""
        return self.differs(other) and self._with_digest().differs(other._with_digest())

    def _with_digest(self) -> Content:
        folder = Path(self.place)
        if self.digest or not folder.is_dir():
            return self
        return Content(self.place, fingerprint(files_of_encoder(folder)))


def digest_of(value: object) -> str:
    """The sha256 of plain values."""
    return hashlib.sha256(repr(value).encode()).hexdigest()


def place_now(path: str | Path, config: Mapping[str, Any], folder: Path | None) -> Path:
    """Where a file or folder that a run's configuration names is now.

    If it is gone, it may have been moved together with the run, whose folder is now `folder`: then it is at
    the same place relative to the run.
    """
    recorded = Path(path)
    if recorded.exists() or folder is None or not config.get("runs") or not config.get("name"):
        return recorded
    run = Path(config["runs"]) / str(config["name"])
    if run.is_absolute() != recorded.is_absolute():
        return recorded
    moved = Path(os.path.normpath(folder / os.path.relpath(recorded, run)))
    return moved if moved.exists() else recorded


def files_of_encoder(folder: Path) -> list[Path]:
    """The configuration, weights and tokenizer of an encoder in a folder."""
    return sorted(path for path in folder.iterdir() if path.suffix in ENCODER_FILES)


_PACKAGES = ("torch", "transformers", "pytorch-lightning", "supar", "numpy", "mtl-heads")


def version() -> str:
    """The version of this package. A development version is one version, whatever its commit."""
    return importlib.metadata.version("mtl-heads")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    return {"python": platform.python_version()} | {
        package: importlib.metadata.version(package) for package in _PACKAGES
    }


def git_revision() -> str | None:
    """The commit of the running code, with `-dirty` if files were changed; `None` outside of a checkout."""
    here = Path(__file__).parent
    try:
        result = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
