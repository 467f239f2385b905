"""A fingerprint of the code that makes a result: of everything that a module imports, directly or not."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from mtl.config.instances import kinds_in
from mtl.config.part import modules_of_parts
from mtl.config.schema import BalancerConfig
from mtl.tasks.catalogue import KINDS, TASKS

TRAINING = "mtl.training.train"
"""The entry module of training, which imports everything that training runs."""
NO_EFFECT = (
    "mtl.workers", "mtl.corpora.checks", "mtl.models.unknown_words", "mtl.probes.measures.groups",
)  # fmt: skip
"""Rooms and modules that are imported but cannot change a result: they separate processes, look at what was
read, or list all measures, each of which counts for itself."""
BY_NAME = "mtl.corpora.formats"
"""A room whose modules count only if they are entries, or if a module of this room imports them.

The table of formats imports all readers, but a run's result depends only on the readers of its own corpus: a
new format repeats no training, and a corrected reader repeats those on corpora of its format. The table
itself does not count: a format's name is part of the configuration, and its files count by their content.
"""
OF_CHOICE = ("mtl.tasks.", "mtl.training.balancers.")
"""Rooms from which a configuration chooses modules. A table that lists all modules of a room chooses none."""
_TABLE = "mtl.tasks.catalogue"
TRANSLATION = (
    "mtl.tasks.translate", "mtl.models.seq2seq", "mtl.models.translations", "mtl.training.initial_seq2seq",
)  # fmt: skip
"""The modules of models that translate."""
_TELLING = ("as_input_error", "load_errors", "print", "warn")
"""Functions that are called with a message; errors and warnings are known by the ends of their names."""


@lru_cache
def code_fingerprint(*entries: str, unused: frozenset[str] = frozenset()) -> str:
    """One sha256 over the entry modules and everything of this project that they import.

    Not covered are comments, docstrings, texts below constants and fields, messages of errors and warnings,
    what is printed, private functions that are called only for these, layout, and the version of Python; nor
    are modules in `unused`, unless a used module of a room in `OF_CHOICE` imports them.
    """
    meanings = [f"{name}\n{module.meaning}" for name, module in sorted(_imported(entries, unused).items())]
    return hashlib.sha256("\n".join(meanings).encode()).hexdigest()


def modules_of(*entries: str, unused: frozenset[str] = frozenset()) -> list[str]:
    """The names of the modules that the fingerprint of these entries covers."""
    return sorted(_imported(entries, unused))


def used_modules(config: Mapping[str, Any]) -> list[str]:
    """The entry modules of a run with this configuration: training, and the entries of registries it uses."""
    return [TRAINING, *modules_of_parts(config)]


def unused_modules(config: Mapping[str, Any]) -> frozenset[str]:
    """The modules of tasks, balancers and translation that a run with this configuration does not use.

    Empty for a configuration without tasks.
    """
    if not config.get("tasks"):
        return frozenset()
    kinds = kinds_in(config).values()
    used = {base.__module__ for kind in kinds for base in kind.__mro__}
    tasks = {kind.__module__ for kind in (*TASKS.values(), *KINDS.values())} - used
    balancer = (config.get("balancer") or {}).get("name", BalancerConfig().name)
    room = "mtl.training.balancers"
    balancers = {f"{room}.{name}" for name in get_args(get_type_hints(BalancerConfig)["name"])}
    translation = () if any(kind.alone for kind in kinds) else TRANSLATION
    return frozenset({*tasks, *translation, *balancers.difference([f"{room}.{balancer}"])})


ImportStatement = ast.Import | ast.ImportFrom


class _Module(NamedTuple):
    """What a module does, as text, and the names in its imports that may be modules of this project."""

    meaning: str
    imports: tuple[str, ...]


def _imported(entries: Sequence[str], unused: Collection[str]) -> dict[str, _Module]:
    modules: dict[str, _Module] = {}
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        path = _source(name)
        if name in modules or path is None or name.startswith(NO_EFFECT):
            continue
        modules[name] = _module(path.read_bytes())
        waiting += [
            imported
            for imported in modules[name].imports
            if name.startswith(BY_NAME) or not imported.startswith(BY_NAME)
            if imported not in unused or (name.startswith(OF_CHOICE) and name != _TABLE)
        ]
    return modules


@lru_cache(maxsize=1024)
def _module(source: bytes) -> _Module:
    """A module by its source, which is parsed once though several entries import it."""
    found: list[ImportStatement] = []
    tree = ast.parse(source)
    tree.body = _without_words(tree.body)
    meaning = _written(tree, found)
    return _Module(meaning, tuple(dict.fromkeys(_modules_in(found))))


def _without_words(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """A module's statements without private functions that only messages call: their result is for people."""
    private = {
        statement.name: statement
        for statement in statements
        if isinstance(statement, ast.FunctionDef)
        and statement.name.startswith("_")
        and not statement.decorator_list
    }
    called = {
        name
        for statement in statements
        for name in _names(statement)
        if private.get(name) is not statement  # a function that calls itself
    }
    told = {name for statement in statements for name in _names(statement, in_messages=True)} - called
    of_words = [function for name, function in private.items() if name in told]
    return [statement for statement in statements if statement not in of_words]


