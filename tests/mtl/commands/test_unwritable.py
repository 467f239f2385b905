"""Every command that writes finds out before it starts to work if it cannot write."""

from __future__ import annotations

import functools
import importlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mtl
from mtl.commands.command_table import COMMANDS, MEASURES, arguments_for
from mtl.commands.main import main
from mtl.config.keys import hints_of, without_null
from mtl.files import check_file_place
from mtl.runs.figures.table import FIGURES
from tests.kit.absent import may_be_absent
from tests.mtl.commands.runs_for_commands import TRAINING, made_run

HEAVY = (
    "mtl.models.joint.JointModel.from_pretrained",
    "mtl.models.opened.open_target",
    "mtl.models.encoder.Encoder.from_pretrained",
    "mtl.corpora.load.load_split",
    "mtl.corpora.readers.iterate",
    "mtl.corpora.formats.jsonl.read_jsonl",
    "mtl.corpora.toy.corpus.toy_corpus",
    "mtl.corpora.ewt5.build.build_ewt",
    "mtl.corpora.ewt5.build.manifest",
    "mtl.models.inputs.InputCache.split",
    "mtl.runs.report.gather.gather",
    "mtl.runs.figures.table.draw",
    "mtl.commands.report.draw",
    "mtl.commands.report.animate",
    "mtl.training.train.assemble",
    "mtl.corpora.load.corpus_fingerprint",
)
"""Functions that read, compute or download; none of them may be reached."""


@pytest.fixture(scope="module")
def run(tiny_encoder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return made_run(tiny_encoder, folder / "corpus", folder / "run")


def words_for(name: str, run: Path, encoder: Path) -> list[str]:
    """The command's words without those that say where to write."""
    corpus = run.parent / "corpus"
    measured = [str(run), "--accelerator=cpu"]
    return {
        "doctor": [],
        "demo": [],
        "init": [str(corpus)],
        "data ewt5": [f"--source={corpus}"],
        "data ewt10": [f"--source={corpus}"],
        "data toy": [],
        "data convert": [f"--train=jsonl:{corpus}/train.jsonl"],
        "data select": [str(corpus), f"--ids={corpus}/train.jsonl"],
        "evaluate": measured,
        "compare": [str(run), f"--against={run}"],
        "figure": ["masks", str(run)],
        "prune": measured,
        "export": [str(run)],
        "probe": measured,
        "show": [*measured[:1], "L0H0", *measured[1:]],
        **dict.fromkeys(MEASURES, measured),
        "ablate": measured,
        "energy": [str(encoder)],
        "collaborate": [str(encoder), "--dim=8", "--accelerator=cpu"],
        "report": [str(run.parent)],
    }[name]


SUFFIX = {
    "figure": ".png", "energy figure": ".png", "report out": ".html", "report json_out": ".json",
    "evaluate": ".json", "show": ".png",
}  # fmt: skip


def bad_places(folder: Path, kind: str, suffix: str) -> dict[str, Path]:
    """Places where nothing can be written, by their fault."""
    blocker = folder / "blocker"
    blocker.touch()
    places = {
        "below a file": blocker / "in" / f"x{suffix}",
        "a name too long": folder / f"{'n' * 256}{suffix}",
        "a folder with a name too long": folder / ("n" * 256) / f"x{suffix}",
        "a name in two lines": folder / f"a\nb{suffix}",
        "no file system for files": Path("/proc/none") / f"x{suffix}",
    }
    if kind == "file":
        (folder / f"folder{suffix}").mkdir()
        places["a folder"] = folder / f"folder{suffix}"
        (folder / f"device{suffix}").symlink_to("/dev/null")
        places["a device"] = folder / f"device{suffix}"
    else:
        places["a file"] = blocker
    return places


WRITES = [
    (name, argument, kind)
    for name in COMMANDS
    for argument, place in arguments_for(name).written.items()
    for kind in ("file" if place.check is check_file_place else "folder",)
]


@functools.cache
def import_all() -> None:
    """Modules that are imported for the first time while names are replaced would keep the replacements."""
    for module in pkgutil.walk_packages(mtl.__path__, "mtl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


@pytest.fixture
def no_work(monkeypatch) -> Callable[[], None]:
    """Once called, everything heavy fails the test."""

    import_all()

    def arm() -> None:
        for path in HEAVY:
            name = path.rsplit(".", 1)[1]
            monkeypatch.setattr(path, lambda *_, _name=name, **__: pytest.fail(f"{_name} was called"))

    return arm


@pytest.mark.parametrize(("name", "argument", "kind"), WRITES)
def test_nothing_is_read_or_computed_for_a_place_that_cannot_be_written(
    name, argument, kind, run, tiny_encoder, tmp_path, no_work, capsys
):
    suffix = SUFFIX.get(f"{name} {argument}", SUFFIX.get(name, ".parquet")) if kind == "file" else ""
    words = [*name.split(), *words_for(name, run, tiny_encoder)]
    no_work()
    for what, place in bad_places(tmp_path, kind, suffix).items():
        others = [
            f"--{other}={tmp_path / 'good' / other}.png"
            for other in arguments_for(name).written
            if other != argument and other in arguments_for(name).required
        ]
        assert main([*words, *others, f"--{argument}={place}"]) == 2, what
        errors = capsys.readouterr().err
        assert errors.startswith("mtl: "), what
        assert errors.count("\n") == 1, (what, errors)
    assert not (tmp_path / "good").exists()


def test_every_path_that_is_not_read_is_a_place_that_is_written():
    read = {"source", "mask", "corpus", "run", "folder", "cache", "model", "file", "runs", "rules"}
    for name in COMMANDS:
        for argument, hint in hints_of(arguments_for(name).kind).items():
            if without_null(hint)[0] is Path and argument not in read:
                assert argument in arguments_for(name).written, f"{name} --{argument}"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *((name, "heads.parquet") for name in ("probe", *MEASURES, "ablate")),
        *((name, "heads.parquet") for name in ("curve",) if not may_be_absent([name])),
        ("evaluate", "sentence_counts/test.parquet"),
    ],
)
def test_a_run_s_own_table_that_cannot_be_replaced_is_known_first(name, file, run, tmp_path, no_work, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / file).unlink(missing_ok=True)
    (copy / file).mkdir(parents=True)
    no_work()
    assert main([name, str(copy), "--accelerator=cpu"]) == 2
    assert capsys.readouterr().err == f"mtl: {copy / file}: it is a folder, not a file\n"


