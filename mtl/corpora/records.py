"""Objects in a file on disk, each read only when it is asked for, and arrays about them in memory.

A folder of records holds their pickles one after the other (`records`), the end and the checksum of each
pickle, further arrays with a number per record, and `facts.json` with other facts. The file is read, not
mapped: reading a truncated file is an error, while a map would end the process.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numpy as np

from mtl.errors import RunError
from mtl.files import checksum, write_json
from mtl.workers.cache import VARIABLE, Damaged

T = TypeVar("T", covariant=True)
_FACTS = "facts.json"
_PROTOCOL = 5


def packed(value: Any) -> bytes:
    """The bytes of a value as a record."""
    return pickle.dumps(value, _PROTOCOL)


class RecordWriter:
    """Writes a folder of records, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / "records").open("wb")
        self._ends, self._sums, self._end = array("q"), array("q"), 0

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, records: Iterable[bytes]) -> None:
        """Append packed values."""
        for record in records:
            self._file.write(record)
            self._end += len(record)
            self._ends.append(self._end)
            self._sums.append(zlib.crc32(record))

    def written(self) -> Iterator[Any]:
        """The values written so far, one after the other."""
        self._file.flush()
        with (self._folder / "records").open("rb") as file:
            for _ in self._ends:
                yield pickle.load(file)

    def finish(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Write the arrays, and last the facts (values for JSON), which mark the folder as complete."""
        self._file.close()
        places = {"ends": np.array(self._ends, dtype=np.int64), "sums": np.array(self._sums, dtype=np.int64)}
        for name, values in (places | dict(arrays)).items():
            np.save(self._folder / f"{name}.npy", values)
        sums = {path.name: checksum(path) for path in self._folder.glob("*.npy")}
        write_json(self._folder / _FACTS, {"facts": facts, "checksums": sums})


class Records(Sequence[T]):
    """The records of a folder.

    The constructor raises `Damaged` for an incomplete or damaged folder, and `PermissionError` for one that
    this user may not read. Reading a damaged record raises `RunError`. While this object exists, the folder
    is in use (`mtl.files.in_use`).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: list[int] = []
        try:
            self._open.append(os.open(folder, os.O_RDONLY))
            self._open.append(os.open(folder / "records", os.O_RDONLY))
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._open[0], fcntl.LOCK_SH)
            said = json.loads((folder / _FACTS).read_bytes())
            self.facts: Mapping[str, Any] = said["facts"]
            if any(checksum(folder / name) != of for name, of in said["checksums"].items()):
                raise Damaged(folder)
            self._ends, self._sums = self.array("ends"), self.array("sums")
            if os.fstat(self._open[1]).st_size != (self._ends[-1] if len(self._ends) else 0):
                raise Damaged(folder)
        except PermissionError:  # it is another user's, and may be complete
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(folder) from error

    def __del__(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def array(self, name: str) -> np.ndarray:
        """The array of this name."""
        values: np.ndarray = np.load(self.folder / f"{name}.npy", allow_pickle=False)
        return values

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = int(self._ends[index - 1]) if index else 0
        record = os.pread(self._open[1], int(self._ends[index]) - start, start)
        if zlib.crc32(record) != self._sums[index]:
            cure = "start again, and all records are made again"
            try:
                (self.folder / _FACTS).unlink(missing_ok=True)
            except OSError:  # the folder is read-only
                cure = f"delete the folder, or set {VARIABLE} to another place, and start again"
            raise RunError(f"{self.folder}: record {index:,} was damaged: {cure}")
        return cast(T, pickle.loads(record))
