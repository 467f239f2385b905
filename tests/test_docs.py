"""What the pages say to write is written and run here, and the reference knows every module."""

from __future__ import annotations

import ast
import csv
import dataclasses
import html
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from matplotlib import pyplot as plt
from transformers import AutoModelForSequenceClassification

import mtl.tasks
from mtl.commands.command_table import arguments_for
from mtl.commands.main import _command
from mtl.config.parse import configuration_from
from mtl.corpora.readers import FORMATS, read_sentences
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.features import features
from mtl.heads.family_table import FAMILIES
from mtl.tasks.sentence import Sentence
from tests.kit.absent import absent_features, may_be_absent, needs
from tests.kit.without import copy_without, files_of
from tests.mtl import tiny

if "study" in features():
    from mtl.study.config import KINDS, ClaimsConfig, GridBlock, ProbesConfig, StudyConfig
    from mtl.study.grid import planned, probes_the_encoder

of_studies = needs("study")

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PACKAGES = ("tasks", "probes", "mtl")
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[tuple[str, str]]:
    """The code blocks of a page as title and text."""
    found = [match.groups() for match in _BLOCK.finditer((DOCS / page).read_text())]
    return [(title or "", text) for kind, title, text in found if kind == language]


# Commits of other repositories, and one of a history that is lost.
COMMITS_ELSEWHERE = {"48a6280", "842c6ac", "d5015a3", "2bbe669"}


