"""No piece of evidence is read from runs that were trained otherwise than those beside them."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from mtl.config.effective import plain
from mtl.errors import InputError
from mtl.probes.report.data import ReportData
from mtl.probes.stem_cell.report.answer_sharing import sharing_groups, unlike_baselines
from mtl.runs.compare.comparable import RunWithSetup, with_setups
from mtl.runs.compare.keys import MASKS
from mtl.runs.compare.setups import setups_of
from mtl.stem_cell.figures import contest, mixing
from mtl.stem_cell.pair_runs import pairs_of
from mtl.stem_cell.remedies import remedy_scores
from tests.mtl.runs.compare.test_comparability import PAIR, a_run, in_two_orders, keys_of, settings_of


@pytest.mark.slow
def test_no_comparison_takes_two_runs_that_differ_in_silence(tmp_path):
    copied = plain(asdict(PAIR)) | {"clones": {"kind": "routed", "heads": "all"}}
    like = [a_run(tmp_path / f"like{seed}", {**copied, "seed": seed}) for seed in (1, 2)]
    for number, (key, first, second) in enumerate(keys_of(PAIR)):
        if key.startswith("clones."):
            continue
        one, other = (
            a_run(tmp_path / f"{number}-{seed}", {**config, "seed": seed})
            for seed, config in ((1, first), (2, second))
        )
        table, notes = remedy_scores([*like, one, other], "test", {"pos": "accuracy", "dep": "las"})
        assert str(other.folder) not in set(table["run"])
        assert any(key in note and str(other.folder) in note for note in notes)
        configs = [first, {**second, "tasks": ["pos", "dep"]}]
        with_setups = [
            RunWithSetup(run, config, setup, settings_of(config))
            for run, config, setup in zip((one, other), configs, setups_of(configs), strict=True)
        ]
        said: list[str] = []
        pairs = pairs_of(with_setups, said)
        assert pairs is not None
        assert pairs["run"].n_unique() == 1
        assert any(key in note for note in said)


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
        compared = with_setups([pair, masked])
        pairs = pairs_of(compared, [])
        with pytest.raises(InputError, match=f"no claims of runs that were trained like the pairs: .*{key}"):
            contest._like_pairs([compared[1]], compared, pairs, [])
        if key != "encoder.name":  # which is another in collaborative models
            models = {mixing.BEFORE: [], mixing.ALONE: [], mixing.JOINT: [(pair.model, str(pair.folder), 1)]}
            notes: list[str] = []
            kept, claims = mixing._alike(models, [masked], {pair: first, masked: alone}, notes)
            assert (kept, claims) == (models, [])
            assert any(key in note and str(masked.folder) in note for note in notes)
        tried += 1
    assert tried > 20


def test_names_and_order_of_folders_change_no_evidence(tmp_path):
    one, other = in_two_orders(tmp_path)
    pairs = [data.evidence["pairs"].drop("run").sort("task", "seed").rows() for data in (one, other)]
    assert pairs[0] == pairs[1]
    assert sharing_groups(one) == sharing_groups(other)
