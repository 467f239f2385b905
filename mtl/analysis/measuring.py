"""Make a group of measures by its row of the table; importance of a run's heads. Imports nothing heavy.

The function of a row (`MeasureGroup.code`) takes a `TrainedRun` and, by name, its own settings and
`progress`, which receives the number of sentences and returns a context manager; this gives a function that
receives how many more are done. The function of a row returns rows of heads.parquet, or `Measured`. Its
module imports heavy modules inside of functions, since the help of its command is made from its signature and
docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from inspect import signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

from mtl.config.arguments import arguments_of
from mtl.config.parse import configuration_from
from mtl.errors import InputError, did_you_mean
from mtl.probes.measures.groups import GROUPS

if TYPE_CHECKING:
    import polars as pl

    from mtl.analysis.trained import TrainedRun


Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]


def silent(total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Progress that is not shown."""
    return nullcontext(lambda done: None)


@dataclass(frozen=True)
class Measured:
    """What a function of the table returns if it has more to say than its rows."""

    rows: pl.DataFrame
    made_of: Mapping[str, object] | None = None
    """What is added to the provenance in heads.parquet; `None`: the settings."""
    notes: tuple[str, ...] = field(default=())
    """Lines for the user."""


def function_settings(code: str) -> Any:
    """The settings that a function `MODULE:FUNCTION` takes, as a dataclass (`arguments_of`)."""
    function = resolve_name(code)
    own = [each.name for each in signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]
    return arguments_of(function, tuple(name for name in own if name != "progress"))


def check_options(options: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `InputError` for settings, by group of measures, that the group does not take in a study."""
    own = [name for name, group in GROUPS.items() if group.code and not group.by_settings]
    for name, values in options.items():
        if name not in own:
            raise InputError(f"probes.options: '{name}' has no settings of its own{did_you_mean(name, own)}")
        configuration_from(function_settings(GROUPS[name].code), values, f"probes.options.{name}")


def make(
    name: str, trained: TrainedRun, settings: Mapping[str, Any], progress: Progress = silent
) -> Measured:
    """Make a group of measures on a run, and write them into the run's table.

    Raises `InputError` for settings that the group does not take, and whatever its function raises.
    """
    group = GROUPS[name]
    given = asdict(configuration_from(function_settings(group.code), settings, name))
    made = resolve_name(group.code)(trained, progress=progress, **given)
    measured = made if isinstance(made, Measured) else Measured(made)
    made_of = given if measured.made_of is None else measured.made_of
    trained.write(measured.rows, name, group.names, **made_of)
    return measured


def measure_importance(
    trained: TrainedRun,
    *,
    per: Literal["example", "token"] = "example",
    normalise: bool = False,
    steps: int = 0,
    masks: bool = True,
    progress: Progress = silent,
) -> Measured:
    """Measure what each head is worth by gradients, and write it into the run's heads.parquet.

    Args:
        trained: The run, its model and sentences.
        per: Where absolute values are taken: of a sentence's derivative (Michel et al. 2019), or at each of
            its positions, as in their code for BERT.
        normalise: Divide a layer's importances by their Euclidean norm, as the paper does.
        steps: Steps of integrated gradients; 0: none. Each costs as much as everything else together.
        masks: Whether the run's head masks are applied.
        progress: As in `mtl.analysis.measuring`.

    Raises:
        InputError: a negative number of steps.
    """
    import polars as pl

    from mtl.analysis.importance import task_importance

    if steps < 0:
        raise InputError(f"steps={steps}: use 0 (no integrated gradients) or more")
    with progress(len(trained.corpus)) as advance:
        measured = task_importance(
            trained.model, trained.batches(), per=per, steps=steps, masks=masks, advance=advance
        )
    heads = pl.concat([gradients.table(name, normalise) for name, gradients in measured.items()])
    return Measured(heads, {"per": per, "normalised": normalise, "steps": steps, "masks": masks})
