"""Do fewer tests still find what is wrong? Faults put into the core, and how many of them its tests find.

    python -m tests.kit.mutants draw mutants.json BEFORE AFTER                      # two checkouts
    python -m tests.kit.mutants run mutants.json BEFORE before.jsonl AFTER after.jsonl
    python -m tests.kit.mutants compare mutants.json before.jsonl after.jsonl

A mutant is one changed place in a function that both checkouts have, in whatever file. Each is run against
the fast tests of its room, in a worktree beside the checkout: first the files that name its module, then
those that name one that imports it, then the others. `run` goes on where it was stopped.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import gc
import hashlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

SEED = 1
KINDS = ("comparison", "constant", "sign", "condition", "return")
EACH = 16
SIDES = ("before", "after")
_ROOMS = ("config", "corpora", "heads", "models", "training", "analysis", "runs", "commands")
_NOT_CORE = ("probes/stem_cell/", "probes/curves/")
_SECONDS, _TEST_SECONDS, _MEMORY = 1200, 240, 10 << 30  # limits of a mutant's tests, and of one of them
_IMPORTED = (
    "torch", "pytorch_lightning", "polars", "numba", "scipy.stats", "sklearn.metrics", "nltk", "torchjd",
    "pytest", "hypothesis", "beartype", "jaxtyping", "anyio.pytest_plugin", "xdist.plugin",
)  # fmt: skip
_FAMILIES = (
    "bert roberta electra deberta_v2 distilbert albert t5 mbart bart marian gpt2 llama clip vit wav2vec2"
)
_OPPOSITES: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.USub: ast.UAdd,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
Row = dict[str, Any]


def draw(before: Path, after: Path) -> list[Row]:
    """`EACH` mutants of every kind, no two in one function: code, place, and its file in both checkouts."""
    old, new = _functions(before), _functions(after)
    places = [
        (kind, code, number, ast.unparse(node), text)
        for code in sorted(old.keys() & new.keys())
        for number, (kind, node, text) in enumerate(_places(new[code][1]))
    ]
    print(f"{len(old)} functions before, {len(new)} after, {len(old.keys() & new.keys())} in both")
    random.Random(SEED).shuffle(places)
    drawn: list[Row] = []
    for kind, code, number, original, text in sorted(places, key=lambda place: KINDS.index(place[0])):
        if sum(row["kind"] == kind for row in drawn) < EACH and all(row["code"] != code for row in drawn):
            row = {"mutant": len(drawn), "kind": kind, "function": new[code][1].name, "code": code}
            row |= {"place": number, "from": original, "to": text}
            drawn.append(row | {"before": str(old[code][0]), "after": str(new[code][0])})
    return drawn


def _functions(checkout: Path) -> dict[str, tuple[Path, Any]]:
    """The core's functions with their files, by a hash of their code; those whose code is there once."""
    found = defaultdict(list)
    for file in (
        file
        for top in ("tasks", "probes", *(f"mtl/{room}" for room in _ROOMS))
        for file in sorted((checkout / top).rglob("*.py"))
    ):
        path = file.relative_to(checkout)
        for function in _defined(ast.parse(file.read_text(encoding="utf-8"))):
            if not str(path).startswith(_NOT_CORE) and "cuda" not in ast.unparse(function):
                found[_code(function)].append((path, function))
    return {code: places[0] for code, places in found.items() if len(places) == 1}


def _defined(tree: Any) -> Iterator[Any]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _defined(node)


def _code(function: Any) -> str:
    """A hash of the code without docstring and decorators."""
    bare = copy.copy(function)
    bare.decorator_list = []
    bare.body = function.body[ast.get_docstring(function) is not None :]
    return hashlib.sha1(ast.unparse(bare).encode()).hexdigest()[:12]


def _places(function: Any) -> Iterator[tuple[str, Any, str]]:
    """Kind, node and new text of every mutation, in the order of the code."""
    for node in _walk(function):
        if isinstance(node, ast.Constant) and type(value := node.value) in (int, float):
            assert isinstance(value, int | float)
            yield "constant", node, repr(value + 1)
        elif isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
            yield "return", node, "return None"
        elif isinstance(node, ast.Compare):
            for place, operator in enumerate(node.ops):
                changed = copy.deepcopy(node)
                changed.ops[place] = _OPPOSITES[type(operator)]()
                yield "comparison", node, f"({ast.unparse(changed)})"
        elif type(getattr(node, "op", None)) in _OPPOSITES:
            changed = copy.deepcopy(node)
            changed.op = _OPPOSITES[type(node.op)]()
            text = ast.unparse(changed)
            kind = "condition" if isinstance(node, ast.BoolOp) else "sign"
            yield kind, node, text if isinstance(node, ast.AugAssign) else f"({text})"
        tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else getattr(node, "ifs", [])
        for test in tests:
            yield "condition", test, f"(not ({ast.unparse(test)}))"


