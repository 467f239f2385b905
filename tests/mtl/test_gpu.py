"""What a GPU computes is what the CPU computes, and steps do not wait for it; skipped without a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from polars.testing import assert_frame_equal

from mtl.commands.command_table import COMMANDS, MEASURES
from mtl.commands.main import main
from mtl.config.effective import plain
from mtl.config.schema import GatesConfig
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.models.batches import collate, examples
from mtl.models.pass_graphs import PassGraphs
from mtl.training.step import JointTraining
from tests.mtl import tiny
from tests.mtl.training import test_launches

CURVE = ("--by=importance,recomputed", "--steps=2", "--sentences=8")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")

FIVE = ("pos", "ner", "dep", "con", "srl")
MASKS = {"pruning": "dynamic", "gates": {"scope": "per_task", "target_open": 4}}


@pytest.fixture
def settings(toy: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Five tasks on sentences of one window, without anything drawn in training; in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "dev", "test"):
        short = [one for one in read_jsonl(toy / f"{split}.jsonl") if len("".join(one.words)) < 50]
        write_jsonl(Path("short") / f"{split}.jsonl", short)
    config = json.loads((tiny_encoder / "config.json").read_text())
    still = {name: 0.0 for name in config if "dropout" in name}
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    for file in tiny_encoder.iterdir():
        (encoder / file.name).write_bytes(file.read_bytes())
    (encoder / "config.json").write_text(json.dumps(config | still))
    return {
        "corpus": {"path": "short"},
        "encoder": {"name": str(encoder), "word_dropout": 0.0},
        "tasks": list(FIVE),
        **{task: {"dropout": 0.0} for task in FIVE},
        "max_epochs": 3,
        "optimizer": {"encoder_lr": 1e-3},
    }


def train(settings: dict, name: str, **trainer: object) -> Path:
    """Train a run of this name; returns its folder."""
    text = yaml.safe_dump(settings | {"name": name, "trainer": {"threads": 1, **trainer}})
    Path(f"{name}.yaml").write_text(text)
    assert main(["train", f"{name}.yaml"]) == 0
    return Path("runs") / name


def losses(run: Path) -> pl.DataFrame:
    """Each task's mean loss in each epoch."""
    return pl.read_csv(run / "history.csv").select("^loss/.*$")


def values(run: Path) -> pl.DataFrame:
    """All measures on the heads of a run, in a fixed order."""
    keys = ["measure", "task", "label", "attention", "layer", "head"]
    return pl.read_parquet(run / "heads.parquet").sort(keys).select(*keys, "value")


