"""Pairing of the sentences of two editions of a document; a sentence is given as one key per word."""

from __future__ import annotations

from collections.abc import Sequence

Keys = Sequence[str]


def pair_sentences(left: Sequence[Keys], right: Sequence[Keys]) -> list[int | None]:
    """For each sentence on the left, the index of the one on the right that has the same words, or `None`.

    Keys are the words, or their tags if an edition masks the words. Of all monotone pairings of sentences
    that `corresponds` accepts, the result is the one with the most agreeing keys: where an edition has split
    or merged sentences or words, only these stay unpaired. Two sentences pair only if at least half of their
    keys agree, or if they have the same index in documents with equally many sentences.
    """
    if len(left) == len(right) and all(map(corresponds, left, right)):
        return list(range(len(left)))
    # best[i][j]: agreeing keys (and half a point per pair) of the best pairing of left[i:] and right[j:].
    best = [[0.0] * (len(right) + 1) for _ in range(len(left) + 1)]
    even = len(left) == len(right)
    gain = [[_gain(a, b, even and i == j) for j, b in enumerate(right)] for i, a in enumerate(left)]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            best[i][j] = max(best[i + 1][j], best[i][j + 1])
            if gain[i][j]:
                best[i][j] = max(best[i][j], gain[i][j] + best[i + 1][j + 1])
    pairs: list[int | None] = [None] * len(left)
    i = j = 0
    while i < len(left) and j < len(right):
        if gain[i][j] and best[i][j] == gain[i][j] + best[i + 1][j + 1]:
            pairs[i] = j
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def corresponds(left: Keys, right: Keys) -> bool:
    """Whether the words pair one to one: equally many, and not shifted within the sentence.

    Words are shifted (one is split and another joined) if insertions and deletions explain the differing keys
    with at least two edits fewer than changes of keys alone.
    """
    if len(left) != len(right):
        return False
    changed = sum(a != b for a, b in zip(left, right, strict=True))
    return changed < 4 or edit_distance(left, right) > changed - 2


def edit_distance(left: Keys, right: Keys) -> int:
    """The smallest number of insertions, deletions and changes that turn one sequence into the other."""
    above = list(range(len(right) + 1))
    for row, a in enumerate(left, start=1):
        here = [row]
        for column, b in enumerate(right, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (a != b)))
        above = here
    return above[-1]


def _gain(left: Keys, right: Keys, same_place: bool) -> float:
    """What a pair of sentences adds; unless both have the same place, half of their keys must agree."""
    if not corresponds(left, right):
        return 0.0
    agreeing = sum(map(str.__eq__, left, right))
    return agreeing + 0.5 if same_place or 2 * agreeing >= len(left) else 0.0
