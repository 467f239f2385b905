"""The update of a training step: clipping by a common norm, held against torch's own in double precision."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.heads.gates import HeadGates
from mtl.heads.target import Penalty
from mtl.models.joint import JointModel
from mtl.tasks.catalogue import TASKS
from mtl.training.balancers import Uniform
from mtl.training.gate_loss import GateLoss
from mtl.training.step import JointTraining
from tests.mtl import tiny


@pytest.mark.parametrize("clip", [0.0, 0.05, 1e3], ids=["none", "below", "above"])
def test_encoder_and_decoders_are_clipped_by_their_common_norm_and_gates_are_not(toy: Path, clip: float):
    torch.manual_seed(3)
    sentences = read_jsonl(toy / "train.jsonl")[:9]
    tasks = {name: TASKS[name]() for name in ("pos", "dep")}
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(tiny.encoder("bert", dtype=torch.float32), tasks, labels)
    gates = HeadGates(2, 4)
    module = JointTraining(
        model, Uniform(), updates=10, encoder_lr=0.01, decoder_lr=0.02, warmup=0.0, schedule="constant",
        clip=clip, gate_loss=GateLoss(gates, 10, penalties=[Penalty(0.1)]), gate_lr=0.1,
    )  # fmt: skip
    optimizer = module.configure_optimizers()["optimizer"]
    parts = nn.ModuleList([model.encoder, model.decoders, gates])
    exact = copy.deepcopy(parts).double()
    oracle = torch.optim.AdamW(
        [
            {"params": [parameter], "lr": rate, "weight_decay": decay * (parameter.ndim > 1)}
            for part, rate, decay in zip(exact, (0.01, 0.02, 0.1), (0.01, 0.01, 0.0), strict=True)
            for parameter in part.parameters()
        ]
    )
    pairs = list(zip(parts.parameters(), exact.parameters(), strict=True))
    for _ in range(3):
        for mine, theirs in pairs[1:]:  # the first has no gradient
            mine.grad = torch.randn_like(mine)
            theirs.grad = mine.grad.double()
        module.configure_gradient_clipping(optimizer)
        optimizer.step()
        if clip:
            nn.utils.clip_grad_norm_([*exact[0].parameters(), *exact[1].parameters()], clip)
        oracle.step()
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-6)
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-5, atol=1e-6)
