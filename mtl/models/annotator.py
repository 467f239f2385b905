"""Sentences annotated, one batch after the other, by decoders that are given scores."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, overload

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from mtl.corpora.annotated_text import AnnotatedText
from mtl.corpora.running_text import offsets_of, split
from mtl.errors import InputError, as_input_error
from mtl.heads.arguments import shown, whole_number
from mtl.heads.given_models import require_weights
from mtl.models.annotation import Decoded, Probable, annotated
from mtl.models.batches import Batch
from mtl.models.checked import checked_sentences, require_layers_of_their_own, require_lengths
from mtl.models.finite import require_numbers
from mtl.models.head_scales import TaskScale
from mtl.models.limits import MAX_WORDS
from mtl.models.modes import computing_threads, in_evaluation_mode
from mtl.tasks.decoders.decoder import Decoder
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task


class TaskScores(NamedTuple):
    """A decoder's scores for the sentences annotated in its task, and the mask of their words."""

    scores: Any
    mask: Bool[Tensor, "row word"]


class Annotator(nn.Module, ABC):
    """Decoders of one or more tasks; subclasses say where the scores come from."""

    tasks: dict[str, Task]
    labels: dict[str, Labels]
    decoders: nn.ModuleDict

    @property
    @abstractmethod
    def tokenizer(self) -> Any:
        """Pieces of sentences, and batches of them (`Tokenizer`)."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where batches have to be."""

    @property
    def translates(self) -> bool:
        """Whether the model translates sentences, and labels no words."""
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

        With `given` also the predictions given a part of the gold (`Decoder.decode_given`), and for
        translations the cross-entropy of the references (`Translator.references`). With `k` also the `k` most
        probable values (`Decoder.alternatives`).
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
        """Padded subwords in a batch without gradients.

        On a CPU small batches fit into its caches: MiniLM is 1.28 times as fast at 1,024 as at 4,096.
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
            max_words: the number of words that a sentence may have.
            probabilities: K, for also the K most probable values of everything that is predicted, as far as
                the decoders have probabilities (docs/decoders.md).
            batch_tokens: padded subwords in a batch, at most; a longer sentence is a batch of its own.
                `None`: 1,024 on a CPU, 16,384 elsewhere.
            threads: CPU threads that the calling thread computes with; `None`: as torch is set.

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
        """Annotate running text, split into sentences and words by rule, with the place of every word.

        The rules are those of `mtl predict`. All other arguments are those of `annotate`.

        Args:
            text: the text; control characters in it separate words.
            language: `en`, or the code of a language of spaCy (the extra `languages`).
            max_words: see `annotate`.
            probabilities: see `annotate`.
            batch_tokens: see `annotate`.
            threads: see `annotate`.

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
        """Both ways to annotate, of arguments that are not checked yet; `k`: see `annotate`."""
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

        def decode(batch: Batch) -> dict[str, Decoded]:
            return self.decoded(batch.to(self.device), k=k)

        with computing_threads(threads), in_evaluation_mode(self):
            return annotated(plain, self.tokenizer, self.tasks, self.labels, decode, tokens, k)
