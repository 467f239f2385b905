"""A corpus that is indexed for probing, and the settings with which an encoder is probed on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from mtl.probes.measures.items import PROBE_TARGETS, Items, ProbeTarget, index
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence

FREQUENT = 500
"""The number of words that count as frequent (Voita et al. 2019)."""


@dataclass(frozen=True, slots=True)
class ProbeCorpus:
    """The items probed per task, and the sentences from which centroids and word frequencies come."""

    sentences: Sequence[Sentence]
    items: Mapping[str, Items]
    fitted_sentences: Sequence[Sentence] | None
    """Other sentences that centroids and word frequencies are taken from; `None`: the same."""
    fitted: Mapping[str, Items]
    choice: str
    """Where centroids and word frequencies come from: `self` or `train`."""
    targets: Mapping[str, ProbeTarget]
    """The probe target of each task: which items it has, and how they are probed."""

    @classmethod
    def index(
        cls,
        sentences: Sequence[Sentence],
        fitted_sentences: Sequence[Sentence] | None = None,
        choice: str = "self",
        targets: Mapping[str, ProbeTarget] = PROBE_TARGETS,
    ) -> ProbeCorpus:
        """Index all tasks that have items in these sentences; `targets` says which items a task has.

        Raises `ValueError` if no task has any, or if a task to be fitted has none in `fitted_sentences`.
        """
        items = {name: index(sentences, target.items) for name, target in targets.items()}
        items = {name: indexed for name, indexed in items.items() if len(indexed)}
        if not items:
            raise ValueError(f"none of {counted(len(sentences), 'sentence')} has an annotation to probe for")
        if fitted_sentences is None:
            return cls(sentences, items, None, items, choice, targets)
        fitted: dict[str, Items] = {}
        for name in (name for name in items if targets[name].by == "clustering"):
            items_of = targets[name].items
            labels = {*items[name].names, *index(fitted_sentences, items_of).names}
            items[name] = index(sentences, items_of, labels)
            fitted[name] = index(fitted_sentences, items_of, labels)
            if not len(fitted[name]):
                raise ValueError(
                    f"no sentence to take centroids from is annotated for {name}: use --centroids=self"
                )
        return cls(sentences, items, fitted_sentences, fitted, choice, targets)

    def probed_by(self, way: Literal["attention", "clustering"], tasks: Sequence[str]) -> list[str]:
        """The tasks that are probed by attention, or by clustering."""
        return [name for name in tasks if self.targets[name].by == way]

    def rarest(self) -> Tensor:
        """The place of the rarest word of each sentence; see `rarest_words`."""
        counted = self.sentences if self.fitted_sentences is None else self.fitted_sentences
        frequencies = Counter(word for sentence in counted for word in sentence.words)
        return rarest_words(self.sentences, frequencies)


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """What probes are made from: the corpus, the mask, the shape of the encoder, and choices."""

    corpus: ProbeCorpus
    mask: str
    """The task of the mask; empty: all tasks."""
    tasks: tuple[str, ...]
    """The tasks that are probed under the mask."""
    layers: int
    heads: int
    head_dim: int
    final_special: bool = False
    """Whether the final special token competes for the most attended word."""
    seed: int = 0
    """Random seed for the shuffled labels and for the random projections that the records hold."""
    causal: bool = False
    """Whether heads see no later words."""
    draws: int = 0
    """The number of random projections of each layer's input in the records."""


def rarest_words(sentences: Sequence[Sentence], frequencies: Mapping[str, int]) -> Int[Tensor, " sentence"]:
    """The place of the rarest word of each sentence (the first on ties), -1 if that word is frequent.

    Voita et al. 2019. The `FREQUENT` most frequent words of `frequencies` count as frequent (ties in
    alphabetical order). Upper and lower case differ.
    """
    ranked = sorted(frequencies, key=lambda word: (-frequencies[word], word))
    frequent = set(ranked[:FREQUENT])
    places = []
    for sentence in sentences:
        counts = [frequencies.get(word, 0) for word in sentence.words]
        place = counts.index(min(counts))
        places.append(-1 if sentence.words[place] in frequent else place)
    return torch.tensor(places, dtype=torch.long)
