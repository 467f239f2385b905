"""Translation of a sentence into another language."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from mtl.tasks.in_words import counted
from mtl.tasks.sentence import CONTROL, Sentence
from mtl.tasks.task import Dropout, Labels, OnlyBeside, Range, Task

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics import TaskMetric


Beam = Annotated[int, Range(1, 1_000)]
LengthPenalty = Annotated[float, Range(-100, 100)]
BeamSpread = Annotated[float, Range(0, 1_000)]
Replacement = Literal["unknown", "random"]
_WITH_WORD_DROPOUT = OnlyBeside(("source_word_dropout", "target_word_dropout"))
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
"""Letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese."""


@dataclass(frozen=True)
class Translate(Task):
    """The text in another language; trained alone, on an encoder-decoder model.

    The translation is the sentence's label in this task. The model learns its pieces (subwords), which come
    from the model's tokenizer, so the task has no inventory of labels.
    """

    kind: ClassVar[str] = "translation"
    annotation: ClassVar[str] = "a text"
    own_model: ClassVar[str] = "seq2seq"
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
    source_word_dropout: Dropout = 0.0
    """Share of the source's subwords that are replaced in training."""
    target_word_dropout: Dropout = 0.0
    """Share of the translation's subwords that are replaced where the decoder reads them in training."""
    replaced_by: Annotated[Replacement, _WITH_WORD_DROPOUT] = "unknown"
    """What word dropout puts there: the unknown token, or for each a random subword of the vocabulary."""
    beam: Beam = 5
    """Number of hypotheses in beam search; 1: greedy search."""
    length_penalty: LengthPenalty = 1.0
    """Hypotheses are compared by log probability / length to this power; larger numbers favour long ones."""
    beam_spread: BeamSpread | None = None
    """In every step of beam search, hypotheses whose log probability (in nats) is more than this below the
    best one's are dropped; `null`: none are."""

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

    def is_empty(self, sentence: Sentence) -> bool:
        """Whether one side of a translation is empty."""
        return not sentence.words or not sentence.layer(self.layer)

    def is_odd(self, sentence: Sentence) -> bool:
        """Whether a translation equals its source."""
        return bool(sentence.words) and sentence.words == source_words(str(sentence.layer(self.layer) or ""))

    def odd_in_words(self, odd: int, sentences: int) -> str:
        return f"{odd:,} of {counted(sentences, 'translation')} equal their source"

    def notes(self, splits: Mapping[str, Sequence[Sentence]]) -> Iterator[str]:
        """Empty sides; and translations without blanks between words, in which BLEU looks for them."""
        for split, sentences in splits.items():
            if message := self._empty_in_words(sentences):
                yield f"{split}: {message}: {'left out' if split == 'train' else 'scored as they are'}"
        dev = splits["dev"]
        unspaced = sum(bool(_UNSPACED.search(str(sentence.layer(self.layer)))) for sentence in dev)
        if self.tokenizer() == "13a" and 2 * unspaced > len(dev):
            yield (
                f"dev: {unspaced:,} of {counted(len(dev), 'translation')} are in a script without spaces, "
                "but BLEU counts words between spaces (tokenize=13a): set target or tokenize (zh, ja-mecab, "
                f"char) of {self.name}"
            )

    def _empty_in_words(self, sentences: Sequence[Sentence]) -> str | None:
        """The number of translations with an empty side, and the place of the first; `None` without any."""
        empty = [sentence for sentence in sentences if self.is_empty(sentence)]
        if not empty:
            return None
        number = counted(len(empty), "pair has", "pairs have")
        return f"{number} an empty line (the first, {empty[0].place or empty[0].id})"

    def signatures(self) -> dict[str, str]:
        """The signatures that sacreBLEU prints beside BLEU and chrF."""
        from mtl.translation.bleu import signatures

        return signatures(self.tokenizer())

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(())

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        """No pieces: those of the translation come from the model's tokenizer."""
        from mtl.translation.translator import no_pieces

        return no_pieces()

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.translation.translator import collate_pieces

        return collate_pieces(targets)

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.translation.translator import Translator

        return Translator(self.label_smoothing)

    def metric(self) -> TaskMetric:
        from mtl.translation.bleu import Bleu

        return Bleu(self.layer, self.tokenizer())

    def tokenizer(self) -> str:
        """sacreBLEU's name of the tokeniser that BLEU is counted with."""
        from mtl.translation.bleu import tokenizer_for

        return tokenizer_for(self.target) if self.tokenize == "auto" else self.tokenize


def translation_in(tasks: Mapping[str, Task]) -> Translate | None:
    """The task that translates, which is then the only one; `None` if there is none."""
    return next((task for task in tasks.values() if isinstance(task, Translate)), None)


def source_words(text: str) -> tuple[str, ...]:
    """The words of a source sentence, separated by white space, without control characters.

    Byte order marks before them, which files have at the start of lines, are left out.
    """
    return tuple(CONTROL.sub("", text.lstrip("\ufeff")).split())
