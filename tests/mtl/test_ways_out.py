"""The way out that a message names is one: what was refused succeeds once the message is followed.

`ways_out.txt`, here and beside the tests of a feature, lists recommendations that no row here runs, so that a
new one needs a row or a line there.
"""

# Rows of the tables are longer than other lines.
# ruff: noqa: E501
from __future__ import annotations

import ast
import contextvars
import copy
import io
import math
import re
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
import yaml
from torch import nn
from transformers import AutoModel

import mtl
from mtl.commands.command_table import COMMANDS
from mtl.commands.main import main
from mtl.config.instances import Instance
from mtl.config.parse import configured
from mtl.config.schema import CorpusConfig, TrainConfig
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.files import remove
from mtl.heads.arguments import dtype_of
from mtl.heads.gates import gate_table
from mtl.models.joint import JointModel
from mtl.models.subwords import SubwordTokenizer
from mtl.probes.measures.groups import BY_NAME, made_with
from mtl.probes.tables.heads_table import EXAMPLES_SCHEMA
from mtl.probes.tables.table_files import write_parquet
from mtl.runs.figures.table import FIGURES
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_tasks import Classify
from mtl.tasks.structured import Pos
from mtl.tasks.task import Labels, annotated_layer
from mtl.training.check import check_settings, check_target
from tests.kit.absent import absent_features, may_be_absent
from tests.mtl import tiny
from tests.mtl.heads.test_wrapped import Prefixed, offloaded
from tests.mtl.test_messages import ROOT, texts_and_identifiers
from tests.mtl.ways_of_commands import FILES, FURTHER, OF_TASKS, Way

