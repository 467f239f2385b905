"""The record of how gates move."""

from __future__ import annotations

import math

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from scipy.integrate import quad
from torch import Tensor

from mtl.errors import InputError
from mtl.heads.gate_file import CLOSING_POINT, LEARNED, add_gates, last_log_alphas, read_gates
from mtl.heads.gates import HeadGates, gate_rows, gate_summary, gate_table, gates_from
from mtl.heads.target import HeadTarget
from mtl.models.derived import gates_from_file
from mtl.probes.sites import Site

LOG_ALPHAS = [-4.0, -2.398, -1.0, 0.0, 0.5, 2.0, 4.0]
SAMPLES = 40_000


def with_log_alphas(values: Tensor, **settings: float) -> HeadGates:
    gates = HeadGates(
        values.shape[1], values.shape[2], masks=[str(mask) for mask in range(len(values))], **settings
    )
    with torch.no_grad():
        gates.log_alpha.copy_(values)
    return gates


@pytest.fixture(scope="module")
def samples() -> Tensor:
    """Gates drawn in training, one column per log alpha (heads of a wide layer are independent draws)."""
    torch.manual_seed(0)
    values = torch.tensor(LOG_ALPHAS).expand(1, SAMPLES, -1)
    return with_log_alphas(values.contiguous())()[0].detach()


def tolerance(share: float) -> float:
    return 5 * math.sqrt(share * (1 - share) / SAMPLES) + 1e-4


@pytest.mark.parametrize(("column", "log_alpha"), list(enumerate(LOG_ALPHAS)))
def test_samples_follow_the_closed_forms(samples: Tensor, column: int, log_alpha: float) -> None:
    """P(z > 0) = sigmoid(a + 0.7913), P(z = 1) = sigmoid(a - 0.7913); the mean by quadrature over u."""

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    def gate(u: float) -> float:
        return min(1.0, max(0.0, 1.2 * sigmoid((math.log(u / (1 - u)) + log_alpha) / 0.33) - 0.1))

    z = samples[:, column]
    shift = 0.33 * math.log(11)
    positive, one = sigmoid(log_alpha + shift), sigmoid(log_alpha - shift)
    assert (z > 0).float().mean().item() == pytest.approx(positive, abs=tolerance(positive))
    assert (z == 1).float().mean().item() == pytest.approx(one, abs=tolerance(one))
    mean = quad(gate, 1e-6, 1 - 1e-6, limit=200)[0]
    assert z.mean().item() == pytest.approx(mean, abs=5 * z.std().item() / math.sqrt(SAMPLES) + 1e-4)
    gates = with_log_alphas(torch.tensor([[[log_alpha]]]))
    assert gates.probability_open().item() == pytest.approx(positive, rel=1e-5)


def test_evaluation_gates_by_hand() -> None:
    gates = with_log_alphas(torch.tensor([[[-5.0, -2.40, -2.36, 0.0, 2.39, 2.40, 9.0]]])).eval()
    z = gates()
    assert z[0, 0, [0, 1]].tolist() == [0, 0]
    assert 1e-3 < z[0, 0, 2] < 5e-3
    assert z[0, 0, 3].item() == pytest.approx(0.5)
    assert 0.998 < z[0, 0, 4] < 1
    assert z[0, 0, [5, 6]].tolist() == [1, 1]
    assert gates.open().tolist() == [[[False, False, True, True, True, True, True]]]
    assert torch.equal(z, gates.gate())


def test_closing_point_is_where_heads_close() -> None:
    point = with_log_alphas(torch.zeros(1, 1, 1)).closing_point
    assert point == pytest.approx(-2.387, abs=1e-3)
    just = with_log_alphas(torch.tensor([[[point - 1e-4, point + 1e-4]]]))
    assert just.open().tolist() == [[[False, True]]]
    assert just.probability_open()[0, 0, 0].item() == pytest.approx(0.167, abs=2e-3)


