"""Made-up folders of runs, as training and probing leave them; heads wanted by many pay a planted cost."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from mtl.config.instances import completed
from mtl.heads.gates import gate_table
from mtl.probes.tables import heads_table
from mtl.runs.compare.run_set import RunSet, RunWithSetup
from mtl.runs.compare.settings import Settings
from mtl.runs.compare.setups import setups_of
from mtl.runs.folder.run import Run
from tests.probes.worlds import with_kinds

LABELS = {"pos": 45, "ner": 18, "dep": 45, "con": 26, "srl": 35}
SCORES = {"pos": "accuracy", "ner": "f1", "dep": "las", "con": "f1", "srl": "f1"}
TASKS = tuple(SCORES)
VERSIONS = {"python": "3.11", "torch": "2.13", "mtl": "0.1.0"}


KEPT = tempfile.TemporaryDirectory(prefix="studies")
SMALL: dict[Any, tuple[Path, Any]] = {}
"""Copies of small studies by what they were made of, and the states of their random numbers."""


def runs_with(**settings: Settings) -> RunSet:
    """Runs of these names with these settings, whose folders do not exist."""
    runs = (Run(Path(name)) for name in settings)
    return RunSet(map(RunWithSetup, runs, setups_of([*settings.values()]), settings.values()))


class Study:
    """Makes the folders of one study; masks of a task are alike over seeds and setups."""

    def __init__(
        self, root: Path, layers: int = 3, heads: int = 4, labels: int | None = 3, cost: float = 0.1
    ):
        self.root, self.shape, self.cost = root, (layers, heads), cost
        self.labels = {task: labels or many for task, many in LABELS.items()}
        self.random = np.random.default_rng(0)
        self.wish = {task: self.random.normal(size=self.shape) for task in TASKS}
        self.able = {
            task: self.random.uniform(0.15, 0.6, (count, *self.shape)) for task, count in self.labels.items()
        }
        self.claims = sum((wish > 0.2).astype(int) for wish in self.wish.values())
        root.mkdir(parents=True, exist_ok=True)

    def run(
        self, tasks, seed, *, pruning="dynamic", scope="shared", encoder="minilm", probe=True, scores=True,
        name=None, shape=None, **config,
    ):  # fmt: skip
        name = name or f"{'-'.join(tasks)}-{pruning}-{scope}-seed{seed}"
        folder = self.root / "runs" / name
        folder.mkdir(parents=True)
        config = {
            "name": name, "seed": seed, "tasks": list(tasks), "pruning": pruning, "init_from": None,
            "max_epochs": 30, "encoder": {"name": encoder}, "gates": {"scope": scope}, **config,
        }  # fmt: skip
        (folder / "config.yaml").write_text(yaml.safe_dump(completed(config)))
        status = {
            "state": "finished", "seed": seed, "finished": "2026-11-20T12:00:00Z", "training_seconds": 61.5,
            "versions": VERSIONS, "device": "CPU, 1 thread", "git": "0123456789ab",
            "corpus_fingerprint": "f0" * 32, "corpus_fingerprints": dict.fromkeys(tasks, "f0" * 32),
        }  # fmt: skip
        (folder / "status.json").write_text(json.dumps(status))
        if scores:
            figures = {
                task: {SCORES.get(task, "accuracy"): 90.0 - 0.5 * len(tasks) + 0.25 * seed} for task in tasks
            }
            (folder / "metrics.json").write_text(json.dumps({"dev": figures, "test": figures}))
        self.history(folder, tasks)
        if pruning != "none":
            self.gates(tasks, scope, shape or self.shape).write_parquet(folder / "gates.parquet")
        if probe:
            self.probe(folder, tasks, joint=len(tasks) > 1, shape=shape)
        return folder

    def history(self, folder, tasks):
        columns = {f"dev/{task}/{SCORES.get(task, 'accuracy')}": [60.0, 80.0] for task in tasks}
        pl.DataFrame({"epoch": [1, 2], "update": [10, 20], **columns}).write_csv(folder / "history.csv")

    def gates(self, tasks, scope, shape):
        rows = []
        shared = sum(self.wish[task] for task in tasks) / len(tasks)
        for task in tasks:
            wish = shared if scope == "shared" else self.wish[task]
            wish = wish if shape == self.shape else self.random.normal(size=shape)
            gate = np.clip(wish + 0.1 * self.random.normal(size=shape), 0, 1)
            for step in (10, 20):
                for (layer, head), each in np.ndenumerate(gate):
                    place = {"task": task, "step": step, "attention": "self", "layer": layer, "head": head}
                    rows.append(place | {"log_alpha": 0.0, "gate": float(each), "open": bool(each > 1e-3)})
        return gate_table(rows)

    def probe(self, folder, tasks, *, joint=False, shape=None, drop=(), target="minilm", split="test"):
        folder.mkdir(parents=True, exist_ok=True)
        parts = []
        for task in tasks:
            names = [f"{task}{place}" for place in range(self.labels[task])]
            value = 0.3 + self.able[task] + 0.02 * self.random.normal(size=self.able[task].shape)
            value = np.clip(value - joint * self.cost * self.claims / len(TASKS), 0, 1)
            if shape:
                value = self.random.random((len(names), *shape))
            count = 30 * np.arange(len(names), 0, -1)
            rows = heads_table.rows("attention", task, names, value, count)
            chance = np.full(len(names), 0.3)
            parts += [rows, heads_table.rows("attention_offset", task, names, chance, count)]
        table = pl.concat(parts).filter(~pl.col("label").is_in(list(drop)))
        provenance = {"target": target, "split": split, "corpus": "ab" * 32, "centroids": "self"}
        heads_table.write_heads_table(
            folder / "heads.parquet", table, provenance | {"versions": json.dumps(VERSIONS)}
        )
        return folder

    def static(self, **changes):
        return self.probe(self.root / "static", TASKS, **changes)

    def small(self, seeds=(1, 2, 3)):
        """Every task alone and all jointly, and the encoder before training; made once, and then copied."""
        made_of = (type(self), self.shape, *self.labels.items(), self.cost, tuple(seeds))
        fresh = not any(self.root.iterdir())
        if fresh and made_of in SMALL:
            copy, self.random.bit_generator.state = SMALL[made_of]
            shutil.copytree(copy, self.root, dirs_exist_ok=True)
            return self.root
        self.static()
        for seed in seeds:
            for task in TASKS:
                self.run([task], seed)
            self.run(TASKS, seed, scope="per_task")
        if fresh:
            copy = shutil.copytree(self.root, Path(KEPT.name) / str(len(SMALL)))
            SMALL[made_of] = copy, self.random.bit_generator.state
        return self.root

    def sixty(self):
        """60 runs: tasks alone with and without gates, in pairs, and all jointly with both kinds of masks."""
        self.small()
        for seed in (1, 2, 3):
            for pair in itertools.combinations(TASKS, 2):
                self.run(pair, seed, scope="per_task")
            self.run(TASKS, seed, scope="shared")
            for task in ("pos", "ner", "dep"):
                self.run([task], seed, pruning="none")
        return self.root

    def force(self, folder, wanted):
        """Record that a target forced open the open heads of the last masks, all but `wanted` per task."""
        path = folder / "gates.parquet"
        gates = pl.read_parquet(path)
        last = pl.col("step") == pl.col("step").max()
        place = (pl.col("open").cum_sum() * pl.col("open")).over("task", "step")
        known = place.is_between(1, pl.col("task").replace_strict(wanted, default=0))
        before = pl.when(last).then(pl.when(known).then(1.0).otherwise(-9.0)).cast(pl.Float32)
        gates.with_columns(log_alpha_at_choice=before).write_parquet(path)

    def with_kinds(self):
        """Turn the layers of all masks and probes into those of three kinds of attention."""
        for path in sorted(self.root.glob("**/*.parquet")):
            table = pl.read_parquet(path)
            metadata = pl.read_parquet_metadata(path)
            kinds = with_kinds(table, self.shape[0] // 3).with_columns(
                pl.col("layer").cast(table["layer"].dtype)
            )
            heads_table.write_heads_table(
                path, kinds, {key: text for key, text in metadata.items() if key != "ARROW:schema"}
            )
        return self.root
