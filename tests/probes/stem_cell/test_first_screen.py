"""Whether tasks want the same heads, whether sharing hurts, and conflict: planted worlds and by hand."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom

from mtl.probes.sites import Site
from mtl.probes.statistics.masks import Masks, jaccard
from mtl.probes.stem_cell.competition import conflict_by_claims
from mtl.probes.stem_cell.sharing import (
    alike_in_wants,
    draws_needed,
    exchange_test,
    sharing,
    wanted,
)
from tests.probes.stem_cell.worlds_contest import archive, world

DRAWS = 100
SITES = tuple(Site("self", layer) for layer in range(4))


def masks(rng, common, tasks=("pos", "dep", "srl", "control"), seeds=3):
    """Masks of 16 of 32 heads; all tasks but the control task share a wish of this strength."""
    wish = rng.normal(size=(len(tasks), 1, 4, 8)) + 0.4 * rng.normal(size=(len(tasks), seeds, 4, 8))
    wish[[task != "control" for task in tasks]] += common * rng.normal(size=(4, 8))
    lowest = np.sort(wish.reshape(*wish.shape[:2], -1), axis=-1)[..., 16, None, None]
    opened = wish >= lowest
    draws = {task: place for place, task in enumerate(tasks) if task == "control"}
    return Masks(tasks, tuple(range(1, seeds + 1)), SITES, opened.astype(float), opened, opened, draws)


def with_draws(rng, draws, common=0.0, needed=0.0, alike=0.0, tasks=5, seeds=3):
    """Masks of 16 of 32 heads of tasks and draws of random labels; wishes of a unit, and of a run.

    All units have a wish of the strength `needed` in common, the tasks one of the strength `common`, and the
    draws one of the strength `alike`.
    """
    units = tasks + draws
    wish = rng.normal(size=(units, 1, 4, 8)) + 0.4 * rng.normal(size=(units, seeds, 4, 8))
    for who, strength in ((slice(None), needed), (slice(tasks), common), (slice(tasks, None), alike)):
        wish[who] += strength * rng.normal(size=(4, 8))
    lowest = np.sort(wish.reshape(units, seeds, -1), axis=-1)[..., 16, None, None]
    opened = wish >= lowest
    names = (*(f"task{number}" for number in range(tasks)), *(f"control draw {n}" for n in range(draws)))
    drawn = {name: number for number, name in enumerate(names[tasks:])}
    return Masks(names, tuple(range(seeds)), SITES, opened.astype(float), opened, opened, drawn)


def exchanged(made):
    overlap = np.array([[jaccard(one, other).mean() for other in made.opened] for one in made.opened])
    return exchange_test(overlap, np.array([task not in made.draws for task in made.tasks]))


@pytest.mark.parametrize("seeds", [3, 10, pytest.param(30, marks=pytest.mark.slow)])
def test_one_draw_of_random_labels_decides_nothing_however_many_seeds(seeds):
    found = [wanted(masks(np.random.default_rng([1, draw]), 0.0, seeds=seeds)) for draw in range(40)]
    assert {one.word for one in found} == {"cannot tell"}
    assert all("with 1 draw of random labels" in one.reason for one in found)
    assert all("3 tasks has no p below 0.5; train masks on 5 draws" in one.reason for one in found)


WORLDS = 300


@pytest.mark.parametrize(
    ("draws", "seeds", "world"),
    [
        (3, 3, {}), (6, 3, {}), (6, 1, {"needed": 1.0}), (6, 8, {"needed": 1.0}),
        (6, 3, {"alike": 1.0}),  # random labels agree with each other, and no more with tasks than tasks do
    ],
)  # fmt: skip
@pytest.mark.slow
def test_where_tasks_and_random_labels_are_alike_a_word_comes_in_one_of_twenty(draws, seeds, world):
    found = [
        exchanged(with_draws(np.random.default_rng([draws, seeds, n]), draws, seeds=seeds, **world))
        for n in range(WORLDS)
    ]
    assert abs(np.mean([difference for difference, _ in found])) < 0.01
    assert sum(p <= 0.05 for _, p in found) <= binom.ppf(0.999, WORLDS, 0.05)


@pytest.mark.parametrize(
    ("world", "least"), [({"common": 1.0}, 0.9), ({"common": 1.0, "needed": 0.7, "alike": 1.0}, 0.75)]
)
@pytest.mark.slow
def test_what_tasks_want_in_common_is_found(world, least):
    found = [exchanged(with_draws(np.random.default_rng([1, n]), 6, **world)) for n in range(100)]
    assert np.mean([difference > 0 and p <= 0.05 for difference, p in found]) >= least


def test_words_come_from_the_test_and_none_from_too_few_draws():
    worlds = [with_draws(np.random.default_rng(n), 6, common=2.0) for n in range(5)]
    found = [wanted(made) for made in worlds]
    of_tasks = np.arange(11) < 5
    tested = [exchange_test(alike_in_wants(made.opened)[0], of_tasks)[1] for made in worlds]
    assert [one.word for one in found] == ["yes" if p <= 0.05 else "cannot tell" for p in tested]
    assert any(one.word == "yes" for one in found)
    assert wanted(with_draws(np.random.default_rng(0), 2, common=2.0)).word == "cannot tell"
    assert [draws_needed(tasks) for tasks in (2, 3, 4, 5)] == [8, 5, 4, 3]


def test_likeness_by_hand():
    made = with_draws(np.random.default_rng(5), 2, common=1.0, tasks=2)
    alike, repeats = alike_in_wants(made.opened)

    def correlation(one, other):
        parts = [mask - mask.mean(1, keepdims=True) for mask in (one.astype(float), other.astype(float))]
        return (parts[0] * parts[1]).sum() / np.sqrt((parts[0] ** 2).sum() * (parts[1] ** 2).sum())

    own = [
        np.mean([correlation(of[a], of[b]) for a, b in itertools.permutations(range(3), 2)])
        for of in made.opened
    ]
    np.testing.assert_allclose(repeats, own)
    assert min(own) > 0.1
    for one, other in itertools.permutations(range(4), 2):
        pairs = [correlation(a, b) for a in made.opened[one] for b in made.opened[other]]
        assert alike[one, other] == pytest.approx(np.mean(pairs) / np.sqrt(own[one] * own[other]))


def same_wants(rng, noise, draws, private, tasks=5, seeds=3, common=0.0, kept=14):
    """Masks of 14 of 72 heads by one wish of all units; those of tasks and of draws scatter differently.

    Masks of draws keep `kept` heads.
    """
    units = tasks + draws
    wish = rng.normal(size=(6, 12)) + private * rng.normal(size=(units, 1, 6, 12))
    wish[:tasks] += common * rng.normal(size=(6, 12))
    scatter = np.where(np.arange(units) < tasks, *noise)[:, None, None, None]
    wish = wish + scatter * rng.normal(size=(units, seeds, 6, 12))
    order = np.sort(wish.reshape(units, seeds, -1), axis=-1)
    lowest = np.concatenate([order[:tasks, :, -14], order[tasks:, :, -kept]])[..., None, None]
    opened = wish >= lowest
    names = (*(f"task{number}" for number in range(tasks)), *(f"control draw {n}" for n in range(draws)))
    sites = tuple(Site("self", layer) for layer in range(6))
    drawn = {name: number for number, name in enumerate(names[tasks:])}
    return Masks(names, tuple(range(seeds)), sites, opened.astype(float), opened, opened, drawn)


@pytest.mark.parametrize("noise", [(0.6, 0.6), (0.6, 0.9), (0.6, 1.2), (1.2, 0.6), (0.6, 5.0)], ids=str)
@pytest.mark.parametrize("private", [0.0, 0.5])
@pytest.mark.slow
def test_masks_that_repeat_less_are_not_masks_of_other_heads(noise, private):
    found = [wanted(same_wants(np.random.default_rng([2, n]), noise, 6, private)).word for n in range(WORLDS)]
    assert sum(word != "cannot tell" for word in found) <= binom.ppf(0.999, WORLDS, 0.08)


@pytest.mark.parametrize(("kept", "most"), [(18, 0.08), (30, 0.3)])
@pytest.mark.slow
def test_masks_of_other_sizes_are_taken_for_masks_of_other_heads(kept, most):
    worlds = [same_wants(np.random.default_rng([4, n]), (0.6, 0.6), 6, 0.5, kept=kept) for n in range(WORLDS)]
    assert sum(wanted(made).word != "cannot tell" for made in worlds) <= binom.ppf(0.999, WORLDS, most)


@pytest.mark.parametrize("noise", [(0.6, 0.6), (0.6, 0.9), (1.2, 0.6)], ids=str)
@pytest.mark.slow
def test_tasks_that_want_the_same_are_found_whether_or_not_draws_repeat_as_well(noise):
    worlds = [same_wants(np.random.default_rng([3, n]), noise, 6, 0.5, common=1.0) for n in range(100)]
    assert np.mean([wanted(made).word == "yes" for made in worlds]) >= 0.8


def test_masks_that_do_not_repeat_say_nothing():
    found = wanted(same_wants(np.random.default_rng(0), (0.6, 5.0), 6, 0.0, common=2.0))
    assert found.word == "cannot tell"
    assert "hardly repeat over seeds (correlation" in found.reason


def test_choices_by_hand_and_by_chance(monkeypatch):
    made = with_draws(np.random.default_rng(3), 3, tasks=3, seeds=1)
    overlap = np.array([[jaccard(one, other).mean() for other in made.opened] for one in made.opened])

    def difference(chosen):
        others = [unit for unit in range(6) if unit not in chosen]
        within = np.mean([overlap[a, b] for a, b in itertools.combinations(chosen, 2)])
        return within - np.mean([overlap[a, b] for a in chosen for b in others])

    every = np.array([difference(chosen) for chosen in itertools.combinations(range(6), 3)])
    low, high = (every <= every[0] + 1e-12).mean(), (every >= every[0] - 1e-12).mean()
    assert exchanged(made) == pytest.approx((every[0], min(1, 2 * min(low, high))))
    monkeypatch.setattr("mtl.probes.stem_cell.sharing.MOST_CHOICES", 19)
    assert exchanged(made) == pytest.approx((every[0], min(1, 2 * min(low, high))), abs=0.4)


@pytest.mark.parametrize("seeds", [3, 4, 8])
def test_chance_is_that_of_the_masks_beside_it(seeds):
    means = []
    for draw in range(30):
        rng = np.random.default_rng([seeds, draw])
        order = rng.random((3, seeds, 4 * 8)).argsort(-1)
        opened = (order < 12).reshape(3, seeds, 4, 8)
        seed_names = tuple(range(seeds))
        table = wanted(Masks(("pos", "dep", "srl"), seed_names, SITES, opened * 1.0, opened, opened)).table
        of_kind = table.group_by("kind").agg(pl.col("jaccard").mean())
        means.append(dict(of_kind.iter_rows()))
    between, chance = (np.mean([one[kind] for one in means]) for kind in ("between tasks", "by chance"))
    assert chance == pytest.approx(between, abs=0.02)


def test_jaccard_by_hand():
    made = masks(np.random.default_rng(0), 1.0)
    found = wanted(made).table
    pairs = found.filter(pl.col("kind") == "between tasks")
    assert pairs.select("first", "second").rows() == [("pos", "dep"), ("pos", "srl"), ("dep", "srl")]
    by_hand = np.mean([jaccard(made.opened[0, seed], made.opened[2, seed]) for seed in range(3)])
    assert pairs["jaccard"][1] == pytest.approx(by_hand)
    ceiling = found.filter((pl.col("kind") == "one task, seeds") & (pl.col("first") == "dep"))[
        "jaccard"
    ].item()
    assert ceiling == pytest.approx(
        np.mean(
            [jaccard(made.opened[1, a], made.opened[1, b]) for a, b in itertools.combinations(range(3), 2)]
        )
    )
    assert found.filter(pl.col("kind") == "with control").height == 3


def test_learned_heads_stand_beside_all_with_chance_of_their_own():
    made = masks(np.random.default_rng(0), 1.0)
    learned = made.opened & (np.random.default_rng(1).random(made.opened.shape) < 0.8)
    found = wanted(dataclasses.replace(made, learned=learned))
    alone = wanted(dataclasses.replace(made, opened=learned, learned=learned))
    assert found.table["jaccard"].equals(wanted(made).table["jaccard"])
    assert found.table["learned"].equals(alone.table["jaccard"])
    assert found.reason.startswith(
        f"heads that most seeds keep: {', '.join(_counts(made, learned))}, and the others were opened by "
        "force; correlation of tasks' masks less that with 1 draw of random labels "
    )
    assert (
        "; counting only heads that training itself kept, the same answer: correlation of tasks' masks less"
        in found.reason
    )
    means = alone.table.group_by("kind").agg(pl.col("jaccard").mean())
    for kind, mean in means.iter_rows():
        assert f"(learned heads alone {mean:.2f})" in found.reason, kind
    assert "learned" not in wanted(made).reason


def _counts(made, learned):
    for task, opened, kept in zip(made.tasks, made.opened, learned, strict=True):
        of_learned = (kept.mean(0) > 0.5).sum()
        claimed = (opened.mean(0) > 0.5).sum()
        yield f"{task} {claimed}" + (f" (training chose {of_learned})" if of_learned < claimed else "")


def test_without_control_or_seeds_nothing_is_said():
    made = masks(np.random.default_rng(0), 2.0)
    assert wanted(made.of_real_labels()).word == "cannot tell"
    assert wanted(made.of_real_labels()).reason.startswith("no masks of a control task")
    two = wanted(masks(np.random.default_rng(0), 2.0, seeds=2))
    assert two.word == "cannot tell"
    assert two.reason.startswith("masks of 2 seeds, and 3 are needed")
    with pytest.raises(ValueError, match="fewer than two tasks"):
        wanted(masks(np.random.default_rng(0), 1.0, tasks=("pos", "control")))


def test_a_seed_in_which_masks_are_all_closed_is_named():
    made = masks(np.random.default_rng(0), 2.0)
    made.opened[:, 1] = False
    found = wanted(made)
    assert found.word == "cannot tell"
    assert found.reason.startswith("several masks without an open head in 1 of 3 seeds; ")


def scores(rng, loss, spread, seeds=3, of_seeds=1.0):
    rows = [
        (setup, task, seed, 90 - loss * (setup == "MTL-2") + of_seed + spread * rng.normal())
        for seed, of_seed in enumerate(of_seeds * rng.normal(size=seeds))
        for setup in ("STL", "MTL-2")
        for task in ("pos", "dep")
    ]
    schema = {"setup": pl.String, "task": pl.String, "seed": pl.Int64, "score": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


GROUPS = {"MTL-2": {"MTL-2": "STL"}}


@pytest.mark.slow
def test_intervals_of_losses_cover_with_and_without_pairs():
    rng = np.random.default_rng(5)
    covered, words = np.zeros(2), []
    for _ in range(DRAWS):
        row = sharing(scores(rng, 1.0, 0.5), GROUPS).table.row(0, named=True)
        covered += [row["low"] <= 1.0 <= row["high"], row["paired_low"] <= 1.0 <= row["paired_high"]]
        words.append(sharing(scores(rng, 0.0, 0.5), GROUPS).word)
    assert min(covered) >= binom.ppf(0.001, DRAWS, 0.95)
    assert words.count("yes") <= binom.ppf(0.999, DRAWS, 0.025)


@pytest.mark.parametrize(("loss", "word"), [(3.0, "yes"), (0.5, "yes"), (0.0, "no"), (-2.0, "no")])
def test_the_word_on_sharing(loss, word):
    result = sharing(scores(np.random.default_rng(2), loss, 0.02, of_seeds=0.02), GROUPS)
    assert result.word == word
    assert ("; no task loses 1 point" in result.reason) == (loss == 0.5)
    few = sharing(scores(np.random.default_rng(2), loss, 0.02, seeds=2), GROUPS)
    assert few.word == "cannot tell"
    assert few.reason.startswith("at most 2 seeds of a task alone and jointly, and 3 are needed")


def test_a_noisy_task_does_not_hide_the_loss_of_another():
    table = scores(np.random.default_rng(4), 2.0, 0.1, of_seeds=0.1)
    noise = pl.Series(np.random.default_rng(5).normal(scale=8, size=table.height))
    table = table.with_columns(score=pl.col("score") + noise * (pl.col("task") == "pos"))
    found = sharing(table, GROUPS)
    assert found.word == "yes"
    assert found.reason.startswith("trained jointly, dep scores ")
    assert found.reason.endswith("for pos, these runs cannot tell whether anything is lost")


def test_scores_without_spread_have_no_word():
    found = sharing(scores(np.random.default_rng(2), 1.0, 0.0, of_seeds=0.0), GROUPS)
    assert found.word == "cannot tell"
    assert found.reason.startswith("all runs of a setup have the same score")


def test_the_mean_over_tasks_has_pairs_alone():
    row = sharing(scores(np.random.default_rng(6), 1.0, 0.5), GROUPS).table.row(2, named=True)
    assert row["task"] == "mean"
    assert row["low"] is row["high"] is row["p"] is None
    assert row["paired_low"] < row["loss"] < row["paired_high"]


def test_pairs_are_averaged_per_task_and_seed():
    rows = [("STL", "pos", 90.0), ("MTL-2 pos+dep", "pos", 89.0), ("MTL-2 pos+srl", "pos", 86.0)]
    table = pl.DataFrame(
        [(setup, task, seed, score + seed) for setup, task, score in rows for seed in (1, 2)],
        schema=["setup", "task", "seed", "score"],
        orient="row",
    )
    result = sharing(table, {"MTL-2": {"MTL-2 pos+dep": "STL", "MTL-2 pos+srl": "STL"}})
    assert result.table.row(0)[:4] == ("MTL-2", "pos", 2, 2.5)
    assert result.word == "cannot tell"


def conflicts(rng, effect):
    """Cosines of one pair over seeds: layers differ, and heads that both claim are lower by an effect."""
    layer, head = (axis.ravel() for axis in np.indices((4, 8)))
    claim = {task: rng.random(32) < 0.6 for task in ("pos", "dep")}
    claims = pl.concat(
        pl.DataFrame({"task": task, "attention": "self", "layer": layer, "head": head, "claimed": of})
        for task, of in claim.items()
    )
    both = claim["pos"] & claim["dep"]
    cosines = pl.concat(
        pl.DataFrame(
            {
                "first": "pos", "second": "dep", "seed": seed, "attention": "self", "layer": layer,
                "head": head, "cosine": 0.1 * layer - effect * both + 0.05 * rng.normal(size=32),
            }
        )
        for seed in (1, 2, 3)
    )  # fmt: skip
    return cosines, claims


@pytest.mark.slow
def test_conflict_is_within_layers_and_keeps_its_level():
    rng = np.random.default_rng(6)
    null = [conflict_by_claims(*conflicts(rng, 0.0), draws=199) for _ in range(DRAWS)]
    planted = [conflict_by_claims(*conflicts(rng, 0.1), draws=199) for _ in range(DRAWS)]
    assert sum(found.p <= 0.05 for found in null) <= binom.ppf(0.999, DRAWS, 0.05)
    assert sum(found.p <= 0.05 for found in planted) >= 0.95 * DRAWS
    assert np.mean([found.difference for found in planted]) == pytest.approx(-0.1, abs=0.005)
    assert sum(found.low <= -0.1 <= found.high for found in planted) >= binom.ppf(0.001, DRAWS, 0.95)


def test_conflict_by_hand():
    cosines, claims = conflicts(np.random.default_rng(1), 0.1)
    found = conflict_by_claims(cosines, claims, draws=99)
    assert found.heads.height == 32
    assert found.heads["seeds"].unique().to_list() == [3]
    assert set(found.heads["claims"]) <= {"neither", "one", "both"}
    with pytest.raises(ValueError, match="no pair with recorded gradients"):
        conflict_by_claims(cosines, claims.filter(pl.col("task") == "pos"))
    alone = claims.with_columns(claimed=pl.lit(value=True))
    assert np.isnan(conflict_by_claims(cosines, alone).difference)


def shared_cosines(rng, effect=0.0, share=0.54, louder=1.0, cells=None):
    """Cosines of the ten pairs of five tasks under the claims of `cells`; heads have a part in common.

    The rest varies `louder` times as much where both tasks claim the head. Claims are those of the archive if
    no others are given.
    """
    cells = cells or archive(np.random.default_rng(0))
    head = rng.normal(size=len(cells.strata))
    layer, number = cells.strata, np.arange(len(cells.strata)) % cells.heads
    key = {"attention": "self", "layer": layer, "head": number}
    claims = pl.concat(
        pl.DataFrame({"task": task, **key, "claimed": of}) for task, of in cells.claims.items()
    )
    cosines = pl.concat(
        pl.DataFrame(
            {
                "first": one, "second": other, "seed": 1, **key,
                "cosine": 0.2 - effect * (cells.claims[one] & cells.claims[other])
                + 0.02 * (share**0.5 * head + (1 - share) ** 0.5 * rng.normal(size=len(head))
                          * np.where(cells.claims[one] & cells.claims[other], louder, 1.0)),
            }
        )
        for one, other in itertools.combinations(cells.claims, 2)
    )  # fmt: skip
    return cosines, claims


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.54])
def test_a_head_that_is_alike_in_all_pairs_is_no_evidence_on_conflict(share):
    """Each pair permuted on its own rejects in 0.13 where 0.54 is shared, as in the archive."""
    rng = np.random.default_rng(8)
    found = [conflict_by_claims(*shared_cosines(rng, share=share), draws=199) for _ in range(100)]
    assert sum(each.p <= 0.05 for each in found) <= binom.ppf(0.999, 100, 0.05)
    assert sum(each.low <= 0 <= each.high for each in found) >= binom.ppf(0.001, 100, 0.95)


@pytest.mark.slow
def test_cosines_that_vary_more_where_both_claim_mislead():
    rng = np.random.default_rng(10)
    found = [
        conflict_by_claims(
            *shared_cosines(rng, share=0.2, louder=3.0, cells=world(rng, claimed=14)), draws=199
        )
        for _ in range(200)
    ]
    assert sum(each.p <= 0.05 for each in found) / 200 <= 0.08 + 0.05
    assert sum(each.low <= 0 <= each.high for each in found) / 200 >= 0.88 - 0.06


@pytest.mark.slow
def test_the_interval_of_conflict_covers_what_was_planted():
    rng = np.random.default_rng(9)
    found = [conflict_by_claims(*shared_cosines(rng, 0.02), draws=499) for _ in range(400)]
    assert sum(each.low <= -0.02 <= each.high for each in found) >= binom.ppf(0.001, 400, 0.95)
    assert sum(each.p <= 0.05 for each in found) >= 0.5 * 400


def test_pairs_of_different_heads_are_not_compared():
    cosines, claims = shared_cosines(np.random.default_rng(1))
    with pytest.raises(ValueError, match="different heads"):
        conflict_by_claims(cosines[1:], claims)
