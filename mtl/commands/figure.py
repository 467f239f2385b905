"""`mtl figure`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import polars as pl
from rich.console import Console

from mtl.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mtl.run import Run

Name = Literal["rgb", "grey", "correlation", "gates", "masks", "animation", "labels", "heatmap", "heads-kept"]


def figure(
    name: Name,
    runs: list[Path],
    out: Path,
    tasks: tuple[str, ...] = (),
    split: Literal["dev", "test"] = "test",
    tables: bool = True,
) -> None:
    """Draw a figure from runs given by hand.

    Args:
        name: rgb (three runs of a task, or three tasks), grey (all masks), correlation (of tasks' masks),
            gates (over time, one run), masks (one run), animation (one run, .gif or .webp), labels (best head
            per label and setup), heatmap (heads by labels), heads-kept (score against open heads).
        runs: Folders of runs; for labels and heatmap also of probed encoders.
        out: File: .pdf, .png or .svg.
        tasks: Only these tasks, for instance --tasks=[pos,dep,srl].
        split: Scores on which split, in heads-kept.
        tables: Whether the figure's numbers are written beside it as .tex, .csv and .parquet.
    """
    from mtl.files import whole_file
    from probes import tables as table_files
    from probes.figures.style import FORMATS, render

    console = Console()
    suffix = out.suffix.lower().removeprefix(".")
    kind = next((each for each in FORMATS if each == suffix), None)
    if (kind is None) != (name == "animation") or (name == "animation" and suffix not in ("gif", "webp")):
        wanted = ".gif or .webp" if name == "animation" else ".pdf, .png or .svg"
        raise InputError(f"{out}: give a file that ends in {wanted}")
    try:
        if kind is None:
            _animate(runs, tasks, out, console)
            return
        drawn = _DRAW[name](runs, tasks, split)
    except ValueError as error:
        raise InputError(str(error)) from error
    for note in drawn.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    contents = render(drawn.figure, kind)
    with whole_file(out) as path:
        path.write_bytes(contents)
    console.print(f"wrote {out}", highlight=False, soft_wrap=True)
    for end, table in drawn.tables.items() if tables else ():
        for form in table_files.FORMATS:
            beside = out.with_name(f"{out.stem}{end}.{form}")
            with whole_file(beside) as path:
                table_files.write(table, path, form)
            console.print(f"wrote {beside}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class _Drawn:
    figure: Figure
    notes: tuple[str, ...] = ()
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """By the end of the file's name, before the suffix."""


def _opened(folders: Sequence[Path]) -> list[Run]:
    from mtl.run import Run

    return [Run.open(folder) for folder in folders]


def _rgb(folders: Sequence[Path], tasks: Sequence[str], split: str) -> _Drawn:
    from mtl.evidence import gates_of
    from probes.figures.rgb_overlap import rgb_overlap
    from probes.masks import final_masks

    gates, notes = gates_of(_opened(folders), tasks)
    found = list(gates["task"].unique(maintain_order=True))
    if len(found) == 3:
        masks, left_out = final_masks(gates)
        return _Drawn(rgb_overlap(masks.mean(), masks.tasks), (*notes, *left_out))
    runs = gates.select("run", "seed", "task").unique(maintain_order=True)
    if runs.height != 3 or runs["run"].n_unique() != 3:
        raise InputError(
            f"rgb needs three runs with a mask each, or three tasks; given are {runs['run'].n_unique()} with "
            f"masks of {', '.join(found)}: add runs, or choose with --tasks=[a,b,c]"
        )
    # Here each run is a channel, whatever its seed and task are.
    numbered = {run: place for place, run in enumerate(runs["run"])}
    masks, _ = final_masks(
        gates.with_columns(task=pl.lit("mask"), seed=pl.col("run").replace_strict(numbered))
    )
    by_task = len(found) > 1
    names = [
        f"{row['task']} {row['seed']}" if by_task else f"seed {row['seed']}"
        for row in runs.iter_rows(named=True)
    ]
    if len(set(names)) < 3:
        names = [Path(run).name for run in runs["run"]]
    return _Drawn(rgb_overlap(masks.gate[0], names), notes)


def _grey(folders: Sequence[Path], tasks: Sequence[str], split: str) -> _Drawn:
    from mtl.evidence import gates_of
    from probes.figures.grey_overlap import grey_overlap
    from probes.masks import final_masks

    gates, notes = gates_of(_opened(folders), tasks)
    every = gates.with_columns(task=pl.format("{} {}", "run", "task"), seed=pl.lit(0))
    masks, _ = final_masks(every)
    return _Drawn(grey_overlap(masks.gate[:, 0]), notes)


def _correlation(folders: Sequence[Path], tasks: Sequence[str], split: str) -> _Drawn:
    from mtl.evidence import gates_of
    from probes.figures.correlation import correlation_matrix
    from probes.masks import final_masks
    from probes.overlap import correlation_table, task_overlaps

    gates, notes = gates_of(_opened(folders), tasks)
    masks, left_out = final_masks(gates)
    if len(masks.seeds) < 3:
        left_out += (f"{len(masks.seeds)} seed{'s' * (len(masks.seeds) > 1)}: the diagonal needs three",)
    table = correlation_table(masks)
    beside = {"": table, "-overlap": task_overlaps(masks)}
    return _Drawn(correlation_matrix(table), (*notes, *left_out), beside)


def _one_history(folders: Sequence[Path], tasks: Sequence[str]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    from mtl.evidence import gates_of

    if len(folders) != 1:
        raise InputError(f"this figure shows one run, {len(folders)} are given")
    return gates_of(_opened(folders), tasks)


def _gates(folders: Sequence[Path], tasks: Sequence[str], split: str) -> _Drawn:
    from probes.figures.gates_over_time import gates_over_time

    gates, notes = _one_history(folders, tasks)
    return _Drawn(gates_over_time(gates), notes)


def _masks(folders: Sequence[Path], tasks: Sequence[str], split: str) -> _Drawn:
    from probes.figures.masks import mask_picture

    gates, notes = _one_history(folders, tasks)
    return _Drawn(mask_picture(gates), notes)


def _animate(folders: Sequence[Path], tasks: Sequence[str], out: Path, console: Console) -> None:
    from mtl.files import whole_file
    from probes.figures.masks import animation

    gates, notes = _one_history(folders, tasks)
    for note in notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    with whole_file(out) as path:
        frames = animation(gates, path, "gif" if out.suffix.lower() == ".gif" else "webp")
    console.print(f"wrote {out} ({frames} pictures)", highlight=False, soft_wrap=True)


def _labels(folders: Sequence[Path], tasks: Sequence[str], split: str) -> _Drawn:
    from mtl.evidence import heads_of
    from probes.figures.label_accuracy import label_accuracy
    from probes.skill import absent_labels, label_values

    heads, notes = heads_of(folders, tasks)
    _one_task(heads)
    values = label_values(heads)
    return _Drawn(label_accuracy(values), (*notes, *absent_labels(values)), {"": values})


def _heatmap(folders: Sequence[Path], tasks: Sequence[str], split: str) -> _Drawn:
    from mtl.evidence import heads_of
    from probes.figures.head_label_heatmap import head_label_heatmap
    from probes.skill import skills

    heads, notes = heads_of(folders, tasks)
    _one_task(heads)
    setups = sorted(set(heads["setup"]))
    if len(setups) > 1:
        raise InputError(f"a heat map shows runs of one setup, and these are of {', '.join(setups)}")
    values = skills(heads)
    return _Drawn(head_label_heatmap(values), notes, {"": values})


def _one_task(heads: pl.DataFrame) -> None:
    found = list(heads["task"].unique(maintain_order=True))
    if len(found) > 1:
        raise InputError(
            f"this figure shows one task: choose with --tasks=[{found[0]}] (or {', '.join(found[1:])})"
        )


def _heads_kept(folders: Sequence[Path], tasks: Sequence[str], split: str) -> _Drawn:
    from mtl.evidence import gates_of, scores_of
    from probes.figures.heads_kept import heads_kept

    runs = _opened(folders)
    gates, without = gates_of(runs, tasks, shared_once=False)

    from mtl.config import TASK_NAMES, TrainConfig

    default = TrainConfig()
    last = gates.filter(pl.col("step") == pl.col("step").max().over("run"))
    size = last.group_by("run", "task").len()["len"][0]
    kept = last.group_by("run", "task").agg(kept=pl.col("open").sum().cast(pl.Int64))
    scores, notes = scores_of(runs, split, {task: getattr(default, task).score for task in TASK_NAMES})
    if tasks:
        scores = scores.filter(pl.col("task").is_in(tasks))
    if scores.is_empty():
        raise InputError("; ".join([*notes, f"no scores on {split}"]))
    table = (
        scores.join(kept, on=["run", "task"], how="left")
        .with_columns(pl.col("kept").fill_null(size))
        .select(pl.col("task").alias("series"), "run", "kept", "score")
        .sort("series", "kept", "run")
    )
    whole = tuple(note.replace("left out", "drawn with all heads") for note in without)
    return _Drawn(heads_kept(table, size), (*whole, *notes), {"": table})


_DRAW: dict[Name, Callable[[Sequence[Path], Sequence[str], str], _Drawn]] = {
    "rgb": _rgb,
    "grey": _grey,
    "correlation": _correlation,
    "gates": _gates,
    "masks": _masks,
    "labels": _labels,
    "heatmap": _heatmap,
    "heads-kept": _heads_kept,
}
