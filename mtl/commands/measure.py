"""`mtl probe`, `mtl ablate`, and the command of a group of measures, made from its row of the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import fields, make_dataclass
from functools import cache, partial
from math import inf
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.table import Table

from mtl.commands.common import Accelerator, Precision, print_table, refuse_unused
from mtl.config.arguments import Arguments, OutFile, OutFolder, arguments_of
from mtl.config.schema import Split
from mtl.errors import InputError
from mtl.probes.measures.groups import GROUPS, MeasureGroup
from mtl.tasks.in_words import counted
from mtl.tasks.task import Range, Seed, Some

if TYPE_CHECKING:
    import polars as pl

    from mtl.analysis.ablation import Ablation, AblationResult
    from mtl.analysis.trained import TrainedRun
    from mtl.heads.tap import HeadTap
    from mtl.probes.statistics.compared_runs import ScoreLosses


@cache
def __getattr__(name: str) -> Arguments:
    """What `mtl NAME` takes: the same as every such command, and the settings of the group's function."""
    if name not in GROUPS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from mtl.analysis.measuring import function_settings

    group, settings = GROUPS[name], function_settings(GROUPS[name].code)
    taken = {each.name: copy(each) for kind in (arguments_of(_measure), settings) for each in fields(kind)}
    if group.shown:
        del taken["top"]
    if "split" in group.settings:
        taken["split"].default = "test"
    kind = make_dataclass(name, [(each.name, each.type, each) for each in taken.values()], frozen=True)
    kind.__doc__ = settings.__doc__ or group.summary
    return Arguments(partial(_measure, name), kind)


def _measure(
    name: str,
    /,
    run: Path,
    task: tuple[str, ...] = (),
    corpus: Path | None = None,
    split: Split = "dev",
    sentences: Some | None = None,
    out: OutFile | None = None,
    accelerator: Accelerator = "auto",
    log: bool = False,
    top: Annotated[int, Range(0, inf)] = 10,
    **settings: Any,
) -> None:
    """Make a group of measures, and print them.

    Args:
        name: The group.
        run: The run's folder.
        task: Only these tasks; default: all of the model that have gold annotations.
        corpus: Folder with .jsonl files, or SOURCE:TARGET for a task of two files; default: the run's own.
        split: Which split of the corpus.
        sentences: The number of sentences, spread evenly over the split; default: all.
        out: Table to write instead of the run's heads.parquet, to compare splits or corpora.
        accelerator: Device; auto is a GPU if there is one.
        log: Also log the table to the run's W&B run.
        top: Heads to print per task.
        settings: Those of the group's function.
    """
    from mtl.analysis.measuring import make
    from mtl.commands.common import log_to_wandb, open_measured, runs_to_log, sentence_progress

    logged = runs_to_log([run], log)
    trained = open_measured(run, task, corpus, split, sentences, accelerator, out)
    measured = make(name, trained, settings, sentence_progress)
    console = Console(markup=False, emoji=False)
    group = GROUPS[name]
    if group.shown:
        resolve_name(group.shown)(measured.rows, console)
    else:
        _show(measured.rows, group, top, console)
    for line in (*measured.notes, f"wrote {trained.table}"):
        console.print(line, highlight=False, soft_wrap=True)
    log_to_wandb(logged, {f"heads/{name}": measured.rows}, console)


def _show(heads: pl.DataFrame, group: MeasureGroup, top: int, console: Console) -> None:
    """Print the `top` heads of each task by the group's main measure, with all measures on them."""
    import polars as pl

    from mtl.probes.measures.groups import BY_NAME
    from mtl.probes.sites import by_name
    from mtl.probes.tables.table_files import OF_MEASURES

    main = group.measures[0].name
    of_heads = heads.filter(pl.col("label") == "").drop_nulls("head")
    for (task,), of_task in of_heads.group_by("task", maintain_order=True):
        wide = by_name(of_task.pivot("measure", index=["attention", "layer", "head"], values="value"))
        place = f"{task}: " if task else ""
        shown = Table(
            title=f"{place}the {counted(min(top, wide.height), 'head')} of highest {main}, of {wide.height}"
        )
        for title in wide.columns:
            unit = BY_NAME[title].unit if title in BY_NAME else "number"
            shown.add_column(
                title if unit == "number" else f"{title}, {OF_MEASURES[unit].computed}", justify="right"
            )
        for name, *values in wide.sort(main, descending=True, nulls_last=True).head(top).iter_rows():
            shown.add_row(name, *("" if value is None else f"{value:.4g}" for value in values))
        print_table(shown, console)


