"""The grid of a study: its runs, their order and configurations, and the messages about bad grids."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mtl.config.effective import plain, reference
from mtl.config.instances import Instance
from mtl.config.parse import configured
from mtl.config.schema import DEFAULT_TASKS, BalancerConfig, GatesConfig, TrainConfig, TrainerConfig
from mtl.errors import InputError
from mtl.probes.measures.corpus import BY_KIND, PROBE_TARGETS
from mtl.probes.measures.groups import PROBED_KINDS
from mtl.runs.compare.setups import setups_of
from mtl.study.config import ClaimsConfig, GridBlock, ProbesConfig, StudyConfig
from mtl.study.grid import planned, probes_the_encoder
from mtl.tasks.structured import Dep
from mtl.training.check import check_settings

TASKS = ("pos", "ner", "dep", "con", "srl")
HERE = Path("studies/s")


def names(*blocks: GridBlock, **study) -> list[str]:
    return [run.name for run in planned(StudyConfig(grid=blocks, **study), HERE)]


def test_setups_are_products_of_tasks_masks_and_seeds():
    names_found = names(GridBlock(("STL", "pairs", "MTL"), ("none", "dynamic")))
    bases = [*TASKS, *("+".join(pair) for pair in itertools.combinations(TASKS, 2)), "MTL"]
    expected = {
        f"{base}{masks}-seed{seed}" for base in bases for masks in ("", "-dynamic") for seed in (1, 2, 3)
    }
    assert sorted(names_found) == sorted(expected)


def test_runs_follow_each_other_as_the_file_lists_their_tasks():
    """The tasks of one run are in the catalogue's order, in which equal runs have equal names."""
    own = {name: Instance("tags", layer="tags") for name in ("zebra", "alpha")}
    train = TrainConfig(tasks=("zebra", "dep", "alpha", "pos"), instances=own)
    found = names(GridBlock(("STL", "pairs", "alpha+pos"), ("none",)), train=train, seeds=(1,))
    alone, pairs = "zebra dep alpha pos", "dep+zebra alpha+zebra pos+zebra dep+alpha pos+dep pos+alpha"
    assert found == [f"{base}-seed1" for base in f"{alone} {pairs}".split()]


def test_the_papers_experiment_has_every_run_of_the_paper():
    study = configured("", StudyConfig, ["configs/study/stem_cell.yaml"])
    runs = planned(study, HERE)
    counts = {}
    for run in runs:
        counts[len(run.config.tasks), run.masks] = counts.get((len(run.config.tasks), run.masks), 0) + 1
    assert counts == {
        (1, "none"): 15, (2, "none"): 30, (5, "none"): 3, (1, "static"): 15, (1, "dynamic"): 15,
        (5, "dynamic"): 3 + 3, (5, "dynamic_per_task"): 3,
    }  # fmt: skip
    assert {run.config.encoder.weights for run in runs if run.label == "random"} == {"random"}
    assert probes_the_encoder(study)
    assert all((run.probes is not None) == (run.masks == "none") for run in runs)


@pytest.mark.parametrize("file", sorted(Path("configs/study").glob("*.yaml")), ids=lambda file: file.name)
def test_every_example_is_a_study(file):
    runs = planned(configured("", StudyConfig, [str(file)]), HERE)
    assert runs
    for run in runs:
        check_settings(run.config)


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ((4,), "no run of the grid learns masks with seed 4"),
        ((), "no run of the grid learns masks with seed"),
    ],
)
def test_claims_of_seeds_without_masks_are_one_line(claims, message):
    grid = (GridBlock(("STL",)), GridBlock(("STL",), ("dynamic",), seeds=(11,)))
    with pytest.raises(InputError, match=message):
        planned(StudyConfig(grid=grid, seeds=(4,), claims=ClaimsConfig(claims)), HERE)
    assert planned(StudyConfig(grid=grid, seeds=(4,), claims=ClaimsConfig((11,))), HERE)


def test_static_masks_come_after_the_run_that_they_start_from():
    runs = planned(StudyConfig(grid=(GridBlock(("STL",), ("static",)),), seeds=(4,)), HERE)
    place = {run.name: number for number, run in enumerate(runs)}
    assert len(runs) == 10
    for task in TASKS:
        run = runs[place[f"{task}-static-seed4"]]
        assert run.needs == f"{task}-seed4"
        assert run.config.init_from == str(HERE / "runs" / run.needs)
        assert place[run.needs] < place[run.name]


