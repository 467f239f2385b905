"""Hand-made sentences, and records with whatever attention and outputs a test wants."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mtl.probes.measures.probe import HeadRecords
from mtl.tasks.sentence import Arc, Arcs, Frame, Graph, Sentence, Span
from mtl.tasks.tree import Tree

CORPUS = (
    Sentence(
        ("the", "big", "dog", "saw", "Anna", "Bell"),
        tags=("DT", "JJ", "NN", "VBD", "NNP", "NNP"),
        entities=(Span(4, 6, "PER"),),
        arcs=Arcs((3, 3, 4, 0, 4, 5), ("det", "amod", "nsubj", "root", "obj", "flat")),
        tree=Tree.parse(
            "(TOP (S (NP (DT the) (JJ big) (NN dog)) (VP (VBD saw) (NP (NNP Anna) (NNP Bell)))))"
        ),
        frames=(Frame(3, "see.01", (Span(0, 3, "ARG0"), Span(4, 6, "ARG1"))),),
        deps=Graph((Arc(3, 4, "A0"), Arc(3, 2, "A1"), Arc(4, 0, "root"), Arc(6, 4, "A1"))),
    ),
    Sentence(("Oslo",), tags=("NNP",), arcs=Arcs((0,), ("root",)), frames=()),
    Sentence(
        ("Bo", "ran", "fast", "to", "catch", "Oslo", "trams"),
        tags=("NNP", "VBD", "RB", "TO", "VB", "NNP", "NNS"),
        entities=(Span(0, 1, "PER"), Span(5, 6, "LOC")),
        arcs=Arcs((2, 0, 2, 5, 2, 7, 5), ("nsubj", "root", "advmod", "mark", "advcl", "compound", "obj")),
        tree=Tree.parse(
            "(TOP (S (NP (NNP Bo)) (VP (VBD ran) (ADVP (RB fast)) "
            "(S (VP (TO to) (VP (VB catch) (NP (NNP Oslo) (NNS trams))))))))"
        ),
        frames=(
            Frame(1, "run.02", (Span(0, 1, "ARG0"), Span(2, 3, "ARGM-MNR"), Span(3, 7, "ARGM-PRP"))),
            Frame(4, "catch.01", (Span(0, 1, "ARG0"), Span(5, 7, "ARG1"))),
        ),
        deps=Graph((Arc(1, 2, "A0"), Arc(1, 5, "A0"), Arc(2, 5, "A1"), Arc(5, 2, "A1"))),
    ),
    Sentence(("x", "y", "z")),
)
"""The last sentence is not annotated at all, the second not in every layer."""

Matrices = list[Tensor]
"""Per sentence attention at word level, layer x head x from x to: first special token, words, final one."""


def random_matrices(sentences: Sequence[Sentence], layers: int, heads: int, seed: int) -> Matrices:
    """Few different values, so that there are ties."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, 6, (layers, heads, len(each) + 2, len(each) + 2), generator=generator).double()
        for each in sentences
    ]


def random_outputs(
    sentences: Sequence[Sentence], layers: int, heads: int, dim: int, seed: int
) -> list[Tensor]:
    """Per sentence word x layer x head x dim."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(len(each), layers, heads, dim, generator=generator, dtype=torch.float64)
        for each in sentences
    ]


def records_of(
    matrices: Matrices,
    outputs: Sequence[Tensor],
    numbers: Sequence[int],
    projected: Sequence[Tensor] | None = None,
) -> HeadRecords:
    """The records of some sentences, each one row; without a projection if none is given."""
    words = [matrices[number][:, :, 1:-1].permute(2, 0, 1, 3) for number in numbers]
    roots = [matrices[number][:, :, 0] for number in numbers]
    widest = max(matrix.shape[-1] for matrix in matrices) - 2

    def column(index: int) -> Tensor:
        return torch.cat([*(each[..., index] for each in words), *(each[None, ..., index] for each in roots)])

    def padded(each: Tensor) -> Tensor:
        return torch.nn.functional.pad(each[..., 1:-1], (0, widest - each.shape[-1] + 2), value=-1)

    among = torch.cat([*(padded(each) for each in words), *(padded(each)[None] for each in roots)])
    lengths = torch.tensor([len(each) for each in words])
    return HeadRecords(
        torch.tensor(numbers),
        lengths,
        torch.arange(len(numbers)).repeat_interleave(lengths),
        among.argmax(-1),
        among.amax(-1),
        column(0),
        column(-1),
        torch.cat([outputs[number] for number in numbers]),
        torch.cat([(outputs if projected is None else projected)[number] for number in numbers])[
            :, :, : 0 if projected is None else None
        ],
    )