def probe(
    target: str,
    corpus: Path | None = None,
    split: Split = "test",
    out: OutFolder | None = None,
    masks: bool = True,
    centroids: Literal["self", "train"] = "self",
    constituents: Literal["lowest", "all", "ends"] = "lowest",
    final_special: bool = False,
    markdown: OutFile | None = None,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    revision: str | None = None,
    log: bool = False,
) -> None:
    """Measure what each attention head is good at, and write heads.parquet.

    Of an encoder-decoder model, the encoder's heads are measured, on annotated sources (--corpus).

    Args:
        target: The folder of a run or of a saved model, an encoder ('minilm' or a folder), or the name of a
            model or encoder on the hub.
        corpus: Folder with .jsonl files; default: the run's own corpus.
        split: Split of the corpus.
        out: Folder for heads.parquet; default: the run's folder.
        masks: Whether a run's head masks are applied; a task with its own mask is probed with that mask.
        centroids: The split that gives centroids of clusters and word frequencies: self is the scored split,
            as in the paper, which overstates rare labels; train is the training split.
        constituents: lowest is those of words only, as in the paper; all is every one, by label and height
            (PP-4); ends is attention between the first and the last word of every one.
        final_special: Whether the final special token can be the most attended word.
        markdown: File for the summary as Markdown.
        accelerator: Device; auto is a GPU if there is one.
        precision: bf16-true rounds the encoder's weights and its attention. Ties for the most attended word
            become frequent, and such tables are not compared with those of 32-true.
        revision: A branch, tag or commit of a model or an encoder on the hub.
        log: Also log the best heads and the means to the run's W&B run.
    """
    from mtl.analysis.probe import probe_run
    from mtl.commands.common import corpus_in_folder, print_left_out, runs_to_log, sentence_progress
    from mtl.files import write_text
    from mtl.probes.tables.heads_table import best_heads, markdown_summaries, weighted_means

    logged = runs_to_log([Path(target)], log)
    measured = probe_run(
        target,
        corpus_in_folder(corpus),
        out,
        split=split,
        masks=masks,
        centroids=centroids,
        constituents=constituents,
        final_special=final_special,
        accelerator=accelerator,
        precision=precision,
        revision=revision,
        progress=sentence_progress,
    )
    print_left_out("probed", measured.left_out)
    console = Console(markup=False, emoji=False)
    for note in measured.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    best = best_heads(measured.heads)
    means = weighted_means(best)
    _show_probes(best, means, console)
    _show_roles(measured.heads, console)
    console.print(f"wrote {measured.path}", highlight=False, soft_wrap=True)
    if markdown is not None:
        write_text(markdown, markdown_summaries(best, means))
        console.print(f"wrote {markdown}", highlight=False, soft_wrap=True)
    for run in logged:
        from mtl.runs.folder.wandb_view import config_of, log_probes

        console.print(log_probes(config_of(run), run, measured.heads), highlight=False, soft_wrap=True)


