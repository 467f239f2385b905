"""Training whose encoder is factorised first, by the setting `components`."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from mtl.collaborative.sharing import recorded_components
from mtl.commands.main import main
from mtl.config.schema import BatchConfig, CorpusConfig, EncoderConfig, TrainConfig, TrainerConfig
from mtl.errors import InputError
from mtl.models.joint import JointModel
from mtl.training.check import check_settings
from mtl.training.train import train
from mtl.translation.config import Seq2SeqConfig
from tests.mtl import tiny
from tests.mtl.stopped import StopAt


@pytest.fixture
def config(tiny_encoder: Path, toy: Path, tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        name="one", runs=str(tmp_path / "runs"), corpus=CorpusConfig(str(toy)), tasks=("pos",), max_epochs=2,
        pruning="dynamic", encoder=EncoderConfig(str(tiny_encoder)), batch=BatchConfig(sentences=6),
        trainer=TrainerConfig(accelerator="cpu", precision="32-true"),
    )  # fmt: skip


def with_components(config: TrainConfig, number: int | None) -> TrainConfig:
    return dataclasses.replace(config, **{"components": number})


@pytest.mark.slow
def test_one_command_does_what_two_do_and_resumes(config: TrainConfig, tmp_path: Path) -> None:
    out, printed = tmp_path / "shared", io.StringIO()
    assert main(["collaborate", config.encoder.name, "--dim=10", f"--out={out}", "--lengths=[]"]) == 0
    two = dataclasses.replace(config, name="two", encoder=EncoderConfig(str(out)))
    train(two, console=Console(quiet=True))
    one = with_components(config, 10)
    with pytest.raises(RuntimeError, match="the power is gone"):
        train(one, console=Console(quiet=True), observers=[StopAt(3)])
    run = train(one, console=Console(file=printed, width=200))
    assert "error of the factorisation 0." in printed.getvalue()
    assert run.config()["components"] == 10
    models = [JointModel.from_pretrained(tmp_path / "runs" / name) for name in ("one", "two")]
    made, expected = (model.state_dict() for model in models)
    assert made.keys() == expected.keys()
    assert all(torch.equal(value, made[name]) for name, value in expected.items())
    record = recorded_components(models[0].encoder.transformer.config)
    assert record == dict.fromkeys(range(tiny.LAYERS), 10)
    # Another run starts from it with the same components or without the key, and with no others.
    after = dataclasses.replace(one, name="after", init_from=str(run.folder), pruning="static", max_epochs=1)
    with pytest.raises(InputError, match=f"but the heads of {run.folder} share 10: leave it out"):
        train(with_components(after, 9), console=Console(quiet=True))
    for number in (10, None):
        last = dataclasses.replace(with_components(after, number), name=f"after-{number}")
        model = JointModel.from_pretrained(train(last, console=Console(quiet=True)).folder)
        assert recorded_components(model.encoder.transformer.config) == record


def test_what_cannot_be_factorised_is_refused_before_anything_is_written(config: TrainConfig) -> None:
    changes: dict[str, dict[str, object]] = {
        "components=10 is for encoders, and tasks is translate: use seq2seq.components": {
            "tasks": ("translate",), "seq2seq": Seq2SeqConfig("marian"), "pruning": "none",
        },
        "components=0: use a number from 1 to": {"components": 0},
    }  # fmt: skip
    for message, change in changes.items():
        with pytest.raises(InputError, match=message):
            check_settings(dataclasses.replace(with_components(config, 10), **change))
    with pytest.raises(InputError, match=r"components=999: use 1 to \d+ components"):
        train(with_components(config, 999), console=Console(quiet=True))
    assert not Path(config.runs, "one").exists()
