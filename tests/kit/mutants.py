"""Do fewer tests still find what is wrong? Faults put into the core, and how many of them its tests find.

    python -m tests.kit.mutants draw BEFORE AFTER mutants.json                      # two checkouts
    python -m tests.kit.mutants run mutants.json BEFORE before.jsonl AFTER after.jsonl
    python -m tests.kit.mutants compare mutants.json before.jsonl after.jsonl

A mutant is one changed place in a function that both checkouts have, in whatever file. Each is run against
the fast tests of its room, in a worktree beside the checkout: first the files that name its module. `run`
goes on where it was stopped; tests that fail without any mutant are noted and left out.
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
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

SEED = 1
KINDS = ("comparison", "constant", "sign", "condition", "return")
EACH = 16
ROOMS = ("config", "corpora", "heads", "models", "training", "analysis", "runs", "commands")
FEATURES = ("stem_cell", "curves")  # of `probes`: no part of the core
SIDES = ("before", "after")
_SECONDS, _TEST_SECONDS = 1200, 240  # limits of a mutant's tests, and of one of them
_MEMORY = 10 << 30
_IMPORTED = (
    "torch",
    "transformers.models.bert.modeling_bert",
    "pytorch_lightning",
    "polars",
    "scipy.stats",
    "numba",
)
_OPPOSITES: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.USub: ast.UAdd,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def draw(before: Path, after: Path) -> list[dict[str, Any]]:
    """`EACH` mutants of every kind, no two in one function: code, place, and its file in both checkouts."""
    old, new = _functions(before), _functions(after)
    shared = sorted(old.keys() & new.keys())
    places = [
        (kind, code, number, ast.unparse(node), text)
        for code in shared
        for number, (kind, node, text) in enumerate(_places(new[code][1]))
    ]
    counts = Counter(kind for kind, *_ in places)
    print(f"{len(old)} functions before, {len(new)} after, {len(shared)} in both with places {dict(counts)}")
    random.Random(SEED).shuffle(places)
    drawn: list[dict[str, Any]] = []
    for kind, code, number, original, text in sorted(places, key=lambda place: KINDS.index(place[0])):
        if sum(row["kind"] == kind for row in drawn) < EACH and all(row["code"] != code for row in drawn):
            row = {"mutant": len(drawn), "kind": kind, "function": new[code][1].name, "code": code}
            row |= {"place": number, "from": original, "to": text}
            drawn.append(row | {"before": str(old[code][0]), "after": str(new[code][0])})
    return drawn


def _functions(checkout: Path) -> dict[str, tuple[Path, Any]]:
    """The core's functions with their files, by a hash of their code; those whose code is there once."""
    found = defaultdict(list)
    for top in ("tasks", "probes", *(f"mtl/{room}" for room in ROOMS)):
        for file in sorted((checkout / top).rglob("*.py")):
            path = file.relative_to(checkout)
            if path.parts[:2] not in [("probes", feature) for feature in FEATURES]:
                for function in _defined(ast.parse(file.read_text(encoding="utf-8"))):
                    if "cuda" not in ast.unparse(function):
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
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield "constant", node, repr(node.value + 1)
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
        if field not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                typing = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
                if isinstance(child, ast.AST) and not (
                    typing or isinstance(child, ast.Raise | ast.JoinedStr)
                ):
                    yield from _walk(child)


def mutated(source: str, mutant: dict[str, Any]) -> str:
    """A file's text with the mutant in it; all else is as it was."""
    function = next(each for each in _defined(ast.parse(source)) if _code(each) == mutant["code"])
    _, node, text = list(_places(function))[mutant["place"]]
    assert (ast.unparse(node), text) == (mutant["from"], mutant["to"])
    lines = source.encode().splitlines(keepends=True)
    start = len(b"".join(lines[: node.lineno - 1])) + node.col_offset
    end = len(b"".join(lines[: node.end_lineno - 1])) + node.end_col_offset
    return (source.encode()[:start] + text.encode() + source.encode()[end:]).decode()


