"""Numbers by task: penalties, targets and rates of masks, and rates of decoders."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from mtl.config.effective import plain
from mtl.config.parse import configuration_from
from mtl.config.schema import GatesConfig, TrainConfig
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.errors import InputError
from mtl.heads.gates import HeadGates
from mtl.heads.target import Penalty
from mtl.models.joint import JointModel
from mtl.tasks.catalogue import TASKS
from mtl.training.balancers import Uniform
from mtl.training.check import check_settings, said_of_unused
from mtl.training.gate_loss import GateLoss, gate_loss, gate_rate, reach_warning
from mtl.training.step import JointTraining
from tests.mtl import tiny

OF_PAPER = {"pos": 0.01, "ner": 0.0002, "dep": 0.01, "con": 0.01, "srl": 0.001}


def test_each_mask_has_the_penalty_and_the_target_of_its_task() -> None:
    gates = HeadGates(3, 4, masks=("pos", "dep"), init_std=1.0)
    config = GatesConfig(scope="per_task", penalty={"dep": 0.5, "pos": 0.25})
    loss = gate_loss(gates, config, 100)
    assert loss.target is None
    expected = torch.sigmoid(gates.log_alpha + 0.33 * math.log(11)).sum((1, 2)) / 3
    torch.testing.assert_close(loss(0, torch.ones(2)), 0.25 * expected[0] + 0.5 * expected[1])
    wanted = gate_loss(gates, GatesConfig(scope="per_task", target_open={"pos": 3.0, "dep": 0.5}), 100)
    best = gates.log_alpha.detach().flatten(1)
    wanted.after_update(90)
    opened = gates.open().flatten(1)
    assert opened.sum(1).tolist() == [3, 6]
    for mask, number in enumerate((3, 6)):
        assert opened[mask, best[mask].topk(number).indices].all()


def test_the_mask_of_a_single_task_has_its_number() -> None:
    gates = HeadGates(2, 3)
    loss = gate_loss(gates, GatesConfig(penalty={"ner": 0.0002}), 100)
    torch.testing.assert_close(loss(0, torch.ones(1)), 0.0002 * gates.penalty().sum())
    assert gate_rate(GatesConfig(lr={"ner": 0.3}), 100, ("ner",)) == 0.3
    assert gate_rate(GatesConfig(lr={"ner": 0.3}), 100, ("ner", "pos")) == (0.3, 0.1)


def module_of(toy: Path, **settings: object) -> JointTraining:
    """A module with a mask per task."""
    torch.manual_seed(3)
    sentences = read_jsonl(toy / "train.jsonl")[:9]
    tasks = {name: TASKS[name]() for name in ("pos", "dep", "ner")}
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(tiny.encoder("bert", dtype=torch.float32), tasks, labels)
    gates = HeadGates(3, 4, masks=tuple(tasks))
    loss = GateLoss(gates, 10, penalties=[Penalty(0.1)])
    return JointTraining(model, Uniform(), updates=10, encoder_lr=0.01, gate_loss=loss, **settings)  # type: ignore[arg-type]


def test_decoders_and_masks_move_at_the_rates_of_their_tasks(toy: Path) -> None:
    rates = {"pos": 0.02, "dep": 0.05, "ner": 0.02}
    module = module_of(
        toy, decoder_lr=rates, gate_lr=(0.1, 0.2, 0.4), gate_warmup=0.4, weight_decay=0.0, warmup=0.0,
        schedule="constant",
    )  # fmt: skip
    made = module.configure_optimizers()
    optimizer, scheduler = made["optimizer"], made["lr_scheduler"]["scheduler"]
    gates = module.gate_loss.gates  # type: ignore[union-attr]
    parts = {**{name: module.model.decoder(name) for name in rates}, "encoder": module.model.encoder}
    before = {name: [each.detach().clone() for each in part.parameters()] for name, part in parts.items()}
    start = gates.log_alpha.detach().clone()
    for update in range(4):
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)  # so that Adam moves each number by its rate
        optimizer.step()
        scheduler.step()
        for name, part in parts.items():
            moved = (update + 1) * {**rates, "encoder": 0.01}[name]
            for old, new in zip(before[name], part.parameters(), strict=True):
                torch.testing.assert_close(old - new, torch.full_like(old, moved), rtol=1e-4, atol=1e-6)
        share = sum((done + 1) / 5 for done in range(update + 1))  # of a warm-up of four updates
        by_mask = share * torch.tensor([0.1, 0.2, 0.4])[:, None, None].expand_as(start)
        torch.testing.assert_close(start - gates.log_alpha, by_mask, rtol=1e-4, atol=1e-6)


def test_a_gate_that_warms_up_needs_more_updates() -> None:
    gates = HeadGates(2, 3, init_std=0.0)
    assert reach_warning(gates, (1.0, 10 / 500), 500) is None
    assert reach_warning(gates, (1.0, 4.5 / 500), 500) is None
    line = reach_warning(gates, (1.0, 4.5 / 500), 500, warmup=0.5)
    assert line is not None
    assert "gates.lr=0.009" in line


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        (
            {"penalty": {"pos": 0.1}},
            "^gates.penalty: nothing is given for dep: set a target or a penalty for",
        ),
        ({"penalty": {"pos": 0.1}, "target_open": {"dep": 0.5}}, "are for different tasks of one run"),
        ({"penalty": {"pos": 0.1, "dep": 1.0}, "target_open": 0.5}, "is for all tasks, but gates.penalty is"),
        ({"penalty": {"pos": 0.1, "dep": 1.0}, "target_open": {"dep": 0.5}}, "give a task one of the two"),
        ({"penalty": {"pos": 0.1, "self": 1.0}}, "gates.penalty is given by kind of attention and by task"),
        ({"penalty": {"pos": 0.1}, "target_open": {"self": 1.0}}, "give both in the same way"),
        ({"penalty": {"pos": 0.1, "dpe": 1.0}}, "^unknown key 'gates.penalty.dpe': did you mean '.*dep'?"),
        ({"lr": {"self": 0.1}}, "^unknown key 'gates.lr.self'"),
        ({"lr": {"pos": 0.0}}, "^gates.lr.pos=0.0: use a number above 0"),
    ],
)
def test_numbers_by_task_that_cannot_be_are_refused_in_a_line(gates: dict[str, object], message: str) -> None:
    values = {"tasks": ["pos", "dep"], "pruning": "dynamic", "gates": {"scope": "per_task", **gates}}
    with pytest.raises(InputError, match=message):
        check_settings(configuration_from(TrainConfig, values))


def test_numbers_for_tasks_that_are_not_trained_are_said_and_left_out() -> None:
    given = TrainConfig(tasks=("pos",), pruning="dynamic", gates=GatesConfig(penalty=OF_PAPER))
    check_settings(given)
    [line] = said_of_unused(given)
    assert line.endswith(
        "which does not use them: gates.penalty.ner, gates.penalty.dep, gates.penalty.con, gates.penalty.srl"
    )
    assert given.without_other_tasks().gates.penalty == {"pos": 0.01}
    assert plain(dataclasses.asdict(given.without_other_tasks().balancer)) == plain(
        dataclasses.asdict(given.balancer)
    )
