"""The tidy tables of heads: heads.parquet, the gates of masks, and sentences with what heads attend to.

Scores of heads on labels come with chance, the root and the fewest items, and the best head of every label.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
import polars.selectors as cs
from jaxtyping import Float, Int

from mtl.probes.measures.groups import BY_NAME, MEASURES, SKILLS
from mtl.probes.sites import KEYS, Site, attention_order, head_name, sites_of, with_names
from mtl.probes.tables import table_files
from mtl.probes.tables.table_files import by_catalogue
from mtl.tasks.catalogue import of_draw
from mtl.tasks.in_words import counted


def last_gates(gates: pl.DataFrame) -> pl.DataFrame:
    """The rows of the last step of every mask: of each task of each run (column `run`, if there is one)."""
    mask = [name for name in ("run", "task") if name in gates.columns]
    return gates.filter(pl.col("step") == pl.col("step").max().over(mask))


def name_draws(gates: pl.DataFrame) -> pl.DataFrame:
    """The table in which each draw of random labels has a task of its own, if there are several draws.

    The column `draw` is the draw of a mask's random labels, null for the masks of other tasks.
    """
    if gates["draw"].drop_nulls().n_unique() < 2:
        return gates
    drawn = gates.select("task", "draw").drop_nulls("draw").unique()
    names = {(task, draw): of_draw(task, draw) for task, draw in drawn.iter_rows()}
    renamed = pl.DataFrame(
        [(*key, name) for key, name in names.items()],
        {"task": pl.String, "draw": gates.schema["draw"], "named": pl.String},
        orient="row",
    )
    joined = gates.join(renamed, on=["task", "draw"], how="left", maintain_order="left")
    return joined.with_columns(task=pl.coalesce("named", "task")).drop("named")


SENTENCES = 24
"""The number of sentences of a corpus that are kept, spread evenly over it."""
FILE = "examples.parquet"
EXAMPLES_SCHEMA = pl.Schema(
    {
        "mask": pl.String(), "sentence": pl.Int32(), "attention": pl.String(), "layer": pl.Int32(),
        "head": pl.Int32(), "attended": pl.List(pl.Int16), "share": pl.List(pl.UInt8),
        "hit": pl.List(pl.Boolean),
    }
)  # fmt: skip


class ExampleArc(NamedTuple):
    """Words `start` to `end` (from 0, without `end`) and the word that they depend on; -1 is the root."""

    task: str
    label: str
    start: int
    end: int
    anchor: int


class ExampleSentence(NamedTuple):
    """A sentence and the arcs that heads are probed for."""

    words: tuple[str, ...]
    arcs: tuple[ExampleArc, ...]


class ExampleTables(NamedTuple):
    """The sentences, and a row for each mask, sentence and head.

    `mask` is the task of the mask, or empty for all tasks. `sentence` is a place in `sentences`. `attended`
    has the word that each word attends to most (-1: the first special token, if it competes as the root; -2:
    the final one; -3: nothing), and `share` its attention in per cent. `hit` says for each arc whether it is
    hit in either direction.
    """

    sentences: tuple[ExampleSentence, ...]
    table: pl.DataFrame


def write_examples(path: Path, examples: ExampleTables) -> None:
    """Write the examples as a parquet file, with the sentences in its metadata."""
    table_files.write_parquet(examples.table, path, {"sentences": json.dumps(examples.sentences)})


def read_examples(path: Path) -> ExampleTables:
    """Read what `write_heads_table` wrote; raises `ValueError` or `OSError` for another or a damaged file."""
    table, metadata = table_files.read_complete(path, EXAMPLES_SCHEMA, "mtl probe")
    try:
        made = json.loads(metadata["sentences"])
        sentences = [
            ExampleSentence(tuple(words), tuple(ExampleArc(*arc) for arc in arcs)) for words, arcs in made
        ]
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: its sentences cannot be read; make it with 'mtl probe'") from error
    return ExampleTables(tuple(sentences), table)


T = TypeVar("T")


def computed_once(make: Callable[[pl.DataFrame], T]) -> Callable[[pl.DataFrame], T]:
    """The function of a table, with its value computed once and kept as long as the table exists.

    Tables are known by identity: two equal tables have values of their own.
    """
    values: dict[int, T] = {}

    @wraps(make)
    def of_table(table: pl.DataFrame) -> T:
        if id(table) not in values:
            values[id(table)] = make(table)
            weakref.finalize(table, values.pop, id(table))
        return values[id(table)]

    return of_table


SCHEMA = pl.Schema(
    {
        "measure": pl.String,
        "task": pl.String,
        "label": pl.String,
        "attention": pl.String,
        "layer": pl.Int32,
        "head": pl.Int32,
        "value": pl.Float64,
        "count": pl.Int64,
        "choice": pl.String,
    }
)
"""A row per measure, task, label and head; layers and heads from 0, null if a value belongs to no head.

