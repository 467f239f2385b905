"""All that is said about heads uses one definition of what a head scores on a label.

One table has a head that is best by `root` alone, one that is best by a rare label alone, one that is best by
a label without anything above chance, and one that is best by a label that counts. Every user must name that.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from mtl.probes.figures.scores import label_accuracy
from mtl.probes.report.head_maps import heads_data
from mtl.probes.sites import Site
from mtl.probes.statistics.head_values import (
    head_values,
    heads_of_roles,
    heads_with_roles,
    label_values,
    skills,
)
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import (
    FEWEST_ITEMS,
    best_heads,
    best_of_labels,
    head_scores,
    label_scores,
    markdown_summaries,
    weighted_mean,
    weighted_means,
)

ROOT, RARE, LUCKY, GOOD = range(4)
"""The planted heads, of one layer."""
SITES = (Site("self", 0),)
LABELS = ("root", "vocative", "det", "obj")
COUNTS = (400, FEWEST_ITEMS - 1, 500, 300)
CHANCE = np.array([0.1, 0.1, 0.9, 0.3])
VALUE = np.full((4, 4), 0.05)
VALUE[range(4), (ROOT, RARE, LUCKY, GOOD)] = (1.0, 1.0, 0.9, 0.5)
ABOVE = {"obj": 0.2}
"""What is above chance on labels that count."""


def planted(regime: str = "stl", labels: tuple[str, ...] = LABELS, value: np.ndarray = VALUE) -> pl.DataFrame:
    """Rows of heads.parquet of one run, both as a probe of DEP and as roles, in both directions."""
    parts = []
    for measure, level, names in (
        ("attention", "attention_offset", labels),
        ("syntactic", "syntactic_offset", tuple(f"{label} to head" for label in labels)),
    ):
        counts = np.array(COUNTS)
        parts.append(heads_table.rows(measure, "dep", names, value[:, None], counts))
        parts.append(heads_table.rows(level, "dep", names, CHANCE, counts))
    return pl.concat(parts).with_columns(
        regime=pl.lit(regime), setup=pl.lit(regime), run=pl.lit(f"{regime}-1"), seed=pl.lit(1)
    )


HEADS = pl.concat([planted("stl"), planted("joint")])


def best(table: pl.DataFrame, column: str = "value") -> int:
    return int(table.sort(column, descending=True)["head"][0])


def by_explorer_measures() -> set[str]:
    data = heads_data(SITES, 4, {}, None, skills(HEADS), None, HEADS)
    [syntactic] = [each for each in data["measures"] if "relation" in each["title"]]
    return {label for _, label in syntactic["rows"]}


def by_explorer_labels() -> set[str]:
    data = heads_data(SITES, 4, {}, None, skills(HEADS), None, HEADS)
    return {label for _, label, _, counted in data["labels"] if counted}


USERS = {
    "skill of heads": lambda: best(head_values(HEADS).filter(measure="skill", setup="stl")),
    "syntactic heads": lambda: best(head_values(HEADS).filter(measure="syntactic", setup="stl")),
    "skills": lambda: best(skills(HEADS).filter("counted", regime="stl"), "skill"),
}


@pytest.mark.parametrize("user", USERS)
def test_the_best_head_is_best_by_a_label_that_counts(user: str) -> None:
    assert USERS[user]() == GOOD


def test_only_labels_that_count_are_in_summaries() -> None:
    assert set(heads_of_roles(planted())["label"]) == {"obj to head"}
    assert heads_with_roles(planted())["head"].to_list() == [GOOD]
    assert by_explorer_measures() == {"det to head", "obj to head"}
    assert by_explorer_labels() == {"det", "obj"}
    values = label_values(HEADS)
    assert values.filter("counted")["label"].to_list() == ["det", "obj"]
    drawn = {text.get_text() for text in label_accuracy(values).axes[0].get_xticklabels()}
    assert drawn == {"det\n500", "obj\n300"}
    expected = (500 * 0.9 + 300 * 0.5) / 800
    means = weighted_means(best_heads(planted().drop("setup", "regime", "run", "seed")))
    assert means.select("labels", "items", "value", "left_out").row(0) == (2, 800, pytest.approx(expected), 2)


def test_means_of_all_users_are_one_number() -> None:
    """Skill of a head: 300 of 800 items that count are 0.2 above chance, `det` is not above it."""
    expected = 300 * 0.2 / 800
    of_run = planted()
    assert head_scores(of_run, "attention")["value"].to_list()[GOOD] == pytest.approx(expected)
    assert head_scores(of_run, "skill").equals(head_scores(of_run, "attention"))
    values = head_values(HEADS).filter(measure="skill", setup="stl").sort("head")["value"].to_list()
    assert values == pytest.approx([0, 0, 0, expected])
    counted = skills(HEADS).filter("counted", regime="stl")
    means = counted.group_by("head").agg(value=weighted_mean("skill")).sort("head")["value"].to_list()
    assert means == pytest.approx(values)
    assert head_scores(of_run, "syntactic")["value"].to_list()[GOOD] == pytest.approx(0.2)


def test_roles_by_arcs_of_several_tasks_are_one_value_per_head() -> None:
    """As a study's probes find them, which have the arcs of all of its tasks."""
    lower = planted().with_columns(pl.col("value") - 0.05, task=pl.lit("own"))
    for tables in ((planted(), lower), (lower, planted())):
        values = head_values(pl.concat(tables)).filter(measure="syntactic")
        assert values.height == values.select("task", "head").n_unique() == 8
        assert values.filter(head=GOOD)["value"].to_list() == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize("name", ["root", "ROOT", "Root", "root:x", "root to head", "rooted", "chroot"])
