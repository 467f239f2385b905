"""Regimes, the price of gates, and cutting by them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtl.commands.main import main
from mtl.config.schema import GatesConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.heads.gates import HeadGates, gate_rows, gate_table
from mtl.heads.target import HeadTarget, Penalty
from mtl.models.derived import gates_from_file
from mtl.models.joint import JointModel
from mtl.probes.sites import Site
from mtl.runs.folder.run import Run
from mtl.training.gate_loss import GateLoss, choice_warnings, gate_loss, gate_rate, reach_warning


def test_the_penalty_is_lambda_times_expected_heads_per_layer_and_warms_up_linearly():
    gates = HeadGates(3, 4, masks=("pos", "dep"), init_mean=0.5)
    whole, losses = GateLoss(gates, 100, penalties=[Penalty(0.1)]), torch.ones(2)
    expected = 0.1 * gates.probability_open().sum() / 3
    torch.testing.assert_close(whole(0, losses), expected)
    warm = GateLoss(gates, 100, penalties=[Penalty(0.1)], warmup=0.2)
    torch.testing.assert_close(warm(9, losses), expected / 2)
    torch.testing.assert_close(warm(50, losses), expected)


SITES = (Site("encoder", 0), Site("encoder", 1), Site("decoder", 0), Site("cross", 0))


def test_penalties_by_kind_weigh_the_expected_heads_per_layer_of_their_kind():
    gates = HeadGates(4, 3, masks=("pos", "dep"), ungated=(2,))
    start = torch.tensor([0.3, -1.2, 5.0, 0.9])  # a log alpha per site
    with torch.no_grad():
        gates.log_alpha.copy_(start[None, :, None].expand(2, 4, 3))
    config = GatesConfig(
        kinds=("encoder", "cross"), penalty={"encoder": 0.2, "cross": 0.5}, penalty_warmup=0.5
    )
    loss = gate_loss(gates, config, 100, SITES)
    assert loss.target is None
    cost = loss(9, torch.ones(2))  # a fifth of the warm-up
    # P(z > 0) = sigmoid(a + 0.33 log 11); two masks of three heads at each site.
    opened = torch.sigmoid(start + 0.33 * math.log(11))
    expected = 6 * (0.2 * (opened[0] + opened[1]) / 2 + 0.5 * opened[3])
    torch.testing.assert_close(cost, 0.2 * expected)
    (gradient,) = torch.autograd.grad(cost, gates.log_alpha)
    weight = torch.tensor([0.1, 0.1, 0.0, 0.5])
    by_hand = 0.2 * weight * opened * (1 - opened)
    torch.testing.assert_close(gradient, by_hand[None, :, None].expand(2, 4, 3))


def test_a_kind_may_have_a_target_and_another_a_penalty():
    gates = HeadGates(4, 3, ungated=(2,), init_std=0.5)
    config = GatesConfig(kinds=("encoder", "cross"), target_open={"encoder": 2.0}, penalty={"cross": 0.5})
    loss = gate_loss(gates, config, 100, SITES)
    (gradient,) = torch.autograd.grad(loss(30, torch.ones(1)), gates.log_alpha)
    assert gradient[0, [0, 1]].all()
    assert gradient[0, 3].all()
    assert not gradient[0, 2].any()
    before = gates.log_alpha.detach().clone()
    loss.after_update(90)
    assert loss.settled
    assert gates.open()[0, :2].sum() == 2
    assert torch.equal(gates.log_alpha[0, 3], before[0, 3])
    assert loss.log_alpha_at_choice is not None
    assert loss.log_alpha_at_choice[0, 2:].isnan().all()
    rows = gate_table(gate_rows(gates, ("translate",), 1, SITES, loss.log_alpha_at_choice))
    with_one = rows.filter(pl.col("log_alpha_at_choice").is_not_null())["attention"].unique().to_list()
    assert with_one == ["encoder"]


def test_the_default_rate_lets_gates_close_and_a_small_one_is_warned_of():
    gates = HeadGates(2, 3)
    assert reach_warning(gates, gate_rate(GatesConfig(), 500), 500) is None
    line = reach_warning(gates, 1e-3, 500)
    assert line is not None
    assert "500" in line


@given(st.integers(1, 100_000), st.floats(-2, 20), st.floats(0.33, 3))
def test_the_rate_that_the_warning_names_is_enough(updates, init_mean, temperature):
    gates = HeadGates(2, 3, init_mean=init_mean, temperature=temperature)
    for rate in (gate_rate(GatesConfig(), updates), 1e-9):
        if line := reach_warning(gates, rate, updates):
            enough = float(line.partition("raise gates.lr to ")[2].partition(",")[0])
            assert enough > rate
            assert reach_warning(gates, enough, updates) is None


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    """A folder with a generated corpus, smaller than other tests'."""
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder, 60, 10, 10, seed=1)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_encoder, toy) -> Path:
    """An ungated run of two tasks, and what each regime makes of it."""
    folder = tmp_path_factory.mktemp("runs")
    common = [
        "train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", f"--runs={folder}",
        "--tasks=pos,dep", "--max_epochs=2", "--trainer.accelerator=cpu", "--batch.sentences=8",
    ]  # fmt: skip
    assert main([*common, "--name=plain"]) == 0
    static = [*common, "--from", str(folder / "plain"), "--gates.target_open=5"]
    assert main([*static, "--name=static", "--pruning=static"]) == 0
    assert main([*static, "--name=gates_only", "--pruning=gates_only"]) == 0
    own = [*common, "--pruning=dynamic", "--gates.scope=per_task", "--gates.target_open=0.5"]
    assert main([*own, "--name=own"]) == 0
    return folder