FIXED = "--pruning=fixed --gates.masks=/p/runs"
JOINT = "train /t --tasks=[pos,dep]"
TRAINED = (
    Way("train /t --tasks=[pos] --balancer.name=fixed --balancer.weights.dep=2",
        "which is not trained (tasks are pos): leave it out; --balancer.weights={} leaves out all",
        ("train /t --tasks=[pos] --balancer.name=fixed --balancer.weights.dep=2 --balancer.weights={}",)),
    Way(f"{JOINT} --pruning=gates_only --from=/p/runs/none --balancer.name=pcgrad",
        "pruning=gates_only freezes: use uniform, moving_average or uncertainty",
        tuple(f"{JOINT} --pruning=gates_only --from=/p/runs/none --balancer.name={name}"
              for name in ("uniform", "moving_average", "uncertainty"))),
    Way(f"{JOINT} --batch.mode=separate --balancer.name=pcgrad",
        "one task in a step: use batch.mode=aligned, or moving_average or uncertainty",
        (f"{JOINT} --batch.mode=aligned --balancer.name=pcgrad",
         f"{JOINT} --batch.mode=separate --balancer.name=moving_average",
         f"{JOINT} --batch.mode=separate --balancer.name=uncertainty")),
    Way("train /t --tasks=[pos] --tasks.dep.dropout=0.1",
        "dep is not trained: name the tasks, as in --tasks=[pos,dep]", (f"{JOINT} --tasks.dep.dropout=0.1",)),
    Way("train /t --tasks=[pos] --pruning=static", "starts from a trained model: add --from RUN",
        ("train /t --tasks=[pos] --pruning=static --from=/p/runs/none",)),
    Way("train /t --tasks=[pos] --pruning=fixed", "takes its masks from a file: use gates.masks=FILE",
        (f"train /t --tasks=[pos] {FIXED}/pos/gates.parquet",)),
    Way(f"{JOINT} {FIXED}/dyn/gates.parquet", "has a mask per task: use gates.scope=per_task",
        (f"{JOINT} {FIXED}/dyn/gates.parquet --gates.scope=per_task",)),
    Way("train /t --tasks=[pos] --from=/p/runs/none --encoder.pooling=first",
        "are taken over: leave encoder.pooling out (of files, too), or use --encoder.pooling=mean",
        ("train /t --tasks=[pos] --from=/p/runs/none",
         "train /t --tasks=[pos] --from=/p/runs/none --encoder.pooling=mean")),
    Way("train /t --tasks=[dep~a,dep~b] --from=/p/runs/half --dep.dropout=0.5",
        "leave tasks.dep~a.dropout out (of files, too), or use --tasks.dep~a.dropout=0.33",
        ("train /t --tasks=[dep~a,dep~b] --from=/p/runs/half",
         "train /t --tasks=[dep~a,dep~b] --from=/p/runs/half --tasks.dep~a.dropout=0.33")),
    Way("train /t --tasks=[pos] --name=none --runs=/p/runs",
        "another configuration (tasks): give another --name; --overwrite=true would replace that run",
        ("train /t --tasks=[pos] --name=another --runs=/p/other",)),
    Way("train /t --tasks=[pos] --trainer.precision=tf32", "the run's device has no TF32: use 32-true",
        ("train /t --tasks=[pos] --trainer.precision=32-true",)),
    Way("train /t --tasks=[pos] --batch.max_words=3",
        "split such sentences in the file, or raise batch.max_words (memory grows with its square, time with "
        "its cube)", ("train /t --tasks=[pos] --batch.max_words=300",)),
    Way("train /t --tasks=[pos] --corpus.path=null",
        "no files for pos: use corpus.path or corpus.pos.train, .dev and .test",
        ("train /t --tasks=[pos] --corpus.path=/p/toy",
         "train /t --tasks=[pos] --corpus.path=null --corpus.pos.train=/p/toy/train.jsonl "
         "--corpus.pos.dev=/p/toy/dev.jsonl --corpus.pos.test=/p/toy/test.jsonl")),
    Way("train /t --tasks={acts:{kind:tags}}", "set tasks.acts.layer or tasks.acts.files",
        ("train /t --tasks={acts:{kind:tags}} --tasks.acts.layer=tags",)),
    Way("train /t --tasks={acts:{kind:tags}} --corpus.path=null",
        "no files for acts: use corpus.path or tasks.acts.files.train, .dev and .test",
        ("train /t --tasks={acts:{kind:tags,layer:tags}} --corpus.path=null "
         "--tasks.acts.files.train=/p/toy/train.jsonl --tasks.acts.files.dev=/p/toy/dev.jsonl "
         "--tasks.acts.files.test=/p/toy/test.jsonl",)),
    Way("train /t --tasks=[pos] --corpus.path=/p/nowhere",
        "'mtl data ewt5 --out /p/nowhere' (--subset=small: 2,600 sentences of it) or "
        "'mtl data toy --out /p/nowhere'",
        ("data toy --out=/p/nowhere --train=20 --dev=6 --test=6", "train /t --tasks=[pos] --corpus.path=/p/nowhere")),
)  # fmt: skip
"""Ways that train; `/t` are the options of a short training."""
MEASURED = (
    Way("curve /p/runs/dyn --by=gates /s",
        "leave it out, and give runs with --gates=[RUN,...], or --targets to train them",
        ("curve /p/runs/dyn --by=[] --gates=[/p/runs/dyn] /g",)),
    Way("curve /p/runs/dyn --by=[]", "--by=[] names no order: use one, or --gates or --targets",
        ("curve /p/runs/dyn --by=random --draws=1 /s",
         "curve /p/runs/dyn --by=[] --targets=[2] --gates_epochs=1 /g")),
    Way("curve /p/runs/dyn --by=[] --gates=[/p/runs/dyn] --at_least=1 /g",
        "--at_least has no effect without an order: use --by, or leave it out",
        ("curve /p/runs/dyn --by=random --draws=1 --at_least=1 /s",
         "curve /p/runs/dyn --by=[] --gates=[/p/runs/dyn] /g")),
    Way("curve /p/runs/dyn --gates_epochs=1", "without --targets: use both, or leave it out",
        ("curve /p/runs/dyn --by=[] --targets=[2] --gates_epochs=1 /g",)),
    Way("curve /p/runs/dyn --by=importance --gates=[/p/runs/pos] /s",
        "has no task 'dep': use runs of the same tasks, or choose with --task",
        ("curve /p/runs/dyn --by=importance --gates=[/p/runs/dyn] /s",
         "curve /p/runs/dyn --by=importance --gates=[/p/runs/pos] --task=pos /s")),
    Way("curve /p/runs/dyn --by=importance --cut /s",
        "since each has an order of its own: choose with --task (pos, dep)",
        ("curve /p/runs/dyn --by=importance --cut --task=pos --batches=1 --rounds=1 /s",)),
    Way("prune /p/enc --out=/o/1",
        "it has no masks: use a run's folder or a joint model, or say what to cut (--heads=L0H3,L2H11 or "
        "--mask=FILE)",
        ("prune /p/runs/pos --out=/o/2", "prune /p/runs/pos/model --out=/o/3",
         "prune /p/enc --out=/o/4 --heads=L0H3,L2H1", "prune /p/enc --out=/o/5 --mask=/p/runs/pos/gates.parquet")),
    Way("prune /p/runs/none --out=/o/6",
        "the run has no masks: train with --pruning=dynamic or static, use --mask FILE, or name the tasks to "
        "keep with --task",
        ("prune /p/runs/none --out=/o/6 --mask=/p/runs/pos/gates.parquet",
         "prune /p/runs/none --out=/o/6b --task=pos")),
    Way("prune /p/runs/dyn --out=/o/7", "choose one with --task (pos, dep)",
        ("prune /p/runs/dyn --out=/o/7 --task=pos",)),
    Way("ablate /p/runs/none --heads=L0H1 --out=/o/a.parquet",
        "which --heads and --mask do not give: write their numbers with --json_out=FILE",
        ("ablate /p/runs/none --heads=L0H1 --json_out=/o/a.json --draws=100 --sentences=4",)),
    Way("ablate /p/runs/none --mask=/p/runs/dyn/gates.parquet --sentences=4",
        "has a mask per task: choose one with --task (pos, dep)",
        ("ablate /p/runs/none --mask=/p/runs/dyn/gates.parquet --task=pos --draws=100 --sentences=4",)),
    Way("show /p/enc L0H1", "has no corpus of its own: use --sentence or --corpus",
        ("show /p/enc L0H1 --sentence=dogs", "show /p/enc L0H1 --corpus=/p/toy --sentences=4")),
    Way("show /p/enc L0 --sentence=dogs", "choose one of its heads, such as L0H0",
        ("show /p/enc L0H0 --sentence=dogs",)),
    Way("show /p/runs/none L0H1 --sentence=dogs --relation=nsubj",
        "--relation is for sentences of a corpus: leave it out, or --sentence",
        ("show /p/runs/none L0H1 --sentence=dogs", "show /p/runs/none L0H1 --relation=nsubj --sentences=6")),
    Way("show /p/runs/dyn L0H1 --sentence=dogs --task=pos --masks=false",
        "--task chooses a mask: leave it out, or --masks=false",
        ("show /p/runs/dyn L0H1 --sentence=dogs --masks=false", "show /p/runs/dyn L0H1 --sentence=dogs --task=pos")),
    Way("probe /p/enc", "for a model or an encoder use --corpus=FOLDER",
        ("probe /p/enc --corpus=/p/toy --out=/o/static",)),
    Way("evaluate /p/runs/none/model", "which would name a corpus: use --corpus=FOLDER",
        ("evaluate /p/runs/none/model --corpus=/p/toy",)),
    Way("translate /p/runs/none", "use 'mtl predict'", ("predict /p/runs/none",), "The dog saw a cat.\n"),
    Way("predict /p/runs/none --input=tokens",
        "split it, or raise --max_words (memory grows with its square, time with its cube)",
        ("predict /p/runs/none --input=tokens --max_words=600",), "a " * 520),
    Way("predict /p/runs/none --language=de --input=tokens", "(--input=text); tokens are split already",
        ("predict /p/runs/none --input=tokens",), "der Hund\n"),
    Way("figure curve /p/runs/dep --out=/o/c.png",
        "/p/runs/dep has no curve.parquet: left out; 'mtl curve /p/runs/dep' makes it",
        ("curve /p/runs/dep --by=importance /s", "figure curve /p/runs/dep --out=/o/c.png")),
    Way("figure curve-time /p/runs/none --out=/o/t.png",
        "left out; 'mtl curve /p/runs/none --cut --task=TASK' makes it",
        ("curve /p/runs/none --by=importance --cut --task=pos --batches=1 --rounds=1 /s",
         "figure curve-time /p/runs/none --out=/o/t.png")),
    Way("figure heads /p/runs/dep --out=/o/h.png", "nothing to draw: give runs after 'mtl ablate RUN'",
        ("ablate /p/runs/dep --draws=100 --sentences=4", "figure heads /p/runs/dep --out=/o/h.png")),
    Way("figure rgb /p/runs/none --out=/o/r.png", "nothing to draw: give runs trained with --pruning=dynamic",
        ("figure grey /p/runs/dyn --out=/o/r.png",)),
    Way("figure importance-over-time /p/runs/none --out=/o/i.png",
        "has no importance over time: train it with --importance_every=1 (or more)",
        ("figure importance-over-time /p/runs/pos --out=/o/i.png",)),
    Way("data convert --out=/o/v", "nothing to convert: use --train, --dev or --test, such as --train=conllu:PATH",
        ("data convert --out=/o/v --train=jsonl:/p/toy/train.jsonl",)),
    Way("data convert --out=/o/w --train=/p/toy/train.jsonl",
        "in which format? write FORMAT:/p/toy/train.jsonl or give --format",
        ("data convert --out=/o/w --train=/p/toy/train.jsonl --format=jsonl",)),
    Way("data select /p/toy --out=/o/x",
        "name the sentences by --ids, or say how many to draw: --train=300 --dev=60",
        ("data select /p/toy --out=/o/x --train=10 --dev=3",)),
    Way("data select /p/toy --out=/p/toy --train=10", "is the corpus itself: choose another --out",
        ("data select /p/toy --out=/o/y --train=10",)),
    Way("data toy --out=/p/toy", "choose another --out, or replace it with --overwrite",
        ("data toy --out=/o/z --train=4 --dev=2 --test=2",
         "data toy --out=/o/z --train=4 --dev=2 --test=2 --overwrite")),
)  # fmt: skip
"""Ways on runs that are there; `/s` are the options of a short curve, `/g` of one without an order, `/o` a
folder of the test's own."""
SHORT = ("--max_epochs=1", "--trainer.accelerator=cpu", "--trainer.precision=32-true")


