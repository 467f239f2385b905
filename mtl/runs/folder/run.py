"""A training run's folder on disk."""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib.metadata
import io
import itertools
import json
import pickle
import platform
import re
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import yaml

from mtl.config.effective import counting_settings, different_keys, is_place
from mtl.config.presets import completed
from mtl.config.yaml_file import dump
from mtl.errors import InputError
from mtl.files import checksum, left_beside, recover_folder, remove_temporary_files, write_json, write_text
from mtl.workers.lease import changing

_PACKAGES = ("torch", "transformers", "pytorch-lightning", "supar", "numpy", "mtl-heads")

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C is some ten times as fast."""
_SETTLED = 2.0
"""Seconds after which a file's time of change tells it from every later one, as coarse clocks do not."""


SIGNATURES = "signatures"
"""The key of metrics.json beside the splits: by task and score how it was counted."""

_LASTING = (
    "config.yaml", "metrics.json", "history.csv", "gates.parquet", "importance.parquet", "model/model.json",
)  # fmt: skip
"""Files that change no more once a run has ended."""
_MARK = "of_model"
_FIX = "put back an undamaged copy, or train again under another name"
_START, _END = "---\n", "...\n"
_KEYS = (
    "name", "runs", "overwrite", "seed", "tasks", "max_epochs", "patience", "evaluate_every", "pruning",
    "init_from", "corpus", "encoder", "batch", "optimizer", "balancer", "gates", "trainer", "wandb",
)  # fmt: skip
"""The keys that every version of `mtl train` has written."""


