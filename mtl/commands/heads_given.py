"""Read the heads that a command is given by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mtl.errors import InputError
from probes.heads_table import Site


def heads_given(text: str, sites: Sequence[Site], heads: int) -> dict[int, list[int]]:
    """The heads that names separated by commas stand for, per site: `L2H9,L5` or `2.9,5`, from 0.

    `L5` is a whole layer. With several kinds of attention the kind stands before it (`cross L2H9`).
    Raises `InputError` for what is no name, or is not there in a model of these sites of `heads` heads each.
    """
    found: dict[int, set[int]] = {}
    for name in text.split(","):
        try:
            site, head = _read_head(name, sites, heads)
        except ValueError as error:
            raise InputError(f"--heads={name.strip()}: {error}") from None
        found.setdefault(site, set()).update(range(heads) if head is None else (head,))
    return {site: sorted(numbers) for site, numbers in sorted(found.items())}


def _read_head(text: str, sites: Sequence[Site], heads: int) -> tuple[int, int | None]:
    """The number of the site and the head; `None` for the head of a whole layer. Raises `ValueError`."""
    kinds = list(dict.fromkeys(site.attention for site in sites))
    match = re.fullmatch(r"(?:([a-z]+)[. ] *)?(?:L(\d+)(?:H(\d+))?|(\d+)(?:\.(\d+))?)", text.strip(), re.I)
    if match is None or (match[1] is None and len(kinds) > 1):
        before = f"{kinds[-1]} " if len(kinds) > 1 else ""
        raise ValueError(f"write a head as {before}L2H9 and a whole layer as {before}L2, both counted from 0")
    kind, layer, number = (match[1] or kinds[0]).lower(), int(match[2] or match[4]), match[3] or match[5]
    if kind not in kinds:
        raise ValueError(f"the model has no attention of kind {kind}: it has {', '.join(kinds)}")
    if Site(kind, layer) not in sites or (number is not None and int(number) >= heads):
        layers = sum(site.attention == kind for site in sites)
        raise ValueError(f"the model has layers 0 to {layers - 1} of heads 0 to {heads - 1}")
    return list(sites).index(Site(kind, layer)), None if number is None else int(number)
