"""Trees by a CRF and by variational inference, against all trees one by one, loops, and supar's parsers."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mtl.tasks.decoders.decoder import PairScores
from mtl.tasks.decoders.dep import RuledScores, SiblingScores, siblings_of
from mtl.tasks.decoders.graph import GraphDecoder
from mtl.tasks.decoders.tree_crf import log_sum_over_trees
from mtl.tasks.sentence import Arc, Arcs, Graph, Sentence
from mtl.tasks.structured import Dep, Graphs
from mtl.tasks.task import UNKNOWN, Labels
from tests.tasks.test_best_trees import PROJECTIVE, TREES

WORDS = 5
LABELS = Labels(["det", "obj", "root"])
RELATIONS = ("det", "obj", "root", "det", "obj")
CRFS = {
    "crf": Dep(decoder="crf", dropout=0.0),
    "projective": Dep(decoder="crf", projective=True, dropout=0.0),
    "crf2o": Dep(decoder="crf2o", dropout=0.0),
}
VI = Dep(decoder="vi", dropout=0.0)
GRAPH = Graphs(decoder="vi", dropout=0.0)
pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")  # supar's padding


def _random(task: Any, spread: float = 0.5) -> Any:
    torch.manual_seed(0)
    decoder = task.new_decoder(8, LABELS).double().eval().requires_grad_(False)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=spread)
    return decoder


def score_of_tree(scores: PairScores | SiblingScores, heads: tuple[int, ...]) -> float:
    """By the definition: all arcs, and pairs of neighbours on one side of their head."""
    total = sum(float(scores.arcs[0, word, head]) for word, head in enumerate(heads))
    for word, head in enumerate(heads, 1):
        step = 1 if head > word else -1
        nearest = next((other for other in range(word + step, head, step) if heads[other - 1] == head), None)
        if isinstance(scores, SiblingScores) and nearest is not None:
            total += float(scores.siblings[0, word, head, nearest])
    return total


@pytest.mark.parametrize("name", CRFS)
def test_everything_is_that_of_all_trees_one_by_one(name: str) -> None:
    task, mask = CRFS[name], torch.ones(1, WORDS, dtype=torch.bool)
    decoder = _random(task)
    trees = [tuple(tree.tolist()) for tree in (TREES if name == "crf" else PROJECTIVE)[WORDS]]
    vectors = torch.randn(1, WORDS, 8).double()
    scores = decoder(vectors, mask)
    totals = torch.tensor([score_of_tree(scores, heads) for heads in trees], dtype=torch.float64)
    chances = totals.softmax(0)
    assert totals.std() > 0.5

    one_hot = torch.nn.functional.one_hot(torch.tensor(trees), WORDS + 1).double()
    marginals = (chances[:, None, None] * one_hot).sum(0)
    torch.testing.assert_close(decoder.head_probabilities(scores, mask)[0], marginals)
    expected = (one_hot * marginals).sum((1, 2))  # the number of right heads
    with torch.inference_mode():
        [decoded] = decoder.decode(scores, mask)
        [items] = decoder.alternatives(scores, mask, [decoded], 2)
    assert decoded.heads == trees[int(expected.argmax())]
    assert [item.best[0].probability for item in items[::2]] == pytest.approx(marginals.amax(1).tolist())

    best = trees[int(totals.argmax())]
    ruled = RuledScores(*scores[:3], torch.ones(1, WORDS, 3, dtype=torch.bool), siblings_of(scores))
    ruled.arcs[0, 2, best[2]] = -torch.inf  # a rule excludes an arc of the best tree
    others = torch.tensor([heads[2] != best[2] for heads in trees])
    marginals = (totals[others].softmax(0)[:, None, None] * one_hot[others]).sum(0)
    torch.testing.assert_close(decoder.head_probabilities(ruled, mask)[0], marginals)
    scores = decoder(vectors, mask)
    for given in (best, trees[7], (None, *best[1:3], None, best[4]), (None, None, best[2], None, None)):
        sentence = Sentence(("x",) * WORDS, arcs=Arcs(given, RELATIONS))
        batch = task.collate([task.targets(sentence, LABELS)], WORDS)
        agree = [all(g in (None, h) for g, h in zip(given, heads, strict=True)) for heads in trees]
        relations = sum(
            decoder._relations(scores, torch.tensor([best if given != trees[7] else given]))[
                0, word
            ].log_softmax(0)[LABELS.index(RELATIONS[word])]
            for word, head in enumerate(given)
            if head is not None
        )
        loss = totals.logsumexp(0) - totals[torch.tensor(agree)].logsumexp(0) - relations
        torch.testing.assert_close(decoder.loss(scores, batch, mask), loss[None])
        if None not in given:
            whole = decoder.structure_score(scores, batch, mask)
            of_relations = decoder._relations(scores, batch.heads)[0, range(WORDS), batch.relations[0]]
            torch.testing.assert_close(whole.score[0], totals[trees.index(given)] + of_relations.sum())


def _batch(spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Scores of arcs as supar has them, with a row for the root, and its mask of words."""
    torch.manual_seed(1)
    lengths = torch.tensor([9, 6, 1, 2])
    mask = (torch.arange(10) <= lengths[:, None]).index_fill(1, torch.tensor(0), False)
    scores = spread * torch.randn(4, 10, 10)
    return scores.masked_fill(~mask[:, None].index_fill(2, torch.tensor(0), True), -1e32), mask