def _walk(node: Any) -> Iterator[Any]:
    """A node and those in it; no annotations, decorators, raised errors, f-strings and `TYPE_CHECKING`."""
    yield node
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            left_out = field in ("annotation", "returns", "decorator_list")
            left_out |= isinstance(child, ast.Raise | ast.JoinedStr)
            left_out |= isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            if isinstance(child, ast.AST) and not left_out:
                yield from _walk(child)


def mutated(source: str, mutant: Row) -> str:
    """A file's text with the mutant in it; all else is as it was."""
    function = next(each for each in _defined(ast.parse(source)) if _code(each) == mutant["code"])
    _, node, text = list(_places(function))[mutant["place"]]
    assert (ast.unparse(node), text) == (mutant["from"], mutant["to"])
    lines = source.encode().splitlines(keepends=True)
    start = len(b"".join(lines[: node.lineno - 1])) + node.col_offset
    end = len(b"".join(lines[: node.end_lineno - 1])) + node.end_col_offset
    return (source.encode()[:start] + text.encode() + source.encode()[end:]).decode()


def run(mutants: list[Row], checkouts: Sequence[Path], results: Sequence[Path]) -> None:
    """Add to the results what they lack; tests that fail without any mutant are noted and left out."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
    for name in (*_IMPORTED, *(f"transformers.models.{name}.modeling_{name}" for name in _FAMILIES.split())):
        import_module(name)
    import_module("numba").njit(lambda: 0)()  # it prepares its compiler at the first call
    gc.freeze()
    scratches = [checkout.resolve().with_name(f"{checkout.name}-mutated") for checkout in checkouts]
    for checkout, scratch in zip(checkouts, scratches, strict=True):
        if not scratch.exists():
            subprocess.run(["git", "worktree", "add", "-q", "--detach", scratch], cwd=checkout, check=True)
        subprocess.run(["git", "checkout", "-q", "."], cwd=scratch, check=True)
    for part in range(3):
        for mutant in sorted(mutants, key=lambda row: row["mutant"] % EACH):  # all kinds, however far it gets
            for side, scratch, result in zip(SIDES, scratches, results, strict=True):
                known = _outcomes(result).get(mutant["mutant"], {"outcome": "survived", "part": -1})
                if known["outcome"] == "survived" and known["part"] < part:
                    row = _with_mutant(scratch, Path(mutant[side]), mutant, _left_out(result), part)
                    _add(result, {"mutant": mutant["mutant"], "part": part, **row})
        for scratch, result in zip(scratches, results, strict=True):
            tests = sorted({test for row in _outcomes(result).values() for test in row["failed"]})
            row = _tested(scratch, tests, _left_out(result), "--maxfail=1000")
            _add(result, {"left_out": row["failed"], "without_mutant": len(tests), "seconds": row["seconds"]})


def _with_mutant(scratch: Path, path: Path, mutant: Row, left_out: Sequence[str], part: int) -> Row:
    tests = _parts(scratch, path)[part]
    file = scratch / path
    source, times = file.read_text(encoding="utf-8"), file.stat()
    file.write_text(mutated(source, mutant), encoding="utf-8")
    changed = (
        times.st_mtime + 2 + 2 * mutant["mutant"]
    )  # known by it, compiled code is not taken for another's
    os.utime(file, (changed, changed))
    try:
        compiled = re.search(rf"@.*(njit|compiled)\b.*\n(@.*\n)*def {mutant['function']}\(", source)
        return _tested(scratch, tests, left_out, "-x", bool(compiled))
    finally:
        file.write_text(source, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _parts(scratch: Path, path: Path) -> list[list[str]]:
    """The room's files of tests: that name the module, that name one that imports it, the others."""
    room = scratch.joinpath("tests", *path.parts[: 2 if path.parts[0] == "mtl" else 1])
    modules = [file for top in ("tasks", "probes", "mtl") for file in (scratch / top).rglob("*.py")]
    importing = [file.relative_to(scratch) for file in modules if _names(file, [path])]
    parts: list[list[str]] = [[], [], []]
    for file in sorted(room.rglob("test_*.py"), key=lambda file: (file.stem != f"test_{path.stem}", file)):
        near = [file.stem == f"test_{path.stem}" or _names(file, [path]), _names(file, importing), True]
        test = str(file.relative_to(scratch))
        if not test.startswith(tuple(f"tests/{folder}" for folder in _NOT_CORE)):
            parts[near.index(True)].append(test)
    return parts


def _names(file: Path, modules: Sequence[Path]) -> bool:
    """Whether the file's text has the dotted name of one of the modules, or imports it from its package."""
    text = file.read_text(encoding="utf-8")
    for module in modules:
        package = ".".join(("mtl", *module.parent.parts)).removeprefix("mtl.mtl").removeprefix(".") or "mtl"
        if re.search(rf"\b{package}(\.| import ([^\n]*\b)?){module.stem}\b", text):
            return True
    return False


