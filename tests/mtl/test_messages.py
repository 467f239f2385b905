"""What messages name exists: options and keys with their values, commands, functions, extras, pages.

Texts are read from the syntax tree. A part that an f-string inserts is shown as `◇`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import pytest
import torch
import transformers

import mtl
from mtl.commands.command_table import COMMANDS, arguments_for
from mtl.config.instances import Instance
from mtl.config.keys import hint_of, hints_of, known_keys_of, literal_values, without_null
from mtl.config.parse import full_key
from mtl.config.schema import ALIASES, TrainConfig
from mtl.errors import InputError
from mtl.features import features
from mtl.models.encoder import Encoder
from tests.kit.absent import public_names

ROOT = Path(__file__).parents[2]
GENERAL = ("help", "version", "print_config", "quiet", "verbose")
"""Options of every command."""
OF_ROOM = {
    "mtl/analysis/ablation": ("ablate",),
    "mtl/curves": ("curve",),
    "mtl/demo": ("demo",),
    "mtl/analysis/importance": ("importance",),
    "mtl/analysis/show.py": ("show",),
    "mtl/analysis/probe.py": ("probe",),
    "mtl/corpora/folder.py": ("data convert", "data select"),
    "mtl/corpora/ewt5": ("data ewt5", "data ewt10"),
    "mtl/corpora/running_text.py": ("predict",),
    "mtl/languages": ("predict",),
    "mtl/runs/compare/scores.py": ("compare",),
    "mtl/runs/figures": ("figure",),
    "mtl/runs/report": ("report",),
    "mtl/sweep": ("sweep",),
    "mtl/study": ("study",),
    "mtl/training": ("train",),
    "mtl/config": ("train",),
}
"""Whose options messages of a room or file name; of other files, those of any command."""
PROSE = {"and", "are", "cannot", "does", "import", "is", "needs", "sets", "was", "writes", "wrote"}
"""What follows the program or a command in running text."""
ROOTS = {
    "mtl": mtl, "torch": torch, "nn": torch.nn, "AutoModel": transformers.AutoModel,
    "JointModel": mtl.JointModel, "Encoder": Encoder,
}  # fmt: skip
STANDARD = ("copy", "contextvars")
OF_OTHERS = {
    "model.annotate", "model.get_base_model", "model.merge_and_unload", "merge_and_unload",  # peft
    "module.forward", "device_map", "quantize_dynamic", "no_grad", "broadcast_buffers",  # torch, transformers
    "local_files_only", "token", "reduction", "num_key_value_heads", "return_tensors",  # Hugging Face, torch
    "run_cap", "max_iter", "min_iter", "min", "max", "key", "sentences",  # sweep files, curves
    "global.columns", "sent_id", "newdoc", "en_ewt", "arcs_made_up",  # CoNLL-U
    "version", "charset",  # HTTP
    "mtl_requests_total", "mtl_request_seconds", "mtl_request_seconds_sum", "mtl_request_seconds_count",
    "mtl_sentences_annotated_total", "mtl_sentences_waiting",  # series for Prometheus, named once
}  # fmt: skip
NO_PROSE = re.compile(r"<\w+[ >]|^\w+=\"|\(\?|\\[st]|\[ ")
"""Markup and regular expressions."""
FILE_NAME = re.compile(r"\.(json|jsonl|yaml|parquet|conllu|gz|safetensors|csv|html|md|py)$")
PAGE = r"\b((?:docs|configs|mtl|tasks|probes)/[\w/.-]+\.\w+)(?:, ([A-Z][a-z][^)]+))?"
"""A file of the repository, and the heading in it."""
_OF_STUDIES = ("mtl.study.config:StudyConfig", "mtl.study.config:GridBlock") if "study" in features() else ()
CONFIGURATIONS = (TrainConfig, *map(resolve_name, _OF_STUDIES))
GROUPS = {key.split(".")[0] for kind in CONFIGURATIONS for key in known_keys_of(kind)}
STAND_INS = {"TASK": "pos", "NAME": "pos", "KEY": "name"}


class Text(NamedTuple):
    """A text of the program that is no docstring."""

    path: str
    line: int
    text: str


def text_of(node: ast.AST) -> str | None:
    """The text of a string, an f-string, or a sum of them; `None` for other expressions."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) or "◇" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            both = text_of(left), text_of(right)
            return None if both == (None, None) else "".join("◇" if text is None else text for text in both)
    return None


