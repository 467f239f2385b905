"""`mtl export`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console

from mtl.commands.new_folder import check_new_folder


def export(
    run: str,
    *,
    out: Path,
    weights: Literal["float32", "int8"] = "float32",
    revision: str | None = None,
) -> None:
    """Write a run's model as ONNX, with which onnxruntime is faster than torch on a CPU.

    mtl predict, evaluate and serve accept the folder in place of a run. Masks are applied. This needs pip
    install 'mtl-heads[onnx]'.

    Args:
        run: A run's folder, a saved model's, or a model on the hub (OWNER/NAME).
        out: Folder of the exported model.
        weights: int8 rounds linear layers and embeddings to 8 bits: the model has a third of the size and is
            faster, but some annotations differ.
        revision: A branch, tag or commit of a model on the hub.
    """
    from mtl.models.exported import TO_EXPORT, require_onnx
    from mtl.models.found import find_model

    check_new_folder(out)
    require_onnx("mtl export", TO_EXPORT)
    folder = find_model(run, revision).model
    from mtl.models.export import export_onnx
    from mtl.models.joint import JointModel

    export_onnx(JointModel.from_pretrained(folder), out, weights=weights)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    console = Console(markup=False, emoji=False)
    console.print(f"{run} -> {out}: {size:,.0f} MB", highlight=False, soft_wrap=True)
