"""The heads that all tasks keep, by name, with what each does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from mtl.probes.measures.table import BY_NAME
from mtl.probes.report.number_format import number
from mtl.probes.sites import KEYS
from mtl.probes.statistics.masks import Masks
from mtl.probes.tables.heads_table import in_texts
from mtl.probes.tables.label_scores import POSITIONAL, label_scores

CLEAR = 0.2
"""How far above chance a head must be at what the page says it does."""
CLEAR_ALONE = 0.5
"""The share that a head must reach at what has no chance level."""
SHOWN = 12
"""The number of heads that are listed; the others are folded away."""
_REGIMES = ("stl", "joint", "static")
"""Whose probes say what a head does, the preferred one first: claims are those of single-task runs."""
_PLACES = {"0": "the word itself", "+1": "the next word", "-1": "the previous word"}
_RELATIONS = {"to dependent": "from a word to its {}", "to head": "from a word’s {} to the word"}
_IN_WORDS = {
    "nsubj": "subject", "nsubj:pass": "passive subject", "obj": "object", "iobj": "indirect object",
    "det": "determiner", "amod": "adjective", "advmod": "adverb", "aux": "auxiliary", "case": "case marker",
    "compound": "compound part", "conj": "conjunct", "cc": "conjunction", "cop": "copula", "mark": "marker",
    "nmod:poss": "possessor", "nummod": "number",
}  # fmt: skip
"""Relations of Universal Dependencies in words."""
_LOOKS = ("syntactic", "attention", POSITIONAL, "rare_words")
"""Measures of where a head looks; they take precedence over what its output distinguishes."""
_ROLES = (*_LOOKS, "clustering")


@dataclass(frozen=True)
class KeptHead:
    """A head that all tasks claim."""

    cell: int
    """The number of the head, counted over all sites."""
    learned: int
    """The number of tasks that learned to keep the head, without the force of a target."""
    does: str
    """What it does: `looks at the next word in 80 %`; empty if no probe is clearly above chance."""
    task: str = ""
    """The task of the relation that the head finds; empty if it finds none."""
    relation: str = ""
    """The relation that the head finds, such as `nsubj`; empty if it finds none."""


class Role(NamedTuple):
    """What a head does most clearly."""

    words: str
    task: str
    relation: str
    """The relation that the head finds; with `task` its task. Both are empty if it finds none."""


@dataclass(frozen=True)
class KeptHeads:
    """The list of heads on the first screen."""

    heads: Sequence[KeptHead]
    tasks: int
    regime: str
    """The regime whose probes say what heads do; empty without probes."""


def kept_heads(claimed: Masks | None, heads: pl.DataFrame | None) -> KeptHeads | None:
    """The heads that every task claims; those that most tasks learned come first. `None` without two tasks.

    `heads` has the columns of heads.parquet of all runs, with `regime`, `run` and `seed`.
    """
    if claimed is None or len(claimed.tasks) < 2:
        return None
    common = np.all(claimed.claimed(), axis=0, keepdims=True)[0]
    learned = (claimed.claimed() & claimed.learned_claims()).sum(0)
    present = set() if heads is None else set(heads["regime"].unique())
    regime = next((name for name in _REGIMES if name in present), "")
    roles = {} if heads is None or not regime else head_roles(heads.filter(regime=regime))
    found = []
    for place, site in enumerate(claimed.sites):
        for head in range(common.shape[1]):
            if common[place, head]:
                does = roles.get((*site, head), Role("", "", ""))
                found.append(KeptHead(place * common.shape[1] + head, int(learned[place, head]), *does))
    return KeptHeads(sorted(found, key=lambda head: -head.learned), len(claimed.tasks), regime)


def head_roles(heads: pl.DataFrame) -> dict[tuple[str, int, int], Role]:
    """By attention, layer and head, what the head does most clearly above chance, as a mean over runs.

    Labels that do not count (`label_scores`) are left out, and so are labels of punctuation. Positions have
    no chance level. Heads that do nothing clearly (`CLEAR`, `CLEAR_ALONE`) are left out.
    """
    chances = {name: BY_NAME[name].chance or "" for name in _ROLES}
    scores = label_scores(heads, {name: level for name, level in chances.items() if level}).filter("counted")
    plain = pl.col("measure").is_in([name for name, level in chances.items() if not level])
    others = heads.filter(plain).with_columns(above="value", chance=pl.lit(None, pl.Float64))
    columns = ("measure", "task", "label", *KEYS, "value", "chance", "above")
    means = (
        pl.concat([table.select(columns) for table in (scores, others)])
        .drop_nulls("above")
        .group_by("measure", "task", "label", *KEYS, maintain_order=True)
        .agg(pl.col("value", "chance", "above").mean())
    )
    best = (
        in_texts(means)
        .filter(pl.col("above") >= pl.when(pl.col("chance").is_null()).then(CLEAR_ALONE).otherwise(CLEAR))
        .filter(pl.col("label").str.contains(r"\w") | (pl.col("label") == ""))
        .sort(pl.col("measure").is_in(_LOOKS), "above", descending=True, maintain_order=True)
        .group_by(KEYS, maintain_order=True)
        .first()
    )
    return {(row["attention"], row["layer"], row["head"]): _role(row) for row in best.iter_rows(named=True)}


def _role(row: dict[str, float | str]) -> Role:
    label, task, relation = str(row["label"]), "", ""
    match row["measure"]:
        case "positional":
            words = f"looks at {_PLACES.get(label) or _far(int(label))}"
        case "rare_words":
            words = "looks at the rarest word of the sentence"
        case "syntactic":
            (relation, _, direction), task = label.partition(" "), str(row["task"])
            called = f"{_IN_WORDS[relation]} ({relation})" if relation in _IN_WORDS else relation
            words = f"looks {_RELATIONS.get(direction, direction + ' {}').format(called)}"
        case "attention":
            words, task, relation = f"finds the other end of {label} ({row['task']})", str(row["task"]), label
        case _:
            words = f"tells {label} from other labels ({row['task']})"
    chance = "" if row["chance"] is None else f", chance {number(float(row['chance']), 0, 100)} %"
    return Role(f"{words} in {number(float(row['value']), 0, 100)} %{chance}", task, relation)


def _far(offset: int) -> str:
    return f"the word {abs(offset)} {'ahead' if offset > 0 else 'back'}"
