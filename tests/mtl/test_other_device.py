"""Commands on a device that is not the CPU: no tensor is left behind, and training steps do not wait."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from polars.testing import assert_frame_equal

from mtl.commands.command_table import COMMANDS, MEASURES
from mtl.config.effective import plain
from mtl.config.schema import GatesConfig
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from tests.kit.absent import may_be_absent
from tests.mtl.training.test_graph_tasks import with_graph

CURVE = ("--by=importance,recomputed", "--steps=2", "--sentences=8")
ROOT = Path(__file__).parents[2]

SETTINGS = {
    "max_epochs": 2,
    "trainer": {"precision": "32-true", "threads": 1},
    "optimizer": {"encoder_lr": 1e-3},
    "wandb": {"mode": "disabled"},
}


WAITS_OF_A_BATCH = {"decoding": 3, "importance": 0, "ablation": 26}
"""How often five tasks with a mask each may wait in a batch; importance: in a batch and task."""


def carry_out(folder: Path, words: list[list[str]], *where: str) -> dict[str, Any]:
    """Run commands in a process, on the other device or on the CPU; returns their waits and times by job."""
    folder.mkdir(exist_ok=True)
    (folder / "commands.json").write_text(json.dumps(words))
    done = subprocess.run(
        [sys.executable, "-m", "tests.mtl.other_device", "commands.json", *where],
        cwd=folder, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed["codes"] == [0] * len(words), done.stdout + done.stderr
    return printed


def outside_transformers(waits: list[list[str]]) -> list[str]:
    """Waits that are not for transformers, which reads in every pass whether a batch has padding.

    Each is the last line of this program, or of a library that no line of the program calls.
    """
    ours = [frames for frames in waits if not any("/transformers/" in frame for frame in frames)]
    return [
        [frame for frame in frames if "/site-packages/" not in frame or frame == frames[0]][-1]
        for frames in ours
    ]


def values(folder: Path) -> pl.DataFrame:
    """All measures on heads of a run, in a fixed order."""
    keys = ["measure", "task", "label", "attention", "layer", "head"]
    return pl.read_parquet(folder / "heads.parquet").sort(keys).select(*keys, "value")


def short_sentences(toy: Path, folder: Path) -> Path:
    """Those that fit into one window; where one does not, its rows are counted, and waited for."""
    for split in ("train", "dev", "test"):
        sentences = read_jsonl(toy / f"{split}.jsonl")
        write_jsonl(folder / f"{split}.jsonl", [one for one in sentences if len("".join(one.words)) < 50])
    return folder


@pytest.mark.slow
def test_five_tasks_with_masks_give_what_they_give_on_the_cpu(toy: Path, tiny_encoder: Path, tmp_path: Path):
    corpus = short_sentences(toy, tmp_path / "short")
    config = SETTINGS | {
        "name": "joint", "corpus": {"path": str(corpus)}, "encoder": {"name": str(tiny_encoder)},
        "tasks": ["pos", "ner", "dep", "con", "srl"],
        "pruning": "dynamic", "gates": {"scope": "per_task", "target_open": 4},
    }  # fmt: skip
    (tmp_path / "joint.yaml").write_text(yaml.safe_dump(config))
    run = "runs/joint"
    words = [
        ["train", "../joint.yaml"],
        ["evaluate", run, "--split=test"],
        *([name, run, "--sentences=8"] for name in MEASURES),
        ["ablate", run, "--sentences=8"],
        ["probe", run],
        *([["curve", run, *CURVE]] if "curve" in COMMANDS else []),
        ["collaborate", run, "--dim=8", "--steps=3", "--lengths=16", "--out=runs/shared"],
        ["importance", "runs/shared", "--sentences=8"],
    ]
    shares = not may_be_absent(["collaborate"])
    words = words if shares else words[:-2]
    printed = carry_out(tmp_path / "there", words)
    carry_out(tmp_path / "here", words, "cpu")
    here, there = tmp_path / "here" / run, tmp_path / "there" / run
    losses = [pl.read_csv(folder / "history.csv").select("^loss/.*$") for folder in (here, there)]
    assert_frame_equal(*losses, rel_tol=1e-4)
    assert_frame_equal(values(here), values(there), rel_tol=1e-3, abs_tol=1e-4)
    assert (there.parent / "shared" / "heads.parquet").is_file() or not shares
    assert printed["waits"]["step"] == []
    for job, most in WAITS_OF_A_BATCH.items():
        waits = outside_transformers(printed["waits"][job])
        assert len(waits) <= most * printed["times"][job], (job, printed["times"], Counter(waits))


MEASURED = {
    "evaluation": {"operations": 224, "waits": 2, "copies": 27},
    "ablation": {"operations": 631, "waits": 8, "copies": 75},
    "importance": {"operations": 791, "waits": 0, "copies": 65},
    "probes": {"operations": 409, "waits": 3, "copies": 105},
}
"""Most operations, waits and copies of measures on a batch of six sentences in five tasks, with 72 heads.