@pytest.mark.parametrize("name", [name for name, row in FIGURES.items() if row.draw])
def test_tables_beside_a_figure_that_cannot_be_written_are_known_first(name, run, tmp_path, no_work, capsys):
    places = {}
    for number, end in enumerate(FIGURES[name].tables):
        for form in ("tex", "csv", "parquet"):
            out = tmp_path / f"{form}{number}" / "x.png"
            (out.parent / f"x{end}.{form}").mkdir(parents=True)
            places[out] = f"mtl: {out.parent}/x{end}.{form}: it is a folder, not a file\n"
    no_work()
    for out, error in places.items():
        assert main(["figure", name, str(run), f"--out={out}"]) == 2
        assert capsys.readouterr().err == error
    foreign = tmp_path / f"y{FIGURES[name].tables[-1]}.csv"
    foreign.write_text("mine")
    assert main(["figure", name, str(run), f"--out={tmp_path}/y.svg"]) == 2
    assert "numbers would replace " in capsys.readouterr().err
    assert main(["figure", name, str(run), f"--out={tmp_path}/{'n' * 250}.png"]) == 2
    assert "the name is too long" in capsys.readouterr().err


def test_tables_beside_a_comparison_are_known_first(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("mtl.runs.compare.scores.compare_runs", lambda *_, **__: pytest.fail("compared"))
    (tmp_path / "x.csv").mkdir()
    assert main(["compare", str(run), f"--against={run}", f"--out={tmp_path}/x.pdf"]) == 2
    assert capsys.readouterr().err == f"mtl: {tmp_path}/x.csv: it is a folder, not a file\n"


def test_training_studies_and_sweeps_need_a_folder_that_can_be_written(
    run, tiny_encoder, tmp_path, no_work, capsys
):
    study, sweep = tmp_path / "study.yaml", tmp_path / "sweep.yaml"
    common = f"encoder: {{name: {tiny_encoder}}}\n  corpus: {{path: {run.parent / 'corpus'}}}"
    study.write_text(f"tasks: [pos]\nseeds: [1]\ntrain:\n  {common}\n")
    sweep.write_text(
        "method: grid\nmetric: {name: dev/mean, goal: maximize}\nparameters:\n  seed: {values: [1]}\n"
    )
    train = [f"--encoder.name={tiny_encoder}", f"--corpus.path={run.parent / 'corpus'}", *TRAINING]
    commands = {
        "runs": ["train", *train, "--name=run"],
        "studies": ["study", str(study), "--name=x"],
        "sweeps": ["sweep", str(sweep), *train[:-1], "--local", "--name=x"],
    }
    no_work()
    for key, words in commands.items():
        for what, place in (
            bad_places(tmp_path / key, "folder", "").items() if (tmp_path / key).mkdir() is None else ()
        ):
            assert main([*words, f"--{key}={place}"]) == 2, (key, what)
            errors = capsys.readouterr().err
            assert errors.startswith("mtl: "), (key, what)
            assert errors.count("\n") == 1, (key, what, errors)


ROOT = Path(__file__).parents[3]
STUDY = """\
grid: [{setups: [STL], masks: [none]}]
seeds: [1]
train: {tasks: [pos], corpus: {path: CORPUS}, encoder: {name: ENCODER}, max_epochs: 1}
"""
SWEEP = """\
command: [mtl, train, TRAIN, "${args}"]
method: random
metric: {name: dev/mean, goal: maximize}
run_cap: 1
parameters: {max_epochs: {values: [1]}}
"""
TRAINED = "--corpus.path={corpus} --encoder.name={encoder} --max_epochs=1 --runs={out}"
OF_README = {
    "data": "data toy --out {out}/toy",
    "init": "init {corpus} --out {out}/my.yaml",
    "train": f"train dep {TRAINED} --name=dep --pruning=dynamic --gates.target_open=0.4",
    "prune": "prune {out}/dep --out {out}/cut",
    "evaluate": "evaluate {out}/dep --split test --export {out}/scored",
    "predict": "predict {out}/dep {text}",
    "export": "export {out}/dep --out {out}/onnx",
    "probe": "probe {encoder} --corpus {corpus} --split test --out {out}/static",
    "show": "show {out}/dep L0H0 --sentence=We --output {out}/head.png",
    "importance": "importance {out}/dep",
    "ablate": "ablate {out}/dep",
    "curve": "curve {out}/dep --by=importance",
    "figure": "figure masks {out}/dep --out {out}/masks.png",
    "compare": "compare {out}/dep --against {out}/dep-2",
    "report": "report {out}",
    "study": "study {study} --studies={out}/studies",
    "sweep": "sweep {sweep} --local --sweeps={out}/sweeps",
    "serve": "serve {out}/dep --port=70000",
}
"""Each command of the README; all write into one folder. `serve` gets as far as its port."""


def test_every_command_of_the_readme_has_a_line_here() -> None:
    text = "".join(re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    assert set(re.findall(r"\bmtl ([a-z]+) ", text)) == {*OF_README}


def test_matplotlib_has_a_folder_where_the_home_is_not_writable(tmp_path, monkeypatch) -> None:
    from mtl.commands.main import give_matplotlib_a_folder

    monkeypatch.setenv("MPLCONFIGDIR", "x")
    monkeypatch.delenv("MPLCONFIGDIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "to" / "come"))
    give_matplotlib_a_folder()
    assert "MPLCONFIGDIR" not in os.environ
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    give_matplotlib_a_folder()
    first = os.environ.pop("MPLCONFIGDIR")
    lock(tmp_path / "another's", monkeypatch)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another's" / ".config"))
    give_matplotlib_a_folder()
    assert os.environ["MPLCONFIGDIR"] != first
    assert Path(os.environ["MPLCONFIGDIR"]).is_dir()


@pytest.mark.parametrize("kind", ["a file", "locked"])
def test_wandb_has_folders_where_the_home_is_not_writable(kind, tmp_path, monkeypatch) -> None:
    """In a folder that stays: artifacts of an offline run are sent later."""
    from mtl.runs.folder.wandb_view import _give_places

    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home" / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "to" / "come"))
    if kind == "a file":
        (tmp_path / "home").write_text("")
    else:
        lock(tmp_path / "home", monkeypatch)
    _give_places(tmp_path / "run" / "wandb")
    assert os.environ["WANDB_DATA_DIR"] == str(tmp_path / "run" / "wandb")
    assert "WANDB_CACHE_DIR" not in os.environ
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "home" / "mine"))
    _give_places(tmp_path / "run" / "wandb")
    assert os.environ["WANDB_DATA_DIR"] == str(tmp_path / "home" / "mine")


def lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be known of what is in a folder, as in another user's home (these tests may be root's)."""
    real = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | Path) and folder in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr("os.stat", stat)


ONE_BY_ONE = """
import json, sys
from mtl.commands.main import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["mtl", *words]
    print("ENDED", main(), file=sys.stderr, flush=True)