TREE = torch.tensor([0, 2, 0, 2, 5, 3, 5, 6, 6, 2])  # of nine words, with its root in front


def before_inference(decoder: Any, vectors: Tensor, mask: Tensor) -> Tensor:
    """The scores of arcs from their two words alone."""
    possible = torch.nn.functional.pad(mask, (1, 0), value=True)[:, None]
    if isinstance(decoder, GraphDecoder):
        possible = possible & mask[:, :, None]
    return decoder.pair_scores(vectors, possible).arcs


def test_losses_are_those_of_supar() -> None:
    """Its models compute them from scores; sentences of 9, 6, 1 and 2 words."""
    from supar.models import dep, sdp
    from supar.structs import DependencyMFVI, SemanticDependencyMFVI
    from supar.utils.transform import CoNLL

    arcs, mask = _batch()
    heads = torch.tensor([TREE.tolist(), [0, 2, 0, 2, 3, 4, 4, 0, 0, 0], [0] * 10, [0, 2, 0] + [0] * 7])
    sibs = torch.zeros(4, 10, 10, dtype=torch.long)
    for row, length in enumerate(mask.sum(1).tolist()):
        of_row = CoNLL.get_sibs(heads[row, 1 : length + 1].tolist())
        sibs[row, 1 : length + 1, : length + 1] = torch.tensor(of_row)
    relations, of_siblings = torch.randn(4, 10, 10, 3), torch.randn(4, 10, 10, 10)
    relation = torch.randint(0, 3, (4, 10))
    model = SimpleNamespace(criterion=torch.nn.CrossEntropyLoss(), args=SimpleNamespace(interpolation=0.5))
    rest = (relations, heads, relation, mask)
    words = mask.sum()
    itself = torch.eye(10, dtype=torch.bool)
    scores = PairScores(arcs.masked_fill(itself, -torch.inf)[:, 1:], *[torch.zeros(4, 10, 1)] * 2)
    wanted = torch.nn.functional.cross_entropy(relations[mask][range(words), heads[mask]], relation[mask])
    of_words, target = mask[:, 1:], heads[:, 1:].masked_fill(~mask[:, 1:], UNKNOWN)
    for name, task in CRFS.items():
        model.args.proj = name != "crf"
        if name == "crf2o":
            theirs, marginals = dep.CRF2oDependencyModel.loss(
                model, arcs.clone(), of_siblings.clone(), relations, heads, sibs, relation, mask
            )
            scores = SiblingScores(*scores, of_siblings)
        else:
            theirs, marginals = dep.CRFDependencyModel.loss(model, arcs.clone(), *rest)
        decoder = task.new_decoder(8, LABELS)
        partition = decoder.log_partition(scores.arcs, *scores[3:] or [None], of_words.sum(1))
        ours = (partition - decoder._of_arcs(scores, target).sum(1)).sum() / words
        torch.testing.assert_close(ours + wanted, theirs.detach())
        found = decoder.head_probabilities(scores, of_words)
        torch.testing.assert_close(found[of_words], marginals.detach()[mask])
    model.inference = DependencyMFVI()
    edges = mask[:, :, None] & mask.index_fill(1, torch.tensor(0), True)[:, None]
    labels = torch.full((4, 10, 10), -1)
    labels[mask, heads[mask]] = relation[mask]
    for task, kind, count in ((VI, dep.VIDependencyModel, 1), (GRAPH, sdp.VISemanticDependencyModel, 3)):
        decoder = _random(task).float()
        vectors = torch.randn(4, 9, 8)
        made = decoder(vectors, of_words)
        parts = (decoder.siblings if count == 1 else decoder.pairs)(decoder.with_root(vectors))
        first = before_inference(decoder, vectors, of_words)
        first = torch.nn.functional.pad(first, (0, 0, 1, 0))
        if count == 1:
            parts[0][..., 0] = 0.0  # supar takes the root for a sibling
            theirs, marginals = kind.loss(model, first, *parts, *rest)
            posterior = decoder.head_probabilities(made, of_words)
        else:
            model.inference = SemanticDependencyMFVI()
            edges = edges & ~itself  # and a word for its own head
            theirs, marginals = kind.loss(model, first, *parts, relations, labels, edges)
            posterior = made.arcs.sigmoid()
        torch.testing.assert_close(posterior[of_words], marginals.detach()[mask])


