"""Read and check the corpus of a run, and report what is left out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from mtl.config.schema import TrainConfig
from mtl.corpora.checks import Look, Seen, notes_on, seen_in
from mtl.corpora.formats.parallel import describe_empty, describe_unspaced
from mtl.corpora.load import require_layers, require_seen
from mtl.corpora.sources import is_on_disk, refuse_shared
from mtl.models.inputs import InputCache
from mtl.models.limits import describe_long, require_limit
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task
from mtl.tasks.translate import translation_in
from mtl.training.run_log import PLAIN
from mtl.training.store import stored_sentences
from mtl.training.train_sentences import LeftOut, SentencesInMemory, TrainSentences


@dataclass(frozen=True)
class Splits:
    """The sentences of a run; those of dev and test are always in memory."""

    train: TrainSentences
    dev: Sequence[Sentence]
    test: Sequence[Sentence]


def read_splits(
    config: TrainConfig, tasks: Mapping[str, Task], corpus: str, inputs: InputCache, console: Console
) -> Splits:
    """Read the corpus, whose fingerprint is `corpus`, and print what is left out of it.

    Raises `InputError` for a corpus that the run cannot be trained on.
    """
    refuse_shared(config.corpus, tasks)
    translation = translation_in(tasks)
    left_out = LeftOut(config.batch.max_words, None if translation is None else translation.layer)
    on_disk = is_on_disk(config.corpus, tasks)
    in_memory = [] if on_disk else list(left_out.rest(inputs.split(config.corpus, tasks, "train")))
    dev, test = (inputs.split(config.corpus, tasks, split) for split in ("dev", "test"))
    for split, sentences in {"dev": dev, "test": test}.items():
        require_limit(sentences, config.batch.max_words, split)

    notes = partial(_notes, left_out, dev, test, tasks)
    if on_disk:
        return Splits(stored_sentences(config, tasks, corpus, left_out, notes, console), dev, test)
    for line in notes(seen_in(in_memory, tasks)):
        console.print(line, **PLAIN)
    return Splits(SentencesInMemory(in_memory, inputs), dev, test)


def _notes(
    left_out: LeftOut,
    dev: Sequence[Sentence],
    test: Sequence[Sentence],
    tasks: Mapping[str, Task],
    seen: Seen,
) -> Iterator[str]:
    """Lines on what is left out or odd; raises `InputError` for sentences that cannot be trained on."""
    if message := describe_long(left_out.long, left_out.max_words):
        yield f"train: {message}: left out"
    translation = translation_in(tasks)
    if translation is not None:
        layer = translation.layer
        for split, sentences in {"train": left_out.empty, "dev": dev, "test": test}.items():
            if message := describe_empty(sentences, layer):
                yield f"{split}: {message}: {'left out' if split == 'train' else 'scored as they are'}"
        if translation.tokenizer() == "13a" and (found := describe_unspaced(dev, layer)):
            yield (
                f"dev: {found} are in a script without spaces, but BLEU counts words between spaces "
                f"(tokenize=13a): set target or tokenize (zh, ja-mecab, char) of {translation.name}"
            )
    require_seen(seen, tasks, "train")
    require_layers(dev, tasks, "dev")
    yield from notes_on(Look({"dev": dev, "test": test}, tasks, before={"train": seen}))