@dataclass(frozen=True)
class Run:
    """The files of one run, from which everything about it is read."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """An existing run.

        Raises `InputError` if there is none, if its configuration is truncated, and if a file of a run that
        has ended was replaced since.
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
        """The run as notebooks show it: what was trained on what, and the scores of its model."""
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
        """The run whose kept model is in the folder; `None` for a model that was saved elsewhere."""
        run = cls(model.parent)
        return run if run.model == model and (run.folder / "config.yaml").exists() else None

    @property
    def model(self) -> Path:
        """The folder of the model that the run keeps: the best on dev, or the last (`TrainConfig.keep`)."""
        return self.folder / "model"

    @property
    def resume_checkpoint(self) -> Path:
        """Lightning's checkpoint from which training resumes."""
        return self.folder / "checkpoints" / "last.ckpt"

    def config(self) -> dict[str, Any]:
        """The whole configuration, as parsed and `completed`; raises `InputError` if the file is damaged."""
        return completed(mapping_of(self.folder / "config.yaml", "YAML", _yaml))

    def status(self) -> dict[str, Any]:
        """State, seed, versions, device, git revision and corpus fingerprint.

        Raises `InputError` if the file is damaged.
        """
        path = self.folder / "status.json"
        return mapping_of(path, "JSON", json.loads) if path.exists() else {"state": "new"}

    def derivation(self) -> str:
        """How this run was made from another: `cut` (mtl prune), `collaborative 256` (mtl collaborate).

        Such a run has a model and scores, but no history and no masks. Empty for a run that was trained.
        """
        return derivation_in(self.status())

    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Per split and task the scores of the kept model; raises `InputError` if the file is damaged."""
        metrics = mapping_of(self.folder / "metrics.json", "JSON", json.loads)
        return {split: scores for split, scores in metrics.items() if split != SIGNATURES}

    @property
    def lease(self) -> Path:
        """The lease of the process that trains in the folder; beside it, since the folder may be replaced."""
        return self.folder.with_name(f".{self.folder.name}.lease")

    def recover(self) -> None:
        """Clean up after a process that was killed here; only for the holder of the lease."""
        recover_folder(self.model)
        remove_temporary_files(self.folder)
        if self.resume_checkpoint.parent.is_dir():
            for leftover in left_beside(self.resume_checkpoint):
                leftover.unlink(missing_ok=True)

    def holds(
        self,
        config: Mapping[str, Any],
        corpus: str,
        overwrite: bool = False,
        masks: str | None = None,
        encoder: str | None = None,
    ) -> bool:
        """Whether the folder holds a run with this configuration and these fingerprints.

        `corpus`, `masks` and `encoder` (a local one) count by their content, wherever they lie and however
        their paths are spelt; so does the run that training starts from.

        Raises `InputError` for another run in it, unless `overwrite` allows replacing it.
        """
        if not (self.folder / "config.yaml").exists():
            if overwrite and self.folder.exists() and any(self.folder.iterdir()):
                raise InputError(
                    f"{self.folder} is not a run folder (no config.yaml): overwrite=true deletes runs only; "
                    "give another --name"
                )
            return False
        old, status = self.config(), self.status()
        compared = {
            "corpus": "corpus_fingerprint" in status,
            "gates": "masks_fingerprint" in status,
            "encoder": encoder is not None and "encoder_fingerprint" in status,
        }  # by what lies at their places
        differing = [
            key
            for key in different_keys(old, config)
            if not (is_place(key) or key == "encoder.name")
            or not (compared.get(key.split(".")[0]) or _one_place(key, old, config))
        ]
        if differing and all(map(is_place, differing)):
            raise InputError(
                f"{self.folder} holds a run with {', '.join(differing)} at another place: put what was there "
                "back, or give another --name"
            )
        if differing:
            problem = (
                f"{self.folder} holds a run with another configuration ({', '.join(differing[:5])}"
                f"{', …' if len(differing) > 5 else ''})"
            )
        elif status.get("encoder_fingerprint", encoder) != encoder:
            problem = f"{self.folder} holds a run of another encoder: its files were changed since it started"
        elif status.get("corpus_fingerprint", corpus) != corpus:
            problem = f"{self.folder} holds a run on other sentences: the corpus was changed since it started"
        elif status.get("masks_fingerprint", masks) != masks:
            problem = f"{self.folder} holds a run under other masks: gates.masks was changed since it started"
        else:
            return True
        if not overwrite:
            raise InputError(f"{problem}: give another --name; --overwrite=true would replace that run")
        return False

    def create(self, config: Mapping[str, Any]) -> None:
        """Make the folder with the configuration; no run may be there (see `put_aside`).

        The file begins and ends with YAML's own marks (`---`, `...`), so that one that was cut off shows.
        """
        write_text(self.folder / "config.yaml", f"{_START}{dump(dict(config))}{_END}")

    @property
    def replaced(self) -> Path:
        """Where replaced runs are kept until the new run has finished."""
        return self.folder.parent / ".replaced" / self.folder.name

    def put_aside(self) -> Path | None:
        """Move the run that is in the folder out of the way; returns where to, `None` if there is none.

        It is kept until the new run has finished, since that one may run out of memory in its first step.
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
        with contextlib.suppress(OSError):  # other runs have theirs there
            self.replaced.parent.rmdir()

    def update_status(self, values: Mapping[str, Any]) -> None:
        """Change some entries of the status."""
        with changing(self.folder / "status.json"):
            write_json(self.folder / "status.json", {**self.status(), **values})

    def finish(self, values: Mapping[str, Any]) -> None:
        """Change some entries of the status, and record what the files are that change no more."""
        files = {name: _content(path) for name in _LASTING if (path := self.folder / name).is_file()}
        self.update_status({**values, "files": files})

    def _require_own_files(self) -> None:
        try:
            recorded = self.status().get("files", {})
        except InputError:
            return  # who reads the status says what is wrong
        for name, content in recorded.items():
            path = self.folder / name
            if path.is_file() and _content(path) != content:
                raise InputError(
                    f"{path} is not what it was when the run ended, or the status.json beside it is of "
                    f"another run: {_FIX}"
                )
        mark = mark_of(self.folder).get(_MARK)
        for path in [*self.folder.glob("*.parquet"), *self.folder.glob("sentence_counts/*.parquet")]:
            if mark is not None and _metadata(path).get(_MARK, mark) != mark:
                raise InputError(
                    f"{path} was made with the model of another run: put its own back, or delete it"
                )

    def add_start(self, values: Mapping[str, Any]) -> None:
        """Record that a process starts or resumes the run: time, machine, versions and code.

        The status holds these values of the last process, and in `starts` those of each.
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
    """What tables on the model of a trained run carry along, so that one of another run is found.

    Empty for a folder without such a model.
    """
    described = folder / "model" / "model.json"
    try:
        trained = Run(folder).status().get("trained") and described.is_file()
    except InputError:
        return {}
    return {_MARK: checksum(described)} if trained else {}


def _metadata(path: Path) -> dict[str, str]:
    """The texts in a parquet file; none if it cannot be read, which its readers say."""
    import polars as pl

    from mtl.probes.tables.table_files import read_metadata

    try:
        return read_metadata(path)
    except (OSError, pl.exceptions.PolarsError):
        return {}


def _content(path: Path) -> str:
    """What a file of a run holds, as a short number; of a configuration only what makes the run what it is.

    Raises `InputError` for a configuration that cannot be read.
    """
    if path.name != "config.yaml":
        return checksum(path)
    counting = sorted(counting_settings(mapping_of(path, "YAML", _yaml)).items())
    return f"{zlib.crc32(json.dumps(counting, default=str).encode()):08x}"


def derivation_in(status: Mapping[str, Any]) -> str:
    """How the run with this status was made from another; empty for a run that was trained."""
    steps = ["cut"] if "cut_from" in status else []
    if "collaborated_from" in status:
        steps.append(f"collaborative {status['components']}")
    return ", ".join(steps)


def _one_place(key: str, *configs: Mapping[str, Any]) -> bool:
    """Whether a key's value in two configurations is one file or folder, spelt in two ways."""
    places: list[Path] = []
    for config in configs:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if not isinstance(value, str) or not Path(value).exists():
            return False
        places.append(Path(value).resolve())
    return places[0] == places[1]


