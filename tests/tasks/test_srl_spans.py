"""Semantic roles by ranking spans: against pairs and choices one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from mtl.tasks.decoders.decoder import Alternative
from mtl.tasks.decoders.srl_spans import RankingDecoder, select_arguments
from mtl.tasks.sentence import Frame, Sentence, Span
from mtl.tasks.structured import Srl
from mtl.tasks.task import Labels
from tests.tasks.test_srl import MASK, TWO

SENTENCES = [*TWO, Sentence(tuple("abc"), frames=(Frame(2, "z.01", (Span(0, 2, "A1"),)),))]
ALL = Srl(
    decoder="spans", dim=12, dropout=0.0, longest=4, argument_ratio=99.0, predicate_ratio=99.0, senses=True
)
LABELS = ALL.labels(SENTENCES)


def _decoder(task: Srl = ALL, labels: Labels = LABELS, seed: int = 0) -> RankingDecoder:
    torch.manual_seed(seed)
    decoder = task.new_decoder(8, labels).double()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return decoder


def _batch(sentences: list[Sentence], task: Srl = ALL):
    return task.collate([task.targets(sentence, LABELS) for sentence in sentences], 6)


def _one(decoder: RankingDecoder, words: Tensor, predicate: int, start: int, end: int) -> Tensor:
    """The scores of all roles of one pair, each layer over the whole of its input."""
    dim, weight, bias = decoder.dim, decoder.parts.weight, decoder.parts.bias

    def part(number: int, vector: Tensor) -> Tensor:
        rows = slice(number * dim, (number + 1) * dim)
        return weight[rows] @ vector + bias[rows]

    def scored(scorer: torch.nn.Module, first: Tensor) -> Tensor:
        return scorer.output(torch.relu(scorer.hidden(torch.relu(first))))

    def span(first: int, widths: slice) -> Tensor:
        ends = part(first, words[start]) + part(first + 1, words[end - 1])
        mean = part(first + 2, words[start:end].mean(0))
        return ends + mean + decoder.widths.weight[end - start - 1, widths]

    alone = scored(decoder.predicate, part(0, words[predicate])) + scored(decoder.span, span(1, slice(dim)))
    pair = span(4, slice(dim, None)) + part(7, words[predicate])
    return scored(decoder.role, pair) + alone


def test_the_loss_is_that_of_all_pairs_and_decoding_takes_the_best_of_them() -> None:
    decoder = _decoder().requires_grad_(False)
    words = torch.randn(3, 6, 8).double()
    scores = decoder(words, MASK)
    losses = decoder.loss(scores, _batch(SENTENCES), MASK)
    structure = decoder.structure_score(scores, _batch(SENTENCES), MASK)
    decoded = decoder.decode(scores, MASK)
    items = decoder.alternatives(scores, MASK, decoded, 9)
    free = _decoder(replace(ALL, overlaps=True)).requires_grad_(False).decode(scores, MASK)
    for row, sentence in enumerate(SENTENCES):
        gold = {
            (f.predicate, s.start, s.end): decoder.labels.index(s.label)
            for f in sentence.frames or ()
            for s in f.arguments
        }
        length = len(sentence)
        loss = score = 0.0
        for frame in sentence.frames or ():
            of_senses = decoder.sense(words[row, frame.predicate])
            sense = decoder.sense.senses.index(frame.sense or "")
            loss -= of_senses.log_softmax(0)[sense].item()
            score += of_senses[sense].item()
        expected, overlapping = [], []
        for predicate in range(length):
            none, gains = 1.0, []
            for start, end in combinations(range(length + 1), 2):
                if end - start > 4:
                    continue
                roles = _one(decoder, words[row], predicate, start, end)
                chances = torch.cat([torch.zeros(1).double(), roles]).softmax(0)
                role = gold.get((predicate, start, end))
                loss -= chances[0 if role is None else 1 + role].log().item()
                score += 0.0 if role is None else roles[role].item()
                none *= chances[0].item()
                if roles.max() > 0:
                    best = Span(start, end, decoder.labels[int(roles.argmax())])
                    gains.append((best, roles.max().item(), chances))
            sense_of = decoder.sense.senses[int(decoder.sense(words[row, predicate]).argmax())]
            if gains:
                overlapping.append(Frame(predicate, sense_of, tuple(sorted(gain[0] for gain in gains))))
            if spans := _best_without_overlaps(gains, predicate):
                expected.append(Frame(predicate, sense_of, spans))
                found = [item for item in items[row] if predicate in (item.predicate, item.start)]
                [chance] = [item.best for item in found if item.kind == "predicate"]
                assert chance == (Alternative("predicate", pytest.approx(1 - none)),)
                of_roles = [item for item in found if item.kind == "role" and item.predicate == predicate]
                assert [(item.start, item.end) for item in of_roles] == [span[:2] for span in spans]
                for item, span in zip(of_roles, spans, strict=True):
                    [chances] = [gain[2] for gain in gains if gain[0] == span]
                    names = ("O", *decoder.labels.names)
                    assert dict(item.best) == pytest.approx(dict(zip(names, chances.tolist(), strict=True)))
        assert losses[row].item() == pytest.approx(loss)
        assert structure.score[row].item() == pytest.approx(score)
        assert decoded[row] == tuple(expected)
        assert free[row] == tuple(overlapping)
    assert structure.items.tolist() == [6, 0, 2]  # arguments and senses


def _best_without_overlaps(gains: list, predicate: int) -> tuple[Span, ...]:
    possible = [gain for gain in gains if not gain[0].start <= predicate < gain[0].end]
    sets = [
        chosen
        for number in range(6)
        for chosen in combinations(possible, number)
        if all(a[0].end <= b[0].start or b[0].end <= a[0].start for a, b in combinations(chosen, 2))
    ]
    best = max(sets, key=lambda chosen: sum(gain[1] for gain in chosen))
    return tuple(sorted(gain[0] for gain in best))


def test_the_choice_is_the_best_of_all() -> None:
    draw = np.random.default_rng(0)
    for _ in range(40):
        firsts = draw.integers(0, 7, (1, 7))
        ends = firsts + draw.integers(1, 4, (1, 7))
        weights = draw.normal(size=(1, 7))
        taken = select_arguments(weights, firsts, ends, np.array([3]), 10)[:, 1]
        best = 0.0
        for number in range(8):
            for chosen in combinations(range(7), number):
                spans = sorted((firsts[0, each], ends[0, each]) for each in chosen)
                apart = all(a[1] <= b[0] for a, b in pairwise(spans))
                if apart and not any(start <= 3 < end for start, end in spans):
                    best = max(best, weights[0, list(chosen)].sum())
        assert weights[0, taken].sum() == pytest.approx(best)


def test_candidates_are_the_best_of_each_sentence_and_gold_ones_in_the_loss() -> None:
    few = replace(ALL, argument_ratio=0.5, predicate_ratio=0.4)
    decoder = _decoder(few).requires_grad_(False)
    words = torch.randn(3, 6, 8).double()
    scores = decoder(words, MASK)
    arguments = decoder._arguments(scores, MASK)
    assert arguments.there.sum(1).tolist() == [3, 1, 1]
    rows, predicates = decoder._predicates(scores, MASK).nonzero(as_tuple=True)
    for row, sentence in enumerate(SENTENCES):
        spans = [
            (scores.spans[row, a, b - a].item(), a, b) for a in range(6) for b in range(a, min(6, a + 4))
        ]
        best = sorted((each for each in spans if each[2] < len(sentence)), reverse=True)
        found = torch.stack((arguments.firsts[row], arguments.lasts[row]), 1)[arguments.there[row]].tolist()
        assert found == [list(each[1:]) for each in best[: len(found)]]
        words_of = scores.predicates[row, : len(sentence)].argsort(descending=True)
        number = max(1, int(0.4 * len(sentence)))
        assert predicates[rows == row].tolist() == sorted(words_of[:number].tolist())
    # More of everything in one sentence changes nothing in another; a gold pair is learned in any case.
    alone = decoder.loss(decoder(words[2:, :3], MASK[2:, :3]), _batch(SENTENCES[2:], few), MASK[2:, :3])
    batch = decoder.loss(scores, _batch(SENTENCES, few), MASK)
    torch.testing.assert_close(batch[2:], alone)
    trained = _decoder(few)
    trained.loss(trained(words, MASK), _batch(SENTENCES, few), MASK).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained.parameters())
    assert trained.role.output.weight.grad[decoder.labels.index("C-A1")].abs().sum() > 0


@pytest.mark.slow
def test_learns_decodes_and_scores_its_own_training_data() -> None:
    task = replace(ALL, argument_ratio=1.0, predicate_ratio=0.6)
    torch.manual_seed(1)
    decoder = task.new_decoder(8, LABELS)
    words = torch.randn(3, 6, 8)
    batch = _batch(SENTENCES, task)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        decoder.loss(decoder(words, MASK), batch, MASK).sum().backward()
        optimizer.step()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        scores = decoder(words, MASK)
        loss = decoder.loss(scores, batch, MASK)
        decoded = decoder.decode(scores, MASK)
        gold = [sentence.frames for sentence in SENTENCES]
        given = decoder.decode_given(scores, MASK, gold, decoded)
        other = decoder.decode_given(scores, MASK, [(Frame(0, None, ()),), None, ()], decoded)
    assert loss.dtype == torch.float32
    assert decoded == given == gold
    assert [[frame.predicate for frame in frames] for frames in other] == [[0], [], []]
    metric = task.metric()
    metric.update(decoded, SENTENCES, given)
    assert set(metric.compute().values()) == {100.0}


def test_what_cannot_be_represented_is_counted() -> None:
    spans = (Span(0, 6, "A1"), Span(0, 1, "A0"), Span(0, 2, "A1"), Span(2, 4, "A0"), Span(5, 6, "new"))
    sentence = Sentence(tuple("abcdef"), frames=(Frame(3, None, spans),))
    assert ALL.dropped(sentence, LABELS) == 4  # too long, overlapping, over the predicate, of an unknown role
    free = replace(ALL, overlaps=True)
    assert free.dropped(sentence, LABELS) == 2
    targets = free.targets(sentence, LABELS)
    assert (targets.firsts.tolist(), targets.lasts.tolist()) == ([0, 0, 2, 5], [0, 1, 3, 5])
    assert targets.roles.tolist() == [0, 1, 0, -100]
    with pytest.raises(ValueError, match="no frames"):
        ALL.targets(Sentence(("a",)), LABELS)


def test_no_roles_at_all() -> None:
    labels = Labels(())
    task = replace(ALL, senses=False)
    decoder = task.new_decoder(8, labels)
    sentence = Sentence(tuple("ab"), frames=(Frame(0, None, ()),))
    batch = task.collate([task.targets(sentence, labels)], 2)
    mask = torch.ones(1, 2, dtype=torch.bool)
    scores = decoder(torch.randn(1, 2, 8), mask)
    decoder.loss(scores, batch, mask).sum().backward()
    assert decoder.decode(scores, mask) == [()]
    assert decoder.decode_given(scores, mask, [sentence.frames], [()]) == [(Frame(0, None, ()),)]
