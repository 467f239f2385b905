"""`mtl doctor`."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from mtl.commands.common import print_table
from mtl.config.arguments import OutFile
from mtl.errors import InputError
from mtl.files import may_be_written, write_json

_LIBRARIES = ("torch", "pytorch-lightning", "transformers")
_EXTRA = re.compile(r"([\w.-]+).*; extra == [\"'](\w+)[\"']")
_OF_DEVELOPERS = ("docs", "dev")
_ROOM = 2e9
"""Free bytes below which a few runs with MiniLM, about 100 MB each, may fill the disk."""
_DRIVER = Path("/proc/driver/nvidia/version")
"""The file that exists if an NVIDIA driver is loaded."""
_PATIENCE = 5.0
"""Seconds to wait for the hub's answer."""
_SHOWN_AFTER = 1.0
"""Seconds to wait for a check before it is named."""
_LONGEST = 120.0
"""Seconds that all checks may take: the import of torch on a busy machine can take one minute."""


class Checked(NamedTuple):
    """What was checked, what was found, and how to fix it (empty: nothing needs fixing)."""

    what: str
    found: str
    fix: str = ""


def doctor(*, runs: Path = Path("runs"), json_out: OutFile | None = None) -> None:
    """Print what is installed, which devices and precision runs will use, and what cannot work here.

    Args:
        runs: Folder of the runs, whose disk is checked for space.
        json_out: File for the findings, as JSON.
    """
    findings = list(_findings(_checks(runs)))
    table = Table("", "here")
    for finding in findings:
        table.add_row(finding.what, finding.found)
    print_table(table, Console(markup=False, emoji=False))
    for finding in findings:
        if finding.fix:
            print(f"{finding.what}: {finding.found}: {finding.fix}")
    if json_out is not None:
        write_json(json_out, {what: {"found": found, "fix": fix} for what, found, fix in findings})


def _checks(runs: Path) -> Iterator[tuple[str, Callable[[], Iterable[Checked]]]]:
    """What is checked, by name."""
    yield "installed packages", lambda: [*_packages(), *_extras()]
    yield "devices", lambda: list(_devices())
    yield f"disk of {runs}", lambda: [_disk(runs)]
    yield "encoder minilm", lambda: [_encoder()]
    yield "hub", lambda: [_hub()]
    yield "W&B", lambda: [_wandb(os.environ)]


def _findings(checks: Iterable[tuple[str, Callable[[], Iterable[Checked]]]]) -> Iterator[Checked]:
    """What checks find that run at the same time; one that does not end in time is left alone.

    A check is named on the error output if it has to be waited for.
    """
    end = time.monotonic() + _LONGEST
    for what, found in [(what, _started(check)) for what, check in checks]:
        if not wait([found], _SHOWN_AFTER).done:
            print(f"checking: {what} (up to {_LONGEST:g} s) …", file=sys.stderr, flush=True)
        if wait([found], max(0.0, end - time.monotonic())).done:
            yield from found.result()
        else:
            fix = "the machine is very busy, or a disk or driver does not answer: try again later"
            yield Checked(what, f"no answer within {_LONGEST:g} s", fix)


def _started(check: Callable[[], Iterable[Checked]]) -> Future[Iterable[Checked]]:
    """The future of a check in a thread that does not keep the process from ending."""
    found: Future[Iterable[Checked]] = Future()

    def run() -> None:
        try:
            found.set_result(check())
        except Exception as error:
            found.set_exception(error)

    Thread(target=run, daemon=True).start()
    return found


def _packages() -> Iterator[Checked]:
    yield Checked("mtl", version("mtl-heads"))
    yield Checked("Python", platform.python_version())
    for library in _LIBRARIES:
        yield Checked(library, version(library))