def _show_probes(best: pl.DataFrame, means: pl.DataFrame, console: Console) -> None:
    """Print the best head of every label, with its chance level, in per cent."""
    from mtl.probes.measures.groups import BY_NAME
    from mtl.probes.sites import with_names
    from mtl.probes.tables.heads_table import (
        LENGTH,
        hit_by,
        label_name,
        labels_left_out,
        length_of,
        per_cent,
    )

    best = with_names(best)
    for mean in means.iter_rows(named=True):
        measure = BY_NAME[mean["measure"]]
        shown = Table(title=f"{mean['task']}: {mean['measure']} ({mean['choice']}), in %")
        shown.add_column("label")
        with_length = measure.length is not None
        for title in ("count", "best head", "head", measure.chance_title, *[LENGTH] * with_length):
            shown.add_column(title, justify="right")
        for row in best.iter_rows(named=True):
            if row["task"] == mean["task"]:
                numbers = [per_cent(row["value"]), hit_by(row), per_cent(row["chance"])]
                numbers += [length_of(row)] * with_length
                shown.add_row(label_name(row), f"{row['count']:,}", *numbers)
        shown.add_section()
        weighted = (per_cent(mean["value"]), "", per_cent(mean["chance"]))
        shown.add_row("weighted mean", f"{mean['items']:,}", *weighted)
        if measure.majority is not None:
            shown.add_row("most frequent label", "", per_cent(mean["majority"]), "", "")
        print_table(shown, console)
        if message := labels_left_out(mean):
            console.print(message, highlight=False, soft_wrap=True)


def _show_roles(heads: pl.DataFrame, console: Console) -> None:
    """Print the roles that some head has, with the number of heads and the best one."""
    import polars as pl

    from mtl.probes.sites import with_names
    from mtl.probes.statistics.head_values import heads_of_roles
    from mtl.probes.tables.heads_table import per_cent

    shown = Table(title="roles (Voita et al. 2019); best heads and offsets in %")
    for title in ("role", "task", "label"):
        shown.add_column(title)
    for title in ("heads", "best head", "head", "best offset"):
        shown.add_column(title, justify="right")
    keys = ["measure", "task", "label"]
    best = (
        with_names(heads_of_roles(heads))
        .group_by(keys, maintain_order=True)
        .agg(pl.len(), pl.exclude(keys).first())
    )
    for row in best.iter_rows(named=True):
        numbers = (per_cent(row["value"]), row["name"], per_cent(row["chance"]))
        shown.add_row(*(row[key] for key in keys), str(row["len"]), *numbers)
    if best.height:
        print_table(shown, console)
    else:
        console.print("no head has a positional or syntactic role")


SIGNIFICANT = 0.05
"""The false discovery rate at which a difference is called significant."""
MOST_NAMES = 12
"""The largest number of heads closed together that a table lists by name; it counts more."""
MEASURED = {"head": "head", "all_but_one": "head left", "layer": "layer", "chosen": "heads"}
TITLES = {
    "head": "each head closed",
    "all_but_one": "all heads of the layer closed but one",
    "layer": "all heads of the layer closed",
    "chosen": "the given heads closed",
}


