"""Annotate words or running text with the decoders of a model, wherever their scores come from."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, overload

import torch
from jaxtyping import Bool
from safetensors import SafetensorError
from torch import OutOfMemoryError, Tensor, nn

from mtl.config.parse import read_mapping
from mtl.corpora.annotated_text import AnnotatedText, Offset, offsets_of
from mtl.corpora.formats.lines import fault
from mtl.corpora.running_text import split
from mtl.errors import InputError, as_input_error, did_you_mean
from mtl.heads.arguments import is_iterable, short_text, whole_number, yes_or_no
from mtl.heads.gates import TaskScale
from mtl.heads.given_models import require_weights
from mtl.models.batches import MAX_WORDS, Batch, buckets, examples, unlabelled
from mtl.models.passes import computing_threads, in_evaluation_mode, without_nan
from mtl.tasks.decoders.decoder import Decoder, Item, Steps, in_step, steps_of
from mtl.tasks.in_words import counted, first_line
from mtl.tasks.rules import UNKEPT, Match, TaskRules, rules_from
from mtl.tasks.sentence import MadeUpId, Sentence
from mtl.tasks.task import Labels, Task


class Rules(NamedTuple):
    """Rules for a model's predictions, by task (`Annotator.rules_for`)."""

    by_task: Mapping[str, TaskRules]


