"""All commands: the function of each, and what its help shows first."""

from __future__ import annotations

from pkgutil import resolve_name

from mtl.config.arguments import Arguments
from mtl.features import Command, added, in_order
from mtl.probes.measures.groups import GROUPS


def measuring_command(name: str) -> Command:
    """The command `mtl NAME` for a group of measures without a module of its own."""
    return Command(f"mtl.commands.measure:{name}", GROUPS[name].summary, answers=True)


MEASURES = {
    name: measuring_command(name) for name, group in GROUPS.items() if group.code and not group.made_by
}
"""The commands that are made from rows of the table of measures."""

_OWN = {
    "doctor": Command(
        "mtl.commands.doctor:doctor", "say what is installed, and what can run here", answers=True
    ),
    "completion": Command(
        "mtl.commands.completion:completion",
        "print a script by which a shell completes commands and options",
        answers=True,
    ),
    "init": Command("mtl.commands.data:init", "write a configuration for files at hand"),
    "data ewt5": Command("mtl.commands.data:ewt5", "build EWT in five layers"),
    "data ewt10": Command("mtl.commands.data:ewt10", "build EWT in ten layers"),
    "data toy": Command("mtl.commands.data:toy", "generate a small corpus with all five layers"),
    "data convert": Command("mtl.commands.data:convert", "write a corpus of any format as JSON lines"),
    "data select": Command("mtl.commands.data:select", "select sentences of a corpus, by id or at random"),
    "data stats": Command("mtl.commands.data:stats", "count sentences, words and annotations", answers=True),
    "train": Command(
        "mtl.commands.train:train_command",
        "train a model, or resume training",
        file="[CONFIG.yaml …]",
        first=(
            "tasks", "corpus.path", "encoder.name", "name", "seed", "max_epochs", "pruning",
            "gates.target_open", "init_from", "overwrite",
        ),
        resumes=True,
        several_processes=True,
    ),
    "evaluate": Command("mtl.commands.evaluate:evaluate", "score a trained model", answers=True),
    "compare": Command(
        "mtl.commands.report:compare", "test whether two sets of runs score differently", answers=True
    ),
    "figure": Command(
        "mtl.commands.report:figure",
        "draw a figure from chosen runs",
        listing="mtl.runs.figures.table:SUMMARIES",
    ),
    "prune": Command("mtl.commands.prune:prune", "cut closed heads out of a trained model"),
    "predict": Command(
        "mtl.commands.predict:predict", "annotate the text of a file, or of standard input", answers=True
    ),
    "probe": Command(
        "mtl.commands.measure:probe", "measure what each attention head is good at", answers=True
    ),
    "show": Command(
        "mtl.commands.show:show",
        "show what one attention head does, on a sentence or on examples",
        answers=True,
    ),
    **MEASURES,
    "ablate": Command(
        "mtl.commands.measure:ablate",
        "close heads and test what the scores lose",
        resumes=True,
        answers=True,
    ),
    "report": Command("mtl.commands.report:report", "write one HTML page about runs"),
}  # fmt: skip
COMMANDS = in_order(_OWN, added(lambda feature: feature.commands))
"""Every command by its name, in the order in which the overview lists them."""


def arguments_for(name: str) -> Arguments:
    """What a command takes."""
    found = resolve_name(COMMANDS[name].function)
    return found if isinstance(found, Arguments) else Arguments.of(found)