def ablate(
    run: Path,
    close: tuple[Literal["head", "all_but_one", "layer"], ...] = ("head",),
    heads: str | None = None,
    mask: Path | None = None,
    by: Literal["zero", "mean"] = "zero",
    task: tuple[str, ...] = (),
    corpus: Path | None = None,
    split: Split = "test",
    sentences: Some | None = None,
    masks: bool = True,
    draws: Some = 10_000,
    seed: Seed = 0,
    json_out: OutFile | None = None,
    out: OutFile | None = None,
    accelerator: Accelerator = "auto",
    log: bool = False,
) -> None:
    """Close heads of a trained model, and measure what each task's score loses.

    Differences are tested on documents, or on sentences if the corpus does not say which document they are
    from: intervals by the paired bootstrap, p by approximate randomisation, and q, which is p adjusted for
    all ablations of a kind (Benjamini and Hochberg). Rows of single heads and
    layers are written into the run's heads.parquet. Run the command again to resume it.

    Args:
        run: The run's folder.
        close: Each head by itself, all heads of a layer but one, or all heads of a layer.
        heads: Close these heads together instead, separated by commas: L2H9 is head 9 of layer 2, both
            counted from 0, and L5 is a whole layer (L0H3,L2H11,L5; also 0.3,2.11,5); if there are several
            kinds of attention, the kind goes first ('cross L0H3' or cross.0.3), and its name alone is all of
            its heads (--heads=cross).
        mask: Close together all heads that this gates.parquet closes, instead of one by one.
        by: What replaces the output of a closed head: zeros, or its mean output over the sentences.
        task: Only these tasks; default: all of the model that have gold annotations.
        corpus: Folder with .jsonl files, or SOURCE:TARGET for a task of two files; default: the run's own.
        split: Which split of the corpus.
        sentences: The number of sentences, spread evenly over the split; default: all.
        masks: Apply the run's own head masks.
        draws: Resamples for each interval and each p; with fewer than 20 times the number of heads, a single
            head cannot be significant.
        seed: Random seed for the resamples.
        json_out: JSON file for all numbers.
        out: Table to write instead of the run's heads.parquet, to compare splits or corpora.
        accelerator: Device; auto is a GPU if there is one.
        log: Also log the losses to the run's W&B run.
    """
    from mtl.analysis.ablation import every_ablation, measure_ablation
    from mtl.commands.common import log_to_wandb, open_measured, runs_to_log, sentence_progress
    from mtl.files import write_json

    if heads is not None and mask is not None:
        raise InputError("--heads and --mask both say what to close: use one of them")
    if out is not None and (heads is not None or mask is not None):
        raise InputError(
            "--out is a table of single heads and layers, which --heads and --mask do not give: "
            "write their numbers with --json_out=FILE"
        )
    if heads is not None or mask is not None:
        refuse_unused(ablate, "has no effect with --heads or --mask: leave out one of them", close=close)
    logged = runs_to_log([run], log)
    trained = open_measured(run, task, corpus, split, sentences, accelerator, out)
    console = Console(markup=False, emoji=False)
    by_hand = _closed_by_hand(trained, heads, mask, task, console)
    chosen = every_ablation(trained, close) if by_hand is None else [by_hand]
    result = measure_ablation(
        trained, chosen, by=by, masks=masks, draws=draws, seed=seed, progress=sentence_progress
    )
    _show_ablation(trained, result, draws, console)
    if by_hand is None:
        console.print(f"wrote {trained.table}", highlight=False, soft_wrap=True)
    if json_out is not None:
        write_json(json_out, _numbers(trained, result))
        console.print(f"wrote {json_out}", highlight=False, soft_wrap=True)
    if logged:
        log_to_wandb(logged, {"ablation": _as_table(trained, result)}, console)


def _closed_by_hand(
    trained: TrainedRun, heads: str | None, mask: Path | None, task: Sequence[str], console: Console
) -> Ablation | None:
    """The heads that the user names, closed together; `None` if none are named."""
    from mtl.analysis.ablation import Ablation
    from mtl.commands.common import heads_given
    from mtl.heads.gates import closed_heads
    from mtl.models.derived import gates_from_file, mask_in_words

    tap = trained.model.encoder.tap
    closed: set[tuple[int, int]] = set()
    if mask is not None:
        owner = task[0] if len(task) == 1 else None
        gates = gates_from_file(mask, owner, (len(tap.sites), tap.heads))
        said = mask_in_words(mask, owner, trained.model.tasks)
        console.print(f"heads are closed by {said}", highlight=False, soft_wrap=True)
        closed = {(site, head) for site, numbers in closed_heads(gates).items() for head in numbers}
        if not closed:
            raise InputError(f"{mask} closes no head: there is nothing to ablate")
    elif heads is None:
        return None
    if heads is not None:
        given = heads_given(heads, tap.sites, tap.heads)
        closed |= {(site, head) for site, numbers in given.items() for head in numbers}
    return Ablation("chosen", frozenset(closed))