RulesGiven = Mapping[str, Any] | str | Path | Rules


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
    def does(self) -> str:
        """What the model does instead of labelling words, in messages; empty: it labels words."""
        return ""

    @property
    def instead(self) -> str:
        """What to do with such a model instead of annotating text, in messages."""
        return ""

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
        """Scores per task of the batch; `head_scale` replaces the gates."""

    def decoded(
        self,
        batch: Batch,
        head_scale: TaskScale | None = None,
        *,
        given: bool = False,
        k: int | None = None,
        rules: Mapping[str, TaskRules] | None = None,
    ) -> dict[str, Decoded]:
        """Predictions per task for the batch's sentences; `head_scale` is as in `forward`.

        With `given`, they include the predictions given a part of the gold (`Decoder.decode_given`). With
        `k`, they include the `k` most probable values (`Decoder.alternatives`). With `rules` of some tasks,
        they keep these, and include the matches that could not be kept.
        """
        outputs = self(batch, head_scale)
        checked = without_nan({name: output.scores for name, output in outputs.items()})
        of_tasks = [
            self._decoded(
                name, output, batch.of_task(name), given, k, None if rules is None else rules.get(name)
            )
            for name, output in outputs.items()
        ]
        _, *decoded = in_step([checked, *of_tasks], batch.mask.device)
        return dict(zip(outputs, decoded, strict=True))

    def _decoded(
        self,
        name: str,
        output: TaskScores,
        sentences: Sequence[Sentence],
        given: bool,
        k: int | None,
        rules: TaskRules | None,
    ) -> Steps[Decoded]:
        """`decoded` of one task, in steps."""
        decoder, (scores, mask), matches = self.decoder(name), output, None
        if rules is not None:
            matches = [rules.matches(sentence.words) for sentence in sentences]
            if any(matches):
                yield ()  # until no scores are NaN
                scores = decoder.constrained(scores, mask, matches)
        predicted = yield from steps_of(decoder.decode, scores, mask)
        with_gold = None
        if given:
            gold = [sentence.layer(self.tasks[name].layer) for sentence in sentences]
            with_gold = yield from steps_of(decoder.decode_given, scores, mask, gold, predicted)
        items = None if k is None else decoder.alternatives(scores, mask, predicted, k)
        return Decoded(predicted, with_gold, items, _not_kept(matches, predicted))

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
        tasks: Iterable[str] | None = None,
        probabilities: None = None,
        batch_tokens: int | None = None,
        threads: int | None = None,
        rules: RulesGiven | None = None,
    ) -> list[Sentence]: ...

    @overload
    def annotate(
        self,
        sentences: Sequence[Sequence[str]] | Sequence[Sentence],
        max_words: int = MAX_WORDS,
        *,
        tasks: Iterable[str] | None = None,
        probabilities: int,
        batch_tokens: int | None = None,
        threads: int | None = None,
        rules: RulesGiven | None = None,
    ) -> list[Probable]: ...

    def annotate(
        self,
        sentences: Sequence[Sequence[str]] | Sequence[Sentence],
        max_words: int = MAX_WORDS,
        *,
        tasks: Iterable[str] | None = None,
        probabilities: int | None = None,
        batch_tokens: int | None = None,
        threads: int | None = None,
        rules: RulesGiven | None = None,
    ) -> list[Sentence] | list[Probable]:
        """Annotate tokenised sentences in the model's tasks; existing annotations of theirs are replaced.

        Annotations in other layers stay, so that sentences can be annotated by one model after another. Pairs
        of sentences are annotated in tasks for pairs, single sentences in the others. Several threads may
        annotate with one model.

        Args:
            sentences: lists of words, or sentences; `annotate_text` takes running text.
            max_words: the maximum number of words in a sentence.
            tasks: names of the tasks to annotate in; only their decoders are run. `None`: all.
            probabilities: a number K, to get also the K most probable values of everything that is predicted,
                where the decoders have probabilities (docs/decoders.md).
            batch_tokens: the maximum number of padded subwords in a batch; a longer sentence is a batch of
                its own. `None`: 1,024 on a CPU, 16,384 elsewhere.
            threads: the number of CPU threads that the calling thread uses; `None`: torch's setting.
            rules: by task, words with the annotations that they must, or must not, get (docs/decoders.md), as
                a mapping, the path of a YAML file, or what `rules_for` made of either. A rule that cannot be
                kept beside others is a note of its sentence (`notes`).

        Raises `InputError` for a sentence that is not a list of words, that has more than `max_words` words,
        or that has none (if the model labels words), for a task that the model does not have, for two tasks
        that annotate one layer, and for rules that its decoders do not take.
        """
        annotated = self._annotation(tasks, probabilities, batch_tokens, threads, rules)
        found = annotated(self._annotatable(sentences, max_words))
        return found if probabilities is not None else [sentence for sentence, _ in found]

    def annotate_text(
        self,
        text: str,
        language: str = "en",
        *,
        max_words: int = MAX_WORDS,
        tasks: Iterable[str] | None = None,
        probabilities: int | None = None,
        batch_tokens: int | None = None,
        threads: int | None = None,
        rules: RulesGiven | None = None,
    ) -> AnnotatedText:
        """Annotate running text, which rules split into sentences and words; words keep their places in it.

        The rules are those of `mtl predict`, which takes each line of a file for a text. A blank line ends a
        sentence.

        Args:
            text: the text; control characters in it separate words.
            language: `en`, or the code of a language of spaCy (the extra `languages`).
            max_words: as in `annotate`.
            tasks: as in `annotate`.
            probabilities: as in `annotate`.
            batch_tokens: as in `annotate`.
            threads: as in `annotate`.
            rules: as in `annotate`.

        Raises:
            InputError: the text is no string or cannot be split, there is no such language or task, or a
                sentence has more than `max_words` words.
        """
        annotated = self._annotation(tasks, probabilities, batch_tokens, threads, rules)
        document = self._text(text, language, max_words)
        found = document.annotated(iter(annotated(document.sentences)), probabilities is not None)
        assert isinstance(found, AnnotatedText)
        return found

    def annotate_stream(
        self,
        documents: Iterable[str] | Iterable[Sequence[str]] | Iterable[Sentence],
        language: str = "en",
        *,
        max_words: int = MAX_WORDS,
        tasks: Iterable[str] | None = None,
        probabilities: int | None = None,
        batch_tokens: int | None = None,
        threads: int | None = None,
        rules: RulesGiven | None = None,
        window: int = 512,
        return_exceptions: bool = False,
    ) -> Iterator[Any]:
        """Annotate any number of documents, each as soon as a window of sentences is complete.

        Yields what `annotate_text` returns for a text, and what `annotate` returns for a list of words or a
        sentence (with `probabilities`, a pair), in the order of the documents. Batches are made of sentences
        of similar length within a window, so memory does not grow with the number of documents.

        Args:
            documents: texts, lists of words or sentences; they may have no end.
            language: of texts, as in `annotate_text`.
            max_words: as in `annotate`.
            tasks: as in `annotate`.
            probabilities: as in `annotate`.
            batch_tokens: as in `annotate`.
            threads: as in `annotate`.
            rules: as in `annotate`.
            window: the number of sentences that make a window complete, and the maximum number of documents
                that are read ahead; a text that has more sentences is annotated whole.
            return_exceptions: yield the `InputError` of a document that cannot be annotated in its place, and
                go on; otherwise it is raised after the documents before it.

        Raises `InputError` as `annotate` and `annotate_text` do; messages about a document begin with its
        number, from 1.
        """
        if isinstance(documents, (Sentence, *_NO_LIST)) or not is_iterable(documents):
            raise InputError(
                f"documents={short_text(documents)}: use a list or generator of texts, lists of words or "
                "sentences"
            )
        window = whole_number(window, "window", 1)
        yes_or_no(return_exceptions, "return_exceptions")
        annotated = self._annotation(tasks, probabilities, batch_tokens, threads, rules)
        annotated(self._annotatable([], max_words))  # wrong arguments are refused at once
        if not isinstance(language, str) or language != "en":
            self._text("", language, max_words)

        def of_window(held: list[_Document | InputError]) -> Iterator[Any]:
            whole = [each for each in held if isinstance(each, _Document)]
            found = iter(annotated([sentence for each in whole for sentence in each.sentences]))
            for each in held:
                yield (
                    each.annotated(found, probabilities is not None) if isinstance(each, _Document) else each
                )

        def in_windows() -> Iterator[Any]:
            held: list[_Document | InputError] = []
            sentences = 0
            for number, given in enumerate(documents, 1):
                try:
                    held.append(self._document(given, language, max_words))
                except InputError as error:
                    named = InputError(f"document {number}: {error}")
                    if not return_exceptions:
                        yield from of_window(held)
                        raise named from error
                    held.append(named)
                last = held[-1]
                sentences += max(1, len(last.sentences)) if isinstance(last, _Document) else 1
                if sentences >= window:
                    yield from of_window(held)
                    held, sentences = [], 0
            yield from of_window(held)

        return in_windows()

    def _document(self, given: Any, language: str, max_words: Any) -> _Document:
        if isinstance(given, str):
            return self._text(given, language, max_words)
        return _Document(self._annotatable([given], max_words))

    def _text(self, text: str, language: str, max_words: Any) -> _Document:
        if self.does:
            raise InputError(f"annotate_text is for models that label words, and this one {self.does}")
        for value, what in ((text, "text"), (language, "language")):
            if not isinstance(value, str):
                raise InputError(f"{what}={short_text(value)}: use a string")
        with as_input_error("text"):
            sentences = split(text, language)
            offsets = offsets_of(text, sentences)
        named = [dataclasses.replace(each, id=MadeUpId(number)) for number, each in enumerate(sentences, 1)]
        return _Document(self._annotatable(named, max_words), text, tuple(offsets))

    def rules_for(self, given: RulesGiven, where: str = "rules") -> Rules:
        """Rules as `annotate` takes them, checked and ready to be used with this model many times.

        `where` is what messages call a mapping; a file is called by its path.

        Raises `InputError` for tasks that the model does not have, and for what its decoders cannot keep.
        """
        if isinstance(given, Rules):
            return given
        if not isinstance(given, (Mapping, str, Path)) or (isinstance(given, str) and not given):
            raise InputError(f"rules={short_text(given)}: use a mapping by task, or the path of a YAML file")
        where = where if isinstance(given, Mapping) else str(given)
        by_task = given if isinstance(given, Mapping) else read_mapping(Path(given))
        if not by_task:
            raise InputError(f"{where}: no rules: give them by task")
        found = {}
        for name in chosen_tasks(self.tasks, [*by_task]):
            decoder = self.decoder(name)
            if decoder.ruled is None:
                raise InputError(f"{where}: {name}: {type(decoder).__name__} takes no rules: leave them out")
            with as_input_error(f"{where}: {name}"):
                found[name] = rules_from(by_task[name], decoder.ruled, self.labels[name])
        return Rules(found)

    def _annotatable(self, sentences: Any, max_words: Any) -> list[Sentence]:
        """The sentences, checked; raises `InputError` as `annotate` does."""
        plain = checked_sentences(sentences)
        max_words = whole_number(max_words, "max_words", 1)
        empty = [position for position, sentence in enumerate(plain, 1) if not len(sentence)]
        if empty and not self.does:
            raise InputError(f"sentence {empty[0]} has no words: leave it out")
        require_lengths(plain, max_words)
        return plain

    def _annotation(
        self, tasks: Any, k: Any, batch_tokens: Any, threads: int | None, rules: RulesGiven | None
    ) -> Callable[[Sequence[Sentence]], list[Probable]]:
        """A function that annotates checked sentences as asked for; `k` is `probabilities`."""
        chosen = chosen_tasks(self.tasks, tasks)
        require_layers_of_their_own(chosen)
        if self.device.type == "meta":
            require_weights(self, "annotate")
        k = None if k is None else whole_number(k, "probabilities", 1)
        tokens = self.evaluation_tokens()
        if batch_tokens is not None:
            tokens = whole_number(batch_tokens, "batch_tokens", 1)
        ruled = None if rules is None else self.rules_for(rules).by_task
        if ruled is not None and not isinstance(rules, Rules) and (left := ruled.keys() - chosen.keys()):
            raise InputError(
                f"rules for {', '.join(sorted(left))}, which is not among the tasks annotated in"
            )

        @torch.inference_mode()
        def annotated(sentences: Sequence[Sentence]) -> list[Probable]:
            with computing_threads(threads), in_evaluation_mode(self):
                return self._in_batches(sentences, chosen, tokens, k, ruled)

        return annotated

    def _in_batches(
        self,
        sentences: Sequence[Sentence],
        tasks: Mapping[str, Task],
        tokens: int,
        k: int | None,
        rules: Mapping[str, TaskRules] | None,
    ) -> list[Probable]:
        """Annotate in batches of at most `tokens` padded subwords; with `k` also the most probable values."""
        corpus = examples(sentences, self.tokenizer, {}, {})
        found = list(sentences)
        items: list[dict[str, tuple[Item, ...]]] = [{} for _ in sentences]
        ordered = _in_order_of_need(tasks)
        for indices in buckets([example.length for example in corpus], tokens, None, None):
            batch = unlabelled([corpus[index] for index in indices], self.tokenizer, tasks)
            decoded = self.decoded(batch.to(self.device), k=k, rules=rules) if batch.rows else {}
            for name, task in ordered:
                if name not in decoded:
                    continue
                rows = [indices[row] for row in batch.places[name]]
                for index, annotation in zip(rows, decoded[name].predicted, strict=True):
                    found[index] = task.annotate(found[index], annotation)
                for index, matches in zip(rows, decoded[name].unkept or (), strict=False):
                    notes = tuple(f"{UNKEPT}: {name}: {match.rule}" for match in matches)
                    if notes:
                        found[index] = replace(found[index], notes=(*found[index].notes, *notes))
                probable = decoded[name].items
                if k is None or probable is None:
                    continue
                for index, of_sentence in zip(rows, probable, strict=True):
                    items[index][name] = task.offered(sentences[index], of_sentence, k, self.labels[name])
        return [Probable(*pair) for pair in zip(found, items, strict=True)]


