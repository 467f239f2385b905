"""GLUE's files: every layout, every fault, and the real files if they are there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mtl.config.schema import CorpusConfig, Files
from mtl.corpora.folder import convert_corpus, corpus_stats
from mtl.corpora.formats.glue import NO_LABEL, read_glue
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.formats.lines import CONTROLS
from mtl.corpora.load import kinds_of, load_split, only
from mtl.corpora.readers import merge, read_sentences
from mtl.errors import InputError
from mtl.tasks.sentence import Sentence
from tests.conftest import SHARED

GLUE = SHARED / "corpora" / "glue"


def written(folder: Path, text: str, name: str = "dev.tsv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


LAYOUTS = {
    "cola": ("gj04\t1\t\tWe ate.\r\nbc01\t0\t*\tAte we.\n", "1", ("We", "ate."), None),
    "sst2": ('sentence\tlabel\na "bad film \t0\nfine\t1', "0", ("a", '"bad', "film"), None),
    "mrpc": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tHe said "no.\tNo, he said.\r\n',
        "1", ("He", "said", '"no.', "No,", "he", "said."), 3,
    ),
    "rte": ("sentence1\tsentence2\tlabel\nA b.\tA.\tentailment", "entailment", ("A", "b.", "A."), 2),
    "qnli": (
        'index\tquestion\tsentence\tlabel\n0\tWho?\t"He.\tnot_entailment\n',
        "not_entailment", ("Who?", '"He.'), 1,
    ),
    "mnli": (
        "pairID\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\t(x)\tA.\tB c.\tneutral\tentailment\n",
        "entailment", ("A.", "B", "c."), 1,
    ),
    "stsb": ("index\tsentence1\tsentence2\tscore\n0\tA.\tB.\t3.800\n", 3.8, ("A.", "B."), 1),
    "classify": ("sentence\tlabel\nGo!\torder\n", "order", ("Go!",), None),
    "regress": ("label\tsentence1\tsentence2\n-1e-1\tGo!\tStay!\n", -0.1, ("Go!", "Stay!"), 1),
}  # fmt: skip


@pytest.mark.parametrize("task", sorted({*LAYOUTS} - {"cola"}))
@pytest.mark.parametrize("columns", [2, 3, 4, 5])
def test_only_colas_files_may_lack_a_header(columns: int, task: str, tmp_path) -> None:
    """A table of reviews with four columns is not CoLA's, whatever its second column holds."""
    hint = r" \(CoLA's own files have no such line: use glue-cola\)" if columns == 4 else ""
    for number, second in enumerate(("good", "1", "0", "3.5", "-")):
        rows = ("\t".join((f"r{n}", second, str(n), "A film.", "no")[:columns]) for n in range(3))
        path = written(tmp_path, "".join(f"{row}\n" for row in rows), f"{number}.tsv")
        with pytest.raises(InputError, match=f"{path}:1: no column of sentences for {task}; .*{hint}$"):
            read_glue(path, task)


@pytest.mark.parametrize("task", LAYOUTS)
def test_every_layout(task, tmp_path) -> None:
    text, value, words, second = LAYOUTS[task]
    first = read_glue(written(tmp_path, text), task)[0]
    line = 1 if task == "cola" else 2
    assert first == Sentence(words, layers={task: value}, second=second, id=f"{task}-dev-{line:06d}")
    assert first.place == f"{tmp_path}/dev.tsv:{line}"


def test_where_no_label_was_agreed_on_the_sentence_is_not_annotated(tmp_path) -> None:
    header = "sentence1\tsentence2\tgold_label\n"
    sentences = read_glue(written(tmp_path, f"{header}a\tb\t-\n\na\tc\tneutral\n"), "mnli")
    assert [sentence.layers for sentence in sentences] == [{}, {"mnli": "neutral"}]
    assert [sentence.notes for sentence in sentences] == [(NO_LABEL,), ()]


@pytest.mark.parametrize("text", ["", "\n\n", "sentence\tlabel\n"])
def test_files_without_a_sentence(text, tmp_path) -> None:
    with pytest.raises(InputError, match="no sentence in it"):
        read_sentences(written(tmp_path, text), "glue-sst2")


