"""The top floor: encoders, head gates, training, runs, studies and the command line.

`prune_heads`, `clone_heads`, `transplant_heads`, `collaborate`, `head_scale` and `load_pruned` work on any
transformers model of the families table, trained here or not: transformers 5 has no `prune_heads` and no
`head_mask` any more. So do `head_importance` and `ablate_heads`, which tell what each head is worth.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtl.analysis.plain_ablation import ablate_heads
    from mtl.analysis.plain_models import head_importance
    from mtl.heads.clone import clone_heads, transplant_heads
    from mtl.heads.collaborative import collaborate
    from mtl.heads.load import load_pruned
    from mtl.heads.prune import prune_heads
    from mtl.heads.tap import head_scale
    from mtl.models.joint import JointModel

__all__ = [
    "JointModel",
    "ablate_heads",
    "clone_heads",
    "collaborate",
    "head_importance",
    "head_scale",
    "load_pruned",
    "prune_heads",
    "transplant_heads",
]
_MODULES = {
    "JointModel": "mtl.models.joint",
    "ablate_heads": "mtl.analysis.plain_ablation",
    "clone_heads": "mtl.heads.clone",
    "collaborate": "mtl.heads.collaborative",
    "head_importance": "mtl.analysis.plain_models",
    "head_scale": "mtl.heads.tap",
    "load_pruned": "mtl.heads.load",
    "prune_heads": "mtl.heads.prune",
    "transplant_heads": "mtl.heads.clone",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for, so that the command line does not load torch to print its help.
    if name == "__version__":
        from importlib.metadata import version

        return version("mtl-heads")
    if name not in _MODULES:
        raise AttributeError(f"module 'mtl' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
