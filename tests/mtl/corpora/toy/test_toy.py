from __future__ import annotations

import functools
from collections import Counter, defaultdict

import pytest

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.toy.corpus import toy_corpus, write_toy
from mtl.corpora.toy.grammar import NOUNS, VERBS, known_names, new_names
from mtl.tasks.sentence import Sentence
from mtl.tasks.tree import Tree


@functools.cache
def drawn() -> list[Sentence]:
    return toy_corpus(1500, 3)


def spans(tree):
    """(start, end, node) of every node, preterminals included."""
    found = []

    def walk(node, start):
        end = start + 1 if node.is_preterminal else start
        for child in () if node.is_preterminal else node.children:
            end = walk(child, end)
        found.append((start, end, node))
        return end

    walk(tree, 0)
    return found


def test_the_tree_spans_words_and_tags_under_one_top():
    for sentence in drawn():
        leaves = list(sentence.tree.leaves())
        assert tuple(leaf.children for leaf in leaves) == sentence.words
        assert tuple(leaf.label for leaf in leaves) == sentence.tags
        assert len(sentence.upos) == len(sentence.words)
        assert sentence.tree.label == "TOP"
        assert Tree.parse(str(sentence.tree)) == sentence.tree


def test_arcs_are_projective_trees_with_one_root():
    for sentence in drawn():
        heads = sentence.arcs.heads
        assert [
            relation for head, relation in zip(heads, sentence.arcs.relations, strict=True) if head == 0
        ] == ["root"]
        assert sentence.arcs.relations.count("root") == 1
        ancestors = []
        for word in range(1, len(heads) + 1):
            path = [word]
            while path[-1] != 0:
                assert len(path) <= len(heads), "a cycle"
                path.append(heads[path[-1] - 1])
            ancestors.append(set(path))
        for word, head in enumerate(heads, start=1):
            if head:
                between = range(min(word, head) + 1, max(word, head))
                assert all(head in ancestors[other - 1] for other in between)


def test_every_constituent_has_one_head():
    """Dependencies and brackets agree: exactly one word of a constituent depends on a word outside it."""
    for sentence in drawn():
        for start, end, _ in spans(sentence.tree):
            outside = [head for head in sentence.arcs.heads[start:end] if not start < head <= end]
            assert len(outside) == 1


def test_entities_and_arguments_are_constituents_and_do_not_overlap():
    for sentence in drawn():
        constituents = {(start, end) for start, end, _ in spans(sentence.tree)}
        layers = [sentence.entities, *(frame.arguments for frame in sentence.frames)]
        for layer in layers:
            covered = [word for start, end, _ in layer for word in range(start, end)]
            assert len(covered) == len(set(covered))
            assert all((start, end) in constituents for start, end, _ in layer)
        predicates = [frame.predicate for frame in sentence.frames]
        assert len(predicates) == len(set(predicates))
        for frame in sentence.frames:
            assert sentence.tags[frame.predicate].startswith("VB")
            assert not any(start <= frame.predicate < end for start, end, _ in frame.arguments)


def test_continuations_and_relatives_have_what_they_refer_to():
    for sentence in drawn():
        for frame in sentence.frames:
            seen = set()
            for _, _, role in sorted(frame.arguments):
                if role.startswith(("C-", "R-")):
                    assert role[2:] in seen
                seen.add(role)


def test_arguments_agree_with_relations():
    """The subject of a passive is its ARG1, the by-phrase its ARG0; an auxiliary has no arguments."""
    counts = Counter()
    for sentence in drawn():
        roles = {
            (frame.predicate, word): role
            for frame in sentence.frames
            for start, end, role in frame.arguments
            for word in range(start, end)
        }
        predicates = {frame.predicate: frame for frame in sentence.frames}
        for word, (head, relation) in enumerate(
            zip(sentence.arcs.heads, sentence.arcs.relations, strict=True)
        ):
            if relation == "nsubj:pass":
                counts[relation] += 1
                assert roles[head - 1, word] in ("ARG1", "R-ARG1")
            elif relation == "obl:agent":
                counts[relation] += 1
                assert roles[head - 1, word] == "ARG0"
            elif relation.startswith("aux") and sentence.tags[word] != "MD":
                counts["aux"] += 1
                assert predicates[word].arguments == ()
    assert min(counts[key] for key in ("nsubj:pass", "obl:agent", "aux")) > 30


def test_all_the_phenomena_are_there():
    roles = Counter(role for s in drawn() for frame in s.frames for _, _, role in frame.arguments)
    assert {"ARG0", "ARG1", "ARG2", "C-ARG1", "R-ARG0", "R-ARG1"} <= roles.keys()
    assert {
        "ARGM-TMP",
        "ARGM-LOC",
        "ARGM-MNR",
        "ARGM-NEG",
        "ARGM-MOD",
        "ARGM-CAU",
        "ARGM-ADV",
    } <= roles.keys()
    relations = Counter(relation for s in drawn() for relation in s.arcs.relations)
    assert {
        "acl:relcl",
        "conj",
        "cc",
        "ccomp",
        "xcomp",
        "advcl",
        "iobj",
        "flat",
        "compound:prt",
    } <= relations.keys()
    labels = Counter(node.label for s in drawn() for _, _, node in spans(s.tree) if not node.is_preterminal)
    assert {
        "S",
        "SBAR",
        "SBARQ",
        "SQ",
        "PRN",
        "PRT",
        "WHNP",
        "ADJP",
        "ADVP",
        "PP",
        "NP",
        "VP",
    } <= labels.keys()
    unary = Counter(
        (node.label, node.children[0].label)
        for s in drawn()
        for _, _, node in spans(s.tree)
        if not node.is_preterminal and len(node.children) == 1 and not node.children[0].is_preterminal
    )
    assert {("S", "VP"), ("SBAR", "S"), ("SQ", "VP")} <= unary.keys()
    assert {label for s in drawn() for _, _, label in s.entities} == {"PER", "ORG", "LOC"}
    assert sum(len(s.frames) >= 2 for s in drawn()) > len(drawn()) / 2
    assert any(s.frames == () for s in drawn())
    assert 8 < sum(map(len, drawn())) / len(drawn()) < 15