def test_control_characters_are_taken_out(tmp_path) -> None:
    text = "sentence\tlabel\na\x92b \x07 c\x1fd\u2028e\x85f\t1\n"
    assert read_glue(written(tmp_path, text), "sst2")[0].words == ("ab", "c", "d", "e", "f")


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("sst2", "index\tsentence\n0\tfine\n", "dev.tsv:1: no column of labels for sst2 (gold_label, label,"),
        ("cola", "index\tsentence\n0\tfine\n", "GLUE's own test files have none"),
        (
            "sst2",
            "words\tlabel\nfine\t1\n",
            "dev.tsv:1: no column of sentences for sst2; name them sentence or",
        ),
        (
            "mrpc",
            "sentence\tlabel\nfine\t1\n",
            "name them sentence1 and sentence2 or #1 String and #2 String",
        ),
        ("cola", "gj04\t1\tWe ate.\n", "dev.tsv:1: no column of sentences for cola"),
        (
            "cola",
            "gj04\t1\t\tWe ate.\ngj04\t1\tWe ate.\n",
            "dev.tsv:2: 3 fields separated by tabs, where the",
        ),
        (
            "cola",
            "gj04\t1\t\tWe ate.\ngj04\t2\t\tWe ate.\n",
            "dev.tsv:2: the label of cola: '2' is none of 0, 1",
        ),
        ("cola", "gj04\t1\t\tWe ate.\ngj04\t\t\tWe ate.\n", "dev.tsv:2: the label of cola: it is empty"),
        ("rte", "sentence1\tsentence2\tlabel\na\tb\tyes\n", "dev.tsv:2: the label of rte: 'yes' is none of"),
        (
            "stsb",
            "sentence1\tsentence2\tscore\na\tb\tfour\n",
            "dev.tsv:2: the label of stsb: 'four' is no number",
        ),
        ("stsb", "sentence1\tsentence2\tscore\na\tb\tinf\n", "is no number from"),
        ("mrpc", "sentence1\tsentence2\tlabel\na\t \t1\n", "dev.tsv:2: a sentence without words"),
        (
            "classify",
            "sentence\tlabel\na\tvery good\n",
            "dev.tsv:2: the label of classify: the label 'very good'",
        ),
        ("cola", "src\t2\t\tA sentence .\n", "dev.tsv:1: the label of cola: '2' is none of 0, 1"),
        ("sst2", "text,label\na,1\n", "dev.tsv:1: no column of sentences"),
        ("sst2", "text\tlabel\tlabel\na\t1\t0\n", "dev.tsv:1: 2 columns are called 'label'"),
        *(
            (
                "stsb",
                f"sentence1\tsentence2\tscore\na\tb\t{number}\n",
                f"dev.tsv:2: the label of stsb: {what}",
            )
            for number, what in (
                ("-1", "-1 is outside 0 to 5"),
                ("5.01", "5.01 is outside 0 to 5"),
                ("nan", "'nan' is no number"),
                ("1_0", "'1_0' is no number"),
                ("\uff13", "'\uff13' is no number"),
                ("4,5", "'4,5' is no number"),
            )
        ),
    ],
)
def test_faults_are_one_line_with_file_and_line(task, text, message, tmp_path) -> None:
    with pytest.raises(InputError) as caught:
        read_glue(written(tmp_path, text), task)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/dev.tsv:")