`attention` is the kind of attention, `self` in encoders; it names a head together with `layer` and `head`.

`choice` names the alternative that was taken if a definition leaves several, such as the columns that compete
for the most attended word, the source of centroids, or the epoch.
"""


def rows(
    measure: str,
    task: str,
    labels: Sequence[str],
    value: Float[np.ndarray, "label ..."],
    count: Int[np.ndarray, " label"],
    choice: str = "",
) -> pl.DataFrame:
    """The rows of a measure; labels that do not occur are left out, labels that are never hit are not.

    `value` is by label, layer and head, or by label and layer, or only by label, as a chance level may be.
    """
    label, *place = (axis.ravel() for axis in np.indices(value.shape))
    frame = pl.DataFrame(
        {
            "measure": measure,
            "task": task,
            "label": np.array(labels, dtype=object)[label].tolist(),
            "attention": "self",
            **dict.fromkeys(("layer", "head")),
            **dict(zip(("layer", "head"), place, strict=False)),
            "value": value.ravel(),
            "count": count[label],
            "choice": choice,
        },
        schema=SCHEMA,
    )
    return frame.filter(pl.col("count") > 0)


def at_sites(table: pl.DataFrame, sites: Sequence[Site]) -> pl.DataFrame:
    """Replace the numbers of sites in the column `layer` by each site's kind of attention and layer.

    Rows without a layer get the kind of attention of all sites, if there is only one.
    """
    kinds = {site.attention for site in sites}
    of_all = pl.lit(next(iter(kinds))) if len(kinds) == 1 else pl.col("attention")
    names = pl.DataFrame(
        {
            "layer": range(len(sites)),
            "kind": [site.attention for site in sites],
            "of_kind": [site.layer for site in sites],
        },
        schema={"layer": pl.Int32, "kind": pl.String, "of_kind": pl.Int32},
    )
    joined = table.join(names, on="layer", how="left", maintain_order="left")
    return joined.with_columns(
        attention=pl.coalesce("kind", of_all), layer=pl.coalesce("of_kind", "layer")
    ).select(table.columns)


def in_categories(table: pl.DataFrame) -> pl.DataFrame:
    """The table with texts as categories, which take a third of the memory and half of the time to group."""
    return table.with_columns(cs.string().cast(pl.Categorical))


def in_texts(table: pl.DataFrame) -> pl.DataFrame:
    """The table with categories as texts, to be joined with tables of texts."""
    return table.with_columns(cs.categorical().cast(pl.String))


@computed_once
def runs_of(table: pl.DataFrame) -> pl.DataFrame:
    """The columns regime, run, seed and task as texts: each combination once, in order."""
    return in_texts(table.select("regime", "run", "seed", "task").unique(maintain_order=True))


def write_heads_table(path: Path, table: pl.DataFrame, provenance: Mapping[str, str]) -> None:
    """Write the table with its provenance as the file's metadata."""
    table_files.write_parquet(table, path, provenance)


def read_heads_table(path: Path) -> tuple[pl.DataFrame, dict[str, str]]:
    """A table and its provenance; raises `ValueError` if the file cannot be read or lacks a column."""
    return table_files.read_complete(path, SCHEMA, "mtl probe")


