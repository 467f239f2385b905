"""Folders from strangers: their code never runs, and their sizes must fit their weights."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import re
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch

from mtl import load_pruned
from mtl.errors import InputError
from mtl.features import added
from mtl.heads.gates import HeadGates
from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from mtl.tasks.catalogue import TASKS
from tests.mtl import tiny

ROOT = Path(__file__).parents[3]
ENCODERS = (
    "bert",
    "albert",
    "distilbert",
    "roformer",
    "gpt2",
    "llama",
    "deberta-v2",
    "modernbert",
    "mixtral",
)
TRANSLATORS = ("t5", "marian", "bart")
OWN_MODELS = [resolve_name(kind.encoder) for kind in added(lambda feature: feature.own_models).values()]
"""The classes of models that take the place of an encoder."""
ROOM = 2 << 30
"""Bytes of address space that opening a folder may take."""
SECONDS = 10


def test_no_model_is_opened_without_refusing_its_code() -> None:
    """Every call of transformers' `from_pretrained` in the packages says so itself."""
    lacking, opening = [], ("from_pretrained", "from_config", "pipeline")
    for path in (path for room in ("mtl", "tasks", "probes") for path in (ROOT / room).rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if any(name in text for name in opening) else ():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in opening:
                owner = ast.unparse(node.func.value)
                safe = any(
                    each.arg == "trust_remote_code" and ast.unparse(each.value) == "False"
                    for each in node.keywords
                )
                if not safe and owner not in ("JointModel", "Encoder", "Seq2Seq", "cls"):
                    lacking.append(f"{path.name}: {ast.unparse(node)[:80]}")
    # It makes a model of a configuration of its own, not of a folder.
    assert [
        each for each in lacking if not each.startswith("seq2seq.py: AutoModelForSeq2SeqLM.from_config(")
    ] == []


CODE = "import pathlib\npathlib.Path({marker!r}).write_text('ran')\nclass Evil: pass\n"


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code of its own; nobody may be asked whether to run it."""

    def asked(prompt: str = "") -> str:
        raise AssertionError(f"asked: {prompt}")

    monkeypatch.setattr("builtins.input", asked)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "stranger"
    tiny.encoder("bert", dtype=torch.float32).save(folder)
    (folder / "encoder.json").unlink()
    (folder / "evil.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    return folder


def changed(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


AUTO_MAP = {
    name: f"evil.{name}"
    for name in ("AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM", "AutoTokenizer", "AutoModelForMaskedLM")
}


@pytest.mark.parametrize(
    "opened", [Encoder.from_pretrained, *(model.from_pretrained for model in OWN_MODELS), load_pruned]
)
@pytest.mark.parametrize("kind", ["evilbert", "bert"])
@pytest.mark.parametrize("tokenizer_class", [None, "EvilTokenizer"])
def test_a_folders_code_neither_runs_nor_is_offered(
    stranger: Path, opened: Callable[[str], Any], kind: str, tokenizer_class: str | None
) -> None:
    changed(stranger / "config.json", model_type=kind, auto_map=AUTO_MAP)
    auto_map: dict[str, Any] = AUTO_MAP | {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    changed(stranger / "tokenizer_config.json", auto_map=auto_map, tokenizer_class=tokenizer_class)
    message = ""
    try:
        opened(str(stranger))
    except InputError as error:
        message = str(error)
    assert "\n" not in message
    unknown = "models of type 'evilbert' need code of their own folder, which is not run"
    assert (unknown in message) == (kind == "evilbert")
    assert not (stranger.parent / "ran").exists()


class Evil:
    """Leaves a mark where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def _pickled(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


PICKLES: dict[str, Callable[[Path], bytes]] = {
    "code": lambda marker: _pickled({"x": Evil(marker)}),
    "code, in torch's old form": lambda marker: _pickled(
        {"x": Evil(marker)}, _use_new_zipfile_serialization=False
    ),
    "code, by pickle alone": lambda marker: pickle.dumps({"x": Evil(marker)}, 2),
    "nothing": lambda _: b"",
    "something else": lambda _: b"hello" * 100,
    "a part": lambda _: _pickled({"x": torch.ones(1000)})[:2000],
    "no mapping": lambda _: _pickled([1, 2]),
}


@pytest.mark.parametrize("opened", [Encoder.from_pretrained, load_pruned])
@pytest.mark.parametrize("kind", PICKLES)
def test_weights_that_are_no_tensors_are_one_line(
    stranger: Path, opened: Callable[[str], Any], kind: str
) -> None:
    (stranger / "model.safetensors").unlink()
    (stranger / "pytorch_model.bin").write_bytes(PICKLES[kind](stranger.parent / "ran"))
    with pytest.raises(InputError, match="cannot load") as error:
        opened(str(stranger))
    assert "\n" not in str(error.value)
    assert "weights_only" not in str(error.value)  # which torch recommends to switch off
    assert not (stranger.parent / "ran").exists()


def _numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of whole numbers in JSON."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _numbers(each, (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value[:1]):
            yield from _numbers(each, (*path, number))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path


def _unbounded(folder: Path, name: str, opened: Callable[[], Any], values: tuple[int, ...]) -> list[str]:
    """Places in a file where a value leads to neither a model nor one line, or to one about memory.

    All are opened in one process, each with little memory and time; what ends the process is the last.
    """
    path = folder / name
    before = path.read_text()
    tried = [(place, value) for place in _numbers(json.loads(before)) for value in values]
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            warnings.simplefilter("ignore")
            with os.fdopen(writer, "w") as file:
                for place, value in tried:
                    _change(path, before, place, value)
                    print(json.dumps(_outcome(opened)), file=file, flush=True)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        outcomes = [json.loads(line) for line in file]
    os.waitpid(child, 0)
    path.write_text(before)
    if len(outcomes) < len(tried):
        outcomes.append("took too long")
    return [
        f"{name} {place} = {value}: {found[-300:]}"
        for (place, value), found in zip(tried, outcomes, strict=False)
        if found != "opened" and not re.fullmatch("refused: (?!.*memory).*", found)
    ]


def _change(path: Path, before: str, place: tuple[Any, ...], value: int) -> None:
    content = json.loads(before)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))


