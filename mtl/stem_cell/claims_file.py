"""A file of claims: the heads that each task claims, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtl.errors import InputError
from mtl.files import write_json
from mtl.tasks.in_words import counted

Head = tuple[int, int]
"""Layer and number in the layer, from 0."""


@dataclass(frozen=True)
class Claims:
    """The heads that tasks claim in one encoder."""

    shape: tuple[int, int]
    """The number of the encoder's layers, and of heads per layer."""
    of_task: Mapping[str, tuple[Head, ...]]
    learned: Mapping[str, tuple[Head, ...]] | None = None
    """The claims that no target forced; `None` if the file does not say."""

    def claimants(self, tasks: Sequence[str]) -> dict[Head, tuple[str, ...]]:
        """The claimed heads, each with the tasks that claim it, in the order of `tasks`."""
        by_head: dict[Head, tuple[str, ...]] = {}
        for task in tasks:
            for head in dict.fromkeys(self.of_task[task]):
                by_head[head] = (*by_head.get(head, ()), task)
        return by_head

    def contested(self, tasks: Sequence[str]) -> list[Head]:
        """The heads that two or more of the tasks claim."""
        return sorted(head for head, names in self.claimants(tasks).items() if len(names) > 1)

    def contested_by_learning(self, tasks: Sequence[str]) -> int | None:
        """How many heads two or more of the tasks claim without a target's force; `None` if unknown."""
        if self.learned is None:
            return None
        return len(Claims(self.shape, self.learned).contested(tasks))


def write_claims(path: Path, claims: Claims, runs: Mapping[str, Sequence[str]]) -> None:
    """Write the file; `runs` names, per task, the runs whose masks determine the claims."""
    write_json(
        path,
        {
            "layers": claims.shape[0],
            "heads": claims.shape[1],
            "claims": _listed(claims.of_task),
            **({} if claims.learned is None else {"learned": _listed(claims.learned)}),
            "runs": {name: list(names) for name, names in runs.items()},
        },
    )


def _listed(heads_of: Mapping[str, Sequence[Head]]) -> dict[str, list[list[int]]]:
    return {name: [list(head) for head in sorted(heads)] for name, heads in heads_of.items()}


def _read(heads_of: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, tuple[Head, ...]]:
    return {
        str(name): tuple((int(layer), int(head)) for layer, head in heads) for name, heads in heads_of.items()
    }


def read_claims(path: Path, tasks: Sequence[str], shape: tuple[int, int] | None) -> Claims:
    """The claims of these tasks; raises `InputError` unless the file has all of them, for this encoder shape.

    `shape` is `None` if the encoder's is not known; then any shape is accepted.
    """
    try:
        values = json.loads(path.read_bytes())
        found = (int(values["layers"]), int(values["heads"]))
        claims = _read(values["claims"])
        learned = _read(values["learned"]) if "learned" in values else None
    except FileNotFoundError:
        raise InputError(
            f"clones.claims={path}: no such file; a study writes such files in its folder claims"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = " ".join(str(error).split())
        raise InputError(
            f"clones.claims={path} is not a file of claims ({type(error).__name__}: {message}); use a file "
            "in the folder claims of a study"
        ) from error
    shape = found if shape is None else shape
    if found != shape:
        raise InputError(
            f"clones.claims={path} is about {counted(found[0], 'layer')} of "
            f"{counted(found[1], 'head')}, and the encoder has "
            f"{counted(shape[0], 'layer')} of {shape[1]}: use claims of the same encoder"
        )
    for name in tasks:
        if name not in claims:
            raise InputError(
                f"clones.claims={path} has no claims of {name}, only of {', '.join(claims) or 'no task'}: "
                "learn a mask for it, too"
            )
        for layer, head in claims[name]:
            if not (0 <= layer < shape[0] and 0 <= head < shape[1]):
                # Not at the top: polars is not needed to read a configuration.
                from mtl.probes.head_names import head_name
                from mtl.probes.sites import Site

                where = head_name(Site("self", layer), head)
                raise InputError(f"clones.claims={path}: {name} claims {where}, which does not exist")
    if learned is not None:
        learned = {name: learned.get(name, ()) for name in tasks}
    return Claims(shape, {name: claims[name] for name in tasks}, learned)
