"""The keys of configurations by what they mean where runs are compared."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from mtl.config.effective import VOLATILE
from mtl.config.part import files_of_parts, meters

OF_ONE_RUN = ("name", "seed", *VOLATILE)
"""Keys in which runs that are repetitions of each other may differ."""
MEASURING = (*(meter.key for meter in meters()), "importance_every", "importance_sentences")
"""Keys of what is measured while training goes on; they do not change what is trained."""
MASKS = ("pruning", "gates")
"""What a comparison declares to be free if it compares runs whatever their masks."""
SOURCE_OF_MASKS = "gates.init_from"
"""The key for the run without masks that masks are learned on, where they are learned after training."""
AFTER_TRAINING = ("static", "gates_only")
"""Ways of pruning that learn masks after training, on the run that `init_from` names."""
ORIGINS = ("init_from", SOURCE_OF_MASKS, "gates.masks", *files_of_parts())
"""The keys of what other runs made; a run's status records what it was when the run started."""


def keys_in_words(keys: Sequence[str]) -> str:
    """The first keys by name, and the number of the others."""
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(keys[:3]) + more


def within(key: str, groups: Collection[str]) -> bool:
    """Whether a dotted key is one of these, or inside of one."""
    return not _with_groups(key).isdisjoint(groups)


@functools.cache
def _with_groups(key: str) -> frozenset[str]:
    """A dotted key and the groups that it is in: `a.b.c`, `a.b`, `a`."""
    parts = key.split(".")
    return frozenset(".".join(parts[:end]) for end in range(len(parts), 0, -1))
