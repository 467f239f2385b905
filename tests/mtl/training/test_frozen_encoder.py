"""Encoders with random weights, and encoders of which parts are frozen."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from mtl.config.effective import plain
from mtl.config.parse import configuration_from, configured
from mtl.config.schema import TrainConfig
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.errors import InputError
from mtl.models.batches import collate, examples
from mtl.models.joint import JointModel
from mtl.models.pretrained import load_encoder, random_encoder
from mtl.runs.compare.setups import setups_of
from mtl.runs.folder.run import Run
from mtl.tasks.catalogue import TASKS
from mtl.training.check import check_settings
from mtl.training.gate_loss import freeze_encoder
from mtl.training.train import train
from tests.mtl import tiny
from tests.mtl.stopped import StopAt, weights

QUIET = Console(quiet=True)


def trained(words: list[str]) -> tuple[Run, str]:
    """A short run, and what it has printed."""
    console = Console(file=io.StringIO(), width=10_000)
    run = train(configured("mtl train", TrainConfig, words), console=console)
    return run, console.file.getvalue()  # type: ignore[attr-defined]


def of(made: Tensor | tuple[Tensor, ...]) -> Tensor:
    """What a layer has made."""
    return made[0] if isinstance(made, tuple) else made


def encoder_of(run: Run) -> dict[str, Tensor]:
    return dict(JointModel.from_pretrained(run.model).encoder.transformer.state_dict())


def test_random_weights_have_the_architecture_and_not_the_weights(tiny_encoder: Path) -> None:
    pretrained, tokenizer = load_encoder(str(tiny_encoder), "sdpa", torch.float32)
    before = torch.get_rng_state()
    one, other, again = (random_encoder(str(tiny_encoder), "sdpa", seed) for seed in (1, 2, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert one[1].get_vocab() == tokenizer.get_vocab()
    weights = [dict(each.named_parameters()) for each in (pretrained, one[0], other[0], again[0])]
    for name, weight in weights[0].items():
        drawn, of_other, of_same = (each[name] for each in weights[1:])
        assert torch.equal(drawn, of_same)
        assert drawn.shape == weight.shape
        assert drawn.requires_grad
        if name.endswith("weight") and "LayerNorm" not in name:
            assert not torch.equal(drawn, weight)
            assert not torch.equal(drawn, of_other)
            assert drawn.std().item() == pytest.approx(pretrained.config.initializer_range, rel=0.35)


def test_a_run_on_random_weights_says_so_and_is_another_run(
    tiny_encoder: Path, few: Path, tmp_path: Path
) -> None:
    words = [
        "--tasks=[pos]", f"--corpus.path={few}", f"--encoder.name={tiny_encoder}", "--max_epochs=1",
        "--trainer.accelerator=cpu", f"--runs={tmp_path}", "--encoder.freeze=all", "--seed=4",
    ]  # fmt: skip
    run, said = trained([*words, "--encoder.weights=random", "--name=random"])
    assert "random weights, drawn with seed 4" in said
    drawn = random_encoder(str(tiny_encoder), "sdpa", 4)[0].state_dict()
    for name, weight in encoder_of(run).items():
        assert torch.equal(weight, drawn[name]), name
    assert run.config()["encoder"]["weights"] == "random"
    with pytest.raises(InputError, match=r"encoder\.weights"):
        trained([*words, "--name=random"])
    again, _ = trained([*words[:-2], f"--from={run.folder}", "--name=further"])  # not frozen
    assert again.config()["encoder"]["weights"] == "random"
    assert not all(torch.equal(weight, drawn[name]) for name, weight in encoder_of(again).items())
    other = {**run.config(), "encoder": {**run.config()["encoder"], "weights": "pretrained"}}
    assert len({setup.name for setup in setups_of([run.config(), other])}) == 2


@pytest.mark.slow
def test_a_run_on_random_weights_that_was_stopped_equals_the_unbroken_one(
    tiny_encoder: Path, few: Path, tmp_path: Path
) -> None:
    words = [
        "--tasks=[pos]", f"--corpus.path={few}", f"--encoder.name={tiny_encoder}", "--encoder.weights=random",
        "--max_epochs=1", "--batch.sentences=6", "--trainer.accelerator=cpu",
        "--trainer.checkpoint_minutes=0", f"--runs={tmp_path}",
    ]  # fmt: skip
    unbroken, _ = trained([*words, "--name=unbroken"])
    words.append("--name=broken")
    with pytest.raises(RuntimeError, match="power"):
        train(configured("mtl train", TrainConfig, words), console=QUIET, observers=[StopAt(3)])
    broken, said = trained(words)
    assert "resum" in said
    assert len(broken.status()["starts"]) == 2
    found, expected = weights(broken), weights(unbroken)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert broken.metrics() == unbroken.metrics()


@pytest.mark.parametrize(
    ("freeze", "still", "graph"),
    [
        ("all", (True, True, True, True), (False, False, False, False)),
        (("embeddings", 0), (True, True, False, False), (False, False, True, True)),
        ((1,), (False, False, True, False), (True, True, True, True)),
    ],
    ids=["all", "lower", "one"],
)
def test_frozen_parts_have_no_gradients_no_dropout_and_below_them_no_graph(
    toy: Path, freeze: object, still: tuple[bool, ...], graph: tuple[bool, ...]
) -> None:
    torch.manual_seed(1)
    sentences = read_jsonl(toy / "train.jsonl")[:4]
    tasks = {name: TASKS[name]() for name in ("pos", "dep")}
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(tiny.encoder("bert", dtype=torch.float32), tasks, labels).train()
    freeze_encoder(freeze, model.encoder)  # type: ignore[arg-type]
    bert = model.encoder.transformer
    parts: list[nn.Module] = [bert.embeddings, *bert.encoder.layer]
    assert len(parts) == 4
    seen: list[bool] = []
    for part in parts:
        part.register_forward_hook(
            lambda module, given, made: seen.append(
                (made[0] if isinstance(made, tuple) else made).requires_grad
            )
        )
    made = examples(sentences, model.encoder.tokenizer, model.tasks, model.labels)
    batch = collate(made, model.encoder.tokenizer, model.tasks)
    sum(model.losses(batch, model(batch)).values()).backward()  # type: ignore[union-attr]
    assert tuple(seen) == graph
    for part, frozen in zip(parts, still, strict=True):
        assert all((parameter.grad is None) == frozen for parameter in part.parameters())
        assert not any(module.training == frozen for module in part.modules())
    assert all(parameter.grad is not None for parameter in model.decoders.parameters())


def test_gates_learn_over_a_frozen_encoder(tiny_encoder: Path, few: Path, tmp_path: Path) -> None:
    words = [
        "--tasks=[pos,dep]", f"--corpus.path={few}", f"--encoder.name={tiny_encoder}", "--max_epochs=1",
        "--trainer.accelerator=cpu", f"--runs={tmp_path}", "--pruning=dynamic",
    ]  # fmt: skip
    run, _ = trained([*words, "--encoder.freeze=all", "--name=frozen"])
    before = load_encoder(str(tiny_encoder), "sdpa", torch.float32)[0].state_dict()
    after = encoder_of(run)
    assert all(torch.equal(weight, before[name]) for name, weight in after.items())
    gates = JointModel.from_pretrained(run.model).gates
    assert gates is not None
    assert gates.open().any()
    assert not gates.open().all()
    lower, _ = trained([*words, "--encoder.freeze=[embeddings,0]", "--name=lower"])
    for name, weight in encoder_of(lower).items():
        assert torch.equal(weight, before[name]) == name.startswith(("embeddings.", "encoder.layer.0.")), name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"encoder": {"freeze": "none"}}, r"^encoder\.freeze: expected"),
        ({"encoder": {"freeze": ["embedding"]}}, r"^encoder\.freeze: expected"),
        ({"encoder": {"freeze": [-1]}}, r"^encoder\.freeze\[0\]=-1: use a number"),
        ({"encoder": {"freeze": []}}, r"^encoder\.freeze is empty: name layers, or use null"),
        (
            {"encoder": {"freeze": "all"}, "pruning": "static", "init_from": "runs/x"},
            "leaves only the gates: use pruning=gates_only",
        ),
        (
            {"encoder": {"freeze": "all"}, "balancer": {"name": "pcgrad"}},
            r"^balancer pcgrad compares .* which encoder\.freeze=all freezes",
        ),
        ({"encoder": {"weights": "radnom"}}, r"^encoder\.weights: unknown 'radnom': did you mean 'random'\?"),
    ],
)
def test_what_cannot_be_frozen_is_refused_in_a_line(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_settings(configuration_from(TrainConfig, given))


def test_what_to_freeze_can_be_given_on_the_command_line() -> None:
    given = ("all", "embeddings,0,1", "[embeddings, 0]", "2", "null")
    read = [configured("", TrainConfig, [f"--encoder.freeze={each}"]).encoder.freeze for each in given]
    assert read == ["all", ("embeddings", 0, 1), ("embeddings", 0), (2,), None]
    assert plain(read[1]) == ["embeddings", 0, 1]
    albert, bert = tiny.encoder("albert", dtype=torch.float32), tiny.encoder("bert", dtype=torch.float32)
    with pytest.raises(InputError, match="layers share their weights: use all"):
        freeze_encoder((0,), albert)
    with pytest.raises(InputError, match="there is no layer 3: the encoder has 3, from 0"):
        freeze_encoder((3,), bert)