@pytest.mark.slow
def test_static_freezes_decoders_and_gates_only_the_encoder_too(runs):
    plain, static, gates_only = (
        JointModel.from_pretrained(runs / name) for name in ("plain", "static", "gates_only")
    )

    def same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
        pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
        return all(torch.equal(one, other) for one, other in pairs)

    assert same(plain.decoders, static.decoders)
    assert not same(plain.encoder, static.encoder)
    assert same(plain.decoders, gates_only.decoders)
    assert same(plain.encoder, gates_only.encoder)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "masks", "wanted"), [("static", 1, 5), ("gates_only", 1, 5), ("own", 2, 6)])
def test_a_target_is_reached_and_the_record_agrees_with_the_model(runs, name, masks, wanted):
    model = JointModel.from_pretrained(runs / name)
    assert model.gates is not None
    opened = model.gates.open()
    assert len(opened) == masks
    assert opened.sum((1, 2)).tolist() == [wanted] * masks
    table = pl.read_parquet(runs / name / "gates.parquet")
    last = table.filter(pl.col("step") == pl.col("step").max())
    for task in ("pos", "dep"):
        own = last.filter(pl.col("task") == task).sort("layer", "head")["open"].to_list()
        assert own == opened[model.scales.index(task)].flatten().tolist()