def is_probed_encoder(folder: Path) -> bool:
    """Whether a folder holds no run, but what `mtl probe` found in an encoder before training."""
    return (folder / "heads.parquet").is_file() and not (folder / "config.yaml").exists()


def _yaml(text: str) -> Any:
    return yaml.load(text, Loader=_LOADER)


def mapping_of(path: Path, language: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    """The mapping in a file of a run; raises `InputError` with the file's name if it is damaged.

    A report asks for every configuration a dozen times: a file that has not changed is parsed once.
    """
    with contextlib.suppress(OSError):
        now = path.stat()
        if time.time() - max(now.st_mtime, now.st_ctime) > _SETTLED:
            stamp = now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
            parsed: dict[str, Any] = pickle.loads(_packed(path, language, parse, stamp))
            return parsed
    return _mapping_of(path, language, parse)


@functools.lru_cache(maxsize=1024)
def _packed(path: Path, language: str, parse: Callable[[str], Any], stamp: tuple[int, ...]) -> bytes:
    """The mapping in a file with this stamp, packed, so that nobody changes what others get."""
    return pickle.dumps(_mapping_of(path, language, parse))


def _mapping_of(path: Path, language: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    text = whole_text(path)
    try:
        values = parse(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is no {language} ({' '.join(str(error).split())}): {_FIX}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no keys: {_FIX}")
    return values


def whole_text(path: Path) -> str:
    """The text of a file of a run; raises `InputError` for one that cannot be read or that lacks its end.

    YAML that was cut off between two lines is still YAML. A configuration that was written whole ends with
    the mark that `Run.create` puts there. Older ones have no marks: they begin with the key `name` and have
    the keys that every version wrote.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text (byte {error.start}): {_FIX}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): {_FIX}") from error
    if not text.strip():
        raise InputError(f"{path} is empty: {_FIX}")
    if path.name != "config.yaml":
        return text
    if text.startswith(_START) and not text.endswith(_END):
        lines = text.count("\n") + 1
        raise InputError(f"{path} was cut off (it ends in line {lines}, without the mark '...'): {_FIX}")
    keys = re.findall(r"^(\w+):", text, re.MULTILINE)
    lacking = [key for key in _KEYS if key not in keys]
    if lacking and keys[:1] == ["name"]:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise InputError(f"{path} is not whole (it lacks {', '.join(lacking[:3])}{more}): {_FIX}")
    return text


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    return {"python": platform.python_version()} | {
        package: importlib.metadata.version(package) for package in _PACKAGES
    }


def git_revision() -> str | None:
    """The commit of the code that runs, `-dirty` if it was changed since; `None` outside of a checkout."""
    here = Path(__file__).parent
    try:
        result = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
