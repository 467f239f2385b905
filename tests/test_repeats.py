"""Docs' decisions on a second encoder: how often they say *repeats*, of chance and of masks like MiniLM's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).resolve().parents[1] / "docs/results/second-encoder/repeats.py"
WORLDS = 60


@pytest.fixture(scope="module")
def repeats():
    spec = importlib.util.spec_from_file_location("repeats", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DRAWS = 100
    return module


def wishes(rng, *, common, own=1.0, noise=0.5, talent=0.0):
    """Masks of 54 of 270 heads of five tasks and two seeds, and a skill; wishes differ by layer, too."""
    skill = rng.normal(size=(30, 9))
    shared = common * rng.normal(size=(30, 9)) + talent * skill + rng.normal(size=(30, 1))
    wish = shared + own * rng.normal(size=(5, 1, 30, 9)) + noise * rng.normal(size=(5, 2, 30, 9))
    lowest = np.sort(wish.reshape(5, 2, -1), axis=-1)[..., -54, None, None]
    return wish >= lowest, skill


def words(repeats, **world):
    rng = np.random.default_rng(5)
    found = []
    for _ in range(WORLDS):
        opened, skill = wishes(rng, **world)
        found.append(
            (
                repeats.same_heads(opened)[0],
                repeats.kept_by_all(opened[:, 0])[0],
                repeats.skill_and_claims(skill, opened[:, 0])[0],
            )
        )
    return np.array(found)


def share(found, word):
    """Of each decision, how often it has this word."""
    return (found == word).mean(0)


@pytest.mark.slow
def test_tasks_that_choose_heads_by_chance_within_layers_rarely_repeat(repeats):
    found = words(repeats, common=0.0)
    assert (share(found, repeats.REPEATS) <= 0.12).all()  # 0.05 and two and a half standard errors
    assert share(found, repeats.DOES_NOT)[0] >= 0.85


@pytest.mark.slow
def test_tasks_with_a_preference_as_strong_as_minilms_repeat(repeats):
    """Two tasks agree by some 0.5 and one task by 0.65; skill and claims correlate by some 0.35."""
    found = words(repeats, common=1.0, own=0.6, noise=0.45, talent=1.0)
    assert (share(found, repeats.REPEATS) >= 0.9).all()


def test_a_weak_preference_is_one_in_part(repeats):
    found = words(repeats, common=0.6)
    assert share(found, repeats.IN_PART)[0] >= 0.8


def test_a_task_of_one_seed_cannot_tell_how_far_it_agrees_with_itself(repeats):
    opened, _ = wishes(np.random.default_rng(1), common=1.0)
    assert repeats.same_heads(opened[:, :1])[0] == repeats.CANNOT_TELL


def test_skill_that_claims_do_not_follow_is_told_apart_from_a_correlation_of_a_quarter(repeats):
    """*Does not* is said of no correlation in most worlds, and of one of a quarter in few."""
    rng = np.random.default_rng(7)
    words = {0.0: [], 0.25: []}
    for strength, found in words.items():
        for _ in range(WORLDS):
            skill = rng.normal(size=(30, 9))
            wish = strength * skill + np.sqrt(1 - strength**2) * rng.normal(size=(5, 30, 9))
            wish -= wish.mean(2, keepdims=True)
            shared = wish[:1] + np.zeros((5, 1, 1))  # all five tasks alike: the number of claims is 0 or 5
            opened = shared >= np.quantile(shared, 0.8)
            found.append(repeats.skill_and_claims(skill, opened)[0])
    assert np.mean(np.array(words[0.0]) == repeats.DOES_NOT) >= 0.7
    assert np.mean(np.array(words[0.25]) == repeats.DOES_NOT) <= 0.12
