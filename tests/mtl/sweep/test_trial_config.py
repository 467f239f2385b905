"""From a sweep file to the configurations of its trials, and the messages about bad files."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import pytest

from mtl.config.effective import plain
from mtl.config.schema import GatesConfig, TrainConfig
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.sweep.file import read_sweep
from mtl.sweep.trial_config import base_of, check_sweep, config_of_trial, known_metrics, trial_config
from tests.mtl.sweep.conftest import sweep_of


def refusal_of(material=None, **changes):
    def checked():
        sweep = sweep_of(**changes)
        check_sweep(sweep, base_of(sweep), material)

    with pytest.raises(InputError) as raised:
        checked()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def parameters(**values):
    return {"parameters": {key.replace("__", "."): {"values": value} for key, value in values.items()}}


def test_the_command_of_the_agent_gives_the_base():
    base = base_of(sweep_of(command=["mtl", "train", "configs/joint.yaml", "--max_epochs=4", "${args}"]))
    assert base["max_epochs"] == 4
    assert base["balancer"]["weights"] == {"ner": 3.0}
    assert base_of(sweep_of(program="configs/joint.yaml"))["balancer"]["weights"] == {"ner": 3.0}
    assert base_of(sweep_of())["balancer"]["weights"] == {}


def test_a_trial_differs_in_its_values_and_in_what_the_sweep_sets():
    sweep = sweep_of(project="p", entity="e")
    base = base_of(sweep)
    config = config_of_trial(base, {"gates.penalty": 0.5, "seed": 9}, sweep, 7, Path("r"), "offline")
    assert (config.gates.penalty, config.seed, config.run_name(), config.runs) == (0.5, 9, "trial-0007", "r")
    assert config.gates.scope == TrainConfig().gates.scope
    wandb = config.wandb
    assert (wandb.mode, wandb.group, wandb.project, wandb.entity) == ("offline", "s", "p", "e")
    assert wandb.tags == ("s", "grid")


def test_a_mapping_changes_only_its_own_keys_but_weights_as_a_whole():
    base = base_of(sweep_of())
    base["balancer"]["weights"] = {"ner": 2.0}
    changed = trial_config(base, {"optimizer": {"encoder_lr": 0.5}, "balancer.weights": {"pos": 1.0}})
    assert asdict(changed.optimizer) == {**base["optimizer"], "encoder_lr": 0.5}
    assert changed.balancer.weights == {"pos": 1.0}
    assert trial_config(base, {"corpus.pos.train": "x"}).corpus.pos.train == "x"  # a group that was null


def test_targets_by_kind_are_set_one_by_one_or_together():
    base = plain(asdict(TrainConfig(gates=GatesConfig(target_open=9.0))))
    one_by_one = trial_config(base, {"gates.target_open.encoder": 4, "gates.target_open.cross": 2})
    assert one_by_one.gates.target_open == {"encoder": 4.0, "cross": 2.0}
    base = plain(asdict(one_by_one))
    assert trial_config(base, {"gates.target_open.cross": 3}).gates.target_open["cross"] == 3.0
    together = trial_config(base, {"gates.target_open": {"decoder": 2}})
    assert together.gates.target_open == {"decoder": 2.0}
    assert trial_config(base, {"gates.target_open": 5}).gates.target_open == 5.0


def test_figures_of_runs_are_known():
    names = known_metrics(TrainConfig(tasks=("pos", "dep"), pruning="dynamic"))
    assert names == [
        "dev/mean", "dev/pos/accuracy", "dev/dep/uas", "dev/dep/las", "dev/dep/las_subtypes", "dev/dep/ucm",
        "dev/dep/lcm", "loss/pos", "loss/dep", "gates/shared/open", "gates/shared/expected_l0",
        "gates/shared/penalty",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (parameters(gates__penalti=[1.0]), "unknown key 'gates.penalti': did you mean 'gates.penalty'?"),
        (
            {"parameters": {"gates": {"parameters": {"penalti": {"value": 1}}}}},
            "did you mean 'gates.penalty'?",
        ),
        (parameters(optimizer=[{"encodr_lr": 1}]), "did you mean 'optimizer.encoder_lr'?"),
        (parameters(gates__penalty=[0.1, "much"]), "gates.penalty=much"),
        (parameters(gates__target_open__crss=[2]), "did you mean 'gates.target_open.cross'?"),
        (parameters(gates__target_open=[{"crss": 2}]), "did you mean 'gates.target_open.cross'?"),
        (parameters(balancer__name=["pcgard"]), "did you mean 'pcgrad'?"),
        (parameters(name=["a"]), "is set by the sweep itself"),
        (parameters(wandb__mode=["online"]), "is set by the sweep itself"),
        ({"method": "random", "parameters": {"max_epochs": {"min": 1.0, "max": 9.5}}}, "max_epochs=1.0"),
        ({"metric": {"name": "dev/mena", "goal": "maximize"}}, "did you mean 'dev/mean'?"),
        ({"metric": {"name": "test/dep/las", "goal": "maximize"}}, "test is for the chosen one"),
        ({"metric": {"name": "gates/shared/open", "goal": "minimize"}}, "set pruning=dynamic"),
        (
            {
                "metric": {"name": "dev/pos/accuracy", "goal": "maximize"},
                **parameters(tasks=[["pos"], ["dep"]]),
            },
            "runs with tasks=dep, pruning=none do not log 'dev/pos/accuracy'",
        ),
        ({"metric": {"name": "dev/mean"}}, "metric.goal is missing"),
        ({"metric": None, "method": "bayes"}, "metric is missing"),
        ({"metric": {"nam": "x"}}, "did you mean 'metric.name'?"),
        ({"metric": {"name": "dev/mean", "goal": "maximize", "gaol": 1}}, "did you mean 'metric.goal'?"),
        ({"method": "bays"}, "method: unknown 'bays': did you mean 'bayes'?"),
        ({"methid": "grid"}, "unknown key 'methid': did you mean 'method'?"),
        ({"parameters": {}}, "parameters is empty"),
        ({"parameters": {"seed": {"min": 0.0, "max": 1.0}}}, "a grid needs values"),
        (
            {"parameters": {"gates.lr": {"value": 1.0}, "gates": {"parameters": {"lr": {"value": 1.0}}}}},
            "gates.lr is given twice",
        ),
        ({"run_cap": 0}, "run_cap=0: use at least 1"),
        ({"early_terminate": {"type": "envelope"}}, "early_terminate.type: unknown 'envelope'"),
        (
            {"early_terminate": {"type": "hyperband", "min_itr": 3}},
            "did you mean 'early_terminate.min_iter'?",
        ),
        ({"early_terminate": {"type": "hyperband"}}, "use either min_iter, or max_iter and s"),
        (
            {"early_terminate": {"type": "hyperband", "max_iter": 9}},
            "use either min_iter, or max_iter and s",
        ),
        ({"early_terminate": {"type": "hyperband", "max_iter": 2, "s": 1}}, "leaves no comparison"),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 1, "eta": 1}},
            "early_terminate.eta=1: use at least 2",
        ),
        ({"early_terminate": {"type": "hyperband", "min_iter": 0}}, "early_terminate.min_iter=0"),
        ({"command": ["python", "train.py", "${args}"]}, "command must be [mtl, train"),
        ({"command": ["mtl", "train", "${args_no_hyphens}"]}, "command must be [mtl, train"),
        ({"command": ["mtl", "train", "${envvar:X}", "${args}"]}, "command must be [mtl, train"),
        ({"command": ["mtl", "train", "--name=a", "${args}"]}, "name=a cannot be set"),
        ({"command": ["mtl", "train", "--trainer.devices=2", "${args}"]}, "use --jobs=N"),
        ({"command": ["mtl", "train", "--max_epoch=2", "${args}"]}, "did you mean 'max_epochs'?"),
        ({"program": "train.py"}, "not a configuration file"),
        # Types are those of what is drawn: a range of floats draws none that is whole, whatever its ends.
        (
            {
                "method": "random",
                "parameters": {"max_epochs": {"distribution": "uniform", "min": 1, "max": 9}},
            },
            "max_epochs=1.0",
        ),
        (
            {
                "method": "random",
                "parameters": {"max_epochs": {"distribution": "log_uniform_values", "min": 1, "max": 64}},
            },
            "max_epochs=1.0",
        ),
        # The key of a distribution that only the server draws from is checked, too.
        (
            {"method": "random", "parameters": {"gates.penalti": {"distribution": "normal"}}},
            "did you mean 'gates.penalty'?",
        ),
        # Settings that do not go together, which every trial would refuse.
        (
            {**parameters(tasks=[["pos"]]), "command": ["mtl", "train", "configs/joint.yaml", "${args}"]},
            "balancer.weights names ner",
        ),
        (
            parameters(balancer__name=["pcgrad", "gradnorm"], batch__mode=["separate"]),
            "no trial can be trained: balancer pcgrad compares",
        ),
        # Numbers that no trial may have, the ends of ranges among them.
        (parameters(batch__sentences=[8, 0]), "parameters: batch.sentences=0: use a number from 1"),
        (
            {"method": "random", "parameters": {"optimizer.encoder_lr": {"min": 1e-5, "max": 2.0}}},
            "parameters: optimizer.encoder_lr=2.0: use a number from 0 to 1",
        ),
        (parameters(seed=[1, None]), "seed cannot be null"),
        (parameters(optimizer=[{"clip": None}]), "optimizer.clip cannot be null"),
        (parameters(dep=[3]), "dep holds other keys"),
        (parameters(balancer__weights__posx=[1.0]), "did you mean 'balancer.weights.pos'?"),
        (parameters(balancer__weights=[{"pso": 1.0}]), "unknown key 'balancer.weights.pso'"),
        (
            parameters(optimizer=[{"clip": 1.0}], optimizer__clip=[2.0]),
            "optimizer.clip is a part of",
        ),
        # What would have no effect.
        ({"command": ["mtl", "train", "--seed=3", "${args}"]}, "--seed=3 in the command has no effect"),
        ({"command": ["mtl", "train", "${args}"], "program": "a.yaml"}, "program: a.yaml has no effect"),
        ({"metric": None, "early_terminate": {"type": "hyperband", "min_iter": 1}}, "metric is missing"),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 1, "max_iter": 9}},
            "other combinations have no effect",
        ),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 1, "s": 2}},
            "other combinations have no effect",
        ),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 1, "strict": 3}},
            "early_terminate.strict: expected true or false",
        ),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 30}},
            "and a trial has 30",
        ),
        ({"metric": {"name": "dev/mean", "goal": "maximize", "impute": "mean"}}, "metric.impute"),
        (
            {"metric": {"name": "dev/mean", "goal": "maximize", "target": math.nan}},
            "metric.target=nan: use a finite number",
        ),
        ({"metric": {"name": ["dev/mean"], "goal": "maximize"}}, "metric.name: expected a text"),
        ({"parameters": [1]}, "parameters: expected KEY: VALUE pairs"),
        (
            {"parameters": {"gates": {"parameters": {"lr": {"value": 1.0}}, "value": 1}}},
            "nothing else can be given next to nested parameters",
        ),
        ({"command": "mtl train"}, "command: expected a list"),
        ({"command": ["mtl", "train", {"--seed": 3}, "${args}"]}, "command: expected a list, each a text"),
        ({"command": ["mtl", "train", "${program}", "${args}"]}, "command must be [mtl, train"),
        ({"program": ["a.yaml"]}, "program: expected a text"),
        ({"project": 3}, "project: expected a text"),
        ({"entity": ["a"]}, "entity: expected a text"),
        ({"description": {}}, "description: expected a text"),
    ],
)
def test_bad_files_are_said_in_one_line(changes, message):
    assert message in refusal_of(**changes)


def test_encoders_and_corpora_are_looked_at_before_the_first_trial(toy, tiny_encoder):
    command = ["mtl", "train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", "${args}"]
    fine = sweep_of(command=command)
    check_sweep(fine, base_of(fine), InputCache(keep=True))
    alone = [[*command[:2], command[place], "${args}"] for place in (2, 3)]
    assert "nowhere" in refusal_of(
        InputCache(), command=alone[0], **parameters(encoder__name=["nowhere/bert"])
    )
    assert "missing" in refusal_of(InputCache(), command=alone[1], **parameters(corpus__path=["missing"]))


def test_files_that_are_none(tmp_path):
    for text, message in (
        ("[1, 2]", "holds no keys"),
        ("", "is empty"),
        ("a: [", "no YAML"),
        ("method: grid", "parameters is empty"),
        # What YAML would pass over, or trip on.
        ("method: grid\nmethod: random", "line 2: the key method is given twice"),
        (
            "method: grid\nparameters: {seed: {value: 1}, seed: {value: 2}}",
            "line 2: the key seed is given twice",
        ),
        ("parameters: &all {seed: *all}", "holds itself"),
        ("? [a]\n: b", "is no YAML"),
        ("name: {a: 1}\nmethod: grid", "name: expected a text"),
        ("\x01: 3", "no YAML"),
    ):
        (tmp_path / "a.yaml").write_text(text)
        with pytest.raises(InputError, match=message) as raised:
            read_sweep(tmp_path / "a.yaml")
        assert str(tmp_path / "a.yaml") in str(raised.value)
    with pytest.raises(InputError, match="no such file"):
        read_sweep(tmp_path / "b.yaml")


@pytest.mark.parametrize("file", sorted(Path("configs/sweep").glob("*.yaml")), ids=lambda file: file.name)
def test_example_sweeps_are_sound(file):
    sweep = read_sweep(file)
    check_sweep(sweep, base_of(sweep), None)
    assert sweep.name == file.stem
    assert sweep.points() == 15
