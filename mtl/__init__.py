"""The top floor: encoders, head gates, training, runs, studies and the command line.

`prune_heads`, `clone_heads`, `transplant_heads`, `collaborate`, `head_scale` and `load_pruned` work on any
transformers model of the families table, trained here or not: transformers 5 has no `prune_heads` and no
`head_mask` any more. So do `head_importance` and `ablate_heads`, which tell what each head is worth.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "JointModel": "mtl.models.joint",
    "ablate_heads": "mtl.analysis.plain_models",
    "clone_heads": "mtl.heads.clone",
    "collaborate": "mtl.heads.collaborative",
    "head_importance": "mtl.analysis.plain_models",
    "head_scale": "mtl.heads.tap",
    "load_pruned": "mtl.heads.load",
    "prune_heads": "mtl.heads.prune",
    "transplant_heads": "mtl.heads.clone",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    # Imported when asked for, so that the command line does not load torch to print its help.
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mtl' has no attribute '{name}'")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
