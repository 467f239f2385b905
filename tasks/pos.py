"""Part-of-speech tagging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mtl.tasks.tags import Tags


@dataclass(frozen=True)
class Pos(Tags):
    """Part-of-speech tagging."""

    name: ClassVar[str] = "pos"
    layers: ClassVar[tuple[str, ...]] = ("tags", "upos")

    inventory: Literal["tags", "upos"] = "tags"
    """The tags to learn: the treebank's own (`tags`, XPOS) or the universal tags (`upos`)."""

    @property
    def layer(self) -> str:
        """The inventory's field."""
        return self.inventory
