"""What W&B has written to its local logs: files of LevelDB's log format, with protocol buffers as records."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, FILE_HEADER = 32768, 7
HEADER = struct.Struct("<IHB")  # checksum, length, kind
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class Log:
    """One local log."""

    run: Any
    """The first record of the run: id, group, job type, tags, configuration."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)
    """By type; tables that were logged are artifacts of type `run_table`."""
    exit_code: int | None = None


def logs(folder: Path) -> list[Log]:
    """All local logs in a folder, in order of time; waits until W&B's process has written them whole."""
    return [whole(path) for path in sorted(folder.glob("wandb/*run-*/*.wandb"))]


def whole(path: Path) -> Log:
    """One local log; waits until W&B's process has written it whole."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        log = read(path)
        if log is not None and log.exit_code is not None:
            return log
        time.sleep(0.1)
    raise AssertionError(f"{path} has no end")


def read(path: Path) -> Log | None:
    """One local log as far as it was written; `None` if not even its run is there."""
    log: Log | None = None
    for data in _records(path.read_bytes()):
        record = Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run" and log is None:
            log = Log(record.run)
        if log is None:
            continue
        if kind == "history":
            log.rows.append(_items(record.history.item))
        elif kind == "summary":
            log.summary |= _items(record.summary.update)
        elif kind == "artifact":
            log.artifacts.setdefault(record.artifact.type, []).append(record.artifact)
        elif kind == "exit":
            log.exit_code = record.exit.exit_code
    return log


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(content: bytes) -> Iterator[bytes]:
    place, parts = FILE_HEADER, b""
    while place + HEADER.size <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER.size:
            place += left
            continue
        _, length, kind = HEADER.unpack_from(content, place)
        if kind not in (WHOLE, FIRST, MIDDLE, LAST):
            return
        start = place + HEADER.size
        part, place = content[start : start + length], start + length
        if len(part) < length:
            return
        parts = part if kind in (WHOLE, FIRST) else parts + part
        if kind in (WHOLE, LAST):
            yield parts
