"""The training sentences of a run, and the examples that are made of them."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mtl.corpora.formats.parallel import is_empty
from mtl.models.batches import Corpus, Example, InMemory, examples
from mtl.models.inputs import InputCache
from mtl.models.subwords import SubwordTokenizer, Tokens
from mtl.models.unknown_words import Unknown, count_unknown
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task


class Tally(NamedTuple):
    """What is counted over the training examples before the first update."""

    annotated: Counter[str]
    """Sentences with targets, by task."""
    dropped: Counter[str]
    """Items that a task cannot represent, by task."""
    unknown: Unknown
    shortened: int
    """Words that were shortened to a maximum number of pieces."""
    cut: int
    """Sentence pairs that were cut at the end."""

    def and_(self, later: Tally) -> Tally:
        """The tally of this part of a corpus together with a later one."""
        return Tally(
            self.annotated + later.annotated,
            self.dropped + later.dropped,
            self.unknown.and_(later.unknown),
            self.shortened + later.shortened,
            self.cut + later.cut,
        )


def tally_of(
    corpus: Sequence[Example], tokenizer: Any, tasks: Mapping[str, Task], labels: Mapping[str, Labels]
) -> Tally:
    """The tally of these training examples."""
    unknown = tokenizer.unknown if isinstance(tokenizer, SubwordTokenizer) else -1
    return Tally(
        Counter(name for example in corpus for name in example.targets),
        Counter({
            name: sum(task.dropped(example.sentence, labels[name]) for example in corpus)
            for name, task in tasks.items()
        }),
        count_unknown(corpus, unknown),
        sum(each.tokens.shortened for each in corpus if isinstance(each.tokens, Tokens)),
        sum(each.tokens.cut for each in corpus if isinstance(each.tokens, Tokens)),
    )  # fmt: skip


class TrainSentences(Sequence[Sentence]):
    """The sentences that a run trains on, wherever they are."""

    @abstractmethod
    def labels(self, name: str, task: Task) -> Labels:
        """The labels of one of the run's tasks."""

    @abstractmethod
    def examples(
        self, tokenizer: Any, tasks: Mapping[str, Task], labels: Mapping[str, Labels]
    ) -> tuple[Corpus, Tally]:
        """Their examples, as `mtl.models.batches.examples` makes them in training, and the tally of these."""


@dataclass(frozen=True)
class SentencesInMemory(TrainSentences):
    """Training sentences in memory."""

    sentences: Sequence[Sentence]
    inputs: InputCache

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: Any) -> Any:
        return self.sentences[index]

    def labels(self, name: str, task: Task) -> Labels:
        return task.labels(self.sentences)

    def examples(
        self, tokenizer: Any, tasks: Mapping[str, Task], labels: Mapping[str, Labels]
    ) -> tuple[Corpus, Tally]:
        pieces = self.inputs.pieces(tokenizer, self.sentences)
        made = examples(self.sentences, tokenizer, tasks, labels, pieces, training=True)
        return InMemory(made), tally_of(made, tokenizer, tasks, labels)


@dataclass
class LeftOut:
    """Takes the sentences that training cannot use out of a stream of sentences."""

    max_words: int
    layer: str | None
    """The layer of translations, if the run has any."""
    long: list[Sentence] = field(default_factory=list)
    """Sentences of more than `max_words` words."""
    empty: list[Sentence] = field(default_factory=list)
    """Translations with an empty side."""

    def rest(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """The sentences that are not left out."""
        for sentence in sentences:
            if len(sentence) > self.max_words:
                self.long.append(sentence)
            elif self.layer is not None and is_empty(sentence, self.layer):
                self.empty.append(sentence)
            else:
                yield sentence
