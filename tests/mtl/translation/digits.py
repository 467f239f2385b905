"""A toy language pair: digits, and their names in reverse order."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from pathlib import Path

from mtl.config.instances import Instance
from mtl.config.schema import (
    BatchConfig,
    CorpusConfig,
    EncoderConfig,
    Files,
    OptimizerConfig,
    TrainConfig,
    TrainerConfig,
)
from mtl.translation.config import Seq2SeqConfig
from mtl.translation.task import Translate

NAMES = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")


def pair(digits: str) -> tuple[str, str]:
    """Digits as a sentence, and its translation."""
    return " ".join(digits), " ".join(NAMES[int(digit)] for digit in reversed(digits)) + "."


def write(folder: Path, sentences: int, seed: int, longest: int = 4) -> str:
    """Write a corpus; returns SOURCE:TARGET."""
    rng = random.Random(seed)
    pairs = [pair("".join(rng.choices("0123456789", k=rng.randint(1, longest)))) for _ in range(sentences)]
    paths = [folder / f"{seed}.digits", folder / f"{seed}.names"]
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return ":".join(map(str, paths))


def named(config: TrainConfig, name: str) -> TrainConfig:
    """The run with its task under a name of its own."""
    task = Instance("translation", **asdict(config.translate))
    corpus = CorpusConfig(None, instances={name: config.corpus.translate})
    return replace(config, tasks=(name,), instances={name: task}, translate=Translate(), corpus=corpus)


def config(
    folder: Path, *, sentences: int = 64, held_out: int = 8, epochs: int = 1, **changes
) -> TrainConfig:
    """A small run on the toy: one layer of each kind of two heads, unless `changes` say otherwise."""
    files = Files(
        write(folder, sentences, 1), write(folder, held_out, 2), write(folder, held_out, 3), "parallel"
    )
    settings = {
        "name": "run", "runs": str(folder / "runs"), "tasks": ("translate",), "max_epochs": epochs,
        "corpus": CorpusConfig(None, translate=files), "encoder": EncoderConfig(attention="eager"),
        "seq2seq": Seq2SeqConfig("marian", 1, None, 2, 16, 16, 0.0, 300),
        "batch": BatchConfig(tokens=256, sentences=None),
        "optimizer": OptimizerConfig(
            encoder_lr=3e-3, weight_decay=0.0, schedule="inverse_sqrt", warmup_updates=5
        ),
        "translate": Translate("digits", "names", beam=2),
        "trainer": TrainerConfig(accelerator="cpu", precision="32-true"),
    }  # fmt: skip
    return TrainConfig(**{**settings, **changes})
