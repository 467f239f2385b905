"""The heads that a command is given by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtl.errors import as_input_error

if TYPE_CHECKING:
    from mtl.probes.sites import Site


def heads_given(text: str, sites: Sequence[Site], heads: int) -> dict[int, list[int]]:
    """The heads that names separated by commas stand for, per site: `L2H9,L5` or `2.9,5`, from 0.

    `L5` is a whole layer. With several kinds of attention, the kind goes first (`cross L2H9`). Raises
    `InputError` for what is no name, or is not in a model with these sites of `heads` heads each.
    """
    from mtl.probes.head_names import read_head

    found: dict[int, set[int]] = {}
    for name in text.split(","):
        with as_input_error(f"--heads={name.strip() or text}"):
            site, head = read_head(name, sites, heads)
        found.setdefault(site, set()).update(range(heads) if head is None else (head,))
    return {site: sorted(numbers) for site, numbers in sorted(found.items())}
