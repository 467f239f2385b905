"""Cosines of the tasks' gradients per head, against gradients taken task by task."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import polars as pl
import pytest
import pytorch_lightning as pl_trainer
import torch

from mtl.commands.main import main
from mtl.config.parse import configured
from mtl.config.schema import BalancerConfig, TrainConfig
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.errors import InputError
from mtl.heads.attentions import attentions
from mtl.models.batches import collate, examples
from mtl.models.joint import JointModel
from mtl.probes.tables import heads_table
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_tables import write_measures
from mtl.stem_cell.gradient_conflict import ConflictRecord, GradientConflict
from mtl.tasks.catalogue import TASKS
from mtl.training.balancers import balancer_for
from mtl.training.step import JointTraining
from tests.mtl import tiny

NAMES = ("pos", "dep", "con")


@pytest.fixture
def model(toy: Path) -> JointModel:
    torch.manual_seed(0)
    encoder = tiny.encoder("bert", dtype=torch.float32, word_dropout=0.0)
    tasks = {name: TASKS[name]() for name in NAMES}
    sentences = read_jsonl(toy / "train.jsonl")
    built = JointModel(encoder, tasks, {name: task.labels(sentences) for name, task in tasks.items()}).eval()
    tiny.shake(built.decoders)  # fresh biaffines are zero, and so would be their gradients
    return built


def test_cosines_are_those_of_each_tasks_own_gradient(model, toy):
    tokenizer = model.encoder.tokenizer
    sentences = read_jsonl(toy / "train.jsonl")[:9]
    batch = collate(examples(sentences, tokenizer, model.tasks, model.labels), tokenizer, model.tasks)
    conflict = GradientConflict(model.encoder.tap, NAMES, every=2)
    with conflict.watching(0) as outputs:
        losses = model.losses(batch, model(batch))
    conflict.add(outputs, losses)
    with conflict.watching(1) as outputs:
        losses = model.losses(batch, model(batch))
    assert outputs == []
    conflict.add(outputs, losses)
    table = pl.DataFrame(conflict.rows(1))
    assert table["count"].unique().to_list() == [1]

    own = {}
    for name in NAMES:
        inputs: list[torch.Tensor] = []

        def keep(module, args, inputs=inputs):
            inputs.append(args[0])
            args[0].retain_grad()

        handles = [
            attention.output.register_forward_pre_hook(keep)
            for attention in attentions(model.encoder.transformer, model.encoder.family)
        ]
        model.losses(batch, model(batch))[name].backward()
        for handle in handles:
            handle.remove()
        own[name] = [each.grad.unflatten(-1, (tiny.HEADS, tiny.HEAD_DIM)) for each in inputs]
    for first, second in combinations(NAMES, 2):
        for layer in range(tiny.LAYERS):
            for head in range(tiny.HEADS):
                one, other = (own[name][layer][:, :, head].flatten() for name in (first, second))
                expected = torch.cosine_similarity(one, other, dim=0).item()
                row = table.filter(label=f"{first}-{second}", layer=layer, head=head)
                assert row["value"].item() == pytest.approx(expected, abs=1e-5)


def test_cosines_have_all_digits_where_training_runs_in_bfloat16(model, toy):
    sentences = read_jsonl(toy / "train.jsonl")[:9]
    tokenizer = model.encoder.tokenizer
    batch = collate(examples(sentences, tokenizer, model.tasks, model.labels), tokenizer, model.tasks)
    found = []
    for lower in (False, True):
        conflict = GradientConflict(model.encoder.tap, NAMES, every=1)
        with conflict.watching(0) as outputs:
            losses = model.losses(batch, model(batch))
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            conflict.add(outputs, losses)
        found.append(conflict.total.clone())
    torch.testing.assert_close(*found)


@pytest.mark.slow
def test_training_records_every_epoch_and_is_not_changed_by_it(toy, tiny_encoder, tmp_path):
    words = [
        "train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", f"--runs={tmp_path}",
        "--tasks=pos,dep", "--max_epochs=2", "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert main([*words, "--name=plain"]) == 0
    assert main([*words, "--name=watched", "--gradient_conflict_every=3"]) == 0
    table = pl.read_parquet(tmp_path / "watched" / "heads.parquet")
    assert set(table["choice"]) == {"epoch 1", "epoch 2"}
    assert set(table["label"]) == {"pos-dep"}
    assert len(table) == 2 * tiny.LAYERS * tiny.HEADS
    assert table["value"].abs().max() <= 1 + 1e-6
    plain, watched = (JointModel.from_pretrained(tmp_path / name) for name in ("plain", "watched"))
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_one_task_has_nobody_to_compare_with(toy, tiny_encoder, tmp_path, capsys):
    words = [
        "train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", f"--runs={tmp_path}",
        "--tasks=pos", "--gradient_conflict_every=1",
    ]  # fmt: skip
    assert main(words) == 2
    assert "at least two tasks" in capsys.readouterr().err


def rows(measure: str, value: float) -> pl.DataFrame:
    return heads_table.rows(measure, "pos", ["NN"], np.full((1, 1, 2), value), np.array([3]))


def test_a_training_that_is_watched_adds_rows_and_replaces_no_other_s(tmp_path: Path) -> None:
    """Resuming a training whose heads were measured meanwhile keeps these measures."""
    run, path = Run(tmp_path), tmp_path / "heads.parquet"
    write_measures(path, rows("attention", 1.0), ["attention"], {"split": "test"})
    row = {
        "measure": "gradient_conflict", "task": "", "label": "pos-ner", "attention": "self", "layer": 0,
        "head": 0, "value": 0.5, "count": 1,
    }  # fmt: skip
    conflict = MagicMock(GradientConflict, rows=lambda epoch: [row | {"choice": f"epoch {epoch}"}])
    record = ConflictRecord(run, conflict)
    for epoch in range(2):
        trainer = MagicMock(pl_trainer.Trainer, current_epoch=epoch, is_global_zero=True)
        record.on_train_epoch_end(trainer, MagicMock(pl_trainer.LightningModule))
        write_measures(path, rows("importance", float(epoch)), ["importance"], {"importance.split": "dev"})
    heads, provenance = heads_table.read_heads_table(path)
    assert heads["measure"].value_counts().sort("measure").rows() == [
        ("attention", 2), ("gradient_conflict", 2), ("importance", 2),
    ]  # fmt: skip
    assert provenance["split"] == "test"


def test_a_number_below_zero_is_refused():
    with pytest.raises(InputError, match="gradient_conflict_every=-1: use a number from 0 to 1,000,000"):
        configured("mtl train", TrainConfig, ["--tasks=pos,dep", "--gradient_conflict_every=-1"])


def test_what_was_measured_so_far_has_its_names_of_before_in_a_checkpoint(model):
    meter = GradientConflict(model.encoder.tap, NAMES, every=2)
    training = JointTraining(model, balancer_for(BalancerConfig(), NAMES), updates=1, meters=[meter])
    assert {name for name in training.state_dict() if name.startswith("conflict")} == {
        "conflict.total", "conflict.steps",
    }  # fmt: skip