def run(mutants: list[dict[str, Any]], checkouts: Sequence[Path], results: Sequence[Path]) -> None:
    """Add what the results lack: the nearest tests of all mutants, then the others of their rooms."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()
    scratches = [checkout.resolve().with_name(f"{checkout.name}-mutated") for checkout in checkouts]
    for checkout, scratch in zip(checkouts, scratches, strict=True):
        if not scratch.exists():
            subprocess.run(["git", "worktree", "add", "-q", "--detach", scratch], cwd=checkout, check=True)
        subprocess.run(["git", "checkout", "-q", "."], cwd=scratch, check=True)
    for whole in (False, True):
        for mutant in sorted(mutants, key=lambda row: row["mutant"] % EACH):  # all kinds, however far it gets
            for side, scratch, result in zip(SIDES, scratches, results, strict=True):
                known = _outcomes(result).get(mutant["mutant"])
                if known is None or (whole and known["outcome"] == "survived" and not known["whole"]):
                    row = _with_mutant(
                        scratch, Path(mutant[side]), mutant, _left_out(result), known is not None
                    )
                    _add(result, {"mutant": mutant["mutant"], "whole": known is not None, **row})
        for scratch, result in zip(scratches, results, strict=True):
            killing = sorted({test for row in _outcomes(result).values() for test in row["failed"]})
            if killing:
                row = _tested(scratch, killing, _left_out(result))
                _add(
                    result,
                    {"left_out": row["failed"], "without_mutant": len(killing), "seconds": row["seconds"]},
                )


def _with_mutant(
    scratch: Path, path: Path, mutant: dict[str, Any], left_out: Sequence[str], rest: bool
) -> dict[str, Any]:
    """What the nearest tests say, or if they have nothing to say (`rest`) the others of the room."""
    near, room = _nearest(scratch, path)
    tests = [test for test in room if test not in near] if rest else near
    if not tests:
        return {"outcome": "survived", "failed": [], "code": None, "tests": 0, "seconds": 0}
    file = scratch / path
    source, times = file.read_text(encoding="utf-8"), file.stat()
    file.write_text(mutated(source, mutant), encoding="utf-8")
    changed = (
        times.st_mtime + 2 + 2 * mutant["mutant"]
    )  # compiled code is known by its source's time and size
    os.utime(file, (changed, changed))
    try:
        return _tested(
            scratch, tests, left_out, mutant=True, compiled=bool(re.search("numba|compiled", source))
        )
    finally:
        file.write_text(source, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _nearest(scratch: Path, path: Path) -> tuple[list[str], list[str]]:
    """The room's tests that name the module (first `test_MODULE`) or a module that does; and all of them."""
    room = Path("tests", *path.parts[: 2 if path.parts[0] == "mtl" else 1])
    files = [file.relative_to(scratch) for file in sorted((scratch / room).rglob("test_*.py"))]
    files = [file for file in files if file.parts[1:3] not in [("probes", feature) for feature in FEATURES]]
    modules = [file for top in ("tasks", "probes", "mtl") for file in (scratch / top).rglob("*.py")]
    importing = [file.relative_to(scratch) for file in modules if _names(file, [path])]
    direct = [file for file in files if file.stem == f"test_{path.stem}" or _names(scratch / file, [path])]
    direct.sort(key=lambda file: file.stem != f"test_{path.stem}")
    others = [file for file in files if file not in direct and _names(scratch / file, importing)]
    return [str(file) for file in (*direct, *others)], [str(file) for file in files]


def _names(file: Path, modules: Sequence[Path]) -> bool:
    """Whether the file's text has the dotted name of one of the modules, or imports it from its package."""
    text = file.read_text(encoding="utf-8")
    for module in modules:
        *package, name = (
            module.with_suffix("").parts
            if module.parts[0] == "mtl"
            else ("mtl", *module.with_suffix("").parts)
        )
        dotted = r"\.".join(package)
        if re.search(rf"\b{dotted}(\.| import ([^\n]*\b)?){name}\b", text):
            return True
    return False