@contextlib.contextmanager
def waits_in_steps(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[list[str]]:
    """CUDA's warnings of waits in forward, backward and update, after the first steps."""
    said: list[str] = []
    ordinary = JointTraining.optimizer_step

    def step(self, epoch, batch, optimizer, closure) -> None:
        if self.global_step < after:
            ordinary(self, epoch, batch, optimizer, closure)
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                ordinary(self, epoch, batch, optimizer, closure)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        said.extend(
            f"{one.filename}:{one.lineno}" for one in caught if "called a synchronizing" in str(one.message)
        )

    monkeypatch.setattr(JointTraining, "optimizer_step", step)
    yield said


def outside_libraries(waits: list[str]) -> list[str]:
    """Waits that are not for transformers, which reads whether a batch has padding."""
    return [place for place in waits if "/transformers/" not in place]


def test_training_has_the_losses_of_the_cpu(settings):
    here = train(settings, "here", accelerator="cpu", precision="32-true")
    there = train(settings, "there", accelerator="gpu", precision="32-true")
    assert_frame_equal(losses(here), losses(there), rel_tol=2e-3)


@pytest.mark.parametrize("scope", [None, "shared", "per_task"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("rounded", [False, True])
def test_steps_by_graphs_draw_and_learn_what_padded_steps_do(toy, scope, precision, rounded):
    """With dropout of all kinds, in two shapes, one of which is captured later; weights change in place."""
    steps, found = {}, []
    for seldom in (99, 1):
        torch.manual_seed(0)
        model, batch = test_launches.joint(toy, rounded)
        few = examples(read_jsonl(toy / "train.jsonl")[:2], model.tokenizer, model.tasks, model.labels)
        batches = batch, collate(few, model.tokenizer, model.tasks, rounded=rounded)
        model.cuda()
        for module in model.encoder.modules():
            if type(module).__name__.endswith("SelfAttention"):
                module.dropout.p = 0.1
        tasks = len(model.tasks) if scope == "per_task" else 1
        scale = torch.rand(tasks, tiny.LAYERS, tiny.HEADS).cuda().requires_grad_()
        weights = [scale, *model.parameters()]
        given = None if scope is None else scale if scope == "per_task" else scale[0]
        steps[seldom] = PassGraphs(seldom=seldom)
        of_steps = []
        for batch in [batches[number] for number in (0, 0, 0, 1, 0, 1, 1)]:
            on_card = batch.to("cuda")
            with torch.autocast("cuda", torch.bfloat16, precision == "bf16-mixed"), steps[seldom].in_use():
                losses = torch.stack([*model.losses_by_graphs(on_card, given).values()])
            gradients = torch.autograd.grad(losses.sum(), weights, allow_unused=True)
            of_steps.append((losses.detach(), [one for one in gradients if one is not None]))
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    if gradient is not None:
                        weight -= 1e-3 * gradient
        found.append((of_steps, torch.cuda.get_rng_state()))
    modules = 6 if rounded else 1  # the decoders, too
    assert (steps[99].captured, steps[1].captured, steps[1].passes) == (0, 2 * modules, 5 * modules)
    assert torch.equal(found[0][1], found[1][1])
    near = 1e-3 if precision == "32-true" else 2e-2
    torch.testing.assert_close(found[0][0], found[1][0], rtol=near, atol=near)


def test_an_encoder_that_waits_is_not_captured_and_draws_on():
    said: list[str] = []
    encoder = tiny.encoder("llama", dtype=torch.float32).train().cuda()
    subwords = encoder.tokenizer.collate(encoder.tokenizer.encode_all([["the", "dog"], ["a"]])).to("cuda")
    found = []
    for graphs in (PassGraphs(seldom=99), PassGraphs(seldom=1, say=said.append)):
        torch.manual_seed(0)
        with graphs.in_use():
            found.append([encoder(subwords).detach() for _ in range(4)] + [torch.rand(1, device="cuda")])
    torch.testing.assert_close(found[0], found[1])
    [line] = said
    assert "synchronizing" in line


def test_cuda_graphs_have_the_losses_of_single_operations(settings):
    single = train(settings, "single", accelerator="gpu", precision="32-true")
    graphs = train(settings, "graphs", accelerator="gpu", precision="32-true", cuda_graphs=True)
    assert_frame_equal(losses(single), losses(graphs), rel_tol=2e-3)


def test_bfloat16_has_nearly_the_losses_of_float32(settings):
    exact = train(settings, "exact", accelerator="gpu", precision="32-true")
    mixed = train(settings, "mixed", accelerator="gpu", precision="bf16-mixed")
    assert_frame_equal(losses(exact), losses(mixed), rel_tol=0.05)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("graphs", [False, True])
def test_steps_with_masks_do_not_wait(settings, monkeypatch, precision, graphs):
    after = 30 if graphs else 3  # making a graph waits
    with waits_in_steps(monkeypatch, after) as waits:
        train(settings | MASKS, "masks", accelerator="gpu", precision=precision, cuda_graphs=graphs)
    assert outside_libraries(waits) == []


@pytest.mark.parametrize("balancer", ["moving_average", "uncertainty", "gradnorm", "pcgrad"])
def test_balancers_run_and_do_not_wait(settings, monkeypatch, balancer):
    with waits_in_steps(monkeypatch, after=3) as waits:
        train(settings | {"balancer": {"name": balancer}}, "balanced", accelerator="gpu")
    assert outside_libraries(waits) == []


def test_measures_of_a_run_are_those_of_the_cpu(settings):
    found = {}
    for where in ("cpu", "gpu"):
        run = train(settings | MASKS, where, accelerator="cpu", precision="32-true")
        for words in (
            ["evaluate", str(run), "--split=test", f"--json-out={where}.json"],
            *([name, str(run), "--sentences=8"] for name in MEASURES),
            ["ablate", str(run), "--sentences=8"],
            ["probe", str(run)],
            *([["curve", str(run), *CURVE]] if "curve" in COMMANDS else []),
        ):
            assert main([*words, f"--accelerator={where}"]) == 0
        found[where] = values(run), json.loads(Path(f"{where}.json").read_text())
    assert_frame_equal(found["cpu"][0], found["gpu"][0], rel_tol=1e-3, abs_tol=1e-4)
    assert found["cpu"][1] == found["gpu"][1]


def test_annotations_are_those_of_the_cpu(settings, capsys):
    run = train(settings, "run", accelerator="cpu", precision="32-true")
    Path("lines.txt").write_text("The dog saw a cat .\nA cat ran .\n" * 8)
    written = {}
    for where in ("cpu", "gpu"):
        capsys.readouterr()
        words = ["predict", str(run), "lines.txt", "--output=conllu", f"--accelerator={where}"]
        assert main(words) == 0
        written[where] = capsys.readouterr().out
    assert written["cpu"] == written["gpu"]


def test_a_model_that_translates_learns_and_is_measured(tmp_path, monkeypatch):
    digits = pytest.importorskip("tests.mtl.translation.digits")
    monkeypatch.chdir(tmp_path)
    gates = GatesConfig(target_open=4.0)
    config = digits.config(tmp_path, runs="runs", pruning="dynamic", gates=gates, epochs=2)
    Path("digits.yaml").write_text(yaml.safe_dump(plain(dataclasses.asdict(config))))
    for words in (["train", "digits.yaml"], ["importance", "runs/run"], ["ablate", "runs/run"]):
        assert main(words) == 0
    assert np.isfinite(values(Path("runs/run"))["value"].to_numpy()).all()