def chosen_tasks(tasks: Mapping[str, Task], names: Iterable[str] | None) -> dict[str, Task]:
    """Those of a model's tasks that are named, in the model's order; `None`: all.

    Raises `InputError` for a name that is no task's, and where nothing is named.
    """
    if names is None:
        return dict(tasks)
    if isinstance(names, (str, bytes, Mapping)) or not is_iterable(names):
        raise InputError(f"tasks={short_text(names)}: use a list of names of tasks")
    named = list(names)
    if not named:
        raise InputError(f"tasks is empty: choose from {', '.join(tasks)}")
    for name in named:
        if not isinstance(name, str) or name not in tasks:
            has = did_you_mean(str(name), tasks, f": its tasks are {', '.join(tasks)}")
            raise InputError(f"the model has no task {short_text(name)}{has}")
    return {name: task for name, task in tasks.items() if name in named}


def _in_order_of_need(tasks: Mapping[str, Task]) -> list[tuple[str, Task]]:
    """The tasks; a task whose annotation includes the layer of another comes after it (CON after tags)."""
    made = {task.layer for task in tasks.values()}

    def waits(item: tuple[str, Task]) -> bool:
        return any(layer in made for layer in item[1].layers[1:] if layer != item[1].layer)

    return sorted(tasks.items(), key=waits)