class Place:
    """Corpora, an encoder and runs, on which commands are called."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, 0
        write_toy(folder / "toy", 24, 8, 8, seed=1)
        write_toy(folder / "large", 24, 8, 400, seed=1)
        tiny.encoder("bert", dtype=torch.float32).save(folder / "enc")
        narrow = tiny.config("opt", word_embed_proj_dim=16)
        tiny.encoder_of(narrow, tiny.tokenizer("opt")).save(folder / "narrow")
        for name in ("enc", "narrow"):
            (folder / name / "encoder.json").unlink()
        self._write_files()
        for name, more in {
            "none": "/t --tasks=[pos,dep]", "many": "/t --tasks=[pos,dep] --corpus.path=/p/large",
            "dep": "/t --tasks=[dep]", "half": "/t --tasks=[dep~a,dep~b]",
            "dyn": "/t --tasks=[pos,dep] --pruning=dynamic --gates.scope=per_task --gates.init_std=1.0",
            "acts": f"/t {OF_TASKS} {FILES}", "trans": "/x",
            "pos": "/t --tasks=[pos] --pruning=dynamic --gates.init_std=1.0 --importance_every=1",
        }.items():  # fmt: skip
            assert main(self.words(f"train {more} --name={name} --runs=/p/runs")) == 0, name
        shutil.copytree(folder / "runs", folder / "kept")

    def restore(self) -> None:
        """Undo what a test did to the runs, so that no test depends on another."""

        def files(folder: Path) -> dict[Path, tuple[int, int]]:
            found = [(path, path.stat()) for path in folder.rglob("*")]
            return {path.relative_to(folder): (stat.st_mtime_ns, stat.st_size) for path, stat in found}

        if files(self.folder / "runs") != files(self.folder / "kept"):
            shutil.rmtree(self.folder / "runs")
            shutil.copytree(self.folder / "kept", self.folder / "runs")

    def placed(self, text: str, own: Path | None) -> str:
        """A text with the names of folders."""
        placed = re.sub(r"/p(?=/|$)", str(self.folder), text)
        return re.sub(r"(?<![\w.])/o(?=/|$)", str(own), placed)

    def _write_files(self) -> None:
        """Files that commands refuse, and corpora of other annotations."""
        toy = {
            split: read_jsonl(self.folder / "toy" / f"{split}.jsonl") for split in ("train", "dev", "test")
        }
        for place in ("part", "acts", "par", "odd"):
            (self.folder / place).mkdir()
        for split, sentences in toy.items():
            other = [
                Sentence(each.words, {"entities": each.entities, "frames": each.frames}, id=each.id)
                for each in sentences
            ]
            write_jsonl(self.folder / "part" / f"{split}.jsonl", sentences if split == "dev" else other)
            acts = [
                Sentence(each.words, {"acts": "ab"[at % 2]}, id=each.id) for at, each in enumerate(sentences)
            ]
            write_jsonl(self.folder / "acts" / f"{split}.jsonl", acts)
            for language, line in (("en", "a man runs {} miles"), ("de", "ein mann läuft {} meilen")):
                text = "".join(f"{line.format(number)}\n" for number in range(24))
                (self.folder / "par" / f"{split}.{language}").write_text(text)
        rows = "1\tAnn\t_\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n2\tleft\t_\tVERB\tVBD\t_\t0\troot\t_\t_\n\n"
        for name in ("one", "two"):
            (self.folder / "odd" / f"{name}.conllu").write_text(rows)
        pairs = ["label\tsentence1\tsentence2", *["1\tAnn left\tshe left", "0\tAnn left\ta cat"] * 8]
        (self.folder / "odd" / "pairs.tsv").write_text("\n".join(pairs) + "\n")
        (self.folder / "odd" / "swapped.txt").write_text("B-PER Ann\nO left\n\n" * 4)
        (self.folder / "config.yaml").write_text("mine: true\n")
        gate_table([]).write_parquet(self.folder / "none.parquet")
        if "curve" in COMMANDS:
            from mtl.probes.curves.curve_table import SCORES

            points = {name: [math.nan if kind.is_float() else None] for name, kind in SCORES.items()}
            pl.DataFrame(points, SCORES).write_parquet(self.folder / "curve.parquet")
        if "energy" in COMMANDS:
            from mtl.collaborative.energy_table import ENERGY

            broken = {name: [math.nan if kind.is_float() else None] for name, kind in ENERGY.items()}
            pl.DataFrame(broken, ENERGY).write_parquet(self.folder / "broken.parquet")
        examples = pl.DataFrame(schema=EXAMPLES_SCHEMA)
        write_parquet(examples, self.folder / "damaged.parquet", {"sentences": "["})

    def call(self, command: str, own: Path) -> int:
        """The exit code of a command of `mtl`, or of `cp` or `rm`, which replace and remove whole folders."""
        words = self.words(command, own)
        match words:
            case ["cp", source, target]:
                remove(Path(target))
                Path(target).parent.mkdir(exist_ok=True, parents=True)
                (shutil.copytree if Path(source).is_dir() else shutil.copy)(source, target)
                return 0
            case ["rm", path]:
                remove(Path(path))
                return 0
        try:
            return main(words)
        except SystemExit as end:
            return int(end.code or 0)

    def words(self, command: str, own: Path | None = None) -> list[str]:
        """The words of a command; each training has a name of its own unless it is given one."""
        self.calls += 1
        corpus = [f"--corpus.path={self.folder / 'toy'}", f"--encoder.name={self.folder / 'enc'}"]
        made = [f"--runs={self.folder / 'made'}", f"--name=run{self.calls}"]
        files = [f"--corpus.translate.{split}={self.folder}/par/{split}.en:{self.folder}/par/{split}.de"
                 for split in ("train", "dev", "test")]  # fmt: skip
        shape = ["--seq2seq.layers=1", "--seq2seq.heads=2", "--seq2seq.width=16", "--seq2seq.feed_forward=16"]
        shape += ["--seq2seq.architecture=bart", "--seq2seq.vocabulary=300", "--translate.beam=1"]
        translation = ["--tasks=[translate]", "--corpus.path=null", "--corpus.translate.format=parallel"]
        translation += [*files, *shape, "--translate.source=en", "--translate.target=de", *SHORT, *made]
        gates = ["--sentences=4", "--accelerator=cpu"]
        curve = [*gates, "--steps=1"]
        listed = {"/t": [*corpus, *SHORT, *made], "/g": gates, "/s": curve, "/x": translation}
        words: list[str] = []
        for word in command.split(" "):
            words += listed.get(word) or [self.placed(word, own).replace("·", " ")]
        return [word.replace(",layer:", ", layer: ").replace("{kind:", " {kind: ") for word in words]


def is_absent(way: Way) -> bool:
    """Whether a feature is missing that may have one of the commands, or one of the figures."""
    commands = [command.split(" ") for command in (way.refused, *way.instead, *way.before)]
    there = [words for words in commands if words[0] not in ("cp", "rm", "") and words[0] != "--help"]
    figures = [words[1] for words in there if words[0] == "figure"]
    return bool(absent_features()) and (
        any(map(may_be_absent, there)) or any(name not in FIGURES for name in figures)
    )


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("ways"))


@pytest.fixture
def place(shared_place: Place) -> Iterator[Place]:
    yield shared_place
    shared_place.restore()


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [way for way in (*TRAINED, *MEASURED, *FURTHER) if not is_absent(way)],
    ids=lambda way: f"{way.refused} {way.says}"[:120],
)
def test_what_a_message_says_to_do_succeeds(way, place, tmp_path, capsys, monkeypatch):
    def call(command: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(way.given.encode())))
        return place.call(command, tmp_path)

    def said() -> str:
        return " ".join("".join(capsys.readouterr()).split())

    monkeypatch.setattr("mtl.runs.figures.drawn.render", lambda figure, kind, notes=(): b"")
    monkeypatch.setattr("mtl.probes.report.data.render", lambda figure, kind: b"<svg/>")
    for command in way.before:
        assert call(command) == 0, (command, said())
    said()
    assert call(way.refused) == way.code
    message = ".*".join(re.escape(part) for part in place.placed(way.says, tmp_path).split("◇"))
    assert re.search(message, said())
    for command in way.instead:
        assert call(command) == 0, (command, said())
    assert way.code or not re.search(message, said())


@pytest.mark.slow
@pytest.mark.skipif("curve" not in COMMANDS, reason="no order by a measure")
@pytest.mark.parametrize("measure", [name for name in BY_NAME if name != "gradient_conflict"])
def test_a_measure_that_heads_lack_is_made_by_the_command_of_the_message(measure, place, tmp_path, capsys):
    def curve() -> str:
        capsys.readouterr()
        code = main(place.words(f"curve /o/run --by={measure} /s", tmp_path))
        errors = capsys.readouterr().err.strip().splitlines()
        return errors[-1] if code else ""

    shutil.copytree(place.folder / "runs" / "dep", tmp_path / "run")
    first = curve()
    if measure in ("importance", "ablation_layer"):
        assert (first == "") == (measure == "importance")
        assert "choose another measure" in first or not first
        return
    assert f"'{made_with(measure)}' makes it" in first
    command = made_with(measure).removeprefix("mtl ").replace("RUN", "/o/run").replace("=N", "=1")
    assert main(place.words(command, tmp_path)) == 0
    assert "makes it" not in curve()


@pytest.mark.slow
@pytest.mark.usefixtures("as_installed")
def test_probing_takes_what_its_messages_name(place, tmp_path):
    encoder, corpus = str(place.folder / "enc"), CorpusConfig(str(place.folder / "toy"))
    with pytest.raises(InputError, match=re.escape("use CorpusConfig(FOLDER)")):
        mtl.probe(encoder, str(place.folder / "toy"), tmp_path)
    with pytest.raises(InputError, match=re.escape("use {NAME: Instance(KIND)}")):
        mtl.probe(encoder, corpus, tmp_path, instances=["acts"])
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=re.escape("use out=FOLDER")):
        mtl.probe(encoder, corpus, out=tmp_path / "file")
    own = {"own": Instance("tags", layer="tags")}
    mtl.probe(encoder, corpus, out=tmp_path / "folder", instances=own)
    assert (tmp_path / "folder" / "heads.parquet").is_file()


CONFIGURATIONS = (
    ("--pruning=dynamic --gates.target_open=2.5", "use a share of the heads, at most 1, or a whole number of heads",
     ("--pruning=dynamic --gates.target_open=0.5", "--pruning=dynamic --gates.target_open=2")),
    ("--tasks=[pos,dep] --balancer.name=pcgrad --trainer.precision=16-mixed",
     "use bf16-mixed, or balancer.name=uniform",
     ("--tasks=[pos,dep] --balancer.name=pcgrad --trainer.precision=bf16-mixed",
      "--tasks=[pos,dep] --balancer.name=uniform --trainer.precision=16-mixed")),
    ("--pruning=dynamic --gates.at_least=2", "the target is 4: use a smaller number, or a larger target",
     ("--pruning=dynamic --gates.at_least=1", "--pruning=dynamic --gates.at_least=2 --gates.target_open=0.5")),
    ("--pruning=dynamic --gates.target_open=1.0 --gates.at_least=5",
     "no layer has more than 4 heads: use a smaller number",
     ("--pruning=dynamic --gates.target_open=1.0 --gates.at_least=4",)),
    ("--pruning=dynamic --gates.kinds=[]", "gates.kinds is empty: use at least one of self",
     ("--pruning=dynamic --gates.kinds=[self]",)),
    ("--pruning=static --from=runs/pos --encoder.freeze=all", "use pruning=gates_only, without encoder.freeze",
     ("--pruning=gates_only --from=runs/pos",)),
    ("--pruning=dynamic --gates.penalty.pos=0.1 --gates.penalty.dep=0.1 --tasks=[pos,dep]",
     "use one number, or gates.scope=per_task",
     ("--pruning=dynamic --gates.penalty=0.1 --tasks=[pos,dep]",
      "--pruning=dynamic --gates.penalty.pos=0.1 --gates.penalty.dep=0.1 --tasks=[pos,dep] "
      "--gates.scope=per_task")),
    ("--pruning=dynamic --gates.target_open={}", "use a number for each of self, or one for all",
     ("--pruning=dynamic --gates.target_open.self=2", "--pruning=dynamic --gates.target_open=2")),
    ("--pruning=dynamic --gates.target_open.self=2 --gates.penalty.self=0.1",
     "give a kind of attention one of the two",
     ("--pruning=dynamic --gates.target_open.self=2", "--pruning=dynamic --gates.penalty.self=0.1")),
    ("--pruning=dynamic --gates.target_open=2 --gates.penalty.self=0.1", "leave one of them out",
     ("--pruning=dynamic --gates.target_open=2", "--pruning=dynamic --gates.penalty.self=0.1")),
    ("--tasks=[pos] --seq2seq.architecture=bart", "use encoder.name", ("--tasks=[pos]",)),
    ("--tasks=[translate] --encoder.name=minilm",
     "use seq2seq.architecture (for instance mbart) for a model from scratch, or an encoder-decoder checkpoint "
     "as encoder.name",
     ("--tasks=[translate] --encoder.name=minilm --seq2seq.architecture=mbart",
      "--tasks=[translate] --encoder.name=a-checkpoint")),
    ("--tasks=[translate,pos] --seq2seq.architecture=mbart", "because it uses a different model: leave out pos",
     ("--tasks=[translate] --seq2seq.architecture=mbart",)),
    ("--tasks=[translate] --seq2seq.architecture=mbart --seq2seq.mixing=blocks",
     "use seq2seq.components, or leave it out",
     ("--tasks=[translate] --seq2seq.architecture=mbart --seq2seq.mixing=blocks --seq2seq.components=8",
      "--tasks=[translate] --seq2seq.architecture=mbart")),
    ("--tasks=[translate] --encoder.name=a-checkpoint --seq2seq.components=8",
     "use seq2seq.architecture, or leave it out (a checkpoint's heads are what they are)",
     ("--tasks=[translate] --seq2seq.architecture=mbart --seq2seq.components=8",
      "--tasks=[translate] --encoder.name=a-checkpoint")),
    ("--tasks=[translate] --seq2seq.architecture=t5 --seq2seq.components=8", "use mbart or another architecture",
     ("--tasks=[translate] --seq2seq.architecture=mbart --seq2seq.components=8",)),
    ("--tasks=[translate] --seq2seq.architecture=mbart --seq2seq.width=30", "change one of them",
     ("--tasks=[translate] --seq2seq.architecture=mbart --seq2seq.width=32",
      "--tasks=[translate] --seq2seq.architecture=mbart --seq2seq.width=30 --seq2seq.heads=3")),
    ("--tasks=[translate] --seq2seq.architecture=mbart --seq2seq.components=500",
     "use 1 to 128 components (seq2seq.width), as many as heads apart have",
     ("--tasks=[translate] --seq2seq.architecture=mbart --seq2seq.components=128",)),
    ("--tasks={acts:{layer:tags}}", "has no kind: add kind: tags or lemmas", ("--tasks={acts: {layer: tags, kind: tags}}",)),
    ("--tasks={pos: {kind: tags, layer: tags}}", "leave kind and layer out, or use another name",
     ("--tasks={pos: {}}", "--tasks={tags: {kind: tags, layer: tags}}")),
    ("--tasks=[]", "tasks is empty: choose at least one of pos", ("--tasks=[pos]",)),
    ("--tasks=[pos,pos]", "names a task twice: name each once", ("--tasks=[pos]",)),
    ("--runs=", "runs= is empty: name a folder, or leave it out", ("--runs=kept",)),
    ("--max_epochs=null", "cannot be null: set a value, or leave it out", ("--max_epochs=2", "")),
    ("--gates=3", "set gates.KEY", ("--gates.lr=3",)),
    ("--tasks=[translate] --seq2seq.architecture=mbart --pruning=dynamic --gates.target_open.encoder=2",
     "set a target or a penalty for each kind, or use gates.kinds=encoder",
     ("--tasks=[translate] --seq2seq.architecture=mbart --pruning=dynamic --gates.target_open.encoder=2 "
      "--gates.target_open.decoder=2 --gates.penalty.cross=0.1",
      "--tasks=[translate] --seq2seq.architecture=mbart --pruning=dynamic --gates.target_open.encoder=2 "
      "--gates.kinds=encoder")),
    ("--tasks=[pos,dep] --gradient_conflict_every=2 --pruning=gates_only --from=x",
     "pruning=gates_only freezes: leave one out",
     ("--tasks=[pos,dep] --gradient_conflict_every=2", "--tasks=[pos,dep] --pruning=gates_only --from=x")),
)  # fmt: skip
"""Options that are refused before anything is read, how the message ends, and options that it recommends."""


def settings_of(options: str, encoder: Path) -> TrainConfig:
    words = re.split(r" (?=--)", options) if options else []
    if "encoder.name" not in options and "translate" not in options:
        words.append(f"--encoder.name={encoder}")
    config = configured("mtl train", TrainConfig, words)
    check_settings(config)
    if "a-checkpoint" not in options:
        check_target(config)
    return config


@pytest.mark.parametrize(("refused", "says", "instead"), CONFIGURATIONS, ids=lambda value: str(value)[:60])
def test_settings_that_a_message_recommends_are_accepted(refused, says, instead, tiny_encoder):
    with pytest.raises(InputError, match=re.escape(says)):
        settings_of(refused, tiny_encoder)
    for options in instead:
        settings_of(options, tiny_encoder)


GRID = {"setups": ["STL"], "masks": ["none"]}
CONTROL = {"setups": ["control"], "draws": {"control": [1, 2]}}
WITH_CONTROL = {"train.tasks": ["pos", "control"]}
STUDIES = (
    ({"train.seed": 3}, "set seeds: [...]", ({"seeds": [3]},)),
    ({"train.pruning": "dynamic"}, "set masks: [...] in a block of the grid",
     ({"grid": [GRID | {"masks": ["dynamic"]}]},)),
    ({"train.gates": {"scope": "per_task"}}, "write dynamic_per_task or static_per_task",
     ({"grid": [{"setups": ["MTL"], "masks": ["dynamic_per_task", "static_per_task"]}]},)),
    ({"grid": [GRID | {"masks_of": "x", "masks": ["fixed"], "set": {"gates.masks": "/p/gates.parquet"}},
               GRID | {"masks": ["dynamic"], "label": "x"}]}, "masks_of=x names the masks: leave gates.masks out",
     ({"grid": [GRID | {"masks_of": "x", "masks": ["fixed"]}, GRID | {"masks": ["dynamic"], "label": "x"}]},)),
    ({"grid": [GRID | {"masks_of": "x"}]}, "masks_of=x: also set masks: [fixed] or [fixed_per_task]",
     ({"grid": [GRID | {"masks_of": "x", "masks": ["fixed"]}, GRID | {"masks": ["dynamic"], "label": "x"}]},)),
    ({"grid": [GRID | {"masks_of": "x", "masks": ["fixed"]}, GRID | {"masks": ["dynamic"], "label": "y"}]},
     "use the label of exactly one such block",
     ({"grid": [GRID | {"masks_of": "y", "masks": ["fixed"]}, GRID | {"masks": ["dynamic"], "label": "y"}]},)),
    ({"grid": [GRID | {"masks": ["static"], "label": "z"}, GRID | {"label": "x"},
               GRID | {"label": "y", "set": {"max_epochs": 2}}]}, "x or y: label their block with one of these",
     ({"grid": [GRID | {"masks": ["static"], "label": "x"}, GRID | {"label": "x"},
                GRID | {"label": "y", "set": {"max_epochs": 2}}]},)),
    ({"grid": [GRID, GRID | {"set": {"max_epochs": 2}}]}, "give one of the blocks a label",
     ({"grid": [GRID, GRID | {"set": {"max_epochs": 2}, "label": "long"}]},)),
    ({"grid": [GRID | {"setups": ["pretrained", "STL"]}], "--train.encoder.weights": "random"},
     "and train.encoder.weights=random: set encoder.weights in the blocks that train with it",
     ({"grid": [GRID | {"setups": ["pretrained", "STL"]},
                GRID | {"label": "random", "set": {"encoder.weights": "random"}}]},)),
    ({"grid": [GRID | {"seeds": []}]}, "name at least one, or leave the key out",
     ({"grid": [GRID | {"seeds": [2]}]}, {"grid": [GRID]})),
    ({"seeds": []}, "name at least one, for instance seeds: [1, 2, 3]", ({"seeds": [1, 2, 3]},)),
    ({"grid": []}, "add a block, such as {setups: [STL, MTL]}", ({"grid": [{"setups": ["STL", "MTL"]}]},)),
    ({"sets": {"two": []}, "grid": [{"setups": ["two"]}]}, "list its tasks, for instance two: [pos, dep]",
     ({"sets": {"two": ["pos", "dep"]}, "grid": [{"setups": ["two"]}]},)),
    ({"sets": {"STL": ["pos"]}}, "choose another name for the set", ({"sets": {"alone": ["pos"]}},)),
    ({"grid": [CONTROL | {"setups": ["pos"]}], **WITH_CONTROL}, "trains the task control: add setup control",
     ({"grid": [CONTROL | {"setups": ["pos", "control"]}], **WITH_CONTROL},)),
    ({"grid": [GRID | {"draws": {"pos": [1]}}]}, "are not drawn at random: leave it out", ({"grid": [GRID]},)),
    ({"grid": [CONTROL | {"draws": {"control": []}}], **WITH_CONTROL}, "add at least one, or leave the key out",
     ({"grid": [CONTROL], **WITH_CONTROL}, {"grid": [{"setups": ["control"]}], **WITH_CONTROL})),
    ({"grid": [CONTROL | {"set": {"control.draw": 3}}], **WITH_CONTROL},
     "leave control.draw out of the block's set", ({"grid": [CONTROL], **WITH_CONTROL},)),
    ({"probes": {"measures": ["ablation"], "close": []}},
     "name what ablation closes, or leave ablation out of probes.measures",
     ({"probes": {"measures": ["ablation"], "close": ["layer"]}}, {"probes": {"measures": [], "close": []}})),
    ({"probes": {"measures": ["carry_over"]}}, "set probes.other, the other corpus",
     ({"probes": {"measures": ["carry_over"], "other": "/p/toy"}},)),
    ({"probes": {"measures": ["curve"], "orders": []}},
     "name at least one order, or leave curve out of probes.measures",
     ({"probes": {"measures": ["curve"], "orders": ["random"]}}, {"probes": {"measures": [], "orders": []}})),
    ({"train.tasks": ["classify"], "grid": [{"setups": ["pretrained"]}]}, "leave the setup out", ()),
    ({"grid": [GRID | {"set": {"tasks": ["pos"]}}]},
     "set train.tasks to all tasks of the study, and setups to the sets trained",
     ({"train.tasks": ["pos", "dep"], "grid": [{"setups": ["STL"]}]},)),
    ({"train.trainer": {"devices": 2, "accelerator": "cpu"}},
     "train.trainer.devices and num_nodes cannot be more than 1 in a study, whose runs are one process each: --jobs=N runs several at once",
     ({"--jobs": 2},)),
    ({"train.tasks": []}, "train.tasks is empty: choose at least one of pos", ({"train.tasks": ["pos"]},)),
)  # fmt: skip
"""Keys of a study's file that are refused, how the message ends, and keys that it recommends."""


