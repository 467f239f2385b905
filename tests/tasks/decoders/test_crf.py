"""The CRF against enumeration of all tag sequences, supar's linear chain, and finite differences."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from mtl.tasks.decoders.crf import (
    BioCrf,
    LogPartition,
    Transitions,
    _LogPartition,
    tagging_log_partition,
)

LABELS = 2
TAGS = 1 + 2 * LABELS


def crf(labels: int = LABELS, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> BioCrf:
    model = BioCrf(labels).to(dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return model


def by_tensors(
    model: BioCrf, scores: torch.Tensor, lengths: torch.Tensor, transitions: Transitions | None = None
) -> torch.Tensor:
    """log Z as on other devices than the CPU."""
    table = model.table(model.transitions() if transitions is None else transitions)
    found: torch.Tensor = LogPartition.apply(scores, lengths, table.index_select(0, model.by_tag), model.edge)
    return found


def full_matrix(transitions: Transitions, forbidden: float) -> torch.Tensor:
    """The chain as an ordinary one, tag by tag; the last row and column are start and end."""
    start, turn, stay, end = (value.detach() for value in transitions)
    labels = stay.shape[1]
    tags = 1 + 2 * labels
    state = [0, *range(1, labels + 1), *range(1, labels + 1)]
    matrix = torch.full((tags + 1, tags + 1), forbidden, dtype=turn.dtype)
    for left in range(tags):
        for right in range(labels + 1):
            matrix[left, right] = turn[state[left], right]
        matrix[left, tags] = end[state[left]]
    for label in range(labels):
        for row, left in enumerate((1 + label, 1 + labels + label)):
            matrix[left, 1 + labels + label] = stay[row, label]
    matrix[tags, : labels + 1] = start
    return matrix


def well_formed(length: int, labels: int = LABELS) -> list[tuple[int, ...]]:
    def follows(left: int, right: int) -> bool:
        return right <= labels or left in (right, right - labels)

    return [
        path
        for path in product(range(1 + 2 * labels), repeat=length)
        if path[0] <= labels and all(follows(*pair) for pair in pairwise(path))
    ]


def enumerated(
    scores: torch.Tensor, transitions: Transitions, length: int
) -> tuple[list[tuple[int, ...]], torch.Tensor]:
    matrix = full_matrix(transitions, -torch.inf)
    paths = well_formed(length)
    totals = []
    for path in paths:
        steps = zip((TAGS, *path), (*path, TAGS), strict=True)
        totals.append(sum(matrix[step] for step in steps) + sum(scores[w, t] for w, t in enumerate(path)))
    return paths, torch.stack(totals)


def test_marginals_are_those_of_all_sequences() -> None:
    torch.manual_seed(0)
    model, lengths = crf(), torch.tensor([4, 1, 3])
    scores = torch.randn(3, 4, TAGS, dtype=torch.float64) * 2
    with torch.inference_mode():
        marginals = model.marginals(scores.clone(), lengths.clone())
    for row, length in enumerate(lengths.tolist()):
        paths, totals = enumerated(scores[row], model.transitions(), length)
        expected = torch.zeros(4, TAGS, dtype=torch.float64)
        for path, chance in zip(paths, totals.softmax(0).tolist(), strict=True):
            expected[range(length), path] += chance
        torch.testing.assert_close(marginals[row], expected)
    assert model.marginals(scores[:0], lengths[:0]).shape == (0, 4, TAGS)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_enumeration(length: int) -> None:
    torch.manual_seed(length)
    model = crf()
    scores = torch.randn(1, 5, TAGS, dtype=torch.float64) * 2
    lengths = torch.tensor([length])
    paths, totals = enumerated(scores[0], model.transitions(), length)
    on_cpu = _LogPartition.apply(scores, lengths, *model.transitions())
    torch.testing.assert_close(on_cpu[0], totals.logsumexp(0))
    for found in (
        tagging_log_partition(scores, lengths, model.transitions()),
        by_tensors(model, scores, lengths),
    ):
        torch.testing.assert_close(found[0], totals.logsumexp(0))

    every = torch.zeros(len(paths), 5, dtype=torch.long)
    every[:, :length] = torch.tensor(paths)
    repeated = scores.expand(len(paths), -1, -1)
    found = model.path_score(repeated, every, lengths.expand(len(paths)))
    torch.testing.assert_close(found, totals)
    total = (-model.loss(repeated, every, lengths.expand(len(paths)))).exp().sum()
    torch.testing.assert_close(total, torch.tensor(1.0, dtype=torch.float64))

    best = model.decode(scores, lengths)
    assert tuple(best[0, :length].tolist()) == paths[int(totals.argmax())]
    assert not best[0, length:].any()


def test_supar() -> None:
    """supar's chain with the forbidden transitions at -1e5, partition, marginals and best sequence."""
    from supar import LinearChainCRF

    torch.manual_seed(5)
    labels = 4
    model = crf(labels)
    scores = torch.randn(6, 9, 1 + 2 * labels, dtype=torch.float64)
    lengths = torch.tensor([9, 9, 7, 5, 2, 1])
    ours = scores.clone().requires_grad_()
    partition = _LogPartition.apply(ours, lengths, *model.transitions())
    (marginals,) = torch.autograd.grad(partition.sum(), ours)
    theirs = LinearChainCRF(scores.clone(), full_matrix(model.transitions(), -1e5), lengths)
    torch.testing.assert_close(partition, theirs.log_partition)
    torch.testing.assert_close(marginals, theirs.marginals)
    assert (model.decode(scores, lengths) == theirs.argmax.numpy()).all()