def test_static_masks_start_from_the_grids_own_run_where_there_is_one():
    runs = planned(
        StudyConfig(
            grid=(
                GridBlock(("MTL",), ("static",), {"max_epochs": 2}),
                GridBlock(("MTL",), ("none",), {"max_epochs": 9}, "long"),
            ),
            seeds=(1,),
        ),
        HERE,
    )
    assert [(run.name, run.config.max_epochs, run.needs) for run in runs] == [
        ("MTL-long-seed1", 9, None),
        ("MTL-static-seed1", 2, "MTL-long-seed1"),
    ]


def needs(*blocks: GridBlock) -> dict[str, str]:
    runs = planned(StudyConfig(grid=blocks, seeds=(1,)), HERE)
    return {run.name: run.needs for run in runs if run.needs is not None}


def test_static_masks_do_not_start_from_a_run_that_a_label_sets_apart():
    slow = GridBlock(("MTL",), ("none",), {"max_epochs": 9}, "slow")
    plain, static = GridBlock(("MTL",)), GridBlock(("MTL",), ("static",))
    assert needs(slow, plain, static) == {"MTL-static-seed1": "MTL-seed1"}
    both = GridBlock(("MTL",), ("none", "static"), {"max_epochs": 9}, "slow")
    assert needs(plain, both, static) == {
        "MTL-static-slow-seed1": "MTL-slow-seed1",
        "MTL-static-seed1": "MTL-seed1",
    }
    other = GridBlock(("MTL",), ("none",), {"max_epochs": 8}, "slower")
    with pytest.raises(InputError, match=r"could start from the runs labelled slow or slower"):
        needs(slow, other, static)


def test_settings_hold_in_the_runs_that_they_concern():
    train = TrainConfig(gates=GatesConfig(target_open=5.0), dep=Dep(arc_dim=7))
    grid = (GridBlock(("pos", "dep", "MTL"), ("none", "dynamic", "dynamic_per_task")),)
    runs = {run.name: run.config for run in planned(StudyConfig(train=train, grid=grid, seeds=(1,)), HERE)}
    assert {name.split("-")[1] for name, config in runs.items() if config.gates.target_open} == {
        "dynamic", "dynamic_per_task",
    }  # fmt: skip
    assert {name.split("-")[0] for name, config in runs.items() if config.dep.arc_dim == 7} == {"dep", "MTL"}
    for config in runs.values():
        check_settings(config)


def test_a_blocks_settings_hold_for_its_runs_alone():
    study = StudyConfig(
        grid=(
            GridBlock(("MTL",)),
            GridBlock(("MTL",), ("dynamic_per_task",), {"gates.penalty": 0.5, "dep.arc_dim": 7}),
        ),
        seeds=(1,),
    )
    first, second = planned(study, HERE)
    assert (first.config.gates.penalty, first.config.gates.scope) == (reference().gates.penalty, "shared")
    assert (second.config.gates.penalty, second.config.gates.scope) == (0.5, "per_task")
    assert second.config.dep.arc_dim == 7


def test_named_sets_and_sums_of_tasks_are_setups():
    study = {"sets": {"syntax": ["con", "dep"]}, "seeds": (1,)}
    assert names(GridBlock(("syntax", "srl+pos")), **study) == ["syntax-seed1", "pos+srl-seed1"]


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ({"STL": ["pos", "dep"]}, "^sets: 'STL' is already the name of a setup"),
        ({"pos": ["pos", "dep"]}, "^sets: 'pos' is already the name of a task"),
        ({"mine": []}, "^sets: mine is empty: list its tasks"),
        ({"mine": ["pos", "dpe"]}, "^unknown task in setup 'mine': 'dpe': did you mean 'dep'"),
    ],
)
def test_sets_that_no_setup_could_name_are_refused(sets, reason):
    with pytest.raises(InputError, match=reason):
        names(GridBlock(("MTL",)), sets=sets)


def test_a_set_is_not_offered_where_only_tasks_can_be():
    sets = {"syntax": ["con", "dep"]}
    with pytest.raises(InputError, match=r"^unknown setup: 'synatx': did you mean 'syntax'"):
        names(GridBlock(("synatx",)), sets=sets)
    with pytest.raises(InputError, match=r"^unknown task in setup 'synatx\+pos': 'synatx'; known are pos, "):
        names(GridBlock(("synatx+pos",)), sets=sets)


@pytest.mark.parametrize(
    ("probes", "message"),
    [
        (ProbesConfig(sentences=0), r"^probes\.sentences=0: use a number from 1"),
        (ProbesConfig(measures=("ablation",), close=()), r"^probes\.close is empty: name what"),
        (ProbesConfig(measures=("carry_over",)), r"^probes\.measures has carry_over: set probes"),
    ],
)
def test_measures_that_cannot_be_made_are_refused(probes, message):
    with pytest.raises(InputError, match=message):
        names(GridBlock(("MTL",)), probes=probes)


