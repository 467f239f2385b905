"""What every head attends to in a few sentences of a corpus, and which arcs it hits there."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from jaxtyping import Int
from torch import Tensor

from mtl.probes.measures.attention import hits
from mtl.probes.measures.corpus import ProbeCorpus
from mtl.probes.measures.probe import HeadRecords
from mtl.probes.sites import Site
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import EXAMPLES_SCHEMA, SENTENCES, ExampleArc, ExampleSentence
from mtl.tasks.sentence import Sentence

LENGTHS = range(4, 17)
"""The numbers of words of a sentence that fits on a narrow page."""


class ExampleProbe:
    """Collects examples while a corpus is observed under a mask.

    Args:
        corpus: the corpus.
        mask: the task of the mask; empty: all tasks.
        final: whether the final special token competes for the most attended word.
    """

    def __init__(self, corpus: ProbeCorpus, mask: str, final: bool) -> None:
        tasks = corpus.probed_by("attention", tuple(corpus.items))
        self._items = {task: corpus.items[task] for task in tasks}
        self._roots = {task: corpus.targets[task].root for task in tasks}
        self._mask, self._final = mask, final
        self._numbers = kept_sentence_numbers(corpus.sentences)
        self.sentences = tuple(
            ExampleSentence(corpus.sentences[number].words, self._arcs(number)) for number in self._numbers
        )
        self._rows: dict[int, list[tuple[object, ...]]] = {}

    def _arcs(self, sentence: int) -> tuple[ExampleArc, ...]:
        found = []
        for task, items in self._items.items():
            begin = int(items.counts[:sentence].sum())
            for item in range(begin, begin + int(items.counts[sentence])):
                label = items.names[int(items.label[item])]
                place = (int(column[item]) for column in (items.start, items.end, items.anchor))
                found.append(ExampleArc(task, label, *place))
        return tuple(found)

    def update(self, records: HeadRecords) -> None:
        """Take the sentences that are kept out of a batch; a batch may come twice."""
        places = {int(number): place for place, number in enumerate(records.sentences)}
        wanted = [number for number in self._numbers if number in places]
        if not wanted:
            return
        root = any(self._roots.values())
        attended = records.attended(root=root, final=self._final).cpu()
        peak = records.peak
        for other in (records.root,) * root + (records.final,) * self._final:
            peak = peak.maximum(other)
        share = (100 * peak).round().clamp(0, 100).int().cpu()
        hit = {task: self._hits(task, records) for task in self._items}
        for number in wanted:
            begin = int(records.starts[places[number]])
            words = slice(begin, begin + int(records.lengths[places[number]]))
            of_sentence = [hit[task][self._in_batch(task, number, records)] for task in self._items]
            self._rows[number] = _rows(attended[words], share[words], of_sentence)

    def _hits(self, task: str, records: HeadRecords) -> Tensor:
        met = hits(
            records.attended(root=self._roots[task], final=self._final), self._items[task].within(records)
        )
        return (met.from_anchor | met.from_item).cpu()

    def _in_batch(self, task: str, sentence: int, records: HeadRecords) -> slice:
        """The items of a sentence among those of the batch."""
        numbers = records.sentences.tolist()
        counts = self._items[task].counts
        begin = sum(int(counts[number]) for number in numbers[: numbers.index(sentence)])
        return slice(begin, begin + int(counts[sentence]))

    def table(self, sites: Sequence[Site]) -> pl.DataFrame:
        """The rows of `ExampleTables.table`."""
        rows = [
            (self._mask, place, "", *row)
            for place, number in enumerate(self._numbers)
            for row in self._rows.get(number, ())
        ]
        return heads_table.at_sites(pl.DataFrame(rows, EXAMPLES_SCHEMA, orient="row"), sites)


def _rows(
    attended: Int[Tensor, "word layer head"], share: Int[Tensor, "word layer head"], hit: Sequence[Tensor]
) -> list[tuple[object, ...]]:
    """A row per layer and head; `hit` has for each task a tensor of item, layer and head."""
    _, layers, heads = attended.shape
    return [
        (
            layer, head, attended[:, layer, head].tolist(), share[:, layer, head].tolist(),
            [bool(each) for part in hit for each in part[:, layer, head]],
        )
        for layer in range(layers)
        for head in range(heads)
    ]  # fmt: skip


def kept_sentence_numbers(sentences: Sequence[Sentence]) -> tuple[int, ...]:
    """The numbers of the sentences that are kept."""
    fitting = [number for number, sentence in enumerate(sentences) if len(sentence) in LENGTHS]
    count = min(SENTENCES, len(fitting))
    return tuple(fitting[number * len(fitting) // count] for number in range(count))
