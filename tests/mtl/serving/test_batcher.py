"""Requests of many callers in one batch: each gets its own answer, and errors reach only their callers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from mtl.models.annotator import Probable
from mtl.serving.batcher import AT_ONCE, PAIRS_AT_ONCE, Batcher, Busy, TooLong
from mtl.tasks.sentence import Sentence


class Annotator:
    """Annotates by writing words as tags, while the gate is open; remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int | None]] = []
        self.entered, self.gate = threading.Semaphore(0), threading.Event()
        self.gate.set()

    def __call__(self, sentences: Sequence[Sentence], k: int | None) -> list[Probable]:
        self.entered.release()
        assert self.gate.wait(20)
        self.batches.append((len(sentences), k))
        if any(sentence.words[0] == "bad" for sentence in sentences):
            raise RuntimeError("a bad sentence")
        return [Probable(Sentence(sentence.words, tags=sentence.words), {}) for sentence in sentences]


@pytest.fixture
def annotator() -> Annotator:
    return Annotator()


@pytest.fixture
def batcher(annotator: Annotator) -> Iterator[Batcher]:
    made = Batcher(annotator, 2000)
    yield made
    annotator.gate.set()
    made.end()
    assert made.sentences_waiting == 0


def request(*words: str) -> list[Sentence]:
    return [Sentence((word,)) for word in words]


def tags(found: list[Probable]) -> list[str]:
    return [sentence.tags[0] for sentence, _ in found]


def hold(annotator: Annotator, batcher: Batcher) -> None:
    """Keep the batcher at work on a sentence until the gate opens."""
    annotator.gate.clear()
    batcher.submit(request("first"), None)
    assert annotator.entered.acquire(timeout=20)


def test_every_caller_gets_its_own_answer_from_one_batch(annotator: Annotator, batcher: Batcher) -> None:
    hold(annotator, batcher)
    answers = [batcher.submit(request(f"a{number}", f"b{number}"), None) for number in range(20)]
    assert batcher.sentences_waiting == 41
    annotator.gate.set()
    assert [tags(answer.result(20)) for answer in answers] == [[f"a{n}", f"b{n}"] for n in range(20)]
    assert annotator.batches == [(1, None), (40, None)]
    assert batcher.annotated == 41


def test_a_long_request_lets_others_in(annotator: Annotator, batcher: Batcher) -> None:
    hold(annotator, batcher)
    long = batcher.submit(request(*map(str, range(1000))), None)
    short = batcher.submit(request("short"), None)
    order: list[str] = []
    long.add_done_callback(lambda _: order.append("long"))
    short.add_done_callback(lambda _: order.append("short"))
    annotator.gate.set()
    assert tags(long.result(20)) == [*map(str, range(1000))]
    assert tags(short.result(20)) == ["short"]
    assert order == ["short", "long"]
    assert max(size for size, _ in annotator.batches) == AT_ONCE


def test_an_error_reaches_only_its_own_request(annotator: Annotator, batcher: Batcher) -> None:
    hold(annotator, batcher)
    answers = [batcher.submit(request(word), None) for word in ("x", "bad", "y")]
    annotator.gate.set()
    assert tags(answers[0].result(20)) == ["x"]
    with pytest.raises(RuntimeError, match="a bad sentence"):
        answers[1].result(20)
    assert tags(answers[2].result(20)) == ["y"]


def test_requests_with_and_without_probabilities_are_apart(annotator: Annotator, batcher: Batcher) -> None:
    hold(annotator, batcher)
    ks = [None, 2, None, 2, 3]
    answers = [batcher.submit(request(str(number)), k) for number, k in enumerate(ks)]
    annotator.gate.set()
    assert [tags(answer.result(20)) for answer in answers] == [[str(number)] for number in range(5)]
    assert sorted(annotator.batches[1:], key=str) == [(1, 3), (2, 2), (2, None)]


def test_cancelled_requests_are_left_out(annotator: Annotator, batcher: Batcher) -> None:
    hold(annotator, batcher)
    gone, kept = batcher.submit(request(*"abc"), None), batcher.submit(request("d"), None)
    assert gone.cancel()
    annotator.gate.set()
    assert tags(kept.result(20)) == ["d"]
    assert annotator.batches == [(1, None), (1, None)]
    hold(annotator, batcher)
    at_work = batcher.submit(request(*map(str, range(300))), None)
    annotator.gate.set()
    at_work.cancel()
    assert tags(batcher.submit(request("e"), None).result(20)) == ["e"]


def test_too_many_are_refused_and_an_empty_request_is_answered(
    annotator: Annotator, batcher: Batcher
) -> None:
    assert batcher.submit([], None).result(1) == []
    hold(annotator, batcher)
    batcher.submit(request(*["x"] * 1999), None)
    with pytest.raises(Busy):
        batcher.submit(request("y"), None)
    annotator.gate.set()


def test_what_is_waiting_at_the_end_is_annotated_and_nothing_more_is_accepted(annotator: Annotator) -> None:
    batcher = Batcher(annotator, 10)
    hold(annotator, batcher)
    last = batcher.submit(request("last"), None)
    ending = threading.Thread(target=batcher.end)
    ending.start()
    annotator.gate.set()
    ending.join(20)
    assert tags(last.result(0)) == ["last"]
    with pytest.raises(Busy):
        batcher.submit(request("late"), None)


def test_many_threads_at_once(annotator: Annotator, batcher: Batcher) -> None:
    def ask(number: int) -> list[str]:
        return tags(
            batcher.submit(request(*(f"{number}-{place}" for place in range(number % 5 + 1))), None).result(
                20
            )
        )

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(300)))
    assert found == [[f"{number}-{place}" for place in range(number % 5 + 1)] for number in range(300)]


def test_a_request_whose_answer_is_too_long_ends_at_once(annotator: Annotator) -> None:
    batcher = Batcher(annotator, 2000, lambda found: len(found.sentence.words[0]), 300)
    hold(annotator, batcher)
    long, short = batcher.submit(request(*["xx"] * 1000), None), batcher.submit(request(*["x"] * 300), None)
    annotator.gate.set()
    with pytest.raises(TooLong):
        long.result(20)
    assert len(short.result(20)) == 300
    batcher.end()
    assert batcher.annotated < 1000
    assert batcher.sentences_waiting == 0


def test_long_sentences_are_annotated_a_few_at_a_time(annotator: Annotator, batcher: Batcher) -> None:
    hold(annotator, batcher)
    answer = batcher.submit([Sentence(("x",) * 512)] * 20, None)
    annotator.gate.set()
    assert len(answer.result(20)) == 20
    assert max(size for size, _ in annotator.batches) == PAIRS_AT_ONCE // 512**2
