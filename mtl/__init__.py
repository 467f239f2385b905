"""Multi-task models on a shared encoder, masks over its attention heads, and what each head is worth.

The names here are the public ones (docs/reference/public.md). `prune_heads`, `collaborate`, `head_scale` and
`load_pruned` work on any transformers model of a family in the families table, trained here or not. So do
`head_importance` and `ablate_heads`, which measure what each head is worth. transformers 5 itself no longer
has `prune_heads` or `head_mask`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtl.analysis.head_tables import HeadTable, lowest, plot_heads
    from mtl.analysis.plain import ablate_heads, head_importance
    from mtl.analysis.probe import probe_run as probe
    from mtl.analysis.show import plot_attention
    from mtl.collaborative.sharing import collaborate
    from mtl.config.schema import CorpusConfig, TrainConfig
    from mtl.errors import InputError, RunError
    from mtl.heads.family_table import Family, Stack
    from mtl.heads.load import load_pruned
    from mtl.heads.prune import prune_heads
    from mtl.heads.tap import head_scale
    from mtl.models.joint import JointModel
    from mtl.patterns.observed import observe_heads, plot_patterns
    from mtl.runs.folder.run import Run
    from mtl.serving.onnx import export_onnx, load_exported
    from mtl.tasks.sentence import Sentence
    from mtl.training.train import train
    from mtl.translation.lines import translate_lines

    __version__: str

__all__ = [
    "CorpusConfig",
    "Family",
    "HeadTable",
    "InputError",
    "JointModel",
    "Run",
    "RunError",
    "Sentence",
    "Stack",
    "TrainConfig",
    "ablate_heads",
    "collaborate",
    "export_onnx",
    "head_importance",
    "head_scale",
    "load_exported",
    "load_pruned",
    "lowest",
    "observe_heads",
    "plot_attention",
    "plot_heads",
    "plot_patterns",
    "probe",
    "prune_heads",
    "train",
    "translate_lines",
]
_PLACES = {
    "CorpusConfig": "mtl.config.schema.CorpusConfig",
    "Family": "mtl.heads.family_table.Family",
    "HeadTable": "mtl.analysis.head_tables.HeadTable",
    "InputError": "mtl.errors.InputError",
    "JointModel": "mtl.models.joint.JointModel",
    "Run": "mtl.runs.folder.run.Run",
    "RunError": "mtl.errors.RunError",
    "Sentence": "mtl.tasks.sentence.Sentence",
    "Stack": "mtl.heads.family_table.Stack",
    "TrainConfig": "mtl.config.schema.TrainConfig",
    "ablate_heads": "mtl.analysis.plain.ablate_heads",
    "collaborate": "mtl.collaborative.sharing.collaborate",
    "export_onnx": "mtl.serving.onnx.export_onnx",
    "head_importance": "mtl.analysis.plain.head_importance",
    "head_scale": "mtl.heads.tap.head_scale",
    "load_exported": "mtl.serving.onnx.load_exported",
    "load_pruned": "mtl.heads.load.load_pruned",
    "lowest": "mtl.analysis.head_tables.lowest",
    "observe_heads": "mtl.patterns.observed.observe_heads",
    "plot_patterns": "mtl.patterns.observed.plot_patterns",
    "plot_heads": "mtl.analysis.head_tables.plot_heads",
    "plot_attention": "mtl.analysis.show.plot_attention",
    "probe": "mtl.analysis.probe.probe_run",
    "prune_heads": "mtl.heads.prune.prune_heads",
    "train": "mtl.training.train.train",
    "translate_lines": "mtl.translation.lines.translate_lines",
}


if not TYPE_CHECKING:  # so that a type checker reports names that do not exist

    def __getattr__(name: str) -> Any:
        # Imported on first use, so that the command line does not load torch to print its help.
        if name == "__version__":
            from importlib.metadata import version

            return version("mtl-heads")
        if name not in _PLACES:
            raise AttributeError(f"module 'mtl' has no attribute '{name}'")
        module, _, attribute = _PLACES[name].rpartition(".")
        return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    own = (name for name in globals() if name.startswith("__"))
    return sorted({*own, *__all__, "__version__"})
