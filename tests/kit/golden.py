"""One tiny run of every kind, down to its last digit: what a change of structure must not change.

    python -m tests.kit.golden write before.json      # in a checkout of the old commit
    python -m tests.kit.golden write after.json       # in the new one, on the same machine
    python -m tests.kit.golden compare before.json after.json

Digits differ between processors, so a record is made anew wherever it is needed.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars
from safetensors.numpy import load_file

TRAIN = "train --corpus.path=toy --max_epochs=1 --trainer.threads=1"
COMMANDS = f"""
data toy --out=toy --train=60 --dev=20 --test=20 --seed=3
{TRAIN} --tasks=[pos,ner,dep,con,srl] --name=five
{TRAIN} --tasks=[dep] --name=alone
{TRAIN} --tasks=[pos,dep] --name=masks --pruning=dynamic --gates.scope=per_task --gates.target_open=0.4
{TRAIN} --tasks=[pos] --name=penalty --pruning=dynamic
{TRAIN} --tasks=[dep] --name=static --from=runs/alone --pruning=static --gates.target_open=20
{TRAIN} --tasks=[dep] --name=gates --from=runs/alone --pruning=gates_only --gates.target_open=20
{TRAIN} --tasks=[pos,ner] --name=balanced --balancer.name=uncertainty
{TRAIN} --tasks=[pos,ner] --name=pcgrad --balancer.name=pcgrad
{TRAIN} translate.yaml --name=translate
probe minilm --corpus=toy --out=runs/static-probe
probe runs/masks
importance runs/five --sentences=12
relevance runs/five --sentences=4 --task=dep
ablate runs/alone --sentences=12 --draws=2000 --json_out=runs/alone/ablation.json
curve runs/alone --sentences=12 --steps=4 --draws=2
energy minilm --out=runs/energy.csv
collaborate runs/alone --dim=192 --out=runs/shared --lengths=16 --rounds=1 --steps=20
prune runs/penalty --out=runs/cut
evaluate runs/cut --split=test
importance runs/translate --sentences=6
report runs --out=runs/report
"""
TRANSLATION = """
tasks: [translate]
corpus:
  path: null
  translate: {format: parallel, train: "en.txt:de.txt", dev: "en.txt:de.txt", test: "en.txt:de.txt"}
encoder: {attention: eager}
translate: {source: en, target: de}
seq2seq: {architecture: mbart, layers: 2, heads: 2, width: 16, feed_forward: 32, vocabulary: 300}
max_epochs: 1
trainer: {threads: 1}
"""
PASSING = (
    "second",
    "time",
    "date",
    "version",
    "commit",
    "fingerprint",
    "duration",
    "host",
    "millisecond",
    "rate_of",
)
"""Parts of the names of columns and keys whose values differ from run to run."""


def write(out: Path) -> None:
    """Run everything and write what it gave."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "translate.yaml").write_text(TRANSLATION)
        for name, letters in (("en.txt", "abcdefghij"), ("de.txt", "klmnopqrst")):
            words = ["".join(letters[int(digit)] for digit in str(number**3)) for number in range(2, 60)]
            lines = (" ".join(words[(i * j + i) % 58] for j in range(3 + i % 4)) for i in range(60))
            (place / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        for line in COMMANDS.strip().splitlines():
            done = subprocess.run(
                [sys.executable, "-m", "mtl", *line.split()],
                cwd=place, capture_output=True, text=True, check=False,
            )  # fmt: skip
            print(done.returncode, line, flush=True)
            if done.returncode:
                print(done.stderr[-2000:], flush=True)
        values = {
            name: value
            for file in sorted((place / "runs").rglob("*"))
            for name, value in _values(file, place)
        }
    out.write_text(json.dumps(values, indent=0, sort_keys=True))
    print(f"{len(values)} values: {out}")


def compare(before: Path, after: Path) -> int:
    """Print what differs, is gone or is new by file; returns the number of values that differ."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    different = [name for name in old if name in new and old[name] != new[name]]
    for title, names in (
        ("differ", different), ("gone", [*old.keys() - new.keys()]), ("new", [*new.keys() - old.keys()])
    ):  # fmt: skip
        files: dict[str, int] = {}
        for name in names:
            files[name.partition("#")[0]] = files.get(name.partition("#")[0], 0) + 1
        print(
            f"{title}: {len(names)} of {len(old)}",
            *(f"  {file}: {files[file]}" for file in sorted(files)),
            sep="\n",
        )
    for name in different[:20]:
        print(name, old[name], new[name])
    return len(different)


def _values(file: Path, place: Path) -> Iterator[tuple[str, Any]]:
    name = file.relative_to(place)
    if file.suffix == ".safetensors" and "checkpoints" not in file.parts:
        for tensor in load_file(file).items():
            yield f"{name}#{tensor[0]}", hashlib.sha256(tensor[1].tobytes()).hexdigest()
    elif file.suffix == ".parquet" or (file.suffix == ".csv" and file.stat().st_size):
        table = polars.read_parquet(file) if file.suffix == ".parquet" else polars.read_csv(file)
        for column in table.columns:
            if not _passes(column):
                yield f"{name}#{column}", hashlib.sha256(repr(table[column].to_list()).encode()).hexdigest()
    elif file.suffix == ".json" and file.name in {"metrics.json", "answers.json", "ablation.json"}:
        yield from _leaves(json.loads(file.read_text()), f"{name}#")


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            if not _passes(str(key)):
                yield from _leaves(each, f"{name}/{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _leaves(each, f"{name}/{number}")
    elif isinstance(value, float) and math.isnan(value):
        yield name, "NaN"
    else:
        yield name, value


def _passes(name: str) -> bool:
    return any(part in name.lower() for part in PASSING)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", out]:
            write(Path(out).resolve())
        case ["compare", before, after]:
            sys.exit(bool(compare(Path(before), Path(after))))
        case _:
            sys.exit(__doc__)