"""
"""All commands in one process: each of its own would import all libraries again."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("user", "home", "commands"),
    [("65534", "/nonexistent", tuple(OF_README)), ("54321", None, ("train", "predict", "figure"))],
)
def test_a_user_without_a_home_runs_every_command_of_the_readme(
    user, home, commands, tiny_encoder, toy, tmp_path
) -> None:
    """As in a container with any user id: the installation, the home and the current folder are read-only.

    A user whom the system does not know, and who has no variable for a home, runs the longest commands only.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can start a process of another user, with setpriv")
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    places = {"corpus": toy, "encoder": tiny_encoder, "out": out}
    train = "{tasks: [pos], corpus: {path: CORPUS}, encoder: {name: ENCODER}}\n"
    files = {"train": train, "study": STUDY, "sweep": SWEEP, "text": "We ate in Paris.\n"}
    for name, text in files.items():
        places[name] = tmp_path / f"{name}.yaml"
        for word, path in {"CORPUS": toy, "ENCODER": tiny_encoder, "TRAIN": places.get("train")}.items():
            text = text.replace(word, str(path))
        places[name].write_text(text)
    variables = {key: value for key, value in os.environ.items() if key not in ("HOME", "MPLCONFIGDIR")}
    variables |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    variables |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    variables |= {} if home is None else {"HOME": home}
    # Reading is allowed anywhere: an interpreter in root's home can be used.
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *reads]
    trained_again = OF_README["train"].replace("--name=dep ", "--name=dep-2 --seed=2 --wandb.mode=offline ")
    lines = [OF_README[command] for command in commands]
    if "compare" in commands:
        lines.insert(lines.index(OF_README["train"]), trained_again)
    told = [[word.format(**places) for word in line.split()] for line in lines]
    told = [words for words in told if not may_be_absent(words)]
    command = [*as_user, sys.executable, "-c", ONE_BY_ONE, json.dumps(told)]
    done = subprocess.run(command, cwd="/", env=variables, capture_output=True, text=True)
    *outcomes, rest = done.stderr.split("ENDED ")
    assert len(outcomes) == len(told), done.stderr[-3000:]
    wrong = []
    for words, errors, code in zip(
        told, outcomes, [*(each[0] for each in outcomes[1:]), rest[0]], strict=True
    ):
        errors = errors.replace("--port=70000: use a number from 0 to 65535", "")
        right = code == ("2" if words[0] == "serve" else "0")
        if not right or re.search(r"Traceback|ermission|MPLCONFIGDIR|mkdir", errors):
            wrong.append((words, code, errors[-600:]))
    assert not wrong, done.stdout[-3000:]
