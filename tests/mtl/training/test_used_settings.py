"""A run reads each of its settings, or says that it does not; those that it does not read change nothing."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from mtl.analysis.observers import default_observers
from mtl.config.effective import VOLATILE, different_keys, plain, unused_keys
from mtl.config.keys import hints_of, within, without_null
from mtl.config.parse import changed, configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.runs.folder.run import Run
from mtl.training.check import check_settings
from mtl.training.train import train
from tests.mtl.training.setting_values import all_values
from tests.mtl.training.settings_matrix import Watched, write_corpus

TRANSLATION = (
    "translate --seq2seq.architecture=mbart --seq2seq.layers=1 --seq2seq.heads=2 --seq2seq.width=16 "
    "--seq2seq.vocabulary=300"
)
KINDS = {
    "pos": "pos", "dep": "dep", "ner": "ner", "con": "con", "srl": "srl", "class": "classify",
    "number": "regress", "joint": "pos,dep",
    "own": "{tagged: {kind: tags, layer: tags}, lemmas: {kind: lemmas}, graph: {kind: graph}}",
    "separate": "pos,dep --batch.mode=separate --batch.sampling=tempered",
    "mix": "pos,dep --encoder.layers=mix_per_task",
    "warm-up": "pos --optimizer.warmup_updates=2",
    "importance": "pos --importance_every=1",
    "conflict": "pos,dep --gradient_conflict_every=1",
    "shared": "pos,dep --pruning=dynamic",
    "per task": "pos,dep --pruning=dynamic --gates.scope=per_task",
    "penalty": "pos --pruning=dynamic --gates.penalty=0.1",
    "static": "pos --pruning=static --from=RUNS/pos",
    "gates only": "pos --pruning=gates_only --from=RUNS/pos",
    "from": "pos --from=RUNS/pos",
    "fixed masks": "pos,dep --pruning=fixed --gates.scope=per_task --gates.masks=RUNS/per task/gates.parquet",
    **{
        name: f"pos,dep --balancer.name={name}"
        for name in ("fixed", "moving_average", "uncertainty", "gradnorm", "pcgrad")
    },
    "translate": TRANSLATION,
    "translate with masks": f"{TRANSLATION} --pruning=dynamic",
    "translate with components": f"{TRANSLATION} --seq2seq.components=8",
    "translate with components by kind": f"{TRANSLATION} --seq2seq.components={{cross: 8}}",
    "translate from": "translate --from=RUNS/translate",
}  # fmt: skip
"""Tasks and options of every kind of run; later ones may start from earlier ones."""
IN_CONFIG = ("rates", "chosen", "task", "files_of")
"""Methods of the configuration through which a run reads it; others judge or copy it."""
JUDGING = ("mtl.config", "mtl.training.check", "mtl.training.check", "dataclasses", "copy")
"""Modules whose reading changes no outcome of a run that is accepted."""


def groups_in(kind: Any, prefix: str = "") -> Iterator[tuple[Any, str]]:
    """The dataclasses inside of a configuration, with the beginning of their keys."""
    yield kind, prefix
    for name, hint in hints_of(kind).items():
        group, _ = without_null(hint)
        if dataclasses.is_dataclass(group):
            yield from groups_in(group, f"{prefix}{name}.")


@contextmanager
def recorded() -> Iterator[set[str]]:
    """The dotted keys that are read in the block."""
    read: set[str] = set()
    places: dict[Any, list[str]] = {}
    for group, prefix in groups_in(TrainConfig):
        places.setdefault(group, []).append(prefix)

    def reading(names: set[str], prefixes: list[str]) -> Any:
        def get(self: Any, name: str) -> Any:
            if name in names:
                caller = sys._getframe(1)
                module, function = caller.f_globals.get("__name__", ""), caller.f_code.co_name
                if function in IN_CONFIG or not within(module, JUDGING):
                    read.update(f"{prefix}{name}" for prefix in prefixes)
            return object.__getattribute__(self, name)

        return get

    with pytest.MonkeyPatch.context() as patch:
        for group, prefixes in places.items():
            names = {field.name for field in dataclasses.fields(group)}
            patch.setattr(group, "__getattribute__", reading(names, prefixes), raising=False)
        yield read


class Runs:
    """Trains runs of all kinds in a folder."""

    def __init__(self, folder: Path, encoder: Path) -> None:
        write_corpus(folder / "toy")
        self.folder, self.inputs = folder, Watched(keep=True)
        self.given = [
            f"--corpus.path={folder / 'toy'}", f"--encoder.name={encoder}", "--max_epochs=2",
            "--trainer.accelerator=cpu",
        ]  # fmt: skip
        self.made: dict[str, set[str]] = {}

    def config(self, name: str) -> TrainConfig:
        """The configuration of a kind of run."""
        options = re.split(" (?=--)", f"--tasks={KINDS[name]}".replace("RUNS", str(self.folder / "runs")))
        words = [*self.given, *options, f"--name={name}", f"--runs={self.folder / 'runs'}"]
        return configured("mtl train", TrainConfig, words)

    def trained(self, config: TrainConfig) -> tuple[Run, str]:
        """A run, and what it has printed."""
        console = Console(file=io.StringIO(), width=10_000)
        observers = default_observers(config, console, self.inputs)
        run = train(config, console=console, inputs=self.inputs, observers=observers)
        return run, console.file.getvalue()  # type: ignore[attr-defined]

    def read_by(self, name: str) -> set[str]:
        """The keys that a run of a kind reads; runs that it starts from are trained first."""
        if name not in self.made:
            for needed in re.findall("RUNS/([a-z ]+)(?:/|$)", KINDS[name]):
                self.read_by(needed)
            with recorded() as read:
                self.trained(self.config(name))
            self.made[name] = set(read)
        return self.made[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path) -> Runs:
    return Runs(tmp_path_factory.mktemp("used"), tiny_encoder)


def content(run: Run) -> dict[str, Any]:
    """What a run has computed."""
    found: dict[str, Any] = {"metrics": run.metrics()}
    found |= {name: value.tobytes() for name, value in load_file(run.model / "model.safetensors").items()}
    found["history"] = pl.read_csv(run.folder / "history.csv").drop("seconds").rows()
    for table in run.folder.glob("*.parquet"):
        found[table.name] = pl.read_parquet(table).rows()
    return found


def with_other_values(config: TrainConfig, keys: tuple[str, ...]) -> tuple[TrainConfig, list[str]]:
    """The configuration with other values at all keys among these that can have some, and their names."""
    made, changed_keys = config, []
    for key, values in all_values().items():
        for value in values if within(key, keys) else ():
            try:
                other = configured("mtl train", TrainConfig, [f"--{key}={value}"])
                wanted = value_at(other, key)
                if plain(wanted) == plain(value_at(made, key)):
                    continue
                tried = changed(TrainConfig, plain(dataclasses.asdict(made)), {key: wanted}, "test")
                check_settings(tried)
            except InputError:
                continue
            made, changed_keys = tried, [*changed_keys, key]
            break
    return made, changed_keys


def value_at(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_setting_is_read_or_said_to_be_unused_and_then_changes_nothing(name, runs):
    read, config = runs.read_by(name), runs.config(name)
    unused = unused_keys(config)
    # The settings of a model come with the run that training starts from: others are refused.
    of_source = () if config.init_from is None else ("encoder", "seq2seq", *config.tasks)
    exempt = (*unused, *VOLATILE, *of_source)
    assert [key for key in all_values() if key not in read and not within(key, exempt)] == []
    other, keys = with_other_values(config, tuple(key for key in unused if not within(key, of_source)))
    assert len(keys) > 20
    assert different_keys(*(plain(dataclasses.asdict(each)) for each in (config, other))) == []
    elsewhere = dataclasses.replace(other, runs=str(runs.folder / "others"))
    run, printed = runs.trained(elsewhere)
    lines = [line for line in printed.splitlines() if "without effect" in line]
    named = [key for line in lines for key in line.partition(": ")[2].split(", ")]
    assert {key for key in keys if any(within(each, [key]) for each in named)} == {*keys}
    assert [each for each in named if not within(each, keys)] == []
    assert content(run) == content(Run(runs.folder / "runs" / name))