WITHOUT_TEXT = (
    ast.Name, ast.alias, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
"""Most nodes of a tree; there is no text below them."""


def texts_of(path: str, tree: ast.Module) -> Iterator[Text]:
    """All texts in a module with a blank in them, without docstrings and markup."""

    def within(node: ast.AST) -> Iterator[Text]:
        text = text_of(node)
        if text is not None:
            if " " in text.strip() and not NO_PROSE.search(text):
                yield Text(path, getattr(node, "lineno", 0), " ".join(text.split()))
            inner = [part.value for part in ast.walk(node) if isinstance(part, ast.FormattedValue)]
        else:
            inner = [
                child for child in ast.iter_child_nodes(node)
                if not isinstance(child, WITHOUT_TEXT)
                and not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant))
            ]  # fmt: skip
            inner = [node.value] if isinstance(node, ast.Subscript) else inner
        for child in inner:
            yield from within(child)

    yield from within(tree)


@cache
def sources() -> dict[str, str]:
    """The modules of the product, by their paths."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for room in ("mtl", "tasks", "probes")
        for path in sorted((ROOT / room).rglob("*.py"))
        if not {"mtl/tasks", "mtl/probes"} & {str(parent.relative_to(ROOT)) for parent in path.parents[:-2]
                                              if parent.is_relative_to(ROOT)}
    }  # fmt: skip


@cache
def texts_and_identifiers() -> tuple[tuple[Text, ...], frozenset[str]]:
    """The product's texts; and what it defines: functions, arguments, attributes, constants of one word."""
    keys = (key for kind in CONFIGURATIONS for key in known_keys_of(kind))
    found = {word for key in keys for word in key.split(".")}
    texts: list[Text] = []
    for path, source in sources().items():
        tree = ast.parse(source)
        texts += texts_of(path, tree)
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name):
                    found.add(name)
                case ast.arg(arg=name) | ast.keyword(arg=str(name)) | ast.Attribute(attr=name):
                    found.add(name)
                case ast.Constant(value=str(name)) if name.isidentifier():
                    found.add(name)
    return tuple(texts), frozenset(found)


@cache
def commands_of(path: str) -> tuple[str, ...]:
    """The commands whose options a message of a file means."""
    module = path.removesuffix(".py").replace("/", ".")
    own = tuple(name for name, row in COMMANDS.items() if row.function.split(":")[0] == module)
    listed = next((names for room, names in OF_ROOM.items() if path.startswith(room)), None)
    return own or listed or tuple(COMMANDS)


@cache
def _hint(kind: Any, key: str) -> Any:
    """The type of a dotted key of a configuration; `None`: there is no such key."""
    parts = [STAND_INS.get(part, part) for part in key.split(".")]
    try:
        return hint_of(kind, full_key(kind, ALIASES.get(".".join(parts), ".".join(parts))))
    except InputError:
        return None


@cache
def option_of(command: str, name: str) -> Any:
    """The type of a command's option; `None`: it has none of this name."""
    arguments, name = arguments_for(command), name.replace("-", "_") if "." not in name else name
    if name in GENERAL:
        return bool
    found = None if arguments.keys is None else _hint(arguments.keys, name)
    return found or hints_of(arguments.kind).get(name)


def key_of(name: str) -> Any:
    """The type of a key in a file of a training, a study or a block of its grid; `None`: there is none."""
    return next((hint for kind in CONFIGURATIONS if (hint := _hint(kind, name))), None)


