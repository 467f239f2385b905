"""`mtl show` on runs, encoders, sentences and corpora."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtl.commands.main import main
from mtl.corpora.formats.jsonl import read_jsonl
from tests.mtl.commands.runs_for_commands import made_run


@pytest.fixture(scope="module")
def run(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return made_run(tiny_encoder, folder / "toy", folder / "masked")


def test_a_sentence(tiny_encoder: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "head.svg"
    words = [
        "show",
        str(tiny_encoder),
        "L1H2",
        "--sentence=The dog saw \x1b[31m. It left.",
        f"--output={out}",
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed.count("attends most to") == 2
    assert printed.rstrip().endswith(f"wrote {out}")
    assert out.read_text().startswith("<?xml")
    assert main([*words[:-1], "--matrix"]) == 0
    assert " 1 The " in f" {capsys.readouterr().out}".replace("\n", " ")


def test_examples_of_a_run(run: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "head.png"
    options = ["--split=dev", "--examples=2", f"--output={out}"]
    assert main(["show", str(run), "L0H1", "--relation=det", *options]) == 0
    printed = capsys.readouterr().out
    assert "shown: det (dep)" in printed
    assert printed.count("L0H1, surest hits") + printed.count("L0H1, surest misses") in (2, 3, 4)
    assert ": missed" in printed
    assert out.stat().st_size > 1000
    name = next(line for line in printed.splitlines() if "surest misses" in line).rpartition(", ")[2].strip()
    assert main(["show", str(run), "L0H1", "--relation=det", "--split=dev", f"--id={name}"]) == 0
    printed = capsys.readouterr().out
    assert f"L0H1, {name}" in printed
    sentence = next(each for each in read_jsonl(run.parent / "toy" / "dev.jsonl") if each.id == name)
    rows = [line.split("│")[1].strip() for line in printed.splitlines() if "det of " in line]
    labels = sentence.arcs.relations
    assert rows == [word for word, label in zip(sentence.words, labels, strict=True) if label == "det"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["L0H9", "--sentence=We"], "L0H9: the model has layers 0 to 2 of heads 0 to 3"),
        (["L0", "--sentence=We"], "L0 is a whole layer: choose one of its heads, such as L0H0"),
        (["L0H0"], "is not a run, and has no corpus of its own: use --sentence or --corpus"),
        (["L0H0", "--sentence= "], "--sentence has no words"),
        (["L0H0", "--sentence=We", "--id=x"], "--id is for sentences of a corpus"),
        (["L0H0", "--sentence=We", "--examples=2"], "--examples is for sentences of a corpus"),
        (["L0H0", "--sentence=We", "--split=dev"], "--split is for sentences of a corpus"),
        (["L0H0", "--sentence=We", "--sentences=5"], "--sentences is for sentences of a corpus"),
        (["L0H0", "--sentence=We", "--final_special"], "--final_special is for sentences of a corpus"),
        (["L0H0", "--corpus=TOY", "--language=de"], "--language is that of --sentence: add it"),
        (["L0H0", "--sentence=We", "--output=x.gif"], "x.gif: use a file that ends in .pdf, .png, .svg"),
        (["L0H0", "--sentence=We", "--task=dep"], "--task=dep: an encoder has no tasks"),
        (["L0H0", "--sentence=We", "--least=2"], "--least=2.0: use a number from 0 to 1"),
        (["L0H0", "--examples=0"], "--examples=0: use at least 1"),
        (["L0H0", "--corpus=TOY", "--relation=nsub"], "no arc of the corpus is nsub: it has dep (acl"),
        (["L0H0", "--corpus=TOY", "--task=pos"], "no arc of the corpus is pos: it has dep ("),
        (["L0H0", "--corpus=TOY", "--id=nowhere"], "--id=nowhere: none of the 30 sentences"),
        (["L0H0", "--sentence=We", "--language=xy"], "language=xy: no such language"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_one_line(words, message, tiny_encoder: Path, toy: Path, capsys) -> None:
    words = [word.replace("TOY", str(toy)) for word in words]
    assert main(["show", str(tiny_encoder), *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "━" not in line]
    assert len(lines) == 1
    assert message in lines[0]


def test_a_sentence_too_long_for_a_picture_is_one_line(tiny_encoder: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "x.pdf"
    assert main(["show", str(tiny_encoder), "L0H0", "--sentence", "we " * 100, f"--output={out}"]) == 2
    assert "a sentence of 100 words does not fit into a picture" in capsys.readouterr().err
    assert not out.exists()
