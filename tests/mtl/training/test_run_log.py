"""The log of a run."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.progress_bar import ProgressBar

from mtl.errors import RunError
from mtl.training.run_log import NAME, PLAIN, run_log

STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", re.MULTILINE)


def lines(folder):
    text = (folder / NAME).read_text()
    assert len(STAMP.findall(text)) == text.count("\n")
    return STAMP.sub("", text).splitlines()


def test_lines_before_and_after_the_folder_are_kept_without_their_styles(tmp_path):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard")
    with run_log(console) as log:
        console.print("[red]first[/red]")
        log.keep_in(tmp_path)
        console.print("second", end=" ")
        console.print("half")
        log.note("not shown")
    console.print("afterwards")
    assert lines(tmp_path) == ["first", "second half", "not shown"]
    assert "not shown" not in out.getvalue()
    assert "\x1b[31mfirst" in out.getvalue()
    assert console.file is out


def fail(console, folder, error):
    with run_log(console) as log:
        log.keep_in(folder)
        raise error


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (RunError("loss is not finite"), "mtl: loss is not finite"),
        (KeyboardInterrupt(), "interrupted"),
        (ZeroDivisionError("one by zero"), "ZeroDivisionError: one by zero"),
    ],
)
def test_a_log_ends_with_why_the_run_ended_and_goes_on_when_it_is_resumed(tmp_path, error, last):
    console = Console(file=io.StringIO())
    with pytest.raises(type(error)):
        fail(console, tmp_path, error)
    assert lines(tmp_path)[-1] == last
    with run_log(console) as log:
        log.keep_in(tmp_path)
        console.print("resuming")
    assert lines(tmp_path)[-2:] == [last, "resuming"]


def test_nothing_is_kept_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    console = Console(file=io.StringIO())
    with run_log(console):
        console.print("refused")
    assert not list(tmp_path.iterdir())


def test_a_log_leaves_it_to_the_stream_what_can_be_printed(tmp_path):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    console = Console(file=stream, width=20)
    with run_log(console) as log:
        log.keep_in(tmp_path)
        console.print(ProgressBar(total=2, completed=1))
        console.print("|")
    assert set(lines(tmp_path)[0].rstrip("|")) == {"-"}


def test_a_line_is_printed_as_it_is(tmp_path):
    out = io.StringIO()
    console = Console(file=out, width=20, force_terminal=True)
    name = "runs/[b]1:smile: of a long name[/b]"
    with run_log(console) as log:
        log.keep_in(tmp_path)
        console.print(name, **PLAIN)
    assert out.getvalue() == f"{name}\n"
    assert lines(tmp_path) == [name]