def test_a_block_has_measures_of_its_own():
    study = ProbesConfig(measures=("importance", "ablation"), sentences=9)
    own = {"measures": ["ablation"], "close": ["layer"]}
    grid = (
        GridBlock(("STL",)),
        GridBlock(("MTL",), probes=own),
        # Static masks start from the run of the block before, which is measured as its own block says.
        GridBlock(("MTL",), ("static",), probes={"masks": ["static"]}),
    )
    train = TrainConfig(tasks=("pos", "dep"))
    runs = planned(StudyConfig(grid=grid, probes=study, train=train, seeds=(1,)), HERE)
    measured = replace(study, masks=())  # which runs are measured is decided: a job does not say it
    of_all = replace(measured, measures=("ablation",), close=("layer",))
    assert {run.name: run.probes for run in runs} == {
        "pos-seed1": measured, "dep-seed1": measured, "MTL-seed1": of_all, "MTL-static-seed1": measured,
    }  # fmt: skip
    with pytest.raises(InputError, match=r"a block's probes.*'mesures': did you mean 'measures'"):
        names(GridBlock(("MTL",), probes={"mesures": []}))
    with pytest.raises(InputError, match=r"make the run MTL-seed1 with different settings \(probes\)"):
        names(GridBlock(("MTL",), label="x"), GridBlock(("MTL",)), GridBlock(("MTL",), probes=own))


def test_a_study_of_some_tasks_has_no_others():
    study = StudyConfig(
        grid=(GridBlock(("STL", "pairs", "MTL")),), seeds=(1,), train=TrainConfig(tasks=("pos", "ner"))
    )
    assert [run.name for run in planned(study, HERE)] == ["pos-seed1", "ner-seed1", "MTL-seed1"]


def test_runs_are_told_apart_in_the_view_of_wandb():
    run = planned(StudyConfig(grid=(GridBlock(("STL",), ("dynamic",)),), seeds=(1,)), HERE)[0]
    assert run.config.wandb.group == "s STL, dynamic"
    assert run.config.wandb.job_type == "train"
    assert run.config.wandb.tags == ("s", "setup:STL", "masks:dynamic", "pos")


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (GridBlock(("SLT",)), "unknown setup: 'SLT': did you mean 'STL'"),
        (GridBlock(("pos+dpe",)), "'dpe': did you mean 'dep'"),
        (GridBlock(set={"optimzer.encoder_lr": 1}), "did you mean 'optimizer.encoder_lr'"),
        (GridBlock(set={"seed": 1}), "set seeds"),
        (GridBlock(set={"max_epochs": "many"}), "max_epochs"),
    ],
)
def test_a_bad_block_is_said_with_what_is_nearest(block, message):
    with pytest.raises(InputError, match=message.replace("+", r"\+")):
        names(block)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (TrainConfig(seed=2), "set seeds"),
        (TrainConfig(pruning="dynamic"), "set masks"),
        (TrainConfig(gates=GatesConfig(scope="per_task")), "dynamic_per_task"),
        (TrainConfig(init_from="runs/x"), "static masks start from"),
        (TrainConfig(tasks=()), "train.tasks is empty"),
        (TrainConfig(trainer=TrainerConfig(devices=2)), "one process each"),
        (TrainConfig(name="x"), "^train.name cannot be set for a study: the study names its runs"),
        (
            TrainConfig(tasks=("pos",), balancer=BalancerConfig("fixed", {"dep": 2.0})),
            "^unknown task in train.balancer.weights: 'dep', which is not in train.tasks",
        ),
    ],
)
def test_what_the_grid_decides_cannot_be_set_for_all_runs(train, message):
    with pytest.raises(InputError, match=message):
        names(GridBlock(), train=train)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"seed": 1}, "seed"),
        ({"gates.scope": "shared"}, "gates.scope"),
        ({"gates": {"scope": "per_task"}}, "gates.scope"),
        ({"wandb": {"group": "mine", "project": "heads"}}, "wandb.group"),
    ],
)
def test_what_the_grid_decides_cannot_be_set_for_a_block(values, key):
    with pytest.raises(InputError, match=f"^{key} cannot be in a block's set: "):
        names(GridBlock(set=values))


def test_a_task_that_the_study_leaves_out_is_no_setup():
    with pytest.raises(InputError, match=r"train.tasks leaves it out \(pos, ner\)"):
        names(GridBlock(("dep",)), train=TrainConfig(tasks=("pos", "ner")))


