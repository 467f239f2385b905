"""Early termination: which trials are stopped, and when they are compared."""

from __future__ import annotations

import pytest

from mtl.sweep.folder import Outcome, best_of, pruner_for, trial_progress, trials_of
from tests.mtl.sweep.conftest import sweep_of


def curve(number, values, look):
    """Learning curves that do not cross: the larger the penalty, the worse at every evaluation."""
    for evaluation in range(1, 5):
        value = (10 - values["gates.penalty"]) * (1 - 0.5**evaluation)
        if look(evaluation, value):
            break
    return Outcome(value)


QUALITIES = [5, 2, 9, 1, 7, 3, 8, 4, 6]


@pytest.mark.slow
def test_hyperband_stops_the_worse_trials_and_never_the_best(bench):
    parameters = {"gates.penalty": {"values": QUALITIES}}
    sweep = bench(parameters=parameters, early_terminate={"type": "hyperband", "min_iter": 1, "eta": 3})
    sweep.work(curve)
    trials = trials_of(sweep.study)
    states = dict(zip(QUALITIES, sweep.states(), strict=True))
    evaluations = {QUALITIES[trial.number]: len(trial.intermediate_values) for trial in trials}
    assert states[1] == "finished"
    # By hand: 5 is the first, 2 and 1 are the best so far; of five the best one goes on, of six or more two.
    assert {quality for quality, state in states.items() if state == "stopped"} == {9, 7, 3, 8, 4, 6}
    assert {evaluations[quality] for quality in (9, 7, 8, 4, 6)} == {1}
    assert sum(evaluations.values()) == 3 * 4 + 6  # of 36
    assert QUALITIES[best_of(sweep.sweep, trials).number] == 1
    stopped = trials[2]
    assert stopped.values == [pytest.approx(0.5)]
    assert trial_progress(stopped).stopped == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "compared"),
    [({"min_iter": 1}, {1, 2, 4}), ({"max_iter": 4, "s": 2}, {1, 2}), ({"max_iter": 2, "s": 1}, {1})],
)
def test_no_comparison_comes_after_the_last(bench, words, compared):
    """The second trial falls behind just after an evaluation and stays so: is that ever noticed?"""
    stopped = set()
    for behind in range(1, 9):

        def perform(number, values, look, behind=behind):
            for evaluation in range(1, 9):
                if look(evaluation, 1.0 - number * (evaluation >= behind)):
                    break
            return Outcome(1.0)

        stopping = {"type": "hyperband", "eta": 2, **words}
        sweep = bench(name=f"s{behind}", parameters={"seed": {"values": [1, 2]}}, early_terminate=stopping)
        sweep.work(perform)
        stopped.add(trial_progress(trials_of(sweep.study)[1]).stopped)
    assert stopped - {0} == compared | ({8} if "min_iter" in words else set())


def test_without_early_termination_none_is_stopped(bench):
    sweep = bench(parameters={"gates.penalty": {"values": QUALITIES[:4]}})
    sweep.work(curve)
    assert set(sweep.states()) == {"finished"}


def test_bands_are_those_of_wandb():
    def bands(**words):
        stopping = sweep_of(early_terminate={"type": "hyperband", **words}).file.early_terminate
        return stopping.first, stopping.eta

    assert bands(min_iter=3) == (3, 3)
    assert bands(max_iter=27, s=2) == (3, 3)  # 3, 9
    assert bands(max_iter=16, s=3, eta=2) == (2, 2)  # 2, 4, 8
    assert bands(max_iter=5, s=4, eta=2) == (1, 2)  # those before the first evaluation are left out
    assert type(pruner_for(sweep_of())).__name__ == "NopPruner"