@pytest.mark.parametrize(("refused", "says", "instead"), STUDIES, ids=lambda value: str(value)[:60])
def test_a_study_is_planned_as_a_message_recommends(
    refused, says, instead, toy, tiny_encoder, tmp_path, capsys
):
    def plan(keys: dict[str, Any]) -> int:
        train = {
            "corpus": {"path": str(toy)}, "encoder": {"name": str(tiny_encoder)}, "tasks": ["pos", "dep"],
            "trainer": {"accelerator": "cpu"}, "max_epochs": 1,
        }  # fmt: skip
        train |= {key.removeprefix("train."): keys[key] for key in keys if key.startswith("train.")}
        others = {key: value for key, value in keys.items() if not key.startswith(("train.", "--"))}
        study = {"studies": str(tmp_path / "studies"), "seeds": [1], "grid": [GRID], "train": train} | others
        file = tmp_path / "study.yaml"
        file.write_text(yaml.safe_dump(study).replace("/p/toy", str(toy)))
        options = [f"{key}={value}" for key, value in keys.items() if key.startswith("--")]
        return main(["study", str(file), "--dry_run", *options])

    assert plan(refused) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    for keys in instead:
        assert plan(keys) == 0, capsys.readouterr().err


RATES = {"optimizer.encoder_lr": {"values": [0.001, 0.0001]}}
SWEEP = {"method": "grid", "metric": {"name": "dev/mean", "goal": "maximize"}, "parameters": RATES}
RANDOM = SWEEP | {"method": "random"}