def _extras() -> Iterator[Checked]:
    """The packages of each extra, from the package's metadata."""
    packages: dict[str, list[str]] = {}
    for match in filter(None, map(_EXTRA.match, requires("mtl-heads") or ())):
        if match[2] not in _OF_DEVELOPERS:
            packages.setdefault(match[2], []).append(match[1])
    for extra, names in packages.items():
        missing = [name for name in names if not _installed(name)]
        if missing:
            yield Checked(
                f"extra {extra}",
                f"without {', '.join(missing)}",
                f"if needed: pip install 'mtl-heads[{extra}]'",
            )
        else:
            yield Checked(f"extra {extra}", ", ".join(f"{name} {version(name)}" for name in names))


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _devices() -> Iterator[Checked]:
    """The processor, the GPUs, and what `auto` selects."""
    import torch

    from mtl.models.opened import training_precision
    from mtl.tasks.in_words import counted
    from mtl.workers.pool import cores

    yield Checked(
        "CPU", f"{counted(cores(), 'core')}, a run uses {counted(torch.get_num_threads(), 'thread')}"
    )
    on_gpu = torch.cuda.is_available()
    for number in range(torch.cuda.device_count() if on_gpu else 0):
        free, total = torch.cuda.mem_get_info(number)
        memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        yield Checked(f"GPU {number}", f"{torch.cuda.get_device_name(number)}, {memory}")
    if not on_gpu:
        driver = _DRIVER.exists()
        build = f"torch {torch.__version__} cannot use it"
        fix = "install a torch for its driver's version of CUDA: https://pytorch.org/get-started/locally/"
        yield Checked("GPU", f"there is one, but {build}" if driver else "none", fix if driver else "")
    precision, device = training_precision(on_gpu), "GPU" if on_gpu else "processor"
    has = "multiplies" if precision == "bf16-mixed" else "does not multiply"
    yield Checked("trainer.precision=auto", f"{precision}: the {device} {has} bfloat16 in hardware")


def _disk(runs: Path) -> Checked:
    if not may_be_written(runs):
        return Checked(f"disk of {runs}", "it cannot be written", "use another folder (--runs=FOLDER)")
    place = next(place for place in (runs, *runs.absolute().parents) if place.exists())
    free = shutil.disk_usage(place).free
    fix = "" if free > _ROOM else "free some space, or use another folder (--runs=FOLDER)"
    return Checked(f"disk of {runs}", f"{free / 1e9:,.1f} GB free", fix)


def _encoder() -> Checked:
    from mtl.models.found import encoder_shape

    try:
        shape = encoder_shape("minilm")
    except (InputError, OSError) as error:
        return Checked("encoder minilm", "missing", str(error))
    assert shape is not None
    return Checked("encoder minilm", f"{shape[0]} layers of {shape[1]} heads")


def _hub() -> Checked:
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return Checked("hub", "off (HF_HUB_OFFLINE): only encoders in its cache")
    if _answers(constants.ENDPOINT):
        return Checked("hub", f"{constants.ENDPOINT} answers")
    fix = "minilm and local folders work; HF_HUB_OFFLINE=1 avoids waiting for it"
    return Checked("hub", f"{constants.ENDPOINT} does not answer", fix)


def _answers(address: str) -> bool:
    """Whether a server answers in time; a thread asks, since the lookup of names has no time limit."""
    import requests

    answered: list[int] = []

    def ask() -> None:
        try:
            answered.append(requests.head(address, timeout=_PATIENCE).status_code)
        except requests.RequestException:
            return

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return bool(answered)


def _wandb(environment: Mapping[str, str]) -> Checked:
    """What W&B will do: a run's own setting decides about it; only what needs the server needs `online`."""
    mode = environment.get("WANDB_MODE") or ("disabled" if environment.get("WANDB_DISABLED") else "online")
    found = f"{version('wandb')}, {mode}; a run logs only with wandb.mode=online or offline"
    fix = "" if mode == "online" else "for what needs its server, unset WANDB_MODE and WANDB_DISABLED"
    return Checked("W&B", found, fix)
