"""Annotate words or running text with the decoders of a model, wherever their scores come from."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, overload

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from mtl.corpora.annotated_text import AnnotatedText
from mtl.corpora.running_text import offsets_of, split
from mtl.errors import InputError, as_input_error
from mtl.heads.arguments import shown, whole_number
from mtl.heads.given_models import require_weights
from mtl.models.annotation import Decoded, Probable
from mtl.models.batches import Batch, examples, unlabelled
from mtl.models.buckets import buckets
from mtl.models.checked import checked_sentences, require_layers_of_their_own, require_lengths
from mtl.models.finite import require_numbers
from mtl.models.head_scales import TaskScale
from mtl.models.limits import MAX_WORDS
from mtl.models.modes import computing_threads, in_evaluation_mode
from mtl.tasks.decoders.alternatives import Item
from mtl.tasks.decoders.decoder import Decoder
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task


class TaskScores(NamedTuple):
    """A decoder's scores for the sentences annotated in its task, and the mask of their words."""

    scores: Any
    mask: Bool[Tensor, "row word"]


class Annotator(nn.Module, ABC):
    """The decoders of one or more tasks; a subclass computes their scores."""

    tasks: dict[str, Task]
    labels: dict[str, Labels]
    decoders: nn.ModuleDict

    @property
    @abstractmethod
    def tokenizer(self) -> Any:
        """Makes pieces of sentences, and batches of them (`Tokenizer`)."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device that batches must be on."""

    @property
    def translates(self) -> bool:
        """Whether the model translates sentences instead of labelling words."""
        return False

    def decoder(self, name: str) -> Decoder:
        """The decoder of one task."""
        decoder = self.decoders[name]
        assert isinstance(decoder, Decoder)
        return decoder

    def reads_first(self, names: Iterable[str]) -> bool:
        """Whether any of the tasks reads the vector of the first special token (see `Decoder.as_read`)."""
        return any(self.decoder(name).reads_first for name in names)

    @abstractmethod
    def forward(self, batch: Batch, head_scale: TaskScale | None = None) -> dict[str, TaskScores]:
        """Scores per task of the batch; `head_scale` replaces gates and owners."""

    def decoded(
        self,
        batch: Batch,
        head_scale: TaskScale | None = None,
        *,
        given: bool = False,
        k: int | None = None,
    ) -> dict[str, Decoded]:
        """Predictions per task for the batch's sentences; `head_scale` is as in `forward`.

        With `given`, they include the predictions given a part of the gold (`Decoder.decode_given`), for
        translations the cross-entropy of the references (`Translator.references`). With `k`, they include the
        `k` most probable values (`Decoder.alternatives`).
        """
        decoded = {}
        outputs = self(batch, head_scale)
        require_numbers({name: output.scores for name, output in outputs.items()})
        for name, output in outputs.items():
            decoder = self.decoder(name)
            predicted = decoder.decode(output.scores, output.mask)
            with_gold = None
            if given:
                layer = self.tasks[name].layer
                gold = [sentence.layer(layer) for sentence in batch.of_task(name)]
                with_gold = decoder.decode_given(output.scores, output.mask, gold, predicted)
            items = None if k is None else decoder.alternatives(output.scores, output.mask, predicted, k)
            decoded[name] = Decoded(predicted, with_gold, items)
        return decoded

    def evaluation_tokens(self) -> int:
        """The maximum number of padded subwords in a batch without gradients.

        Small batches fit into the caches of a CPU: MiniLM is 1.28 times as fast at 1,024 as at 4,096.
        """
        return 1024 if self.device.type == "cpu" else 16384

    @overload
    def annotate(
        self,
        sentences: Sequence[Sequence[str]] | Sequence[Sentence],
        max_words: int = MAX_WORDS,
        *,
        probabilities: None = None,
        batch_tokens: int | None = None,
        threads: int | None = None,
    ) -> list[Sentence]: ...

    @overload
    def annotate(
        self,
        sentences: Sequence[Sequence[str]] | Sequence[Sentence],
        max_words: int = MAX_WORDS,
        *,
        probabilities: int,
        batch_tokens: int | None = None,
        threads: int | None = None,
    ) -> list[Probable]: ...

    def annotate(
        self,
        sentences: Sequence[Sequence[str]] | Sequence[Sentence],
        max_words: int = MAX_WORDS,
        *,
        probabilities: int | None = None,
        batch_tokens: int | None = None,
        threads: int | None = None,
    ) -> list[Sentence] | list[Probable]:
        """Annotate tokenised sentences in all of the model's tasks; existing annotations are replaced.

        Pairs of sentences are annotated in tasks for pairs, single sentences in the others. Several threads
        may annotate with one model.

        Args:
            sentences: lists of words, or sentences; `annotate_text` takes running text.
            max_words: the maximum number of words in a sentence.
            probabilities: a number K, to get also the K most probable values of everything that is predicted,
                where the decoders have probabilities (docs/decoders.md).
            batch_tokens: the maximum number of padded subwords in a batch; a longer sentence is a batch of
                its own. `None`: 1,024 on a CPU, 16,384 elsewhere.
            threads: the number of CPU threads that the calling thread uses; `None`: torch's setting.

        Raises `InputError` for a sentence that is not a list of words, that has more than `max_words` words,
        or that has none (unless the model translates), and for models with two decoders for one layer.
        """
        found = self._annotated(sentences, max_words, probabilities, batch_tokens, threads)
        return found if probabilities is not None else [sentence for sentence, _ in found]

    def annotate_text(
        self,
        text: str,
        language: str = "en",
        *,
        max_words: int = MAX_WORDS,
        probabilities: int | None = None,
        batch_tokens: int | None = None,
        threads: int | None = None,
    ) -> AnnotatedText:
        """Annotate running text, which rules split into sentences and words; words keep their places in it.

        The rules are those of `mtl predict`. All other arguments are those of `annotate`.

        Args:
            text: the text; control characters in it separate words.
            language: `en`, or the code of a language of spaCy (the extra `languages`).

        Raises:
            InputError: the text is no string or cannot be split, there is no such language, or a sentence
                has more than `max_words` words.
        """
        if self.translates:
            raise InputError("annotate_text is for models that label words, and this one translates")
        for value, what in ((text, "text"), (language, "language")):
            if not isinstance(value, str):
                raise InputError(f"{what}={shown(value)}: use a string")
        with as_input_error("text"):
            sentences = split(text, language)
            offsets = offsets_of(text, sentences)
        named = [dataclasses.replace(each, id=str(number)) for number, each in enumerate(sentences, 1)]
        found = self._annotated(named, max_words, probabilities, batch_tokens, threads)
        items = None if probabilities is None else tuple(probable.items for probable in found)
        return AnnotatedText(text, tuple(sentence for sentence, _ in found), tuple(offsets), items)

    @torch.inference_mode()
    def _annotated(
        self, sentences: Any, max_words: Any, k: Any, batch_tokens: Any, threads: int | None
    ) -> list[Probable]:
        """What `annotate` and `annotate_text` share, with unchecked arguments; `k` is `probabilities`."""
        require_layers_of_their_own(self.tasks)
        if self.device.type == "meta":
            require_weights(self, "annotate")
        plain = checked_sentences(sentences)
        max_words = whole_number(max_words, "max_words", 1)
        empty = [position for position, sentence in enumerate(plain, 1) if not len(sentence)]
        if empty and not self.translates:
            raise InputError(f"sentence {empty[0]} has no words: leave it out")
        require_lengths(plain, max_words)
        k = None if k is None else whole_number(k, "probabilities", 1)
        tokens = self.evaluation_tokens()
        if batch_tokens is not None:
            tokens = whole_number(batch_tokens, "batch_tokens", 1)

        with computing_threads(threads), in_evaluation_mode(self):
            return self._in_batches(plain, tokens, k)

    def _in_batches(self, sentences: Sequence[Sentence], tokens: int, k: int | None) -> list[Probable]:
        """Annotate in batches of at most `tokens` padded subwords; with `k` also the most probable values."""
        corpus = examples(sentences, self.tokenizer, {}, {})
        found = list(sentences)
        items: list[dict[str, tuple[Item, ...]]] = [{} for _ in sentences]
        ordered = _in_order_of_need(self.tasks)
        for indices in buckets([example.length for example in corpus], tokens, None, None):
            batch = unlabelled([corpus[index] for index in indices], self.tokenizer, self.tasks)
            decoded = self.decoded(batch.to(self.device), k=k) if batch.rows else {}
            for name, task in ordered:
                if name not in decoded:
                    continue
                rows = [indices[row] for row in batch.places[name]]
                for index, annotation in zip(rows, decoded[name].predicted, strict=True):
                    found[index] = task.annotate(found[index], annotation)
                probable = decoded[name].items
                if k is None or probable is None:
                    continue
                for index, of_sentence in zip(rows, probable, strict=True):
                    items[index][name] = task.offered(sentences[index], of_sentence, k, self.labels[name])
        return [Probable(*pair) for pair in zip(found, items, strict=True)]


def _in_order_of_need(tasks: Mapping[str, Task]) -> list[tuple[str, Task]]:
    """The tasks; a task whose annotation includes the layer of another comes after it (CON after tags)."""
    made = {task.layer for task in tasks.values()}

    def waits(item: tuple[str, Task]) -> bool:
        return any(layer in made for layer in item[1].layers[1:] if layer != item[1].layer)

    return sorted(tasks.items(), key=waits)