def test_gradients_are_finite_differences() -> None:
    torch.manual_seed(2)
    lengths = torch.tensor([4, 1, 3])
    model = crf()
    transitions = [value.detach().requires_grad_() for value in model.transitions()]
    scores = torch.randn(3, 4, TAGS, dtype=torch.float64, requires_grad=True)
    ways = (
        lambda scores, *transitions: _LogPartition.apply(scores, lengths, *transitions),
        lambda scores, *transitions: by_tensors(model, scores, lengths, Transitions(*transitions)),
    )
    for way in ways:
        assert torch.autograd.gradcheck(way, (scores, *transitions))


@pytest.mark.parametrize("labels", [0, 1, 30])
def test_all_ways_agree(labels: int) -> None:
    """The recursions on the CPU, on a GPU and in logarithms: values and all gradients, in float32."""
    torch.manual_seed(labels)
    model = crf(labels, dtype=torch.float32)
    scores = torch.randn(7, 12, 1 + 2 * labels, requires_grad=True)
    lengths = torch.tensor([12, 12, 8, 5, 3, 2, 1])
    outer = torch.randn(7)
    inputs = [scores, *model.parameters()]
    plain = tagging_log_partition(scores, lengths, model.transitions())
    expected = torch.autograd.grad(plain, inputs, outer)
    padded = scores.masked_fill(torch.arange(12)[:, None] >= lengths[:, None, None], 1e9)
    for found in (
        _LogPartition.apply(scores, lengths, *model.transitions()),
        by_tensors(model, scores, lengths),
        by_tensors(model, padded, lengths),
    ):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, plain)
        for left, right in zip(torch.autograd.grad(found, inputs, outer), expected, strict=True):
            torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_states_that_viterbi_skips_are_on_no_better_path(spread: float, scale: float) -> None:
    """The best path has the greatest sum, by a recursion that skips no path; scores have many ties."""
    torch.manual_seed(5)
    model = BioCrf(8).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=spread)
    scores = (torch.randn(40, 9, 17, dtype=torch.float64) * scale).round()
    lengths = torch.arange(40) % 9 + 1
    matrix = full_matrix(model.transitions(), -torch.inf)
    tags = torch.from_numpy(model.decode(scores, lengths))
    found = model.path_score(scores, tags, lengths)
    for row, length in enumerate(lengths.tolist()):
        best = matrix[-1, :-1] + scores[row, 0]
        for word in range(1, length):
            best = (best[:, None] + matrix[:-1, :-1]).amax(0) + scores[row, word]
        torch.testing.assert_close(found[row], (best + matrix[:-1, -1]).amax())


@pytest.mark.parametrize("scale", [300, 3_000, 100_000])
def test_large_scores(scale: int) -> None:
    """Beyond what exp can hold, the loss and its gradient are those of the enumerated sequences."""
    torch.manual_seed(3)
    model = crf()
    scores = torch.randn(16, 4, TAGS, dtype=torch.float64) * scale
    scores.requires_grad_()
    lengths = torch.full((16,), 4)
    found = model.loss(scores, torch.zeros(16, 4, dtype=torch.long), lengths)
    expected = []
    for row in scores:
        paths, totals = enumerated(row, model.transitions(), 4)
        expected.append(totals.logsumexp(0) - totals[paths.index((0, 0, 0, 0))])
    torch.testing.assert_close(found, torch.stack(expected))
    ours, theirs = (torch.autograd.grad(losses.sum(), scores)[0] for losses in (found, torch.stack(expected)))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("scale", [1, 100, 300, 1_000, 10_000])
def test_on_a_gpu_scores_are_right_or_nan(scale: int) -> None:
    """Where float64 cannot hold the probabilities, log Z is NaN, never wrong; -1e4 alone does no harm."""
    torch.manual_seed(3)
    model = crf()
    scores = torch.randn(200, 6, TAGS, dtype=torch.float64) * scale
    lengths = torch.arange(200) % 6 + 1
    exact = tagging_log_partition(scores, lengths, model.transitions())
    found = by_tensors(model, scores, lengths)
    right = ~found.isnan()
    assert right.all() or scale > 100
    torch.testing.assert_close(found[right], exact[right])
    outside = torch.tensor([0.0, *[-1e4] * (TAGS - 1)], dtype=torch.float64)
    forced = torch.randn(3, 6, TAGS, dtype=torch.float64)
    forced[range(3), range(3)] = outside
    torch.testing.assert_close(
        by_tensors(model, forced, lengths[3:6]),
        tagging_log_partition(forced, lengths[3:6], model.transitions()),
    )