A forward pass of the encoder has 138 operations. Evaluation had 26 waits, ablation 1,675 operations and 151,
probes 22 waits; those that are left are at the end of a corpus. The model finds no predicate.
"""
FOUND = MEASURED | {
    "evaluation": {"operations": 240, "waits": 3, "copies": 29},
    "ablation": {"operations": 667, "waits": 8, "copies": 75},
}
"""The same where the model finds some: then those that it missed are decoded in a pass of their own."""


@pytest.mark.slow
@pytest.mark.parametrize(("bias", "measured"), [("-10", MEASURED), ("0", FOUND)], ids=["none", "some"])
def test_measures_start_few_operations_and_wait_seldom(bias, measured, toy: Path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.mtl.other_device", "--counts", str(toy), bias],
        capture_output=True, text=True, timeout=280, check=False, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for job, most in measured.items():
        assert all(found[job][key] <= number for key, number in most.items()), (job, found[job])


@pytest.mark.slow
def test_a_model_that_translates_gives_what_it_gives_on_the_cpu(tmp_path: Path):
    digits = pytest.importorskip("tests.mtl.translation.digits")
    gates = GatesConfig(target_open=4.0)
    config = digits.config(tmp_path, runs="runs", pruning="dynamic", gates=gates, epochs=2)
    (tmp_path / "digits.yaml").write_text(yaml.safe_dump(plain(dataclasses.asdict(config))))
    run = "runs/run"
    words = [["train", "../digits.yaml"], ["ablate", run], *([name, run] for name in MEASURES)]
    printed = carry_out(tmp_path / "there", words)
    carry_out(tmp_path / "here", words, "cpu")
    here, there = tmp_path / "here" / run, tmp_path / "there" / run
    losses = [pl.read_csv(folder / "history.csv").select("^loss/.*$") for folder in (here, there)]
    assert_frame_equal(*losses, rel_tol=1e-4)
    assert_frame_equal(values(here), values(there), rel_tol=1e-3, abs_tol=1e-4)
    assert outside_transformers(printed["waits"]["step"]) == []


@pytest.mark.slow
def test_steps_of_no_kind_of_task_and_no_mask_wait(toy: Path, tiny_encoder: Path, tmp_path: Path):
    corpus = short_sentences(toy, tmp_path / "short")
    for split in ("train", "dev", "test"):
        sentences = []
        for number, sentence in enumerate(read_jsonl(corpus / f"{split}.jsonl")):
            lemmas = tuple(word.lower() for word in sentence.words)
            new = {"lemmas": lemmas, "odd": str(number % 2), "size": number % 5}
            sentences.append(sentence.with_layers({**with_graph(sentence).layers, **new}))
        write_jsonl(corpus / f"{split}.jsonl", sentences)
    kinds = {
        "deps": {"kind": "graph"}, "arcs": {"kind": "tree"}, "tags": {"kind": "tags"},
        "lemmas": {"kind": "lemmas"}, "odd": {"kind": "class"}, "size": {"kind": "number"},
        "entities": {"kind": "spans"}, "frames": {"kind": "frames"},
    }  # fmt: skip
    gates = {"target_open": 4}
    runs: dict[str, dict[str, Any]] = {
        "kinds": {"tasks": kinds, "optimizer": {"encoder_lr": 1e-3, "accumulate": 2}},
        "static": {"tasks": kinds, "pruning": "static", "gates": gates, "init_from": "runs/kinds"},
        "shared": {
            "tasks": ["pos", "con"], "pruning": "dynamic", "gates": gates, "balancer": {"name": "gradnorm"}
        },
    }  # fmt: skip
    words = []
    for name, settings in runs.items():
        config = SETTINGS | {"name": name, "corpus": {"path": str(corpus)}} | settings
        encoder = {"encoder": {"name": str(tiny_encoder), "word_dropout": 0.2}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config | encoder))
        words.append(["train", f"../{name}.yaml"])
    waits = carry_out(tmp_path / "there", words)["waits"]
    assert outside_transformers(waits["step"]) == []
