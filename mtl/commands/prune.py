"""`mtl prune`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from mtl.commands.common import (
    Accelerator,
    NewFolder,
    dev_examples,
    heads_given,
    print_scores,
    refuse_unused,
)
from mtl.tasks.in_words import counted

if TYPE_CHECKING:
    from torch import Tensor

    from mtl.models.joint import JointModel
    from mtl.models.tapped import SharedEncoder, TappedModel
    from mtl.runs.folder.run import Run


def prune(
    model: str,
    *,
    out: NewFolder,
    heads: str | None = None,
    task: tuple[str, ...] = (),
    mask: Path | None = None,
    keep_shape: bool = False,
    accelerator: Accelerator = "auto",
    revision: str | None = None,
) -> None:
    """Cut closed heads out of a model; a run's model is scored with masks and after the cut.

    Args:
        model: A run's folder, a saved model's, or a model on the hub (OWNER/NAME); with --heads or --mask
            also an encoder ('minilm', a folder, a name on the hub).
        out: Folder of the new run, which can be used like any other (predict, evaluate, --from), of the new
            model, or of the new encoder (for mtl train --encoder.name).
        heads: Heads to cut in addition to those that the run's masks close, separated by commas; L2H9 is head
            9 of layer 2, both from 0, and L5 is a whole layer (L0H3,L2H11,L5; also 0.3,2.11,5); if there are
            several kinds of attention, the kind goes first (cross L0H3), and its name alone is all of its
            heads.
        task: Tasks whose decoders the new model keeps, for instance --task=[pos,ner]; default: all. If each
            task has a mask of its own, name one: the cut is made by its mask.
        mask: A gates.parquet to cut by, instead of the run's own masks.
        keep_shape: Only close the heads, by zeros in weights of unchanged shape, which plain transformers
            and other tools can load.
        accelerator: Device on which a run's model is scored; auto is a GPU if there is one.
        revision: A branch, tag or commit of a model or an encoder on the hub.
    """
    from mtl.errors import InputError

    if heads is not None and mask is not None:
        raise InputError("--heads and --mask both say what to cut: use one of them")
    from mtl.models.opened import open_target

    cut = _Cut(model, out, heads, task, mask, keep_shape)
    opened = open_target(model, revision)
    if opened.model is not None:
        _prune_model(opened.model, opened.run, cut, accelerator)
        return
    if heads is None and mask is None:
        raise InputError(
            f"{model} is an encoder, so it has no masks: use a run's folder or a joint model, or say what "
            "to cut (--heads=L0H3,L2H11 or --mask=FILE)"
        )
    if mask is None or len(task) > 1:
        refuse_unused(
            prune, "of an encoder chooses a mask of --mask=FILE: name one task, or leave it out", task=task
        )
    _prune_encoder(opened.encoder, cut)


@dataclass(frozen=True)
class _Cut:
    """What is cut out of which model, and where the result goes: arguments of `prune`."""

    model: str
    out: Path
    heads: str | None
    task: tuple[str, ...]
    mask: Path | None
    keep_shape: bool

    @property
    def owner(self) -> str | None:
        """The task whose mask is taken from the file; `None`: any, since all are to be equal."""
        return self.task[0] if len(self.task) == 1 else None

    def gates_from_file(
        self, encoder: SharedEncoder, tasks: Iterable[str], console: Console
    ) -> Tensor | None:
        """The gates of the file, if one is to be cut by; says whose they are."""
        from mtl.models.derived import gates_from_file, mask_in_words

        if self.mask is None:
            return None
        gates = gates_from_file(self.mask, self.owner, (encoder.layers, encoder.heads))
        done = "closed" if self.keep_shape else "cut"
        console.print(
            f"heads are {done} by {mask_in_words(self.mask, self.owner, tasks)}",
            highlight=False,
            soft_wrap=True,
        )
        return gates


def _prune_model(model: JointModel, source: Run | None, cut: _Cut, accelerator: Accelerator) -> None:
    import torch

    from mtl.heads.gates import OPEN
    from mtl.models.derived import apply_masks, gates_for, write_cut_run, write_derived
    from mtl.models.evaluate import batches, evaluate_model, with_same_answers
    from mtl.models.opened import prepare

    prepare(model, accelerator)
    encoder = model.encoder
    console = Console(markup=False, emoji=False)
    given = cut.gates_from_file(encoder, model.tasks, console)
    if given is None and cut.heads is not None and model.gates is None:
        given = torch.ones(encoder.layers, encoder.heads)
    gates, tasks = gates_for(model, cut.task, given)
    if cut.heads is not None:
        gates = gates.clone()
        for site, numbers in heads_given(cut.heads, encoder.tap.sites, encoder.heads).items():
            gates[site, numbers] = 0
    corpus = None if source is None else dev_examples(source, model, tasks)
    before = _Size.of(encoder)
    opened = sum(
        bool(gates[site, head] > OPEN) for site, there in enumerate(encoder.tap.remaining) for head in there
    )
    if not opened:
        console.print("warning: all heads of all layers are closed: the encoder attends to nothing")
    scores = {} if corpus is None else {"dev, masked": evaluate_model(model, batches(corpus, model), gates)}
    smaller = apply_masks(model, gates, tasks, keep_shape=cut.keep_shape)
    if source is None or corpus is None:
        write_derived(smaller, cut.out, model.origin, "cut")
        console.print(f"{cut.model} -> {cut.out}: not scored, since no run names its corpus", soft_wrap=True)
    else:
        after = evaluate_model(smaller, batches(corpus, smaller))
        scores["dev, closed" if cut.keep_shape else "dev, cut"] = after
        write_cut_run(source, cut.out, smaller, {"dev": with_same_answers(after, smaller, corpus)}, opened)
        print_scores(scores, f"{cut.model} -> {cut.out}", console)
        if cut.keep_shape:
            console.print(f"AutoModel.from_pretrained loads {cut.out / 'model'}", soft_wrap=True)
    before.compare(smaller.encoder, opened, cut.keep_shape, console)


def _prune_encoder(encoder: SharedEncoder, cut: _Cut) -> None:
    from mtl.errors import InputError
    from mtl.files import new_folder
    from mtl.heads.gates import closed_heads
    from mtl.heads.prune import prune_heads

    if encoder.does:
        raise InputError(f"{cut.model} {encoder.does}: use the folder of the run that it was trained in")
    before, remaining = _Size.of(encoder), encoder.tap.remaining
    console = Console(markup=False, emoji=False)
    gates = cut.gates_from_file(encoder, (), console)
    if gates is None:
        closed = heads_given(cut.heads or "", encoder.tap.sites, encoder.heads)
    else:
        closed = closed_heads(gates)
    prune_heads(encoder.transformer, closed, gates, keep_shape=cut.keep_shape)
    with new_folder(cut.out) as folder:
        encoder.save(folder)
    opened = sum(head not in closed.get(site, ()) for site, there in enumerate(remaining) for head in there)
    console.print(f"{cut.model} -> {cut.out}", highlight=False, soft_wrap=True)
    before.compare(encoder, opened, cut.keep_shape, console)


@dataclass(frozen=True)
class _Size:
    """How large an encoder is."""

    heads: int
    parameters: int
    """The number of parameters; shared ones count once."""
    groups: int
    """The number of groups of heads that share keys and values."""

    @classmethod
    def of(cls, encoder: TappedModel) -> _Size:
        """The size of an encoder as it is now."""
        from mtl.heads.attentions import key_groups

        parameters = sum(parameter.numel() for parameter in encoder.parameters())
        return cls(sum(map(len, encoder.tap.remaining)), parameters, key_groups(encoder.transformer))

    def compare(self, smaller: TappedModel, opened: int, keep_shape: bool, console: Console) -> None:
        """Print this size, before the cut, and that of the `smaller` encoder."""
        from mtl.heads.families import heads_per_group

        if keep_shape:
            console.print(
                f"{opened} of {counted(self.heads, 'head')} open, the others closed in weights of the same "
                f"shape: {counted(self.parameters, 'encoder parameter')}"
            )
            return
        after = _Size.of(smaller)
        console.print(
            f"{opened} of {counted(self.heads, 'head')} kept; encoder parameters "
            f"{self.parameters:,} -> {after.parameters:,}"
        )
        if heads_per_group(smaller.transformer) > 1:
            console.print(f"keys and values: {self.groups:,} -> {after.groups:,}")