def stopping(**keys: Any) -> dict[str, Any]:
    return SWEEP | {"early_terminate": {"type": "hyperband", **keys}}


SWEEPS = (
    ({"method": "grid", "parameters": RATES, "metric": {"name": "dev/mean"}},
     "metric.goal is missing: add metric: {name: dev/mean, goal: maximize}", SWEEP, ""),
    (RANDOM, "never ends: use run_cap in the file, or --trials=20", RANDOM | {"run_cap": 3}, ""),
    (RANDOM, "never ends: use run_cap in the file, or --trials=20", RANDOM, "--trials=20"),
    (SWEEP | {"early_terminate": {}}, "type is missing: use {type: hyperband, min_iter: 3}", stopping(min_iter=3),
     "--max_epochs=9"),
    (stopping(min_iter=3), "lower min_iter, or raise max_epochs", stopping(min_iter=1), ""),
    (stopping(min_iter=3), "lower min_iter, or raise max_epochs", stopping(min_iter=3), "--max_epochs=9"),
    (stopping(max_iter=2, s=5), "leaves no comparison; raise it, or lower eta", stopping(max_iter=3, s=5), ""),
    (stopping(max_iter=2, s=5), "leaves no comparison; raise it, or lower eta", stopping(max_iter=2, s=5, eta=2), ""),
    (stopping(max_iter=1, s=1), "leaves no comparison; raise it", stopping(max_iter=3, s=1), ""),
    (stopping(max_iter=2), "use either min_iter, or max_iter and s; other combinations have no effect", stopping(max_iter=3, s=1), ""),
    (SWEEP | {"metric": {"name": "gates/open", "goal": "minimize"}}, "have no masks; set pruning=dynamic",
     SWEEP | {"metric": {"name": "gates/shared/open", "goal": "minimize"}}, "--pruning=dynamic"),
    (SWEEP | {"parameters": {"optimizer.encoder_lr": {"min": 0.1, "max": 0.2}}},
     "is drawn from a range: list its values", SWEEP, ""),
    (SWEEP | {"parameters": {"seed": 3}}, "use value, values, or min and max, for instance {values: [1, 2]}",
     SWEEP | {"parameters": {"seed": {"values": [1, 2]}}}, ""),
    (RANDOM | {"run_cap": 2, "parameters": {"seed": {"distribution": "normal", "mu": 1, "sigma": 1}}},
     "with --local use value, values, or min and max with uniform, int_uniform or log_uniform_values",
     RANDOM | {"run_cap": 2, "parameters": {"seed": {"distribution": "int_uniform", "min": 1, "max": 4}}}, ""),
    (SWEEP | {"program": "train.py"}, "use command: [mtl, train, FILE.yaml, '${args}']",
     SWEEP | {"command": ["mtl", "train", "pos", "${args}"]}, ""),
    (SWEEP | {"command": ["mtl", "train", "poss", "${args}"]}, "configurations that come with mtl are cola, con, dep",
     SWEEP | {"command": ["mtl", "train", "dep", "${args}"]}, ""),
    (SWEEP | {"command": ["python", "train.py"]},
     "train, FILE.yaml, --key=value, '${args}'], with or without FILE.yaml and --key=value, not [python, train.py]",
     SWEEP | {"command": ["mtl", "train", "pos", "--max_epochs=1", "${args}"]}, ""),
    (SWEEP | {"command": ["python", "train.py"]}, "with or without FILE.yaml and --key=value, not [python, train.py]",
     SWEEP | {"command": ["mtl", "train", "${args}"]}, ""),
    (SWEEP | {"command": ["mtl", "train", "--name=x", "${args}"]},
     "name=x cannot be set: a sweep names its runs itself", SWEEP | {"command": ["mtl", "train", "${args}"]}, ""),
    (SWEEP | {"command": ["mtl", "train", "--trainer.devices=2", "${args}"]},
     "leave trainer.devices and trainer.num_nodes at 1, and use --jobs=N", SWEEP, ""),
    (SWEEP | {"command": ["mtl", "train", "--optimizer.encoder_lr=1", "${args}"]}, "leave one out", SWEEP, ""),
    (SWEEP | {"controller": {"type": "local"}}, "with --local Optuna: leave it out", SWEEP, ""),
    (SWEEP | {"job": "x"}, "which mtl does not use: leave it out", SWEEP, ""),
    (SWEEP | {"name": "--"}, "has no letters or digits: use another", SWEEP | {"name": "a"}, ""),
)  # fmt: skip
"""Sweep files that are refused, how the message ends, and a file and an option that it recommends."""


