"""All commands: the function of each, how it takes its arguments, and what its help shows first."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from mtl.probes.measures.groups import GROUPS


@dataclass(frozen=True)
class Command:
    """A row of the table; `MODULE:NAME` is imported only when the command or its help is called."""

    function: str
    summary: str
    takes: Literal["signature", "configuration", "words"] = "signature"
    """What the function takes: the arguments of its signature, an object made of files and dotted keys, or
    the unparsed words."""
    configuration: str | None = None
    """The dataclass of the files and dotted keys, if there are any."""
    options: str | None = None
    """The dataclass of the options that are not dotted keys, if there are any."""
    file: str = ""
    """The first words on the command line in the usage, unless they follow from the signature."""
    first: tuple[str, ...] = ()
    """The keys that users set first, the only ones of a configuration that `--help` shows."""
    listing: str | None = None
    """A table of names and summaries for the help to show below the options, if there is one."""
    resumes: bool = False
    """Whether running the command again resumes an interrupted one."""
    files: tuple[str, ...] = ()
    """Arguments that name a file to write."""
    folders: tuple[str, ...] = ()
    """Arguments that name a folder to write into."""
    answers: bool = False
    """Whether the result is what is printed; the result of other commands is a file or folder."""
    several_processes: bool = False
    """Whether a launcher may start several processes of the command for one piece of work."""


def load(path: str) -> Any:
    """Import the object that `MODULE:NAME` names."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


def measuring_command(name: str) -> Command:
    """The command `mtl NAME` for a group of measures without a module of its own."""
    return Command(f"mtl.commands.measure:{name}", GROUPS[name].summary, files=("out",), answers=True)


MEASURES = {
    name: measuring_command(name) for name, group in GROUPS.items() if group.code and not group.made_by
}
"""The commands that are made from rows of the table of measures."""

COMMANDS = {
    "doctor": Command(
        "mtl.commands.doctor:doctor", "say what is installed, and what can run here", files=("json_out",),
        answers=True,
    ),
    "completion": Command(
        "mtl.commands.completion:completion",
        "print a script by which a shell completes commands and options",
        answers=True,
    ),
    "init": Command("mtl.commands.init:init", "write a configuration for files at hand", files=("out",)),
    "data ewt5": Command("mtl.commands.data:ewt5", "build EWT in five layers", folders=("out",)),
    "data ewt10": Command(
        "mtl.commands.data:ewt10", "build EWT in ten layers", folders=("out",)
    ),
    "data toy": Command(
        "mtl.commands.data:toy", "generate a small corpus with all five layers", folders=("out",)
    ),
    "data convert": Command(
        "mtl.commands.data:convert", "write a corpus of any format as JSON lines", folders=("out",)
    ),
    "data select": Command(
        "mtl.commands.data:select", "select sentences of a corpus, by id or at random", folders=("out",)
    ),
    "data stats": Command(
        "mtl.commands.data:stats", "count sentences, words and annotations", answers=True,
    ),
    "train": Command(
        "mtl.commands.train:train",
        "train a model, or resume training",
        takes="configuration",
        configuration="mtl.config.schema:TrainConfig",
        file="[CONFIG.yaml …]",
        first=(
            "tasks", "corpus.path", "encoder.name", "name", "seed", "max_epochs", "pruning",
            "gates.target_open", "init_from", "overwrite",
        ),
        resumes=True,
        several_processes=True,
    ),
    "evaluate": Command(
        "mtl.commands.evaluate:evaluate", "score a trained model", files=("json_out",), folders=("export",),
        answers=True,
    ),
    "compare": Command(
        "mtl.commands.compare:compare", "test whether two sets of runs score differently", files=("out",),
        answers=True,
    ),
    "figure": Command(
        "mtl.commands.figure:figure",
        "draw a figure from chosen runs",
        listing="mtl.runs.figures.table:SUMMARIES",
        files=("out",),
    ),
    "prune": Command("mtl.commands.prune:prune", "cut closed heads out of a trained model", folders=("out",)),
    "export": Command(
        "mtl.commands.export:export", "write a model as ONNX, also with 8-bit weights", folders=("out",)
    ),
    "predict": Command(
        "mtl.commands.predict:predict", "annotate the text of a file, or of standard input", answers=True,
    ),
    "serve": Command(
        "mtl.commands.serve:serve", "annotate over HTTP, with requests of many clients in one batch"
    ),
    "translate": Command(
        "mtl.commands.translate:translate", "translate text from standard input", answers=True,
    ),
    "probe": Command(
        "mtl.commands.probe:probe",
        "measure what each attention head is good at",
        files=("markdown",),
        folders=("out",),
        answers=True,
    ),
    "show": Command(
        "mtl.commands.show:show",
        "show what one attention head does, on a sentence or on examples",
        files=("output",),
        answers=True,
    ),
    **MEASURES,
    "ablate": Command(
        "mtl.commands.ablate:ablate",
        "close heads and test what the scores lose",
        files=("out", "json_out"),
        resumes=True,
        answers=True,
    ),
    "curve": Command(
        "mtl.commands.curve:curve", "score a model with fewer and fewer heads", resumes=True,
        answers=True,
    ),
    "energy": Command(
        "mtl.commands.energy:energy",
        "measure how many query and key components heads need, alone and together",
        files=("out", "figure", "mixing"),
        answers=True,
    ),
    "collaborate": Command(
        "mtl.commands.collaborate:collaborate", "let the heads of a model share query and key components",
        folders=("out",),
    ),
    "study": Command(
        "mtl.commands.study:study",
        "train a grid of runs, probe them and write the report",
        takes="words",
        configuration="mtl.study.config:StudyConfig",
        options="mtl.commands.study:Options",
        file="STUDY.yaml",
        first=(
            "jobs", "status", "dry_run", "keep_code", "engine", "name", "seeds", "train.corpus.path",
            "train.encoder.name", "train.max_epochs",
        ),
        resumes=True,
    ),
    "sweep": Command(
        "mtl.commands.sweep:sweep",
        "search for good configurations, with W&B or without a server",
        takes="words",
        configuration="mtl.config.schema:TrainConfig",
        options="mtl.commands.sweep:Options",
        file="SWEEP.yaml",
        first=(
            "local", "jobs", "trials", "status", "dry_run", "join", "wandb", "name", "sweeps", "corpus.path",
        ),
        resumes=True,
    ),
    "report": Command(
        "mtl.commands.report:report", "write one HTML page about runs", files=("out", "json_out")
    ),
    "demo": Command(
        "mtl.commands.demo:demo",
        "run a small study on a generated corpus, up to the report",
        resumes=True,
    ),
}  # fmt: skip
"""Every command by its name."""
