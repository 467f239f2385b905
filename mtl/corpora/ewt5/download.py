"""The upstream files of EWT-5: repositories, pinned commits, and a download verified by git blob ids."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import pooch
import requests
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mtl.errors import InputError
from mtl.files import check_folder_place

GITHUB = "https://raw.githubusercontent.com/{repository}/{commit}/{path}"


def download_ewt5(
    folder: Path,
    url: str = GITHUB,
    files: Sequence[UpstreamFile] | None = None,
    retries: int = 3,
    workers: int = 8,
    console: Console | None = None,
) -> Path:
    """Download every file of the manifest that `folder` lacks, and verify all of them; returns `folder`.

    Verified files are kept, so that an interrupted download resumes. A file gets its name only when it is
    complete and verified. `url` is a template of {repository}, {commit} and {path}. Raises `InputError` for a
    file that cannot be fetched or is not the pinned one.
    """
    check_folder_place(folder)
    wanted = manifest() if files is None else list(files)
    missing = [file for file in wanted if not _verified(folder, file)]
    columns = TextColumn("EWT-5 {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # it would print two lines for each of a thousand files
    try:
        with Progress(*columns, console=console) as progress, ThreadPoolExecutor(workers) as pool:
            bar = progress.add_task("download", total=len(wanted), completed=len(wanted) - len(missing))
            fetches = {pool.submit(_fetch, folder, url, file, retries): file for file in missing}
            try:
                for fetch in as_completed(fetches):
                    fetch.result()
                    progress.advance(bar)
            except (ValueError, OSError) as error:  # requests' errors are OSErrors
                pool.shutdown(wait=True, cancel_futures=True)
                raise InputError(
                    f"{fetches[fetch].path}: {error}; verified files stay in {folder}: "
                    "run again to resume, or name the files with --source"
                ) from error
    finally:
        logger.setLevel(level)
    return folder


def _verified(folder: Path, file: UpstreamFile) -> bool:
    """Whether the pinned file is there; a file with other content is deleted."""
    path = folder / file.path
    if path.is_file() and git_blob_id(path) != file.blob:
        path.unlink()
    return path.is_file()


def _fetch(folder: Path, url: str, file: UpstreamFile, retries: int) -> None:
    address = url.format(repository=file.repository, commit=file.commit, path=file.path.partition("/")[2])
    # The downloader verifies, since git's ids are not hashes of the content alone.
    registry = {file.path: None}
    store = pooch.create(
        path=folder, base_url="", registry=registry, urls={file.path: address}, retry_if_failed=retries
    )
    store.fetch(file.path, downloader=_VerifiedDownload(file.blob))


class _VerifiedDownload:
    """A pooch downloader that accepts only the content with one git blob id."""

    def __init__(self, blob: str) -> None:
        self.blob = blob

    def __call__(self, url: str, output_file: str, pooch_: pooch.Pooch) -> None:
        try:
            # pooch's own HTTPDownloader leaves the connection open when the download fails
            with requests.get(url, stream=True, timeout=30) as response, Path(output_file).open("wb") as file:
                response.raise_for_status()
                file.writelines(response.iter_content(1 << 16))
        except requests.RequestException as error:
            raise requests.RequestException(f"{url} failed ({type(error).__name__}: {error})") from error
        blob = git_blob_id(Path(output_file))
        if blob != self.blob:
            raise ValueError(f"{url} gave the git blob {blob}, where {self.blob} is pinned")


LICENCE = "CC BY-SA 4.0"

UPSTREAM = {
    "UD_English-EWT": {
        "repository": "UniversalDependencies/UD_English-EWT",
        "commit": "15d613d8447b3478787d4c278730a1e48a945efb",
    },
    "UNER_English-EWT": {
        "repository": "UniversalNER/UNER_English-EWT",
        "commit": "8ed072de2fd24022cc62458997fe96a8fe191ea4",
        # The release drops typed O and OTH spans; this earlier train file, built on here, still has them.
        "commit of en_ewt-ud-train.iob2": "0c7ce0debb13a7d304da656f16309397e8ff36ef",
    },
    "propbank-release": {
        "repository": "propbank/propbank-release",
        "commit": "4abade0b53ce4a181e1d98b3518101c1a44d395a",
    },
}


class UpstreamFile(NamedTuple):
    """An upstream file: its path (the repository's folder, then the path within it) and its git blob id."""

    path: str
    blob: str

    @property
    def repository(self) -> str:
        return UPSTREAM[self.path.partition("/")[0]]["repository"]

    @property
    def commit(self) -> str:
        folder, _, path = self.path.partition("/")
        return UPSTREAM[folder].get(f"commit of {path}", UPSTREAM[folder]["commit"])


def manifest() -> list[UpstreamFile]:
    """All files that the build reads, and their licences."""
    text = resources.files("mtl.corpora.ewt5").joinpath("ewt5_manifest.txt").read_text(encoding="utf-8")
    return [UpstreamFile(path, blob) for blob, _, path in (line.partition(" ") for line in text.splitlines())]


def git_blob_id(path: Path) -> str:
    """The id under which git stores a file's content: sha1 over `blob LENGTH`, a zero byte, the content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
