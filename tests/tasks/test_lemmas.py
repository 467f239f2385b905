"""Lemmas: scripts, those that apply to a form, and accuracy."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

from mtl.probes.measures.corpus import BY_KIND, LabelledSpan
from mtl.tasks.catalogue import KINDS, named_in
from mtl.tasks.lemmas import (
    RANKED,
    SAME,
    LemmaLabels,
    Lemmas,
    RankedScripts,
    lemma_of,
    made,
    script,
    shortest_form,
    split_lemma_labels,
)
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.task import UNKNOWN, Labels, instance

LETTERS = "abAB+¦-.;=,0ßİǅéſ _"


def sentence(words: str, lemmas: str) -> Sentence:
    return Sentence(tuple(words.split()), lemmas=tuple(lemmas.split()))


SENTENCES = [
    sentence("The studies is long", "the study be long"),
    sentence("Bob studies flies", "Bob study fly"),
    sentence("as in Rio", "_ in Rio"),
]
MASK = torch.tensor([[True] * 4, [True] * 3 + [False], [True] * 3 + [False]])


@pytest.mark.parametrize(
    ("form", "lemma", "edits"),
    [
        ("studies", "study", "L0;¦---+y"),
        ("Studies", "study", "L0;¦---+y"),
        ("The", "the", SAME),
        ("Paris", "Paris", "U0,L1;¦"),
        ("USA", "USA", "U0;¦"),
        ("gegangen", "gehen", "L0;¦----+h.."),
        ("undone", "do", "L0;--¦--"),
        ("was", "be", "=be"),
        ("McDonalds", "McDonald", "U0,L1,U2,L3;¦-"),
    ],
)
def test_scripts(form: str, lemma: str, edits: str) -> None:
    assert script(form, lemma) == edits
    assert made(edits, form) == lemma


def test_every_script_makes_its_lemma_and_applies_from_a_length_on() -> None:
    rng = random.Random(0)
    for _ in range(5000):
        form, lemma = ("".join(rng.choices(LETTERS, k=rng.randint(1, 6))) for _ in range(2))
        edits = script(form, lemma)
        assert made(edits, form) == lemma
        least = shortest_form(edits)
        assert least <= len(form.lower())
        assert made(edits, "x" * least)
        if least > 1:
            assert made(edits, "x" * (least - 1)) is None


def test_edits_are_the_shortest() -> None:
    """What is after a root is edited with as few drops and additions as a common subsequence leaves."""
    for size in (1, 2, 3):
        for part, target in product(map("".join, product("abc", repeat=size)), ("", "a", "ba", "cab")):
            edits = script(f"zzzz{part}", f"zzzz{target}").partition("¦")[2]
            root = next(n for n in range(len(part), -1, -1) if target.startswith(part[:n]))
            common = _common(part[root:], target[root:])
            assert sum(edits.count(operation) for operation in "-+") == len(part) + len(target) - 2 * (
                root + common
            )


def _common(left: str, right: str) -> int:
    if not left or not right:
        return 0
    if left[0] == right[0]:
        return 1 + _common(left[1:], right[1:])
    return max(_common(left[1:], right), _common(left, right[1:]))


def test_rare_scripts_are_no_labels_and_a_word_without_lemma_has_no_target() -> None:
    def scripts(task: Lemmas, *sentences: Sentence) -> tuple[str, ...]:
        return split_lemma_labels(task.labels(sentences)).scripts.names

    assert scripts(Lemmas(), *SENTENCES) == ("L0;¦", "L0;¦---+y", "U0,L1;¦")
    labels = Lemmas(min_count=1).labels([*SENTENCES, Sentence(("x",))])
    assert split_lemma_labels(labels).scripts.names == ("=be", "L0;¦", "L0;¦---+y", "U0,L1;¦")
    assert scripts(Lemmas(min_count=9), *SENTENCES) == (SAME,)
    batch = Lemmas().collate([Lemmas().targets(s, Lemmas().labels(SENTENCES)) for s in SENTENCES], 4)
    assert batch.labels.tolist() == [[0, 1, UNKNOWN, 0], [2, 1, 1, UNKNOWN], [UNKNOWN, 0, 2, UNKNOWN]]
    with pytest.raises(ValueError, match="no lemmas"):
        Lemmas().targets(Sentence(("x",)), labels)


def test_of_the_scripts_the_best_that_applies_is_taken() -> None:
    rng = random.Random(1)
    torch.manual_seed(0)
    names = ("=be", "L0;¦", "L0;¦---+y", "L0;¦-", "U0;----¦", "L0;-¦-")
    decoder = Lemmas().new_decoder(4, Labels(names))
    words = [tuple("".join(rng.choices("abc", k=rng.randint(1, 7))) for _ in range(50)) for _ in range(2)]
    scores = torch.randn(2, 50, len(names))
    decoded = decoder.decode(scores, torch.ones(2, 50, dtype=torch.bool))
    for row, (forms, found) in enumerate(zip(words, decoded, strict=True)):
        expected = []
        for place, form in enumerate(forms):
            ranked = [names[index] for index in scores[row, place].argsort(descending=True)]
            expected.append(next(lemma for edits in ranked if (lemma := made(edits, form)) is not None))
        assert found.lemmas(forms) == tuple(expected)
    assert lemma_of("go", ["L0;¦---+y"]) == "go"


def test_a_form_that_training_has_gets_one_of_its_lemmas() -> None:
    rng = random.Random(2)
    torch.manual_seed(0)
    names = (
        "L0;¦",
        "L0;¦-",
        "L0;¦--",
        "L0;¦---",
        "L0;¦+e",
        "L0;¦-+e",
        "L0;¦--+e",
        "L0;¦+a",
        "L0;¦+b",
        "L0;¦+c",
    )
    forms = tuple("".join(rng.choices("abc", k=rng.randint(4, 7))) for _ in range(60))
    lexicon = {
        form: sorted({str(made(edits, form)) for edits in rng.sample(names, 2)}) for form in forms[::2]
    }
    labels = LemmaLabels(Labels(names), lexicon).joined()
    assert split_lemma_labels(labels).lexicon == lexicon
    task = Lemmas()
    decoder = task.new_decoder(4, labels)
    scores, mask = torch.randn(1, 60, len(names)), torch.ones(1, 60, dtype=torch.bool)
    [found] = decoder.decode(scores, mask)
    expected = []
    for place, form in enumerate(forms):
        ranked = [str(made(names[index], form)) for index in scores[0, place].argsort(descending=True)]
        known = [lemma for lemma in ranked[:RANKED] if lemma in lexicon.get(form, ())]
        expected.append((known or ranked)[0])
    sentence = task.annotate(Sentence(forms), found)
    assert (
        sentence.layer("lemmas")
        == tuple(expected)
        != task.annotate(Sentence(forms), task.new_decoder(4, Labels(names)).decode(scores, mask)[0]).layer(
            "lemmas"
        )
    )
    [items] = decoder.alternatives(scores, mask, [found], 1)
    offered = task.offered(Sentence(forms), items, 1, labels)
    assert [item.best[0].value for item in offered] == expected


def test_learns_decodes_and_scores_its_own_training_data() -> None:
    torch.manual_seed(1)
    task = Lemmas(dropout=0.0, min_count=1)
    labels = task.labels(SENTENCES)
    decoder = task.new_decoder(8, labels)
    words = torch.randn(3, 4, 8)
    batch = task.collate([task.targets(s, labels) for s in SENTENCES], 4)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        decoder.loss(decoder(words, MASK), batch, MASK).sum().backward()
        optimizer.step()
    with torch.inference_mode():
        decoded = decoder.decode(decoder(words, MASK), MASK)
    metric = task.metric()
    metric.update(decoded, SENTENCES)
    assert metric.compute() == {"accuracy": 100.0}
    annotated = task.annotate(Sentence(SENTENCES[0].words), decoded[0])
    assert annotated.layer("lemmas") == SENTENCES[0].layer("lemmas")


def ranked(*scripts: tuple[str, ...]) -> RankedScripts:
    return RankedScripts(scripts, {})


def test_accuracy_is_that_of_lemmas_and_any_is_right_where_there_is_none() -> None:
    """`be` by another script is right, too."""
    metric = Lemmas().metric()
    guess = ranked((SAME,), ("=study",), (SAME,), ("L0;-----¦", "=long"))
    assert metric.sentence_counts([guess], SENTENCES[:1]).tolist() == [[3, 4]]
    assert metric.sentence_counts([ranked(*[(SAME,)] * 3)], SENTENCES[2:]).tolist() == [[2, 3]]
    assert metric.sentence_counts([ranked((SAME,))], [Sentence(("x",))]).tolist() == [[0, 0]]
    underscore = sentence("_ a", "_ b")
    assert metric.sentence_counts([ranked((SAME,), (SAME,))], [underscore]).tolist() == [[1, 2]]


def test_a_layer_with_the_name_of_the_kind_is_its_own_and_probed_by_scripts() -> None:
    found = named_in([*SENTENCES, Sentence(("x",), other=("y",))])
    assert {name: kind.kind for name, kind in found.items()} == {"lemmas": "lemmas", "other": "tags"}
    spans = Sentence(("x",), lemmas=(Span(0, 1, "A"),))
    assert named_in([spans])["lemmas"].kind == "spans"
    assert [*BY_KIND["lemmas"].items(SENTENCES[2])] == [
        LabelledSpan(1, 2, SAME),
        LabelledSpan(2, 3, "U0,L1;¦"),
    ]
    assert [*BY_KIND["lemmas"].items(Sentence(("x",)))] == []
    task = instance("roots", KINDS["lemmas"], "roots")()
    named = SENTENCES[1].with_layers({"roots": SENTENCES[1].layer("lemmas"), "lemmas": None})
    assert task.labels([named]).names == Lemmas().labels([SENTENCES[1]]).names
    assert task.annotate(Sentence(("Flies",)), ranked(("L0;¦---+y",))).layer("roots") == ("fly",)


def test_what_is_offered_are_lemmas_that_scripts_make_of_the_form() -> None:
    labels = Labels((SAME, "L0;¦---+y", "L0;¦-", "U0,L1;¦", "=be"))
    decoder = Lemmas().new_decoder(8, labels).eval()
    words = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(3))
    scores = decoder(words, MASK[1:2, :3])
    items = decoder.alternatives(scores, MASK[1:2, :3], decoder.decode(scores, MASK[1:2, :3]), 1)[0]
    said = Sentence(("Studies", "as", "x"))
    for word, item, chances in zip(
        said.words, Lemmas().offered(said, items, 9, labels), scores[0].softmax(1), strict=True
    ):
        expected: dict[str, float] = {}
        for edits, chance in zip(labels.names, chances.tolist(), strict=True):
            if (lemma := made(edits, word)) is not None:
                expected[lemma] = expected.get(lemma, 0) + chance
        whole = sum(expected.values())
        assert dict(item.best) == pytest.approx({lemma: chance / whole for lemma, chance in expected.items()})
        assert [chance for _, chance in item.best] == sorted(
            (chance for _, chance in item.best), reverse=True
        )
    assert "y" not in dict(Lemmas().offered(said, items, 9, labels)[2].best)
    assert [len(item.best) for item in Lemmas().offered(said, items, 2, labels)] == [2, 2, 2]
