"""Pairing the sentences of two editions of a document, each given as one key per word."""

from __future__ import annotations

from collections.abc import Sequence

Keys = Sequence[str]


def pair_sentences(left: Sequence[Keys], right: Sequence[Keys]) -> list[int | None]:
    """For each sentence on the left the one on the right that has the same words, or `None`.

    Keys are the words, or their tags where an edition masks the words. Sentences pair in order; where an
    edition has split or merged sentences or words, only those are left alone: of all monotone pairings of
    sentences that `corresponds` accepts, this is the one with the most agreeing keys. Two sentences that are
    not at the same place of equally long documents pair only if half of their keys agree.
    """
    if len(left) == len(right) and all(map(corresponds, left, right)):
        return list(range(len(left)))
    # best[i][j]: agreeing keys (and half a point per pair) when left[i:] meets right[j:].
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

    Shifted (one word split and another joined) is where insertions and deletions explain the differing keys
    with at least two edits fewer than changed keys do.
    """
    if len(left) != len(right):
        return False
    changed = sum(a != b for a, b in zip(left, right, strict=True))
    return changed < 4 or edit_distance(left, right) > changed - 2


def edit_distance(left: Keys, right: Keys) -> int:
    """The least number of insertions, deletions and changes that turn one sequence into the other."""
    above = list(range(len(right) + 1))
    for row, a in enumerate(left, start=1):
        here = [row]
        for column, b in enumerate(right, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (a != b)))
        above = here
    return above[-1]


def _gain(left: Keys, right: Keys, same_place: bool) -> float:
    """What pairing two sentences is worth; away from each other's place, half of their keys must agree."""
    if not corresponds(left, right):
        return 0.0
    agreeing = sum(map(str.__eq__, left, right))
    return agreeing + 0.5 if same_place or 2 * agreeing >= len(left) else 0.0
