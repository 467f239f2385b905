"""`mtl prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from mtl.commands.heads_given import heads_given
from mtl.commands.measured_run import dev_examples
from mtl.commands.new_folder import check_new_folder
from mtl.commands.score_table import print_scores

if TYPE_CHECKING:
    from torch import nn

    from mtl.models.joint import JointModel
    from mtl.models.tapped import SharedEncoder, TappedModel
    from mtl.runs.folder.run import Run


def prune(
    model: str,
    *,
    out: Path,
    heads: str | None = None,
    task: str | None = None,
    mask: Path | None = None,
    keep_shape: bool = False,
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
    revision: str | None = None,
) -> None:
    """Cut closed heads out of a model; a run's is scored beside the masked one.

    Args:
        model: A run's folder, a saved model's, or a model on the hub (OWNER/NAME); with --heads or --mask
            also an encoder ('minilm', a folder, a name on the hub).
        out: Folder of the new run, which can be used like any other (predict, evaluate, --from), of the new
            model, or of the new encoder (for mtl train --encoder.name).
        heads: Heads to cut in addition to those that the run's masks close, separated by commas; L2H9 is head
            9 of layer 2, both from 0, and L5 is a whole layer (L0H3,L2H11,L5; also 0.3,2.11,5); if there are
            several kinds of attention, the kind goes first (cross L0H3).
        task: The task whose mask is used, if tasks have their own; the new model has only that task.
        mask: A gates.parquet to cut by, instead of the run's own masks.
        keep_shape: Only close heads, by zeros in weights of the same shape, which plain transformers and
            other tools can load.
        accelerator: Device; auto is a GPU if there is one.
        revision: A branch, tag or commit of a model or an encoder on the hub.
    """
    from mtl.errors import InputError

    check_new_folder(out)
    if heads is not None and mask is not None:
        raise InputError("--heads and --mask both say what to cut: use one of them")
    from mtl.models.opened import open_target

    opened = open_target(model, revision)
    if opened.model is not None:
        _prune_model(opened.model, opened.run, model, out, heads, task, mask, keep_shape, accelerator)
        return
    if heads is None and mask is None:
        raise InputError(
            f"{model} is an encoder, so it has no masks: use a run's folder or a joint model, or say what "
            "to cut (--heads=L0H3,L2H11 or --mask=FILE)"
        )
    _prune_encoder(opened.encoder, model, out, heads, task, mask, keep_shape)


def _prune_model(
    model: JointModel,
    source: Run | None,
    name: str,
    out: Path,
    heads: str | None,
    task: str | None,
    mask: Path | None,
    keep_shape: bool,
    accelerator: Literal["auto", "cpu", "gpu"],
) -> None:
    import torch

    from mtl.heads.families import key_groups
    from mtl.heads.gates import OPEN
    from mtl.models.apply_masks import apply_masks, gates_for, gates_from_file
    from mtl.models.derived_run import write_cut_run, write_model
    from mtl.models.device import prepare
    from mtl.models.evaluate import batches, evaluate

    prepare(model, accelerator)
    shape = (model.encoder.layers, model.encoder.heads)
    given = None if mask is None else gates_from_file(mask, task, shape)
    if given is None and heads is not None and not model.scales.any:
        given = torch.ones(shape)
    gates, tasks = gates_for(model, task, given)
    if heads is not None:
        gates = gates.clone()
        for site, numbers in heads_given(heads, model.encoder.tap.sites, model.encoder.heads).items():
            gates[site, numbers] = 0
    corpus = None if source is None else dev_examples(source, model, tasks)
    console = Console(markup=False, emoji=False)
    remaining = model.encoder.tap.remaining
    opened = sum(bool(gates[site, head] > OPEN) for site, there in enumerate(remaining) for head in there)
    if not opened:
        console.print("warning: all heads of all layers are closed: the encoder attends to nothing")
    before, groups = _parameters(model.encoder), key_groups(model.encoder.transformer)
    scores = {} if corpus is None else {"dev, masked": evaluate(model, batches(corpus, model), gates)}
    smaller = apply_masks(model, gates, tasks, keep_shape=keep_shape)
    if source is None or corpus is None:
        write_model(smaller, out, model.origin, "cut")
        console.print(f"{name} -> {out}: not scored, since no run names its corpus", soft_wrap=True)
    else:
        scores["dev, closed" if keep_shape else "dev, cut"] = evaluate(smaller, batches(corpus, smaller))
        write_cut_run(source, out, smaller, {"dev": list(scores.values())[-1]}, opened)
        print_scores(scores, f"{name} -> {out}", console)
    _show_sizes(smaller.encoder, opened, sum(map(len, remaining)), before, groups, keep_shape, console)


def _prune_encoder(
    encoder: SharedEncoder,
    name: str,
    out: Path,
    heads: str | None,
    task: str | None,
    mask: Path | None,
    keep_shape: bool,
) -> None:
    from mtl.errors import InputError
    from mtl.files import whole_folder
    from mtl.heads.families import key_groups
    from mtl.heads.prune import prune_heads
    from mtl.models.apply_masks import gates_from_file
    from mtl.models.head_scales import closed_heads

    if encoder.translator is not None:
        raise InputError(f"{name} translates: use the folder of the run that it was trained in")
    remaining = encoder.tap.remaining
    gates = None if mask is None else gates_from_file(mask, task, (encoder.layers, encoder.heads))
    if gates is None:
        closed = heads_given(heads or "", encoder.tap.sites, encoder.heads)
    else:
        closed = closed_heads(gates)
    before, groups = _parameters(encoder), key_groups(encoder.transformer)
    prune_heads(encoder.transformer, closed, gates, keep_shape=keep_shape)
    with whole_folder(out) as folder:
        encoder.save(folder)
    console = Console()
    opened = sum(head not in closed.get(site, ()) for site, there in enumerate(remaining) for head in there)
    console.print(f"{name} -> {out}", highlight=False, soft_wrap=True)
    _show_sizes(encoder, opened, sum(map(len, remaining)), before, groups, keep_shape, console)


def _show_sizes(
    encoder: TappedModel,
    opened: int,
    heads: int,
    before: int,
    groups: int,
    keep_shape: bool,
    console: Console,
) -> None:
    from mtl.heads.families import heads_per_group, key_groups

    if keep_shape:
        console.print(
            f"{opened} of {heads} heads open, the others closed in weights of the same shape: "
            f"{before:,} encoder parameters"
        )
        return
    after = _parameters(encoder)
    console.print(f"{opened} of {heads} heads kept; encoder parameters {before:,} -> {after:,}")
    if heads_per_group(encoder.transformer) > 1:
        console.print(f"keys and values: {groups:,} -> {key_groups(encoder.transformer):,}")


def _parameters(encoder: nn.Module) -> int:
    """The number of parameters, shared ones counted once."""
    return sum(parameter.numel() for parameter in encoder.parameters())
