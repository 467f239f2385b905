"""The keys of configurations by what they mean when runs are compared, and lists of names in notes."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from mtl.config.effective import VOLATILE
from mtl.config.part import files_of_parts, meters

OF_ONE_RUN = ("name", "seed", *VOLATILE)
"""Keys in which runs of one setup may differ."""
MEASURING = (*(meter.key for meter in meters()), "importance_every", "importance_sentences")
"""Keys of what is measured during training; they do not change what is trained."""
MASKS = ("pruning", "gates")
"""The keys that may differ in comparisons of runs whatever their masks."""
SOURCE_OF_MASKS = "gates.init_from"
"""The key for the run without masks on which masks are learned, if they are learned after training."""
AFTER_TRAINING = ("static", "gates_only")
"""The values of `pruning` that learn masks after training, on the run that `init_from` names."""
ORIGINS = ("init_from", SOURCE_OF_MASKS, "gates.masks", *files_of_parts())
"""The keys of what other runs made; a run's status records what that was when the run started."""


def keys_in_words(keys: Sequence[str]) -> str:
    """The first keys, and the number of the others."""
    return listed(keys, 3)


def listed(names: Sequence[str], most: int = 4) -> str:
    """The first names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def within(key: str, groups: Collection[str]) -> bool:
    """Whether a dotted key is one of these, or is inside one of them."""
    return not _with_groups(key).isdisjoint(groups)


@functools.cache
def _with_groups(key: str) -> frozenset[str]:
    """A dotted key and the groups that contain it: `a.b.c`, `a.b`, `a`."""
    parts = key.split(".")
    return frozenset(".".join(parts[:end]) for end in range(len(parts), 0, -1))