def _outcome(opened: Callable[[], Any]) -> str:
    """What comes of opening a folder with little memory and time from here on: `opened`, or a line."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor
    try:
        opened()
        return "opened"
    except InputError as error:
        return f"refused: {error}"
    except BaseException:
        return traceback.format_exc()


LARGE = (65_536, 10**6, 10**9, 10**12)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is read from /proc")
@pytest.mark.parametrize("family", [*ENCODERS, *(TRANSLATORS if OWN_MODELS else ())])
def test_any_size_in_a_folder_is_refused_before_it_costs_memory_or_time(family: str, tmp_path: Path) -> None:
    if family in ENCODERS:
        tiny.encoder(family, dtype=torch.float32).save(tmp_path)
        (tmp_path / "encoder.json").unlink()
        opened: Callable[[str], Any] = Encoder.from_pretrained
    else:
        [own] = OWN_MODELS
        own(tiny.translator(family, dtype=torch.float32), tiny.tokenizer(family)).save(tmp_path)
        (tmp_path / own.settings_file).unlink()
        opened = own.from_pretrained
    opened(str(tmp_path))
    assert not _unbounded(tmp_path, "config.json", lambda: opened(str(tmp_path)), LARGE)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is read from /proc")
def test_sizes_of_decoders_and_masks_are_refused_as_well(tmp_path: Path, toy: Path) -> None:
    from mtl.corpora.formats.jsonl import read_jsonl

    sentences = read_jsonl(toy / "dev.jsonl")
    tasks = {name: TASKS[name]() for name in ("pos", "dep", "ner", "con", "srl")}
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    gates = HeadGates(tiny.LAYERS, tiny.HEADS)
    JointModel(tiny.encoder("bert", dtype=torch.float32), tasks, labels, gates).save(tmp_path)
    model = tmp_path / "model.json"
    content = json.loads(model.read_text())
    model.write_text(json.dumps({**content, "files": {}}))
    opened = lambda: JointModel.from_pretrained(tmp_path)  # noqa: E731
    opened()
    for name in ("model.json", "encoder.json", "config.json", "tokenizer_config.json"):
        assert not _unbounded(tmp_path, name, opened, LARGE)


def test_one_size_of_each_kind(tmp_path: Path) -> None:
    tiny.encoder("bert", dtype=torch.float32).save(tmp_path)
    (tmp_path / "encoder.json").unlink()
    path = tmp_path / "config.json"
    before = path.read_text()
    for key, value, reason in (
        ("num_hidden_layers", 10**6, "num_hidden_layers 1,000,000, and at most 1,000 is possible"),
        ("max_position_embeddings", 10**9, "max_position_embeddings 1,000,000,000, and at most"),
        ("max_position_embeddings", 1 << 25, "max_position_embeddings 33,554,432 of width"),
        ("hidden_size", 65_536, "max_position_embeddings 64 of width 65,536, more than its weights have"),
        ("vocab_size", 1 << 25, "numbers, while its weights"),
    ):
        path.write_text(json.dumps({**json.loads(before), key: value}))
        for opened in (Encoder.from_pretrained, load_pruned):
            with pytest.raises(InputError, match=reason) as error:
                opened(str(tmp_path))
            assert "\n" not in str(error.value)
