"""Where a transformer keeps its attention heads, and what is done to one: observe, scale, gate, cut.

`HeadTap` and `head_scale` observe and scale, `HeadGates` learns masks, `prune_heads` and `load_pruned` cut.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "HeadGates": "mtl.heads.gates",
    "HeadTap": "mtl.heads.tap",
    "head_scale": "mtl.heads.tap",
    "load_pruned": "mtl.heads.prune",
    "prune_heads": "mtl.heads.prune",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    # Imported when asked for: the command line imports this room for its help, and that without torch.
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mtl.heads' has no attribute '{name}'")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