def _show_ablation(trained: TrainedRun, result: AblationResult, draws: int, console: Console) -> None:
    for name, lost in result.losses.items():
        metric = f"{name}: {trained.tasks[name].score} {lost.score:.2f}"
        for kind in dict.fromkeys(ablation.kind for ablation in result.chosen):
            numbers = [index for index, ablation in enumerate(result.chosen) if ablation.kind == kind]
            worse = [index for index in numbers if lost.q[index] <= SIGNIFICANT and lost.loss[index] > 0]
            better = [index for index in numbers if lost.q[index] <= SIGNIFICANT and lost.loss[index] < 0]
            shown = Table(title=f"{metric}; points lost, {TITLES[kind]}")
            for title in (MEASURED[kind], "loss", "95 % interval", "p", "q"):
                shown.add_column(title, justify="right")
            for index in sorted(numbers, key=lambda index: -lost.loss[index])[:10]:
                ablation = result.chosen[index]
                shown.add_row(
                    _closed(ablation, trained.model.encoder.tap), f"{lost.loss[index]:+.2f}",
                    _interval(lost.low[index], lost.high[index]), f"{lost.p[index]:.3g}",
                    f"{lost.q[index]:.3g}",
                )  # fmt: skip
            print_table(shown, console)
            resampled = f"resampled: {result.units[name].described()}"
            console.print(resampled, highlight=False, soft_wrap=True)
            if kind != "chosen":
                console.print(
                    f"{len(worse)} of {len(numbers)} cost significantly (q at most {SIGNIFICANT}), "
                    f"{len(better)} help",
                    highlight=False,
                )
                if (least := len(numbers) / (draws + 1)) > SIGNIFICANT:
                    console.print(
                        f"note: with {counted(draws, 'resample')} the q of one in {len(numbers)} cannot be "
                        f"below {min(least, 1):.2g}; --draws={math.ceil(len(numbers) / SIGNIFICANT)} "
                        "suffices",
                        highlight=False, soft_wrap=True,
                    )  # fmt: skip


def _interval(low: float, high: float) -> str:
    """An interval of points; empty without one."""
    return f"{low:+.2f} to {high:+.2f}" if math.isfinite(low) else ""


def _closed(ablation: Ablation, tap: HeadTap) -> str:
    """The names of what was closed, of whole layers those of the layers; of many heads, only their number."""
    from mtl.probes.sites import head_name

    if ablation.site is not None:
        return head_name(tap.sites[ablation.site], ablation.head, tap.sites)
    by_kind: dict[str, list[str]] = {}
    open_kinds = set()
    for number, (site, heads) in enumerate(zip(tap.sites, tap.remaining, strict=True)):
        closed = sorted(head for of_site, head in ablation.closed if of_site == number)
        if not {*heads} <= {*closed}:
            open_kinds.add(site.attention)
        whole = {*heads} <= {*closed} and len(closed) > 1
        by_kind.setdefault(site.attention, [])
        by_kind[site.attention] += [
            head_name(site, head, tap.sites) for head in ([None] if whole else closed)
        ]
    names = []
    for kind, of_kind in by_kind.items():
        names += of_kind if kind in open_kinds or not of_kind else [f"all {kind} heads"]
    return ", ".join(names) if len(names) <= MOST_NAMES else counted(len(ablation.closed), "head")


def _as_table(trained: TrainedRun, result: AblationResult) -> pl.DataFrame:
    """A row for each task and ablation."""
    import polars as pl

    tap = trained.model.encoder.tap
    return pl.DataFrame(
        [
            {
                "task": name, "score": trained.tasks[name].score, "kind": ablation.kind,
                "closed": _closed(ablation, tap),
                **_tested(lost, index), "units": result.units[name].name,
            }
            for name, lost in result.losses.items()
            for index, ablation in enumerate(result.chosen)
        ]
    )  # fmt: skip


def _tested(lost: ScoreLosses, index: int) -> dict[str, float | None]:
    """The numbers of one ablation; `None` for an interval that is not known."""
    numbers = {key: float(getattr(lost, key)[index]) for key in ("loss", "low", "high", "p", "q")}
    return {key: value if math.isfinite(value) else None for key, value in numbers.items()}


def _numbers(trained: TrainedRun, result: AblationResult) -> dict[str, object]:
    sites = trained.model.encoder.tap.sites
    return {
        name: {
            "score": lost.score,
            "figure": trained.tasks[name].score,
            "units": result.units[name].name,
            "resampled": result.units[name].count,
            "ablations": [
                {
                    "kind": ablation.kind,
                    "closed": [[*sites[site], head] for site, head in sorted(ablation.closed)],
                    **_tested(lost, index),
                }
                for index, ablation in enumerate(result.chosen)
            ],
        }
        for name, lost in result.losses.items()
    }