def _git(*arguments: str, given: str = "") -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def patch(path: Path, diff: str) -> None:
    """Replace each stretch of `-` lines, which must be there once, by the `+` lines after it."""
    content = path.read_text()
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, re.MULTILINE):
        before, after = ("\n".join(line[1:] for line in lines.splitlines()) for lines in (old, new))
        assert content.count(before) == 1, (
            f"{path.name}: {before!r} stands there {content.count(before)} times"
        )
        content = content.replace(before, after)
    path.write_text(content)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with the task of the page in it."""
    folder = tmp_path_factory.mktemp("extended")
    for package in (*PACKAGES, "configs"):
        left_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, symlinks=True, ignore=left_out)
    for title, text in blocks("own-task.md", "python"):
        (folder / title).write_text(text)
    for title, text in blocks("own-task.md", "diff"):
        patch(folder / title, text)
    return folder


@pytest.fixture
def case(extended: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The task of the page as a module among our own, until the test is over."""
    monkeypatch.setattr(mtl.tasks, "__path__", [*mtl.tasks.__path__, str(extended / "tasks")])
    yield importlib.import_module("mtl.tasks.case")
    for name in ("mtl.tasks.case", "mtl.tasks.capitals"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_the_task_of_the_page_trains_beside_another(
    extended: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    write_toy(tmp_path, 60, 10, 10, seed=1)
    words = ["train", "configs/dep.yaml", "--tasks=[case,dep]", "--max_epochs=3", "--name=case",
             f"--corpus.path={tmp_path}", f"--encoder.name={tiny_encoder}", "--optimizer.encoder_lr=0.003",
             "--optimizer.decoder_lr=0.03", "--batch.sentences=4"]  # fmt: skip
    code = f"""
from mtl import JointModel
from mtl.commands.main import main

assert main({words}) == 0
(sentence,) = JointModel.from_pretrained("runs/case").annotate([["the", "DOG", "saw", "iPods", "."]])
print("\\n", *sentence.words, len(sentence.arcs.heads))
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=extended,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    written = done.stdout.splitlines()[-1].split()
    assert written[3:] == ["iPods", ".", "5"]
    assert [word.lower() for word in written[:3]] == ["the", "dog", "saw"]
    with (extended / "runs" / "case" / "history.csv").open() as file:
        losses = [float(row["loss/case"]) for row in csv.DictReader(file)]
    assert losses[-1] < 0.9 * losses[0]


def test_the_task_of_the_page_keeps_to_the_contract(case: ModuleType) -> None:
    """Padding changes nothing, gold scores 100, and what cannot be represented is counted."""
    task = case.Case(dropout=0.0)
    sentences = [Sentence(("The", "NATO", "summit", "iPod", ".")), Sentence(("Ann", "sang"))]
    labels = task.labels(sentences)
    assert [task.dropped(sentence, labels) for sentence in sentences] == [1, 0]
    targets = [task.targets(sentence, labels) for sentence in sentences]
    decoder = task.new_decoder(8, labels).eval()
    words, mask = torch.randn(2, 7, 8), torch.arange(7) < torch.tensor([[5], [2]])
    together = decoder.loss(decoder(words, mask), task.collate(targets, 7), mask)
    for row, target in enumerate(targets):
        part = slice(row, row + 1), slice(len(target.labels))
        alone = decoder.loss(
            decoder(words[part], mask[part]), task.collate([target], part[1].stop), mask[part]
        )
        torch.testing.assert_close(alone[0], together[row])
    gold = [
        tuple(labels[index] if index >= 0 else "lower" for index in target.labels.tolist())
        for target in targets
    ]
    annotated = [task.annotate(sentence, labels) for sentence, labels in zip(sentences, gold, strict=True)]
    assert annotated == sentences
    metric = task.metric()
    metric.update(gold, sentences)
    assert metric.compute() == {"f1": 100.0}
    metric.update([("lower",) * 5, ("title", "title")], sentences)
    # Right 3 + 1, found 3 + 2, there 3 + 3.
    assert metric.compute()["f1"] == pytest.approx(200 * 4 / (5 + 6))


@pytest.fixture
def families() -> Iterator[None]:
    """The table of families, put back as it was."""
    before = dict(FAMILIES)
    yield
    FAMILIES.clear()
    FAMILIES.update(before)


@pytest.mark.usefixtures("families")
def test_the_family_of_the_page_keeps_the_laws(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for _, text in blocks("own-encoder.md", "python"):
        exec(compile(text, "own-encoder.md", "exec"), names)
    quoted = re.findall(r"^> ?(.*)$", (DOCS / "own-encoder.md").read_text(), re.MULTILINE)
    assert capsys.readouterr().out.strip() == " ".join(quoted)
    assert FAMILIES["my-bert"].stacks[0].attention == FAMILIES["bert"].stacks[0].attention


@needs("patterns")
def test_the_script_for_any_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model of the same name stands in for the one on the hub."""
    monkeypatch.chdir(tmp_path)
    text = "\n".join(text for _, text in blocks("any-model.md", "python"))
    [name] = re.findall(r'^name = "(.*?)"', text, re.MULTILINE)
    AutoModelForSequenceClassification.from_config(tiny.config("bert")).save_pretrained(name)
    tiny.tokenizer("bert").save_pretrained(name)
    names: dict[str, Any] = {}
    exec(compile(text, "any-model.md", "exec"), names)
    plt.close("all")
    assert (tmp_path / "layer1.png").is_file()
    cut = names["model"].config.pruned_heads
    assert sum(map(len, cut.values())) == 2
    assert (tmp_path / "closed/config.json").is_file()
    assert names["vit"].config.pruned_heads


def test_the_page_shows_one_sentence_in_every_format(tmp_path: Path) -> None:
    ((_, record),) = blocks("own-data.md", "json")
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(json.loads(record)) + "\n")
    (whole,) = read_sentences(path, "jsonl")
    on_words = {"upos", "tags", "entities", "arcs", "tree", "frames", "lemmas", "feats"}
    assert whole.layers.keys() == {*on_words, "cola"}
    shown = {}
    for name, text in blocks("own-data.md", "text"):
        path = tmp_path / FORMATS[name].patterns[0].replace("*", "shown-")
        path.write_text(text)
        (shown[name],) = read_sentences(path, name)
        assert shown[name].words == whole.words
    layers = {
        "conllu": ("tags", "upos", "lemmas", "feats", "arcs"),
        "conll2003": ("entities",),
        "columns": ("tags",),
        "brackets": ("tags", "tree"),
        "conll2005": ("frames",),
        "conll2012": ("tags", "tree", "entities", "frames"),
    }
    assert shown.keys() == layers.keys()
    assert shown["conllu"].id == whole.id
    for name, fields in layers.items():
        for field in fields:
            # CoNLL-2005 names the same roles A0 and AM-LOC.
            given, due = (repr(each.layer(field)).replace("ARG", "A") for each in (shown[name], whole))
            assert given == due, f"{name}: {field}"


def test_the_page_lists_every_format() -> None:
    page = (DOCS / "own-data.md").read_text()
    table = page[page.index("| `format`") : page.index("The sentence from above")]
    for name, form in FORMATS.items():
        prefix, _, suffix = name.rpartition("-")
        assert f"`{name}`" in table or (f"`{prefix}-" in table and f"`-{suffix}`" in table), name
        assert all(f"`{pattern}`" in table for pattern in form.patterns), name


@of_studies
def test_the_study_of_the_page_has_the_runs_that_it_says() -> None:
    ((_, text),) = blocks("study.md", "yaml")
    study = configuration_from(StudyConfig, yaml.safe_load(text), "study.md")
    runs = planned(study, Path("studies/small"))
    # Per seed four tasks alone and all of them, each without and with masks, and a set.
    assert len(runs) == 3 * (2 * (4 + 1) + 1)
    assert probes_the_encoder(study)
    assert {"dep-seed1", "MTL-dynamic-seed3", "dep+srl-slow-seed2"} <= {run.name for run in runs}
    parsers = dataclasses.replace(study, grid=(GridBlock(setups=("parsers",)),))
    assert [run.name for run in planned(parsers, Path("x"))] == [
        "parsers-seed1",
        "parsers-seed2",
        "parsers-seed3",
    ]


@of_studies
def test_the_page_on_studies_names_every_key() -> None:
    page = (DOCS / "study.md").read_text()
    keys = {each.name for kind in (StudyConfig, GridBlock) for each in dataclasses.fields(kind)}
    keys |= {f"probes.{each.name}" for each in dataclasses.fields(ProbesConfig)}
    keys |= {f"claims.{each.name}" for each in dataclasses.fields(ClaimsConfig)}
    assert [
        key for key in sorted(keys | KINDS.keys()) if not re.search(rf"[`\s]{re.escape(key)}[`:]", page)
    ] == ["claims"]  # a section, which the page has by its keys


PAGES = ("../README.md", *sorted({page.name for page in DOCS.glob("*.md")} - {"own-task.md"}))
"""README and all pages but that of a task that is not there, and those on results, which are of their day."""


def commands_of(page: str) -> Iterator[list[str]]:
    """The words after `mtl` of every command in a page's shell blocks; a shell's variables are 1."""
    for language in ("sh", "bash"):
        for _, text in blocks(page, language):
            for line in text.replace("\\\n", " ").splitlines():
                for words in re.findall(r"(?:^|[|;&] |do )mtl (.*?)(?= [|<>] | && |; done|$)", line):
                    yield shlex.split(re.sub(r"\$\w+|(?<==)S\b", "1", words), comments=True)


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_pages_are_taken(page: str, tmp_path: Path) -> None:
    """Names of commands, options and keys, and the values of all that are no files but those of the page."""
    shown = {name: text for name, text in blocks(page, "yaml") if name}
    for name, text in shown.items():
        (tmp_path / name).write_text(text)
    for words in (words for words in commands_of(page) if words != ["--version"]):
        if may_be_absent(words):
            continue
        name, rest = _command(words)
        arguments = arguments_for(name)
        known = [word for word in rest if not word.startswith("[")]  # what may be left out
        if any(word.startswith("--help") for word in known):
            continue
        if arguments.keys is None:
            arguments.read(f"mtl {name}", known)
        elif name == "train":
            file = str(tmp_path / known[0]) if known[0] in shown else known[0]
            known[0] = file
            ours = not file.isupper() and (not file.endswith(".yaml") or (ROOT / file).is_file())
            arguments.read(f"mtl {name}", known if ours else known[1:])["words"].configured()


def commands_in_cells(page: str) -> Iterator[list[str]]:
    """The words after `mtl` of the code in tables' last cells; options alone belong to the command before."""
    for row in re.findall(r"^\|.*\|(.*)\|$", (DOCS / page).read_text(), re.MULTILINE):
        command = ["train"]
        for code in re.findall(r"`([^`]+)`", row):
            words = shlex.split(code) if code.startswith(("mtl ", "--")) else []
            if words[:1] == ["mtl"]:
                command = [word for word in words[1:] if not word.startswith("--")]
                yield words[1:]
            elif words:
                yield [*command, *words]


@pytest.mark.skipif(bool(absent_features()), reason="the table has options of all features")
def test_commands_in_the_table_for_users_of_other_systems_are_taken() -> None:
    """Options, keys and values; arguments that the table does not show are not missed."""
    shown = list(commands_in_cells("coming-from.md"))
    assert len(shown) > 70
    for words in shown:
        name, rest = _command(words)
        arguments = arguments_for(name)
        if name == "figure":  # its name is looked at when nothing is missing
            rest = [rest[0], "RUN", "--out=figure.png", *(word for word in rest if word[:7] == "--tasks")]
        if arguments.keys is None:
            told = []
            try:
                arguments.read(f"mtl {name}", rest)
            except InputError as error:
                told = [str(error)]
            assert not told or " is missing; usage" in told[0], words
        elif name == "train":
            options = [word for word in rest if word.startswith("--")]
            arguments.read(f"mtl {name}", options)["words"].configured()


def test_python_of_the_pages_is_valid() -> None:
    for page in ("../README.md", *(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))):
        for _, text in blocks(page, "python"):
            ast.parse(text, page)