FEWEST_ITEMS = 30
"""The number of items that a label needs to count: with fewer, one of many heads is above chance by luck."""
SKILL = "skill"
"""The name of what a task's probe scores above chance, whichever measure of `SKILLS` it is."""
POSITIONAL = "positional"
_RUN = ("setup", "regime", "run", "seed")
"""The columns that tell runs apart, if a table has rows of several runs."""
_OF_ARCS = ("attention", "syntactic")
_ROOT = r"(?i)^root\b"
_COUNTS = (pl.col("count") >= FEWEST_ITEMS) & ~(
    pl.col("measure").is_in(_OF_ARCS) & pl.col("label").cast(pl.String).str.contains(_ROOT)
)


def arcs_count(label: str, items: int) -> bool:
    """Whether a label of arcs counts in statements about a head (see `label_scores`)."""
    return items >= FEWEST_ITEMS and not re.search(_ROOT, label)


def weighted_mean(column: str | pl.Expr = "value") -> pl.Expr:
    """The mean of a column, each row as often as its `count` says."""
    value = pl.col(column) if isinstance(column, str) else column
    return (value * pl.col("count")).sum() / pl.col("count").filter(value.is_not_null()).sum()


def label_scores(heads: pl.DataFrame, measures: Mapping[str, str] = SKILLS) -> pl.DataFrame:
    """The rows of measures with a value per label and head, each beside its chance level.

    `heads` has the columns of heads.parquet, and any of setup, regime, run and seed; `measures` maps each
    measure to the one that holds its chance level. Further columns:

    - `chance`: that of the head, else of its layer, else of the label, else null;
    - `above`: the value less chance;
    - `counted`: whether the label counts in statements about a head. It needs `FEWEST_ITEMS` items. The
      relation `root` never counts: one end of its arc is the first special token, at which most heads look
      most of the time. It is recognised by its name, in upper or lower case and with any subtype (`root:x`).
      Tables contain names and no arcs, so a corpus that uses another name needs to be renamed.
    """
    values = heads.filter(pl.col("measure").is_in(list(measures))).drop_nulls("head")
    level = heads.filter(pl.col("measure").is_in(list(measures.values()))).with_columns(
        pl.col("measure").replace_strict(
            {level: name for name, level in measures.items()}, return_dtype=heads.schema["measure"]
        )
    )
    joined = _with_chance(values, level)
    return joined.with_columns(above=pl.col("value") - pl.col("chance"), counted=_COUNTS)


@computed_once
def skill_scores(heads: pl.DataFrame) -> pl.DataFrame:
    """The `label_scores` of all tasks' probes."""
    return label_scores(heads)


def _with_chance(values: pl.DataFrame, level: pl.DataFrame) -> pl.DataFrame:
    """The values with a column `chance`; measures have the same names in both tables.

    A chance level for all heads has no layer and no head, and one for the heads of a layer has no head.
    """
    label = [*_run_keys(values), "measure", "task", "label"]
    site = [*label, *KEYS[:-1]]
    levels = {
        "for_all": (label, level.filter(pl.col("layer").is_null())),
        "for_layer": (site, level.filter(pl.col("head").is_null()).drop_nulls("layer")),
        "for_head": ([*label, *KEYS], level.drop_nulls("head")),
    }
    joined = values
    for name, (keys, of_level) in levels.items():
        if of_level.is_empty():
            joined = joined.with_columns(pl.lit(None, pl.Float64).alias(name))
            continue
        joined = joined.join(
            of_level.select(*keys, pl.col("value").alias(name)),
            on=keys, how="left", nulls_equal=True, maintain_order="left",
        )  # fmt: skip
    return joined.with_columns(chance=pl.coalesce("for_head", "for_layer", "for_all")).drop(levels)


