"""The program's face: commands, help, errors in one line, `mtl data`, `mtl predict`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from mtl.commands.main import COMMANDS, main
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from tasks.sentence import Sentence, Span


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_its_arguments(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*name.split(), "--help"])
    assert stopped.value.code == 0
    assert f"usage: mtl {name}" in capsys.readouterr().out


def test_help_prints_each_fields_docstring(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert "Padded subwords in a batch" in text
    assert "--gates.target_open" in text


def test_the_whole_configuration_can_be_printed(capsys):
    with pytest.raises(SystemExit):
        main(["train", "configs/joint.yaml", "--max_epochs=7", "--print_config"])
    text = capsys.readouterr().out
    assert "max_epochs: 7" in text
    assert "word_dropout: 0.2" in text


def test_an_option_and_its_value_may_be_two_words(capsys):
    with pytest.raises(SystemExit):
        main(
            [
                "train",
                "--from",
                "runs/x",
                "--seed",
                "7",
                "configs/dep.yaml",
                "--tasks",
                "pos,dep",
                "--print_config",
            ]
        )
    text = capsys.readouterr().out
    assert "init_from: runs/x" in text
    assert "seed: 7" in text
    assert "- pos\n- dep\n" in text


@pytest.mark.parametrize("file", sorted(Path("configs").glob("*.yaml")), ids=lambda file: file.name)
def test_every_configuration_file_is_whole(file, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(file), "--print_config"])
    assert stopped.value.code == 0
    assert "corpus:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "did you mean 'train'?"),
        (["data", "stat"], "did you mean 'data stats'?"),
        (["data", "stats", "nowhere"], "nowhere"),
        (["evaluate", "nowhere"], "not a run folder"),
        (["predict", "nowhere"], "not a run folder"),
        (["train", "nowhere.yaml"], "nowhere.yaml"),
        (["data", "toy", "--out=x", "--sede=1"], "did you mean 'seed'?"),
        (
            ["study", "configs/study/demo.yaml", "--seeds", "1"],
            "seeds: expected a list, for instance --seeds=[1]",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, said, capsys):
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["toy"], ["ewt5"], ["convert", "--train=conllu:x"], ["select", "x", "--ids=y"]]
)
def test_a_corpus_is_not_overwritten_unasked(command, tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text("mine")
    assert main(["data", *command, f"--out={tmp_path}"]) == 2
    errors = capsys.readouterr().err
    assert "holds a corpus already (train.jsonl)" in errors
    assert "--overwrite" in errors
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_convert_count_and_overwrite(tmp_path, capsys):
    """CoNLL-U and CoNLL-2003 of the same sentences become one corpus that every command takes."""
    rows = "1\tAnn\t_\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n2\tleft\t_\tVERB\tVBD\t_\t0\troot\t_\t_\n"
    for split in ("train", "dev"):
        (tmp_path / f"{split}.conllu").write_text(f"# sent_id = {split}-1\n{rows}\n")
        (tmp_path / f"{split}.txt").write_text("Ann B-PER\nleft O\n\nHm O\n")
    words = ["data", "convert", f"--out={tmp_path / 'mine'}"]
    for split in ("train", "dev"):
        words += [
            f"--{split}",
            f"conllu:{tmp_path}/{split}.conllu",
            f"--{split}=conll2003:{tmp_path}/{split}.txt",
        ]
    assert main(words) == 0
    assert f"train: 1 of {tmp_path}/train.conllu + 2 of {tmp_path}/train.txt make 2 sentences" in " ".join(
        capsys.readouterr().out.split()
    )
    first, second = read_jsonl(tmp_path / "mine" / "train.jsonl")
    assert (first.id, first.tags, first.entities) == ("train-1", ("NNP", "VBD"), (Span(0, 1, "PER"),))
    assert first.arcs is not None
    assert (second.words, second.arcs, second.entities) == (("Hm",), None, ())
    assert main(["data", "stats", str(tmp_path / "mine"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dev"]["dep"] == {"sentences": 1, "arcs": 2}
    again = [
        "data",
        "convert",
        f"--out={tmp_path / 'mine'}",
        "--format=conllu",
        f"--test={tmp_path}/dev.conllu",
    ]
    assert main(again) == 2
    assert main([*again, "--overwrite"]) == 0
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["test.jsonl"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to convert"),
        (["--train=x.conllu"], "in which format?"),
        (["--train=conlu:x"], "did you mean 'conllu'"),
        (["--train=x", "--format=conlu"], "did you mean 'conllu'"),
        (["--train=conllu:x"], "x: no such file"),
        (["--train=jsonl:OUT/train.jsonl", "--overwrite"], "is a source that --out"),
    ],
)
def test_what_cannot_be_converted(words, said, tmp_path, capsys):
    if "--overwrite" in words:
        write_jsonl(tmp_path / "train.jsonl", [Sentence(("a",))])
    words = [word.replace("OUT", str(tmp_path)) for word in words]
    assert main(["data", "convert", f"--out={tmp_path}", *words]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_toy_select_and_stats(tmp_path, capsys):
    assert main(["data", "toy", f"--out={tmp_path / 'toy'}", "--train=20", "--dev=5", "--test=5"]) == 0
    sentences = read_jsonl(tmp_path / "toy" / "train.jsonl")
    (tmp_path / "few.ids").write_text("".join(f"{sentence.id}\n" for sentence in sentences[3:6]))
    words = ["data", "select", str(tmp_path / "toy"), f"--ids={tmp_path / 'few.ids'}", f"--out={tmp_path}"]
    assert main(words) == 0
    assert read_jsonl(tmp_path / "few.jsonl") == sentences[3:6]
    capsys.readouterr()
    assert main(["data", "stats", str(tmp_path / "toy"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["train"]["sentences"] == 20
    assert main(["data", "stats", str(tmp_path / "toy")]) == 0
    assert "train" in capsys.readouterr().out


@pytest.fixture
def run(tmp_path, tiny_encoder, toy):
    """A finished, tiny run of all five tasks."""
    words = [
        "train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", f"--runs={tmp_path}", "--name=run",
        "--max_epochs=1", "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert main(words) == 0
    return tmp_path / "run"


def stdin(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [(b"", 0, "no words on standard input"), (b" \n\n", 0, "no words"), (b"K\xe4se", 2, "line 1: not UTF-8")],
)
def test_input_without_words_is_told_before_the_model_is_loaded(
    content, code, said, tmp_path, monkeypatch, capsys
):
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "status.json").write_text('{"state": "finished"}')
    monkeypatch.setattr("sys.stdin", stdin(content))
    assert main(["predict", str(tmp_path)]) == code
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_predict_and_evaluate(run, toy, tmp_path, monkeypatch, capsys):
    for given, output in (("text", "picture"), ("tokens", "conllu"), ("tokens", "json")):
        monkeypatch.setattr("sys.stdin", stdin(b"We ate a cat .\n\nThe dog saw a cat .\n"))
        capsys.readouterr()
        assert main(["predict", str(run), f"--input={given}", f"--output={output}"]) == 0
        text = capsys.readouterr().out
        assert "dog" in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["words"] for line in lines] == [
        ["We", "ate", "a", "cat", "."],
        ["The", "dog", "saw", "a", "cat", "."],
    ]
    assert all(
        line[layer] is not None for line in lines for layer in ("tags", "entities", "arcs", "tree", "frames")
    )
    out = tmp_path / "export"
    assert main(["evaluate", str(run), "--split=dev", f"--export={out}", f"--json_out={out / 's.json'}"]) == 0
    assert {path.name for path in out.iterdir()} == {
        "pos.tsv", "ner.conll", "dep.gold.conllu", "dep.pred.conllu", "con.gold.mrg", "con.pred.mrg",
        "srl.gold.props", "srl.pred.props", "s.json",
    }  # fmt: skip
    scores = json.loads((out / "s.json").read_text())
    kept = json.loads((run / "metrics.json").read_text())
    assert scores["dev"] == kept["dev"]


def test_unannotated_corpus_is_refused(run, tmp_path, toy, capsys):
    import dataclasses

    bare = [dataclasses.replace(s, frames=None) for s in read_jsonl(toy / "test.jsonl")]
    write_jsonl(tmp_path / "bare" / "test.jsonl", bare)
    assert main(["evaluate", str(run), f"--corpus={tmp_path / 'bare'}"]) == 2
    assert "annotated for srl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("seed: null", "seed cannot be null"),
        ("encoder: {name: null}", "encoder.name cannot be null"),
        ("dep: 3", "dep holds other keys, and cannot be '3'"),
        ("corpus: null", "corpus cannot be null"),
    ],
)
def test_a_file_with_values_that_no_key_has_is_refused_in_one_line(content, said, tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text(content + "\n")
    assert main(["train", str(tmp_path / "bad.yaml")]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1