def test_bytes_that_are_no_utf8(tmp_path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_bytes(b"sentence\tlabel\na\xff\t1\n")
    with pytest.raises(InputError, match=r"dev\.tsv:2: not UTF-8"):
        read_glue(path, "sst2")


def test_glue_under_a_task_has_its_labels(tmp_path) -> None:
    """Each task's file with its own labels; the same text in two files is one sentence with both."""
    cola = written(tmp_path, "x\t1\t\tWe ate.\nx\t0\t*\tAte we.\n", "cola.tsv")
    sst2 = written(tmp_path, "sentence\tlabel\nWe ate.\t0\n", "sst2.tsv")
    mrpc = written(tmp_path, "sentence1\tsentence2\tlabel\nWe\tate.\t1\n", "mrpc.tsv")
    config = CorpusConfig(
        path=None,
        **{path.stem: Files(dev=str(path), format="glue") for path in (cola, sst2, mrpc)},
    )
    first, second, pair = load_split(config, ("cola", "sst2", "mrpc"), "dev")
    assert first.layers == {"cola": "1", "sst2": "0"}
    assert second.layers == {"cola": "0"}
    assert (pair.words, pair.second, pair.layers) == (first.words, 1, {"mrpc": "1"})
    assert only(first, kinds_of(("sst2", "pos"))).layers == {"sst2": "0"}
    assert only(first, kinds_of(("pos",))).layers == {}
    with pytest.raises(InputError, match="unknown format 'glu'"):
        load_split(CorpusConfig(path=None, cola=Files(dev=str(cola), format="glu")), ("cola",), "dev")
    with pytest.raises(InputError, match="glue does not say which task the labels are of"):
        read_sentences(cola, "glue")


def test_convert_and_stats(tmp_path) -> None:
    cola = written(tmp_path, "x\t1\t\tWe ate.\nx\t0\t*\tAte we.\n", "cola.tsv")
    stsb = written(tmp_path, "sentence1\tsentence2\tscore\nWe\tate.\t2.5\n", "stsb.tsv")
    convert_corpus({"train": [f"glue-cola:{cola}", f"glue-stsb:{stsb}"]}, tmp_path / "out")
    sentences = read_jsonl(tmp_path / "out" / "train.jsonl")
    assert sentences == merge([read_glue(cola, "cola"), read_glue(stsb, "stsb")])
    assert hash(sentences[2]) == hash(read_glue(stsb, "stsb")[0])
    figures = corpus_stats(tmp_path / "out")["train"]
    assert figures["cola"] == {"sentences": 2, "labels": 2}
    assert figures["stsb"] == {"sentences": 1, "labels": 1}
    assert "sst2" not in figures
    assert figures["sentences"] == 3


@pytest.fixture(scope="module")
def glue() -> Path:
    if not GLUE.is_dir():
        pytest.skip(f"no GLUE files at {GLUE}: they are not part of the repository")
    return GLUE


@pytest.mark.parametrize(
    ("task", "file", "counts"),
    [
        ("cola", "CoLA/in_domain_train.tsv", {"1": 6023, "0": 2528}),
        ("cola", "CoLA/in_domain_dev.tsv", {"1": 365, "0": 162}),
        ("cola", "CoLA/out_of_domain_dev.tsv", {"1": 354, "0": 162}),
        ("sst2", "SST-2/train.tsv", {"1": 3610, "0": 3310}),
        ("sst2", "SST-2/dev.tsv", {"1": 444, "0": 428}),
        ("sst2", "SST-2/test.tsv", {"1": 909, "0": 912}),
        ("mrpc", "MRPC/msr_paraphrase_train.txt", {"1": 2753, "0": 1323}),
        ("mrpc", "MRPC/msr_paraphrase_test.txt", {"1": 1147, "0": 578}),
        ("rte", "RTE/train.tsv", 1244),
        ("rte", "RTE/dev.tsv", 139),
        ("rte", "RTE/test.tsv", 1384),
    ],
)
def test_the_real_files(glue, task, file, counts) -> None:
    sentences = read_glue(glue / file, task)
    found = Counter(sentence.layer(task) for sentence in sentences)
    assert sum(found.values()) == counts if isinstance(counts, int) else found == counts
    assert all((sentence.second is not None) == (task in ("mrpc", "rte")) for sentence in sentences)


def test_control_characters_that_are_left_out_are_counted(tmp_path) -> None:
    path = written(tmp_path, "text\tlabel\nGo\x07 on!\torder\nStay\torder\n")
    first, second = read_glue(path, "classify")
    assert (first.words, first.notes, second.notes) == (("Go", "on!"), (CONTROLS,), ())
    for name, text in (("a.en", "Go\x07\nStay\n"), ("a.de", "Los\nBleib\x01\n")):
        written(tmp_path, text, name)
    pairs = read_sentences(f"{tmp_path}/a.en:{tmp_path}/a.de", "parallel")
    assert [pair.notes for pair in pairs] == [(CONTROLS,), (CONTROLS,)]
