"""The command of a group of measures, made from its row of the table and the signature of its function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from inspect import Parameter, Signature
from math import inf
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table

from mtl.commands.choices import Accelerator, Split
from mtl.config.keys import hints_of
from mtl.probes.measures.groups import GROUPS, Group
from mtl.tasks.in_words import counted
from mtl.tasks.ranges import Range, Some

if TYPE_CHECKING:
    import polars as pl

_COMMON: dict[str, tuple[Any, Any, str]] = {
    "run": (Path, Parameter.empty, "The run's folder."),
    "task": (
        tuple[str, ...], (), "Only these tasks; default: all of the model that have gold annotations."
    ),
    "corpus": (
        Path | None, None,
        "Folder with .jsonl files, or SOURCE:TARGET for translations; default: the run's own.",
    ),
    "split": (Split, "dev", "Which split of the corpus."),
    "sentences": (Some | None, None, "The number of sentences, spread evenly over the split; default: all."),
    "out": (
        Path | None, None,
        "Table to write instead of the run's heads.parquet, to compare splits or corpora.",
    ),
    "accelerator": (
        Accelerator, "auto", "Device; auto is a GPU if there is one."
    ),
    "top": (Annotated[int, Range(0, inf)], 10, "Heads to print per task."),
}  # fmt: skip
"""The arguments of every such command: type, default and help."""


def __getattr__(name: str) -> Callable[..., None]:
    if name not in GROUPS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return command_of(name)


@cache
def command_of(name: str) -> Callable[..., None]:
    """The function behind `mtl NAME`; its signature includes the settings of the group's function."""
    from docstring_parser import parse

    from mtl.analysis.measuring import settings_of

    group = GROUPS[name]
    settings = settings_of(group.code)

    def command(**given: Any) -> None:
        _measure(name, {key: given.pop(key) for key in hints_of(settings)}, **given)

    taken = [*_COMMON] if not group.shown else [key for key in _COMMON if key != "top"]
    arguments = {key: _COMMON[key][:2] for key in taken}
    if "split" in group.settings:
        arguments["split"] = (arguments["split"][0], "test")
    arguments |= {field.name: (field.type, field.default) for field in fields(settings)}
    described = parse(resolve_name(group.code).__doc__ or "")
    own = {text.arg_name: text.description or "" for text in described.params}
    texts = {key: _COMMON[key][2] if key in taken else own.get(key, "") for key in arguments}
    lines = [f"    {key}: {' '.join(text.split())}" for key, text in texts.items()]
    command.__name__ = name
    command.__doc__ = "\n".join([described.short_description or group.summary, "", "Args:", *lines])
    command.__annotations__ = {key: kind for key, (kind, _) in arguments.items()}
    vars(command)["__signature__"] = Signature(
        [
            Parameter(key, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)
            for key, (kind, default) in arguments.items()
        ]
    )
    return command


def _measure(
    name: str,
    settings: dict[str, Any],
    run: Path,
    task: tuple[str, ...],
    corpus: Path | None,
    split: str,
    sentences: int | None,
    out: Path | None,
    accelerator: Accelerator,
    top: int = 10,
) -> None:
    from mtl.analysis.measuring import make
    from mtl.commands.measured_run import open_measured
    from mtl.commands.progress import sentence_progress

    trained = open_measured(run, task, corpus, split, sentences, accelerator, out)
    measured = make(name, trained, settings, sentence_progress)
    console = Console(markup=False, emoji=False)
    group = GROUPS[name]
    if group.shown:
        resolve_name(group.shown)(measured.rows, console)
    else:
        _show(measured.rows, group, top, console)
    for line in (*measured.notes, f"wrote {trained.table}"):
        console.print(line, highlight=False, soft_wrap=True)


def _show(heads: pl.DataFrame, group: Group, top: int, console: Console) -> None:
    """Print the `top` heads of each task by the group's main measure, with all measures on them."""
    import polars as pl

    from mtl.probes.head_names import by_name

    main = group.measures[0].name
    of_heads = heads.filter(pl.col("label") == "").drop_nulls("head")
    for (task,), of_task in of_heads.group_by("task", maintain_order=True):
        wide = by_name(of_task.pivot("measure", index=["attention", "layer", "head"], values="value"))
        place = f"{task}: " if task else ""
        shown = Table(
            title=f"{place}the {counted(min(top, wide.height), 'head')} of highest {main}, of {wide.height}"
        )
        for title in wide.columns:
            shown.add_column(title, justify="right")
        for name, *values in wide.sort(main, descending=True, nulls_last=True).head(top).iter_rows():
            shown.add_row(name, *("" if value is None else f"{value:.4g}" for value in values))
        console.print(shown)