@cache
def parameters() -> frozenset[str]:
    """The arguments of public functions and classes, of their methods, and of settings of tasks."""
    found: set[str] = {field.name for field in fields(Instance)}
    for public in (getattr(mtl, name) for name in public_names() if name not in ("TrainConfig", "train")):
        members = vars(public).values() if inspect.isclass(public) else ()
        for each in (public, *filter(inspect.isroutine, members)):
            try:
                found |= set(inspect.signature(getattr(each, "__func__", each)).parameters)
            except (TypeError, ValueError):
                continue
        if is_dataclass(public):
            found |= {field.name for field in fields(public)}
    return frozenset(found)


@cache
def _of_file(path: str) -> set[str]:
    """The arguments and fields that a module defines."""
    tree = ast.parse(sources().get(path, ""))
    found = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return found | {
        node.target.id for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }  # fmt: skip


def _wrong_value(hint: Any, value: str) -> bool:
    choices = literal_values(without_null(hint)[0])
    return bool(choices) and value not in choices


def _exists(dotted: str) -> bool:
    first, *rest = dotted.split(".")
    held = ROOTS.get(first)
    if held is None and first in STANDARD:
        held = importlib.import_module(first)
    for name in rest:
        held = getattr(held, name, None)
    return held is not None


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
REQUIRED = {
    re.split(r"[\[<>=~ ]", line)[0]
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
} | {"mtl-heads"}


def faults(text: Text) -> Iterator[str]:
    """The names in a text that stand for nothing."""
    said = text.text
    # An option after a command, up to the end of its quotation, is that command's.
    named = r"(?<![\w./-])mtl ([a-z]+)(?: ([a-z0-9]+))?"
    for found in re.finditer(named + r"((?: [^';,:]*)?)", said):
        first, second, rest = found[1], found[2] or "", found[3]
        command = f"{first} {second}" if f"{first} {second}" in COMMANDS else first
        group = any(name.startswith(f"{first} ") for name in COMMANDS)
        if command not in COMMANDS and first not in PROSE and not (group and not second):
            yield f"mtl {first} {second}".strip() if group else f"mtl {first}"
        shipped = ROOT / "configs" / first / f"{second}.yaml"
        if first in ("study", "sweep") and second not in ("", *PROSE) and not shipped.is_file():
            yield f"mtl {first} {second}"
        if command in COMMANDS:
            for option in re.findall(r"--([a-zA-Z_][\w.-]*)", rest):
                if option_of(command, option) is None and option not in STAND_INS:
                    yield f"mtl {command} --{option}"
    others = re.sub(named + r"((?: [^';,:]*)?)", "", said)
    for found in re.finditer(r"(?<![\w-])--([a-z_][\w.-]*)(?:=([a-z][a-z0-9_]*)\b(?![(.]))?", others):
        option, value = found[1], found[2]
        trained = ("train",) if "train" in others[: found.start()] else ()
        names = (*commands_of(text.path), *trained)
        if option in OF_OTHERS:
            continue
        hints = [hint for name in names if (hint := option_of(name, option)) is not None]
        if not hints:
            yield f"--{option}"
        elif value and all(_wrong_value(hint, value) for hint in hints):
            yield f"--{option}={value}"
    for dotted, value in re.findall(
        r"(?<![\w./{◇=-])((?:[A-Za-z_]{2,}\.)+[A-Za-z_]{2,})(?:=([a-z][a-z0-9_]*)\b)?", said
    ):
        if dotted in OF_OTHERS or FILE_NAME.search(dotted):
            continue
        hint = key_of(dotted)
        if hint is None and not (dotted.split(".")[0] not in GROUPS and _exists(dotted)):
            yield dotted
        elif hint is not None and value and _wrong_value(hint, value):
            yield f"{dotted}={value}"
    for name, value in re.findall(r"(?<![\w.◇-])([a-z][a-z_]*)=([a-z][a-z0-9_]*)?", said):
        hint = key_of(name)
        if hint is None:
            if name not in parameters() and name not in _of_file(text.path) and name not in OF_OTHERS:
                yield f"{name}="
        elif value and name not in parameters() and _wrong_value(hint, value):
            yield f"{name}={value}"
    for name in re.findall(r"(?<![\w.=/◇-])([a-z]+(?:_[a-z]+)+)(?![\w=(◇])", said):
        if name not in texts_and_identifiers()[1] and name not in OF_OTHERS:
            yield name
    for package, extra in re.findall(r"pip install '?([\w-]+)(?:\[(\w+)\])?", said):
        if package not in REQUIRED or (extra and package == "mtl-heads" and extra not in EXTRAS):
            yield f"pip install {package}[{extra}]" if extra else f"pip install {package}"
    for page, heading in re.findall(PAGE, said):
        place = ROOT / page
        if not place.is_file() or (heading and f" {heading}\n" not in place.read_text()):
            yield f"{page} {heading}".strip()