class Decoded(NamedTuple):
    """What a decoder finds in its task's sentences of a batch."""

    predicted: list[Any]
    given: list[Any] | None = None
    """The predictions given a part of the gold, or what a search says of the gold."""
    items: list[tuple[Item, ...]] | None = None
    """The most probable values."""
    unkept: list[list[Match]] | None = None
    """Where rules match, but no annotation could keep them together with the others; `None`: no rules."""


def _not_kept(
    matches: Sequence[Sequence[Match]] | None, predicted: Sequence[Any]
) -> list[list[Match]] | None:
    if matches is None:
        return None
    return [
        [match for match in of_sentence if not match.is_kept(annotation)]
        for of_sentence, annotation in zip(matches, predicted, strict=True)
    ]


class Probable(NamedTuple):
    """An annotated sentence, and by task the values that its decoder finds most probable."""

    sentence: Sentence
    items: Mapping[str, tuple[Item, ...]]


class _Document(NamedTuple):
    """The checked sentences of a document."""

    sentences: list[Sentence]
    text: str | None = None
    """`None`: the document is its one sentence."""
    offsets: tuple[tuple[Offset, ...], ...] = ()

    def annotated(self, found: Iterator[Probable], probable: bool) -> AnnotatedText | Sentence | Probable:
        """The document with the next annotated sentences; with `probable`, their items, too."""
        own = [next(found) for _ in self.sentences]
        if self.text is None:
            return own[0] if probable else own[0].sentence
        items = tuple(each.items for each in own) if probable else None
        return AnnotatedText(self.text, tuple(each.sentence for each in own), self.offsets, items)


