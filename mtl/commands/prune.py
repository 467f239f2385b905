"""`mtl prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from mtl.commands.arguments import check_new_folder
from mtl.commands.score_table import print_scores
from mtl.config.parse import read_configuration
from mtl.config.schema import TaskName, TrainConfig
from mtl.runs.run import Run

if TYPE_CHECKING:
    from torch import nn


def prune(
    run: Path,
    *,
    out: Path,
    task: TaskName | None = None,
    mask: Path | None = None,
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
) -> None:
    """Cut the closed heads out of a run's model, and score it beside the masked one.

    Args:
        run: The run's folder.
        out: Folder of the new run; it predicts, evaluates and trains on (--from) as any other.
        task: Whose mask to cut by, where tasks have their own; the new model has that task alone.
        mask: A gates.parquet to cut by, instead of the run's own masks.
        accelerator: What to score on; auto takes a GPU where there is one.
    """
    from mtl.corpora.load import load_split, require_layers
    from mtl.heads.families import heads_per_group, key_groups
    from mtl.heads.gates import OPEN
    from mtl.models.apply_masks import apply_masks, gates_for, gates_from_file, own_heads, tasks_of
    from mtl.models.batches import examples
    from mtl.models.derived_run import write_cut_run
    from mtl.models.device import prepare
    from mtl.models.evaluate import batches, evaluate
    from mtl.models.joint import JointModel
    from mtl.models.limits import require_limit

    source = Run.open(run)
    check_new_folder(out)
    config = read_configuration(TrainConfig, source.folder / "config.yaml")
    model = prepare(JointModel.from_pretrained(source.model), accelerator)
    if mask is None:
        gates, tasks = gates_for(model, task)
    else:
        shape = (model.encoder.layers, model.encoder.heads)
        tasks = tasks_of(model, task)
        gates = own_heads(model, gates_from_file(mask, task, shape), tasks)
    gold = load_split(config.corpus, tasks, "dev")
    chosen = {name: model.tasks[name] for name in tasks}
    require_layers(gold, chosen, "dev")
    require_limit(gold, config.batch.max_words, "dev")
    corpus = examples(gold, model.encoder.tokenizer, chosen, model.labels)
    console = Console(markup=False, emoji=False)
    opened = int((gates > OPEN).sum())
    if not opened:
        console.print("warning: all heads of all layers are closed: the encoder attends to nothing")
    before, groups = _parameters(model.encoder), key_groups(model.encoder.transformer)
    scores = {"dev, masked": evaluate(model, batches(corpus, model), gates)}
    heads = sum(map(len, model.encoder.tap.remaining))
    smaller = apply_masks(model, gates, tasks)
    scores["dev, cut"] = evaluate(smaller, batches(corpus, smaller))
    after = _parameters(smaller.encoder)
    write_cut_run(source, out, smaller, {"dev": scores["dev, cut"]}, opened)
    print_scores(scores, f"{run} -> {out}", console)
    console.print(f"{opened} of {heads} heads kept; encoder parameters {before:,} -> {after:,}")
    if heads_per_group(model.encoder.transformer) > 1:
        left = key_groups(smaller.encoder.transformer)
        copied = f", {left.copies} of them copies for groups that keep unequally many" if left.copies else ""
        console.print(f"keys and values: {left.number} of {groups.number} groups of heads{copied}")


def _parameters(encoder: nn.Module) -> int:
    """The number of parameters, shared ones counted once."""
    return sum(parameter.numel() for parameter in encoder.parameters())