def test_messages_name_what_exists():
    texts, _ = texts_and_identifiers()
    assert len(texts) > 2500
    wrong = {f"{text.path}:{text.line}": found for text in texts if (found := [*faults(text)])}
    assert wrong == {}


@pytest.mark.parametrize(
    ("path", "text", "wrong"),
    [
        ("mtl/commands/show.py", "leave out --sentences or --relation", None),
        ("mtl/commands/show.py", "leave out --sentense", "--sentense"),
        ("mtl/commands/show.py", "use --top=3", "--top"),
        ("mtl/analysis/probe.py", "use --sentence", "--sentence"),
        ("mtl/config/schema.py", "add --from RUN", None),
        ("mtl/config/schema.py", "leave it out; --balancer.weight={} leaves out all", "--balancer.weight"),
        ("mtl/config/schema.py", "use gates.target_open, not gates.penaltys", "gates.penaltys"),
        ("mtl/config/schema.py", "train with --pruning=dynamik", "--pruning=dynamik"),
        ("mtl/config/schema.py", "use batch.mode=alined", "batch.mode=alined"),
        ("mtl/config/schema.py", "it was pruning=dynamik", "pruning=dynamik"),
        ("mtl/config/schema.py", "use corpus.TASK.layers", "corpus.TASK.layers"),
        ("mtl/heads/load.py", "use word_droput=0", "word_droput="),
        ("mtl/heads/load.py", "give it to mtl.load_prunned", "mtl.load_prunned"),
        ("mtl/heads/load.py", "give it copy.deep_copy", "copy.deep_copy"),
        ("mtl/heads/load.py", "use prune_head on it", "prune_head"),
        ("mtl/heads/load.py", "'mtl prunes RUN' makes it", "mtl prunes"),
        ("mtl/heads/load.py", "'mtl data converts' makes it", "mtl data converts"),
        ("mtl/heads/load.py", "'mtl prune RUN --keepshape=true' makes it", "mtl prune --keepshape"),
        ("mtl/heads/load.py", "mtl study demonstration", "mtl study demonstration"),
        ("mtl/heads/load.py", "pip install 'mtl-heads[server]'", "pip install mtl-heads[server]"),
        ("mtl/heads/load.py", "run: pip install mlt-heads", "pip install mlt-heads"),
        ("mtl/heads/load.py", "convert it (docs/decoder_only.md)", "docs/decoder_only.md"),
        ("mtl/heads/load.py", "(docs/decoder-only.md, From a file)", "docs/decoder-only.md From a file"),
    ],
)  # fmt: skip
def test_a_name_of_nothing_is_found(path, text, wrong):
    assert [*faults(Text(path, 1, text))] == ([] if wrong is None else [wrong])


def test_texts_are_read_from_sums_and_f_strings():
    source = (
        '"""A docstring."""\n'
        "def f(x):\n"
        '    """Another --one."""\n'
        '    raise InputError(f"{x}: use {\'the \' + str(x)}" + x + f" or --{x}={1:.2f}")\n'
    )
    assert [text.text for text in texts_of("f.py", ast.parse(source))] == ["◇: use ◇◇ or --◇=◇", "the ◇"]