def _tested(
    scratch: Path, files: Sequence[str], left_out: Sequence[str], mutant: bool = False, compiled: bool = False
) -> dict[str, Any]:
    """What a forked process says that has imported libraries, and nothing of the project."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        log, child = Path(name, "log"), os.fork()
        if child == 0:
            try:
                _test(scratch, files, left_out, log, mutant, compiled)
            except BaseException:
                traceback.print_exc()
            os._exit(4)
        code = None
        while code is None and time.monotonic() - start < _SECONDS:
            time.sleep(0.05)
            ended, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if code is None:
            os.waitpid(child, 0)
        said = [line.split(" ", 1) for line in log.read_text().splitlines()] if log.exists() else []
        output = Path(name, "output").read_text(errors="replace")
    if code == 4 or (said and said[-1][0] == "elsewhere"):
        raise RuntimeError(f"the tests did not run in {scratch}: {output}")
    failed = [test for word, test in said if word in ("failed", "limit")]
    limit = code is None or any(word == "limit" for word, _ in said)
    if code not in (0, 5) and not failed:  # it ended in the middle of a test
        failed = [test for word, test in said if word == "start"][-1:]
    outcome = "limit" if limit else "survived" if code in (0, 5) else "killed"
    row = {"outcome": outcome, "failed": failed, "code": code, "seconds": round(time.monotonic() - start, 1)}
    return row if code in (0, 1, 5, None) else row | {"output": output[-1000:]}


def _test(
    scratch: Path, files: Sequence[str], left_out: Sequence[str], log: Path, mutant: bool, compiled: bool
) -> None:
    """Run the tests in this process, and end it."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    output = os.open(log.with_name("output"), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(scratch)
    sys.path[:] = [str(scratch), *(path for path in sys.path if not Path(path, "mtl").is_dir())]
    os.environ["PYTHONPATH"] = str(scratch)
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "mtl")]:
        del sys.modules[name]
    if compiled:  # numba does not see changes of other files
        os.environ["NUMBA_CACHE_DIR"] = str(log.with_name("numba"))
        import_module("numba.core.config").reload_config()

    class Log:
        def say(self, word: str, test: str) -> None:
            with log.open("a") as file:
                print(word, test, file=file)

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            self.say("start", nodeid)

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                self.say("limit" if "Timeout (>" in report.longreprtext else "failed", report.nodeid)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                self.say("failed", report.nodeid)

    options = [
        "-q",
        "-n",
        "0",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        f"--timeout={_TEST_SECONDS}",
    ]
    options += [f"--basetemp={log.with_name('temporary')}", *(f"--deselect={test}" for test in left_out)]
    options += ["-x"] if mutant else []
    code = import_module("pytest").main([*options, *files], plugins=[Log()])
    if not str(getattr(sys.modules.get("mtl"), "__file__", scratch)).startswith(str(scratch)):
        Log().say("elsewhere", "")
    sys.stdout.flush()
    os._exit(code)


def compare(mutants: list[dict[str, Any]], results: Sequence[Path]) -> str:
    """A table of how many mutants were killed, by kind and room, and a line for each that was not."""
    outcomes = [_outcomes(path) for path in results]
    both = [mutant for mutant in mutants if all(mutant["mutant"] in side for side in outcomes)]
    lines = ["| | drawn | killed before | killed after |", "|---|---|---|---|"]
    for name in (*KINDS, *sorted({_room(mutant) for mutant in both}), "all"):
        rows = [mutant for mutant in both if name in (mutant["kind"], _room(mutant), "all")]
        killed = [sum(side[row["mutant"]]["outcome"] != "survived" for row in rows) for side in outcomes]
        lines.append(f"| {name} | {len(rows)} | {killed[0]} | {killed[1]} |")
    for mutant in both:
        rows = [side[mutant["mutant"]] for side in outcomes]
        words = [
            f"{side}{'' if row['whole'] else ' (nearest tests)'}"
            for side, row in zip(SIDES, rows, strict=True)
            if row["outcome"] == "survived"
        ]
        if words:
            place = f"{mutant['after']} {mutant['function']}: {mutant['from']} -> {mutant['to']}"
            lines.append(f"{mutant['mutant']} survived {' and '.join(words)}: {place}")
    limits = [sum(row["outcome"] == "limit" for row in side.values()) for side in outcomes]
    return "\n".join([*lines, f"of the killed, at a time limit: {limits[0]} before, {limits[1]} after"])


def _room(mutant: dict[str, Any]) -> str:
    return re.sub(r"^((mtl/)?\w+)/.*", r"\1", mutant["after"])


def _outcomes(path: Path) -> dict[int, dict[str, Any]]:
    """The last row of every mutant, but for those killed by tests that fail without any."""
    left_out = set(_left_out(path))
    return {
        row["mutant"]: row for row in _rows(path) if "mutant" in row and not left_out & set(row["failed"])
    }


def _left_out(path: Path) -> list[str]:
    return [test for row in _rows(path) for test in row.get("left_out", ())]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _add(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        print(json.dumps(row), file=file)
    print(path.name, row, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "draw":
        made = draw(Path(sys.argv[2]), Path(sys.argv[3]))
        Path(sys.argv[4]).write_text("[\n" + ",\n".join(map(json.dumps, made)) + "\n]\n")
    else:
        given = json.loads(Path(sys.argv[2]).read_text())
        paths = [Path(name).resolve() for name in sys.argv[3:]]
        if sys.argv[1] == "run":
            run(given, paths[::2], paths[1::2])
        else:
            print(compare(given, paths))
