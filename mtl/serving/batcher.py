"""Annotate the requests of many callers together, in one thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mtl.tasks.sentence import Sentence

Found = TypeVar("Found")
"""What is made of a sentence."""
How = TypeVar("How")
"""How it is made: sentences in one call are all annotated in the same way."""
AT_ONCE = 128
"""Maximum number of sentences in one call: they fill batches well, and the next requests wait little."""
PAIRS_AT_ONCE = 4 * 512**2
"""Maximum number of pairs of words in a call of several sentences: arcs, roles and memory grow with them."""


class Busy(Exception):
    """Too many sentences are waiting already."""


class TooLong(Exception):
    """An answer is longer than answers may be."""


@dataclass(eq=False)
class _Request(Generic[Found, How]):
    """The sentences of one caller, some of them already annotated."""

    sentences: Sequence[Sentence]
    how: How
    answer: Future[list[Found]] = field(default_factory=Future)
    done: list[Found] = field(default_factory=list)
    size: int = 0
    """The sum of the sizes of `done`."""

    @property
    def left(self) -> int:
        return len(self.sentences) - len(self.done)


class Batcher(Generic[Found, How]):
    """Annotates waiting sentences in one thread, those of several callers in one call.

    Nothing waits for a batch to fill: sentences that arrive while one batch is annotated form the next
    batch. A long request lets others in after each batch, so short requests do not wait for its end. If a
    batch fails, its requests are annotated one by one, and only those that fail alone get the error.

    Args:
        annotate: annotates sentences in the way that their callers asked for; called only in the batcher's
            thread.
        most_waiting: the maximum number of waiting sentences.
        size: the size of what `annotate` makes of a sentence.
        most_size: the maximum of a request's sizes; a larger request gets `TooLong` as soon as that is known.
    """

    def __init__(
        self,
        annotate: Callable[[Sequence[Sentence], How], list[Found]],
        most_waiting: int,
        size: Callable[[Found], int] = lambda _: 0,
        most_size: int = 0,
    ) -> None:
        self._annotate, self._most_waiting = annotate, most_waiting
        self._size, self._most_size = size, most_size
        self._waiting: deque[_Request[Found, How]] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self.sentences_waiting = 0
        """Sentences that are not annotated yet."""
        self.annotated = 0
        """Sentences annotated so far."""
        self._thread = threading.Thread(target=self._work, name="annotate", daemon=True)
        self._thread.start()

    def submit(self, sentences: Sequence[Sentence], how: How) -> Future[list[Found]]:
        """A future of the annotated sentences; if it is cancelled, they are left out.

        Raises `Busy` if too many sentences are waiting, or if the batcher has ended.
        """
        request: _Request[Found, How] = _Request(sentences, how)
        if not sentences:
            request.answer.set_result([])
            return request.answer
        with self._changed:
            if self._ended or self.sentences_waiting + len(sentences) > self._most_waiting:
                raise Busy
            self.sentences_waiting += len(sentences)
            self._waiting.append(request)
            self._changed.notify()
        return request.answer

    def end(self) -> None:
        """Annotate what is waiting, accept nothing more, and end the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next():
            before = sum(request.left for request, _ in batch)
            errors = self._annotate_batch(batch)
            over = {
                request: error
                for (request, _), error in zip(batch, errors, strict=True)
                if error is not None or not request.left or request.answer.cancelled()
            }
            with self._changed:
                self.sentences_waiting -= before
                for request, _ in batch:
                    if request not in over:
                        self.sentences_waiting += request.left
                        self._waiting.append(request)
            # Answers come last, so that a caller who has one can submit as many sentences again.
            for request, error in over.items():
                if request.answer.set_running_or_notify_cancel():
                    if error is None:
                        request.answer.set_result(request.done)
                    else:
                        request.answer.set_exception(error)

    def _annotate_batch(self, batch: Sequence[tuple[_Request[Found, How], int]]) -> list[Exception | None]:
        """Annotate shares of requests together, or one by one if that fails; returns their errors."""
        parts = [request.sentences[len(request.done) :][:share] for request, share in batch]
        try:
            found = self._annotate([each for part in parts for each in part], batch[0][0].how)
        except Exception as error:
            return [error] if len(batch) == 1 else [self._annotate_batch([each])[0] for each in batch]
        self.annotated += len(found)
        begin = 0
        for request, share in batch:
            request.done += found[begin : begin + share]
            request.size += sum(map(self._size, found[begin : begin + share]))
            begin += share
        return [TooLong() if request.size > self._most_size else None for request, _ in batch]

    def _next(self) -> list[tuple[_Request[Found, How], int]]:
        """The next requests to annotate, each with a number of its sentences; empty at the end."""
        with self._changed:
            while True:
                for request in [each for each in self._waiting if each.answer.cancelled()]:
                    self._waiting.remove(request)
                    self.sentences_waiting -= request.left
                if self._waiting or self._ended:
                    break
                self._changed.wait()
            batch: list[tuple[_Request[Found, How], int]] = []
            room, pairs, passed = AT_ONCE, PAIRS_AT_ONCE, deque[_Request[Found, How]]()
            while self._waiting and room and pairs > 0:
                request = self._waiting.popleft()
                if batch and request.how != batch[0][0].how:
                    passed.append(request)
                    continue
                share, begin = 0, len(request.done)
                while share < min(room, request.left) and pairs > 0:
                    pairs -= len(request.sentences[begin + share]) ** 2
                    share += 1
                batch.append((request, share))
                room -= share
            self._waiting.extendleft(reversed(passed))
            return batch
