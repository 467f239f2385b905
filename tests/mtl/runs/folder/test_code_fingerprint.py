"""The fingerprint of the code: what it is made of, and what makes a difference."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from mtl.corpora.readers import reader_modules
from mtl.registries import packages
from mtl.runs.folder.code_fingerprint import (
    BY_NAME,
    NO_EFFECT,
    TRAINING,
    _module,
    _written,
    code_fingerprint,
    modules_of,
    unused_modules,
)


def meaning(text: str) -> str:
    return _module(text.encode()).meaning


def source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text()


def test_comments_docstrings_and_layout_make_no_difference():
    plain = "def f(x):\n    return x + 1\n"
    assert meaning(plain) == meaning(
        '"""Module."""\n# why\ndef f(x):\n    """What."""\n\n    return (x\n      + 1)\n'
    )
    assert meaning("class A:\n    pass\n") == meaning('class A:\n    """An A."""\n')
    assert meaning("a = 1\nclass A:\n    b: int\n") == meaning(
        'a = 1\n"One."\nclass A:\n    b: int\n    """Two."""\n'
    )
    assert meaning("if a:\n    pass\n") == meaning('if a:\n    "Three."\n')


@pytest.mark.parametrize("other", ["def f(x):\n    return x + 2\n", "def g(x):\n    return x + 1\n"])
def test_what_runs_makes_a_difference(other):
    assert meaning("def f(x):\n    return x + 1\n") != meaning(other)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("raise InputError(f'{a}: no file')", "raise InputError(f'there is no {a}; give one')"),
        ("raise ValueError('a') from error", "raise ValueError('b', c) from error"),
        ("warnings.warn('a', stacklevel=2)", "warnings.warn('b')"),
        ("console.print(f'{a}: 3 lines', highlight=False)", "console.print('3 lines')"),
        ("raise mtl.errors.RunError('a')", "raise mtl.errors.RunError('b')"),
    ],
)
def test_messages_make_no_difference(first, second):
    assert meaning(first) == meaning(second)


HELPER = """
def _words(path):
    return {text}

def run(path):
    if {used}:
        raise RunError(f"{{path}}: {{_words(path)}}")
"""


def test_a_private_function_counts_unless_only_messages_call_it():
    first, second = (meaning(HELPER.format(text=text, used="path")) for text in ("'a'", "'b'"))
    assert first == second
    first, second = (meaning(HELPER.format(text=text, used="_words(path)")) for text in ("'a'", "'b'"))
    assert first != second
    public = HELPER.replace("_words", "words")
    first, second = (meaning(public.format(text=text, used="path")) for text in ("'a'", "'b'"))
    assert first != second


def test_a_changed_message_repeats_nothing_and_a_changed_loss_does(monkeypatch):
    root = Path(__file__).parents[4]
    read, changes = Path.read_bytes, {}

    def read_changed(self: Path) -> bytes:
        old, new = changes.get(self, (b"", b""))
        assert old in read(self)
        return read(self).replace(old, new) if old else read(self)

    monkeypatch.setattr(Path, "read_bytes", read_changed)
    before = code_fingerprint.__wrapped__(TRAINING)
    changes[root / "mtl" / "training" / "balancing.py"] = (b'f"balancer {config.name}"', b'"the balancer"')
    assert code_fingerprint.__wrapped__(TRAINING) == before
    changes[root / "mtl" / "training" / "balancers" / "uniform.py"] = (b"return ", b"return 2 * ")
    assert code_fingerprint.__wrapped__(TRAINING) != before


def test_a_changed_decoder_or_balancer_repeats_only_runs_that_use_it(monkeypatch):
    root = Path(__file__).parents[4] / "mtl"
    read, changed = Path.read_bytes, set()

    def read_changed(self: Path) -> bytes:
        return read(self) + (b"\nCHANGED = 1\n" if self in changed else b"")

    monkeypatch.setattr(Path, "read_bytes", read_changed)
    configs = {
        "pos": {"tasks": ["pos"]},
        "srl": {"tasks": ["pos", "srl"], "balancer": {"name": "gradnorm"}},
        "ner": {"tasks": ["ner"]},
        "translate": {"tasks": ["translate"]},
    }

    def fingerprints() -> dict[str, str]:
        return {
            name: code_fingerprint.__wrapped__(TRAINING, unused=unused_modules(config))
            for name, config in configs.items()
        }

    before = fingerprints()
    for file, users in (
        ("tasks/decoders/srl.py", {"srl"}),
        ("tasks/ner.py", {"ner"}),
        ("training/balancers/gradnorm.py", {"srl"}),
        ("training/balancers/uniform.py", {"pos", "ner", "translate"}),
        ("models/seq2seq.py", {"translate"}),
        ("models/encoder.py", set(configs)),
    ):
        changed.clear()
        changed.add(root / file)
        assert (root / file).is_file()
        assert {name for name, digest in fingerprints().items() if digest != before[name]} == users, file


def test_a_text_that_is_no_docstring_counts():
    assert meaning("x = 'a'\n") != meaning("x = 'b'\n")


EVERYTHING = """
import a.b as c
from a import d
@decorated(1, key="k")
class A(B, metaclass=C):
    field: int = 0
    async def f(self, x, /, y=1, *args, z, w=None, **kwargs) -> int:
        global g
        with open(x) as file, y:
            try:
                return f"{x!r:>{y}} {z}" "more"
            except* (ValueError, TypeError) as error:
                raise error from None
            finally:
                pass
        match x:
            case [1, *rest] if rest:
                del rest[0], x[1:2]
            case {"a": 1, **more} | None:
                await (yield)
        return [lambda: (a := b) for a in b if a if not b] + [*a] or {**a, 1: ...}
    constants = {None, True, 1.5, b"x", 2j, "\u00e9\u1c89"}
