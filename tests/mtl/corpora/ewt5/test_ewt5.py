from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mtl.corpora.ewt5.build import SPLITS, build_ewt, git_blob_id, small_subset
from mtl.corpora.folder import corpus_stats
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.errors import InputError
from mtl.files import fingerprint
from mtl.tasks.catalogue import STRUCTURED
from mtl.tasks.sentence import Arcs, Frame, Sentence, Span
from mtl.tasks.spans import binarise, constituents, restore

# The sentences of each document: words with tags (UD), entity tags (UNER), the skeleton's tags and columns.
UNIVERSAL = {
    "answers-d1_ans": ["He/PRP gave/VBD up/RP in/IN :)/NFP", "Paris/NNP !/."],
    "answers-d2_ans": [
        "It/PRP is/VBZ ok/JJ ,/, go/VB now/RB",
        "1/LS )/-RRB- what/WP thes/DT difference/NN between/IN a/DT m/NN 16/CD",
        "Bye/UH ./.",
    ],
    "reviews-d3": ["Good/JJ"],
}
NAMED = {
    "answers-d1_ans": ["O O O B-OTH O", "B-LOC O"],
    "answers-d2_ans": ["O O O O O O O", "O O O O O O O O O", "O O"],
    "reviews-d3": ["B-O"],
}
SKELETONS = {
    "answers/00/d1_ans": [
        "PRP (TOP(S(NP-SBJ*) - - (ARG0*)|VBD (VP* give give_up.07 (V*)|RP (PRT*) - - (C-V*)"
        "|IN (PP* - - (ARGM-LOC*|NFP *)))) - - *)",
        "NNP (TOP(NP(NP*) - -|. *)) - -",
    ],
    "answers/00/d2_ans": [
        "PRP (TOP(S(NP*) - -|VBZ (VP* - -|JJ (ADJP*))) - -|, *) - -",
        "VB (TOP(S(VP* go go.01 (V*)|RB (ADVP*)))) - - (ARGM-TMP*)",
        "LS (TOP(X* - -|-RRB- * - -|WP * - -|DT * - -|VBZ * - -|NN * - -|IN * - -|DT * - -|NN *)) - -",
        "UH (TOP(INTJ* - -|. *)) - -",
    ],
}


def lay_out(source: Path) -> None:
    """The documents above as upstream's files, all in the train split; dev and test are one sentence each."""
    for folder in ("UD_English-EWT", "UNER_English-EWT"):
        (source / folder).mkdir(parents=True)
    for split in SPLITS:
        documents = UNIVERSAL if split == "train" else {f"email-{split}": ["Hm/UH"]}
        rows, tags = [], []
        for name, sentences in documents.items():
            for number, sentence in enumerate(sentences, start=1):
                pairs = [pair.rsplit("/", 1) for pair in sentence.split()]
                head = f"# sent_id = {name}-{number:04d}\n"
                rows.append(head + "".join(_row(index, *pair) for index, pair in enumerate(pairs, start=1)))
                labels = NAMED[name][number - 1].split() if name in NAMED else ["O"]
                words = [word for word, _ in pairs] if len(labels) == len(pairs) else ["?"] * len(labels)
                cells = zip(words, labels, strict=True)
                tags.append(
                    head + "".join(f"{i}\t{word}\t{tag}\n" for i, (word, tag) in enumerate(cells, start=1))
                )
        (source / "UD_English-EWT" / f"en_ewt-ud-{split}.conllu").write_text("\n".join(rows))
        (source / "UNER_English-EWT" / f"en_ewt-ud-{split}.iob2").write_text("\n".join(tags))
    for name, sentences in SKELETONS.items():
        path = source / "propbank-release/data/google/ewt" / f"{name}.xml.gold_skel"
        path.parent.mkdir(parents=True, exist_ok=True)
        blocks = [
            "".join(f"d {number} {i} [WORD] {cells}\n" for i, cells in enumerate(sentence.split("|")))
            for number, sentence in enumerate(sentences)
        ]
        path.write_text("\n".join(blocks))


def _row(index: int, word: str, tag: str) -> str:
    head, relation = (0, "root") if index == 1 else (1, "dep:x")
    features = "Case=Nom" if tag == "PRP" else "_"
    return f"{index}\t{word}\t{word.lower()}\tX\t{tag}\t{features}\t{head}\t{relation}\t_\t_\n"


@pytest.fixture
def built(tmp_path):
    lay_out(tmp_path / "source")
    return tmp_path / "out", build_ewt(tmp_path / "source", tmp_path / "out")


