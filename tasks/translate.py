"""Translation of a sentence into another language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from mtl.tasks.ranges import Dropout, Range
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric


Beam = Annotated[int, Range(1, 1_000)]
LengthPenalty = Annotated[float, Range(-100, 100)]


@dataclass(frozen=True)
class Translate(Task):
    """The text in another language; trained alone, on an encoder-decoder model.

    The translation is the sentence's label in this task. The model learns its pieces (subwords), which come
    from the model's tokenizer, so the task has no inventory of labels.
    """

    kind: ClassVar[str] = "translation"
    annotation: ClassVar[str] = "a text"
    alone: ClassVar[bool] = True
    name: ClassVar[str] = "translate"
    layers: ClassVar[tuple[str, ...]] = ("translate",)
    loss_unit: ClassVar[Literal["word", "sentence", "piece"]] = "piece"
    score: ClassVar[str] = "bleu"
    scores: ClassVar[tuple[str, ...]] = ("bleu", "chrf", "cross_entropy")

    source: str = ""
    """Language of the source, as named by a checkpoint for several languages (`en`, `en_XX`)."""
    target: str = ""
    """Language of the translation."""
    label_smoothing: Dropout = 0.1
    """Share of the probability that training spreads evenly over all subwords."""
    beam: Beam = 5
    """Number of hypotheses in beam search; 1: greedy search."""
    length_penalty: LengthPenalty = 1.0
    """Hypotheses are compared by log probability / length to this power; larger numbers favour long ones."""

    tokenize: str = "auto"
    """How BLEU finds words, as sacreBLEU names it (13a, intl, zh, ja-mecab, ko-mecab, char). auto: what
    sacreBLEU has for `target` (zh, ja-mecab and ko-mecab for Chinese, Japanese and Korean), else 13a."""

    @property
    def layer(self) -> str:
        """The label, under the task's name."""
        return self.name

    def loss_units(self, sentence: Sentence, targets: Any = None) -> int:
        """The number of pieces of the translation in `targets`, with the one that ends it."""
        return len(targets.pieces)

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        return {"translations": 1}

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(())

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        """No pieces: those of the translation come from the model's tokenizer."""
        from mtl.tasks.decoders.translator import no_pieces

        return no_pieces()

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.translator import collate_pieces

        return collate_pieces(targets)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.translator import Translator

        return Translator(self.label_smoothing)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.bleu import Bleu

        return Bleu(self.layer, self.tokenizer())

    def tokenizer(self) -> str:
        """sacreBLEU's name of the tokeniser that BLEU is counted with."""
        from mtl.tasks.metrics.bleu import tokenizer_for

        return tokenizer_for(self.target) if self.tokenize == "auto" else self.tokenize


def translation_in(tasks: Mapping[str, Task]) -> Translate | None:
    """The task that translates, which is then the only one; `None` if there is none."""
    return next((task for task in tasks.values() if isinstance(task, Translate)), None)
