"""A corpus as a folder of JSON lines, one file per split, all replaced together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mtl.corpora.formats.jsonl import to_line
from mtl.errors import InputError
from mtl.files import new_folder, whole_file, write_json
from mtl.tasks.sentence import Sentence

PROVENANCE = "provenance.json"


def files_in(folder: Path) -> list[Path]:
    """The files of the corpus in a folder: its splits and `provenance.json`, if there is one."""
    return [*sorted(folder.glob("*.jsonl")), *folder.glob(PROVENANCE)]


def require_folder(folder: Path, where: str, how: str) -> None:
    """Raise `InputError` if a corpus's folder is a file or missing; `where` and `how` frame the message."""
    if folder.is_file():
        raise InputError(f"{where}: a file, not a folder: use the folder of the .jsonl files")
    if not folder.is_dir():
        raise InputError(f"{where}: no such folder{how}")


def split_files(folder: Path) -> list[Path]:
    """The splits of the corpus in a folder; raises `InputError` if there is no such folder or no split."""
    require_folder(folder, str(folder), "; check the path")
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise InputError(
            f"{folder}: no *.jsonl files; make them with 'mtl data convert', 'data ewt5' or 'data toy'"
        )
    return paths


def refuse_existing(folder: Path, overwrite: bool) -> None:
    """Raise `InputError` if a folder already holds a corpus, unless that may be overwritten."""
    present = files_in(folder)
    if present and not overwrite:
        raise InputError(
            f"{folder} already holds a corpus ({', '.join(path.name for path in present)}): "
            "choose another --out, or replace it with --overwrite"
        )


def write_splits(
    folder: Path,
    splits: Mapping[str, Sequence[Sentence]],
    provenance: Callable[[Sequence[Path]], Any] | None = None,
) -> list[Path]:
    """Write `NAME.jsonl` for each split, in place of any corpus in `folder`; returns the paths.

    `provenance` makes the content of `provenance.json` from the paths of the splits. A new folder appears
    with all of its files. In an existing one, all splits are written before the first one gets its name, so
    that a full disk leaves the old corpus intact.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        with new_folder(folder) as made:
            _replace(made, splits, provenance)
    else:
        _replace(folder, splits, provenance)
    return [folder / f"{name}.jsonl" for name in splits]


def _replace(
    folder: Path,
    splits: Mapping[str, Sequence[Sentence]],
    provenance: Callable[[Sequence[Path]], Any] | None,
) -> None:
    old = files_in(folder)
    paths = [folder / f"{name}.jsonl" for name in splits]
    with ExitStack() as stack:
        for path, sentences in zip(paths, splits.values(), strict=True):
            temporary = stack.enter_context(whole_file(path))
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(f"{to_line(sentence)}\n" for sentence in sentences)
    for path in old:
        if path not in paths:
            path.unlink()
    if provenance is not None:
        write_json(folder / PROVENANCE, provenance(paths))