@pytest.mark.parametrize("task", [VI, GRAPH], ids=["trees", "graphs"])
def test_mean_fields_are_those_of_loops(task: Any) -> None:
    """Three steps over all words, of a sentence of four words beside a longer one."""
    decoder = _random(task, 0.4)
    vectors = torch.randn(2, 6, 8).double()
    mask = torch.arange(6) < torch.tensor([4, 6])[:, None]
    first = before_inference(decoder, vectors, mask)[0, :4, :5]
    parts = decoder.siblings if task is VI else decoder.pairs
    scores = [part[0].tolist() for part in parts(decoder.with_root(vectors))]
    logits = first.clone()
    for _ in range(3):
        chances = (logits.softmax(1) if task is VI else logits.sigmoid()).tolist()
        for word, head in itertools.product(range(1, 5), range(5)):
            total = first[word - 1, head]
            for other in {1, 2, 3, 4} - {word, head}:
                total = total + chances[other - 1][head] * scores[0][word][head][other]
                if task is GRAPH:
                    total = total + chances[word - 1][other] * scores[1][word][head][other]
                    total = total + chances[other - 1][word] * scores[2][word][head][other]
            logits[word - 1, head] = total
    found = decoder(vectors, mask).arcs[0, :4, :5]
    assert (first - found)[first > -torch.inf].abs().max() > 0.3
    torch.testing.assert_close(found, logits)


def test_sums_over_trees_are_exact_where_scores_are_far_apart() -> None:
    """Scores that differ by hundreds leave one tree; two words that nearly hang from each other do not."""
    torch.manual_seed(0)
    scores = 300 * torch.randn(1, WORDS, WORDS + 1)
    scores[0, range(WORDS), range(1, WORDS + 1)] = -1e30
    scores = torch.cat([scores, scores / 300])
    scores[1, 0, 2] = scores[1, 1, 1] = 60.0
    scores.requires_grad_()
    found = log_sum_over_trees(scores, torch.tensor([WORDS, WORDS]))
    totals = scores[:, range(WORDS), torch.tensor(TREES[WORDS])].sum(2)
    expected = totals.double().logsumexp(1).float()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), scores)[0], torch.autograd.grad(expected.sum(), scores)[0]
    )


def test_arcs_that_cross_are_left_out_of_projective_trees_and_counted() -> None:
    sentence = Sentence(tuple("abcd"), arcs=Arcs((3, 4, 0, 3), ("det", "obj", "root", "obj")))
    for name, task in CRFS.items():
        left_out = int(name != "crf")
        targets = task.targets(sentence, LABELS)
        assert (targets.heads == UNKNOWN).sum() == (targets.relations == UNKNOWN).sum() == left_out
        assert task.dropped(sentence, LABELS) == left_out


GOLD = [
    Sentence(tuple("abcde"), arcs=Arcs((3, 1, 0, 5, 3), ("det", "obj", "root", "obj", "obj"))),
    Sentence(tuple("abc"), arcs=Arcs((2, 0, 2), ("det", "root", "obj"))),
]
GRAPHS = [
    Sentence(each.words, deps=Graph(tuple(
        Arc(word, head or 0, label)
        for word, (head, label) in enumerate(zip(each.arcs.heads, each.arcs.relations, strict=True), 1)
    )))
    for each in GOLD if each.arcs is not None
]  # fmt: skip


@pytest.mark.parametrize("task", [*CRFS.values(), VI, GRAPH], ids=[*CRFS, "vi", "graphs"])
def test_they_learn_what_is_there_also_in_bfloat16(task: Any) -> None:
    gold = GRAPHS if task is GRAPH else GOLD
    torch.manual_seed(0)
    decoder = task.new_decoder(24, LABELS)
    words, mask = torch.randn(2, 5, 24), torch.arange(5) < torch.tensor([5, 3])[:, None]
    learned = gold
    if task in CRFS.values():  # what is left out follows from the rest of the tree
        learned = [Sentence(gold[0].words, arcs=Arcs((3, 1, 0, 5, None), RELATIONS)), gold[1]]
    batch = task.collate([task.targets(sentence, LABELS) for sentence in learned], 5)
    optimizer = torch.optim.Adam(decoder.parameters(), 0.02)
    for _ in range(25):
        with torch.autocast("cpu", torch.bfloat16):
            losses = decoder.loss(decoder(words, mask), batch, mask)
        assert losses.dtype == torch.float32
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
    assert all(parameter.grad.isfinite().all() for parameter in decoder.parameters())
    decoder.eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        scores = decoder(words.bfloat16(), mask)
        assert (decoder.loss(scores, batch, mask) < losses + 0.5).all()
        decoded = decoder.decode(scores, mask)
    if task is not GRAPH:
        assert [each.heads[:4] for each in decoded] == [each.arcs.heads[:4] for each in GOLD]
    else:
        assert decoded == [sentence.layer("deps") for sentence in gold]
