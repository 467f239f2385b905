"""What the decoders of a model find in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mtl.tasks.decoders.alternatives import Item
from mtl.tasks.sentence import Sentence


class Decoded(NamedTuple):
    """What a decoder finds in its task's sentences of a batch."""

    predicted: list[Any]
    given: list[Any] | None = None
    """The predictions given a part of the gold; of translations the cross-entropy of the references."""
    items: list[tuple[Item, ...]] | None = None
    """The most probable values."""


class Probable(NamedTuple):
    """An annotated sentence, and by task the values that its decoder finds most probable."""

    sentence: Sentence
    items: Mapping[str, tuple[Item, ...]]
