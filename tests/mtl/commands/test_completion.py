"""The answers that shells get when Tab is pressed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

from mtl.commands.command_table import COMMANDS
from mtl.commands.completion import VARIABLE
from mtl.commands.help import help_of
from mtl.commands.main import main
from mtl.runs.figures.table import FIGURES

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def offered(monkeypatch, capsys):
    """The completions for the last of these words."""

    def offered(*words: str, shell: str = "bash") -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(("mtl", *words)))
        monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words)))
        monkeypatch.setenv(VARIABLE, f"{shell}_complete")
        assert main([]) == 0
        return [line.removeprefix("plain,") for line in capsys.readouterr().out.split()]

    return offered


def test_commands_are_offered(offered):
    assert offered("tr") == ["train", "translate"]
    assert offered("data", "") == [
        name.removeprefix("data ") for name in sorted(COMMANDS) if name[:4] == "data"
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_in_the_help_is_offered(name, offered):
    lines = help_of(name, "all" if COMMANDS[name].file else None).splitlines()
    named = {line.split()[0].partition("=")[0] for line in lines if line.startswith("  --")}
    assert named <= set(offered(*name.split(), "--"))
    assert named or name in ("completion",)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["figure", ""], list(FIGURES)),
        (["train", "joint", "--pruning", "dy"], ["dynamic"]),
        (["train", "joint", "--pruning", "=", "dy"], ["dynamic"]),
        (["report", "runs", "--split", "="], ["dev", "test"]),
        (["evaluate", "runs/a", "--json_out", ""], ["file,"]),
    ],
)
def test_values_are_offered(words, values, offered):
    assert offered(*words) == values


def test_a_shell_that_takes_option_and_value_for_one_word_gets_both(offered):
    assert offered("train", "--pruning=dy", shell="fish") == ["--pruning=dynamic"]


def test_bash_completes_by_the_script(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    program = tmp_path / "mtl"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m mtl "$@"\n')
    program.chmod(0o755)
    asked = 'COMP_WORDS=(mtl "data" "sta"); COMP_CWORD=2; _mtl_completion mtl; echo "${COMPREPLY[@]}"'
    script = f"{capsys.readouterr().out}\nPATH={tmp_path}:$PATH; {asked}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["stats"]


@pytest.mark.parametrize(("shell", "sign"), [("zsh", "#compdef mtl"), ("fish", "complete --no-files")])
def test_other_shells_have_scripts(shell, sign, capsys):
    resolve_name(COMMANDS["completion"].function)(shell)
    assert sign in capsys.readouterr().out