def best_of_labels(scores: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """The row of the best head of every task and label (the first head on ties), for each group of `by`.

    `scores` are those of `label_scores`, or means of them. `chance` becomes the best chance level of all
    heads, so that it is chosen from as many heads as the value beside it.
    """
    label = [*by, "task", "label"]
    highest = scores.with_columns(pl.col("chance").max().over(label)).filter(
        pl.col("value").eq_missing(pl.col("value").max().over(label))
    )
    first = highest.sort(
        -pl.col("value"), attention_order(sites_of(scores)), "layer", "head", maintain_order=True
    )
    return in_texts(first.group_by(label, maintain_order=True).first())


def head_scores(heads: pl.DataFrame, measure: str) -> pl.DataFrame:
    """One value per run, task and head: the columns that tell runs apart, `task`, those of `KEYS`, `value`.

    For measures with a chance level, only labels that count are used (`label_scores`). Skill is the mean over
    labels of what is above chance, at least 0 on each label, weighted by items. `syntactic` is that of the
    relation and direction farthest above chance, and `positional` that of the best offset. Other measures are
    those of the whole task (label ""), or the mean over labels, weighted by items. If there are several
    choices (such as epochs), the last one is taken.
    """
    row = BY_NAME.get(measure)
    by = [*_run_keys(heads), "task"]
    if measure == SKILL or (row is not None and row.chance is not None):
        chance = SKILLS if measure == SKILL else {measure: BY_NAME[measure].chance or ""}
        rows = _last(label_scores(heads, chance)).filter("counted").drop_nulls("chance")
        skilled = measure == SKILL or BY_NAME[measure].skill
        value = weighted_mean(pl.col("above").clip(0)) if skilled else pl.col("above").max()
    else:
        rows = _last(heads.filter(pl.col("measure") == measure).drop_nulls("head"))
        whole = (pl.col("label") == "").any().over(by)
        rows = rows.filter((pl.col("label") == "") | ~whole)
        value = pl.col("value").max() if measure == POSITIONAL else weighted_mean()
    return in_texts(rows.group_by(*by, *KEYS, maintain_order=True).agg(value=value))


def _last(rows: pl.DataFrame) -> pl.DataFrame:
    keys = [*_run_keys(rows), "measure", "task", "label", *KEYS]
    return rows.group_by(keys, maintain_order=True).last()


def _run_keys(table: pl.DataFrame) -> list[str]:
    return [name for name in _RUN if name in table.columns]


def best_heads(table: pl.DataFrame) -> pl.DataFrame:
    """Per task and label the best head of the task's probe (the first one on ties) beside its chance level.

    For attention, `chance` is the best fixed offset; for clustering, it is the best head under shuffled
    labels, chosen from as many heads as the value beside it. `length` is the mean length of arcs. `counted`
    says whether the label counts in the means.
    """
    label = ["task", "label"]
    best = best_of_labels(label_scores(table))
    majorities = [measure.majority for measure in MEASURES if measure.majority is not None]
    majority = table.filter(pl.col("measure").is_in(majorities)).select(*label, majority="value")
    lengths = [measure.length for measure in MEASURES if measure.length is not None]
    length = table.filter(pl.col("measure").is_in(lengths)).select(*label, length="value")
    numbers = ("count", "value", *KEYS, "chance", "majority", "length")
    columns = ("measure", *label, *numbers, "choice", "counted")
    rows = best.join(majority, on=label, how="left").join(length, on=label, how="left").select(columns)
    return by_catalogue(rows.sort("count", "label", descending=[True, False]))


def weighted_means(best: pl.DataFrame) -> pl.DataFrame:
    """Per task the means of the best heads' values and of chance over labels that count, weighted by items.

    Null for a task without such a label.
    """
    counted = pl.col("counted")

    def mean(column: str) -> pl.Expr:
        of = pl.when(counted).then(pl.col(column))
        return pl.when((counted & pl.col(column).is_not_null()).any()).then(weighted_mean(of)).alias(column)

    means = (
        best.group_by("measure", "task", "choice", maintain_order=True)
        .agg(
            mean("value"), mean("chance"), mean("majority"), labels=counted.sum(),
            items=pl.col("count").filter(counted).sum(), left_out=(~counted).sum(),
        )
        .select("measure", "task", "choice", "labels", "items", "value", "chance", "majority", "left_out")
    )  # fmt: skip
    return by_catalogue(means)


def labels_left_out(mean: Mapping[str, Any]) -> str:
    """How many labels a row of `weighted_means` leaves out, and why; empty if none is left out."""
    if not mean["left_out"]:
        return ""
    number = f"{counted(mean['left_out'], 'label')}"
    return f"{number} marked * left out of the mean: root, or fewer than {FEWEST_ITEMS} items"


def label_name(row: Mapping[str, Any]) -> str:
    """The label of a row of `best_heads`, with a star if it does not count."""
    return row["label"] + ("" if row["counted"] else " *")


def markdown_summaries(best: pl.DataFrame, means: pl.DataFrame) -> str:
    """Both summaries as Markdown tables, one per task, with numbers in per cent."""
    parts, named = [], with_names(best)
    for mean in means.iter_rows(named=True):
        measure = BY_NAME[mean["measure"]]
        with_length = measure.length is not None
        titles = ["label", "count", "best head", "head", measure.chance_title, *[LENGTH] * with_length]
        lines = [
            f"## {mean['task']}: {mean['measure']} ({mean['choice']})",
            "",
            f"| {' | '.join(titles)} |",
            "|---|" + "---:|" * (len(titles) - 1),
        ]
        of_task = named.filter((pl.col("task") == mean["task"]) & (pl.col("measure") == mean["measure"]))
        lines += [
            f"| {_escaped(label_name(row))} | {row['count']:,} | {per_cent(row['value'])} | "
            f"{hit_by(row)} | {per_cent(row['chance'])} |" + f" {length_of(row)} |" * with_length
            for row in of_task.iter_rows(named=True)
        ]
        most, rest = "", _escaped(labels_left_out(mean))
        if measure.majority is not None:
            most = f"; the most frequent label alone: {per_cent(mean['majority'])}"
        lines += [
            f"| *weighted mean* | {mean['items']:,} | {per_cent(mean['value'])} | | "
            f"{per_cent(mean['chance'])} |" + " |" * with_length,
            "",
            f"{counted(mean['labels'], 'label')}{most}." + (f" {rest[0].upper()}{rest[1:]}." if rest else ""),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    """Text that Markdown prints literally in a cell of a table."""
    return text.replace("|", r"\|").replace("*", r"\*")


def hit_by(row: Mapping[str, Any]) -> str:
    """The name of the best head of a row of `best_heads` with names; empty for a label that no head hits."""
    return row["name"] if row["value"] else ""


LENGTH = "mean length"
"""The title of the column with the mean length of a label's arcs, in words."""


def length_of(row: Mapping[str, Any]) -> str:
    """The mean length in a row of `best_heads`, with one decimal; empty for arcs from the root."""
    return "" if row["length"] is None else f"{row['length']:.1f}"


def per_cent(share: float | None) -> str:
    """A share in per cent, with one decimal."""
    return "" if share is None else f"{100 * share:.1f}"


def printed_best_heads(skill: pl.DataFrame) -> pl.DataFrame:
    """The best head of each label in a table `skills`, by name."""
    best = best_of_labels(skill, ("regime",)).sort("count", "label", descending=[True, False])
    best = by_catalogue(best)
    sites = sites_of(skill)
    heads = [
        head_name(Site(attention, layer), head, sites)
        for attention, layer, head in best.select(KEYS).iter_rows()
    ]
    return best.select(
        "regime", "task", "label", "count", pl.Series("best head", heads, dtype=pl.String),
        pl.col("value").alias("accuracy"), "chance", "counted",
    )  # fmt: skip


def open_heads_by_mask(table: pl.DataFrame, by: str, kept: str = "kept") -> pl.DataFrame:
    """Per mask (`by`), the numbers of heads that it keeps and a target forced, and the kept ones' names."""
    sites = sites_of(table)
    rows = []
    for (mask,), of_mask in table.group_by(by, maintain_order=True):
        cells = of_mask.filter(kept)
        names = [
            head_name(Site(kind, layer), head, sites) for kind, layer, head in cells.select(KEYS).iter_rows()
        ]
        forced = of_mask.filter("forced")[kept]
        rows.append((mask, cells.height, forced.sum(), forced.len() - forced.sum(), " ".join(names)))
    counts = ("kept", "opened_by_force", "closed_by_force")
    schema = {by: pl.String, **dict.fromkeys(counts, pl.Int64), "heads": pl.String}
    return pl.DataFrame(rows, schema, orient="row")