def _tested(
    scratch: Path, tests: Sequence[str], left_out: Sequence[str], option: str, compiled: bool = False
) -> Row:
    """What a forked process says that has imported libraries, and nothing of the project."""
    if not tests:
        return {"outcome": "survived", "failed": [], "code": 5, "seconds": 0}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder, child = Path(name), os.fork()
        if child == 0:
            try:
                _test(
                    scratch, [option, *tests, *(f"--deselect={test}" for test in left_out)], folder, compiled
                )
            except BaseException:
                traceback.print_exc()
            os._exit(4)
        code = None
        try:
            while code is None and time.monotonic() - start < _SECONDS:
                time.sleep(0.05)
                ended, status, used = os.wait4(child, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status) if ended else None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        if code is None:
            used = os.wait4(child, 0)[2]
        failed = (folder / "failed").read_text().splitlines() if (folder / "failed").exists() else []
        output = (folder / "output").read_text(errors="replace")
    if code == 4:
        raise RuntimeError(f"the tests did not run in {scratch}: {output}")
    limit = code is None or "Failed: Timeout (>" in output
    outcome = "limit" if limit else "survived" if code in (0, 5) else "killed"
    seconds = round(used.ru_utime + used.ru_stime, 1)  # of the processor
    return {"outcome": outcome, "failed": failed, "code": code, "seconds": seconds}


def _test(scratch: Path, arguments: Sequence[str], folder: Path, compiled: bool) -> None:
    """Run tests in this process, and end it."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(scratch)
    sys.path[:] = [str(scratch), *(path for path in sys.path if not Path(path, "mtl").is_dir())]
    os.environ["PYTHONPATH"] = str(scratch)
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "mtl")]:
        del sys.modules[name]
    if compiled:  # numba does not see changes of other files
        os.environ["NUMBA_CACHE_DIR"] = str(folder / "numba")
        import_module("numba.core.config").reload_config()

    class Failed:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                with (folder / "failed").open("a") as file:
                    print(report.nodeid, file=file)

        pytest_collectreport = pytest_runtest_logreport

    options = (
        f"-q -n 0 -p no:cacheprovider --timeout={_TEST_SECONDS} --basetemp={folder / 'temporary'}".split()
    )
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", "not slow"]
    code = import_module("pytest").main([*options, *arguments], plugins=[Failed()])
    sys.stdout.flush()
    of_scratch = str(getattr(sys.modules.get("mtl"), "__file__", scratch)).startswith(str(scratch))
    os._exit(code if of_scratch else 4)


def compare(mutants: list[Row], results: Sequence[Path]) -> str:
    """A table of how many mutants were killed, by kind and room, and a line for each that was not."""
    outcomes = [_outcomes(path) for path in results]
    rooms = {row["mutant"]: re.sub(r"^((mtl/)?\w+)/.*", r"\1", row["after"]) for row in mutants}
    run_in_both = [row for row in mutants if all(row["mutant"] in side for side in outcomes)]
    lines = ["| | drawn | killed before | killed after |", "|---|---:|---:|---:|"]
    for name in (*KINDS, *sorted(set(rooms.values())), "all"):
        rows = [row["mutant"] for row in run_in_both if name in (row["kind"], rooms[row["mutant"]], "all")]
        killed = [sum(side[mutant]["outcome"] != "survived" for mutant in rows) for side in outcomes]
        lines.append(f"| {name} | {len(rows)} | {killed[0]} | {killed[1]} |")
    for row in run_in_both:
        of = dict(zip(SIDES, (side[row["mutant"]] for side in outcomes), strict=True))
        place = f"{row['after']} {row['function']}: {row['from']} -> {row['to']}"
        for side, result in of.items():
            if result["outcome"] == "survived":
                by = "" if result["part"] == 2 else " (nearest tests)"
                lines.append(f"{row['mutant']} survived {side}{by}: {place}")
    limits = [sum(row["outcome"] == "limit" for row in side.values()) for side in outcomes]
    return "\n".join([*lines, f"of the killed, at a time limit: {limits[0]} before, {limits[1]} after"])


def _outcomes(path: Path) -> dict[int, Row]:
    """The last row of every mutant, but for those killed by tests that fail without any."""
    left_out = set(_left_out(path))
    return {
        row["mutant"]: row for row in _rows(path) if "mutant" in row and not left_out & set(row["failed"])
    }


def _left_out(path: Path) -> list[str]:
    return [test for row in _rows(path) for test in row.get("left_out", ())]


def _rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _add(path: Path, row: Row) -> None:
    with path.open("a") as file:
        print(json.dumps(row), file=file)
    print(path.name, row, flush=True)


if __name__ == "__main__":
    word, at, *names = sys.argv[1:]
    paths = [Path(name).resolve() for name in names]
    if word == "draw":
        Path(at).write_text("[\n" + ",\n".join(map(json.dumps, draw(*paths))) + "\n]\n")
    elif word == "run":
        run(json.loads(Path(at).read_text()), paths[::2], paths[1::2])
    else:
        print(compare(json.loads(Path(at).read_text()), paths))
