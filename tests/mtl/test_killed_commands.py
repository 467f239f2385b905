"""A command that is killed at every place where it writes, one after the other, completes all its outputs."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml

from mtl.commands.command_table import COMMANDS as EVERY_COMMAND
from mtl.commands.command_table import arguments_for
from mtl.commands.main import main
from mtl.corpora.toy.corpus import write_toy
from mtl.probes.tables.table_files import read_metadata
from tests.kit.absent import may_be_absent
from tests.mtl import tiny
from tests.mtl.forked import ended, forked, printed

CPU = "--accelerator=cpu"
SHORT = "--sentences=4 --accelerator=cpu"
COMMANDS = {
    "probe": (f"probe runs/dyn --markdown=probes.md {CPU}", 3),
    "probe an encoder": (f"probe enc --corpus=toy --out=static {CPU}", 2),
    "ablate": (f"ablate runs/dyn --draws=100 --json_out=heads.json --heads=L0H1 {SHORT}", 1),
    "ablate all": (f"ablate runs/dyn --draws=100 {SHORT}", 2),
    "importance": (f"importance runs/dyn {SHORT}", 1),
    "relevance": (f"relevance runs/dyn --task=pos {SHORT}", 1),
    "curve": (
        "curve runs/dyn --by=importance,random --draws=1 --steps=2 --sentences=4 --rank_sentences=4 --cut "
        f"--task=pos --batches=1 --rounds=1 {CPU}", 3,
    ),
    "patterns": (f"patterns runs/dyn {SHORT}", 1),
    "energy": ("energy enc --out=energy.parquet --figure=energy.png", 2),
    "collaborate": (
        "collaborate enc --dim=8 --out=shared --starts=1 --steps=2 --lengths=16 --rounds=1 --accelerator=cpu",
        1,
    ),
    "compare": ("compare runs/dyn --against runs/again --out=compared.pdf --draws=100", 3),
    "show": ("show enc L0H0 --sentence=dogs --output=weights.parquet --accelerator=cpu", 1),
    "evaluate": (f"evaluate runs/dyn --split=dev {CPU}", 1),
    "figure": ("figure correlation runs/dyn runs/again --out=pictures/masks.svg", 7),
    "report": ("report runs --json_out=told.json", 9),
    "prune": (f"prune runs/dyn --task=pos --out=cut {CPU}", 1),
    "export": ("export runs/dyn --out=exported", 1),
    "init": ("init toy --out=new.yaml", 1),
    "data toy": ("data toy --out=other --train=8 --dev=4 --test=4", 1),
    "data toy again": ("data toy --out=toy --train=8 --dev=4 --test=4 --overwrite", 2),
    "data convert": ("data convert --out=other --train=jsonl:toy/train.jsonl --dev=jsonl:toy/dev.jsonl", 1),
    "data select": ("data select toy --out=other --train=4 --dev=2", 1),
}  # fmt: skip
"""Commands, and at how many places each writes at least."""
ELSEWHERE = {
    "doctor": "it writes one file at its end",
    "data ewt5": "as data convert, of files that are downloaded",
    "data ewt10": "as data convert, of files that are downloaded",
    "demo": "a training, a measure and a report, each of which is killed by itself",
}
"""Commands with arguments for what they write that are not killed here, and why."""
TIMES = ("seconds", "started", "finished", "time", "seconds_of_whole", "epoch_seconds", "duration")
TRAIN = {
    "corpus": {"path": "toy"}, "encoder": {"name": "enc"}, "max_epochs": 1,
    "trainer": {"accelerator": "cpu", "precision": "32-true"},
}  # fmt: skip


def test_every_command_that_writes_is_killed_here_or_named() -> None:
    """`train`, `study` and `sweep`, which have no such argument, are killed in tests of their own."""
    killed = [
        name for words, _ in COMMANDS.values() for name in EVERY_COMMAND if words.startswith(f"{name} ")
    ]
    writing = {name for name in EVERY_COMMAND if arguments_for(name).written}
    assert {name for name in {*writing} - {*killed} - {*ELSEWHERE} if not may_be_absent([name])} == set()
    assert {*ELSEWHERE} & {*killed} == set()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, an encoder, and two runs with masks, on which commands are called."""
    folder = tmp_path_factory.mktemp("world")
    write_toy(folder / "toy", 24, 8, 8, seed=1)
    tiny.encoder("bert", dtype=torch.float32).save(folder / "enc")
    (folder / "enc" / "encoder.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for seed, name in enumerate(("dyn", "again")):
            (folder / "run.yaml").write_text(yaml.safe_dump(TRAIN))
            options = "--tasks=[pos,dep] --pruning=dynamic --gates.scope=per_task --gates.init_std=1.0"
            assert main(["train", "run.yaml", *options.split(), f"--name={name}", f"--seed={seed}"]) == 0
    return folder


def content(folder: Path) -> dict[str, Any]:
    """What is in all files that a command may have written, without what depends on time."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        # An interrupted report is put aside as that of somebody else would be.
        left_out = ".replaced" in path.parts or path.suffix in (".lock", ".lease") or path.name == "log.txt"
        if path.is_file() and not left_out:
            found[name] = of_file(path, folder)
    return found


def of_file(path: Path, folder: Path) -> Any:
    if path.suffix == ".parquet":
        table = pl.read_parquet(path)
        table = table.select(pl.exclude([name for name in table.columns if name in TIMES]))
        made_of = {key: value.replace(str(folder), ".") for key, value in read_metadata(path).items()}
        return table.rows(), without_times(made_of)
    if path.suffix == ".json":
        return without_times(json.loads(path.read_text()))
    return path.read_bytes()


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key not in TIMES}
    return value


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "name", [name for name, (words, _) in COMMANDS.items() if not may_be_absent(words.split())]
)
def test_a_command_killed_at_every_place_has_all_outputs_of_an_undisturbed_one(world, tmp_path, name):
    command, least = COMMANDS[name]
    note = tmp_path / "killed-note"
    note.write_text("")

    def tried(where: str) -> int:
        folder = tmp_path / where
        if not folder.exists():
            shutil.copytree(world, folder)
        words = [str(tmp_path / f"{where}-note"), *command.split()]
        environment = {**os.environ, "MTL_CACHE": str(tmp_path / "cache")}
        output = tmp_path / f"{where}-said"
        with forked(
            "tests.mtl.training.killed", words, output, folder=folder, environment=environment
        ) as process:
            code = ended(process, 300)
        return code

    assert tried("undisturbed") == 0, printed(tmp_path / "undisturbed-said")
    code = -signal.SIGKILL
    while code == -signal.SIGKILL:
        code = tried("killed")
    places = note.read_text().splitlines()
    assert code == 0 or "another --out" in printed(tmp_path / "killed-said", "err"), (
        places, printed(tmp_path / "killed-said"),
    )  # fmt: skip
    assert len(places) >= least, places
    whole, killed = content(tmp_path / "undisturbed"), content(tmp_path / "killed")
    assert killed.keys() == whole.keys(), places
    assert [path for path in whole if killed[path] != whole[path]] == []