"""


def test_the_version_of_python_makes_no_difference():
    tree = ast.parse(EVERYTHING)
    written = meaning(EVERYTHING)
    # Computed with Python 3.11.
    digest = "9d72dbc339565dcbd2f5c7af5ae8a7611cd494c9ea9ad07fe108fe065f0286d7"
    assert hashlib.sha256(written.encode()).hexdigest() == digest
    for node in ast.walk(tree):
        for name, value in list(ast.iter_fields(node)):
            if value == [] or value is None:
                if isinstance(node, ast.Constant):
                    continue
                # As a version gives it that does not know the field, or leaves it out.
                delattr(node, name)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # As 3.12 gives it.
            node._fields = (*node._fields, "type_params")
            node.type_params = []
    assert ast.dump(tree) != ast.dump(ast.parse(EVERYTHING))
    assert _written(tree, []) == written


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("raise InputError(a)", "raise RunError(a)"),
        ("if a: raise InputError(a)", "if b: raise InputError(a)"),
        ("f('a')", "f('b')"),
        ("fingerprint(a)", "fingerprint(b)"),
        ("raise SystemExit(1)", "raise SystemExit(2)"),
        ("x = None", "x = 0"),
        ("x = None", "x = ''"),
        ("return_ = f(a)", "return_ = f(*a)"),
        ("def f(a, /, b): pass", "def f(a, b): pass"),
        ("def f(*, a=None): pass", "def f(*, a): pass"),
        ("def f(*, a, b=1): pass", "def f(*, a=1, b): pass"),
        ("{**a}", "{a: a}"),
        ("x: int", "x: int = None"),
        ("[a for a in b]", "[a async for a in b]"),
        ("import a", "import a as b"),
        ("raise", "raise a"),
        ("a[1:]", "a[:1]"),
    ],
)
def test_fields_that_are_left_out_hide_no_difference(first, second):
    assert meaning(first) != meaning(second)


PROBING = "mtl.analysis.probing.run"
"""The module that probes."""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """By entry which of our modules it loads; what both need from elsewhere is loaded once."""
    code = f"""
