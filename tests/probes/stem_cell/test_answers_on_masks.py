"""The first screen's answers on what masks cost, and on the heads that tasks have in common."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest

from mtl.probes.report.data import HISTORY, SCORES, ClaimingSetup, Claims, ReportData, Setup
from mtl.probes.report.page_part import PageData
from mtl.probes.sites import Site
from mtl.probes.statistics.masks import Masks, task_overlaps
from mtl.probes.stem_cell.answers import common_answer, heads_kept_text, masks_answer

ALONE = Setup("STL", None, single=True)
MASKED = Setup("STL, dynamic", "STL", single=True, pruning="dynamic")
TASKS = ("pos", "dep")


def masks(common: int, learned: int | None = None, kept: int = 12) -> Masks:
    """Two tasks, three seeds, 6 layers of 12 heads; two of each layer, of which `common` are the same.

    A target has forced all but `learned` of each mask open; `None`: none.
    """
    opened = np.zeros((2, 3, 6, 12), dtype=bool)
    for place in range(kept):
        opened[0, :, place % 6, place // 6] = True
        opened[1, :, place % 6, place // 6 + (0 if place < common else 4)] = True
    known = opened.copy()
    for one in known.reshape(6, -1):
        one[np.flatnonzero(one)[kept if learned is None else learned :]] = False
    sites = tuple(Site("self", layer) for layer in range(6))
    return Masks(TASKS, (1, 2, 3), sites, opened.astype(float), opened, known)


def page(lost: float, of_masks: Masks | None = None, setup: Setup = MASKED, spread: float = 0.2) -> PageData:
    """Masks cost POS nothing, and DEP `lost` points; `spread`: between seeds."""
    scores = [
        (name, task, seed, "", 90.0 + spread * seed - (lost if name == setup.name and task == "dep" else 0.0))
        for name in ("STL", setup.name)
        for task in TASKS
        for seed in (1, 2, 3)
    ]
    data = ReportData(
        name="masks", encoder="minilm", setups=(ALONE, setup),
        scores=pl.DataFrame(scores, schema=SCORES, orient="row"),
        metrics={"pos": "accuracy", "dep": "las"}, split="test", gates=None, heads=None,
        history=pl.DataFrame(schema=HISTORY), kept=None, runs=pl.DataFrame(), probes=pl.DataFrame(),
        notes=(),
    )  # fmt: skip
    by_setup = {} if of_masks is None else {setup.name: of_masks}
    return PageData(data, by_setup, Claims(ClaimingSetup(setup.name, ""), of_masks))


@pytest.mark.parametrize(
    ("lost", "spread", "word"), [(5.0, 0.2, "yes"), (0.1, 0.2, "no"), (0.7, 0.8, "cannot tell")]
)
def test_the_word_on_masks_is_on_what_they_cost(lost: float, spread: float, word: str) -> None:
    answer = masks_answer(page(lost, masks(4), spread=spread))
    assert answer.word == word
    assert answer.scope == ("for dep" if word == "yes" else "")
    assert answer.record()["scope"] == answer.scope
    assert (" Yes, for dep: with 12 of 72 heads, " in answer.line()) == (word == "yes")
    assert answer.reason.startswith("with 12 of 72 heads, ")
    assert ("dep scores 5.00 points less than with all" in answer.reason) == (word == "yes")
    assert list(answer.tables) == ["masks-cost"]


@pytest.mark.parametrize(
    "given",
    [
        page(5.0),
        page(5.0, masks(4), Setup("STL, dynamic", "STL", single=True, pruning="dynamic", unlike=("seed",))),
        page(5.0, masks(4), Setup("STL, fixed", "STL", single=True, pruning="fixed")),
        page(5.0, masks(4), Setup("MTL-2, dynamic", "STL", single=False, tasks=2, pruning="dynamic")),
    ],
    ids=["no masks", "trained otherwise", "given masks", "joint"],
)
def test_masks_are_compared_only_with_their_like(given: PageData) -> None:
    assert masks_answer(given).word == "cannot tell"


def test_masks_of_several_sizes_are_called_so() -> None:
    several = masks(4)
    several.opened[0, 0, 0, 0] = False
    assert heads_kept_text(several) == "11 to 12 of 72 heads"


@pytest.mark.parametrize(("common", "word"), [(10, "yes"), (2, "cannot tell")])
def test_the_word_on_common_heads_is_the_finding_on_overlap(common: int, word: str) -> None:
    made = masks(common)
    answer = common_answer(page(0.0, made))
    assert answer.word == word
    row = task_overlaps(made).row(0, named=True)
    assert (row["finding"] == "more than chance") == (word == "yes")
    expected = f"({common}; by chance {row['expected_layers']:.1f}; corrected p "
    said = f"pos and dep keep more of the same heads than by chance {expected}"
    assert (said in answer.reason) == (word == "yes")


def test_heads_that_a_target_opened_are_no_common_heads() -> None:
    answer = common_answer(page(0.0, masks(10, learned=1)))
    assert answer.word == "cannot tell"
    assert answer.reason == "for 1 pair there is no evidence either way"


def test_common_heads_need_three_seeds() -> None:
    """Runs of one seed share random numbers, which may decide what masks of a short training keep."""
    made = masks(10)
    two = Masks(TASKS, (1, 2), made.sites, made.gate[:, :2], made.opened[:, :2], made.learned[:, :2])
    answer = common_answer(page(0.0, two))
    assert answer.word == "cannot tell"
    assert answer.reason == "masks of 2 seeds that all tasks have, and 3 are needed"


@pytest.mark.parametrize(("shut", "word"), [(12, "yes"), (13, "cannot tell")])
def test_masks_that_were_closed_by_force_have_no_common_heads(shut: int, word: str) -> None:
    """Training had these heads open, too, and the target has closed more of them than it has left."""
    made = masks(10)
    learned = made.opened.copy()
    for task, seed in np.ndindex(2, 2):  # two of three seeds
        learned[task, seed].flat[np.flatnonzero(~made.opened[task, seed])[:shut]] = True
    answer = common_answer(page(0.0, dataclasses.replace(made, learned=learned)))
    assert answer.word == word
    assert (answer.reason == "masks of pos, dep were mostly closed by force") == (word != "yes")


def test_fewer_common_heads_than_by_chance_are_a_no() -> None:
    apart = np.zeros((2, 3, 6, 12), dtype=bool)
    apart[0, :, :, :6], apart[1, :, :, 6:] = True, True
    made = Masks(TASKS, (1, 2, 3), masks(0).sites, apart.astype(float), apart, apart)
    answer = common_answer(page(0.0, made))
    assert answer.word == "no"
    assert "pos and dep keep fewer of the same heads than by chance (0; by chance 18.0; " in answer.reason


def test_without_masks_nothing_is_said_on_common_heads() -> None:
    assert common_answer(page(0.0)).word == "cannot tell"


@pytest.mark.parametrize("name", ["control", "noise"])
def test_what_masks_cost_is_said_of_real_labels_whatever_the_others_are_called(name) -> None:
    given = page(5.0, masks(4))
    random = pl.DataFrame(
        [(setup, name, seed, "", 50.0 + seed / 10 - (9 if setup != "STL" else 0))
         for setup in ("STL", "STL, dynamic") for seed in (1, 2, 3)],
        SCORES, orient="row",
    )  # fmt: skip
    data = dataclasses.replace(
        given.data, scores=pl.concat([given.data.scores, random]), only_compared=frozenset({name})
    )
    answer = masks_answer(dataclasses.replace(given, data=data))
    assert name not in answer.reason
    assert set(answer.tables["masks-cost"]["task"]) == {"pos", "dep", "mean"}
    real = dataclasses.replace(data, only_compared=frozenset())
    with_real = masks_answer(dataclasses.replace(given, data=real))
    assert f"{name} scores 9.00 points less" in with_real.reason


def test_what_forced_masks_cost_is_said_with_how_many_heads_were_learned() -> None:
    assert masks_answer(page(5.0, masks(4, learned=5))).reason.startswith(
        "heads that most seeds keep: pos 12 (training chose 5), "
    )


def test_the_answer_on_common_heads_counts_the_pairs_that_it_holds_for() -> None:
    two = masks(10)
    other = np.zeros_like(two.opened[:1])
    other[:, :, 3:, 8:] = True  # twelve heads that neither has
    three = Masks(
        ("pos", "dep", "con"), two.seeds, two.sites,
        *(np.concatenate([each, other.astype(each.dtype)]) for each in (two.gate, two.opened, two.learned)),
    )  # fmt: skip
    given = common_answer(page(0.0, three))
    assert (given.word, given.scope) == ("yes", "for 1 of 3 pairs")
    assert given.line().startswith(
        "Do tasks keep the same heads more often than by chance? Yes, for 1 of 3 pairs: pos and dep keep more"
    )
    same = Masks(
        ("pos", "dep", "con"), two.seeds, two.sites,
        *(np.concatenate([each, each[:1]]) for each in (two.gate, two.opened, two.learned)),
    )  # fmt: skip
    everyone = common_answer(page(0.0, same))
    assert everyone.scope == "for all 3 pairs"
    assert everyone.reason.startswith(
        "they keep more of the same heads than by chance, most clearly pos and con (12; by chance 2.0; "
    )
