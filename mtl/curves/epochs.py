"""Models after epochs of a training, as runs with curves of their own."""

from __future__ import annotations

from pathlib import Path

from mtl.commands.common import dev_examples
from mtl.errors import InputError
from mtl.models.derived import write_derived_run
from mtl.models.evaluate import batches, evaluate_model
from mtl.models.found import require_run
from mtl.models.joint import JointModel
from mtl.models.opened import Accelerator, prepare
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted


def run_after(folder: Path, epoch: int, accelerator: Accelerator = "auto") -> Path:
    """The folder of a run with the model that another run had after an epoch; it is made if it is not there.

    Raises `InputError` if the run does not keep that model (`TrainConfig.snapshots`).
    """
    require_run(folder, "snapshots")
    run = Run.open(folder)
    out = folder / "curve" / f"epoch-{epoch}"
    if (out / "status.json").exists():  # the last file to be written
        return out
    snapshot = run.snapshot(epoch)
    if not snapshot.is_dir():
        kept = ", ".join(path.name for path in run.snapshots())
        there = f"it keeps {kept}" if kept else "'mtl train --snapshots=K' keeps the last K"
        raise InputError(f"{folder} has no model after epoch {epoch}: {there}")
    model = prepare(JointModel.from_pretrained(snapshot), accelerator)
    scores = evaluate_model(model, batches(dev_examples(run, model, tuple(model.tasks)), model))
    made = {"derivation": f"after {counted(epoch, 'epoch')}", "kept_epoch": epoch}
    return write_derived_run(run, out, model, {"dev": scores}, made).folder