import os, sys, pytorch_lightning, torchmetrics, transformers
for entry in {[TRAINING, PROBING]}:
    if os.fork() == 0:
        __import__(entry)
        print(entry, *[name for name in sys.modules if name.split(".")[0] == "mtl"], flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {entry: set(modules) for entry, *modules in lines}


@pytest.mark.parametrize("entry", [TRAINING, PROBING])
def test_every_module_that_is_loaded_is_in_the_fingerprint(entry, loaded):
    modules = loaded[entry]
    empty = {name for name in modules if meaning(source(name)) == meaning("")}
    excepted = {name for name in modules if name.startswith(NO_EFFECT)}
    # What these export is imported when it is used.
    lazy = {"mtl", "mtl.heads"}
    readers = [name for name in modules if name.startswith(BY_NAME)]
    # What packages beside the core add counts in runs that use it, with the base of its classes.
    added = {name for name in modules if name.startswith(tuple(f"mtl.{name}." for name in packages()))}
    added |= {"mtl.training.parts"} if added else set()
    assert modules - empty - excepted - lazy - added <= set(modules_of(entry, *readers))


def test_drawing_reporting_and_watching_are_no_part_of_training():
    """A new colour, a line of the progress bar or of W&B repeats no training."""
    modules = set(modules_of(TRAINING))
    assert {"mtl.training.step", "mtl.training.evaluation", "mtl.heads.gates", "mtl.tasks.dep"} <= modules
    watching = {
        "mtl.training.mask_pictures", "mtl.analysis.observers", "mtl.training.progress",
        "mtl.training.wandb_logger", "mtl.runs.folder.wandb_view", "mtl.runs.report.gather",
        "mtl.runs.figures.table",
    }  # fmt: skip
    assert not watching & modules
    assert "mtl.workers.lease" not in modules
    outside = (
        *(f"mtl.probes.{room}" for room in ("figures", "report", "statistics", "measures")),
        *(f"mtl.{room}" for room in ("study", "sweep", "commands", "analysis")),
    )
    assert not [name for name in modules if name.startswith(outside)]
    assert code_fingerprint(TRAINING) != code_fingerprint(PROBING)


def test_only_the_readers_of_a_corpus_are_part_of_what_a_run_is_made_of(monkeypatch):
    """A fixed reader repeats the runs on corpora of its format; a new format repeats none."""
    root = Path(__file__).parents[4] / "mtl" / "corpora" / "formats"
    corpora = {
        "jsonl": {"path": "data/ewt5", "files": None, "pos": None},
        "conllu": {"path": None, "files": {"train": "a.conllu", "format": "conllu-upos"}, "pos": None},
    }
    readers = {name: reader_modules(corpus) for name, corpus in corpora.items()}
    assert readers == {name: (f"mtl.corpora.formats.{name}",) for name in corpora}
    before = {name: code_fingerprint.__wrapped__(TRAINING, *modules) for name, modules in readers.items()}
    assert before["jsonl"] != before["conllu"]
    read = Path.read_bytes
    changed = [root / "conllu.py", root / "table.py", root / "conll2005.py"]
    monkeypatch.setattr(
        Path, "read_bytes", lambda self: read(self) + (b"\nCHANGED = 1\n" if self in changed else b"")
    )
    assert code_fingerprint.__wrapped__(TRAINING, *readers["jsonl"]) == before["jsonl"]
    assert code_fingerprint.__wrapped__(TRAINING, *readers["conllu"]) != before["conllu"]


def test_a_change_of_a_figure_leaves_the_training_fingerprint_alone(monkeypatch):
    """The files of figures and observers as if each had another line; then one of the encoder's."""
    read = Path.read_bytes
    changed: list[Path] = []

    def read_changed(self: Path) -> bytes:
        return read(self) + (b"\nCHANGED = 1\n" if self in changed else b"")

    monkeypatch.setattr(Path, "read_bytes", read_changed)
    before = code_fingerprint.__wrapped__(TRAINING)
    root = Path(__file__).parents[4]
    changed += sorted((root / "mtl" / "probes" / "figures").glob("*.py"))
    changed += [
        root / "mtl" / "training" / f"{name}.py" for name in ("progress", "mask_pictures", "wandb_logger")
    ]
    assert all(path.is_file() for path in changed)
    assert code_fingerprint.__wrapped__(TRAINING) == before
    changed.append(root / "mtl" / "models" / "encoder.py")
    assert code_fingerprint.__wrapped__(TRAINING) != before
