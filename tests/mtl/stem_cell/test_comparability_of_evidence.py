"""No piece of evidence is read from runs that were trained otherwise than those beside them."""

from __future__ import annotations

import pytest

from mtl.errors import InputError
from mtl.probes.report.data import ReportData
from mtl.probes.stem_cell.answers import sharing_groups, unlike_baselines
from mtl.runs.compare.run_set import RunSet
from mtl.runs.compare.settings import MASKS
from mtl.runs.compare.setups import setups_of
from mtl.stem_cell import pair_runs
from mtl.stem_cell.pair_runs import pairs_of
from tests.mtl.runs.compare.test_comparability import PAIR, a_run, in_two_orders, keys_of, settings_of


@pytest.mark.slow
def test_no_comparison_takes_two_runs_that_differ_in_silence(tmp_path):
    for number, (key, first, second) in enumerate(keys_of(PAIR)):
        one, other = (
            a_run(tmp_path / f"{number}-{seed}", {**config, "seed": seed})
            for seed, config in ((1, first), (2, second))
        )
        runs = RunSet.of([one, other])
        pairs = pairs_of(runs)
        assert pairs is not None
        assert pairs["run"].n_unique() == 1
        assert any(key in note for note in runs.notes)


def test_what_sharing_costs_is_read_from_runs_that_were_trained_alike():
    evidence = ReportData.__new__(ReportData)

    for key, first, second in keys_of(PAIR):
        alone = {**second, "tasks": ["pos"]}
        both = settings_of(first).differing(settings_of(alone))
        if not both:
            continue  # of the other task
        object.__setattr__(evidence, "setups", tuple(setups_of([first, alone])))
        assert sharing_groups(evidence) == {}, key
        assert key in unlike_baselines(evidence)[0]
    object.__setattr__(evidence, "setups", tuple(setups_of([first, {**first, "tasks": ["pos"]}])))
    assert sharing_groups(evidence) == {"MTL-2": {"MTL-2": "STL"}}


@pytest.mark.slow
def test_claims_are_never_put_beside_runs_that_were_trained_otherwise(tmp_path):
    tried = 0
    for number, (key, first, second) in enumerate(keys_of(PAIR)):
        alone = {**second, "tasks": ["pos"], "pruning": "dynamic", "seed": 11}
        if key not in settings_of(first).differing(settings_of(alone), MASKS):
            continue  # of the other task
        pair = a_run(tmp_path / f"{number}-pair", first)
        masked = a_run(tmp_path / f"{number}-masked", alone)
        compared = RunSet.of([pair, masked])
        pairs = pairs_of(compared)
        with pytest.raises(InputError, match=f"no claims of runs that were trained like the pairs: .*{key}"):
            pair_runs._like_pairs(compared, pairs)
        tried += 1
    assert tried > 20


def test_names_and_order_of_folders_change_no_evidence(tmp_path):
    one, other = in_two_orders(tmp_path)
    pairs = [data.evidence["pairs"].drop("run").sort("task", "seed").rows() for data in (one, other)]
    assert pairs[0] == pairs[1]
    assert sharing_groups(one) == sharing_groups(other)
