"""The tasks of GLUE (Wang et al. 2019) with the scores that it reports, except AX, WNLI and QQP.

A new task on sentences is such a class, too, listed in `OF_SENTENCES` of `tasks/catalogue.py`.
"""

from __future__ import annotations

from typing import ClassVar

from mtl.tasks.classify import Classify
from mtl.tasks.regress import Regress


class Cola(Classify):
    """Whether a sentence is acceptable (CoLA; 1: it is)."""

    name: ClassVar[str] = "cola"
    layers: ClassVar[tuple[str, ...]] = ("cola",)
    sentences: ClassVar[tuple[int, ...]] = (1,)
    score: ClassVar[str] = "matthews"
    scores: ClassVar[tuple[str, ...]] = ("matthews", "accuracy")
    inventory: ClassVar[tuple[str, ...]] = ("0", "1")


class Sst2(Classify):
    """Whether a sentence of a film review is positive (SST-2; 1: it is)."""

    name: ClassVar[str] = "sst2"
    layers: ClassVar[tuple[str, ...]] = ("sst2",)
    sentences: ClassVar[tuple[int, ...]] = (1,)
    scores: ClassVar[tuple[str, ...]] = ("accuracy",)
    inventory: ClassVar[tuple[str, ...]] = ("0", "1")


class Mrpc(Classify):
    """Whether two sentences say the same thing (MRPC; 1: they do)."""

    name: ClassVar[str] = "mrpc"
    layers: ClassVar[tuple[str, ...]] = ("mrpc",)
    sentences: ClassVar[tuple[int, ...]] = (2,)
    scores: ClassVar[tuple[str, ...]] = ("accuracy", "f1")
    inventory: ClassVar[tuple[str, ...]] = ("0", "1")


class Rte(Classify):
    """Whether the first sentence entails the second (RTE)."""

    name: ClassVar[str] = "rte"
    layers: ClassVar[tuple[str, ...]] = ("rte",)
    sentences: ClassVar[tuple[int, ...]] = (2,)
    scores: ClassVar[tuple[str, ...]] = ("accuracy",)
    inventory: ClassVar[tuple[str, ...]] = ("not_entailment", "entailment")


class Qnli(Classify):
    """Whether a sentence contains the answer to a question (QNLI)."""

    name: ClassVar[str] = "qnli"
    layers: ClassVar[tuple[str, ...]] = ("qnli",)
    sentences: ClassVar[tuple[int, ...]] = (2,)
    scores: ClassVar[tuple[str, ...]] = ("accuracy",)
    inventory: ClassVar[tuple[str, ...]] = ("not_entailment", "entailment")


class Mnli(Classify):
    """Whether the first sentence entails the second, contradicts it, or neither (MNLI)."""

    name: ClassVar[str] = "mnli"
    layers: ClassVar[tuple[str, ...]] = ("mnli",)
    sentences: ClassVar[tuple[int, ...]] = (2,)
    scores: ClassVar[tuple[str, ...]] = ("accuracy",)
    inventory: ClassVar[tuple[str, ...]] = ("contradiction", "neutral", "entailment")


class Stsb(Regress):
    """How similar two sentences are, from 0 to 5 (STS-B)."""

    name: ClassVar[str] = "stsb"
    layers: ClassVar[tuple[str, ...]] = ("stsb",)
    sentences: ClassVar[tuple[int, ...]] = (2,)
    scale: ClassVar[tuple[float, float] | None] = (0, 5)