@pytest.mark.slow
def test_a_cut_run_scores_predicts_and_trains_on_as_the_masked_one(runs, tmp_path, toy, capsys):
    assert main(["prune", str(runs / "static"), f"--out={tmp_path / 'cut'}"]) == 0
    masked = JointModel.from_pretrained(runs / "static")
    cut = JointModel.from_pretrained(tmp_path / "cut")
    assert cut.gates is None
    sentences = [["We", "ate", "."], ["The", "dog", "saw", "a", "cat", "in", "Paris", "."]]
    assert cut.annotate(sentences) == masked.annotate(sentences)
    before = json.loads((runs / "static" / "metrics.json").read_text())["dev"]
    assert json.loads((tmp_path / "cut" / "metrics.json").read_text())["dev"] == before
    assert sum(p.numel() for p in cut.parameters()) < sum(p.numel() for p in masked.parameters())
    words = [
        "train", f"--corpus.path={toy}", f"--runs={tmp_path}", "--tasks=pos,dep", "--name=on",
        "--max_epochs=1", f"--from={tmp_path / 'cut'}", "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert main(words) == 0
    assert main(["evaluate", str(tmp_path / "on"), "--split=dev"]) == 0
    left = {name: Run.open(folder).status().get("heads_kept") for name, folder in (
        ("cut", tmp_path / "cut"), ("on", tmp_path / "on"), ("whole", runs / "static"),
    )}  # fmt: skip
    assert left["on"] == left["cut"] == sum(len(heads) for heads in cut.encoder.tap.remaining)
    assert left["whole"] is None


@pytest.mark.slow
def test_a_mask_per_task_is_cut_for_one_task(runs, tmp_path, capsys):
    assert main(["prune", str(runs / "own"), f"--out={tmp_path / 'x'}"]) == 2
    assert "choose one with --task" in capsys.readouterr().err
    assert main(["prune", str(runs / "own"), f"--out={tmp_path / 'dep'}", "--task=dep"]) == 0
    cut, masked = JointModel.from_pretrained(tmp_path / "dep"), JointModel.from_pretrained(runs / "own")
    assert list(cut.tasks) == ["dep"]
    assert sum(len(heads) for heads in cut.encoder.tap.remaining) == 6
    sentence = ["We", "ate", "."]
    assert cut.annotate([sentence])[0].arcs == masked.annotate([sentence])[0].arcs


@pytest.mark.slow
def test_a_mask_file_of_another_shape_is_refused(runs, tmp_path, capsys):
    with pytest.raises(InputError, match="3 layers of 4 heads, but the encoder has 6 layers of 12 heads"):
        gates_from_file(runs / "own" / "gates.parquet", "dep", (6, 12))
    words = ["prune", str(runs / "plain"), f"--out={tmp_path / 'cut'}"]
    assert main(words) == 2
    assert "no masks" in capsys.readouterr().err
    assert main([*words, f"--mask={runs / 'static' / 'gates.parquet'}"]) == 0
    assert sum(map(len, JointModel.from_pretrained(tmp_path / "cut").encoder.tap.remaining)) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "balancer", ["uniform", "fixed", "moving_average", "uncertainty", "gradnorm", "pcgrad"]
)
def test_every_balancer_works_with_gates(balancer, toy, tiny_encoder, tmp_path):
    words = [
        "train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", f"--runs={tmp_path}", "--name=run",
        "--tasks=pos,ner,dep", "--max_epochs=1", "--pruning=dynamic", f"--balancer.name={balancer}",
        "--gates.scope=per_task", "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert main(words) == 0
    assert (tmp_path / "run" / "gates.parquet").exists()


def test_without_penalty_and_target_a_third_of_the_heads_stays():
    gates = HeadGates(6, 12)

    def target(**settings):
        return gate_loss(gates, GatesConfig(**settings), 100).target

    default = target()
    assert default is not None
    assert default.wanted == (24,)
    assert target(penalty=0.01) is None
    assert target(penalty=0.0) is None
    both = target(penalty=0.01, target_open=9.0)  # a study's block sets a target on top of its penalty
    assert both is not None
    assert both.wanted == (9,)


@pytest.mark.slow
def test_what_the_choice_forced_is_on_record_and_much_of_it_is_warned_of(runs):
    """An encoder without training has no heads to choose by: hardly any choice is learned here."""
    history = pl.read_csv(runs / "static" / "history.csv")
    status = json.loads((runs / "static" / "status.json").read_text())
    choice = status["choices"]["shared"]
    assert choice["open_at_choice"] + choice["forced_open"] - choice["forced_closed"] == 5
    assert {name: history[f"gates/shared/{name}"][-1] for name in choice} == choice
    table = pl.read_parquet(runs / "static" / "gates.parquet")
    last = table.filter((pl.col("step") == pl.col("step").max()) & (pl.col("task") == "pos"))
    model = JointModel.from_pretrained(runs / "static")
    assert model.gates is not None
    open_before = last["log_alpha_at_choice"] > model.gates.closing_point
    assert open_before.sum() == choice["open_at_choice"]
    best = last.sort("log_alpha_at_choice", descending=True).head(5)
    assert best["open"].all()


def test_a_choice_that_moved_many_heads_is_warned_of():
    gates = HeadGates(6, 12, init_mean=4.0)
    loss = gate_loss(gates, GatesConfig(target_open=20.0), 100)
    assert choice_warnings(loss) == []
    loss.after_update(90)
    assert choice_warnings(loss) == [
        "warning: mask shared: training left 72 heads open, but gates.target_open wants 20: 0 were opened "
        "and 52 closed by force; raise max_epochs"
    ]
    with torch.no_grad():
        gates.log_alpha.fill_(-9).view(-1)[:18] = 3
    nearly = gate_loss(gates, GatesConfig(target_open=20.0), 100)
    nearly.after_update(90)
    assert choice_warnings(nearly) == []


def test_heads_that_every_layer_must_keep_are_named_where_they_moved_others():
    gates = HeadGates(6, 12)
    with torch.no_grad():
        gates.log_alpha.fill_(-9).view(-1)[:20] = 3
    start = gates.log_alpha.detach().clone()
    loss = gate_loss(gates, GatesConfig(target_open=20.0, at_least=1), 100)
    loss.after_update(90)
    assert (gates.open()[0].sum(1) >= 1).all()
    assert choice_warnings(loss) == [
        "warning: mask shared: training left 20 heads open, but gates.target_open wants 20: 4 were opened "
        "and 4 closed by force; raise max_epochs, or lower gates.at_least"
    ]
    gates.log_alpha.data.copy_(start)
    lower = gate_loss(gates, GatesConfig(target_open=20.0), 100)
    lower.after_update(90)
    assert choice_warnings(lower) == []


def test_a_choice_by_kind_that_moved_many_heads_is_warned_of_by_its_kind():
    gates = HeadGates(4, 3, init_mean=4.0)
    targets = {"cross": 2.0, "encoder": 6.0, "decoder": 3.0}
    loss = gate_loss(gates, GatesConfig(target_open=targets), 100, SITES)
    loss.after_update(90)
    assert choice_warnings(loss) == [
        "warning: mask shared, cross: training left 3 heads open, but gates.target_open.cross wants 2: 0 "
        "were opened and 1 closed by force; raise max_epochs"
    ]


def test_each_mask_is_priced_by_its_own_task_and_a_shared_one_by_their_sum():
    losses = torch.tensor([1.0, 3.0])
    own = GateLoss(gates := HeadGates(2, 3, masks=("pos", "dep")), 100, target=HeadTarget(gates, 3))
    own(10, losses)
    assert own.target is not None
    assert own.target.mean_loss.tolist() == [1, 3]
    shared = GateLoss(gates := HeadGates(2, 3), 100, target=HeadTarget(gates, 3))
    shared(10, losses)
    assert shared.target is not None
    assert shared.target.mean_loss.tolist() == [4]
