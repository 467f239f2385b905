"""How long a sentence may be, and how many pairs of words one batch may hold.

Decoders hold something for every pair of words: DEP a score per arc, CON a score per span, and SRL, which
needs most, a hidden vector of 256 numbers per predicate and word. If all of n words are predicates, one such
tensor takes n * n * 256 * 4 bytes (256 MiB at 512 words), and training holds about six of them (2.0 GiB
measured with MiniLM and its optimizer). The inside-outside algorithm and CKY take n * n * n / 6 steps:
22 million at 512 words, 170 billion at 10,000.
"""

from __future__ import annotations

from collections.abc import Sequence

from mtl.config.schema import BatchConfig
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence

MAX_WORDS = BatchConfig.max_words
"""Maximum number of words per sentence, unless a configuration says otherwise."""
BATCH_PAIRS = 2**20
"""Maximum number of rows in a batch times the square of the positions of its longest sentence.

It bounds batches of 6,400 tokens only if a sentence has more than 163, and batches of 16 sentences only if
one has more than 256.
"""


def describe_long(sentences: Sequence[Sentence], max_words: int) -> str | None:
    """How many sentences are too long, and where the first one is; `None` if there are none."""
    long = [sentence for sentence in sentences if len(sentence) > max_words]
    if not long:
        return None
    where = long[0].place or f"sentence '{long[0].id}'"
    number = counted(len(long), "sentence has", "sentences have")
    return f"{number} more than {counted(max_words, 'word')} (the first, {where}, {len(long[0]):,})"


def require_limit(sentences: Sequence[Sentence], max_words: int, split: str) -> None:
    """Raise `InputError` if a scored split has a sentence that is too long: scores must cover the split."""
    message = describe_long(sentences, max_words)
    if message is not None:
        raise InputError(
            f"{split}: {message}, which decoders have no memory for: split such sentences in the file, or "
            "raise batch.max_words (memory grows with its square, time with its cube)"
        )
