"""`mtl ablate`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

from mtl.commands.arguments import check_seed
from mtl.errors import InputError

if TYPE_CHECKING:
    from mtl.analysis.ablation import Ablation
    from mtl.analysis.ablation_run import AblationResult
    from mtl.analysis.trained import TrainedRun
    from mtl.heads.tap import HeadTap

SIGNIFICANT = 0.05
"""The false discovery rate at which a difference is called significant."""


def ablate(
    run: Path,
    close: tuple[Literal["head", "all_but_one", "layer"], ...] = ("head",),
    heads: str | None = None,
    mask: Path | None = None,
    by: Literal["zero", "mean"] = "zero",
    task: tuple[str, ...] = (),
    corpus: Path | None = None,
    split: Literal["train", "dev", "test"] = "test",
    sentences: int | None = None,
    masks: bool = True,
    draws: int = 10_000,
    seed: int = 0,
    json_out: Path | None = None,
    out: Path | None = None,
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
) -> None:
    """Close heads of a trained model, and measure what each task's score loses.

    Differences are tested on sentences: intervals by the paired bootstrap, p by approximate randomisation,
    q is p adjusted for all ablations of a kind (Benjamini and Hochberg). Rows of single heads and layers are
    written into the run's heads.parquet. The same command resumes what was interrupted.

    Args:
        run: The run's folder.
        close: Each head by itself, all heads of a layer but one, or all heads of a layer.
        heads: Instead of that, these heads together, separated by commas: LAYER.HEAD, both from 0, or LAYER
            for a whole layer (0.3,2.11,5); where there are several kinds of attention, with the kind before
            it (cross.0.3).
        mask: Instead of that, the heads that a gates.parquet closes.
        by: What a closed head hands out: zeros, or its mean output over the sentences.
        task: Only these tasks; default: all of the model that have gold annotations.
        corpus: Folder with .jsonl files, or SOURCE:TARGET for translations; default: the run's own.
        split: Which split of the corpus.
        sentences: The number of sentences, spread evenly over the split; default: all.
        masks: Whether a run's own head masks are applied.
        draws: Resamples for each interval and each p; with fewer than 20 times the number of heads a single
            one cannot be significant.
        seed: Of the resamples.
        json_out: File for all figures.
        out: Table to write instead of the run's heads.parquet, so that splits or corpora can be compared.
        accelerator: What to compute on; auto takes a GPU where there is one.
    """
    from mtl.analysis.ablation_run import every_ablation, measure_ablation
    from mtl.commands.measured_run import open_measured
    from mtl.commands.progress import sentence_progress
    from mtl.files import write_json

    check_seed(seed)
    if draws < 1:
        raise InputError(f"draws={draws}: give at least 1")
    if heads is not None and mask is not None:
        raise InputError("--heads and --mask both say what to close: give one of them")
    if out is not None and (heads is not None or mask is not None):
        raise InputError(
            "--out is a table of single heads and layers, which --heads and --mask do not give: "
            "write their figures with --json_out=FILE"
        )
    trained = open_measured(run, task, corpus, split, sentences, accelerator, out)
    by_hand = _closed_by_hand(trained, heads, mask, task)
    chosen = every_ablation(trained, close) if by_hand is None else [by_hand]
    result = measure_ablation(
        trained, chosen, by=by, masks=masks, draws=draws, seed=seed, progress=sentence_progress
    )
    console = Console(markup=False, emoji=False)
    _show(trained, result, console)
    if by_hand is None:
        console.print(f"wrote {trained.table}", highlight=False, soft_wrap=True)
    if json_out is not None:
        write_json(json_out, _figures(trained, result))
        console.print(f"wrote {json_out}", highlight=False, soft_wrap=True)


def _closed_by_hand(
    trained: TrainedRun, heads: str | None, mask: Path | None, task: Sequence[str]
) -> Ablation | None:
    """The set of heads that the user names; `None` where none are named."""
    from mtl.analysis.ablation import Ablation
    from mtl.heads.gates import OPEN
    from mtl.models.apply_masks import gates_from_file

    tap = trained.model.encoder.tap
    closed: set[tuple[int, int]] = set()
    if mask is not None:
        gates = gates_from_file(mask, task[0] if len(task) == 1 else None, (len(tap.sites), tap.heads))
        closed = {(int(site), int(head)) for site, head in (gates <= OPEN).nonzero().tolist()}
        if not closed:
            raise InputError(f"{mask} closes no head: there is nothing to ablate")
    elif heads is None:
        return None
    for name in () if heads is None else map(str.strip, heads.split(",")):
        closed |= _heads_named(name, tap)
    return Ablation("chosen", frozenset(closed))


def _heads_named(name: str, tap: HeadTap) -> set[tuple[int, int]]:
    """The site and number of the heads that a name such as `0.3`, `5` or `cross.0.3` stands for."""
    from probes.heads_table import Site

    kinds = list(dict.fromkeys(site.attention for site in tap.sites))
    match = re.fullmatch(r"(?:([a-z]+)\.)?(\d+)(?:\.(\d+))?", name)
    if match is None or (match[1] is None and len(kinds) > 1):
        before = "KIND." if len(kinds) > 1 else ""
        shown = f"{kinds[-1]}.0.3" if before else "0.3,2.11 or 5"
        raise InputError(f"--heads={name}: give {before}LAYER.HEAD or {before}LAYER, for instance {shown}")
    kind, layer, head = match[1] or kinds[0], int(match[2]), None if match[3] is None else int(match[3])
    if kind not in kinds:
        raise InputError(
            f"--heads={name}: the model has no attention of kind {kind}: it has {', '.join(kinds)}"
        )
    layers = [site.layer for site in tap.sites if site.attention == kind]
    if layer not in layers or (head is not None and head >= tap.heads):
        raise InputError(
            f"--heads={name}: the model has layers 0 to {len(layers) - 1} of heads 0 to {tap.heads - 1}"
        )
    site_number = tap.sites.index(Site(kind, layer))
    return {(site_number, number) for number in (range(tap.heads) if head is None else (head,))}


def _show(trained: TrainedRun, result: AblationResult, console: Console) -> None:
    sites = trained.model.encoder.tap.sites
    for name, lost in result.losses.items():
        metric = f"{name}: {trained.tasks[name].score} {lost.score:.2f}"
        for kind in dict.fromkeys(ablation.kind for ablation in result.chosen):
            numbers = [index for index, ablation in enumerate(result.chosen) if ablation.kind == kind]
            worse = [index for index in numbers if lost.q[index] <= SIGNIFICANT and lost.loss[index] > 0]
            better = [index for index in numbers if lost.q[index] <= SIGNIFICANT and lost.loss[index] < 0]
            shown = Table(title=f"{metric}; points lost, {TITLES[kind]}")
            for title in ("attention", "layer", "head", "loss", "95 % interval", "p", "q"):
                shown.add_column(title, justify="right")
            for index in sorted(numbers, key=lambda index: -lost.loss[index])[:10]:
                ablation = result.chosen[index]
                site = ("", "") if ablation.site is None else map(str, sites[ablation.site])
                shown.add_row(
                    *site, "" if ablation.head is None else str(ablation.head), f"{lost.loss[index]:+.2f}",
                    f"{lost.low[index]:+.2f} to {lost.high[index]:+.2f}", f"{lost.p[index]:.3g}",
                    f"{lost.q[index]:.3g}",
                )  # fmt: skip
            console.print(shown)
            if kind != "chosen":
                console.print(
                    f"{len(worse)} of {len(numbers)} cost significantly (q at most {SIGNIFICANT}), "
                    f"{len(better)} help",
                    highlight=False,
                )


TITLES = {
    "head": "each head closed",
    "all_but_one": "all heads of the layer closed but one",
    "layer": "all heads of the layer closed",
    "chosen": "the given heads closed",
}


def _figures(trained: TrainedRun, result: AblationResult) -> dict[str, object]:
    sites = trained.model.encoder.tap.sites
    return {
        name: {
            "score": lost.score,
            "figure": trained.tasks[name].score,
            "ablations": [
                {
                    "kind": ablation.kind,
                    "closed": [[*sites[site], head] for site, head in sorted(ablation.closed)],
                    "loss": float(lost.loss[index]),
                    "low": float(lost.low[index]),
                    "high": float(lost.high[index]),
                    "p": float(lost.p[index]),
                    "q": float(lost.q[index]),
                }
                for index, ablation in enumerate(result.chosen)
            ],
        }
        for name, lost in result.losses.items()
    }
