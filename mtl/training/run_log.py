"""What a run prints, kept in its folder with the time of every line."""

from __future__ import annotations

import io
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console

from mtl.errors import InputError, RunError

NAME = "log.txt"
PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "soft_wrap": True}
"""How a run prints a line: as it is, whatever is in the names of its files, and never broken."""
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


class RunLog:
    """A stream that passes on what is written to it and keeps the lines, in memory until `keep_in` is called.

    Its other properties, such as its encoding and whether it is a terminal, are those of the stream below it.
    """

    def __init__(self, stream: IO[str] | io.TextIOBase) -> None:
        self._stream = stream
        self._path: Path | None = None
        self._waiting = ""

    def keep_in(self, folder: Path) -> None:
        """Append the lines so far, and all that follow, to the log of this folder."""
        self._path = folder / NAME
        self._append("")

    def note(self, text: str) -> None:
        """Keep lines that are not passed on."""
        self._append(f"{text}\n")

    def write(self, text: str) -> int:
        """Pass the text on and keep it."""
        self._append(_STYLES.sub("", text))
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _append(self, text: str) -> None:
        *lines, self._waiting = f"{self._waiting}{text}".split("\n")
        if self._path is None:
            self._waiting = "\n".join([*lines, self._waiting])
        elif lines:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            with self._path.open("a", encoding="utf-8", errors="replace") as file:
                file.writelines(f"{now} {line.rstrip()}\n" for line in lines)


@contextmanager
def run_log(console: Console) -> Iterator[RunLog]:
    """Log what the console prints during the block and, if the block fails, why."""
    stream = console.file
    log = RunLog(stream)
    console.file = cast(IO[str], log)
    try:
        yield log
    except (InputError, RunError) as error:
        log.note(f"mtl: {error}")
        raise
    except KeyboardInterrupt:
        log.note("interrupted")
        raise
    except BaseException:
        log.note(traceback.format_exc().rstrip())
        raise
    finally:
        console.file = stream
