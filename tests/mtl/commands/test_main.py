"""The program as users see it: commands, help, errors on one line, `mtl data`, `mtl predict`."""

from __future__ import annotations

import errno
import importlib
import io
import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from mtl.commands.command_table import COMMANDS, arguments_for
from mtl.commands.main import main
from mtl.commands.train import print_run
from mtl.config.keys import hints_of
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.runs.folder.run import Run
from mtl.tasks.sentence import Arcs, Sentence, Span
from tests.kit.absent import may_be_absent


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_its_arguments(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*name.split(), "--help"])
    assert stopped.value.code == 0
    assert f"usage: mtl {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--overwrite"], "unknown key 'overwrite'; see mtl probe --help"),
        (["--splt"], "unknown key 'splt': did you mean 'split'?"),
        (["--split"], "--split needs a value: --split=VALUE"),
    ],
)
def test_an_option_without_a_value_is_named_as_unknown_or_short_of_it(words, message, capsys):
    assert main(["probe", "minilm", *words]) == 2
    assert capsys.readouterr().err == f"mtl: {message}\n"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("study", "sweep")])
def test_another_commands_key_for_the_place_of_the_result_leads_to_this_ones(name, capsys):
    known = hints_of(arguments_for(name).keys) or hints_of(arguments_for(name).kind)
    for key in {"out", "output", "name", "json_out"} - known.keys():
        assert main([*name.split(), f"--{key}=x"]) == 2
        said = capsys.readouterr().err
        here = re.findall(r"'(\w+)'", said.partition(": here")[2])
        assert {*here} <= known.keys(), said
        assert here or not {"out", "json_out"} & known.keys() or "did you mean" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "data ewt5 --out=OUT --source=x --cache=y",
            "--cache is for downloads, and --source is read instead",
        ),
        (
            "data convert --out=OUT --train=jsonl:x --format=conllu",
            "--format=conllu is for paths that name no",
        ),
        ("ablate x --heads=L0H1 --close=layer", "--close has no effect with --heads or --mask"),
        ("ablate x --mask=y --close=layer", "--close has no effect with --heads or --mask"),
        ("compare x --against=y --names=[a]", "--names=[a]: use two different names"),
        ("compare x --against=y --names=[a,a]", "--names=[a,a]: use two different names"),
        ("prune ENC --out=OUT --heads=L0H1 --task=pos", "--task of an encoder chooses a mask of --mask=FILE"),
        ("prune ENC --out=OUT --mask=x --task=[pos,dep]", "--task of an encoder chooses a mask"),
        (
            "collaborate ENC --out=OUT --dim=8 --lengths=[] --rounds=2",
            "--rounds has no effect without --length",
        ),
        (
            "curve x --by=[] --targets=[2] --steps=3",
            "--steps has no effect without an order: use --by, or lea",
        ),
        ("curve x --by=[] --targets=[2] --keep=[0.5]", "--keep has no effect without an order"),
        ("curve x --by=[] --targets=[2] --cut", "--cut has no effect without an order"),
        ("curve x --by=[] --targets=[2] --epochs=1", "--epochs has no effect without an order"),
        ("curve x --by=[] --gates=[y] --at_least=1", "--at_least has no effect without an order"),
        ("curve x --by=importance --draws=2", "--draws has no effect without random orders"),
        (
            "curve x --by=[random,fisher] --rank_split=test",
            "--rank_split has no effect without an order that",
        ),
        ("curve x --by=random --rank_sentences=9", "--rank_sentences has no effect without an order that"),
        ("curve x --by=-fisher --normalise", "--normalise has no effect without an order that is ranked"),
        ("curve x --batches=[1]", "--batches has no effect without --cut: use both, or leave it out"),
        ("curve x --rounds=1", "--rounds has no effect without --cut"),
        ("curve x --train=queries", "--train has no effect without --epochs"),
        ("show ENC L0H0 --corpus=x --id=y --examples=2", "--examples has no effect with --id"),
        (
            "show ENC L0H0 --sentence=We --task=pos --masks=false",
            "--task chooses a mask: leave it out, or --m",
        ),
        ("show ENC L0H0 --sentence=We --least=0.5", "--least is for pictures of arcs (--output=FILE.svg, no"),
        ("show ENC L0H0 --sentence=We --least=0.5 --output=OUT/x.csv", "--least is for pictures of arcs"),
        ("show ENC L0H0 --sentence=We --least=0.5 --output=OUT/x.svg --matrix", "--least is for pictures of"),
        (
            "show minilm L0H0 --sentence=We --revision=v1",
            "is a folder; revisions are of repositories on the h",
        ),
        ("study x --status --jobs=2", "--jobs has no effect with --status: leave it out"),
        ("study x --status --engine=ray --gpus=0.5", "--engine has no effect with --status"),
        ("study x --status --dry-run", "--dry_run has no effect with --status"),
        ("study x --status --again", "--again has no effect with --status: leave it out"),
        ("sweep OUT --status --name=x", "--name has no effect with --status of a folder"),
        ("sweep OUT --status --sweeps=x", "--sweeps has no effect with --status of a folder"),
    ],
)
def test_an_option_without_effect_beside_others_is_refused(words, message, tiny_encoder, tmp_path, capsys):
    said = [word.replace("OUT", str(tmp_path)).replace("ENC", str(tiny_encoder)) for word in words.split()]
    if may_be_absent(said):
        pytest.skip("the feature of this command is missing")
    assert main(said) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def helped(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    assert stopped.value.code == 0
    return capsys.readouterr().out


def test_help_shows_the_keys_that_are_set_first_and_where_the_rest_is(capsys):
    text = helped(capsys, "train", "--help")
    assert sum(line.startswith("  --") for line in text.splitlines()) == 10
    assert "--gates.target_open" in text
    assert "--from=" in text
    assert "--optimizer.warmup" not in text
    assert len(text.splitlines()) < 45
    optimizer = helped(capsys, "train", "--help=optimizer")
    assert "--optimizer.warmup=0.1" in optimizer
    assert "Share of the updates in which the rates rise linearly." in " ".join(optimizer.split())
    assert "--gates.penalty" not in optimizer
    everything = helped(capsys, "train", "--help=all")
    assert all(
        f"--{key}" in everything for key in ("batch.tokens", "gates.penalty", "corpus.pos", "dep.arc_dim")
    )
    assert "padded subwords per batch" in everything
    assert "(linear, cosine, constant, inverse_sqrt)" in everything
    assert all(text in everything for text in ("--corpus.files.columns", "The keys of corpus.files are also"))
    assert "--corpus.ner.columns" not in everything
    assert "--corpus.ner.columns" in helped(capsys, "train", "--help=corpus.ner")
    assert len(helped(capsys, "train", "--help=corpus").split()) < 600
    assert main(["train", "--help=optimzer"]) == 2
    assert "did you mean 'optimizer'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_no_noise_of_types(name, capsys):
    words = [*name.split(), "--help=all" if COMMANDS[name].file else "--help"]
    text = helped(capsys, *words)
    for noise in ("type:", "Literal", "<class", "Path to a configuration", "CONFIG", "NoneType"):
        assert noise not in text.replace("[CONFIG.yaml …]", "")
    described = [line for line in text.splitlines() if line.startswith("  --")]
    assert all(len(line) <= 100 for line in text.splitlines())
    assert described or name == "completion"


def test_every_key_and_option_is_described(capsys):
    for name, command in COMMANDS.items():
        text = helped(capsys, *name.split(), "--help=all" if command.file else "--help")
        lines = text.splitlines()
        for line, after in zip(lines, [*lines[1:], ""], strict=True):
            if line.startswith("  --"):
                assert len(line.split()) > 1 or after.startswith(" " * 10), (name, line)


def test_usage_begins_with_what_is_given_by_place(capsys):
    assert helped(capsys, "study", "--help").startswith("usage: mtl study STUDY.yaml [--KEY=VALUE …]")
    assert helped(capsys, "figure", "--help").startswith("usage: mtl figure NAME RUNS … --out=OUT [--OPTION")
    assert "  --dry-run" in helped(capsys, "study", "--help")


def test_help_of_a_command_has_two_spellings(capsys):
    assert helped(capsys, "help") == helped(capsys, "--help")
    assert helped(capsys, "help", "data", "stats") == helped(capsys, "data", "stats", "--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_runs_a_model_says_how_many_threads_it_uses(name, capsys):
    """By an option, or by the variable, which torch reads at its start."""
    text = helped(capsys, *name.split(), "--help=all" if COMMANDS[name].file else "--help")
    assert ("OMP_NUM_THREADS" in text) == ("accelerator" in text)


def test_the_version_is_printed(capsys):
    assert helped(capsys, "--version") == f"mtl {version('mtl-heads')}\n"


def _no_memory() -> RuntimeError:
    """The error that torch raises on the CPU."""
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60)
    return raised.value


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (PermissionError(errno.EACCES, "", "/x"), 2, "mtl: /x: permission denied: use another path"),
        (OSError(errno.EROFS, "", "/x"), 2, "mtl: /x: the file system is read-only"),
        (NotADirectoryError(errno.ENOTDIR, "", "/x"), 2, "mtl: /x: a part of this path is a file"),
        (OSError(errno.ENAMETOOLONG, "", "/x"), 2, "mtl: /x: the name is too long"),
        (IsADirectoryError(errno.EISDIR, "", "/x"), 2, "mtl: /x: it is a folder"),
        (OSError(errno.EFBIG, "", "/x"), 2, "mtl: /x: larger than a file may be here"),
        (OSError(errno.ESTALE, "", "/x"), 2, "mtl: /x: the file server has lost it"),
        (OSError(errno.ENOSPC, "", "/x"), 2, "mtl: /x: the disk is full"),
        (MemoryError(), 1, "mtl: out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes\nat x"), 1,
         "mtl: out of memory ([enforce fail]"),
        (_no_memory(), 1, "mtl: out of memory ([enforce fail"),
        (KeyboardInterrupt(), 130, "mtl: interrupted; run the command again\n"),
    ],
)  # fmt: skip
def test_errors_that_the_user_can_mend_are_one_line(error, code, message, monkeypatch, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr("mtl.corpora.folder.corpus_stats", fail)
    assert main(["data", "stats", "x"]) == code
    errors = capsys.readouterr().err
    assert errors.startswith(message)
    assert errors.count("\n") == 1


@pytest.mark.parametrize("words", [["train", "--tasks=[pos]"], ["data", "toy", "--out=new"], ["--help"]])
def test_a_current_folder_that_was_removed_is_said(words, tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(words) == 2
    assert capsys.readouterr().err == "mtl: the current folder was removed: go to another one\n"


@pytest.mark.parametrize("line", ['int(os.environ["LIBRARY_X"])', "read('X')"])
def test_a_library_that_a_variable_keeps_from_being_imported_is_named_with_it(
    line, tmp_path, monkeypatch, capsys
):
    package = tmp_path / "site-packages" / "library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        f"import os\ndef read(name): return int(os.environ[f'LIBRARY_{{name}}'])\n{line}\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr("mtl.corpora.folder.corpus_stats", lambda *_: importlib.import_module("library"))
    monkeypatch.setenv("LIBRARY_X", "many")
    assert main(["data", "stats", "x"]) == 2
    assert capsys.readouterr().err == (
        "mtl: library cannot be imported (ValueError: invalid literal for int() with base 10: 'many'): "
        "correct or unset LIBRARY_X='many'\n"
    )
    monkeypatch.delenv("LIBRARY_X")
    with pytest.raises(KeyError):  # its own defect
        main(["data", "stats", "x"])


def test_other_errors_keep_their_traceback(monkeypatch):
    def fail(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr("mtl.corpora.folder.corpus_stats", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        main(["data", "stats", "x"])


@pytest.mark.parametrize(("name", "resumes"), [("train", True), ("study", True), ("evaluate", False)])
def test_an_interrupted_command_says_whether_it_can_be_resumed(name, resumes, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("mtl.commands.main._run", interrupt)
    assert main([name, "x"]) == 130
    assert ("to resume" in capsys.readouterr().err) == resumes


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["data", "toy", f"--out={tmp_path / 'file' / 'x'}", "--train=1", "--dev=1", "--test=1"]) == 2
    errors = capsys.readouterr().err
    assert str(tmp_path / "file") in errors
    assert errors.count("\n") == 1


def test_places_are_judged_before_models_and_corpora_are_read(tmp_path, capsys):
    """Neither the run's model nor a corpus exists, so that only the place for output can be at fault."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    run, study, sweep = tmp_path / "run", tmp_path / "study.yaml", tmp_path / "sweep.yaml"
    run.mkdir()
    (run / "config.yaml").write_text("tasks: [pos]\n")
    study.write_text(
        "train: {corpus: {path: nowhere}, tasks: [pos]}\ngrid: [{setups: [STL], masks: [none]}]\n"
    )
    sweep.write_text(
        "command: [mtl, train, --corpus.path=nowhere, --tasks=pos, '${args}']\nmethod: grid\n"
        "metric: {name: dev/mean, goal: maximize}\nparameters: {seed: {values: [1, 2]}}\n"
    )
    below = tmp_path / "file" / "x"
    for words in (
        ["evaluate", str(run), f"--json_out={below}"],
        ["evaluate", str(run), f"--export={tmp_path / 'file'}"],
        ["evaluate", str(run), f"--json_out={tmp_path / 'folder'}"],
        ["prune", str(run), f"--out={below}"],
        ["export", str(run), f"--out={below}"],
        ["collaborate", str(run), "--dim=8", f"--out={below}"],
        ["study", str(study), f"--studies={below}"],
        ["sweep", str(sweep), "--local", f"--sweeps={below}"],
    ):
        if may_be_absent(words):
            continue
        assert main(words) == 2
        errors = capsys.readouterr().err
        assert "a part of this path is a file" in errors or "it is a folder, not a file" in errors, words
        assert errors.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_the_whole_configuration_can_be_printed(capsys):
    with pytest.raises(SystemExit):
        main(["train", "configs/joint.yaml", "--max_epochs=7", "--print_config"])
    text = capsys.readouterr().out
    assert "max_epochs: 7" in text
    assert "word_dropout: null" in text


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
    ("words", "message"),
    [
        (["trian"], "did you mean 'train'?"),
        (["data", "stat"], "did you mean 'data stats'?"),
        (["data", "stats", "nowhere"], "nowhere"),
        (["evaluate", "nowhere"], "not a run folder"),
        (["predict", "nowhere"], "not a run folder"),
        (["train", "nowhere.yaml"], "nowhere.yaml"),
        (["data", "toy", "--out=x", "--sede=1"], "did you mean 'seed'?"),
        (["report", "nowhere", "--out="], "out: expected a path or null, not ''"),
        (
            ["study", "configs/study/toy.yaml", "--seeds", "one"],
            "seeds: expected a list, each a whole number, not [one]",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, capsys):
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_a_finished_run_without_scores_says_how_to_get_them(tmp_path, capsys):
    print_run(Run(tmp_path))
    assert capsys.readouterr().out == (
        f"{tmp_path} has no metrics.json: 'mtl evaluate {tmp_path}' scores its model again\n"
    )


@pytest.mark.parametrize(
    "command", [["toy"], ["ewt5"], ["ewt10"], ["convert", "--train=conllu:x"], ["select", "x", "--ids=y"]]
)
def test_a_corpus_is_not_overwritten_unasked(command, tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text("mine")
    assert main(["data", *command, f"--out={tmp_path}"]) == 2
    errors = capsys.readouterr().err
    assert "already holds a corpus (train.jsonl)" in errors
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
    assert first.arcs == Arcs((2, 0), ("nsubj", "root"))
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
    assert "earlier one" not in capsys.readouterr().out
    (tmp_path / "dev.conllu").write_text(f"# sent_id = 1\n{rows}\n# sent_id = 1\n{rows}\n{rows}\n{rows}\n")
    assert main([*again, f"--dev={tmp_path}/dev.conllu", "--overwrite"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "dev: 1 sentence with the id of an earlier one" in output
    assert "test: 2 sentences with the id of an earlier one: 'mtl data select' needs unique ids" in output
    made_up = [
        each.id for split in ("dev", "test") for each in read_jsonl(tmp_path / "mine" / f"{split}.jsonl")[2:]
    ]
    assert made_up == ["dev-0003", "dev-0004", "dev-0003-2", "dev-0004-2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to convert"),
        (["--train=x.conllu"], "in which format?"),
        (["--train=conlu:x"], "did you mean 'conllu'"),
        (["--train=x", "--format=conlu"], "did you mean 'conllu'"),
        (["--train=conllu:x"], "x: no such file"),
        (["--train=jsonl:OUT/train.jsonl", "--overwrite"], "is a source that --out"),
    ],
)
def test_what_cannot_be_converted(words, message, tmp_path, capsys):
    if "--overwrite" in words:
        write_jsonl(tmp_path / "train.jsonl", [Sentence(("a",))])
    words = [word.replace("OUT", str(tmp_path)) for word in words]
    assert main(["data", "convert", f"--out={tmp_path}", *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_toy_select_and_stats(tmp_path, capsys):
    assert main(["data", "toy", f"--out={tmp_path / 'toy'}", "--train=20", "--dev=5", "--test=5"]) == 0
    sentences = read_jsonl(tmp_path / "toy" / "train.jsonl")
    (tmp_path / "few.ids").write_text("".join(f"{sentence.id}\n" for sentence in sentences[3:6]))
    words = ["data", "select", str(tmp_path / "toy"), f"--ids={tmp_path / 'few.ids'}", f"--out={tmp_path}"]
    assert main(words) == 0
    assert read_jsonl(tmp_path / "few.jsonl") == sentences[3:6]
    words = ["data", "select", str(tmp_path / "toy"), f"--out={tmp_path / 'drawn'}"]
    assert main([*words, "--train=4", "--dev=2"]) == 0
    assert "drawn: no test.jsonl, which 'mtl train' needs in a folder (--test)" in capsys.readouterr().out
    assert len(read_jsonl(tmp_path / "drawn" / "train.jsonl")) == 4
    assert main([*words, "--train=4", "--dev=2", "--test=2", "--overwrite"]) == 0
    assert "needs" not in capsys.readouterr().out
    assert main(words) == 2
    assert "or say how many to draw" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["data", "stats", str(tmp_path / "toy"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["train"]["sentences"] == 20
    assert main(["data", "stats", str(tmp_path / "toy")]) == 0
    assert "train" in capsys.readouterr().out


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_encoder, few):
    """A finished, tiny run of all five tasks."""
    folder = tmp_path_factory.mktemp("runs")
    words = [
        "train", f"--corpus.path={few}", f"--encoder.name={tiny_encoder}", f"--runs={folder}", "--name=run",
        "--max_epochs=1", "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert main(words) == 0
    return folder / "run"


def stdin(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [(b"", 0, "no words in standard input"), (b" \n\n", 0, "no words"), (b"K\xe4se", 2, "line 1: not UTF-8")],
)
def test_input_without_words_is_told_before_the_model_is_loaded(
    content, code, message, tmp_path, monkeypatch, capsys
):
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "status.json").write_text('{"state": "finished"}')
    monkeypatch.setattr("sys.stdin", stdin(content))
    assert main(["predict", str(tmp_path)]) == code
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_a_run_has_a_log_of_what_was_printed(run):
    lines = (run / "log.txt").read_text().splitlines()
    assert any(f" {run}: training " in line for line in lines)
    assert any(" epoch " in line and "loss" in line for line in lines)


def test_predict_and_evaluate(run, tmp_path, monkeypatch, capsys):
    printed = {}
    kinds = (("text", "picture"), ("tokens", "conllu"), ("text", "json"), ("tokens", "json"))
    for given, output in kinds:
        monkeypatch.setattr("sys.stdin", stdin(b"We ate a cat .\n\nThe dog saw a cat .\n"))
        capsys.readouterr()
        assert main(["predict", str(run), f"--input={given}", f"--output={output}"]) == 0
        printed[given, output] = capsys.readouterr().out
        assert "dog" in printed[given, output]
    # The text as it was written, which translation models read.
    first, empty, _ = (json.loads(line) for line in printed["text", "json"].splitlines())
    assert (empty["id"], empty["words"], empty["skipped"]) == ("2", [], "an empty line")
    assert (first["text"], first["words"]) == ("We ate a cat .", ["We", "ate", "a", "cat", "."])
    lines = [json.loads(line) for line in printed["tokens", "json"].splitlines()]
    del lines[1]  # the empty one
    assert not any("text" in line for line in lines)
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
        "srl.gold.props", "srl.pred.props", "ud.gold.conllu", "ud.pred.conllu", "s.json",
    }  # fmt: skip
    scores = json.loads((out / "s.json").read_text())
    kept = json.loads((run / "metrics.json").read_text())
    assert scores["dev"] == kept["dev"]


def test_tasks_that_a_corpus_is_not_annotated_for_are_named(run, tmp_path, few, capsys):
    import dataclasses

    bare = [dataclasses.replace(s, frames=None) for s in read_jsonl(few / "test.jsonl")]
    write_jsonl(tmp_path / "bare" / "test.jsonl", bare)
    assert main(["evaluate", str(run), f"--corpus={tmp_path / 'bare'}"]) == 0
    assert "not scored: srl: no test sentence is annotated for it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("seed: null", "seed cannot be null"),
        ("encoder: {name: null}", "encoder.name cannot be null"),
        ("dep: 3", "dep holds other keys, and cannot be '3'"),
        ("corpus: null", "corpus cannot be null"),
        ("seeed: 1", "unknown key 'seeed': did you mean 'seed'?"),
    ],
)
def test_a_file_with_values_that_no_key_has_is_refused_in_one_line(content, message, tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text(content + "\n")
    (tmp_path / "fine.yaml").write_text("seed: 1\n")
    assert main(["train", str(tmp_path / "fine.yaml"), str(tmp_path / "bad.yaml")]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"mtl: {tmp_path / 'bad.yaml'}: line 1: {message}")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("demo", "data ewt5", "data toy")])
def test_an_empty_argument_is_not_this_folder(name, tmp_path, monkeypatch, capsys):
    """A shell makes such arguments of a variable that is not set."""
    monkeypatch.chdir(tmp_path)
    for words in ([""], ["--out="], ["", "--out=x"]):
        assert main([*name.split(), *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert not list(tmp_path.iterdir())
