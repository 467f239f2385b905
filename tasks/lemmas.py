"""A lemma per word: scripts that edit the form, learned as labels of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mtl.tasks.lemma_lexicon import RANKED, LemmaLabels, RankedScripts, split_labels
from mtl.tasks.lemma_scripts import SAME, made, scripts_of
from mtl.tasks.ranges import Dropout, Size
from mtl.tasks.sentence import LEMMAS, Sentence
from mtl.tasks.task import Labels, Task, annotated_layer

if TYPE_CHECKING:
    from mtl.tasks.decoders.alternatives import Item
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric


@dataclass(frozen=True)
class Lemmas(Task):
    """A lemma per word."""

    kind: ClassVar[str] = "lemmas"
    annotation: ClassVar[str] = "a label per word"
    layers: ClassVar[tuple[str, ...]] = (LEMMAS,)
    layer: ClassVar[str] = LEMMAS
    item: ClassVar[str] = "lemma"
    score: ClassVar[str] = "accuracy"
    scores: ClassVar[tuple[str, ...]] = ("accuracy",)

    dropout: Dropout = field(default=0.33, kw_only=True)
    """Share of the word vectors' features dropped in training."""
    min_count: Size = field(default=2, kw_only=True)
    """How often a script must occur in training to be learned."""

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        return {"lemmas": len(sentence)}

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        found: Counter[str] = Counter()
        lexicon: dict[str, dict[str, str]] = {}
        for sentence in sentences:
            lemmas = sentence.layer(self.layer)
            if lemmas is None:
                continue
            for form, lemma, edits in zip(
                sentence.words, lemmas, scripts_of(sentence.words, lemmas), strict=True
            ):
                if edits is not None:
                    found[edits] += 1
                    lexicon.setdefault(form, {})[lemma] = edits
        frequent = {SAME} | {edits for edits, count in found.items() if count >= self.min_count}
        learned = {
            form: [lemma for lemma, edits in of_form.items() if edits in frequent]
            for form, of_form in lexicon.items()
        }
        return LemmaLabels(Labels(sorted(frequent)), learned).joined()

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.classifier import label_targets

        scripts = scripts_of(sentence.words, annotated_layer(sentence, self.layer))
        return label_targets([edits or "" for edits in scripts], labels)

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.classifier import collate_words

        return collate_words(targets, width)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.lemmas import LemmaDecoder

        return LemmaDecoder(hidden, labels, self.dropout)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.lemma_accuracy import LemmaAccuracy

        return LemmaAccuracy(self.layer)

    def offered(
        self, sentence: Sentence, items: tuple[Item, ...], k: int, labels: Labels
    ) -> tuple[Item, ...]:
        """The lemmas that scripts make of the forms, with their shares of the scripts' probability.

        Scripts that do not apply to a form are left out; for a form that occurs in training, so are scripts
        that make other lemmas than there. The probabilities of scripts that make the same lemma are added.
        """
        from mtl.tasks.decoders.alternatives import Alternative

        made_of, lexicon = [], split_labels(labels).lexicon
        for word, item in zip(sentence.words, items, strict=True):
            offers = [(made(str(edits), word), chance) for edits, chance in item.best]
            known = lexicon.get(word, ())
            if any(lemma in known for lemma, _ in offers[:RANKED]):
                offers = [offer for offer in offers if offer[0] in known]
            lemmas: dict[str, float] = {}
            for lemma, chance in offers:
                if lemma is not None:
                    lemmas[lemma] = lemmas.get(lemma, 0.0) + chance
            whole = sum(lemmas.values())
            ranked = sorted(lemmas.items(), key=lambda lemma: -lemma[1])[:k]
            best = tuple([Alternative(lemma, chance / whole) for lemma, chance in ranked])
            made_of.append(item._replace(best=best))
        return tuple(made_of)

    def annotate(self, sentence: Sentence, annotation: RankedScripts) -> Sentence:
        return sentence.with_layers({self.layer: annotation.lemmas(sentence.words)})