def test_five_layers_on_one_sentence(built):
    out, _ = built
    first, second, *_ = read_jsonl(out / "train.jsonl")
    assert str(first.tree) == (
        "(TOP (S (NP (PRP He)) (VP (VBD gave) (PRT (RP up)) (PP (IN in) (NFP :-RRB-)))))"
    )
    assert [leaf.children for leaf in first.tree.leaves()] == list(first.words)
    assert first == Sentence(
        words=("He", "gave", "up", "in", ":)"),
        tags=("PRP", "VBD", "RP", "IN", "NFP"),
        upos=("X",) * 5,
        entities=(),
        arcs=Arcs((0, 1, 1, 1, 1), ("root", *["dep:x"] * 4)),
        tree=first.tree,
        frames=(Frame(1, "give_up.07", (Span(0, 1, "ARG0"), Span(3, 5, "ARGM-LOC"))),),
        id="answers-d1_ans-0001",
        document="answers-d1_ans",
    )
    assert second.entities == (Span(0, 1, "LOC"),)
    assert str(second.tree) == "(TOP (NP (NP (NNP Paris)) (. !)))"  # the unary chain stays


def test_ten_layers_are_the_five_with_lemmas_features_and_text(built, tmp_path):
    five, provenance = built
    ten = build_ewt(tmp_path / "source", tmp_path / "ten", "ewt10")
    assert (provenance["corpus"], ten["corpus"]) == ("EWT-5", "EWT-10")
    for split in SPLITS:
        read = read_jsonl(tmp_path / "ten" / f"{split}.jsonl")
        for sentence in read:
            assert sentence.layer("lemmas") == tuple(map(str.lower, sentence.words))
            cases = {"PRP": "Case=Nom"}
            # No word of dev and test has features, so that these files have none.
            due = tuple(cases.get(tag, "_") for tag in sentence.tags) if split == "train" else None
            assert sentence.layer("feats") == due
            assert sentence.text == " ".join(sentence.words)
        plain = [replace(sentence, lemmas=None, feats=None, text="") for sentence in read]
        assert plain == read_jsonl(five / f"{split}.jsonl")
    assert ten["counts"]["train"]["lemmas"] == {"sentences": 6, "lemmas": 25}
    assert ten["counts"]["train"]["feats"] == {"sentences": 6, "tags": 25}


def test_what_does_not_pair_is_not_annotated_and_listed(built):
    out, provenance = built
    sentences = {sentence.id: sentence for sentence in read_jsonl(out / "train.jsonl")}
    annotated = {
        name: (sentence.entities is not None, sentence.tree is not None, sentence.frames is not None)
        for name, sentence in sentences.items()
    }
    assert annotated == {
        "answers-d1_ans-0001": (True, True, True),
        "answers-d1_ans-0002": (True, True, True),
        "answers-d2_ans-0001": (False, False, False),
        "answers-d2_ans-0002": (True, False, False),
        "answers-d2_ans-0003": (True, True, True),
        "reviews-d3-0001": (True, False, False),
    }
    assert provenance["unpaired"]["train"] == {
        "entities": {"different number of words": ["answers-d2_ans-0001"]},
        "tree and frames": {
            "sentences split or merged": ["answers-d2_ans-0001", "answers-d2_ans-0002"],
            "document absent": ["reviews-d3-0001"],
        },
    }
    assert provenance["unpaired_counts"]["train"] == {
        "entities": {"different number of words": 1},
        "tree and frames": {"sentences split or merged": 2, "document absent": 1},
    }
    assert provenance["dropped_entities"] == {"train": {"O": 1, "OTH": 1}, "dev": {}, "test": {}}
    assert provenance["counts"] == corpus_stats(out)
    assert provenance["counts"]["train"]["srl"] == {"sentences": 3, "frames": 1, "arguments": 2}


def test_provenance_is_on_disk_and_names_every_file(built, tmp_path):
    out, provenance = built
    assert json.loads((out / "provenance.json").read_text()) == provenance
    assert provenance["fingerprint"] == fingerprint([out / f"{split}.jsonl" for split in SPLITS])
    source = tmp_path / "source"
    files = {path.relative_to(source).as_posix(): path for path in source.rglob("*") if path.is_file()}
    assert {name: ids["git_blob"] for name, ids in provenance["inputs"].items()} == {
        name: git_blob_id(path) for name, path in files.items()
    }
    assert set(provenance["inputs_not_as_pinned"]) == set(files)
    assert len(provenance["pinned_inputs_missing"]) == 1145  # every skeleton (the made-up ones are others)


def test_a_second_build_is_the_same(built, tmp_path):
    _, provenance = built
    assert build_ewt(tmp_path / "source", tmp_path / "again") == provenance


