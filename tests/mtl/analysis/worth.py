"""Small models for tests of what heads are worth."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.heads.gates import HeadGates
from mtl.models.batches import BatchLoader, Example, aligned_batches, examples
from mtl.models.joint import JointModel
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence import Sentence
from tests.mtl import tiny

STRUCTURED = ("pos", "ner", "dep", "con", "srl")


@cache
def generated(path: Path) -> tuple[Sentence, ...]:
    """The sentences of a split of the generated corpus."""
    return tuple(read_jsonl(path))


def joint_model(
    toy: Path,
    names: Sequence[str] = STRUCTURED,
    *,
    family: str = "bert",
    dtype: torch.dtype = torch.float64,
    masks: Sequence[str] = (),
) -> JointModel:
    """Tasks on a tiny random encoder, in evaluation mode; `masks` names those of the gates."""
    torch.manual_seed(0)
    encoder = tiny.encoder(family, dtype=dtype, word_dropout=0.0)
    tasks = {name: TASKS[name]() for name in names}
    sentences = generated(toy / "train.jsonl")
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    gates = HeadGates(encoder.layers, encoder.heads, masks=tuple(masks), init_std=2.0) if masks else None
    model = JointModel(encoder, tasks, labels, gates).to(dtype).eval()
    tiny.shake(model.decoders)  # biaffine scorers begin at zero, and would pass no gradient on
    return model


def corpus(model: JointModel, toy: Path, count: int = 12) -> list[Example]:
    """The first sentences of the generated corpus."""
    sentences = generated(toy / "dev.jsonl")[:count]
    return examples(sentences, model.encoder.tokenizer, model.tasks, model.labels)


def loader(model: JointModel, examples: Sequence[Example], tokens: int) -> BatchLoader:
    """Batches of at most so many padded subwords."""
    plan = aligned_batches(examples, tuple(model.tasks), tokens, None, None)
    return BatchLoader(examples, model.encoder.tokenizer, model.tasks, plan)