_NO_LIST = (str, bytes, Mapping, Set)
_OF_READING = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError)


def checked_sentences(sentences: Any) -> list[Sentence]:
    """The sentences, with words that are plain strings.

    Raises `InputError` for anything but sentences and lists of words, such as text in place of words, and for
    words that no reader would accept.
    """
    if isinstance(sentences, (Sentence, *_NO_LIST)) or not is_iterable(sentences):
        raise InputError(
            f"annotate takes a list of sentences, not {short_text(sentences)}: "
            "give one sentence as [sentence]"
        )
    return [_checked(sentence, number) for number, sentence in enumerate(sentences, 1)]


def _checked(given: Any, number: int) -> Sentence:
    words = given.words if isinstance(given, Sentence) else given
    if isinstance(words, _NO_LIST) or not is_iterable(words):
        raise InputError(
            f"sentence {number} is {short_text(words)}, not a list of words: "
            "split it, as in 'We ate .'.split() (annotate_text takes running text)"
        )
    words = tuple(words)
    for place, word in enumerate(words, 1):
        if not isinstance(word, str):
            raise InputError(f"sentence {number}: word {place} is {short_text(word)}, not a string")
    words = tuple(map(str, words))
    checked = Sentence(words, second=given.second if isinstance(given, Sentence) else None)
    if wrong := fault(checked):
        raise InputError(f"sentence {number}: {wrong.what}")
    return replace(given, words=words) if isinstance(given, Sentence) else checked


def require_lengths(sentences: Sequence[Sentence], max_words: int) -> None:
    """Raise `InputError` for a sentence of more than `max_words` words."""
    for position, sentence in enumerate(sentences, 1):
        if len(sentence) > max_words:
            raise InputError(
                f"sentence {position} has {counted(len(sentence), 'word')}, and decoders are given at most "
                f"{max_words:,}: split it, or raise max_words (memory grows with its square, time with its "
                "cube)"
            )


def require_layers_of_their_own(tasks: Mapping[str, Task]) -> None:
    """Raise `InputError` if two decoders annotate the same layer."""
    layers = [task.layer for task in tasks.values() if task.layers]
    if len(set(layers)) < len(layers):
        raise InputError(
            f"{', '.join(tasks)} have decoders for the same layer, whose annotations would replace each "
            "other: name tasks with a layer each (tasks), or annotate with another run"
        )


@contextmanager
def damaged(folder: Path) -> Iterator[None]:
    """Turn errors that reading a model's files raises into an `InputError` that names the folder."""
    try:
        yield
    except (InputError, OutOfMemoryError):
        raise
    except Exception as error:
        # The tokenizers library raises plain exceptions.
        if not isinstance(error, _OF_READING) and type(error) is not Exception:
            raise
        raise InputError(
            f"{folder} holds a damaged or changed model ({type(error).__name__}: {first_line(error)}): "
            "restore its files, or train again"
        ) from error