def test_the_root_is_known_however_it_is_written(name: str) -> None:
    table = planted(labels=(name, *LABELS[1:]))
    scores = label_scores(table).filter(label=name)
    assert scores["counted"].any() == (name in ("rooted", "chroot"))


def test_a_tag_named_root_is_no_arc() -> None:
    table = planted().with_columns(
        measure=pl.col("measure").replace(
            {"attention": "clustering", "attention_offset": "clustering_shuffled"}
        )
    )
    assert label_scores(table, {"clustering": "clustering_shuffled"}).filter(label="root")["counted"].all()


def test_a_table_without_labels_that_count_says_so() -> None:
    few = planted().with_columns(count=pl.lit(FEWEST_ITEMS - 1, dtype=pl.Int64))
    best = best_heads(few)
    means = weighted_means(best)
    assert means.select("labels", "value", "chance", "left_out").row(0) == (0, None, None, 4)
    assert "4 labels marked" in markdown_summaries(best, means)


def test_the_best_head_of_a_label_is_the_first_on_ties() -> None:
    of_label = best_of_labels(label_scores(HEADS), ("regime",))
    assert of_label.filter(regime="stl", label="obj")["head"].to_list() == [GOOD]
    tied = label_scores(planted(value=np.ones((4, 4))))
    assert set(best_of_labels(tied)["head"]) == {0}


def test_the_definition_is_written_once() -> None:
    """No other module weighs labels by their items, joins chance levels, or knows the root's relation."""
    root = Path(__file__).parents[3]
    weighing = re.compile(r"col\(\"count\"\)\)\.sum\(\) */|\(\?i\)\^root|_offset\"|str\.contains\(.*root")
    found = {
        str(path.relative_to(root))
        for package in ("probes", "mtl")
        for path in (root / package).rglob("*.py")
        if weighing.search(path.read_text()) and not path.is_relative_to(root / "mtl" / "corpora")
    }
    measures = {f"probes/measures/{name}.py" for name in ("attention", "groups", "roles")}
    assert found - measures == {"probes/tables/heads_table.py"}
