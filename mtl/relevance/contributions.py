"""What source and translation contribute to each piece that a model writes (Voita et al. 2021): a table, and
the figure `contributions`.

The relevance of tokens is that of `mtl.relevance.propagation`. As for heads, shares are of absolute values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from mtl.errors import InputError, as_input_error
from mtl.files import check_file_place, whole_file
from mtl.heads.gates import Mask
from mtl.models.joint import JointModel
from mtl.probes.figures.style import PANEL, looks_of, new_figure, open_frame, styled
from mtl.probes.tables.table_files import ColumnUnit, read_complete, write_parquet
from mtl.relevance.propagation import Contributions, Explainer, Output, RelevanceItem, explained
from mtl.relevance.rules import Rules
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.runs.folder.run import mark_of
from mtl.runs.folder.run_tables import require_finite_rows
from mtl.tasks.sentence import Sentence
from mtl.workers.lease import changing

CONTRIBUTIONS = pl.Schema(
    {
        "task": pl.String, "sentence": pl.String, "position": pl.Int32, "token": pl.String,
        "source_share": pl.Float64, "source_entropy": pl.Float64, "target_entropy": pl.Float64,
        "source_relevance": pl.Float64, "target_relevance": pl.Float64, "score": pl.Float64,
    }
)  # fmt: skip
"""A row per sentence and position of its translation, from 0.

`sentence` is its id, and `token` the piece whose score (its logit) is explained. `source_share` is the
absolute relevance of the source's tokens, divided by that of all tokens that the model reads; the rest is of
the start token and the translation before this piece. The entropies, in nats, are those of each side's shares
by token, divided by their sum. All three are null where nothing is relevant. The relevance itself is in units
of the score, to which biases add their part.
"""
MEASURES = ("source_share", "source_entropy", "target_entropy")
_COMMAND = "mtl relevance RUN --contributions"
_TITLES = {
    "source_share": "source's share, %",
    "source_entropy": "entropy of source, nats",
    "target_entropy": "entropy of target, nats",
}
_UNITS = ColumnUnit.SHARE.of("source_share") | ColumnUnit.NATS.of("source_entropy", "target_entropy")
_COUNTED = 0.1
"""Positions that a smaller share of a run's sentences has are not drawn: these are few, and the longest."""


def token_shares(
    contributions: Contributions,
) -> tuple[Float[Tensor, "piece source"], Float[Tensor, "piece piece"]]:
    """Each token's share of the absolute relevance of all tokens of both sides; NaN if all are 0."""
    source, target = contributions.source.abs(), contributions.target.abs()
    total = torch.cat([source, target], 1).sum(1, keepdim=True)
    return source / total, target / total


def contribution_table(
    model: JointModel,
    sentences: Sequence[Sentence],
    mask: Mask,
    *,
    rules: Rules = "paper",
    output: Output = "gold",
    advance: Callable[[int], None] = lambda sentences: None,
) -> pl.DataFrame:
    """The contributions to each piece of the sentences' translations, with the schema `CONTRIBUTIONS`.

    `mask` is of the task that translates. `advance` receives the number of sentences of each finished batch.
    """
    [task] = mask.tasks
    chosen = explained(model, sentences, mask, output)
    explainer = Explainer(model, chosen, [RelevanceItem(task, "")], mask.head_scale, rules, output)
    text: Callable[[list[int]], str] = model.encoder.tokenizer.tokenizer.decode
    found: dict[int, pl.DataFrame] = {}
    for batch, numbers in enumerate(explainer.batches):
        for of_sentence in explainer.contributions(batch):
            source, target = token_shares(of_sentence)
            found[of_sentence.sentence] = pl.DataFrame(
                {
                    "task": task,
                    "sentence": chosen[of_sentence.sentence].id,
                    "position": range(len(of_sentence.pieces)),
                    "token": [text([piece]).strip() for piece in of_sentence.pieces],
                    "source_share": source.sum(1).numpy(),
                    "source_entropy": _entropy(source).numpy(),
                    "target_entropy": _entropy(target).numpy(),
                    "source_relevance": of_sentence.source.sum(1).numpy(),
                    "target_relevance": of_sentence.target.sum(1).numpy(),
                    "score": of_sentence.score.numpy(),
                },
                CONTRIBUTIONS,
            )
        advance(len(numbers))
    table = pl.concat([CONTRIBUTIONS.to_frame(), *(found[number] for number in sorted(found))])
    return table.with_columns(pl.col(MEASURES).fill_nan(None))


def place_beside(heads: Path) -> Path:
    """The file for contributions beside the table of heads that is measured with them."""
    name = "contributions" if heads.name == "heads.parquet" else f"{heads.stem}-contributions"
    return heads.with_name(f"{name}.parquet")