def test_incomplete_sources(tmp_path):
    with pytest.raises(InputError, match="propbank-release"):
        build_ewt(tmp_path, tmp_path / "out")
    lay_out(tmp_path / "source")
    (tmp_path / "source/UNER_English-EWT/en_ewt-ud-dev.iob2").unlink()
    with pytest.raises(InputError, match=r"en_ewt-ud-dev\.iob2: no such file"):
        build_ewt(tmp_path / "source", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_small_subset_needs_its_sentences(tmp_path):
    lay_out(tmp_path / "source")
    with pytest.raises(
        InputError, match=r"no sentence 'email-.*' of the small subset: take the pinned files"
    ):
        build_ewt(tmp_path / "source", tmp_path / "out", small=True)
    assert not (tmp_path / "out").exists()


def counted_in(path: Path) -> Counter[str]:
    """The numbers of a UD file, counted from its columns."""
    counts: Counter[str] = Counter()
    for block in path.read_text(encoding="utf8").strip().split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n") if re.match(r"\d+\t", line)]
        counts["sentences"] += 1
        counts["words"] += len(rows)
        for _, form, lemma, upos, xpos, feats, _, relation, deps, _ in rows:
            counts["deps between words"] += sum("." not in item.split(":")[0] for item in deps.split("|"))
            counts["other lemmas"] += form != lemma
            counts["no lemmas"] += lemma == "_" != form
            counts["features"] += 0 if feats == "_" else feats.count("|") + 1
            counts["nouns"] += upos == "NOUN"
            counts["NN"] += xpos == "NN"
            counts["obj"] += relation == "obj"
            counts["Case=Nom"] += "Case=Nom" in feats.split("|")
        counts["characters"] += len(re.search(r"^# text = (.*)$", block, re.M)[1].rstrip(" "))
    return counts


def counted(sentences: list[Sentence]) -> Counter[str]:
    """The same numbers, counted from sentences that were read."""
    counts = Counter({"sentences": len(sentences), "words": sum(map(len, sentences))})
    for sentence in sentences:
        counts["characters"] += len(sentence.text)
        counts["nouns"] += sentence.upos.count("NOUN")
        counts["NN"] += sentence.tags.count("NN")
        counts["obj"] += sentence.arcs.relations.count("obj")
        counts["Case=Nom"] += sentence.layer("feats.Case").count("Nom")
        counts["deps between words"] += sum(">" not in arc.label for arc in sentence.layer("deps").arcs)
        columns = sentence.words, sentence.layer("lemmas"), sentence.layer("feats")
        for form, lemma, bundle in zip(*columns, strict=True):
            counts["other lemmas"] += form != lemma
            counts["no lemmas"] += lemma == "_" != form
            counts["features"] += 0 if bundle == "_" else bundle.count("|") + 1
    return counts


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_real_corpus(upstream, tmp_path):
    """The ten layers are the five and others."""
    provenance = build_ewt(upstream, tmp_path, "ewt10")
    assert provenance["inputs_not_as_pinned"] == provenance["pinned_inputs_missing"] == []
    counts = provenance["counts"]
    assert {split: (c["sentences"], c["words"]) for split, c in counts.items()} == {
        "train": (12544, 204577),
        "dev": (2001, 25147),
        "test": (2077, 25094),
    }
    # Counted straight from the files, 12,526 training sentences (40,429 frames) and 12,530 (names) have the
    # same length in both editions. One of them has its words shifted (2 frames: see test_pairing's example);
    # two more with names pair under another id, after a sentence that was split.
    assert {split: (c["con"]["sentences"], c["srl"]["frames"]) for split, c in counts.items()} == {
        "train": (12526 - 1, 40429 - 2),
        "dev": (1968, 4963),
        "test": (2058, 4795),
    }
    assert {split: c["ner"]["sentences"] for split, c in counts.items()} == {
        "train": 12530 - 1 + 2,
        "dev": 1999,
        "test": 2074,
    }
    splits = {split: read_jsonl(tmp_path / f"{split}.jsonl") for split in SPLITS}
    for split, sentences in splits.items():
        assert counted(sentences) == counted_in(upstream / f"UD_English-EWT/en_ewt-ud-{split}.conllu")
    agreeing = words = 0
    for sentences in splits.values():
        for sentence in sentences:
            if sentence.tree is None:
                assert sentence.frames is None
                continue
            leaves = list(sentence.tree.leaves())
            assert tuple(leaf.children for leaf in leaves) == sentence.words
            assert sentence.tree.label == "TOP"
            spans = constituents(sentence.tree)
            assert restore(binarise(spans, len(leaves))) == spans
            assert not re.search(r"\([A-Z]+[-=][A-Z0-9]", str(sentence.tree))
            agreeing += sum(leaf.label == tag for leaf, tag in zip(leaves, sentence.tags, strict=True))
            words += len(leaves)
            for frame in sentence.frames:
                assert re.fullmatch(r".+\.(\d+|[A-Z]+)", frame.sense)
                assert not {"V", "C-V"} & {argument.label for argument in frame.arguments}
    assert agreeing / words > 0.99  # two editions' tags; words out of step would agree by chance only

    subset = small_subset(splits)
    assert {split: len(set(sentences)) for split, sentences in subset.items()} == {
        "train": 2000,
        "dev": 300,
        "test": 300,
    }
    tasks = [kind() for kind in STRUCTURED]
    assert all(task.annotated(sentence) for task in tasks for split in SPLITS for sentence in subset[split])
    documents = [{sentence.id.rpartition("-")[0] for sentence in subset[split]} for split in SPLITS]
    assert len(set().union(*documents)) == sum(map(len, documents))
