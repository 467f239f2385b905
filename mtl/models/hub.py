"""Joint models on the hub: found, downloaded and uploaded; failures there become one-line errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from mtl.errors import InputError
from mtl.features import added
from mtl.heads.arguments import path_or_hub_name, refuse_revision, revision_of
from mtl.runs.folder.run import ENCODER_FILES, MODEL_FILE


def model_folder(
    name: Any,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
) -> Path:
    """The folder with a joint model's files: of a run, of a saved model, or of a downloaded repository.

    A string that is no folder here names a repository; a `Path` never does. The files of a repository are all
    of one commit. Raises `InputError` for a folder or repository that does not exist or holds no joint model,
    and for a repository that cannot be reached.
    """
    if not isinstance(name, str) or Path(name).exists():
        folder = path_or_hub_name(name, "name")
        refuse_revision(folder, revision)
        for place in (folder, folder / "model"):
            if (place / MODEL_FILE).exists():
                return place
        refuse_exported(folder)
        raise InputError(f"{folder} holds no trained model (no {MODEL_FILE}): use a run's folder")
    revision = revision_of(revision)
    with hub_errors(name, revision, looked_for=True):
        # The weights come after this file: from other repositories nothing large is downloaded.
        described = hf_hub_download(
            name, MODEL_FILE, revision=revision, cache_dir=cache_dir, token=token,
            local_files_only=local_files_only,
        )  # fmt: skip
        downloaded = snapshot_download(
            name, revision=Path(described).parent.name, cache_dir=cache_dir, token=token,
            local_files_only=local_files_only, allow_patterns=[f"*{end}" for end in ENCODER_FILES],
            ignore_patterns=["*/*"],
        )  # fmt: skip
    return Path(downloaded)


def refuse_exported(folder: Path) -> None:
    """Raise `InputError` for a model that only a feature can open, since its weights cannot be trained."""
    for file in added(lambda feature: feature.models):
        if (folder / file).is_file():
            raise InputError(
                f"{folder} holds no trained model, but an exported one ({file}), which only annotates: "
                "use its run's folder; in Python, mtl.load_exported loads it"
            )


def upload(
    folder: Path, name: str, *, message: str, private: bool | None, revision: str | None,
    create_pr: bool, token: str | bool | None,
) -> CommitInfo:  # fmt: skip
    """Commit the files of a folder to a repository on the hub, which is created if necessary.

    Weights in the repository that the folder has no file for are deleted, since loaders would take them for
    the model's. The branch `revision` is created, too, if necessary. Raises `InputError` for what the hub
    refuses.
    """
    api, revision = HfApi(token=token), revision_of(revision)
    with hub_errors(name, revision):
        repository = api.create_repo(name, private=private, exist_ok=True).repo_id
        if revision is not None and not create_pr:
            api.create_branch(repository, branch=revision, exist_ok=True)
        return api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=message, revision=revision,
            create_pr=create_pr, delete_patterns=["*.safetensors", "*.safetensors.index.json"],
        )  # fmt: skip


def holds_model(name: str, revision: str | None) -> bool:
    """Whether a repository on the hub holds a joint model; `False`, too, if it cannot be read.

    Raises `InputError` for any other failure.
    """
    with hub_errors(name, revision):
        try:
            hf_hub_download(name, MODEL_FILE, revision=revision)
        except (EntryNotFoundError, OfflineModeIsEnabled, RepositoryNotFoundError):
            return False
    return True


@contextmanager
def hub_errors(name: str, revision: str | None, looked_for: bool = False) -> Iterator[None]:
    """Turn what the hub's client raises about a repository into an `InputError` of one line.

    `looked_for` says that the name might have been that of a folder, or of a repository in the cache.
    """
    try:
        yield
    except (
        EntryNotFoundError, FileMetadataError, HFValidationError, HTTPError, LocalTokenNotFoundError,
        OfflineModeIsEnabled,
    ) as error:  # fmt: skip
        elsewhere = ""
        if looked_for and isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
            elsewhere = "no such folder, not in the cache of the hub, and "
        elif looked_for and type(error) in (HFValidationError, RepositoryNotFoundError):
            elsewhere = "no such folder, and "
        raise InputError(f"{name}: {elsewhere}{_meaning(error, revision)}") from error


def _meaning(error: Exception, revision: str | None) -> str:
    """What an error of the hub's client says to someone who gave a name."""
    match error:
        case HFValidationError():
            return "not a valid name of a repository on the hub"
        case GatedRepoError():
            return "its owner decides who may read it: accept the conditions on its page, and give your token"
        case RepositoryNotFoundError():
            return (
                "no such repository on the hub that may be read without a token, or with "
                "this one: check the name, or log in ('hf auth login', or token=... in Python)"
            )
        case RevisionNotFoundError():
            return f"the repository has no branch, tag or commit {revision!r}"
        case LocalEntryNotFoundError() | OfflineModeIsEnabled():
            return "the hub cannot be reached or is off (local_files_only, HF_HUB_OFFLINE)"
        case EntryNotFoundError():
            return (
                f"the repository holds no joint model (no {MODEL_FILE}): use one that "
                "JointModel.push_to_hub made"
            )
        case HfHubHTTPError(response=response):
            said = getattr(error, "server_message", None) or response.reason_phrase
            advice = ": use a token that may write there" if response.status_code in (401, 403) else ""
            return f"the hub answers {response.status_code} ({' '.join(str(said).split())}){advice}"
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"the hub cannot be reached ({reason})" if isinstance(error, HTTPError) else reason