def test_two_ways_to_make_one_run_need_a_label():
    blocks = GridBlock(("MTL",)), GridBlock(("MTL",), set={"max_epochs": 3})
    with pytest.raises(InputError, match=r"MTL-seed1 with different settings \(max_epochs\): give one"):
        names(*blocks, seeds=(1,))
    assert names(blocks[0], replace(blocks[1], label="short"), seeds=(1,)) == ["MTL-seed1", "MTL-short-seed1"]


def test_a_tasks_weight_holds_in_the_runs_that_train_it():
    weighed = BalancerConfig("fixed", {"ner": 3.0, "pos": 2.0})
    study = StudyConfig(
        grid=(GridBlock(("dep", "pos+ner")),), seeds=(1,), train=TrainConfig(balancer=weighed)
    )
    runs = {run.name: run.config.balancer.weights for run in planned(study, HERE)}
    assert runs == {"dep-seed1": {}, "pos+ner-seed1": {"ner": 3.0, "pos": 2.0}}
    with pytest.raises(InputError, match=r"did you mean 'balancer\.weights\.ner'"):
        names(GridBlock(), train=TrainConfig(balancer=BalancerConfig("fixed", {"enr": 1.0})))


@pytest.mark.parametrize("name", ["lr/2", "../x", "", ".hidden", "a\nb"])
def test_names_that_would_leave_their_folder_are_refused(name):
    with pytest.raises(InputError, match=r"^a block's label="):
        names(GridBlock(("pos",), label=name))
    with pytest.raises(InputError, match=r"^a name in sets="):
        names(GridBlock(("pos",)), sets={name: ["pos", "dep"]})


def test_the_same_run_twice_is_one():
    assert names(GridBlock(("MTL",)), GridBlock(("MTL", "pos+ner+dep+con+srl")), seeds=(1,)) == ["MTL-seed1"]


def test_a_block_has_seeds_of_its_own():
    assert names(GridBlock(("pos",)), GridBlock(("pos",), ("dynamic",), seeds=(11, 12)), seeds=(1,)) == [
        "pos-seed1", "pos-dynamic-seed11", "pos-dynamic-seed12",
    ]  # fmt: skip
    for key in ("setups", "masks", "seeds"):
        with pytest.raises(InputError, match=f"a block's {key} are empty"):
            names(GridBlock(("MTL",)), GridBlock(**{key: ()}))


def test_a_seed_named_twice_is_refused():
    with pytest.raises(InputError, match=r"^seeds name 2 twice: name each once$"):
        names(GridBlock(("pos",)), seeds=(1, 2, 2))
    with pytest.raises(InputError, match=r"^a block's seeds name 1 twice: name each once$"):
        names(GridBlock(("pos",), seeds=(1, 1)))


def test_joint_training_with_more_updates_is_a_label():
    runs = planned(
        StudyConfig(
            grid=(GridBlock(("MTL",)), GridBlock(("MTL",), set={"max_epochs": 10}, label="twice")), seeds=(1,)
        ),
        HERE,
    )
    assert [(run.name, run.config.max_epochs) for run in runs] == [("MTL-seed1", 30), ("MTL-twice-seed1", 10)]
    setups = setups_of([plain(asdict(run.config)) for run in runs])
    assert [setup.name for setup in setups] == ["MTL-5, 30 epochs", "MTL-5, 10 epochs"]


def test_fixed_masks_are_those_of_a_file():
    block = GridBlock(("pos+dep",), ("fixed_per_task", "fixed"), {"gates.masks": "m.parquet"})
    runs = planned(StudyConfig(grid=(block, GridBlock(("pos+dep",))), seeds=(1,)), HERE)
    assert [(run.name, run.config.pruning, run.config.gates) for run in runs] == [
        (
            "pos+dep-fixed_per_task-seed1",
            "fixed",
            GatesConfig(scope="per_task", masks="m.parquet"),
        ),
        ("pos+dep-fixed-seed1", "fixed", GatesConfig(masks="m.parquet")),
        ("pos+dep-seed1", "none", reference().gates),
    ]
    for run in runs:
        check_settings(run.config)
    [run] = planned(StudyConfig(grid=(GridBlock(("pos",), ("fixed",)),), seeds=(1,)), HERE)
    with pytest.raises(InputError, match=r"use gates\.masks=FILE"):
        check_settings(run.config)


def test_the_kinds_that_are_probed_are_those_that_plans_know():
    assert set(PROBED_KINDS) == set(BY_KIND)
    assert set(DEFAULT_TASKS) == set(PROBE_TARGETS)