@pytest.mark.parametrize("labels", [1, 20])
def test_words_that_must_be_outside_are_held(labels: int) -> None:
    """Tags at -1e4, as at predicates, lose no path that counts; 19 sequences are more than one block."""
    torch.manual_seed(labels)
    model = crf(labels)
    scores = torch.randn(19, 40, 1 + 2 * labels, dtype=torch.float64) * 5
    lengths = torch.arange(19) * 2 + 2
    outside = torch.tensor([0.0, *[-1e4] * (2 * labels)], dtype=torch.float64)
    for words in (torch.zeros_like(lengths), lengths - 1, lengths // 2):
        scores[range(19), words] = outside
    scores.requires_grad_()
    inputs = [scores, *model.parameters()]
    found = _LogPartition.apply(scores, lengths, *model.transitions())
    exact = tagging_log_partition(scores, lengths, model.transitions())
    torch.testing.assert_close(found, exact)
    outer = torch.randn(19, dtype=torch.float64)
    ways = (torch.autograd.grad(way, inputs, outer) for way in (found, exact))
    for ours, theirs in zip(*ways, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("spread", [1.0, 100.0])
@pytest.mark.parametrize("scale", [1.0, 300.0, 1_000.0, 10_000.0])
def test_recursions_are_right_or_nan(scale: float, spread: float) -> None:
    """Tags that fall behind are left out only if no path through them counts, in log Z and in gradients."""
    torch.manual_seed(int(scale + spread))
    held = 0
    for labels in range(20):
        model = crf(labels % 5, spread)
        scores = torch.randn(18, 7, 1 + 2 * model.labels, dtype=torch.float64) * scale
        behind = torch.tensor([0.0, 0.0, 300.0, 650.0, 700.0, 1e4], dtype=torch.float64)
        scores = (scores - behind[torch.randint(6, scores.shape)]).requires_grad_()
        lengths = torch.arange(18) % 6 + 2
        found = _LogPartition.apply(scores, lengths, *model.transitions())
        exact = tagging_log_partition(scores, lengths, model.transitions())
        right = ~found.isnan()
        held += int(right.sum())
        torch.testing.assert_close(found[right], exact[right])
        inputs = [scores, *model.parameters()]
        ways = (torch.autograd.grad(way[right].sum(), inputs) for way in (found, exact))
        for ours, theirs in zip(*ways, strict=True):
            torch.testing.assert_close(ours, theirs)
    assert held > 36  # more than those without labels


@pytest.mark.parametrize("end", [-740.0, 740.0])
def test_end_potentials_that_exp_does_not_hold(end: float) -> None:
    torch.manual_seed(1)
    model, scores, lengths = crf(), torch.randn(2, 4, TAGS, dtype=torch.float64), torch.tensor([4, 2])
    torch.nn.init.constant_(model.end, end)
    tags = torch.zeros(2, 4, dtype=torch.long)
    expected = tagging_log_partition(scores, lengths, model.transitions()) - model.path_score(
        scores, tags, lengths
    )
    torch.testing.assert_close(model.loss(scores, tags, lengths), expected)


def test_padding_and_order_change_nothing() -> None:
    torch.manual_seed(4)
    model = crf()
    scores = torch.randn(3, 6, TAGS, dtype=torch.float64)
    lengths = torch.tensor([6, 4, 2])
    tags = torch.from_numpy(model.decode(torch.randn(3, 6, TAGS, dtype=torch.float64), lengths))
    losses = model.loss(scores, tags, lengths)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(model.loss(scores[order], tags[order], lengths[order]), losses[order])
    torch.testing.assert_close(model.loss(scores[1:2, :4], tags[1:2, :4], lengths[1:2]), losses[1:2])


def test_float32_under_autocast() -> None:
    torch.manual_seed(6)
    model = crf(dtype=torch.float32)
    scores = torch.randn(2, 4, TAGS).bfloat16()
    lengths, tags = torch.tensor([4, 3]), torch.zeros(2, 4, dtype=torch.long)
    expected = model.loss(scores.float(), tags, lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.loss(scores, tags, lengths).dtype == torch.float32
        torch.testing.assert_close(model.loss(scores, tags, lengths), expected)
        torch.testing.assert_close(
            tagging_log_partition(scores.float(), lengths, model.transitions())
            - model.path_score(scores.float(), tags, lengths),
            expected,
            atol=0.1,
            rtol=0.05,
        )


def test_no_rows() -> None:
    model = crf(dtype=torch.float32)
    none = torch.zeros(0, dtype=torch.long)
    scores = torch.zeros(0, 3, TAGS, requires_grad=True)
    loss = model.loss(scores, torch.zeros(0, 3, dtype=torch.long), none)
    loss.sum().backward()
    assert loss.shape == (0,)
    assert scores.grad is not None
    assert np.array_equal(model.decode(scores, none), np.zeros((0, 3)))
