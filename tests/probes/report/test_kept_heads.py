"""The first screen's heads: which ones all tasks keep, and what each is said to do."""

from __future__ import annotations

import dataclasses
import shlex

import numpy as np
import polars as pl
import pytest

from mtl.probes.report.data import RunExamples
from mtl.probes.report.kept_heads import KeptHead, KeptHeads, head_examples, head_roles, kept_heads
from mtl.probes.sites import Site
from mtl.probes.statistics.masks import Masks
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import ExampleArc, ExampleSentence, ExampleTables

HEADS = 7


def measured(measure, label, values, task="", count=100):
    """A layer of heads in a single-task run."""
    table = heads_table.rows(measure, task, [label], np.array([[values]]), np.array([count]))
    return table.with_columns(regime=pl.lit("stl"), run=pl.lit("a"), seed=1)


def level(measure, label, value, task="dep", count=100):
    return measured(measure, label, [value], task, count).with_columns(head=pl.lit(None, pl.Int32))


@pytest.fixture
def heads():
    none = [0.0] * HEADS

    def of(head, value):
        return [value if place == head else 0.0 for place in range(HEADS)]

    return pl.concat([
        measured("positional", "+1", [0.8, 0.3, *none[2:]]),
        measured("positional", "-3", of(4, 0.6)),
        measured("syntactic", "nsubj to dependent", of(1, 0.91), "dep"),
        level("syntactic_offset", "nsubj to dependent", 0.3),
        measured("syntactic", "acl to head", of(5, 0.99), "dep", count=10),
        level("syntactic_offset", "acl to head", 0.1, count=10),
        measured("clustering", "NNP", [0.95, 0.0, 0.6, *none[3:]], "pos"),
        measured("clustering_shuffled", "NNP", [0.1, 0.0, 0.2, *none[3:]], "pos"),
        measured("clustering", ".", of(3, 1.0), "pos"),
        measured("clustering_shuffled", ".", none, "pos"),
    ])  # fmt: skip


def test_a_head_does_what_it_is_farthest_above_chance_in(heads) -> None:
    found = head_roles(heads)
    roles = {head: role.words for (_, _, head), role in found.items()}
    assert {head: role[1:] for (_, _, head), role in found.items() if role.relation} == {1: ("dep", "nsubj")}
    assert roles == {
        0: "looks at the next word in 80 %",  # where it looks comes before what it tells apart
        1: "looks from a word to its subject (nsubj) in 91 %, chance 30 %",
        2: "tells NNP from other labels (pos) in 60 %, chance 20 %",
        4: "looks at the word 3 back in 60 %",
    }  # 3 is about punctuation, 5 about a label with few items, 6 does nothing


def test_heads_of_all_tasks_come_with_how_many_tasks_learned_them(heads) -> None:
    opened = np.zeros((2, 3, 1, HEADS), bool)
    opened[..., :3] = True
    opened[1, 1:, 0, 2] = False  # one of three seeds
    learned = opened.copy()
    learned[0, 1:, 0, 0] = False
    masks = Masks(("pos", "dep"), (1, 2, 3), (Site("self", 0),), opened * 1.0, opened, learned)
    found = kept_heads(masks, heads)
    assert [(head.cell, head.learned) for head in found.heads] == [(1, 2), (0, 1)]
    assert found.heads[1].does == "looks at the next word in 80 %"
    assert (found.tasks, found.regime) == (("pos", "dep"), "stl")
    assert found.expected == pytest.approx(3 * 2 / HEADS)
    assert [head.does for head in kept_heads(masks, None).heads] == ["", ""]
    assert kept_heads(None, heads) is None


def seen(regime, attended, hit):
    """Two sentences, in which one head attends so, and hits the subjects so."""
    sentences = tuple(
        ExampleSentence(words, (ExampleArc("dep", "nsubj", 0, 1, 1), ExampleArc("dep", "root", 1, 2, -1)))
        for words in (("Ann", "sang", "<b>", "."), ("Bob", "ran", "far", "."))
    )
    rows = [
        ("", place, "self", 0, 1, to, [90, 80, 70, 60], [met, False])
        for place, (to, met) in enumerate(zip(attended, hit, strict=True))
    ]
    columns = ("mask", "sentence", "attention", "layer", "head", "attended", "share", "hit")
    table = pl.DataFrame(rows, columns, orient="row")
    return RunExamples(regime, f"runs/{regime}", ("dep",), ExampleTables(sentences, table))


def test_heads_are_shown_on_their_best_and_worst_sentence_in_every_regime() -> None:
    known = KeptHead(1, 2, "looks from a word to its subject (nsubj) in 91 %", "dep", "nsubj")
    idle = KeptHead(0, 2, "")
    runs = (
        seen("pretrained", ([0, 0, 0, 0], [-1, 0, 2, 3]), (False, False)),
        seen("stl", ([1, 0, 1, -2], [3, -1, 2, 3]), (True, False)),
    )
    [found] = head_examples(
        KeptHeads([idle, known], ["pos", "dep"], "stl", 0.0), runs, (Site("self", 0),), HEADS, 12
    )
    assert (found.cell, found.relation) == (1, "nsubj")
    assert found.command == "mtl show runs/stl L0H1 --task=dep --relation=nsubj"
    (best, of_best), (worst, of_worst) = found.sentences
    assert (best, worst) == ("best: Ann sang <b> .", "worst: Bob ran far .")
    assert [regime for regime, _ in of_worst] == ["before training", "alone"]
    before, alone = (str(picture) for _, picture in of_best)
    assert "<b>" not in alone
    assert 'class="hit"' in alone
    assert 'class="missed"' not in alone
    assert 'class="missed"' in before
    assert "Ann to sang 90 %" in alone
    assert "nsubj of sang, Ann: hit" in alone
    assert "root of" not in alone
    assert head_examples(None, runs, (), 0, 12) == ()
    assert (
        head_examples(KeptHeads([known], ["pos", "dep"], "joint", 0.0), runs, (Site("self", 0),), HEADS, 12)
        == ()
    )


def test_of_several_runs_of_a_regime_the_first_is_shown_and_the_command_can_be_pasted() -> None:
    """In models with several kinds of attention the name of a head has a blank, as folders may have."""
    looks = KeptHead(1, 2, "looks at the next word in 80 %")
    run = seen("stl", ([1, 0, 1, -2], [3, -1, 2, 3]), (True, False))
    runs = [dataclasses.replace(run, run=f"my runs/{name}", tasks=(name,)) for name in ("pos", "dep")]
    sites = (Site("self", 0), Site("cross", 0))
    [found] = head_examples(KeptHeads([looks], ["pos", "dep"], "stl", 0.0), runs, sites, HEADS, 12)
    assert shlex.split(found.command) == ["mtl", "show", "my runs/pos", "self L0H1"]
    known = dataclasses.replace(looks, task="dep", relation="acl:relcl x")
    arc = run.examples.sentences[0].arcs[0]._replace(label="acl:relcl x")
    sentences = tuple(each._replace(arcs=(arc, each.arcs[1])) for each in run.examples.sentences)
    of_dep = dataclasses.replace(runs[1], examples=run.examples._replace(sentences=sentences))
    [found] = head_examples(KeptHeads([known], ["pos", "dep"], "stl", 0.0), [of_dep], sites, HEADS, 12)
    assert shlex.split(found.command)[2:] == [
        "my runs/dep",
        "self L0H1",
        "--task=dep",
        "--relation=acl:relcl x",
    ]