@pytest.mark.parametrize("form", ["saw", "watch", "light", "that", "'s", "her", "to", "up", "watched", "cut"])
def test_tags_are_ambiguous(form):
    tags = Counter(tag for s in drawn() for word, tag in zip(s.words, s.tags, strict=True) if word == form)
    if form == "up":
        assert set(tags) == {"RP"}
    else:
        assert len(tags) >= 2
        assert tags.most_common()[1][1] > 0.05 * tags.total()


def attachments():
    """Each 'with' phrase beside an object: verb, noun, the tags before it, and whether it is the verb's."""
    verbs = {form: v for v in VERBS for form in (v.base, v.third, v.past, v.participle, v.gerund)}
    nouns = {form: noun for noun in NOUNS for form in (noun.singular, noun.plural)}
    for sentence in drawn():
        for word, form in enumerate(sentence.words):
            if form == "with":
                tool = sentence.arcs.heads[word] - 1
                governor = sentence.arcs.heads[tool] - 1
                to_verb = sentence.tags[governor].startswith("VB")
                verb = governor if to_verb else sentence.arcs.heads[governor] - 1
                before = tuple(sentence.tags[max(word - 3, 0) : word])
                yield verbs[sentence.words[verb].lower()], nouns[sentence.words[tool]], before, to_verb


def majority(pairs):
    """The accuracy, on the same data, of the best guess from the first element of each pair."""
    table = defaultdict(Counter)
    for key, answer in pairs:
        table[key][answer] += 1
    return sum(max(counts.values()) for counts in table.values()) / len(pairs)


def test_attachment_needs_two_words_and_neither_position_nor_one_word_gives_it():
    found = list(attachments())
    assert len(found) > 100
    assert majority([((), to_verb) for *_, to_verb in found]) < 0.62
    assert majority([((verb.pattern, tags[-2:]), to_verb) for verb, _, tags, to_verb in found]) < 0.7
    assert majority([(verb.group, to_verb) for verb, _, _, to_verb in found]) < 0.65
    assert majority([(tool.group, to_verb) for _, tool, _, to_verb in found]) < 0.65
    assert majority([((verb.group, tool.group), to_verb) for verb, tool, _, to_verb in found]) == 1.0


def test_the_attachment_of_places_depends_on_the_noun():
    nouns = {form: noun for noun in NOUNS for form in (noun.singular, noun.plural)}
    seen = Counter()
    for sentence in drawn():
        for word, form in enumerate(sentence.words[1:], start=1):
            if form in ("near", "in") and sentence.tags[word - 1] in ("NN", "NNS"):
                governor = sentence.arcs.heads[sentence.arcs.heads[word] - 1] - 1
                seen[nouns[sentence.words[word - 1]].fixed, sentence.tags[governor].startswith("VB")] += 1
    assert seen.keys() == {(True, False), (False, True)}
    assert min(seen.values()) > 10


def test_the_same_seed_gives_the_same_corpus_and_another_another():
    assert toy_corpus(20, 5, "dev") == toy_corpus(20, 5, "dev")
    assert toy_corpus(20, 5)[:10] == toy_corpus(10, 5)
    assert [s.words for s in toy_corpus(20, 5)] != [s.words for s in toy_corpus(20, 6)]
    assert [s.words for s in toy_corpus(20, 5)] != [s.words for s in toy_corpus(20, 5, "test")]


@pytest.mark.slow
def test_names_that_only_the_test_split_has():
    def used(sentences):
        return {word for s in sentences for start, end, _ in s.entities for word in s.words[start:end]}

    def pools(names):
        return {*names.person, *names.surname, *names.org, *names.place}

    train, dev, test = (
        used(sentences) for sentences in (drawn(), toy_corpus(600, 3, "dev"), toy_corpus(600, 3, "test"))
    )
    only_dev, only_test = pools(new_names("dev")), pools(new_names("test"))
    assert not only_dev & only_test
    assert not (only_dev | only_test) & pools(known_names())
    assert not train & (only_dev | only_test)
    assert len(test & only_test) > 0.3 * len(test)
    assert len(dev & only_dev) > 0.3 * len(dev)
    assert pools(new_names("train")) == pools(known_names())


def test_one_name_has_several_kinds():
    labels = defaultdict(set)
    for sentence in drawn():
        for start, end, label in sentence.entities:
            if end - start == 1:
                labels[sentence.words[start]].add(label)
    assert labels["Jordan"] == {"PER", "LOC"}


def test_files_read_back(tmp_path):
    paths = write_toy(tmp_path / "toy", train=12, dev=5, test=7, seed=1)
    assert [path.name for path in paths] == ["train.jsonl", "dev.jsonl", "test.jsonl"]
    assert [read_jsonl(path) for path in paths] == [
        toy_corpus(12, 1, "train"),
        toy_corpus(5, 1, "dev"),
        toy_corpus(7, 1, "test"),
    ]