def _modules_in(statements: Sequence[ImportStatement]) -> Iterator[str]:
    """The names in import statements that may be modules of this project; some are functions or classes."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "mtl")
        elif node.module and node.module.split(".")[0] == "mtl":
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _source(name: str) -> Path | None:
    """The file of a module; `None` if the name is that of no module."""
    if name.split(".")[0] != "mtl":  # the entry of a user's own measure
        spec = importlib.util.find_spec(name)
        return None if spec is None or spec.origin is None else Path(spec.origin)
    package = importlib.util.find_spec("mtl")
    if package is None or package.origin is None:
        return None
    stem = Path(package.origin).parent.joinpath(*name.split(".")[1:])
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return path
    return None


def _written(node: object, imports: list[ImportStatement]) -> str:
    """What a syntax tree does, as text without docstrings, which is the same under every version of Python.

    The output of `ast.dump` depends on the version: 3.12 gave functions and classes the field `type_params`,
    and 3.13 leaves out empty lists. Here every empty field is left out. The text is still unambiguous, since
    a node's type and the names of its fields are written.

    Import statements are appended to `imports`, so that the tree is walked once: a study's plan waits for it.
    """
    if isinstance(node, list):
        return f"[{', '.join([_written(item, imports) for item in node])}]"
    if not isinstance(node, ast.AST):
        return ascii(node)  # which characters `repr` escapes changes with Python's Unicode tables
    if isinstance(node, ImportStatement):
        imports.append(node)
    values = []
    message = isinstance(node, ast.Call) and _is_message(node)
    for name in _in_order(node._fields):
        if message and name in ("args", "keywords"):
            continue
        value = getattr(node, name, None)
        if isinstance(value, list):
            value = [item for item in value if not _does_nothing(item)]
        if (value is not None and value != []) or (name == "value" and isinstance(node, ast.Constant)):
            values.append(f"{name}={_written(value, imports)}")
    return f"{type(node).__name__}({', '.join(values)})"


def _names(node: ast.AST, in_messages: bool = False) -> Iterator[str]:
    """The names that occur outside of messages, or also those in messages."""
    if isinstance(node, ast.Name):
        yield node.id
    parts = ast.iter_child_nodes(node)
    if isinstance(node, ast.Call) and _is_message(node) and not in_messages:
        parts = iter([node.func])
    for part in parts:
        yield from _names(part, in_messages)


def _is_message(call: ast.Call) -> bool:
    """Whether a call makes an error or a warning, or prints: its arguments are for people to read."""
    name = str(getattr(call.func, "attr", "") or getattr(call.func, "id", ""))
    return name in _TELLING or name.endswith(("Error", "Warning"))


@cache
def _in_order(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(fields))


def _does_nothing(node: object) -> bool:
    """Whether a node is `pass`, or a text as a statement: a docstring, or text below a constant or field."""
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