@pytest.mark.slow
def test_the_site_is_whole_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    pages = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.html")}
    for path, page in pages.items():
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="([^"]*)"|<link[^>]* href="([^"]*)"', page)
        assert not [each for each in loaded if re.match(r"(https?:)?//", "".join(each))], path
    reference = "".join(page for path, page in pages.items() if path.parts[0] == "reference")
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for above, package in ((ROOT, "mtl"), (ROOT / "mtl", "tasks"), (ROOT / "mtl", "probes"))
        for path in (above / package).rglob("*.py")
    }
    known = set(re.findall(r'id="([\w.]+)"', reference))
    missing = modules - known - {"mtl.__main__", "mtl.probes", "mtl.tasks"}
    assert not missing, f"on no page of docs/reference: {', '.join(sorted(missing))}"
    # Shapes are readable: each as it stands in the code.
    shown = html.unescape(re.sub(r"<[^>]*>", "", pages[Path("reference/models.html")]))
    assert 'Float[Tensor, "batch word hidden"]' in shown


def test_pages_of_features_are_listed_where_the_site_is_made() -> None:
    settings = re.search(r"(?ms)^extra:.*?^  features:[^\n]*\n(.*?)\n\n", (ROOT / "mkdocs.yml").read_text())
    assert settings is not None
    listed = yaml.safe_load(settings[1])
    for name in features():
        pages = {path.removeprefix("docs/") for path in files_of(name) if path.startswith("docs/")}
        assert {*listed[name]} == {page for page in pages if (DOCS / page).is_file()}, name
    assert listed.keys() >= {*features()}


@pytest.mark.slow
def test_pages_go_with_the_folders_of_their_features(tmp_path: Path) -> None:
    """Without any feature, the site is whole: no page and no link leads to what is gone."""
    copy_without([*features()], tmp_path / "core")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", f"--site-dir={tmp_path / 'site'}"],
        cwd=tmp_path / "core", capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(tmp_path / "core")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    made = {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert {"training", "masks"} <= made
    assert not made & {"serving", "contest", "curves"}


def test_commits_that_the_pages_name_can_be_checked_out() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    named = {
        word: f"{page.relative_to(ROOT)}: {word}"
        for page in pages
        for word in re.findall(r"\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,8}\b", page.read_text())
        if word not in COMMITS_ELSEWHERE
    }
    if _git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("the history is not here")
    answers = _git("cat-file", "--batch-check", given="\n".join(named)).splitlines()
    kinds = {name: answer.split()[1] for name, answer in zip(named, answers, strict=True)}
    assert [named[name] for name, kind in kinds.items() if kind != "commit"] == []


@pytest.mark.parametrize("folder", ["benchmarks", "docs"])
def test_programs_beside_the_package_import_what_there_is(folder: str) -> None:
    missing: list[str] = []
    for path in sorted((Path(__file__).parents[1] / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module is None or module.partition(".")[0] not in ("mtl", "tests", "benchmarks"):
                continue
            if absent_features() & {*module.split(".")}:
                continue
            there = importlib.import_module(module)
            missing += [
                f"{path}: {module}.{name.name}" for name in node.names
                if not hasattr(there, name.name) and find_spec(f"{module}.{name.name}") is None
            ]  # fmt: skip
    assert not missing