def check_contributions_place(path: Path) -> None:
    """Raise `InputError` or `OSError` if contributions cannot be written there, as over another table."""
    check_file_place(path)
    if path.exists():
        read_contributions(path)


def read_contributions(path: Path) -> pl.DataFrame:
    """The table; raises `InputError` if the file is no such table."""
    with as_input_error():
        return read_complete(path, CONTRIBUTIONS, _COMMAND)[0]


def write_contributions(table: pl.DataFrame, path: Path, made_of: Mapping[str, Any]) -> None:
    """Write the table with what it was made of; raises `InputError` if a value is not finite."""
    require_finite_rows(table, path)
    metadata = {key: str(value) for key, value in made_of.items()} | mark_of(path.parent)
    with changing(path), whole_file(path) as temporary:
        write_parquet(table, temporary, metadata)


def means_by_position(table: pl.DataFrame) -> pl.DataFrame:
    """The means at each position, and the number of sentences that have it."""
    means = [pl.col(name).mean() for name in MEASURES]
    return table.group_by("position").agg(pl.len().alias("sentences"), *means).sort("position")


def in_words(table: pl.DataFrame) -> Iterator[str]:
    """Lines with the means by position; from position 10 on, those of ten positions together."""
    yield "contributions, means by position of the translation (entropies in nats):"
    yield f"{'position':>10}{'tokens':>10}{'source, %':>11}{'entropy of source':>19}{'of target':>11}"
    ten = pl.col("position") // 10 * 10
    of_line = pl.when(pl.col("position") < 10).then("position").otherwise(ten)
    means = [pl.col(name).mean() for name in MEASURES]
    lines = table.group_by(of_line.alias("first")).agg(pl.len(), *means).sort("first")
    everywhere = table.select(pl.len(), *means).row(0)
    for first, *values in (*lines.iter_rows(), ("all", *everywhere)):
        position = f"{first}-{first + 9}" if isinstance(first, int) and first >= 10 else str(first)
        tokens, share, *entropies = values
        source, target = ("-" if value is None else f"{value:.3f}" for value in entropies)
        percent = "-" if share is None else f"{100 * share:.1f}"
        yield f"{position:>10}{tokens:>10,}{percent:>11}{source:>19}{target:>11}"


@styled
def contribution_lines(means: pl.DataFrame) -> Figure:
    """A panel for each of `MEASURES`, and in it a line for each run: the mean by position of the translation.

    `means`: rows of `means_by_position` with a column `run`.
    """
    runs = list(means["run"].unique(maintain_order=True))
    looks = looks_of(runs)
    figure = new_figure(PANEL * len(MEASURES) + 0.4 + 0.13 * len(runs))
    panels = figure.subplots(len(MEASURES), 1, sharex=True)
    for axes, measure in zip(panels, MEASURES, strict=True):
        for run, look in looks.items():
            rows = means.filter(run=run)
            rows = rows.filter(pl.col("sentences") >= _COUNTED * pl.col("sentences").max())
            values = rows[measure] * (100 if measure == "source_share" else 1)
            axes.plot(
                rows["position"], values, color=look.colour, marker=look.shape, linewidth=1.0,
                markersize=2.6,
            )  # fmt: skip
        axes.set_ylabel(_TITLES[measure])
        axes.set_ylim(bottom=0)
        open_frame(axes)
    panels[-1].set_xlabel("position of the translation")
    figure.legend(
        handles=[look.key(run, 2.8, 1.0) for run, look in looks.items()], loc="outside upper center"
    )
    return figure


def draw_contributions(request: FigureRequest) -> FigureWithTables:
    """Contributions of runs, or from tables that `mtl relevance --contributions` wrote."""
    parts: dict[str, pl.DataFrame] = {}
    names = [path.name if path.is_dir() else path.stem for path in request.paths]
    for path, name in zip(request.paths, names, strict=True):
        table = path / "contributions.parquet" if path.is_dir() else path
        if not table.is_file():
            raise InputError(f"{path} has no contributions: measure them with '{_COMMAND}'")
        rows = read_contributions(table)
        if rows.is_empty():
            raise InputError(f"{table} has no rows: measure sentences that have a translation")
        parts[name if names.count(name) == 1 else str(path)] = means_by_position(rows)
    means = pl.concat([table.select(pl.lit(run).alias("run"), pl.all()) for run, table in parts.items()])
    note = f"positions of less than {_COUNTED:.0%} of a run's sentences are in the table only"
    return FigureWithTables(contribution_lines(means), (note,), {"": means}, units={"": _UNITS})


def _entropy(shares: Float[Tensor, "piece token"]) -> Float[Tensor, " piece"]:
    """The entropy in nats of each row, divided by its sum; NaN for rows of zeros."""
    return torch.special.entr(shares / shares.sum(1, keepdim=True)).sum(1)