def test_penalty_and_expected_l0_per_mask() -> None:
    """Far open and far closed heads, 2 layers: the penalty is their number over the number of layers."""
    values = torch.tensor([[[30.0, 30.0], [30.0, -30.0]], [[-30.0, -30.0], [30.0, -30.0]]])
    gates = with_log_alphas(values)
    torch.testing.assert_close(gates.expected_l0(), torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(gates.penalty(), torch.tensor([1.5, 0.5]))


def test_penalty_closes_and_the_task_opens() -> None:
    gates = HeadGates(2, 3, init_mean=0.0)
    gates.penalty().sum().backward()
    assert gates.log_alpha.grad is not None
    assert (gates.log_alpha.grad > 0).all()
    torch.manual_seed(0)
    many = with_log_alphas(torch.zeros(1, 1, 1000))
    (1 - many()).sum().backward()
    assert many.log_alpha.grad is not None
    assert (many.log_alpha.grad <= 0).all()
    # Gradient flows where 0 < z < 1: at a = 0 with probability 2 sigmoid(0.7913) - 1 = 0.376.
    assert (many.log_alpha.grad < 0).float().mean().item() == pytest.approx(0.376, abs=0.08)


def test_gradient_of_a_sample_equals_finite_differences() -> None:
    values = torch.tensor([[[-0.5, 0.0, 0.3, 0.1]]])

    def total(shift: float) -> Tensor:
        torch.manual_seed(3)
        return with_log_alphas(values + shift)().sum()

    torch.manual_seed(3)
    gates = with_log_alphas(values)
    gates().sum().backward()
    assert gates.log_alpha.grad is not None
    expected = (total(1e-2) - total(-1e-2)) / 2e-2
    assert expected > 0
    torch.testing.assert_close(gates.log_alpha.grad.sum(), expected, rtol=2e-2, atol=1e-3)


def test_sampling_follows_the_generator_and_evaluation_does_not() -> None:
    gates = HeadGates(12, 12, masks=["pos", "ner"], init_mean=0.0)
    torch.manual_seed(1)
    first = gates()
    torch.manual_seed(1)
    assert torch.equal(first, gates())
    assert not torch.equal(first, gates())
    assert not torch.equal(first[0], first[1])
    gates.eval()
    assert torch.equal(gates(), gates())


def test_float32_under_autocast() -> None:
    gates = HeadGates(3, 4, masks=["a", "b"], init_mean=0.0, init_std=1.0)

    def everything() -> list[Tensor]:
        torch.manual_seed(0)
        return [gates(), gates.gate(), gates.penalty(), gates.expected_l0()]

    exact = everything()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = everything()
    assert all(value.dtype == torch.float32 for value in mixed)
    assert all(torch.equal(one, other) for one, other in zip(exact, mixed, strict=True))
    gates.to(torch.bfloat16)
    assert all(value.dtype == torch.float32 for value in everything())


def test_start_is_open_and_not_a_shock() -> None:
    torch.manual_seed(0)
    gates = HeadGates(12, 12)
    assert gates.open().all()
    assert gates.gate().min() > 0.95
    assert gates.masks == ("shared",)


def test_log_alphas_can_start_as_published() -> None:
    torch.manual_seed(5)
    gates = HeadGates(12, 12, masks=("pos", "ner"), init="xavier", init_mean=9.0)
    torch.manual_seed(5)
    layers = [torch.nn.init.xavier_uniform_(torch.empty(1, 12, 1, 1)).flatten() for _ in range(24)]
    assert torch.equal(gates.log_alpha.detach().flatten(0, 1), torch.stack(layers))
    assert gates.log_alpha.abs().max() <= (6 / 13) ** 0.5
    assert gates.log_alpha.std().item() == pytest.approx(0.39, abs=0.02)
    assert gates.open().all()


def test_impossible_settings() -> None:
    with pytest.raises(ValueError, match="stretch"):
        HeadGates(1, 1, stretch=(0.1, 1.1))
    with pytest.raises(ValueError, match="temperature"):
        HeadGates(1, 1, temperature=0.0)


def test_heads_of_a_group_have_one_gate() -> None:
    torch.manual_seed(0)
    gates = HeadGates(2, 6, masks=("a", "b"), init_std=1.0, group=3)
    weights = torch.randn(2, 2, 6)
    optimiser = torch.optim.Adam(gates.parameters(), lr=0.1)
    for _ in range(20):
        sampled = gates()
        ((sampled * weights).sum() + gates.penalty().sum()).backward()
        optimiser.step()
        optimiser.zero_grad()
        for values in (sampled, gates.log_alpha, gates.gate(), gates.probability_open()):
            groups = values.detach().unflatten(-1, (2, 3))
            assert torch.equal(groups, groups[..., :1].expand_as(groups))
    assert (gates.log_alpha[..., 0] != gates.log_alpha[..., 3]).all()
    again = HeadGates(**gates.configuration())
    assert again.group == 3
    with pytest.raises(ValueError, match="group 4: use a number that divides 6 heads"):
        HeadGates(2, 6, group=4)


def test_a_target_chooses_whole_groups() -> None:
    torch.manual_seed(0)
    gates = HeadGates(2, 6, init_std=1.0, group=2)
    target = HeadTarget(gates, 4)
    target.project(gates, 0.9)
    assert int(gates.open().sum()) == 4
    best = gates.open().unflatten(-1, (3, 2))
    assert torch.equal(best[..., 0], best[..., 1])
    assert HeadTarget(gates, 0.4).wanted == (4,)
    with pytest.raises(InputError, match="target 5: heads go by groups of 2: use a multiple of 2"):
        HeadTarget(gates, 5)


def test_heads_of_ungated_rows_stay_open_and_are_not_counted():
    gates = HeadGates(3, 4, ungated=(1,), absent=((0, 3), (1, 0)), init_mean=0.0)
    assert gates.present == 7
    for mode in (True, False):
        gates.train(mode)
        assert gates()[0, 1].tolist() == [1.0] * 4
    assert gates.gate()[0, 1].tolist() == [1.0] * 4
    assert gates.open()[0, 1].all()
    assert int(gates.open_learned().sum()) == 7
    assert gates.expected_l0().item() == pytest.approx(
        7 * torch.sigmoid(torch.tensor(0.7913)).item(), abs=0.5
    )
    assert gates.penalty().item() == pytest.approx(gates.expected_l0().item() / 2)
    for mode in (True, False):
        gates.zero_grad()
        gates.train(mode)().sum().backward()
        assert gates.log_alpha.grad is not None
        assert gates.log_alpha.grad[0, 1].eq(0).all()
    assert int(gates.log_alpha.grad.ne(0).sum()) == 7  # without a sample, every gate near 1/2 has a slope
    again = gates_from(gates.configuration())
    assert isinstance(again, HeadGates)
    assert again.ungated == (1,)
    again.load_state_dict(gates.state_dict())
    assert torch.equal(again.gate(), gates.gate())
    target = HeadTarget(gates, 3)
    target.project(gates, 0.9)
    assert int(gates.open_learned().sum()) == 3
    assert gates.open()[0, 1].all()


SITES = (Site("self", 0), Site("self", 1))


def test_the_record_has_a_row_per_task_and_head():
    gates = HeadGates(2, 3, init_mean=0.0, init_std=3.0)
    table = gate_table(gate_rows(gates, ("pos", "dep"), 7, SITES))
    assert table.columns == [
        "task", "step", "attention", "layer", "head", "log_alpha", "gate", "open", "log_alpha_at_choice",
        "unit",
    ]  # fmt: skip
    assert set(table["attention"]) == {"self"}
    assert table["log_alpha_at_choice"].is_null().all()
    assert len(table) == 2 * 2 * 3
    row = table.row(
        by_predicate=(pl.col("task") == "dep") & (pl.col("layer") == 1) & (pl.col("head") == 2), named=True
    )
    assert row["gate"] == pytest.approx(gates.gate()[0, 1, 2].item())
    assert row["open"] == gates.open()[0, 1, 2].item()
    assert gate_summary(gates)["shared"]["open"] == gates.open().sum().item()


def test_rows_name_the_kind_of_attention_and_its_own_layers():
    gates = HeadGates(3, 2, init_std=1.0)
    sites = (Site("self", 0), Site("self", 1), Site("cross", 0))
    at_choice = torch.arange(6.0).reshape(1, 3, 2)
    table = gate_table(gate_rows(gates, ("pos",), 7, sites, at_choice))
    cross = table.filter(attention="cross")
    assert cross["layer"].to_list() == [0, 0]
    assert cross["log_alpha_at_choice"].to_list() == [4.0, 5.0]
    assert cross["gate"].to_list() == gates.gate()[0, 2].tolist()


def test_a_mask_file_with_several_kinds_is_laid_out_by_site(tmp_path):
    gates = HeadGates(3, 2, init_std=1.0)
    sites = (Site("self", 0), Site("self", 1), Site("cross", 0))
    gate_table(gate_rows(gates, ("pos",), 7, sites)).write_parquet(tmp_path / "gates.parquet")
    torch.testing.assert_close(
        gates_from_file(tmp_path / "gates.parquet", "pos", (3, 2)), gates.gate()[0].detach()
    )


def test_what_training_had_open_is_known_from_the_choice() -> None:
    """Just above and below the closing point; without a target, the column `open` decides."""
    gates = HeadGates(1, 4)
    assert pytest.approx(gates.closing_point, abs=1e-12) == CLOSING_POINT
    table = pl.DataFrame(
        {
            "log_alpha_at_choice": [gates.closing_point + 1e-4, gates.closing_point - 1e-4, None, None],
            "open": [False, True, True, False],
        }
    )
    assert table.select(learned=LEARNED)["learned"].to_list() == [True, False, True, False]


def test_an_evaluation_made_again_replaces_its_rows_and_later_ones(tmp_path):
    path = tmp_path / "gates.parquet"

    def at(update):
        return gate_table(gate_rows(HeadGates(2, 3, init_std=1.0), ("pos",), update, SITES))

    first, second, again = at(5), at(10), at(10)
    add_gates(path, first, first=True)
    for rows in (second, at(15), again):
        add_gates(path, rows, first=False)
    assert_frame_equal(read_gates(path), pl.concat([first, again]))
    add_gates(path, second, first=True)
    assert_frame_equal(read_gates(path), second)


def test_gates_of_earlier_evaluations_are_not_lost_in_silence(tmp_path):
    rows = gate_table(gate_rows(HeadGates(2, 3), ("pos",), 10, SITES))
    path = tmp_path / "gates.parquet"
    with pytest.raises(InputError, match=r"gates\.parquet is gone"):
        add_gates(path, rows, first=False)
    path.write_text("damaged")
    with pytest.raises(InputError, match="cannot be read"):
        add_gates(path, rows, first=False)


@pytest.mark.parametrize("update", [5, 10])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", ["gate", "log_alpha", "log_alpha_at_choice"])
def test_a_value_that_is_no_number_is_named_at_any_update(tmp_path, column, bad, update):
    table = gate_table(
        [row for at in (5, 10) for row in gate_rows(HeadGates(2, 3, init_std=1.0), ("pos",), at, SITES)]
    )
    here = (pl.col("step") == update) & (pl.col("layer") == 1) & (pl.col("head") == 2)
    broken = table.with_columns(pl.when(here).then(bad).otherwise(column).cast(pl.Float32).alias(column))
    broken.write_parquet(tmp_path / "gates.parquet")
    for read in (read_gates, last_log_alphas):
        with pytest.raises(InputError, match=r"gates\.parquet: cannot be used \(1 gate with a value"):
            read(tmp_path / "gates.parquet")