@pytest.mark.parametrize(("refused", "says", "instead", "option"), SWEEPS, ids=lambda value: str(value)[:60])
def test_a_sweep_is_planned_as_a_message_recommends(
    refused, says, instead, option, toy, tiny_encoder, tmp_path, capsys
):
    def plan(file: dict[str, Any], *options: str) -> int:
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(file))
        words = ["sweep", str(tmp_path / "sweep.yaml"), f"--sweeps={tmp_path}", "--local", "--dry_run"]
        words += [f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", "--max_epochs=2"]
        return main([*words, *filter(None, options)])

    assert plan(refused) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert plan(instead, option) == 0, capsys.readouterr().err


def test_a_sweep_without_an_end_is_given_one_as_the_preview_says(toy, tiny_encoder, tmp_path, capsys):
    def preview(file: dict[str, Any], *options: str) -> str:
        (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(file))
        words = ["sweep", str(tmp_path / "sweep.yaml"), "--dry_run", *options]
        assert main([*words, f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}"]) == 0
        return capsys.readouterr().out

    advice = "trials: no limit; with --local, give run_cap or --trials=N"
    assert advice in preview(RANDOM)
    assert advice not in preview(RANDOM, "--local", "--trials=3", f"--sweeps={tmp_path}")
    assert advice not in preview(RANDOM | {"run_cap": 3}, "--local", f"--sweeps={tmp_path}")


@pytest.mark.slow
def test_a_cache_that_cannot_be_used_is_left_out_or_elsewhere(
    toy, tiny_encoder, tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MTL_CACHE", str(tmp_path / "file"))

    def train(store: str) -> int:
        words = ["train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", "--tasks=[pos]", *SHORT]
        return main([*words, f"--corpus.store={store}", f"--name={store}", f"--runs={tmp_path}"])

    assert train("disk") == 2
    advice = "set MTL_CACHE to a folder with room for large corpora, or corpus.store=memory"
    assert advice in capsys.readouterr().err
    assert train("memory") == 0
    monkeypatch.setenv("MTL_CACHE", str(tmp_path / "folder"))
    assert train("disk") == 0


class Around(nn.Module):
    """A module that holds models."""

    def __init__(self, *models: nn.Module) -> None:
        super().__init__()
        self.inner = models[0] if len(models) == 1 else nn.ModuleList(models)


IDS = tiny.batch()[0]


def rows(model: Any, batch: Any) -> torch.Tensor:
    value: torch.Tensor = model(batch).last_hidden_state.tanh().sum((1, 2))
    return value


def bert() -> Any:
    return tiny.model("bert", dtype=torch.float32)


def cut(model: Any, **options: Any) -> None:
    mtl.prune_heads(model, {0: [1]}, **options)


def measured(model: Any) -> None:
    mtl.head_importance(model, [IDS], rows)


def of_cut_configuration() -> Any:
    first = bert()
    cut(first)
    return AutoModel.from_config(first.config)


def quantised() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(bert(), {nn.Linear})


def with_own_forward() -> Any:
    model = bert()
    part = model.encoder.layer[0].attention.self
    part.forward = lambda *given, **named: type(part).forward(part, *given, **named)
    return model


def restored(model: Any) -> Any:
    del model.encoder.layer[0].attention.self.forward
    return model


def own_configuration(_: Any) -> Any:
    return AutoModel.from_config(bert().config)


def shared(model: Any) -> None:
    mtl.collaborate(model, 8)


def twice(model: Any) -> None:
    shared(model)
    shared(model)


def within_a_block(model: Any) -> None:
    with mtl.head_scale(model, torch.ones(tiny.LAYERS, tiny.HEADS)):
        cut(model)


def under_inference(model: Any) -> None:
    with torch.inference_mode():
        measured(model)


def made_under_inference() -> Any:
    with torch.inference_mode():
        return bert()


def scaled(rows_of_scale: int, neighbours: int = 1) -> Callable[[Any], None]:
    def run(model: Any) -> None:
        scale = torch.ones(rows_of_scale, tiny.LAYERS, tiny.HEADS)
        with mtl.head_scale(model, scale if rows_of_scale > 1 else scale[0], neighbours=neighbours):
            model(IDS)

    return run


def closed_in(*layers: int) -> Callable[[Any], None]:
    return lambda model: mtl.prune_heads(model, {layer: [1] for layer in layers}, keep_shape=True)


def same(model: Any) -> Any:
    return model


def in_thread(start: Callable[[], Callable[..., None]]) -> Callable[..., torch.Tensor]:
    """A score whose passes are in a thread that `start` starts."""

    def run(model: Any, batch: Any) -> torch.Tensor:
        found: list[torch.Tensor] = []
        thread = threading.Thread(target=start(), args=(lambda: found.append(rows(model, batch)),))
        thread.start()
        thread.join()
        return found[0]

    return run


def of_another(_: Any, batch: Any) -> torch.Tensor:
    """A score of another model than the one that is measured."""
    return rows(bert(), batch)


def called(function: Callable[[], None]) -> None:
    function()


def in_context() -> Callable[..., None]:
    return contextvars.copy_context().run


def measured_in(start: Callable[[], Callable[..., None]]) -> Callable[[Any], None]:
    def run(model: Any) -> None:
        mtl.head_importance(model, [IDS], in_thread(start))

    return run


def scaled_in(start: Callable[[], Callable[..., None]]) -> Callable[[Any], None]:
    def run(model: Any) -> None:
        with mtl.head_scale(model, torch.ones(tiny.LAYERS, tiny.HEADS)):
            in_thread(start)(model, IDS)

    return run


def of_groups(number: int) -> Callable[[Any], Any]:
    def changed(model: Any) -> Any:
        model.config.num_key_value_heads = number
        return model

    return changed


def of_one_configuration(copied: bool) -> Any:
    """A model whose configuration another one has, too, which was cut."""
    model = bert()
    other = bert()
    cut(other)
    model.config = copy.deepcopy(model.config) if copied else other.config
    return model


def stored(change: Callable[[Any], Any] = same) -> Callable[[Any], Any]:
    """Loads a model that was saved, by AutoModel or another function."""

    def loaded(model: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            model = bert()
            change(model)
            model.save_pretrained(folder)
            return mtl.load_pruned(folder) if change is not same else AutoModel.from_pretrained(folder)

    return loaded


def loaded_by(**options: Any) -> Callable[[Any], None]:
    def load(_: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            bert().save_pretrained(folder)
            mtl.load_pruned(folder, **options)

    return load


def joint() -> JointModel:
    return JointModel(tiny.encoder("bert"), {"pos": Pos()}, {"pos": Labels({"pos": ("A", "B")})})


def annotates(sentence: Any, **options: Any) -> Callable[[Any], None]:
    def run(model: Any) -> None:
        model.annotate([sentence], **options)

    return run


def beneath(model: Any) -> Any:
    base = model.get_base_model()
    closed_in(0)(base)
    return type(model)(base)


def lowest_of(table: Any) -> None:
    mtl.lowest(table, 1)


def class_of(sentence: Sentence) -> None:
    Classify().targets(sentence, Labels(("a",)))


SENTENCE, TAGGED = Sentence(("a",)), Sentence(("a",), tags=("A",), classify="a")


SHARING: Any = (
    ()
    if may_be_absent(["collaborate"])
    else (
        (with_own_forward, shared, "restore that of its class first (del module.forward)", restored, shared),
        (bert, twice, "use the model that it was made from", lambda _: bert(), shared),
    )
)
MODELS: tuple[tuple[Callable[[], Any], Callable[[Any], None], str, Callable[[Any], Any], Callable[[Any], None]], ...] = (
    (lambda: nn.DataParallel(bert()), cut, "use the model inside (its .module)", lambda m: m.module, cut),
    (lambda: Around(bert()), cut, "use its .inner (BertModel)", lambda m: m.inner, cut),
    (lambda: Around(bert(), bert()), measured, "use .inner[0] (BertModel) or .inner[1] (BertModel)",
     lambda m: m.inner[0], measured),
    (of_cut_configuration, cut, "give every model a configuration of its own (copy.deepcopy)",
     own_configuration, cut),
    (bert, within_a_block, "change heads before that block", same, cut),
    (bert, under_inference, "call it outside of that block", same, measured),
    (made_under_inference, cut, "load the model outside of that block", lambda _: bert(), cut),
    (quantised, measured, "use the model as it was before quantize_dynamic (ablate_heads works on this one, too)",
     same, lambda m: mtl.ablate_heads(m, [IDS], rows)),
    (quantised, measured, "use the model as it was before quantize_dynamic", lambda _: bert(), measured),
    *SHARING,
    (bert, scaled(5), "Use one scale per row of the pass, one for all rows, or neighbours=K in a beam search", same,
     scaled(len(IDS))),
    (bert, scaled(5), "one for all rows", same, scaled(1)),
    (bert, scaled(3), "neighbours=K", same, scaled(len(IDS) // 2, 2)),
    (lambda: tiny.model("albert", dtype=torch.float32), closed_in(0),
     "close the same heads in all layers that share one", same, closed_in(*range(tiny.LAYERS))),
    (lambda: tiny.translator("bart", dtype=torch.float32).get_encoder(), cut,
     "use the whole model, whose config.json records what is changed",
     lambda _: tiny.translator("bart", dtype=torch.float32), cut),
    (bert, lambda model: mtl.head_importance(model, [IDS], of_another), "and start threads with contextvars.copy_context().run", same, measured_in(in_context)),
    (bert, scaled_in(lambda: called), "start threads inside with contextvars.copy_context().run", same, scaled_in(in_context)),
    (lambda: pl.DataFrame({"a": [1]}), lowest_of,
     "use one with a row per head, such as head_importance, ablate_heads and probe give",
     lambda _: mtl.head_importance(bert(), [IDS], rows), lowest_of),
    (lambda: pl.DataFrame({"a": [1]}), lowest_of, "such as head_importance, ablate_heads and probe give",
     lambda _: mtl.ablate_heads(bert(), [IDS], rows, draws=1), lowest_of),
    (lambda: torch.int8, dtype_of, "use auto, torch.float32 or another floating point type of torch",
     lambda _: torch.float32, dtype_of),
    (lambda: torch.int8, dtype_of, "use auto, torch.float32 or another floating point type of torch",
     lambda _: "auto", dtype_of),
    (lambda: None, loaded_by(torch_dtype=torch.float32), "use dtype=", same, loaded_by(dtype=torch.float32)),
    (lambda: of_one_configuration(False), cut,
     "load what was cut by mtl.load_pruned, and give every model a configuration of its own (copy.deepcopy)",
     lambda _: of_one_configuration(True), cut),
    (lambda: of_one_configuration(False), cut, "give every model a configuration of its own (copy.deepcopy)",
     stored(closed_in(0)), cut),
    (bert, lambda model: mtl.prune_heads(model, {0: [1]}, family="unknown"),
     "use a row (mtl.Family) or the name of one in the table (mtl/heads/family_table.py), such as vit or llama", same,
     lambda model: mtl.prune_heads(model, {0: [1]}, family="bert")),
    (lambda: of_groups(3)(tiny.model("llama", dtype=torch.float32)), measured, "correct num_key_value_heads in its config.json",
     of_groups(tiny.model("llama").config.num_key_value_heads), measured),
    (lambda: "bert", cut, "load it first (AutoModel.from_pretrained)", stored(), cut),
    (lambda: nn.Linear(2, 2), cut, "use the whole model, as AutoModel.from_pretrained returns it", stored(), cut),
    (offloaded, cut, "load the model without device_map, or onto devices that hold all of it", stored(), cut),
    (lambda: Prefixed(tiny.model("bert", dtype=torch.float32)), cut,
     "Change model.get_base_model() and tune prefixes afterwards: they fit if heads were only closed (prune_heads "
     "with keep_shape=True), or if every group of grouped queries has kept a head", beneath, lambda model: model.get_base_model()(IDS)),
    (joint, annotates("We ate ."), "split it, as in 'We ate .'.split() (annotate_text takes running text)", same,
     annotates(["We", "ate", "."])),
    (joint, annotates(["a"] * 520), "split it, or raise max_words (memory grows with its square, time with its cube)",
     same, annotates(["a"] * 260)),
    (joint, annotates(["a"] * 520), "raise max_words (memory grows with its square, time with its cube)",
     same, annotates(["a"] * 520, max_words=520)),
    (lambda: SimpleNamespace(is_fast=False), lambda tokenizer: SubwordTokenizer(tokenizer, 64), "use an encoder with a tokenizer.json",
     lambda _: tiny.tokenizer("bert"), lambda tokenizer: SubwordTokenizer(tokenizer, 64)),
    (lambda: SENTENCE, lambda sentence: annotated_layer(sentence, "tags"), "has no tags: ask annotated() first",
     lambda sentence: next(filter(Pos().annotated, (sentence, TAGGED))), lambda sentence: annotated_layer(sentence, "tags")),
    (lambda: SENTENCE, class_of, "has no class of classify: ask annotated() first",
     lambda sentence: next(filter(Classify().annotated, (sentence, TAGGED))), class_of),
)  # fmt: skip
"""A model, what is refused for it, how the message ends, the model to use instead, and what succeeds."""


@pytest.mark.parametrize(
    ("make", "refused", "says", "other", "instead"), MODELS, ids=[row[2][:60] for row in MODELS]
)
@pytest.mark.usefixtures("as_installed")
def test_a_model_is_used_as_a_message_recommends(make, refused, says, other, instead):
    model = make()
    with pytest.raises((InputError, ValueError, UserWarning), match=re.escape(says)):
        refused(model)
    instead(other(model))


ADVICE = re.compile(
    r"(?:^|[:;,(—] |, or |[.] )(?:or |and |then |first |please |either |also )?(?:add|ask|call|change|choose|close|"
    r"compare|convert|copy|correct|cut|delete|draw|end|fix|free|give|go|install|label|leave|list|load|log|lower|make|"
    r"measure|merge|name|pass|pip|probe|put|raise|remove|rename|restore|run|save|see|select|send|set|split|start|stop|"
    r"take|train|translate|try|unpack|unset|unwrap|use|wait|write)\b|'mtl [a-z◇]|pip install",
    re.I,
)  # fmt: skip
NAMES = re.compile(
    r"(?<![\w-])--[a-z◇]|'mtl |\b[a-z_]+\.[a-z_]+(?!\.)|\b[a-z_]+=|\w\(\w*\)|[a-z]_[a-z]|pip install"
)
"""Commands, options, keys and functions: what can be run. Other advice is on the value or file that is wrong."""
LISTED = sorted(Path(__file__).parent.rglob("ways_out.txt"))
"""The list of the core, and those of features beside their tests."""


def end_of(text: str) -> str:
    """The part of a message from its first advice on; empty if it names nothing that can be run."""
    found = ADVICE.search(text)
    end = "" if found is None else text[found.start() :].lstrip(":;,(—. ")
    return end if NAMES.search(end) else ""


def advice() -> set[tuple[str, str]]:
    """The recommendations of all messages, each with its file; pages and the laboratory's figures have none."""
    return {
        (text.path, end)
        for text in texts_and_identifiers()[0]
        if not {"report", "stem_cell"} & {*text.path.split("/")}
        and text.path != "mtl/commands/command_table.py"
        if (end := end_of(text.text))
    }


def run_here() -> Sequence[str]:
    """The ends of messages that the rows of this file follow."""
    ways = [way.says for way in (*TRAINED, *MEASURED, *FURTHER)]
    ways += [f"'{made_with(measure)}' makes it" for measure in BY_NAME]
    return [*ways, *(row[1] for row in (*CONFIGURATIONS, *STUDIES, *SWEEPS)), *(row[2] for row in MODELS)]


def is_run(end: str) -> bool:
    """Whether a row of this file says what a recommendation says; a `◇` stands for any text."""
    parts = re.split(r"◇|\{[a-z_]+[.\[][^{}]*\}", end.replace("{{", "{").replace("}}", "}"))
    pattern = re.compile("(.*?)".join(map(re.escape, parts)) + "$")
    return any(pattern.search(says) for says in run_here())


def listed() -> dict[tuple[str, str], str]:
    """The recommendations of the list, each with the test that follows it, or the reason why none does."""
    lines = (line for path in LISTED for line in path.read_text().splitlines())
    rows = [line.split("\t") for line in lines if "\t" in line]
    return {(path, end): why for path, end, why in rows}


def test_a_recommendation_is_run_here_or_listed():
    not_run = {(path, end) for path, end in advice() if not is_run(end)}
    assert not_run - listed().keys() == set()
    assert listed().keys() - not_run == set()


@pytest.mark.parametrize("why", sorted(set(listed().values())))
def test_what_the_list_names_is_a_test_or_a_reason(why):
    path, names, test = why.partition("::")
    if names:
        functions = ast.walk(ast.parse((ROOT / path).read_text()))
        assert test in [function.name for function in functions if isinstance(function, ast.FunctionDef)]
    else:
        assert len(why.split()) > 2


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("◇ is empty: use gates.lr=1, or leave it out", "use gates.lr=1, or leave it out"),
        ("two models: use one", ""),
        ("two models", ""),
        ("no heads.parquet; 'mtl probe ◇' makes it", "'mtl probe ◇' makes it"),
    ],
)
def test_the_advice_of_a_message_is_found(text, end):
    assert end_of(text) == end
